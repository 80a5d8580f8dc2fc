//! A master, two replicas and three sentinels: the store follows the master, and tokens never go back.

use crate::support::{stands, within};
use crate::trio::Trio;
use fencelock::store::Presence;
use fencelock::{ErrorKind, Locks, MutexGuard, Options};
use std::time::{Duration, Instant};

/// Less than the slow tick that covers lost messages, and than what renewals of the default lease would find out.
const SOON: Duration = Duration::from_secs(8);

async fn lock_again(locks: &Locks, name: &str) -> MutexGuard {
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        match locks.mutex(name).lock_within(Duration::from_secs(10)).await {
            Ok(guard) => return guard,
            Err(error) => assert!(Instant::now() < limit, "no new master: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_followed_and_tokens_grow() {
    let mut trio = Trio::start().await;
    let locks = Locks::connect(&trio.url()).await.unwrap();
    let before = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    let token = before.token();
    // Replicated: it must survive.
    let copied: u64 = trio.master.command(&["WAIT", "2", "5000"]);
    assert_eq!(copied, 2);
    trio.master.kill();
    let other = lock_again(&locks, "b").await;
    assert_eq!(before.state(), fencelock::State::Safe, "its ticket is on the new master too");
    let again = Locks::connect(&trio.url()).await.unwrap();
    assert_eq!(again.mutex("a").try_lock().await.unwrap_err().kind(), ErrorKind::Held);
    let mutex = again.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    before.release().await.unwrap();
    let next = within(SOON, "the hand-off on the new master", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    drop((next, other));
}

/// A hand-off each to clients that had nothing to do while the master stood still: nothing but the sentinels can tell them that
/// the server they listen to is not the one that matters any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_clients_listen_to_the_new_master() {
    let trio = Trio::start().await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(Locks::connect(&trio.url()).await.unwrap());
    }
    let locks = Locks::connect(&trio.url()).await.unwrap();
    trio.master.signal("STOP");
    let mut last = lock_again(&locks, "a").await;
    for locks in &idle {
        let mutex = locks.mutex("a");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        stands(locks.store(), "a", 1, 1).await;
        let token = last.token();
        last.release().await.unwrap();
        last = within(SOON, "the hand-off to a client that was idle", waiting).await.unwrap().unwrap();
        assert!(last.token() > token);
    }
    trio.master.signal("CONT");
}

/// What the old master never passed on is lost with it, and whoever holds it is told as soon as the new one is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_the_new_master_does_not_know_is_lost_at_once() {
    let mut trio = Trio::start().await;
    let locks = Locks::connect(&trio.url()).await.unwrap();
    let safe = locks.mutex("safe").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    let copied: u64 = trio.master.command(&["WAIT", "2", "5000"]);
    assert_eq!(copied, 2);
    trio.part();
    let lost = locks.mutex("lost").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    trio.master.kill();
    trio.replicas.iter().for_each(|replica| replica.signal("CONT"));
    within(Duration::from_secs(30), "being told", lost.lost()).await;
    assert_ne!(safe.state(), fencelock::State::Lost);
    let next = within(SOON, "the free lock", lock_again(&locks, "lost")).await;
    assert!(next.token() > lost.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_master_that_comes_back_is_not_asked_any_more() {
    let trio = Trio::start().await;
    let locks = Locks::connect(&trio.url()).await.unwrap();
    let first = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    trio.master.signal("STOP");
    let other = lock_again(&locks, "b").await;
    trio.master.signal("CONT");
    let newer = lock_again(&locks, "c").await;
    assert!(newer.token() > other.token() && newer.token() > first.token());
    // Whatever the old master says of it, the new one has the last word.
    let line = locks.inspect("c").await.unwrap();
    assert_eq!(line.inside.len(), 1, "written where it is read");
    assert!(locks.break_ticket("c", newer.token()).await.unwrap());
    assert_eq!(locks.store().expel(&crate::support::place("c").name, 1).await.unwrap(), Presence::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_sentinels_are_told() {
    let trio = Trio::start().await;
    let error = Locks::connect(&trio.url().replace("/locks", "/others")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("\"others\""), "{error}");
    for url in ["redis+sentinel://", "redis+sentinel://a:1", "redis+sentinel://:9/x", "redis+sentinel://u:secret@a:x/m"]
    {
        let error = Locks::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
        assert!(!format!("{error:?}").contains("secret"));
    }
    let one_down = trio.url().replace("redis+sentinel://", "redis+sentinel://127.0.0.1:1,");
    Locks::connect(&one_down).await.unwrap();
}
