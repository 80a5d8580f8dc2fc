//! The book of the keeper, seen from inside: nothing stays in it that nobody holds.

use crate::clock::VirtualClock;
use crate::store::memory::MemoryStore;
use crate::{Locks, Options};
use std::time::Duration;

fn locks() -> (VirtualClock, Locks) {
    let clock = VirtualClock::new();
    let locks = Locks::with_store(MemoryStore::with_clock(clock.clock()));
    (clock, locks)
}

#[tokio::test]
async fn re_entrant_holds_are_renewed_once_and_struck_out_at_the_end() {
    let (clock, locks) = locks();
    let (owner, mutex) = (locks.owner(), locks.mutex("a"));
    for n in 1..=5 {
        let mut guards = Vec::new();
        for _ in 0..n {
            guards.push(mutex.lock_as(&owner).await.unwrap());
        }
        assert_eq!(locks.core.keeper.kept(), 1, "one ticket, however many guards");
        clock.advance(Duration::from_secs(60));
        for guard in guards {
            guard.release().await.unwrap();
        }
        assert_eq!(locks.core.keeper.kept(), 0, "nothing is renewed after the last release");
    }
}

#[tokio::test]
async fn what_was_lost_or_given_up_is_struck_out() {
    let (clock, locks) = locks();
    let mutex = locks.mutex("a");
    let guard = mutex.lock_with(Options::new().max_hold(Duration::from_secs(50))).await.unwrap();
    {
        let waiting = mutex.lock();
        let mut waiting = std::pin::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(locks.core.keeper.kept(), 2);
    }
    assert_eq!(locks.core.keeper.kept(), 1, "the waiter was dropped");
    clock.advance(Duration::from_secs(60));
    assert_eq!(guard.state(), crate::State::Lost);
    assert_eq!(locks.core.keeper.kept(), 0, "max_hold is over");
    locks.close().await;
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn the_timer_of_a_bounded_wait_is_not_set_where_there_is_room() {
    let (clock, locks) = locks();
    let guard = locks.mutex("a").lock_within(Duration::from_secs(3600)).await.unwrap();
    clock.settle();
    assert!(!clock.has_timer_beyond(Duration::from_secs(31)), "only the renewal and the deadline are timed");
    drop(guard);
}

#[test]
fn an_orphan_of_a_session_is_left_again_about_once_a_lease() {
    use crate::store::Lifetime;
    let lease = Duration::from_secs(30);
    for (lifetime, leases, most) in
        [(Lifetime::Ticket, 1, 10), (Lifetime::Session, 30, 40), (Lifetime::Connection, 30, 40)]
    {
        let (mut watched, mut times) = (Duration::ZERO, 0);
        while watched < lease * leases {
            watched += super::watch_after(lifetime, lease, times);
            times += 1;
        }
        assert!(times <= most, "{lifetime:?}: left {times} times");
        assert_eq!(super::watch_after(lifetime, lease, 0), lease / 10, "what comes late comes soon as a rule");
    }
    let short = super::watch_after(Lifetime::Session, Duration::from_millis(1), 31);
    assert_eq!(short, Duration::from_millis(10), "never in a hot loop");
}

#[test]
fn everything_can_be_sent_and_shared() {
    fn both<T: Send + Sync + Unpin + 'static>() {}
    both::<Locks>();
    both::<crate::Mutex>();
    both::<crate::RwLock>();
    both::<crate::Semaphore>();
    both::<crate::Owner>();
    both::<crate::MutexGuard>();
    both::<crate::ReadGuard>();
    both::<crate::WriteGuard>();
    both::<crate::Permit>();
    both::<crate::Error>();
    both::<crate::Token>();
    fn send<T: Send>(_: T) {}
    let (_, locks) = locks();
    send(locks.mutex("a").lock());
    send(locks.rwlock("a").write_as(&locks.owner()));
    send(locks.list(""));
    send(locks.close());
}
