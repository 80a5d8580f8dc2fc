//! Holding, on the memory store and a clock that the tests move: deadlines, states, leases, re-entry.

use fencelock::store::memory::MemoryStore;
use fencelock::{ErrorKind, Locks, Options, Released, State, VirtualClock};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn virtual_locks() -> (VirtualClock, Locks) {
    let clock = VirtualClock::new();
    let locks = Locks::with_store(MemoryStore::with_clock(clock.clock()));
    (clock, locks)
}

#[tokio::test]
async fn a_held_lock_is_renewed_for_as_long_as_its_guard_lives() {
    let (clock, locks) = virtual_locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..20 {
        clock.advance(10 * SECOND);
        assert_eq!(guard.state(), State::Safe);
    }
    assert_eq!(guard.release().await.unwrap(), Released::Held);
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_dropped_guard_is_not_in_its_owners_way() {
    let (_clock, locks) = virtual_locks();
    let mutex = locks.mutex("a");
    for _ in 0..200 {
        drop(mutex.lock().await.unwrap());
        drop(mutex.try_lock().await.unwrap());
    }
}

#[tokio::test]
async fn a_fixed_lease_ends_and_lets_the_next_in() {
    let (clock, locks) = virtual_locks();
    let mutex = locks.mutex("a");
    let guard = mutex.lock_with(Options::new().fixed_lease(10 * SECOND)).await.unwrap();
    assert_eq!(mutex.try_lock().await.unwrap_err().kind(), ErrorKind::Held);
    clock.advance(11 * SECOND);
    assert_eq!(guard.state(), State::Lost);
    guard.lost().await;
    assert_eq!(guard.run(async {}).await.unwrap_err().kind(), ErrorKind::Lost);
    let next = mutex.try_lock().await.unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyGone);
    assert_eq!(next.state(), State::Safe);
}

#[tokio::test]
async fn waiters_come_in_order_with_growing_tokens() {
    let (_clock, locks) = virtual_locks();
    let mutex = locks.mutex("a");
    let first = mutex.lock().await.unwrap();
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..10 {
        let (mutex, order) = (mutex.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            order.lock().unwrap().push((i, guard.token().number()));
            guard.release().await.unwrap();
        }));
        while locks.inspect("a").await.unwrap().waiting.len() <= i {
            tokio::task::yield_now().await;
        }
    }
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert!(order.is_sorted() && order.len() == 10, "{order:?}");
}

#[tokio::test]
async fn timing_out_says_who_and_where() {
    let clock = VirtualClock::new();
    let store = MemoryStore::with_clock(clock.clock());
    let locks = Locks::with_store(store.clone());
    let guard = locks.mutex("a").lock_with(Options::new().reason("deploy 88")).await.unwrap();
    let other = Locks::with_store(store);
    let waiter = tokio::spawn(async move { other.mutex("a").lock_within(5 * SECOND).await });
    while locks.inspect("a").await.unwrap().waiting.is_empty() {
        tokio::task::yield_now().await;
    }
    clock.advance(5 * SECOND);
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let text = error.to_string();
    assert!(text.starts_with("a: timed out after 5 s: held for 5 s by "), "{text}");
    assert!(text.contains("(deploy 88)") && text.ends_with("; you were 1st of 1"), "{text}");
    drop(guard);
}

#[tokio::test]
async fn owners_re_enter_and_downgrade() {
    let (_clock, locks) = virtual_locks();
    let (owner, lock) = (locks.owner(), locks.rwlock("a"));
    let write = lock.write_as(&owner).await.unwrap();
    let again = lock.write_as(&owner).await.unwrap();
    let read = lock.read_as(&owner).await.unwrap();
    assert_eq!(write.token(), again.token());
    assert!(lock.try_read().await.is_err());
    drop(write);
    assert!(lock.try_read().await.is_err());
    drop(again);
    let other = lock.try_read().await.expect("the last write guard is gone: a reader's ticket is left");
    assert_eq!(lock.write_as(&owner).await.unwrap_err().kind(), ErrorKind::Deadlock);
    let failed = read.try_upgrade().await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Held);
    let read = failed.into_guard();
    let before = read.token();
    other.release().await.unwrap();
    let write = read.try_upgrade().await.unwrap();
    assert!(write.token().number() > before.number());
    write.release().await.unwrap();
    assert!(locks.list("").await.unwrap().is_empty());
}
