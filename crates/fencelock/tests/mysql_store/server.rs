//! A real MariaDB server in a temporary folder, on a free port, shared by the tests that run at the same time and ended when the
//! last of them lets go. Each test works in a database of its own.

use mysql_async::prelude::Queryable;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Something that runs in the background until it is dropped.
pub(crate) struct Server {
    folder: TempDir,
    pub(crate) child: Mutex<Option<Child>>,
    pub(crate) port: u16,
}

static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());

impl Server {
    /// The server that all tests share.
    pub(crate) fn shared() -> Arc<Server> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Server::start(&[]));
        *shared = Arc::downgrade(&server);
        server
    }

    /// A server of one's own.
    pub(crate) fn start(options: &[&str]) -> Server {
        Server::start_in(tempfile::tempdir().expect("a folder for the server"), options)
    }

    /// The same in a folder of one's own.
    pub(crate) fn start_in(folder: TempDir, options: &[&str]) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
        let install = || {
            let made = Command::new("mariadb-install-db")
                .arg("--no-defaults")
                .arg(format!("--datadir={}", folder.path().join("data").display()))
                .args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"])
                .args(user())
                .args(SMALL)
                .output()
                .expect("mariadb-install-db can be run");
            if !made.status.success() {
                eprintln!("{}", String::from_utf8_lossy(&made.stdout));
                let _ = std::fs::remove_dir_all(folder.path().join("data"));
            }
            made.status.success()
        };
        // Several at once may run the machine out of what asynchronous input and output needs.
        assert!((0..5).any(|_| install()), "mariadb-install-db failed");
        give_away(folder.path());
        let server = Server { folder, child: Mutex::new(None), port };
        server.run(options);
        server
    }

    /// Starts it, again perhaps.
    pub(crate) fn run(&self, options: &[&str]) {
        let folder = self.folder.path();
        let child = Command::new("mariadbd")
            .arg("--no-defaults")
            .arg(format!("--datadir={}", folder.join("data").display()))
            .arg(format!("--socket={}", folder.join("s").display()))
            .arg(format!("--pid-file={}", folder.join("pid").display()))
            // A server that starts removes what others keep in a common one.
            .arg(format!("--tmpdir={}", folder.display()))
            .arg(format!("--port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0"])
            .args(["--innodb-doublewrite=0", "--performance-schema=OFF", "--max-connections=300", "--skip-log-bin"])
            .args(user())
            .args(SMALL)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mariadbd can be run");
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.answers() {
            assert!(Instant::now() < deadline, "the server does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn answers(&self) -> bool {
        let ready = Command::new("mariadb-admin")
            .args(["--no-defaults", "-uroot", "-h127.0.0.1", "--protocol=tcp", &format!("-P{}", self.port), "ping"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        ready.is_ok_and(|status| status.success())
    }

    /// Ends it: `TERM` for the orderly way, `KILL` for a crash.
    pub(crate) fn stop(&self, signal: &str) {
        if let Some(mut child) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }

    /// A new, empty database.
    pub(crate) async fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("mysql").await.query_drop(format!("CREATE DATABASE {name}")).await.expect("a database");
        name
    }

    /// The URL of the store in that database.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{}/{database}", self.port)
    }

    /// A plain connection.
    pub(crate) async fn sql(&self, database: &str) -> mysql_async::Conn {
        mysql_async::Conn::from_url(self.url(database)).await.expect("a connection")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop("TERM");
    }
}

const SMALL: &[&str] = &["--innodb-flush-method=nosync", "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M"];

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

/// As root the server wants to be told which user to be.
fn user() -> Option<&'static str> {
    is_root().then_some("--user=mysql")
}

pub(crate) fn give_away(folder: &Path) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let Some(line) = users.lines().find(|line| line.starts_with("mysql:")).filter(|_| is_root()) else { return };
    let mut fields = line.split(':').skip(2).map(|field| field.parse::<u32>().ok());
    let (user, group) = (fields.next().flatten(), fields.next().flatten());
    std::os::unix::fs::chown(folder, user, group).expect("the folder can be given to the server's user");
}
