//! How many system calls an uncontended lock and its release take, all threads of the process together, on a runtime with one thread: a
//! count that hardly any noise touches. Where `strace` is not at hand, or may not trace, this is shown as ignored.

use libtest_mimic::{Arguments, Trial};
use std::process::{Command, Stdio};

#[path = "../../crates/fencelock/tests/etcd_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod etcd_server;
#[path = "../../crates/fencelock/tests/redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod redis_server;
#[path = "../../crates/fencelock/tests/zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod zookeeper_server;

fn main() {
    let arguments = Arguments::from_args();
    let traces = Command::new("strace").args(["-c", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    let may = traces.is_ok_and(|status| status.success());
    let trial = Trial::test("a_cycle_takes_no_more_system_calls_than_it_did", || {
        a_cycle_takes_no_more_system_calls_than_it_did();
        Ok(())
    });
    let trial = if may { trial } else { trial.with_kind("no strace").with_ignored_flag(!arguments.list) };
    libtest_mimic::run(&arguments, vec![trial]).exit();
}

/// The bounds are what was found (1, 18 and 7; 1.6 of ZooKeeper, 2 of etcd), and a little more; whoever needs fewer lowers them.
fn a_cycle_takes_no_more_system_calls_than_it_did() {
    let (server, folder) = (redis_server::Server::start(), tempfile::tempdir().unwrap());
    let address = server.url().trim_start_matches("redis://").to_string();
    let file = folder.path().join("locks.db").display().to_string();
    let zookeeper = zookeeper_server::Server::start();
    let ensemble = format!("127.0.0.1:{}", zookeeper.port());
    let etcd = etcd_server::Cluster::one();
    // Of etcd the packets to the server count. ZooKeeper's client asks its socket more or less often, as it happens. What counts there is how often one thread calls another.
    for (lock, address, which, bound) in [
        ("memory", "-", "total", 1.5),
        ("sqlite", &file, "total", 22.0),
        // Awake, it looks for the answer as often as the time allows; what counts there is what it sends.
        ("redis-asleep", &address, "total", 9.0),
        ("redis", &address, "sendto", 2.2),
        ("zookeeper", &ensemble, "write", 3.0),
        ("etcd", &etcd.hosts(), "sendto", 2.5),
    ] {
        let (fixed, few) = counted(lock, address, which, "0.2");
        let (all, many) = counted(lock, address, which, "1.2");
        let found = (all - fixed) / (many - few);
        eprintln!("{lock}: {found:.1} system calls ({which}) for a lock and its release");
        assert!(many > few && found <= bound, "{lock}: {found:.1} system calls for a cycle, {bound} were enough");
    }
}

/// The system calls of this name and the cycles of a worker that works for so long.
fn counted(lock: &str, address: &str, which: &str, secs: &str) -> (f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("calls");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(&table).arg(env!("CARGO_BIN_EXE_fencelock-bench"));
    traced.args(["worker", lock, address, "pair", "threads=1", "names=own", "warm=0", &format!("secs={secs}")]);
    // An input that has ended is the line that it waits for.
    let done = traced.stdin(Stdio::null()).stderr(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let result = said.lines().rev().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let cycles = result.and_then(|result| result["cycles"].as_f64()).unwrap_or_else(|| panic!("no result: {said}"));
    let table = std::fs::read_to_string(&table).unwrap();
    let named = table.lines().rfind(|line| line.split_whitespace().nth(1) == Some(which)).unwrap();
    (named.split_whitespace().next().unwrap().parse().unwrap(), cycles)
}
