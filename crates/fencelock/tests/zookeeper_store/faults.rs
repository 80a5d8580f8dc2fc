//! What becomes of locks when sessions end, connections break, and leaders die or stop: never two at a time, the lost one
//! knows in time, tokens grow.

use crate::proxy::{Mode, Proxy};
use crate::server::{Ensemble, Server};
use crate::support::{soon, within};
use fencelock::{Locks, MutexGuard, Options, State};
use fencelock_testkit::until_waiting;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use zookeeper_client::Client;

const LEASE: Duration = Duration::from_secs(2);
/// Nothing here takes this long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options::new().lease(LEASE)
}

/// Once, or ten times in a soak.
pub(crate) fn rounds() -> usize {
    if std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1") { 10 } else { 1 }
}

/// Somebody who waits for a lock, and when it came.
pub(crate) fn waiter(locks: &Locks, name: &str) -> JoinHandle<(MutexGuard, Instant)> {
    fencelock_testkit::waiter(locks, name, options())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_lost_before_another_is_let_in() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    for _ in 0..rounds() {
        let (cut_off, other) =
            (Locks::connect(&proxy.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
        let guard = cut_off.mutex("a").lock_with(options()).await.unwrap();
        let next = waiter(&other, "a");
        until_waiting(&other, "a", 1).await;
        proxy.set(Mode::Silent);
        let mut jeopardy = false;
        within(LONG, "it is lost", async {
            while guard.state() != State::Lost {
                jeopardy |= guard.state() == State::Jeopardy;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        let lost = Instant::now();
        let (next, granted) = within(LONG, "the other gets in", next).await.unwrap();
        assert!(lost <= granted, "the other got in {:?} before", lost - granted);
        assert!(jeopardy, "nobody said that it was in danger");
        assert!(next.token() > guard.token());
        proxy.set(Mode::Open);
        next.release().await.unwrap();
        let again = within(LONG, "it comes back", cut_off.mutex("a").lock_with(options())).await.unwrap();
        assert!(again.token() > guard.token());
        again.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_break_costs_nothing() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, other) = (Locks::connect(&proxy.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    let guard = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(20))).await.unwrap();
    let next = waiter(&locks, "a");
    until_waiting(&other, "a", 1).await;
    for _ in 0..3 {
        proxy.set(Mode::Closed);
        soon("it is in danger", || guard.state() != State::Safe).await;
        proxy.set(Mode::Open);
        soon("it is safe again", || guard.state() == State::Safe).await;
    }
    let line = other.inspect("a").await.unwrap();
    assert_eq!(line.inside[0].token, Some(guard.token().number()), "the same ticket");
    assert_eq!(line.waiting.len(), 1);
    let number = guard.token();
    guard.release().await.unwrap();
    let (next, _) = within(LONG, "the waiter is told", next).await.unwrap();
    assert!(next.token() > number);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_ended_queues_again() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (waits, holds) = (Locks::connect(&proxy.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    for _ in 0..rounds() {
        let holder = holds.mutex("a").lock_with(options()).await.unwrap();
        let next = waiter(&waits, "a");
        until_waiting(&holds, "a", 1).await;
        let number = holds.inspect("a").await.unwrap().waiting[0].token;
        proxy.set(Mode::Silent);
        until_waiting(&holds, "a", 0).await;
        proxy.set(Mode::Open);
        until_waiting(&holds, "a", 1).await;
        assert!(holds.inspect("a").await.unwrap().waiting[0].token > number, "a new ticket");
        let token = holder.token();
        holder.release().await.unwrap();
        let (next, _) = within(LONG, "it gets in", next).await.unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_broken_is_lost_within_moments() {
    let server = Server::start();
    let (locks, other) = (Locks::connect(&server.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(other.break_ticket("a", guard.token().number()).await.unwrap());
    // Its lease is thirty seconds: only a push tells it in time.
    within(Duration::from_secs(8), "it is told", guard.lost()).await;
    assert_eq!(guard.state(), State::Lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_although_the_node_of_the_line_was_reaped() {
    let server = Server::with(&[], &["-Dznode.container.checkIntervalMs=100"]);
    let locks = Locks::connect(&server.url()).await.unwrap();
    let zk = Client::connect(&format!("127.0.0.1:{}", server.port())).await.unwrap();
    let mut last = None;
    for _ in 0..3 {
        let guard = locks.mutex("deep/a").lock().await.unwrap();
        let child = zk.list_children("/deep/a").await.unwrap().remove(0);
        assert!(child.ends_with("-lock-0000000000"), "the counter starts anew: {child}");
        assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await.unwrap();
        let limit = Instant::now() + LONG;
        while zk.check_stat("/deep").await.unwrap().is_some() {
            assert!(Instant::now() < limit, "the server does not reap it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_killed_takes_no_lock_with_it() {
    let mut ensemble = Ensemble::start();
    for _ in 0..rounds() {
        let (locks, other) =
            (Locks::connect(&ensemble.url()).await.unwrap(), Locks::connect(&ensemble.url()).await.unwrap());
        let long = Options::new().lease(Duration::from_secs(20));
        let guard = locks.mutex("a").lock_with(long).await.unwrap();
        let next = waiter(&other, "a");
        until_waiting(&locks, "a", 1).await;
        let leader = ensemble.leader();
        ensemble.servers[leader].kill();
        ensemble.leader();
        soon("it is safe under the new leader", || guard.state() == State::Safe && guard.remaining() > LEASE).await;
        assert!(!next.is_finished(), "somebody came in beside it");
        let token = guard.token();
        guard.release().await.unwrap();
        let (next, _) = within(LONG, "the next gets in", next).await.unwrap();
        assert!(next.token() > token, "{:?} after {token:?}", next.token());
        next.release().await.unwrap();
        ensemble.servers[leader].restart();
        ensemble.settle();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_stopped_and_goes_on_gives_no_lock_twice() {
    let mut ensemble = Ensemble::start();
    for _ in 0..rounds() {
        let (locks, other) =
            (Locks::connect(&ensemble.url()).await.unwrap(), Locks::connect(&ensemble.url()).await.unwrap());
        let guard = locks.mutex("a").lock_with(options()).await.unwrap();
        let next = waiter(&other, "a");
        until_waiting(&locks, "a", 1).await;
        let leader = ensemble.leader();
        ensemble.servers[leader].signal("STOP");
        let stopped = Instant::now();
        let mut lost = None;
        // Longer than the session: whoever cannot prove that it lives counts itself lost, whatever the servers think.
        while stopped.elapsed() < LEASE * 2 {
            if guard.state() == State::Lost {
                lost.get_or_insert_with(Instant::now);
            }
            assert!(!next.is_finished() || lost.is_some(), "two at a time");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ensemble.servers[leader].signal("CONT");
        ensemble.settle();
        let token = guard.token();
        if guard.state() != State::Lost {
            assert!(!next.is_finished(), "two at a time");
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
        let (next, granted) = within(LONG, "the next gets in", next).await.unwrap();
        assert!(lost.is_none_or(|lost| lost <= granted), "two at a time");
        assert!(next.token() > token);
        println!(
            "counted: leader stopped for {:?}: the holder was {}",
            LEASE * 2,
            if lost.is_some() { "lost" } else { "kept" }
        );
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_takes_its_sessions_with_it() {
    let server = Server::start();
    let others = || server.number("zk_global_sessions");
    let before = others();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let (a, b) = (locks.mutex("a").lock().await.unwrap(), locks.mutex("b").lock_with(options()).await.unwrap());
    assert!(others() >= before + 2, "a session for each lease");
    drop((a, b));
    locks.close().await;
    assert_eq!(server.number("zk_ephemerals_count"), 0, "close waits for all releases");
    drop(locks);
    // Much earlier than their timeout of thirty seconds.
    let started = Instant::now();
    soon("its sessions are closed", || others() <= before).await;
    assert!(started.elapsed() < Duration::from_secs(15), "they were closed, they did not lapse");
}
