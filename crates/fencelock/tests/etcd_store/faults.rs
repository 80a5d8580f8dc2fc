//! Compaction, lost streams, ended sessions, and leaders that die or stand still.

use crate::proxy::Proxy;
use crate::server::Cluster;
use crate::{rounds, soon, within};
use fencelock::{Locks, MutexGuard, Options, State};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(40);
/// Within this of a revocation its holder is told. Renewals come every ten seconds: they would be later.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// The lease, in hex, of the first ticket of a name.
pub(crate) fn lease_of(cluster: &Cluster, name: &str, more: &[&str]) -> String {
    let prefix = format!("{name}/");
    let keys = cluster.ctl(&[more, &["get", "--prefix", &prefix, "--keys-only"]].concat());
    let key = keys.lines().find(|line| line.starts_with(&prefix)).expect("somebody is in the line");
    key[prefix.len()..].split('-').next().expect("there is always a first part").to_string()
}

/// `etcdctl watch` of a key: what a plain client hears, and when, on a machine as busy as it is.
struct Watch {
    child: Child,
    told: BufReader<ChildStdout>,
}

impl Watch {
    fn of(cluster: &Cluster, prefix: &str) -> Watch {
        let mut command = cluster.ctl_command(&["watch", "--prefix", prefix]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("etcdctl can be run");
        let told = BufReader::new(child.stdout.take().expect("piped"));
        Watch { child, told }
    }

    /// The moment at which a deletion is told.
    fn hears_a_deletion(mut self) -> Instant {
        let mut line = String::new();
        while line.trim() != "DELETE" {
            line.clear();
            assert!(self.told.read_line(&mut line).expect("text") > 0, "the watch has ended");
        }
        Instant::now()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

fn wait_for(locks: &Locks, name: &str) -> JoinHandle<fencelock::Result<MutexGuard>> {
    let mutex = locks.mutex(name);
    tokio::spawn(async move { mutex.lock().await })
}

/// Until so many wait.
async fn waiting(locks: &Locks, name: &str, count: usize) {
    let all = async {
        while locks.inspect(name).await.unwrap().waiting.len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "joining the line", all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_revoked_is_told_at_once() {
    let cluster = Cluster::one();
    let (locks, other) = (Locks::connect(&cluster.url()).await.unwrap(), Locks::connect(&cluster.url()).await.unwrap());
    for _ in 0..rounds(10) {
        let guard = locks.mutex("a").lock().await.unwrap();
        let second = locks.mutex("b").lock().await.unwrap();
        let next = wait_for(&other, "a");
        waiting(&other, "a", 1).await;
        let lease = lease_of(&cluster, "b", &[]);
        let watches = cluster.members[0].metric("etcd_debugging_mvcc_watcher_total");
        let plain = Watch::of(&cluster, "b/");
        soon("the plain client watches", || cluster.members[0].metric("etcd_debugging_mvcc_watcher_total") > watches)
            .await;
        let heard = tokio::task::spawn_blocking(move || plain.hears_a_deletion());
        let revoking = Instant::now();
        cluster.ctl(&["lease", "revoke", &lease]);
        within(LONG, "being told of the loss", guard.lost()).await;
        let told = revoking.elapsed();
        within(LONG, "being told of the other loss", second.lost()).await;
        let both = revoking.elapsed();
        let heard = within(LONG, "the plain client hears of it", heard).await.unwrap() - revoking;
        println!("counted: of a revocation the holder was told after {told:?}, a plain watch after {heard:?}");
        assert!(both <= TOLD_WITHIN + heard, "told after {both:?}, a plain watch after {heard:?}");
        assert_eq!(guard.state(), State::Lost);
        let next = within(LONG, "the next one", next).await.unwrap().unwrap();
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
        // A new session is opened for whoever comes next.
        let again = locks.mutex("a").lock().await.unwrap();
        assert!(again.token() > guard.token());
        again.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_is_revoked_queues_again() {
    let cluster = Cluster::one();
    let (locks, other) = (Locks::connect(&cluster.url()).await.unwrap(), Locks::connect(&cluster.url()).await.unwrap());
    for _ in 0..rounds(10) {
        let guard = locks.mutex("a").lock().await.unwrap();
        let first = guard.token().number();
        let holders = lease_of(&cluster, "a", &[]);
        let next = wait_for(&other, "a");
        waiting(&locks, "a", 1).await;
        let keys = cluster.ctl(&["get", "--prefix", "a/", "--keys-only"]);
        let mut leases = keys.lines().filter_map(|line| line.strip_prefix("a/")?.split('-').next());
        let waiters = leases.find(|lease| *lease != holders).expect("somebody waits").to_string();
        cluster.ctl(&["lease", "revoke", &waiters]);
        let queued_again = async {
            loop {
                let line = cluster.ctl(&["get", "--prefix", "a/", "--keys-only"]);
                if line.matches("a/").count() == 2 && !line.contains(&waiters) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(LONG, "queueing again", queued_again).await;
        assert!(!next.is_finished(), "it came in beside the holder");
        guard.release().await.unwrap();
        let next = within(LONG, "the next one", next).await.unwrap().unwrap();
        assert!(next.token().number() > first);
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_is_survived() {
    let cluster = Cluster::one();
    let (locks, other) = (Locks::connect(&cluster.url()).await.unwrap(), Locks::connect(&cluster.url()).await.unwrap());
    let guard = locks.mutex("a").lock().await.unwrap();
    let next = wait_for(&other, "a");
    waiting(&locks, "a", 1).await;
    for i in 0..5 {
        cluster.ctl(&["put", "x", &i.to_string()]);
    }
    let revision = cluster.ctl(&["put", "x", "y", "-w", "json"]);
    let revision = revision.split("\"revision\":").nth(1).and_then(|rest| rest.split([',', '}']).next()).unwrap();
    cluster.ctl(&["compact", "--physical=true", revision]);
    guard.release().await.unwrap();
    within(LONG, "the hand-over", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_stream_is_opened_again() {
    let cluster = Cluster::one();
    let proxy = Proxy::before(cluster.members[0].port).await;
    let (locks, other) = (Locks::connect(&cluster.url()).await.unwrap(), Locks::connect(&proxy.url()).await.unwrap());
    for _ in 0..rounds(10) {
        // Released after the stream was lost, and in the gap.
        for settle in [true, false] {
            let guard = locks.mutex("a").lock().await.unwrap();
            let next = wait_for(&other, "a");
            waiting(&locks, "a", 1).await;
            proxy.cut_all();
            if settle {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            guard.release().await.unwrap();
            let next = within(LONG, "the hand-over", next).await.unwrap().unwrap();
            assert_eq!(next.state(), State::Safe);
            next.release().await.unwrap();
        }
    }
}

/// What became of a holder and the one behind it.
async fn verdict(guard: MutexGuard, next: JoinHandle<fencelock::Result<MutexGuard>>) -> (&'static str, u64) {
    let first = guard.token();
    tokio::select! {
        () = guard.lost() => {
            let next = within(LONG, "the next one", next).await.unwrap().unwrap();
            assert!(next.token() > first);
            let number = next.token().number();
            next.release().await.unwrap();
            ("lost, told, and passed on", number)
        }
        () = tokio::time::sleep(Duration::from_secs(3)) => {
            assert!(!next.is_finished(), "two are inside, and neither was told");
            let number = first.number();
            guard.release().await.unwrap();
            let next = within(LONG, "the next one", next).await.unwrap().unwrap();
            assert!(next.token().number() > number);
            next.release().await.unwrap();
            ("kept", number)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_or_stands_still() {
    let mut cluster = Cluster::three();
    let (locks, other) = (Locks::connect(&cluster.url()).await.unwrap(), Locks::connect(&cluster.url()).await.unwrap());
    let mut last = 0;
    for round in 0..rounds(10) {
        for fault in ["killed", "paused"] {
            let options = Options::new().lease(Duration::from_secs(6));
            let guard = within(LONG, "the first lock", locks.mutex("a").lock_with(options)).await.unwrap();
            assert!(guard.token().number() > last, "tokens grow");
            let next = wait_for(&other, "a");
            waiting(&other, "a", 1).await;
            let leader = cluster.leader();
            let verdict = match fault {
                "killed" => {
                    cluster.members[leader].kill();
                    let verdict = verdict(guard, next).await;
                    cluster.members[leader].restart();
                    verdict
                }
                _ => {
                    cluster.members[leader].signal("STOP");
                    tokio::time::sleep(Duration::from_secs(4)).await;
                    cluster.members[leader].signal("CONT");
                    verdict(guard, next).await
                }
            };
            println!("counted: round {round}: the leader was {fault}: the lock was {}", verdict.0);
            last = verdict.1;
        }
    }
    drop((locks, other));
}
