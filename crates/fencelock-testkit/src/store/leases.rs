//! Leases: what is granted is kept, and not much longer; a dead ticket blocks for its lease at most.

use crate::ctx::{Ctx, SOON, leased, within};
use crate::suite::tests;
use fencelock::store::{Entered, LONGEST_WAITING_LEASE, Renewed, Waited, waiting_lease};
use std::sync::Arc;
use std::time::Duration;

tests!("leases":
    a_ticket_lives_for_the_lease_that_was_granted [OwnLease],
    a_renewal_lives_for_the_lease_that_was_granted [OwnLease],
    the_shortest_lease_is_kept [OwnLease],
    the_longest_lease_is_kept [OwnLease],
    a_lapsed_ticket_is_gone_for_everybody [OwnLease],
    a_dead_holder_lets_the_next_in [OwnLease Queue],
    a_dead_head_waiter_is_skipped [OwnLease Fair],
    a_waiting_lease_is_capped_and_says_so [OwnLease Queue],
    a_hand_off_leaves_the_expiry_as_it_is [OwnLease Queue],
    a_lapsed_waiter_is_gone [OwnLease Queue],
    a_dead_reader_does_not_live_on_with_the_others [OwnLease Readers Queue],
);

/// How much later than its lease a ticket may go.
fn slack(ctx: &Ctx) -> Duration {
    ctx.lease() + Duration::from_secs(2)
}

/// Watches the line of one ticket from another client, from `sent` on, until it is gone.
async fn lives_for(ctx: &Ctx, name: &fencelock::name::Name, sent: fencelock::clock::Moment, lease: Duration) {
    let other = ctx.client().await;
    let clock = other.clock();
    loop {
        let gone = other.is_empty(name).await;
        let now = clock.now();
        if gone {
            assert!(now >= sent.after(lease), "gone {:?} after the call, {lease:?} were granted", now.since(sent));
            return;
        }
        assert!(now < sent.after(lease + slack(ctx)), "still there {:?} after a lease of {lease:?}", now.since(sent));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_ticket_lives_for_the_lease_that_was_granted(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = leased(ctx.mutex(&name), ctx.lease());
    let sent = client.clock().now();
    let Entered::Admitted { lease, .. } = client.enter(&ticket).await else { panic!("not inside") };
    assert!(lease <= ctx.lease() * 2, "asked for {:?}, granted {lease:?}", ctx.lease());
    lives_for(&ctx, &name, sent, lease).await;
}

async fn a_renewal_lives_for_the_lease_that_was_granted(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = leased(ctx.mutex(&name), ctx.lease() * 2);
    client.admitted(&ticket).await;
    client.sleep_past(client.clock().now().after(ctx.lease())).await;
    let sent = client.clock().now();
    let Renewed::There { lease } = client.renew(&ticket, ctx.lease() * 2).await else { panic!("gone too early") };
    assert!(lease <= ctx.lease() * 3, "asked for {:?}, granted {lease:?}", ctx.lease() * 2);
    lives_for(&ctx, &name, sent, lease).await;
}

async fn the_shortest_lease_is_kept(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let shortest = client.store.capability().shortest_lease;
    let sent = client.clock().now();
    match client.enter(&leased(ctx.mutex(&name), shortest)).await {
        Entered::Admitted { lease, .. } => {
            let most = shortest * 2 + Duration::from_millis(100);
            assert!(lease <= most, "the shortest lease is said to be {shortest:?}, granted were {lease:?}");
            lives_for(&ctx, &name, sent, lease).await;
        }
        other => panic!("not inside: {other:?}"),
    }
}

async fn the_longest_lease_is_kept(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let longest = client.store.capability().longest_lease;
    let ticket = leased(ctx.mutex(&name), longest);
    match client.enter(&ticket).await {
        Entered::Admitted { lease, .. } => {
            assert!(lease >= longest, "the longest lease is said to be {longest:?}, granted were {lease:?}");
        }
        other => panic!("not inside: {other:?}"),
    }
    if let Some(left) = client.inspect(&name).await.inside[0].expires_in {
        assert!(left > longest - SOON, "the lease ends in {left:?}");
    }
    client.leave(&ticket).await;
}

async fn a_lapsed_ticket_is_gone_for_everybody(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let ticket = leased(ctx.mutex(&name), ctx.lease());
    client.admitted(&ticket).await;
    within(ctx.lease() + slack(&ctx), "it has lapsed", || other.is_empty(&name)).await;
    assert_eq!(client.renew(&ticket, ctx.long()).await, Renewed::Gone, "renew brought it back");
    assert_eq!(client.wait(&ticket, Duration::ZERO).await, Waited::Gone);
    assert_eq!(client.leave(&ticket).await, fencelock::store::Presence::Gone);
    assert_eq!(client.lower(&ticket, 1).await, fencelock::store::Presence::Gone);
    assert!(!other.store.list(ctx.folder(), None, 10).await.expect("list").iter().any(|l| l.name == name));
    let next = ctx.mutex(&name);
    other.admitted(&next).await;
    assert_eq!(client.renew(&ticket, ctx.long()).await, Renewed::Gone, "renew took the next one for itself");
    other.leave(&next).await;
}

async fn a_dead_holder_lets_the_next_in(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let (dead, next) = (leased(ctx.mutex(&name), ctx.lease()), ctx.mutex(&name));
    let first = client.admitted(&dead).await;
    other.queued(&next).await;
    let until = ctx.lease() + slack(&ctx);
    match other.wait(&next, until).await {
        Waited::Admitted { token } => assert!(token > first),
        found => panic!("{found:?}: nobody let it in within {until:?}"),
    }
    other.leave(&next).await;
}

async fn a_dead_head_waiter_is_skipped(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let (holder, dead, next) = (ctx.mutex(&name), leased(ctx.mutex(&name), ctx.lease()), ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&dead).await;
    other.queued(&next).await;
    // The dead one is let in, or is gone already; either way its lease is all it can cost.
    client.leave(&holder).await;
    let until = ctx.lease() + slack(&ctx);
    let waited = other.wait(&next, until).await;
    assert!(matches!(waited, Waited::Admitted { .. }), "{waited:?}: the dead waiter was not skipped");
    other.leave(&next).await;
}

async fn a_waiting_lease_is_capped_and_says_so(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let hour = Duration::from_secs(3600).min(client.store.capability().longest_lease);
    let (holder, waiter) = (leased(ctx.mutex(&name), hour), leased(ctx.mutex(&name), hour));
    client.admitted(&holder).await;
    match client.enter(&waiter).await {
        Entered::Queued { lease, .. } => assert!(lease <= waiting_lease(hour), "{lease:?} for a waiter"),
        other => panic!("not queued: {other:?}"),
    }
    let seen = client.inspect(&name).await;
    assert!(seen.waiting[0].expires_in.is_none_or(|left| left <= LONGEST_WAITING_LEASE));
    assert!(seen.inside[0].expires_in.is_none_or(|left| left > hour - SOON), "the holder's lease is not capped");
    client.leave(&holder).await;
    client.comes_in(&waiter).await;
    let left = client.inspect(&name).await.inside[0].expires_in.unwrap_or_default();
    assert!(left <= LONGEST_WAITING_LEASE, "the hand-off moved the expiry to {left:?}");
    let Renewed::There { lease } = client.renew(&waiter, hour).await else { panic!("gone") };
    assert!(lease > hour - SOON, "a renewal raises it: {lease:?}");
    client.leave(&waiter).await;
}

async fn a_hand_off_leaves_the_expiry_as_it_is(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), leased(ctx.mutex(&name), ctx.lease() * 2));
    client.admitted(&holder).await;
    let sent = client.clock().now();
    let Entered::Queued { lease, .. } = client.enter(&waiter).await else { panic!("not queued") };
    let answered = client.clock().now();
    client.sleep_past(sent.after(ctx.lease())).await;
    client.leave(&holder).await;
    let (found, now) = (client.wait(&waiter, SOON).await, client.clock().now());
    if matches!(found, Waited::Admitted { .. }) {
        let line = client.inspect(&name).await;
        let left = line.inside.first().and_then(|seen| seen.expires_in).unwrap_or_default();
        let most = answered.after(lease).since(now) + Duration::from_millis(50);
        assert!(left <= most, "{left:?} left after the hand-off, at most {most:?} without it");
    } else {
        assert!(now >= sent.after(lease), "{found:?} although the lease has not ended");
    }
    client.leave(&waiter).await;
}

async fn a_lapsed_waiter_is_gone(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), leased(ctx.mutex(&name), ctx.lease()));
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    assert_eq!(client.wait(&waiter, ctx.lease() + slack(&ctx)).await, Waited::Gone, "its own lease has ended");
    assert_eq!(client.numbers(&name).await.1, Vec::<u64>::new());
    assert!(client.is_inside(&holder).await);
    client.leave(&holder).await;
}

async fn a_dead_reader_does_not_live_on_with_the_others(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (dead, alive, writer) = (leased(ctx.reader(&name), ctx.lease()), ctx.reader(&name), ctx.writer(&name));
    client.admitted(&dead).await;
    let token = client.admitted(&alive).await;
    client.queued(&writer).await;
    within(ctx.lease() + slack(&ctx), "the dead reader is gone", || async {
        client.renew(&alive, ctx.long()).await;
        client.numbers(&name).await.0 == [client.told(token)]
    })
    .await;
    client.leave(&alive).await;
    client.comes_in(&writer).await;
    client.leave(&writer).await;
}
