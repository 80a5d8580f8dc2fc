//! A real PostgreSQL server in a temporary folder, on a free port, shared by the tests that run at the same time and ended when
//! the last of them lets go. Each test works in a schema of its own.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
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
        Server::start_in(tempfile::tempdir().expect("a folder for the server"), &[], options)
    }

    /// The same in a folder of one's own, made in a way of one's own.
    pub(crate) fn start_in(folder: TempDir, making: &[&str], options: &[&str]) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
        give_away(folder.path());
        let data = folder.path().join("data");
        let made = as_server(&program("initdb"))
            .arg("-D")
            .arg(&data)
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"])
            .args(making)
            .stdout(Stdio::null())
            .status()
            .expect("initdb can be run");
        assert!(made.success(), "initdb failed");
        let server = Server { folder, child: Mutex::new(None), port };
        server.run(options);
        server
    }

    /// A standby of this one: a copy that follows it, until it is promoted.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) fn standby(of: &Server) -> Server {
        let folder = tempfile::tempdir().expect("a folder for the server");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
        give_away(folder.path());
        let copied = as_server(&program("pg_basebackup"))
            .arg("-D")
            .arg(folder.path().join("data"))
            .args(["-h", "127.0.0.1", "-p", &of.port.to_string(), "-U", "postgres"])
            .args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"])
            .status()
            .expect("pg_basebackup can be run");
        assert!(copied.success(), "pg_basebackup failed");
        let server = Server { folder, child: Mutex::new(None), port };
        server.run(&[]);
        server
    }

    /// Starts it, again perhaps.
    pub(crate) fn run(&self, options: &[&str]) {
        let child = as_server(&program("postgres"))
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .arg("-k")
            .arg(self.folder.path())
            .args(["-p", &self.port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "synchronous_commit=off"])
            .args(["-c", "full_page_writes=off", "-c", "max_connections=200", "-c", "shared_buffers=32MB"])
            .args(["-c", "autovacuum=off", "-c", "jit=off", "-c", "log_min_messages=error"])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("postgres can be run");
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.answers() {
            assert!(Instant::now() < deadline, "the server does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn answers(&self) -> bool {
        let ready =
            Command::new(program("pg_isready")).args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status();
        ready.is_ok_and(|status| status.success())
    }

    /// Ends it: `INT` for the fast way, `KILL` for a crash (what it had started ends by itself).
    pub(crate) fn stop(&self, signal: &str) {
        if let Some(mut child) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }

    /// A schema that no other test uses.
    pub(crate) fn schema() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("t{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The URL of the store in that schema.
    pub(crate) fn url(&self, schema: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?schema={schema}", self.port)
    }

    /// A plain connection.
    pub(crate) async fn sql(&self) -> tokio_postgres::Client {
        let config = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port);
        let (client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    }

    /// A file beside the data, readable by the server.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop("INT");
    }
}

/// Debian keeps the server's programs out of the path.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists()).max();
    found.unwrap_or_else(|| name.into())
}

/// PostgreSQL refuses to run as root: then as the user that its package has made.
fn server_user() -> Option<(u32, u32)> {
    let root = std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = users.lines().find(|line| line.starts_with("postgres:")).filter(|_| root)?;
    let mut fields = line.split(':').skip(2).map(|field| field.parse().ok());
    Some((fields.next()??, fields.next()??))
}

pub(crate) fn as_server(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").stdin(Stdio::null());
    if let Some((user, group)) = server_user() {
        command.uid(user).gid(group);
    }
    command
}

pub(crate) fn give_away(folder: &Path) {
    if let Some((user, group)) = server_user() {
        std::os::unix::fs::chown(folder, Some(user), Some(group))
            .expect("the folder can be given to the server's user");
    }
}
