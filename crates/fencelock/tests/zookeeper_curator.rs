//! Our locks and Apache Curator's on the same path, by Curator's own code: where Maven and a Java compiler are at hand and
//! Curator can be had; otherwise these tests are shown as ignored.

#[path = "zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::{ErrorKind, Locks, MutexGuard, WriteGuard};
use fencelock_testkit::{Peer, add_up, exclude_each_other, peer_rounds, quietly, with_a_runtime};
use server::Server;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    fencelock_testkit::main_beside(
        prepare,
        &[
            ("curator_s_mutex_and_ours_exclude_each_other", mutexes),
            ("curator_s_read_write_lock_and_ours_exclude_each_other", readers_and_writers),
            ("a_counter_that_both_add_to_comes_out_exact", counted),
        ],
    );
}

/// Gets Curator and compiles the peer, once; says with which class path it runs.
fn prepare() -> Result<String, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zookeeper_curator");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("curator");
    let run = |program: &str, args: &[&str]| quietly(Command::new(program).args(args));
    let show = |path: PathBuf| path.display().to_string();
    let (jars, classes) = (show(folder.join("jars")), show(folder.join("classes")));
    run("javac", &["-version"])?;
    if !folder.join("jars").is_dir() {
        let (pom, out) = (show(here.join("pom.xml")), format!("-DoutputDirectory={jars}"));
        run("mvn", &["-q", "-B", "-f", &pom, "dependency:copy-dependencies", &out])?;
    }
    let all = format!("{jars}/*");
    run("javac", &["-cp", &all, "-d", &classes, &show(here.join("Peer.java"))])?;
    Ok(format!("{all}:{classes}"))
}

fn start(class_path: &str, server: &Server) -> Peer {
    let mut java = Command::new("java");
    java.args(["-XX:+UseSerialGC", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", class_path, "Peer"]);
    Peer::start(java.arg(format!("127.0.0.1:{}", server.port())))
}

fn mutexes(class_path: &str) {
    let server = Server::start();
    let mut peer = start(class_path, &server);
    with_a_runtime(async {
        let locks = Locks::connect(&server.url()).await.expect("connect");
        exclude_each_other(&mut peer, "mutex /locks/a", &locks, "locks/a").await;
    });
}

fn readers_and_writers(class_path: &str) {
    let server = Server::start();
    let mut peer = start(class_path, &server);
    with_a_runtime(async {
        let locks = Locks::connect(&server.url()).await.expect("connect");
        let lock = locks.rwlock("locks/a");
        for _ in 0..peer_rounds() {
            assert_eq!(peer.ask("take read /locks/a"), "in");
            let reader = lock.try_read().await.expect("readers share");
            assert_eq!(lock.try_write().await.expect_err("read").kind(), ErrorKind::Held);
            assert_eq!(peer.ask("leave"), "out");
            assert_eq!(peer.ask("try write /locks/a"), "held");
            assert_eq!(peer.ask("try read /locks/a"), "in");
            assert_eq!(peer.ask("leave"), "out");
            reader.release().await.expect("release");
            assert_eq!(peer.ask("take write /locks/a"), "in");
            assert_eq!(lock.try_read().await.expect_err("written").kind(), ErrorKind::Held);
            assert_eq!(lock.try_write().await.expect_err("written").kind(), ErrorKind::Held);
            assert_eq!(peer.ask("leave"), "out");
            let writer = lock.write().await.expect("free");
            for kind in ["read", "write"] {
                assert_eq!(peer.ask(&format!("try {kind} /locks/a")), "held");
            }
            // A writer that became a reader lets Curator's readers in, and its writers not.
            let reader = writer.downgrade().await.expect("held");
            assert_eq!(peer.ask("try write /locks/a"), "held");
            assert_eq!(peer.ask("try read /locks/a"), "in");
            assert_eq!(peer.ask("leave"), "out");
            reader.release().await.expect("release");
        }
        println!("counted: Curator's read-write lock and ours: {} rounds each way, 0 overlaps", peer_rounds());
    });
}

fn counted(class_path: &str) {
    let server = Server::start();
    let mut peer = start(class_path, &server);
    let each = 20 * peer_rounds();
    with_a_runtime(async {
        let locks = Locks::connect(&server.url()).await.expect("connect");
        let mutex = locks.mutex("locks/mutex");
        let lock = move || {
            let mutex = mutex.clone();
            async move { mutex.lock().await.expect("lock") }
        };
        let release = |guard: MutexGuard| async move {
            guard.release().await.expect("release");
        };
        add_up(&mut peer, "mutex /locks/mutex", each, lock, release).await;
        let rwlock = locks.rwlock("locks/write");
        let lock = move || {
            let rwlock = rwlock.clone();
            async move { rwlock.write().await.expect("lock") }
        };
        let release = |guard: WriteGuard| async move {
            guard.release().await.expect("release");
        };
        add_up(&mut peer, "write /locks/write", each, lock, release).await;
    });
}
