//! Owners: re-entry on the same ticket, readers and writers of one owner, calls that race each other.

use crate::ctx::{Ctx, SOON, eventually, poll_times, soon};
use crate::suite::tests;
use crate::wrap::faulty::{Fault, Verb};
use fencelock::{ErrorKind, Options, Released};
use std::sync::Arc;
use std::time::Duration;

tests!("owners":
    re_entry_takes_no_call_and_the_same_token,
    the_last_guard_leaves,
    a_writer_may_read_and_becomes_a_reader [Readers],
    read_then_write_is_a_deadlock_at_once [Readers],
    an_upgrade_is_for_all_guards_of_the_owner [Readers Upgrade],
    two_owners_exclude_each_other,
    a_second_call_shares_the_place_of_the_first [Fair],
    a_second_call_survives_the_cancellation_of_the_first [Fair],
    a_try_that_finds_the_first_call_waiting_does_not_wait [Fair],
    a_wait_that_finds_a_try_under_way_does_wait,
    calls_from_many_threads_get_one_ticket,
    a_lost_lock_is_taken_anew [Expel],
);

async fn re_entry_takes_no_call_and_the_same_token(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (owner, mutex) = (client.locks.owner(), client.locks.mutex(&ctx.text("a")));
    let outer = mutex.lock_as(&owner).await.expect("free");
    let (enters, leaves) = (faulty.calls(Verb::Enter), faulty.calls(Verb::Leave));
    for _ in 0..5 {
        let inner = mutex.lock_as(&owner).await.expect("ours");
        assert_eq!(inner.token(), outer.token());
        assert_eq!(inner.release().await.expect("release"), Released::Held);
    }
    assert_eq!((faulty.calls(Verb::Enter), faulty.calls(Verb::Leave)), (enters, leaves), "no round trip");
    assert_eq!(outer.release().await.expect("release"), Released::Held);
    assert!(client.is_empty(&ctx.name("a")).await);
}

async fn the_last_guard_leaves(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let (owner, mutex) = (client.locks.owner(), client.locks.mutex(&ctx.text("a")));
    let (one, two) = (mutex.lock_as(&owner).await.expect("free"), mutex.lock_as(&owner).await.expect("ours"));
    one.release().await.expect("release");
    let stranger = other.locks.mutex(&ctx.text("a"));
    assert_eq!(stranger.try_lock().await.expect_err("held").kind(), ErrorKind::Held);
    two.release().await.expect("release");
    stranger.try_lock().await.expect("free").release().await.expect("release");
}

async fn a_writer_may_read_and_becomes_a_reader(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let (owner, lock) = (client.locks.owner(), client.locks.rwlock(&ctx.text("a")));
    let stranger = other.locks.rwlock(&ctx.text("a"));
    let write = lock.write_as(&owner).await.expect("free");
    let read = lock.read_as(&owner).await.expect("ours");
    assert_eq!(write.token().number(), read.token().number());
    assert_eq!(stranger.try_read().await.expect_err("written").kind(), ErrorKind::Held);
    write.release().await.expect("release");
    eventually("the ticket is a reader's", || async { stranger.try_read().await.is_ok() }).await;
    assert_eq!(stranger.try_write().await.expect_err("read").kind(), ErrorKind::Held);
    read.release().await.expect("release");
    other.locks.close().await;
    assert!(client.is_empty(&ctx.name("a")).await);
}

async fn read_then_write_is_a_deadlock_at_once(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let (owner, lock) = (client.locks.owner(), client.locks.rwlock(&ctx.text("a")));
    let read = lock.read_as(&owner).await.expect("free");
    for error in [
        soon("an answer", lock.write_as(&owner)).await.expect_err("it would wait for itself"),
        soon("an answer", lock.write_as_with(&owner, Options::new().wait(SOON))).await.expect_err("the same"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Deadlock);
        assert!(error.to_string().contains("try_upgrade"), "{error}");
    }
    let mutex = client.locks.mutex(&ctx.text("a"));
    assert_eq!(soon("an answer", mutex.lock_as(&owner)).await.expect_err("the same").kind(), ErrorKind::Deadlock);
    read.release().await.expect("release");
    assert!(client.is_empty(&ctx.name("a")).await, "no ticket was left");
}

async fn an_upgrade_is_for_all_guards_of_the_owner(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let (owner, lock) = (client.locks.owner(), client.locks.rwlock(&ctx.text("a")));
    let (one, two) = (lock.read_as(&owner).await.expect("free"), lock.read_as(&owner).await.expect("ours"));
    let before = two.token();
    let writer = one.try_upgrade().await.expect("alone");
    assert!(two.token().number() > before.number(), "the other guard has the new number too");
    assert_eq!(two.token().number(), writer.token().number());
    let again = two.try_upgrade().await.expect("the ticket is a writer's already");
    writer.release().await.expect("release");
    assert_eq!(lock.try_read().await.expect_err("still written").kind(), ErrorKind::Held);
    assert_eq!(again.release().await.expect("release"), Released::Held);
    assert!(client.is_empty(&ctx.name("a")).await);
}

async fn two_owners_exclude_each_other(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let (one, two, mutex) = (client.locks.owner(), client.locks.owner(), client.locks.mutex(&ctx.text("a")));
    let guard = mutex.lock_as(&one).await.expect("free");
    let at_once = Options::new().wait(Duration::ZERO);
    let error = mutex.lock_as_with(&two, at_once.clone()).await.expect_err("another owner");
    assert_eq!(error.kind(), ErrorKind::Held);
    let same = mutex.lock_as_with(&one.clone(), at_once).await.expect("a clone is the same owner");
    drop((guard, same));
    mutex.lock_as(&two).await.expect("free").release().await.expect("release");
}

async fn a_second_call_shares_the_place_of_the_first(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let holder = other.locks.mutex(&ctx.text("a")).lock().await.expect("free");
    let (owner, mutex) = (client.locks.owner(), client.locks.mutex(&ctx.text("a")));
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let (owner, mutex) = (owner.clone(), mutex.clone());
            tokio::spawn(async move { mutex.lock_as(&owner).await.expect("lock") })
        })
        .collect();
    eventually("it waits", || async { !client.inspect(&ctx.name("a")).await.waiting.is_empty() }).await;
    tokio::time::sleep(Duration::from_millis(20)).await; // for a second ticket, if there is one
    assert_eq!(client.inspect(&ctx.name("a")).await.waiting.len(), 1, "one place for all calls");
    holder.release().await.expect("release");
    let mut guards = Vec::new();
    for call in calls {
        guards.push(soon("it gets in", call).await.expect("no panic"));
    }
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
    drop(guards);
    client.locks.close().await;
    assert!(client.is_empty(&ctx.name("a")).await);
}

async fn a_second_call_survives_the_cancellation_of_the_first(ctx: Arc<Ctx>) {
    let other = ctx.client().await;
    let (client, faulty) = ctx.faulty().await;
    faulty.yielding();
    for k in 1..8 {
        let name = format!("a{k}");
        let holder = other.locks.mutex(&ctx.text(&name)).lock().await.expect("free");
        let (owner, mutex) = (client.locks.owner(), client.locks.mutex(&ctx.text(&name)));
        let mut first = Box::pin(poll_times(mutex.lock_as(&owner), k));
        let second = tokio::spawn({
            let (owner, mutex) = (owner.clone(), mutex.clone());
            async move {
                tokio::task::yield_now().await;
                mutex.lock_as(&owner).await.expect("lock")
            }
        });
        let _ = tokio::time::timeout(Duration::from_millis(10), first.as_mut()).await;
        drop(first);
        holder.release().await.expect("release");
        let guard = soon("the second call gets in", second).await.expect("no panic");
        guard.release().await.expect("release");
        client.locks.close().await;
        assert!(other.is_empty(&ctx.name(&name)).await, "cancelled after {k} polls");
    }
}

async fn a_try_that_finds_the_first_call_waiting_does_not_wait(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let holder = other.locks.mutex(&ctx.text("a")).lock().await.expect("free");
    let (owner, mutex) = (client.locks.owner(), client.locks.mutex(&ctx.text("a")));
    let first = tokio::spawn({
        let (owner, mutex) = (owner.clone(), mutex.clone());
        async move { mutex.lock_as(&owner).await.expect("lock") }
    });
    eventually("it waits", || async { !client.inspect(&ctx.name("a")).await.waiting.is_empty() }).await;
    let tried =
        tokio::time::timeout(Duration::from_secs(3), mutex.lock_as_with(&owner, Options::new().wait(Duration::ZERO)));
    let error = tried.await.expect("a try answers at once").expect_err("held");
    assert!(matches!(error.kind(), ErrorKind::Held | ErrorKind::TimedOut), "{error}");
    holder.release().await.expect("release");
    soon("the first call goes on", first).await.expect("no panic").release().await.expect("release");
}

async fn a_wait_that_finds_a_try_under_way_does_wait(ctx: Arc<Ctx>) {
    let other = ctx.client().await;
    let (client, faulty) = ctx.faulty().await;
    let holder = other.locks.mutex(&ctx.text("a")).lock().await.expect("free");
    let (owner, mutex) = (client.locks.owner(), client.locks.mutex(&ctx.text("a")));
    faulty.next(Verb::Enter, [Fault::DelayBefore(Duration::from_millis(100))]);
    let tried = tokio::spawn({
        let (owner, mutex) = (owner.clone(), mutex.clone());
        async move { mutex.lock_as_with(&owner, Options::new().wait(Duration::ZERO)).await }
    });
    eventually("the try is under way", || std::future::ready(faulty.delayed() == 1)).await;
    let waits = tokio::spawn({
        let (owner, mutex) = (owner.clone(), mutex.clone());
        async move { mutex.lock_as_with(&owner, Options::new().wait(SOON)).await }
    });
    let error = soon("the try ends", tried).await.expect("no panic").expect_err("held");
    assert_eq!(error.kind(), ErrorKind::Held);
    tokio::time::sleep(Duration::from_millis(30)).await; // time to end too early
    holder.release().await.expect("release");
    let guard = soon("the other gets in", waits).await.expect("no panic").expect("it asked to wait");
    guard.release().await.expect("release");
}

/// Nobody lets go before everybody has a guard: a second ticket of the same owner would wait for itself.
async fn calls_from_many_threads_get_one_ticket(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let end = std::time::Instant::now() + Duration::from_millis(500) * ctx.rounds(1) as u32;
    let mut round = 0;
    while round < 20 || (std::time::Instant::now() < end && round < 100_000) {
        round += 1;
        let name = ctx.text(&format!("a{round}"));
        let owner = client.locks.owner();
        let barrier = Arc::new(tokio::sync::Barrier::new(6));
        let calls: Vec<_> = (0..6)
            .map(|_| {
                let (owner, mutex, barrier) = (owner.clone(), client.locks.mutex(&name), barrier.clone());
                tokio::spawn(async move {
                    let guard = mutex.lock_as(&owner).await.expect("lock");
                    barrier.wait().await;
                    guard.token().number()
                })
            })
            .collect();
        let mut tokens = Vec::new();
        for call in calls {
            tokens.push(soon("every call has a guard", call).await.expect("no panic"));
        }
        assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    }
}

async fn a_lost_lock_is_taken_anew(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let (owner, mutex) = (client.locks.owner(), client.locks.mutex(&ctx.text("a")));
    let options = Options::new().lease(ctx.lease() * 3);
    let guard = mutex.lock_as_with(&owner, options.clone()).await.expect("free");
    other.locks.break_ticket(&ctx.text("a"), guard.token()).await.expect("break");
    soon("it is told", guard.lost()).await;
    let again = soon("an answer", mutex.lock_as_with(&owner, options)).await.expect("free");
    assert!(again.token() > guard.token(), "not another guard on what is lost");
    assert_eq!(guard.release().await.expect("release"), Released::AlreadyGone);
    assert_eq!(again.release().await.expect("release"), Released::Held);
}
