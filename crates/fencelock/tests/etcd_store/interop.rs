//! `etcdctl lock` excludes our mutex and is excluded by it.

use crate::server::Cluster;
use crate::{rounds, soon, within};
use fencelock::{ErrorKind, Locks};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Holds the lock with `etcdctl` from the moment when the file `in` appears until the file `out` does.
const HOLD: &str = r#"touch "$1/in"; while [ ! -e "$1/out" ]; do sleep 0.02; done; rm "$1/in""#;

struct Etcdctl(Child);

impl Etcdctl {
    fn lock(cluster: &Cluster, name: &str, dir: &Path) -> Etcdctl {
        // In a file: etcdctl takes what begins with a dash for its own.
        let script = dir.join("hold.sh");
        std::fs::write(&script, HOLD).expect("a file in our own folder");
        let mut command = cluster.ctl_command(&["lock", name, "sh"]);
        Etcdctl(
            command
                .arg(script)
                .arg(dir)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("etcdctl can be run"),
        )
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_lock_and_our_mutex_exclude_each_other() {
    let cluster = Cluster::one();
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    let mut last = 0;
    let mut overlaps = 0;
    for round in 0..rounds(20) {
        let dir = tempfile::tempdir().unwrap();
        let (inside, out) = (dir.path().join("in"), dir.path().join("out"));
        // Theirs first: ours waits.
        let theirs = Etcdctl::lock(&cluster, "shop/a", dir.path());
        soon("etcdctl has the lock", || inside.exists()).await;
        let error = locks.mutex("shop/a").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held, "{error}");
        assert!(error.to_string().contains("another client"), "{error}");
        let mutex = locks.mutex("shop/a");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let seen = async {
            while locks.inspect("shop/a").await.unwrap().waiting.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(Duration::from_secs(30), "joining the line", seen).await;
        overlaps += usize::from(waiting.is_finished());
        std::fs::write(&out, "").unwrap();
        let guard = within(Duration::from_secs(30), "the hand-over to us", waiting).await.unwrap().unwrap();
        overlaps += usize::from(inside.exists());
        drop(theirs);
        let number = guard.token().number();
        assert!(number > last, "round {round}: token {number} after {last}");
        last = number;

        // Ours first: theirs waits.
        let dir = tempfile::tempdir().unwrap();
        let (inside, out) = (dir.path().join("in"), dir.path().join("out"));
        let theirs = Etcdctl::lock(&cluster, "shop/a", dir.path());
        let seen = async {
            while locks.inspect("shop/a").await.unwrap().waiting.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(Duration::from_secs(30), "etcdctl joining the line", seen).await;
        overlaps += usize::from(inside.exists());
        guard.release().await.unwrap();
        soon("the hand-over to etcdctl", || inside.exists()).await;
        std::fs::write(&out, "").unwrap();
        soon("etcdctl is done", || !inside.exists()).await;
        let guard = within(Duration::from_secs(30), "ours again", locks.mutex("shop/a").lock()).await.unwrap();
        guard.release().await.unwrap();
        drop(theirs);
    }
    println!("counted: etcdctl lock: {} rounds each way, {overlaps} overlaps", rounds(20));
    assert_eq!(overlaps, 0);
}
