//! A follower in a network namespace of its own, whose link to the others is taken down while its clients still reach it: whoever
//! holds a lock by it counts itself lost before another is let in. Where there is no Consul, or namespaces cannot be made (they
//! need root and `ip`), this program says so and runs nothing.

#[path = "consul_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::{Locks, Options};
use fencelock_testkit::{Net, main_with_net, until_waiting, waiter, with_a_runtime};
use server::{Seat, Server};
use std::time::{Duration, Instant};

/// Nothing here takes this long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

fn main() {
    if server::program().is_none() {
        println!("{}", server::MISSING);
        return;
    }
    main_with_net("a_client_of_a_follower_that_is_cut_off_is_lost_in_time", |net| with_a_runtime(cut_off(net)));
}

/// A cluster whose first server is in the namespace, and does not lead.
fn cluster(net: &Net) -> Vec<Server> {
    let near = || Seat { bind: net.near(), client: "127.0.0.1".into(), through: Vec::new() };
    let far = || Seat { bind: net.far(), client: net.for_clients(), through: net.inside() };
    let made = (0..10).find_map(|_| Server::seated([far(), near(), near()]).filter(|all| Server::leader(all) != 0));
    made.expect("such a cluster can be started")
}

async fn cut_off(net: &Net) {
    let cluster = cluster(net);
    let soak = std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1");
    for round in 0..if soak { 10 } else { 1 } {
        let there = Locks::connect(&cluster[0].url()).await.expect("connect");
        let here = Locks::connect(&cluster[1].url()).await.expect("connect");
        let options = || Options::new().lease(Duration::from_secs(3));
        let guard = there.mutex("a").lock_with(options()).await.expect("free");
        let next = waiter(&here, "a", options());
        until_waiting(&here, "a", 1).await;
        // At another point between two signs of life each time.
        tokio::time::sleep(Duration::from_millis(70) * (round % 10)).await;
        let (lost, granted) = net.cut_off(&guard, next).await;
        println!("counted: cut off: lost after {lost:?}, the next in after {granted:?}");
        net.link("up");
        let limit = Instant::now() + LONG;
        while !cluster.iter().all(Server::sees_all) {
            assert!(Instant::now() < limit, "it does not come back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
