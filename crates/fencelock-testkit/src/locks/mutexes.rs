//! What every mutex does, run on everything that can play one: the mutex, the write side of a read-write lock, a semaphore of
//! one, a semaphore of five with four permits taken, and the unfair mutex.

use crate::ctx::{Client, Ctx, SOON, eventually, soon};
use crate::suite::{Test, tests};
use fencelock::{ErrorKind, Locks, MutexGuard, Options, Permit, Released, Result, State, WriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Who plays the mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Player {
    Mutex,
    Write,
    SemaphoreOfOne,
    SemaphoreOfFive,
    Unfair,
}

enum Guard {
    Mutex(MutexGuard),
    Write(WriteGuard),
    Permit(Permit),
}

impl Guard {
    async fn release(self) -> Result<Released> {
        match self {
            Guard::Mutex(guard) => guard.release().await,
            Guard::Write(guard) => guard.release().await,
            Guard::Permit(guard) => guard.release().await,
        }
    }

    fn state(&self) -> State {
        match self {
            Guard::Mutex(guard) => guard.state(),
            Guard::Write(guard) => guard.state(),
            Guard::Permit(guard) => guard.state(),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Guard::Mutex(guard) => guard.token().number(),
            Guard::Write(guard) => guard.token().number(),
            Guard::Permit(guard) => guard.number(),
        }
    }
}

impl Player {
    async fn lock(self, locks: &Locks, name: &str, options: Options) -> Result<Guard> {
        Ok(match self {
            Player::Mutex => Guard::Mutex(locks.mutex(name).lock_with(options).await?),
            Player::Unfair => Guard::Mutex(locks.mutex(name).lock_with(options.unfair()).await?),
            Player::Write => Guard::Write(locks.rwlock(name).write_with(options).await?),
            Player::SemaphoreOfOne => Guard::Permit(locks.semaphore(name, 1).acquire_with(options).await?),
            Player::SemaphoreOfFive => Guard::Permit(locks.semaphore(name, 5).acquire_with(options).await?),
        })
    }

    async fn try_lock(self, locks: &Locks, name: &str) -> Result<Guard> {
        self.lock(locks, name, Options::new().wait(Duration::ZERO)).await
    }

    /// What has to be held all the time for this player to be a mutex.
    async fn prepare(self, client: &Client, name: &str) -> Option<Permit> {
        match self {
            Player::SemaphoreOfFive => {
                Some(client.locks.semaphore(name, 5).acquire_many(4).await.expect("four permits"))
            }
            _ => None,
        }
    }

    /// How many tickets the line has besides those of the game.
    fn besides(self) -> usize {
        usize::from(self == Player::SemaphoreOfFive)
    }

    fn queues(self) -> bool {
        self != Player::Unfair
    }
}

macro_rules! players {
    ($($module:ident: $player:ident $group:literal [$($need:ident)*];)+) => {
        $(
            mod $module {
                use super::{Arc, Ctx, Player, tests};
                tests!($group:
                    one_at_a_time [$($need)*],
                    a_counter_comes_out_exact [$($need)*],
                    a_timeout_leaves_nothing_behind [$($need)*],
                    a_waiter_gets_in_on_release [$($need)*],
                    a_dropped_guard_is_released [$($need)*],
                    releasing_tells_what_was_found [$($need)* Expel],
                );
                async fn one_at_a_time(ctx: Arc<Ctx>) {
                    super::one_at_a_time(&ctx, Player::$player).await;
                }
                async fn a_counter_comes_out_exact(ctx: Arc<Ctx>) {
                    super::a_counter_comes_out_exact(&ctx, Player::$player).await;
                }
                async fn a_timeout_leaves_nothing_behind(ctx: Arc<Ctx>) {
                    super::a_timeout_leaves_nothing_behind(&ctx, Player::$player).await;
                }
                async fn a_waiter_gets_in_on_release(ctx: Arc<Ctx>) {
                    super::a_waiter_gets_in_on_release(&ctx, Player::$player).await;
                }
                async fn a_dropped_guard_is_released(ctx: Arc<Ctx>) {
                    super::a_dropped_guard_is_released(&ctx, Player::$player).await;
                }
                async fn releasing_tells_what_was_found(ctx: Arc<Ctx>) {
                    super::releasing_tells_what_was_found(&ctx, Player::$player).await;
                }
            }
        )+

        pub(crate) fn all() -> Vec<Test> {
            [$($module::TESTS),+].concat()
        }
    };
}

players! {
    by_mutex: Mutex "mutex" [];
    by_write: Write "mutex_by_write" [];
    by_semaphore: SemaphoreOfOne "mutex_by_semaphore_of_one" [OnePermit];
    by_five: SemaphoreOfFive "mutex_by_semaphore_of_five" [Permits];
    by_unfair: Unfair "mutex_unfair" [];
}

async fn one_at_a_time(ctx: &Ctx, player: Player) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let _rest = player.prepare(&one, &name).await;
    let guard = player.lock(&one.locks, &name, Options::new().reason("deploy 88")).await.expect("free");
    assert_eq!(guard.state(), State::Safe);
    for client in [&one, &two] {
        let error = player.try_lock(&client.locks, &name).await.err().expect("held");
        assert_eq!(error.kind(), ErrorKind::Held);
        assert!(error.to_string().contains(&name), "{error}");
        if player.besides() == 0
            && let Some(holder) = error.holder()
        {
            assert_eq!(holder.reason.as_deref(), Some("deploy 88"));
            assert_eq!((holder.token, holder.pid), (client.shown(guard.number()), std::process::id()));
        }
    }
    assert_eq!(guard.release().await.expect("release"), Released::Held);
    let guard = player.try_lock(&two.locks, &name).await.expect("free again");
    guard.release().await.expect("release");
}

/// Several clients with several tasks each read a number, wait a little, and write it back plus one.
async fn a_counter_comes_out_exact(ctx: &Ctx, player: Player) {
    let name = ctx.text("a");
    let first = ctx.client().await;
    let rest = player.prepare(&first, &name).await;
    let counter = Arc::new(AtomicU64::new(0));
    let last = Arc::new(AtomicU64::new(0));
    let rounds = ctx.rounds(4);
    let mut tasks = Vec::new();
    for client in [first.clone(), ctx.client().await, ctx.client().await] {
        for _ in 0..4 {
            let (client, name, counter, last) = (client.clone(), name.clone(), counter.clone(), last.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..rounds {
                    let guard = player.lock(&client.locks, &name, Options::new()).await.expect("lock");
                    let number = counter.load(Ordering::Relaxed);
                    let before = last.swap(guard.number(), Ordering::Relaxed);
                    assert!(guard.number() > before, "tokens grow by the order of the grants");
                    tokio::time::sleep(Duration::from_micros(300)).await;
                    assert_eq!(guard.state(), State::Safe);
                    counter.store(number + 1, Ordering::Relaxed);
                    guard.release().await.expect("release");
                }
            }));
        }
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("no task is stuck").expect("no panic");
    }
    assert_eq!(counter.load(Ordering::Relaxed), 12 * rounds as u64);
    drop(rest);
    first.locks.close().await;
    assert!(first.is_empty(&ctx.name("a")).await);
}

async fn a_timeout_leaves_nothing_behind(ctx: &Ctx, player: Player) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let _rest = player.prepare(&one, &name).await;
    let guard = player.lock(&one.locks, &name, Options::new()).await.expect("free");
    let limit = Duration::from_millis(40);
    let started = one.clock().now();
    let error = player.lock(&two.locks, &name, Options::new().wait(limit)).await.err().expect("held");
    let waited = one.clock().now().since(started);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(waited >= limit, "it gave up after {waited:?}");
    assert!(error.waited_for().is_some_and(|told| told >= limit));
    two.locks.close().await;
    let line = one.inspect(&ctx.name("a")).await;
    assert_eq!((line.inside.len(), line.waiting.len()), (1 + player.besides(), 0), "its ticket was taken back");
    guard.release().await.expect("release");
    let next = player.try_lock(&two.locks, &name).await.expect("nobody is in the way");
    next.release().await.expect("release");
}

async fn a_waiter_gets_in_on_release(ctx: &Ctx, player: Player) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let _rest = player.prepare(&one, &name).await;
    let guard = player.lock(&one.locks, &name, Options::new()).await.expect("free");
    let number = guard.number();
    let waiter = tokio::spawn({
        let (two, name) = (two.clone(), name.clone());
        async move { player.lock(&two.locks, &name, Options::new().wait(SOON * 2)).await }
    });
    if player.queues() && one.store.capability().queue != fencelock::store::Queue::Absent {
        let waits = || async { one.inspect(&ctx.name("a")).await.waiting.len() == 1 };
        eventually("it waits in the queue", waits).await;
    }
    assert!(!waiter.is_finished());
    guard.release().await.expect("release");
    let guard = soon("the waiter gets in", waiter).await.expect("no panic").expect("lock");
    assert!(guard.number() > number);
    guard.release().await.expect("release");
}

async fn a_dropped_guard_is_released(ctx: &Ctx, player: Player) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let _rest = player.prepare(&one, &name).await;
    for _ in 0..10 {
        drop(player.lock(&one.locks, &name, Options::new()).await.expect("free"));
        // Its own release is not in its way.
        drop(player.try_lock(&one.locks, &name).await.expect("the dropped one was flushed"));
    }
    one.locks.close().await;
    assert_eq!(one.inspect(&ctx.name("a")).await.inside.len(), player.besides(), "close waits for the release");
    let guard = player.try_lock(&two.locks, &name).await.expect("free for others");
    guard.release().await.expect("release");
}

async fn releasing_tells_what_was_found(ctx: &Ctx, player: Player) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let _rest = player.prepare(&one, &name).await;
    let guard = player.lock(&one.locks, &name, Options::new()).await.expect("free");
    assert!(two.locks.break_ticket(&name, guard.number()).await.expect("break"));
    assert!(!two.locks.break_ticket(&name, guard.number()).await.expect("break"), "it is gone");
    let next = player.try_lock(&two.locks, &name).await.expect("free");
    assert_eq!(guard.release().await.expect("release"), Released::AlreadyGone);
    let error = player.try_lock(&one.locks, &name).await.err().expect("the next one still has it");
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(next.release().await.expect("release"), Released::Held);
}
