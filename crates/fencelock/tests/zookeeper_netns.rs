//! A follower in a network namespace of its own, whose link to the others is taken down while its clients still reach it: whoever
//! holds a lock there counts itself lost before the leader lets another in. Where namespaces cannot be made (they need root and
//! `ip`), this program says so and runs nothing; `zookeeper_store` shows the same with proxies.

#[path = "zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::{Locks, Options};
use fencelock_testkit::{Net, main_with_net, until_waiting, waiter, with_a_runtime};
use server::{Ensemble, Seat, free_port};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(2);

/// An ensemble whose first server is in the namespace, and does not lead.
fn ensemble(net: &Net) -> Ensemble {
    for _ in 0..10 {
        let near = |client: u16| Seat {
            host: net.near(),
            ports: [free_port(), free_port()],
            client: ("127.0.0.1".into(), client),
            through: Vec::new(),
        };
        let far = Seat {
            host: net.far(),
            ports: [free_port(), free_port()],
            client: (net.for_clients(), free_port()),
            through: net.inside(),
        };
        let seats = [far, near(free_port()), near(free_port())];
        if let Some(ensemble) = Ensemble::seated(&seats).filter(|ensemble| ensemble.leader() != 0) {
            return ensemble;
        }
    }
    panic!("no such ensemble could be started");
}

fn main() {
    main_with_net("a_client_of_a_follower_that_is_cut_off_is_lost_in_time", |net| with_a_runtime(cut_off(net)));
}

async fn cut_off(net: &Net) {
    let mut ensemble = ensemble(net);
    let soak = std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1");
    for round in 0..if soak { 10 } else { 1 } {
        let leader = ensemble.leader();
        let there = Locks::connect(&ensemble.servers[0].url()).await.expect("connect");
        let here = Locks::connect(&ensemble.servers[leader].url()).await.expect("connect");
        let guard = there.mutex("a").lock_with(Options::new().lease(LEASE)).await.expect("free");
        let next = waiter(&here, "a", Options::new().lease(LEASE));
        until_waiting(&here, "a", 1).await;
        // At another point between two signs of life each time.
        tokio::time::sleep(Duration::from_millis(70) * (round % 10)).await;
        let (lost, granted) = net.cut_off(&guard, next).await;
        println!("counted: cut off: lost after {lost:?}, the next in after {granted:?}");
        net.link("up");
        ensemble = tokio::task::spawn_blocking(move || {
            ensemble.settle();
            ensemble
        })
        .await
        .expect("no panic");
    }
}
