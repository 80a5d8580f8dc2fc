//! `consul lock` excludes our mutex of its layout and is excluded by it.

use crate::server::{Server, program};
use crate::{LONG, rounds, soon, within};
use fencelock::{ErrorKind, Locks};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Holds the lock from the moment when the file `in` appears until the file `out` does.
const HOLD: &str = r#"touch "$1/in"; while [ ! -e "$1/out" ]; do sleep 0.02; done; rm "$1/in""#;

struct Theirs(Child);

impl Theirs {
    /// `consul lock NAME`.
    fn lock(server: &Server, name: &str, dir: &Path) -> Theirs {
        let script = dir.join("hold.sh");
        std::fs::write(&script, HOLD).expect("a file in our own folder");
        let mut command = Command::new(program().expect("asked for before"));
        command.args(["lock", &format!("-http-addr=127.0.0.1:{}", server.port()), "-shell=false", name, "sh"]);
        let child = command.arg(script).arg(dir).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Theirs(child.expect("consul can be run"))
    }

    /// It gives the lock back and ends.
    async fn ends(&mut self) {
        soon("consul lock ends", || self.0.try_wait().expect("our own child").is_some()).await;
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// How many sessions of `consul lock` there are.
fn sessions(server: &Server) -> usize {
    server.request("GET", "/v1/session/list", "").map_or(0, |(_, body)| body.matches("Consul lock for").count())
}

pub(crate) async fn consul_lock_and_our_mutex_exclude_each_other() {
    let server = Server::start();
    let locks = Locks::connect(&format!("{}?layout=consul-lock", server.url())).await.unwrap();
    let (mut last, mut overlaps) = (0, 0);
    for round in 0..rounds(2, 20) {
        // Theirs first: ours waits.
        let dir = tempfile::tempdir().unwrap();
        let (inside, out) = (dir.path().join("in"), dir.path().join("out"));
        let mut theirs = Theirs::lock(&server, "shop/a", dir.path());
        soon("consul lock has it", || inside.exists()).await;
        let error = locks.mutex("shop/a").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held, "{error}");
        let mutex = locks.mutex("shop/a");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        // It has no place in a line that could be seen: time to come in beside the other, if it could.
        tokio::time::sleep(Duration::from_millis(300)).await;
        overlaps += usize::from(waiting.is_finished());
        std::fs::write(&out, "").unwrap();
        let guard = within(LONG, "the hand-over to us", waiting).await.unwrap().unwrap();
        overlaps += usize::from(inside.exists());
        theirs.ends().await;
        let number = guard.token().number();
        assert!(number > last, "round {round}: token {number} after {last}");
        last = number;

        // Ours first: theirs waits.
        let dir = tempfile::tempdir().unwrap();
        let (inside, out) = (dir.path().join("in"), dir.path().join("out"));
        let mut theirs = Theirs::lock(&server, "shop/a", dir.path());
        soon("consul lock asks for it", || sessions(&server) == 1).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        overlaps += usize::from(inside.exists());
        guard.release().await.unwrap();
        soon("the hand-over to consul lock", || inside.exists()).await;
        std::fs::write(&out, "").unwrap();
        theirs.ends().await;
    }
    println!("counted: {} rounds each way, {overlaps} overlaps", rounds(2, 20));
    assert_eq!(overlaps, 0);
}

pub(crate) async fn the_other_layout_is_named() {
    let server = Server::start();
    let (theirs, ours) = (
        Locks::connect(&format!("{}?layout=consul-lock", server.url())).await.unwrap(),
        Locks::connect(&server.url()).await.unwrap(),
    );
    let guard = theirs.mutex("a").lock().await.unwrap();
    for error in [ours.mutex("a").lock().await.unwrap_err(), ours.mutex("a").try_lock().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains("layout=consul-lock"), "{error}");
    }
    guard.release().await.unwrap();
    ours.mutex("a").lock().await.unwrap().release().await.unwrap();
    for kind in ["read", "permits"] {
        let refused = match kind {
            "read" => theirs.rwlock("a").read().await.map(drop),
            _ => theirs.semaphore("a", 2).acquire().await.map(drop),
        };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported, "{kind}");
    }
}
