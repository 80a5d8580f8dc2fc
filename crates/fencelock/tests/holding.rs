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

#[tokio::test]
async fn max_hold_ends_when_it_says_and_is_safe_until_then() {
    let (clock, locks) = virtual_locks();
    let guard = locks.mutex("a").lock_with(Options::new().max_hold(50 * SECOND)).await.unwrap();
    for _ in 0..49 {
        clock.advance(SECOND);
        assert_eq!(guard.state(), State::Safe, "with {:?} left", guard.remaining());
    }
    assert_eq!(guard.remaining(), SECOND);
    clock.advance(SECOND);
    assert_eq!(guard.state(), State::Lost);
    let error = guard.run(async {}).await.unwrap_err();
    assert!(error.to_string().contains("held for 50 s, the longest that was allowed"), "{error}");
    assert!(locks.mutex("a").try_lock().await.is_ok(), "it was left, not only lost");
}

#[tokio::test]
async fn min_hold_keeps_the_release_back() {
    let (clock, locks) = virtual_locks();
    let mutex = locks.mutex("a");
    let options = || Options::new().min_hold(60 * SECOND);
    drop(mutex.lock_with(options()).await.unwrap());
    clock.advance(59 * SECOND);
    assert_eq!(mutex.try_lock().await.unwrap_err().kind(), ErrorKind::Held, "renewed although nobody has a guard");
    clock.advance(SECOND);
    let guard = mutex.lock_with(options()).await.unwrap();
    let release = tokio::spawn(guard.release());
    tokio::task::yield_now().await;
    clock.advance(59 * SECOND);
    tokio::task::yield_now().await;
    assert!(!release.is_finished(), "the release resolves when min_hold is over");
    clock.advance(SECOND);
    assert_eq!(release.await.unwrap().unwrap(), Released::Held);
    for wrong in [options().max_hold(59 * SECOND), options().fixed_lease(59 * SECOND)] {
        assert_eq!(mutex.lock_with(wrong).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test]
async fn a_jump_past_the_deadline_is_lost_at_the_next_line_and_stays_lost() {
    let (clock, locks) = virtual_locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut polled = 0;
    let work = std::future::poll_fn(|cx| {
        polled += 1;
        cx.waker().wake_by_ref();
        std::task::Poll::<()>::Pending
    });
    {
        let mut run = std::pin::pin!(guard.run(work));
        assert!(futures_util::poll!(run.as_mut()).is_pending());
        clock.jump(31 * SECOND); // as a suspended machine or a stopped process would see it
        assert_eq!(guard.state(), State::Lost);
        assert_eq!(run.await.unwrap_err().kind(), ErrorKind::Lost);
    }
    assert_eq!(polled, 1, "the work was polled past the deadline");
    clock.settle();
    assert_eq!(guard.state(), State::Lost, "a late renewal revived it");
    guard.lost().await;
}

/// The only worker is blocked past the lease: the library thread notices, and the next line of code does.
#[test]
fn a_blocked_runtime_does_not_lose_in_silence() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locks = Locks::with_store(MemoryStore::new());
    runtime.block_on(async {
        let options = Options::new().fixed_lease(Duration::from_millis(100));
        let guard = std::sync::Arc::new(locks.mutex("a").lock_with(options).await.unwrap());
        let (fired, told) = std::sync::mpsc::channel();
        let watched = guard.clone();
        // Somebody else's thread hears of it while the runtime is blocked.
        let elsewhere = std::thread::spawn(move || {
            let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
            other.block_on(watched.lost());
            fired.send(()).unwrap();
        });
        let mut polls = 0;
        let outcome = guard
            .run(async {
                std::future::poll_fn(|_| {
                    polls += 1;
                    std::task::Poll::Ready(())
                })
                .await;
                told.recv_timeout(Duration::from_secs(10)).expect("lost() fires while the runtime is blocked");
                // Blocked for as long as it took to be lost; control comes back to the runtime only here.
                tokio::task::yield_now().await;
                unreachable!("polled past the deadline");
            })
            .await;
        assert_eq!(guard.state(), State::Lost);
        assert_eq!(outcome.map(|(): ()| ()).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(polls, 1);
        elsewhere.join().unwrap();
    });
}

/// Dropped when no runtime is left: the library thread sends the release.
#[test]
fn a_guard_dropped_after_its_runtime_is_released() {
    let locks = Locks::with_store(MemoryStore::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(locks.mutex("a").lock()).unwrap();
    drop(runtime);
    drop(guard);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        locks.close().await;
        assert!(locks.list("").await.unwrap().is_empty());
    });
}

#[tokio::test]
async fn an_owners_second_call_survives_the_cancellation_of_its_first() {
    let (_clock, locks) = virtual_locks();
    let mutex = locks.mutex("a");
    let stranger = mutex.lock().await.unwrap();
    let owner = locks.owner();
    let mut first = Box::pin(mutex.lock_as(&owner));
    let mut second = Box::pin(mutex.lock_as(&owner));
    assert!(futures_util::poll!(first.as_mut()).is_pending());
    assert!(futures_util::poll!(second.as_mut()).is_pending());
    assert_eq!(locks.inspect("a").await.unwrap().waiting.len(), 1, "one ticket for both");
    assert_eq!(
        mutex.lock_as_with(&owner, Options::new().wait(Duration::ZERO)).await.unwrap_err().kind(),
        ErrorKind::Held
    );
    drop(first);
    stranger.release().await.unwrap();
    let guard = second.await.unwrap();
    drop(guard);
    locks.close().await;
    assert!(locks.list("").await.unwrap().is_empty());
    // With nobody left who waits, the ticket goes too.
    let stranger = mutex.lock().await.unwrap();
    let mut only = Box::pin(mutex.lock_as(&owner));
    assert!(futures_util::poll!(only.as_mut()).is_pending());
    drop(only);
    locks.close().await;
    assert!(locks.inspect("a").await.unwrap().waiting.is_empty());
    drop(stranger);
}

/// An upgrade takes its number while its line is locked: a reader that comes and goes meanwhile must not be ahead of it.
#[test]
fn upgrades_race_with_readers() {
    let locks = Locks::with_store(MemoryStore::new());
    let threads: Vec<_> = [true, false]
        .into_iter()
        .map(|upgrades| {
            let lock = locks.rwlock("a");
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    let mut last = 0;
                    for _ in 0..2_000 {
                        let read = lock.read().await.unwrap();
                        assert!(read.token().number() > last);
                        last = read.token().number();
                        if !upgrades {
                            read.release().await.unwrap();
                        } else if let Ok(write) = read.try_upgrade().await {
                            assert!(write.token().number() > last);
                            last = write.token().number();
                            write.release().await.unwrap();
                        }
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
