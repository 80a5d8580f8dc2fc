//! Waiting and watching: being told, and being told the truth.

use crate::ctx::{Ctx, PUSHED, SOON, eventually, soon};
use crate::suite::tests;
use fencelock::store::{Hint, Scope, Waited};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

tests!("wait":
    a_wait_ends_at_its_time [Queue],
    a_wait_that_starts_after_the_grant [Queue],
    a_wait_for_nobody_is_gone,
    a_wait_ends_when_the_ticket_leaves [Queue],
    a_wait_ends_when_the_ticket_is_expelled [Expel Queue],
    a_waiter_is_told_within_a_second [Push Queue],
    a_waiter_of_another_client_is_told_within_a_second [Push Queue],
    a_wait_can_be_given_up_and_begun_again [Queue],
    a_thousand_hand_offs_lose_no_wake_up [Queue],
    a_watch_tells_of_others,
    a_watch_of_a_folder,
    a_watch_tells_each_watcher,
);

async fn a_wait_ends_at_its_time(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    for limit in [Duration::ZERO, Duration::from_millis(60)] {
        let until = client.clock().now().after(limit);
        let waited = soon("the wait ends", client.store.wait(&waiter.place, until)).await.expect("wait");
        assert_eq!(waited, Waited::Waiting);
        assert!(client.clock().now() >= until, "it came back early");
    }
    client.leave(&waiter).await;
    client.leave(&holder).await;
}

async fn a_wait_that_starts_after_the_grant(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    client.leave(&holder).await;
    client.comes_in(&waiter).await;
    let token = client.comes_in(&waiter).await;
    assert_eq!(client.numbers(&name).await.0, [client.told(token)]);
    client.leave(&waiter).await;
}

async fn a_wait_for_nobody_is_gone(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    assert_eq!(client.wait(&ticket, SOON).await, Waited::Gone, "never entered");
    client.admitted(&ticket).await;
    client.leave(&ticket).await;
    assert_eq!(client.wait(&ticket, SOON).await, Waited::Gone, "left");
    assert!(client.is_empty(&name).await, "a wait makes no ticket");
}

async fn a_wait_ends_when_the_ticket_leaves(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    let waiting = tokio::spawn({
        let (client, waiter) = (client.clone(), waiter.clone());
        async move { client.wait(&waiter, SOON * 2).await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await; // let the wait begin; it holds either way
    client.leave(&waiter).await;
    assert_eq!(soon("the wait ends", waiting).await.expect("no panic"), Waited::Gone);
    client.leave(&holder).await;
}

async fn a_wait_ends_when_the_ticket_is_expelled(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    let number = client.numbers(&name).await.1[0];
    let (waited, _) = tokio::join!(client.wait(&waiter, SOON), other.store.expel(&name, number));
    assert_eq!(waited, Waited::Gone);
    client.leave(&holder).await;
}

/// The median of several hand-offs: one that is late because the machine is busy is not held against the store.
async fn told_within_a_second(ctx: &Ctx, same_client: bool) {
    let client = ctx.client().await;
    let other = if same_client { client.clone() } else { ctx.client().await };
    let name = ctx.name("a");
    let mut delays = Vec::new();
    for _ in 0..3 {
        let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
        client.admitted(&holder).await;
        other.queued(&waiter).await;
        let waiting = tokio::spawn({
            let (other, waiter) = (other.clone(), waiter.clone());
            async move { (other.wait(&waiter, SOON).await, Instant::now()) }
        });
        tokio::time::sleep(Duration::from_millis(50)).await; // a wait that began late would not need to be told
        let left = Instant::now();
        client.leave(&holder).await;
        let (waited, told) = waiting.await.expect("no panic");
        assert!(matches!(waited, Waited::Admitted { .. }), "{waited:?}");
        delays.push(told.saturating_duration_since(left));
        other.leave(&waiter).await;
    }
    delays.sort();
    assert!(delays[1] < PUSHED, "the store says that it pushes, but the hand-offs took {delays:?}");
}

async fn a_waiter_is_told_within_a_second(ctx: Arc<Ctx>) {
    told_within_a_second(&ctx, true).await;
}

async fn a_waiter_of_another_client_is_told_within_a_second(ctx: Arc<Ctx>) {
    told_within_a_second(&ctx, false).await;
}

async fn a_wait_can_be_given_up_and_begun_again(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    for k in 1..4 {
        let given_up =
            tokio::time::timeout(Duration::from_millis(10), crate::ctx::poll_times(client.wait(&waiter, SOON), k));
        drop(given_up.await);
    }
    let (waited, _) = tokio::join!(client.wait(&waiter, SOON), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.leave(&holder).await
    });
    assert!(matches!(waited, Waited::Admitted { .. }), "{waited:?}: the new wait was not told");
    client.leave(&waiter).await;
}

async fn a_thousand_hand_offs_lose_no_wake_up(ctx: Arc<Ctx>) {
    let name = ctx.name("a");
    let push = ctx.open().await.capability().wake == fencelock::store::Wake::Push;
    let rounds = ctx.rounds(if push { 100 } else { 5 });
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let (client, ctx, name) = (ctx.client().await, ctx.clone(), name.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..rounds {
                let ticket = ctx.mutex(&name);
                client.enter(&ticket).await;
                let waited = client.wait(&ticket, SOON * 3).await;
                assert!(matches!(waited, Waited::Admitted { .. }), "round {round}: {waited:?}");
                client.leave(&ticket).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("every wait ended");
    }
}

/// Reads hints until one is about the name.
async fn told_of(hints: &mut (impl futures_util::Stream<Item = Hint> + Unpin), name: &fencelock::name::Name) {
    loop {
        match soon("a hint", hints.next()).await {
            Some(Hint::Changed(changed) | Hint::Entered(changed)) if changed.key() == name.key() => return,
            Some(Hint::Somewhere) => return,
            Some(Hint::Changed(_) | Hint::Entered(_)) => {}
            None => panic!("the stream ended"),
        }
    }
}

async fn a_watch_tells_of_others(ctx: Arc<Ctx>) {
    let (watcher, client, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let mut hints = watcher.store.watch(Scope::Name(name.clone())).await.expect("watch");
    let ticket = ctx.mutex(&name);
    client.admitted(&ticket).await;
    told_of(&mut hints, &name).await;
    drain(&mut hints).await;
    let mut note = ticket.note.clone();
    note.value = Some("10.0.0.7".into());
    client.store.change(&ticket.place, None, Some(note)).await.expect("change");
    told_of(&mut hints, &name).await;
    drain(&mut hints).await;
    assert_eq!(watcher.inspect(&name).await.inside[0].value.as_deref(), Some("10.0.0.7"));
    client.leave(&ticket).await;
    told_of(&mut hints, &name).await;
}

/// Takes what has already been told.
async fn drain(hints: &mut (impl futures_util::Stream<Item = Hint> + Unpin)) {
    while tokio::time::timeout(Duration::from_millis(30), hints.next()).await.is_ok() {}
}

async fn a_watch_of_a_folder(ctx: Arc<Ctx>) {
    let (watcher, client) = (ctx.client().await, ctx.client().await);
    let (inside, outside) = (ctx.name("in/a"), ctx.name("out/a"));
    let scope = Scope::Prefix(format!("{}/in/", ctx.folder()));
    let mut hints = watcher.store.watch(scope.clone()).await.expect("watch");
    let tickets = [ctx.mutex(&outside), ctx.mutex(&inside)];
    for ticket in &tickets {
        client.admitted(ticket).await;
    }
    match soon("a hint", hints.next()).await {
        Some(Hint::Changed(name) | Hint::Entered(name)) => assert!(scope.covers(&name), "{name:?} is not within"),
        Some(Hint::Somewhere) => {}
        None => panic!("the stream ended"),
    }
    for ticket in &tickets {
        client.leave(ticket).await;
    }
}

async fn a_watch_tells_each_watcher(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let mut watches = Vec::new();
    for client in [&one, &one, &two] {
        watches.push(client.store.watch(Scope::Name(name.clone())).await.expect("watch"));
    }
    drop(watches.remove(0));
    let ticket = ctx.mutex(&name);
    two.admitted(&ticket).await;
    for hints in &mut watches {
        told_of(hints, &name).await;
    }
    two.leave(&ticket).await;
    eventually("empty", || one.is_empty(&name)).await;
}
