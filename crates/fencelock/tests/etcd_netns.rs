//! A follower in a network namespace of its own, whose link to the others is taken down while its clients still reach it: whoever
//! holds a lock by it alone counts itself lost before another is let in, and whoever knows the other servers too goes on with
//! them. Where namespaces cannot be made (they need root and `ip`), this program says so and runs nothing.

#[path = "etcd_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::{ErrorKind, Locks, Options, State};
use fencelock_testkit::{Net, main_with_net, until_waiting, waiter, with_a_runtime};
use server::{Cluster, Seat};
use std::time::{Duration, Instant};

/// Nothing here takes this long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

fn main() {
    main_with_net("a_client_of_a_follower_that_is_cut_off_is_lost_in_time", |net| with_a_runtime(cut_off(net)));
}

/// A cluster whose first server is in the namespace, and does not lead.
fn cluster(net: &Net) -> Cluster {
    for _ in 0..20 {
        let near = || Seat { peer: net.near(), client: "127.0.0.1".into(), through: Vec::new() };
        let far = Seat { peer: net.far(), client: net.for_clients(), through: net.inside() };
        let cluster = Cluster::seated(&[far, near(), near()], &[]);
        if let Some(cluster) = cluster.filter(|cluster| cluster.leader() != 0) {
            return cluster;
        }
    }
    panic!("no such cluster could be started");
}

async fn cut_off(net: &Net) {
    let cluster = cluster(net);
    let soak = std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1");
    for round in 0..if soak { 10 } else { 1 } {
        let there = Locks::connect(&format!("etcd://{}", cluster.members[0].address())).await.expect("connect");
        let all = Locks::connect(&cluster.url()).await.expect("connect");
        let here = Locks::connect(&format!("etcd://{}", cluster.members[1].address())).await.expect("connect");
        let options = |secs| Options::new().lease(Duration::from_secs(secs));
        let alone = there.mutex("alone").lock_with(options(2)).await.expect("free");
        let among = all.mutex("among").lock_with(options(12)).await.expect("free");
        let (next, behind) = (waiter(&here, "alone", Options::new()), waiter(&here, "among", Options::new()));
        for name in ["alone", "among"] {
            until_waiting(&here, name, 1).await;
        }
        // At another point between two signs of life each time.
        tokio::time::sleep(Duration::from_millis(70) * (round % 10)).await;
        let cut = Instant::now();
        let (lost, granted) = net.cut_off(&alone, next).await;
        // After half of its lease it is safe only if a renewal has got through since the cut.
        let renewed = || cut.elapsed() > Duration::from_millis(6500) && among.state() == State::Safe;
        while !renewed() && among.state() != State::Lost {
            assert!(!behind.is_finished(), "two at a time");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let kept = among.state() != State::Lost;
        println!(
            "counted: cut off: by it alone lost after {lost:?}, the next in after {granted:?}; with the other servers {}",
            if kept { "kept" } else { "lost" }
        );
        let token = among.token();
        if kept {
            // This runtime's own connection may still be to the server that is cut off: then the library thread goes on with it.
            let released = among.release().await;
            assert!(released.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::Unavailable), "{released:?}");
        }
        let behind = tokio::time::timeout(LONG, behind).await.expect("its turn").expect("no panic").0;
        assert!(behind.token() > token);
        behind.release().await.expect("release");
        net.link("up");
        let limit = Instant::now() + LONG;
        while !cluster.members[0].is_healthy() {
            assert!(Instant::now() < limit, "it does not come back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
