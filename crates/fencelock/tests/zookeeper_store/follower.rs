//! A follower that is cut off from the others, and goes on answering its own clients for a while: whoever holds a lock there
//! counts itself lost before the leader lets another in.

use crate::faults::{rounds, waiter};
use crate::proxy::{Mode, Proxy};
use crate::server::{Ensemble, free_port};
use crate::support::within;
use fencelock::{Locks, Options, State};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// An ensemble whose first server reaches the others' quorum ports through proxies, and is no leader.
async fn with_a_frail_follower() -> (Ensemble, Vec<Proxy>) {
    for _ in 0..10 {
        let ports: Vec<u16> = (0..9).map(|_| free_port()).collect();
        let straight: Vec<[u16; 2]> = (0..3).map(|n| [ports[n * 3], ports[n * 3 + 1]]).collect();
        let mut proxies = Vec::new();
        let mut frail = straight.clone();
        for n in 1..3 {
            let proxy = Proxy::before(straight[n][0]).await;
            frail[n][0] = proxy.port();
            proxies.push(proxy);
        }
        let seen = [frail, straight.clone(), straight];
        let started = tokio::task::spawn_blocking(move || {
            let ensemble = Ensemble::try_start(&seen, &[ports[2], ports[5], ports[8]])?;
            (ensemble.leader() != 0).then_some(ensemble)
        });
        if let Some(ensemble) = started.await.unwrap() {
            return (ensemble, proxies);
        }
    }
    panic!("no such ensemble could be started");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_follower_that_is_cut_off_is_lost_in_time() {
    let (mut ensemble, proxies) = with_a_frail_follower().await;
    for round in 0..rounds() {
        let leader = ensemble.leader();
        let there = Locks::connect(&ensemble.servers[0].url()).await.unwrap();
        let here = Locks::connect(&ensemble.servers[leader].url()).await.unwrap();
        let guard = there.mutex("a").lock_with(Options::new().lease(Duration::from_secs(2))).await.unwrap();
        let next = waiter(&here, "a");
        let limit = Instant::now() + LONG;
        while here.inspect("a").await.unwrap().waiting.len() != 1 {
            assert!(Instant::now() < limit, "nobody waits");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // At another point between two signs of life each time.
        tokio::time::sleep(Duration::from_millis(70) * u32::try_from(round % 10).unwrap()).await;
        proxies.iter().for_each(|proxy| proxy.set(Mode::Silent));
        let cut = Instant::now();
        within(LONG, "it is lost", async {
            while guard.state() != State::Lost {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        let lost = Instant::now();
        let (next, granted) = within(LONG, "the leader lets the other in", next).await.unwrap();
        println!("counted: cut off: lost after {:?}, the next in after {:?}", lost - cut, granted - cut);
        assert!(lost <= granted, "two at a time, for {:?}", lost - granted);
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
        proxies.iter().for_each(|proxy| proxy.set(Mode::Open));
        ensemble = tokio::task::spawn_blocking(move || {
            ensemble.settle();
            ensemble
        })
        .await
        .unwrap();
    }
}
