//! Servers that stand still, run out of memory, or come back with all, some or none of what they knew.

use crate::server::Server;
use crate::support::{client, place, soon, stands, within};
use fencelock::{ErrorKind, Locks, Options, State};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

/// A pause that is shorter than what is left of the lease costs time and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sleeps_for_less_than_the_lease_costs_nobody_his_lock() {
    let server = Server::start();
    let (locks, _) = client(&server.url()).await;
    let guard = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(10))).await.unwrap();
    let other = Locks::connect(&server.url()).await.unwrap();
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    stands(locks.store(), "a", 1, 1).await;
    let since = Instant::now();
    let sleeping = std::thread::spawn(move || {
        let _: String = server.command(&["DEBUG", "SLEEP", "1"]);
        server
    });
    // Asked while it sleeps, or a moment before: the answer is late, or does not come in time.
    while since.elapsed() < Duration::from_secs(1) {
        let error = other.mutex("a").try_lock().await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Held | ErrorKind::Unavailable), "{error}");
    }
    let server = sleeping.join().unwrap();
    assert_ne!(guard.state(), State::Lost);
    let token = guard.token();
    guard.release().await.unwrap();
    let next = within(SOON, "the hand-off", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    drop((next, server));
}

/// Longer than the lease: who holds is lost at his deadline, while the server knows nothing of it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sleeps_for_longer_than_the_lease_ends_holds_at_their_deadline() {
    let server = Server::start();
    let (locks, _) = client(&server.url()).await;
    let guard = locks.mutex("a").lock_with(Options::new().lease(Duration::from_millis(600))).await.unwrap();
    let sleeping = std::thread::spawn(move || {
        let _: String = server.command(&["DEBUG", "SLEEP", "2"]);
        server
    });
    within(SOON, "the deadline", guard.lost()).await;
    assert!(!sleeping.is_finished(), "nobody could have told");
    let server = sleeping.join().unwrap();
    let next = within(SOON, "the free lock", locks.mutex("a").lock()).await.unwrap();
    assert!(next.token() > guard.token());
    drop((next, server));
}

/// What the file has is there again: holders hold, waiters keep their places, and are woken.
async fn nothing_is_lost(fsync: &str) {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", fsync]);
    let (locks, _) = client(&server.url()).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let other = Locks::connect(&server.url()).await.unwrap();
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    stands(locks.store(), "a", 1, 1).await;
    server.restart();
    stands(locks.store(), "a", 1, 1).await;
    let line = locks.inspect("a").await.unwrap();
    assert_eq!(line.inside[0].token, Some(guard.token().number()));
    soon("a renewal by the new server", || guard.state() == State::Safe).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let next = within(SOON, "the hand-off", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_writes_everything_down_forgets_nothing_when_it_is_killed() {
    nothing_is_lost("always").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_writes_down_every_second_forgets_nothing_when_only_it_is_killed() {
    nothing_is_lost("everysec").await;
}

/// A power cut takes what was not on the disk yet: up to a second or two. Here the file is cut off by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_power_cut_took_is_lost_and_told() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let (locks, _) = client(&server.url()).await;
    let old = locks.mutex("old").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    let written = server.written();
    let new = locks.mutex("new").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    server.kill();
    server.forget_from(written);
    server.restart();
    within(SOON, "being told", new.lost()).await;
    assert_ne!(old.state(), State::Lost);
    let next = within(SOON, "the free lock", locks.mutex("new").lock()).await.unwrap();
    assert!(next.token() > new.token(), "the fence tells them apart");
    assert_eq!(locks.mutex("old").try_lock().await.unwrap_err().kind(), ErrorKind::Held);
}

/// Nothing is given and nothing half done; what is held may be lost at its deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_gives_no_lock_and_breaks_none() {
    let server = Server::start();
    let (locks, store) = client(&server.url()).await;
    let lease = Duration::from_secs(1);
    let guard = locks.mutex("a").lock_with(Options::new().lease(lease)).await.unwrap();
    let other = Locks::connect(&server.url()).await.unwrap();
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    stands(&store, "a", 1, 1).await;
    // Less than it has now.
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "100kb"]);
    let error = locks.mutex("b").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("out of memory"), "{error}");
    // Long enough for it to be lost, if it cannot be renewed.
    let watched = Instant::now();
    while watched.elapsed() < lease * 2 {
        // Whoever looks also sweeps, which may be refused too.
        let line = match store.inspect(&place("a").name).await {
            Ok(line) => line,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                continue;
            }
        };
        let held = line.inside.iter().any(|seen| seen.token == Some(guard.token().number()));
        assert!(held || guard.remaining() == Duration::ZERO || guard.state() == State::Lost, "{line:?}");
        assert!(line.inside.len() <= 1, "{line:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let token = guard.token();
    let _ = guard.release().await;
    let next = within(SOON, "the hand-off", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    locks.mutex("b").lock().await.unwrap().release().await.unwrap();
    for name in ["a", "b"] {
        stands(&store, name, 0, 0).await;
    }
}

/// Those who wait take new places; who holds is told at his next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_waiters_queue_again() {
    let server = Server::start();
    let (locks, _) = client(&server.url()).await;
    let lease = Duration::from_secs(3);
    let guard = locks.mutex("a").lock_with(Options::new().lease(lease)).await.unwrap();
    let other = Locks::connect(&server.url()).await.unwrap();
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock_with(Options::new().lease(lease)).await });
    stands(locks.store(), "a", 1, 1).await;
    let _: String = server.command(&["FLUSHALL"]);
    within(SOON, "the holder's next renewal", guard.lost()).await;
    let next = within(SOON, "the waiter's next renewal", waiting).await.unwrap().unwrap();
    assert!(next.token() > guard.token());
}
