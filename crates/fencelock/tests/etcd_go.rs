//! Our mutex and the one of etcd's own Go client (`concurrency.Mutex`) on the same name, by that client's own code: where Go is
//! at hand and the client can be had; otherwise these tests are shown as ignored.

#[path = "etcd_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::{ErrorKind, Locks};
use libtest_mimic::{Arguments, Trial};
use server::Cluster;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs with the peer's program.
type Test = fn(&Path);

fn main() {
    let arguments = Arguments::from_args();
    let wanted = !arguments.list;
    let peer = if wanted { prepare() } else { Err("only listed".into()) };
    let tests: [(&str, Test); 2] =
        [("gos_mutex_and_ours_exclude_each_other", mutexes), ("a_counter_that_both_add_to_comes_out_exact", counted)];
    let trials = tests.map(|(name, test)| match &peer {
        Ok(peer) => {
            let peer = peer.clone();
            Trial::test(name, move || {
                test(&peer);
                Ok(())
            })
        }
        Err(why) => Trial::test(name, || Ok(())).with_kind(why.clone()).with_ignored_flag(wanted),
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}

/// Gets the client and builds the peer, once.
fn prepare() -> Result<PathBuf, String> {
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
    let built = go.stdout(Stdio::null()).stderr(Stdio::null()).status().map_err(|_| "no go")?;
    built.success().then(|| folder.join("peer")).ok_or("go build failed".into())
}

/// How often: often in a soak.
fn rounds() -> usize {
    if std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1") { 20 } else { 3 }
}

struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(program: &Path, cluster: &Cluster) -> Peer {
        let mut child = Command::new(program)
            .arg(cluster.hosts())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it was built");
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut peer = Peer { child, orders, answers };
        assert_eq!(peer.answer(), "ready");
        peer
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").and_then(|()| self.orders.flush()).expect("it listens");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it speaks");
        line.trim().to_string()
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Waits until so many wait in the line.
async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    let limit = Instant::now() + Duration::from_secs(30);
    while locks.inspect(name).await.expect("inspect").waiting.len() != count {
        assert!(Instant::now() < limit, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn mutexes(program: &Path) {
    let cluster = Cluster::one();
    let mut peer = Peer::start(program, &cluster);
    runtime().block_on(async {
        let locks = Locks::connect(&cluster.url()).await.expect("connect");
        let mut last = 0;
        for _ in 0..rounds() {
            // Theirs holds, ours waits.
            assert!(peer.ask("take locks/a").starts_with("in"));
            let error = locks.mutex("locks/a").try_lock().await.expect_err("theirs holds it");
            assert_eq!(error.kind(), ErrorKind::Held, "{error}");
            let theirs = error.holder().and_then(|holder| holder.token).expect("its number");
            let mutex = locks.mutex("locks/a");
            let waiting = tokio::spawn(async move { mutex.lock().await.expect("lock") });
            until_waiting(&locks, "locks/a", 1).await;
            assert!(!waiting.is_finished(), "two at a time");
            assert_eq!(peer.ask("leave"), "out");
            let guard = waiting.await.expect("no panic");
            // Ours holds, theirs waits.
            assert_eq!(peer.ask("try locks/a"), "held");
            peer.order("take locks/a");
            until_waiting(&locks, "locks/a", 1).await;
            let ours = guard.token().number();
            assert!(last < theirs && theirs < ours, "tokens grow over both: {last} {theirs} {ours}");
            guard.release().await.expect("release");
            assert!(peer.answer().starts_with("in"));
            assert_eq!(peer.ask("leave"), "out");
            last = ours;
        }
    });
}

/// Both add one to a number in a file, without any other protection. An overlap would lose one.
fn counted(program: &Path) {
    let cluster = Cluster::one();
    let mut peer = Peer::start(program, &cluster);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Arc::new(folder.path().join("number"));
    let each = 10 * rounds();
    runtime().block_on(async {
        let locks = Locks::connect(&cluster.url()).await.expect("connect");
        std::fs::write(&*file, "0").expect("our own file");
        peer.order(&format!("count locks/a {} {each}", file.display()));
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let (locks, file) = (locks.clone(), file.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..each {
                    let guard = locks.mutex("locks/a").lock().await.expect("lock");
                    let number = std::fs::read_to_string(&*file).expect("there");
                    let number: u64 = number.trim().parse().expect("a number");
                    std::fs::write(&*file, (number + 1).to_string()).expect("our own file");
                    guard.release().await.expect("release");
                }
            }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_eq!(peer.answer(), "counted");
        let number = std::fs::read_to_string(&*file).expect("there");
        assert_eq!(number.trim(), (4 * each).to_string(), "an overlap lost some");
    });
}
