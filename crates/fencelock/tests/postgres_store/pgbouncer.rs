//! A real PgBouncer in transaction mode, before a server of ours.

use crate::server::{self, Server};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// It runs until it is dropped.
pub(crate) struct PgBouncer {
    child: Child,
    _folder: TempDir,
    pub(crate) port: u16,
}

impl PgBouncer {
    pub(crate) fn start(server: &Server) -> PgBouncer {
        let folder = tempfile::tempdir().expect("a folder for the pooler");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
        let (settings, users) = (folder.path().join("pgbouncer.ini"), folder.path().join("users.txt"));
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("a file");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = trust\n\
             auth_file = {}\npool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 20\nunix_socket_dir =\n",
            server.port,
            users.display()
        );
        std::fs::write(&settings, text).expect("a file");
        server::give_away(folder.path());
        let program = if Path::new("/usr/sbin/pgbouncer").exists() { "/usr/sbin/pgbouncer" } else { "pgbouncer" };
        let child = server::as_server(Path::new(program))
            .arg("-q")
            .arg(&settings)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbouncer can be run");
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "the pooler does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        PgBouncer { child, _folder: folder, port }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
