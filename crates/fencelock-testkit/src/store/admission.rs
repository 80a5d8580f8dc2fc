//! Who is let in: the properties of the line, on the store.

use crate::ctx::{Ctx, SOON, unqueued};
use crate::suite::tests;
use fencelock::store::{Enter, Entered, Waited};
use std::sync::Arc;
use std::time::Duration;

tests!("admission":
    one_at_a_time [Queue],
    tickets_come_in_by_the_order_of_entering [Fair],
    tickets_of_several_clients_come_in_by_the_order_of_entering [Fair],
    an_enter_that_does_not_queue_overtakes_nobody [Fair],
    an_enter_that_does_not_queue_says_who_is_inside,
    readers_share_and_a_writer_excludes [Readers Queue],
    a_mutex_is_the_write_side [Readers],
    a_writer_behind_readers_is_not_starved [Fair Readers],
    a_reader_behind_a_waiting_writer_waits [Fair Readers],
    permits_are_counted [Permits],
    a_heavy_waiter_is_not_overtaken_by_a_light_one [Fair Permits],
    a_departure_lets_in_all_who_fit [Fair Readers],
    lines_do_not_know_each_other,
);

async fn one_at_a_time(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    one.admitted(&holder).await;
    two.queued(&waiter).await;
    assert!(!two.is_inside(&waiter).await);
    one.leave(&holder).await;
    two.comes_in(&waiter).await;
    two.leave(&waiter).await;
}

async fn order(ctx: &Ctx, clients: usize) {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(ctx.client().await);
    }
    let name = ctx.name("a");
    let tickets: Vec<Enter> = (0..8).map(|_| ctx.mutex(&name)).collect();
    let client = |i: usize| &all[i % clients];
    client(0).admitted(&tickets[0]).await;
    for (i, ticket) in tickets.iter().enumerate().skip(1) {
        client(i).queued(ticket).await;
    }
    for i in 0..tickets.len() {
        client(i).comes_in(&tickets[i]).await;
        for (later, waiter) in tickets.iter().enumerate().skip(i + 1) {
            assert!(!client(later).is_inside(waiter).await, "ticket {later} is inside before ticket {i} left");
        }
        client(i).leave(&tickets[i]).await;
    }
    assert!(client(0).is_empty(&name).await);
}

async fn tickets_come_in_by_the_order_of_entering(ctx: Arc<Ctx>) {
    order(&ctx, 1).await;
}

async fn tickets_of_several_clients_come_in_by_the_order_of_entering(ctx: Arc<Ctx>) {
    order(&ctx, 3).await;
}

async fn an_enter_that_does_not_queue_overtakes_nobody(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    client.full(&unqueued(ctx.mutex(&name))).await;
    client.leave(&holder).await;
    client.full(&unqueued(ctx.mutex(&name))).await;
    client.comes_in(&waiter).await;
    client.leave(&waiter).await;
    let free = unqueued(ctx.mutex(&name));
    client.admitted(&free).await;
    client.leave(&free).await;
    if ctx.open().await.capability().weights == fencelock::store::Weights::Any {
        // There is room for a permit, but a heavier one waits for it.
        let (light, heavy) = (ctx.permits(&name, 1, 3), ctx.permits(&name, 3, 3));
        client.admitted(&light).await;
        client.queued(&heavy).await;
        client.full(&unqueued(ctx.permits(&name, 1, 3))).await;
        client.leave(&heavy).await;
        let room = unqueued(ctx.permits(&name, 2, 3));
        client.admitted(&room).await;
        client.leave(&light).await;
        client.leave(&room).await;
    }
}

async fn an_enter_that_does_not_queue_says_who_is_inside(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let mut holder = ctx.mutex(&name);
    holder.note.reason = Some("deploy 88".into());
    let token = client.admitted(&holder).await;
    match client.enter(&unqueued(ctx.mutex(&name))).await {
        Entered::Full { holder: Some(seen) } => {
            assert_eq!((seen.token.unwrap_or(token), seen.reason.as_deref()), (token, Some("deploy 88")));
        }
        Entered::Full { holder: None } => {} // it may not know
        other => panic!("not full: {other:?}"),
    }
    assert_eq!(client.numbers(&name).await, (vec![client.told(token)], vec![]), "no ticket was left");
    client.leave(&holder).await;
}

async fn readers_share_and_a_writer_excludes(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (one, two, writer) = (ctx.reader(&name), ctx.reader(&name), ctx.writer(&name));
    client.admitted(&one).await;
    client.admitted(&two).await;
    client.full(&unqueued(ctx.writer(&name))).await;
    client.queued(&writer).await;
    client.leave(&one).await;
    assert!(!client.is_inside(&writer).await, "a reader is still inside");
    client.leave(&two).await;
    client.comes_in(&writer).await;
    client.full(&unqueued(ctx.reader(&name))).await;
    client.full(&unqueued(ctx.writer(&name))).await;
    client.leave(&writer).await;
}

async fn a_mutex_is_the_write_side(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    for (holder, other) in [
        (ctx.mutex(&name), ctx.reader(&name)),
        (ctx.mutex(&name), ctx.writer(&name)),
        (ctx.reader(&name), ctx.mutex(&name)),
        (ctx.writer(&name), ctx.mutex(&name)),
    ] {
        client.admitted(&holder).await;
        client.full(&unqueued(other)).await;
        client.leave(&holder).await;
    }
}

async fn a_writer_behind_readers_is_not_starved(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (mut inside, writer) = (ctx.reader(&name), ctx.writer(&name));
    client.admitted(&inside).await;
    client.queued(&writer).await;
    // New readers come without end; none of them may keep the writer out.
    let mut behind = Vec::new();
    for _ in 0..5 {
        let reader = ctx.reader(&name);
        client.queued(&reader).await;
        client.full(&unqueued(ctx.reader(&name))).await;
        behind.push(reader);
    }
    client.leave(&inside).await;
    client.comes_in(&writer).await;
    client.leave(&writer).await;
    for reader in behind {
        client.comes_in(&reader).await;
        inside = reader;
        client.leave(&inside).await;
    }
}

async fn a_reader_behind_a_waiting_writer_waits(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (first, writer, second) = (ctx.reader(&name), ctx.writer(&name), ctx.reader(&name));
    client.admitted(&first).await;
    client.queued(&writer).await;
    client.queued(&second).await;
    // The writer gives up: the reader behind it comes in beside the first.
    client.leave(&writer).await;
    client.comes_in(&second).await;
    assert!(client.is_inside(&first).await);
    client.leave(&first).await;
    client.leave(&second).await;
}

async fn permits_are_counted(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let tickets = [2, 1, 2].map(|permits| ctx.permits(&name, permits, 5));
    for ticket in &tickets {
        client.admitted(ticket).await;
    }
    client.full(&unqueued(ctx.permits(&name, 1, 5))).await;
    client.leave(&tickets[1]).await;
    client.full(&unqueued(ctx.permits(&name, 2, 5))).await;
    let last = unqueued(ctx.permits(&name, 1, 5));
    client.admitted(&last).await;
    assert_eq!(client.inspect(&name).await.capacity, 5);
    for ticket in [&tickets[0], &tickets[2], &last] {
        client.leave(ticket).await;
    }
    assert!(client.is_empty(&name).await);
}

async fn a_heavy_waiter_is_not_overtaken_by_a_light_one(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (inside, heavy, light) = (ctx.permits(&name, 2, 3), ctx.permits(&name, 3, 3), ctx.permits(&name, 1, 3));
    client.admitted(&inside).await;
    client.queued(&heavy).await;
    client.queued(&light).await;
    assert_eq!(client.wait(&light, Duration::from_millis(50)).await, Waited::Waiting, "it would fit, but overtake");
    client.leave(&inside).await;
    client.comes_in(&heavy).await;
    assert!(!client.is_inside(&light).await);
    client.leave(&heavy).await;
    client.comes_in(&light).await;
    client.leave(&light).await;
}

async fn a_departure_lets_in_all_who_fit(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let writer = ctx.writer(&name);
    client.admitted(&writer).await;
    let readers: Vec<Enter> = (0..5).map(|_| ctx.reader(&name)).collect();
    for reader in &readers {
        client.queued(reader).await;
    }
    let waits = readers.iter().map(|reader| client.wait(reader, SOON));
    let (_, waited) = tokio::join!(client.leave(&writer), futures_util::future::join_all(waits));
    assert!(waited.iter().all(|waited| matches!(waited, Waited::Admitted { .. })), "{waited:?}");
    assert_eq!(client.numbers(&name).await.0.len(), 5, "all at once");
    for reader in &readers {
        client.leave(reader).await;
    }
}

async fn lines_do_not_know_each_other(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let names = ["a", "a/b", "a/b/c", "aa", "A", "b"].map(|name| ctx.name(name));
    let tickets: Vec<Enter> = names.iter().map(|name| ctx.mutex(name)).collect();
    for ticket in &tickets {
        client.admitted(&unqueued(ticket.clone())).await;
    }
    client.leave(&tickets[0]).await;
    for ticket in &tickets[1..] {
        assert!(client.is_inside(ticket).await, "{:?} was left with \"a\"", ticket.place.name);
        client.leave(ticket).await;
    }
}
