//! Our mutex and the one of etcd's own Go client (`concurrency.Mutex`) on the same name, by that client's own code: where Go is
//! at hand and the client can be had; otherwise these tests are shown as ignored.

#[path = "etcd_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::{Locks, MutexGuard};
use fencelock_testkit::{Peer, add_up, exclude_each_other, peer_rounds, quietly, with_a_runtime};
use server::Cluster;
use std::path::Path;
use std::process::Command;

fn main() {
    fencelock_testkit::main_beside(
        prepare,
        &[("gos_mutex_and_ours_exclude_each_other", mutexes), ("a_counter_that_both_add_to_comes_out_exact", counted)],
    );
}

/// Gets the client and builds the peer, once.
fn prepare() -> Result<String, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd_go");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("etcd-go");
    let cannot = |error: std::io::Error| error.to_string();
    std::fs::create_dir_all(&folder).map_err(cannot)?;
    for file in ["go.mod", "main.go"] {
        std::fs::copy(here.join(file), folder.join(file)).map_err(cannot)?;
    }
    // Sums are looked up once and kept beside it.
    let mut go = Command::new("go");
    go.args(["build", "-o", "peer", "."]).current_dir(&folder).env("GOFLAGS", "-mod=mod -buildvcs=false");
    quietly(&mut go)?;
    Ok(folder.join("peer").display().to_string())
}

fn mutexes(program: &str) {
    let cluster = Cluster::one();
    let mut peer = Peer::start(Command::new(program).arg(cluster.hosts()));
    with_a_runtime(async {
        let locks = Locks::connect(&cluster.url()).await.expect("connect");
        exclude_each_other(&mut peer, "locks/a", &locks, "locks/a").await;
    });
}

fn counted(program: &str) {
    let cluster = Cluster::one();
    let mut peer = Peer::start(Command::new(program).arg(cluster.hosts()));
    with_a_runtime(async {
        let locks = Locks::connect(&cluster.url()).await.expect("connect");
        let lock = move || {
            let mutex = locks.mutex("locks/a");
            async move { mutex.lock().await.expect("lock") }
        };
        let release = |guard: MutexGuard| async move {
            guard.release().await.expect("release");
        };
        add_up(&mut peer, "locks/a", 10 * peer_rounds(), lock, release).await;
    });
}
