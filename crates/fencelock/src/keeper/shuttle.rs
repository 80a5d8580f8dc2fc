//! The state machine of guard, keeper and release under a scheduler that tries many orders of the threads:
//! `RUSTFLAGS="--cfg fencelock_shuttle"`. A lost wake-up shows as a deadlock, which the scheduler reports.

use super::Keeper;
use crate::clock::VirtualClock;
use crate::hold::State;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::{Locks, Options, Released};
use shuttle::future::block_on;
use shuttle::thread;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(30);

struct Stage {
    clock: VirtualClock,
    store: MemoryStore,
    locks: Locks,
    keeper: Arc<Keeper>,
    worker: thread::JoinHandle<()>,
}

impl Stage {
    fn new() -> Stage {
        let clock = VirtualClock::new();
        let store = MemoryStore::with_clock(clock.clock());
        let keeper = Keeper::new(Arc::new(store.clone()));
        let locks = Locks::around(keeper.clone(), Default::default(), None, String::new(), None, Some(LEASE));
        let work = keeper.clone().work();
        let worker = thread::spawn(move || block_on(work));
        Stage { clock, store, locks, keeper, worker }
    }

    /// Everything has been let go of: the keeper must end by itself and leave nothing behind.
    fn end(self) {
        let store = self.store.clone();
        drop(self.locks);
        self.worker.join().unwrap();
        assert!(block_on(store.list("", None, 10)).unwrap().is_empty(), "something was left in the store");
        assert_eq!(super::lock(&self.keeper.book).entries.len(), 0, "something was left in the book");
    }
}

fn check(scenario: impl Fn() + Send + Sync + 'static) {
    // The default stack is too small for a keeper and its futures in a debug build.
    let rounds = if std::env::var_os("FENCELOCK_SOAK").is_some() { 20_000 } else { 1_500 };
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(rounds), config).run(scenario);
}

#[test]
fn shuttle_a_dropped_guard_is_always_released() {
    check(|| {
        let stage = Stage::new();
        let guard = block_on(stage.locks.mutex("a").lock()).unwrap();
        let other = thread::spawn(move || drop(guard));
        let mutex = stage.locks.mutex("a");
        // Queued behind the guard, or let in by its flush: never stuck.
        let next = block_on(mutex.lock()).unwrap();
        other.join().unwrap();
        drop((next, mutex));
        stage.end();
    });
}

#[test]
fn shuttle_lost_is_for_ever_and_release_tells_the_truth() {
    check(|| {
        let stage = Stage::new();
        let guard = Arc::new(block_on(stage.locks.mutex("a").lock()).unwrap());
        let clock = stage.clock.clone();
        let jumper = thread::spawn(move || {
            for _ in 0..4 {
                clock.jump(LEASE / 3);
                thread::yield_now();
            }
        });
        let watched = guard.clone();
        let observer = thread::spawn(move || {
            let mut lost = false;
            for _ in 0..6 {
                let state = watched.state();
                assert!(!lost || state == State::Lost, "it came back to life");
                lost |= state == State::Lost;
                thread::yield_now();
            }
        });
        jumper.join().unwrap();
        observer.join().unwrap();
        let lost = guard.state() == State::Lost;
        let released = block_on(Arc::into_inner(guard).unwrap().release()).unwrap();
        assert!(!lost || released == Released::AlreadyGone, "a lost guard said that it was held to the end");
        stage.end();
    });
}

#[test]
fn shuttle_a_release_races_renewal_and_doubt() {
    check(|| {
        let stage = Stage::new();
        let guard = block_on(stage.locks.mutex("a").lock()).unwrap();
        let (keeper, clock) = (stage.keeper.clone(), stage.clock.clone());
        let renewals = thread::spawn(move || {
            keeper.doubt(None);
            clock.jump(LEASE / 3);
            keeper.doubt(None);
        });
        // Never lost: a renewal that finds the ticket gone after the release is no loss, one before finds it there.
        assert_eq!(block_on(guard.release()).unwrap(), Released::Held);
        renewals.join().unwrap();
        stage.end();
    });
}

#[test]
fn shuttle_lost_fires_while_somebody_waits_for_it() {
    check(|| {
        let stage = Stage::new();
        let guard = Arc::new(block_on(stage.locks.mutex("a").lock()).unwrap());
        let waiter = guard.clone();
        let waiter = thread::spawn(move || block_on(waiter.lost()));
        let token = guard.token().number();
        let (store, name) = (stage.store.clone(), crate::name::Name::new("", "a").unwrap());
        block_on(store.expel(&name, token)).unwrap();
        stage.keeper.doubt(None);
        waiter.join().unwrap();
        assert_eq!(guard.state(), State::Lost);
        drop(guard);
        stage.end();
    });
}

#[test]
fn shuttle_owners_attach_or_start_anew() {
    check(|| {
        let stage = Stage::new();
        let owner = stage.locks.owner();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (lock, owner) = (stage.locks.rwlock("a"), owner.clone());
                thread::spawn(move || {
                    let write = block_on(lock.write_as(&owner)).unwrap();
                    let read = block_on(lock.read_as(&owner)).unwrap();
                    assert_eq!(write.token().number(), read.token().number());
                    drop(write);
                    assert_eq!(read.state(), State::Safe);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        drop(owner);
        stage.end();
    });
}

#[test]
fn shuttle_unfair_waiters_all_get_in() {
    check(|| {
        let stage = Stage::new();
        let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (mutex, inside) = (stage.locks.mutex("a"), inside.clone());
                thread::spawn(move || {
                    let guard = block_on(mutex.lock_with(Options::new().unfair())).unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two inside");
                    thread::yield_now();
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    block_on(guard.release()).unwrap();
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        stage.end();
    });
}

#[test]
fn shuttle_min_hold_lingers_and_then_leaves() {
    check(|| {
        let stage = Stage::new();
        let options = Options::new().min_hold(Duration::from_secs(5));
        let guard = block_on(stage.locks.mutex("a").lock_with(options)).unwrap();
        let clock = stage.clock.clone();
        let time = thread::spawn(move || {
            clock.jump(Duration::from_secs(3));
            clock.jump(Duration::from_secs(3));
        });
        drop(guard);
        time.join().unwrap();
        block_on(stage.locks.close());
        stage.end();
    });
}
