//! Cancellation at every await point: each public future is polled k times and dropped, for every k until it completes, on a
//! store that gives way before and after each call. Afterwards nothing is left, and nobody has to wait for a lease.

use crate::ctx::{Client, Ctx, SOON, eventually, poll_times, soon};
use crate::suite::tests;
use fencelock::store::BoxFuture;
use fencelock::{Locks, MutexGuard, Options, Permit, Released};
use futures_util::future::{Either, select};
use std::sync::Arc;
use std::time::Duration;

tests!("cancelling":
    lock,
    lock_within,
    try_lock,
    read [Readers],
    write,
    acquire_many [Permits],
    lock_as,
    unfair_lock,
    release,
    release_with_min_hold,
    downgrade [Readers],
    try_upgrade [Readers Upgrade],
    inspect_list_watch_and_close,
    a_waiter_granted_at_that_instant_passes_it_on,
    a_cancelled_flush_forgets_no_other_release [Readers],
);

/// Somebody who is in the way.
#[expect(dead_code, reason = "held for its drop")]
enum InTheWay {
    Mutex(MutexGuard),
    Permits(Permit),
}

/// What is cancelled.
struct Cancelled(BoxFuture<'static, ()>);

fn cancelled(future: impl Future<Output = ()> + Send + 'static) -> Cancelled {
    Cancelled(Box::pin(future))
}

/// First it is made ready, undisturbed, then it is polled and dropped.
type Make = fn(Locks, String) -> BoxFuture<'static, Cancelled>;

async fn in_the_way(client: &Client, name: &str, permits: bool) -> InTheWay {
    if permits {
        InTheWay::Permits(client.locks.semaphore(name, 5).acquire_many(3).await.expect("free"))
    } else {
        InTheWay::Mutex(client.locks.mutex(name).lock().await.expect("free"))
    }
}

/// Cancels after one poll, two polls, and so on until it completes.
async fn at_every_await(ctx: &Ctx, contended: Option<bool>, make: Make) {
    let other = ctx.client().await;
    let (client, faulty) = ctx.faulty().await;
    faulty.yielding();
    for k in 1.. {
        assert!(k < 500, "it never completes");
        let short = format!("k{k}.{}", contended.is_some());
        let name = ctx.text(&short);
        let holder = match contended {
            Some(permits) => Some(in_the_way(&other, &name, permits).await),
            None => None,
        };
        let Cancelled(future) = soon("it is made ready", make(client.locks.clone(), name.clone())).await;
        let polled = Box::pin(poll_times(future, k));
        // It waits for whoever is in the way: who goes then, so that it is polled on.
        let stalled = Box::pin(tokio::time::sleep(Duration::from_millis(if contended.is_some() { 8 } else { 5000 })));
        let completed = match select(polled, stalled).await {
            Either::Left((outcome, _)) => {
                drop(holder);
                outcome.is_some()
            }
            Either::Right(((), polled)) => {
                drop(holder);
                soon("it is polled on", polled).await.is_some()
            }
        };
        soon("close", client.locks.close()).await;
        soon("close", other.locks.close()).await;
        let line = ctx.name(&short);
        eventually(&format!("nothing is left after {k} polls"), || other.is_empty(&line)).await;
        let next = other.locks.mutex(&name).lock_within(SOON).await;
        next.expect("free at once").release().await.expect("release");
        assert!(other.is_empty(&line).await, "after {k} polls");
        if completed {
            return;
        }
    }
}

/// The same on a free name and on one that is held.
async fn free_and_held(ctx: &Ctx, permits: bool, make: Make) {
    at_every_await(ctx, None, make).await;
    at_every_await(ctx, Some(permits), make).await;
}

/// A future that takes a lock as the expression says and drops what it gets.
macro_rules! taking {
    ($locks:ident, $name:ident => $take:expr) => {
        |$locks, $name| Box::pin(async move { cancelled(async move { drop($take.await.expect("lock")) }) })
    };
}

async fn lock(ctx: Arc<Ctx>) {
    free_and_held(&ctx, false, taking!(locks, name => locks.mutex(&name).lock())).await;
}

async fn lock_within(ctx: Arc<Ctx>) {
    free_and_held(&ctx, false, taking!(locks, name => locks.mutex(&name).lock_within(SOON))).await;
}

async fn try_lock(ctx: Arc<Ctx>) {
    let make: Make =
        |locks, name| Box::pin(async move { cancelled(async move { drop(locks.mutex(&name).try_lock().await) }) });
    free_and_held(&ctx, false, make).await;
}

async fn read(ctx: Arc<Ctx>) {
    free_and_held(&ctx, false, taking!(locks, name => locks.rwlock(&name).read())).await;
}

async fn write(ctx: Arc<Ctx>) {
    free_and_held(&ctx, false, taking!(locks, name => locks.rwlock(&name).write())).await;
}

async fn acquire_many(ctx: Arc<Ctx>) {
    free_and_held(&ctx, true, taking!(locks, name => locks.semaphore(&name, 5).acquire_many(3))).await;
}

async fn lock_as(ctx: Arc<Ctx>) {
    free_and_held(
        &ctx,
        false,
        taking!(locks, name => {
            let owner = locks.owner();
            async move { locks.mutex(&name).lock_as(&owner).await }
        }),
    )
    .await;
}

async fn unfair_lock(ctx: Arc<Ctx>) {
    let make: Make = taking!(locks, name => locks.mutex(&name).lock_with(Options::new().unfair()));
    free_and_held(&ctx, false, make).await;
}

async fn release(ctx: Arc<Ctx>) {
    let make: Make = |locks, name| {
        Box::pin(async move {
            let guard = locks.mutex(&name).lock().await.expect("free");
            cancelled(async move { assert_eq!(guard.release().await.expect("release"), Released::Held) })
        })
    };
    at_every_await(&ctx, None, make).await;
}

async fn release_with_min_hold(ctx: Arc<Ctx>) {
    let make: Make = |locks, name| {
        Box::pin(async move {
            let options = Options::new().min_hold(Duration::from_millis(20));
            let guard = locks.mutex(&name).lock_with(options).await.expect("free");
            cancelled(async move { assert_eq!(guard.release().await.expect("release"), Released::Held) })
        })
    };
    at_every_await(&ctx, None, make).await;
}

async fn downgrade(ctx: Arc<Ctx>) {
    let make: Make = |locks, name| {
        Box::pin(async move {
            let guard = locks.rwlock(&name).write().await.expect("free");
            cancelled(async move { drop(guard.downgrade().await.expect("held")) })
        })
    };
    at_every_await(&ctx, None, make).await;
}

async fn try_upgrade(ctx: Arc<Ctx>) {
    let make: Make = |locks, name| {
        Box::pin(async move {
            let guard = locks.rwlock(&name).read().await.expect("free");
            cancelled(async move { drop(guard.try_upgrade().await.expect("alone")) })
        })
    };
    at_every_await(&ctx, None, make).await;
}

async fn inspect_list_watch_and_close(ctx: Arc<Ctx>) {
    let make: Make = |locks, name| {
        Box::pin(async move {
            cancelled(async move {
                locks.inspect(&name).await.expect("inspect");
                locks.list(&name).await.expect("list");
                drop(locks.watch(&name).await.expect("watch"));
                locks.close().await;
            })
        })
    };
    at_every_await(&ctx, None, make).await;
}

/// Waiters give up at random moments, many of them while they are being let in; at the end the lock is free.
async fn a_waiter_granted_at_that_instant_passes_it_on(ctx: Arc<Ctx>) {
    let name = ctx.text("a");
    let clients = [ctx.client().await, ctx.client().await, ctx.client().await];
    let rounds = ctx.rounds(100);
    let mut tasks = Vec::new();
    for (i, client) in clients.iter().enumerate() {
        for j in 0..3 {
            let (mutex, mut rng) =
                (client.locks.mutex(&name), fastrand::Rng::with_seed(ctx.rng().u64(..) ^ (i * 8 + j) as u64));
            tasks.push(tokio::spawn(async move {
                let mut got_in = 0;
                for _ in 0..rounds {
                    let limit = Duration::from_micros(rng.u64(..2000));
                    if let Ok(guard) = tokio::time::timeout(limit, mutex.lock()).await {
                        drop(guard.expect("lock"));
                        got_in += 1;
                    }
                }
                got_in
            }));
        }
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("nobody is stuck").expect("no panic");
    }
    for client in &clients {
        soon("close", client.locks.close()).await;
    }
    let guard = clients[0].locks.mutex(&name).lock_within(SOON).await.expect("free");
    guard.release().await.expect("release");
    assert!(clients[0].is_empty(&ctx.name("a")).await);
}

/// An enter sends the pending releases of its name first; if it is cancelled in the middle of that, the others are still sent.
async fn a_cancelled_flush_forgets_no_other_release(ctx: Arc<Ctx>) {
    let other = ctx.client().await;
    let (client, faulty) = ctx.faulty().await;
    faulty.yielding();
    for round in 0..ctx.rounds(60) {
        let short = format!("a{round}");
        let lock = client.locks.rwlock(&ctx.text(&short));
        let mut readers = Vec::new();
        for _ in 0..6 {
            readers.push(lock.read().await.expect("shared"));
        }
        drop(readers);
        // Sometimes these releases are still pending here, and this call takes them over.
        drop(poll_times(lock.read(), 1 + round % 4).await);
        soon("close", client.locks.close()).await;
        let line = ctx.name(&short);
        eventually(&format!("every reader was released in round {round}"), || other.is_empty(&line)).await;
    }
}
