//! A follower in a network namespace of its own, whose link to the others is taken down while its clients still reach it: whoever
//! holds a lock there counts itself lost before the leader lets another in. Where namespaces cannot be made (they need root and
//! `ip`), this program says so and runs nothing; `zookeeper_store` shows the same with proxies.

#[path = "zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::{ErrorKind, Locks, MutexGuard, Options, State};
use libtest_mimic::{Arguments, Trial};
use server::{Ensemble, Seat, free_port};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(2);
/// Nothing here takes this long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

/// A namespace with two links to here: one for the servers, one for clients.
struct Net {
    name: String,
    subnet: String,
}

fn ip(line: &str) -> bool {
    let run = Command::new("ip").args(line.split(' ')).stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

impl Net {
    fn make() -> Option<Net> {
        let id = std::process::id();
        // Of a part of the private addresses that hardly anybody uses.
        let net = Net { name: format!("fencelock{id}"), subnet: format!("10.213.{}", id % 250) };
        let Net { name, subnet } = &net;
        let mut made = ip(&format!("netns add {name}")) && ip(&format!("-n {name} link set lo up"));
        for (link, here, there) in [("q", 1, 2), ("c", 5, 6)] {
            made = made
                && ip(&format!("link add {link}{id} type veth peer name {link} netns {name}"))
                && ip(&format!("addr add {subnet}.{here}/30 dev {link}{id}"))
                && ip(&format!("link set {link}{id} up"))
                && ip(&format!("-n {name} addr add {subnet}.{there}/30 dev {link}"))
                && ip(&format!("-n {name} link set {link} up"));
        }
        made.then_some(net)
    }

    /// Takes the link between the servers down, or up again. On its far side: here its address stays.
    fn link(&self, state: &str) {
        assert!(ip(&format!("-n {} link set q {state}", self.name)), "the link could not be set {state}");
    }

    /// An ensemble whose first server is in the namespace, and does not lead.
    fn ensemble(&self) -> Ensemble {
        let at = |last: u8| format!("{}.{last}", self.subnet);
        for _ in 0..10 {
            let near = |client: u16| Seat {
                host: at(1),
                ports: [free_port(), free_port()],
                client: ("127.0.0.1".into(), client),
                through: Vec::new(),
            };
            let far = Seat {
                host: at(2),
                ports: [free_port(), free_port()],
                client: (at(6), free_port()),
                through: ["ip", "netns", "exec", &self.name].map(String::from).into(),
            };
            let seats = [far, near(free_port()), near(free_port())];
            if let Some(ensemble) = Ensemble::seated(&seats).filter(|ensemble| ensemble.leader() != 0) {
                return ensemble;
            }
        }
        panic!("no such ensemble could be started");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // The links go with it.
        ip(&format!("netns del {}", self.name));
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let Some(net) = Net::make() else {
        println!("not run: no network namespace can be made here (that needs root and ip)");
        return;
    };
    let net = Arc::new(net);
    let trial = Trial::test("a_client_of_a_follower_that_is_cut_off_is_lost_in_time", {
        let net = net.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime").block_on(cut_off(&net));
            Ok(())
        }
    });
    let conclusion = libtest_mimic::run(&arguments, vec![trial]);
    // An exit drops nothing.
    drop(net);
    conclusion.exit();
}

/// Somebody who waits for a lock, and when it came.
fn waiter(locks: &Locks) -> tokio::task::JoinHandle<(MutexGuard, Instant)> {
    let mutex = locks.mutex("a");
    tokio::spawn(async move {
        loop {
            match mutex.lock_with(Options::new().lease(LEASE)).await {
                Ok(guard) => return (guard, Instant::now()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
}

async fn cut_off(net: &Net) {
    let mut ensemble = net.ensemble();
    let soak = std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1");
    for round in 0..if soak { 10 } else { 1 } {
        let leader = ensemble.leader();
        let there = Locks::connect(&ensemble.servers[0].url()).await.expect("connect");
        let here = Locks::connect(&ensemble.servers[leader].url()).await.expect("connect");
        let guard = there.mutex("a").lock_with(Options::new().lease(LEASE)).await.expect("free");
        let next = waiter(&here);
        let limit = Instant::now() + LONG;
        while here.inspect("a").await.expect("inspect").waiting.len() != 1 {
            assert!(Instant::now() < limit, "nobody waits");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // At another point between two signs of life each time.
        tokio::time::sleep(Duration::from_millis(70) * (round % 10)).await;
        net.link("down");
        let cut = Instant::now();
        while guard.state() != State::Lost {
            assert!(cut.elapsed() < LONG, "it is never lost");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let lost = Instant::now();
        let next = tokio::time::timeout(LONG, next).await.expect("the leader lets the other in");
        let (next, granted) = next.expect("no panic");
        println!("counted: cut off: lost after {:?}, the next in after {:?}", lost - cut, granted - cut);
        assert!(lost <= granted, "two at a time, for {:?}", lost - granted);
        assert!(next.token() > guard.token());
        next.release().await.expect("release");
        net.link("up");
        ensemble = tokio::task::spawn_blocking(move || {
            ensemble.settle();
            ensemble
        })
        .await
        .expect("no panic");
    }
}
