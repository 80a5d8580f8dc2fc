//! The ticket's number as a fencing token.

use crate::ctx::{Ctx, leased};
use crate::suite::tests;
use fencelock::store::{Enter, Renewed, TicketId, Upgraded};
use std::sync::Arc;

tests!("tokens":
    they_grow_over_leaving [Fencing],
    they_grow_over_lapses [Fencing OwnLease],
    they_grow_over_clients [Fencing],
    they_grow_over_an_upgrade [Fencing Readers Upgrade],
    they_grow_over_an_expulsion [Fencing Expel],
    they_follow_the_order_of_entering [Fencing Fair],
    they_are_the_same_wherever_they_are_told [Fencing Queue],
    at_least_raises_the_next_one [SettableToken],
    at_least_of_a_ticket_that_is_gone_raises_nothing [SettableToken],
);

/// Checks that every number is larger than the one before.
#[derive(Default)]
struct Growing(u64);

impl Growing {
    fn next(&mut self, token: u64) {
        assert!(token > self.0, "token {token} after token {}", self.0);
        self.0 = token;
    }
}

async fn they_grow_over_leaving(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let mut growing = Growing::default();
    for _ in 0..20 {
        let ticket = ctx.mutex(&name);
        growing.next(client.admitted(&ticket).await);
        client.leave(&ticket).await;
    }
}

async fn they_grow_over_lapses(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let mut growing = Growing::default();
    for _ in 0..3 {
        let ticket = leased(ctx.mutex(&name), ctx.lease());
        growing.next(client.admitted(&ticket).await);
        client.sleep_past(client.clock().now().after(ctx.lease())).await;
        // Asking about everything gives a store the chance to sweep, and to forget what it must not.
        crate::ctx::eventually("it has lapsed", || client.is_empty(&name)).await;
        client.store.list("", None, 10).await.expect("list");
    }
    let ticket = ctx.mutex(&name);
    growing.next(client.admitted(&ticket).await);
    client.leave(&ticket).await;
}

async fn they_grow_over_clients(ctx: Arc<Ctx>) {
    let name = ctx.name("a");
    let mut growing = Growing::default();
    for _ in 0..4 {
        let client = ctx.client().await;
        let ticket = ctx.mutex(&name);
        growing.next(client.admitted(&ticket).await);
        client.leave(&ticket).await;
        client.locks.close().await;
    }
}

async fn they_grow_over_an_upgrade(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let mut growing = Growing::default();
    for _ in 0..3 {
        let reader = ctx.reader(&name);
        growing.next(client.admitted(&reader).await);
        let new = TicketId::new();
        match client.store.upgrade(&reader.place, new).await.expect("upgrade") {
            Upgraded::Admitted { token } => growing.next(token),
            other => panic!("not upgraded: {other:?}"),
        }
        let mut writer = reader.clone();
        writer.place.id = new;
        client.leave(&writer).await;
    }
}

async fn they_grow_over_an_expulsion(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let mut growing = Growing::default();
    for _ in 0..3 {
        let token = client.admitted(&ctx.mutex(&name)).await;
        growing.next(token);
        client.store.expel(&name, token).await.expect("expel");
    }
}

async fn they_follow_the_order_of_entering(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let tickets: Vec<Enter> = (0..6).map(|_| ctx.mutex(&name)).collect();
    for (i, ticket) in tickets.iter().enumerate() {
        [&one, &two][i % 2].enter(ticket).await;
    }
    let mut growing = Growing::default();
    for ticket in &tickets {
        growing.next(one.comes_in(ticket).await);
        one.leave(ticket).await;
    }
}

async fn they_are_the_same_wherever_they_are_told(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    let token = client.admitted(&holder).await;
    assert_eq!(client.comes_in(&holder).await, token, "wait");
    assert_eq!(client.admitted(&holder).await, token, "enter again");
    assert_eq!(client.numbers(&name).await.0, [client.told(token)], "inspect");
    client.queued(&waiter).await;
    let shown = client.numbers(&name).await.1;
    client.leave(&holder).await;
    let number = client.comes_in(&waiter).await;
    // A store that gives numbers with the grant shows none before.
    assert!(
        shown == [number] || shown == [0],
        "{shown:?}, but {number}: a waiter's number does not change when it comes in"
    );
    client.leave(&waiter).await;
}

async fn at_least_raises_the_next_one(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    let token = client.admitted(&ticket).await;
    let raised = token + 1_000_000;
    let renewed = client.renew_at_least(&ticket, ctx.long(), Some(raised)).await;
    assert!(matches!(renewed, Renewed::There { .. }), "{renewed:?}");
    assert_eq!(client.numbers(&name).await.0, [client.told(token)], "its own number stays");
    client.renew_at_least(&ticket, ctx.long(), Some(1)).await;
    client.leave(&ticket).await;
    let next = ctx.mutex(&name);
    let number = ctx.client().await.admitted(&next).await;
    assert!(number > raised, "{number} after at least {raised} was asked for");
    client.leave(&next).await;
}

async fn at_least_of_a_ticket_that_is_gone_raises_nothing(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    let token = client.admitted(&ticket).await;
    client.leave(&ticket).await;
    let far = token + (1 << 40);
    assert_eq!(client.renew_at_least(&ticket, ctx.long(), Some(far)).await, Renewed::Gone);
    let next = ctx.mutex(&name);
    let number = client.admitted(&next).await;
    assert!(number < far, "a ticket that was gone raised the counter");
    client.leave(&next).await;
}
