//! Crowds: a thousand waiters, ten thousand locks.

use super::terms::clients;
use crate::ctx::{Ctx, eventually};
use crate::suite::tests;
use crate::wrap::faulty::{Fault, Verb};
use fencelock::store::Wake;
use fencelock::{Options, State};
use std::sync::{Arc, Mutex};
use std::time::Duration;

tests!("crowds":
    a_thousand_waiters_get_through_in_order [Fair],
    readers_do_not_starve_a_writer [Fair Readers],
    ten_thousand_locks_are_renewed_in_few_calls [VirtualTime],
    a_batch_that_failed_is_renewed_again_by_itself [VirtualTime],
    hundreds_of_locks_are_kept [OwnLease],
    dropped_guards_are_released_in_few_calls,
);

async fn a_thousand_waiters_get_through_in_order(ctx: Arc<Ctx>) {
    let clients = [ctx.client().await, ctx.client().await];
    let name = ctx.text("a");
    let many = if clients[0].store.capability().wake == Wake::Push { ctx.crowd() } else { 50 };
    let first = clients[0].locks.mutex(&name).lock().await.expect("free");
    let grants = Arc::new(Mutex::new(Vec::with_capacity(many)));
    let tasks: Vec<_> = (0..many)
        .map(|i| {
            let (mutex, grants) = (clients[i % 2].locks.mutex(&name), grants.clone());
            tokio::spawn(async move {
                let guard = mutex.lock().await.expect("lock");
                grants.lock().expect("no panic").push(guard.token().number());
                guard.release().await.expect("release");
            })
        })
        .collect();
    let waiting = || async {
        let listed = clients[0].store.list(&name, None, 1).await.expect("list");
        listed[0].waiting == many
    };
    crate::ctx::within(Duration::from_secs(60), "all of them wait", waiting).await;
    first.release().await.expect("release");
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(90), task).await.expect("everybody gets in").expect("no panic");
    }
    let grants = grants.lock().expect("no panic").clone();
    assert_eq!(grants.len(), many);
    assert!(grants.is_sorted_by(|a, b| a < b), "in the order of the queue");
    assert!(clients[0].is_empty(&ctx.name("a")).await);
}

async fn readers_do_not_starve_a_writer(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..6)
        .map(|_| {
            let (lock, stop) = (client.locks.rwlock(&name), stop.clone());
            tokio::spawn(async move {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let guard = lock.read().await.expect("read");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    guard.release().await.expect("release");
                }
            })
        })
        .collect();
    for _ in 0..5 {
        let writer = other.locks.rwlock(&name).write_within(crate::ctx::SOON).await.expect("not starved");
        writer.release().await.expect("release");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for reader in readers {
        reader.await.expect("no panic");
    }
}

async fn ten_thousand_locks_are_renewed_in_few_calls(ctx: Arc<Ctx>) {
    const MANY: usize = 10_000;
    let (clock, client, faulty, other) = clients(&ctx).await;
    let lease = Duration::from_secs(30);
    let mut guards = Vec::with_capacity(MANY);
    for i in 0..MANY {
        let mutex = client.locks.mutex(&format!("n{i}"));
        guards.push(mutex.lock_with(Options::new().lease(lease)).await.expect("free"));
    }
    // Rounds are a third of the lease apart, less a seventh of that at most: three or four in the first lease.
    for _ in 0..2 {
        faulty.reset_counts();
        clock.advance(lease);
        let (calls, tickets) = (faulty.calls(Verb::Renew), faulty.tickets(Verb::Renew));
        assert!(tickets >= 3 * MANY, "{tickets} renewals of {MANY} locks in one lease");
        let rounds = tickets.div_ceil(MANY);
        assert!(calls <= rounds * MANY / 100, "{calls} calls for {rounds} rounds of {MANY} locks");
        assert!(guards.iter().all(|guard| guard.state() == State::Safe));
    }
    faulty.reset_counts();
    drop(guards);
    client.locks.close().await;
    assert_eq!(other.store.list("", None, 10).await.expect("list"), []);
}

async fn a_batch_that_failed_is_renewed_again_by_itself(ctx: Arc<Ctx>) {
    const MANY: usize = 2_000;
    let (clock, client, faulty, _) = clients(&ctx).await;
    let seconds = Duration::from_secs;
    let mut guards = Vec::with_capacity(MANY);
    for i in 0..MANY {
        let mutex = client.locks.mutex(&format!("n{i}"));
        guards.push(mutex.lock_with(Options::new().lease(seconds(30))).await.expect("free"));
    }
    // The first round comes within these ten seconds, and one of its batches fails four seconds later. The next round is
    // eight seconds away then; what failed is asked for a second later, and only that.
    faulty.next(Verb::Renew, [Fault::DropAfter(seconds(4))]);
    faulty.reset_counts();
    clock.advance(seconds(10));
    assert_eq!(faulty.tickets(Verb::Renew), MANY, "the round");
    let batches = faulty.calls(Verb::Renew);
    faulty.reset_counts();
    clock.advance(Duration::from_millis(5_400));
    assert_eq!((faulty.calls(Verb::Renew), faulty.tickets(Verb::Renew)), (1, MANY / batches));
    clock.advance(seconds(30));
    assert!(guards.iter().all(|guard| guard.state() == State::Safe));
    drop(guards);
    client.locks.close().await;
}

async fn hundreds_of_locks_are_kept(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let lease = (ctx.lease() * 3).max(Duration::from_secs(2));
    let mut guards = Vec::new();
    for i in 0..300 {
        let mutex = client.locks.mutex(&ctx.text(&format!("n{i}")));
        guards.push(mutex.lock_with(Options::new().lease(lease)).await.expect("free"));
    }
    // Counted from here: a store that is slow to let 300 in renews the first of them while the last still come.
    faulty.reset_counts();
    client.sleep_past(client.clock().now().after(lease * 5 / 4)).await;
    assert!(guards.iter().all(|guard| guard.state() != State::Lost), "all are alive after more than a lease");
    let (calls, tickets) = (faulty.calls(Verb::Renew), faulty.tickets(Verb::Renew));
    assert!(tickets >= 300 && calls <= tickets / 10, "{calls} calls for {tickets} tickets");
    drop(guards);
    client.locks.close().await;
    let prefix = format!("{}/", ctx.folder());
    assert_eq!(client.store.list(&prefix, None, 10).await.expect("list"), []);
}

async fn dropped_guards_are_released_in_few_calls(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let mut guards = Vec::new();
    for i in 0..200 {
        guards.push(client.locks.mutex(&ctx.text(&format!("n{i}"))).lock().await.expect("free"));
    }
    drop(guards);
    client.locks.close().await;
    let (calls, places) = (faulty.calls(Verb::Leave), faulty.tickets(Verb::Leave));
    assert_eq!(places, 200, "each is left once");
    assert!(calls <= 200);
    let prefix = format!("{}/", ctx.folder());
    eventually("all are free", || async { client.store.list(&prefix, None, 10).await.expect("list").is_empty() }).await;
}
