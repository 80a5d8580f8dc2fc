//! Our locks and Apache Curator's on the same path, by Curator's own code: where Maven and a Java compiler are at hand and
//! Curator can be had; otherwise these tests are shown as ignored.

#[path = "zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::{ErrorKind, Locks};
use libtest_mimic::{Arguments, Trial};
use server::Server;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs with the peer's class path.
type Test = fn(&str);

fn main() {
    let arguments = Arguments::from_args();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zookeeper_curator");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("curator");
    let wanted = !arguments.list;
    let class_path = if wanted { prepare(&here, &folder) } else { Err("only listed".into()) };
    let tests: [(&str, Test); 3] = [
        ("curator_s_mutex_and_ours_exclude_each_other", mutexes),
        ("curator_s_read_write_lock_and_ours_exclude_each_other", readers_and_writers),
        ("a_counter_that_both_add_to_comes_out_exact", counted),
    ];
    let trials = tests.map(|(name, test)| match &class_path {
        Ok(class_path) => {
            let class_path = class_path.clone();
            Trial::test(name, move || {
                test(&class_path);
                Ok(())
            })
        }
        Err(why) => Trial::test(name, || Ok(())).with_kind(why.clone()).with_ignored_flag(wanted),
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}

/// Gets Curator and compiles the peer, once; says with which class path it runs.
fn prepare(here: &Path, folder: &Path) -> Result<String, String> {
    let run = |program: &str, args: &[&str]| {
        let quiet = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.map_err(|_| format!("no {program}"))?.success().then_some(()).ok_or(format!("{program} failed"))
    };
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
    fn start(class_path: &str, server: &Server) -> Peer {
        let mut child = Command::new("java")
            .args(["-XX:+UseSerialGC", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", class_path, "Peer"])
            .arg(format!("127.0.0.1:{}", server.port()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("java can be run");
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

fn mutexes(class_path: &str) {
    let server = Server::start();
    let mut peer = Peer::start(class_path, &server);
    runtime().block_on(async {
        let locks = Locks::connect(&server.url()).await.expect("connect");
        let mut last = 0;
        for _ in 0..rounds() {
            // Curator holds, we wait.
            assert_eq!(peer.ask("take mutex /locks/a"), "in");
            let error = locks.mutex("locks/a").try_lock().await.expect_err("Curator holds it");
            assert_eq!(error.kind(), ErrorKind::Held, "{error}");
            let theirs = error.holder().and_then(|holder| holder.token).expect("its number");
            let mutex = locks.mutex("locks/a");
            let waiting = tokio::spawn(async move { mutex.lock().await.expect("lock") });
            until_waiting(&locks, "locks/a", 1).await;
            assert_eq!(peer.ask("leave"), "out");
            let guard = waiting.await.expect("no panic");
            // We hold, Curator waits.
            assert_eq!(peer.ask("try mutex /locks/a"), "held");
            peer.order("take mutex /locks/a");
            until_waiting(&locks, "locks/a", 1).await;
            let ours = guard.token().number();
            assert!(last < theirs && theirs < ours, "tokens grow over both: {last} {theirs} {ours}");
            guard.release().await.expect("release");
            assert_eq!(peer.answer(), "in");
            assert_eq!(peer.ask("leave"), "out");
            last = ours;
        }
    });
}

fn readers_and_writers(class_path: &str) {
    let server = Server::start();
    let mut peer = Peer::start(class_path, &server);
    runtime().block_on(async {
        let locks = Locks::connect(&server.url()).await.expect("connect");
        let lock = locks.rwlock("locks/a");
        for _ in 0..rounds() {
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
    });
}

/// Both add one to a number in a file, without any other protection. An overlap would lose one.
fn counted(class_path: &str) {
    let server = Server::start();
    let mut peer = Peer::start(class_path, &server);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Arc::new(folder.path().join("number"));
    let each = 20 * rounds();
    runtime().block_on(async {
        let locks = Locks::connect(&server.url()).await.expect("connect");
        for kind in ["mutex", "write"] {
            std::fs::write(&*file, "0").expect("our own file");
            peer.order(&format!("count {kind} /locks/{kind} {} {each}", file.display()));
            let mut tasks = Vec::new();
            for _ in 0..3 {
                let (locks, file) = (locks.clone(), file.clone());
                tasks.push(tokio::spawn(async move {
                    for _ in 0..each {
                        let name = format!("locks/{kind}");
                        let add = || {
                            let number: u64 =
                                std::fs::read_to_string(&*file).expect("there").trim().parse().expect("a number");
                            std::fs::write(&*file, (number + 1).to_string()).expect("our own file");
                        };
                        if kind == "mutex" {
                            let guard = locks.mutex(&name).lock().await.expect("lock");
                            add();
                            guard.release().await.expect("release");
                        } else {
                            let guard = locks.rwlock(&name).write().await.expect("lock");
                            add();
                            guard.release().await.expect("release");
                        }
                    }
                }));
            }
            for task in tasks {
                task.await.expect("no panic");
            }
            assert_eq!(peer.answer(), "counted");
            let number = std::fs::read_to_string(&*file).expect("there");
            assert_eq!(number.trim(), (4 * each).to_string(), "{kind}: an overlap lost some");
        }
    });
}
