//! Lowering, raising and putting out: `change`, `upgrade`, `expel`.

use crate::ctx::{Client, Ctx, SOON, eventually, leased, unqueued};
use crate::suite::tests;
use fencelock::ErrorKind;
use fencelock::line::WHOLE;
use fencelock::store::{Enter, Mode, Presence, Queue, Renew, Renewed, TicketId, Upgraded, Waited, Weights};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

tests!("change":
    a_downgrade_keeps_number_and_place_and_lets_readers_in [Fair Readers],
    weights_never_go_up [Permits],
    a_waiter_can_be_lowered [Fair Permits],
    a_ticket_that_is_gone_cannot_be_changed,
    a_new_note_is_shown,
    an_upgrade_needs_to_be_alone [Readers Upgrade Queue],
    an_upgrade_takes_a_new_id_and_kills_the_old_one [Readers Upgrade],
    a_repeated_upgrade_is_the_same_ticket [Readers Upgrade Queue],
    an_upgrade_of_a_ticket_that_is_gone [Readers Upgrade],
    an_upgrade_inherits_the_expiry [OwnLease Readers Upgrade],
    an_upgrade_races_arrivals [Readers Upgrade],
    expelling_puts_out_that_one_only [Expel Queue],
    expelling_a_waiter [Expel Queue],
    whoever_was_expelled_cannot_come_back [Expel],
    what_is_not_claimed_is_unsupported,
);

async fn upgrade(client: &Client, ticket: &Enter) -> (Upgraded, Enter) {
    let mut new = ticket.clone();
    new.place.id = TicketId::new();
    new.weight = new.capacity;
    (client.store.upgrade(&ticket.place, new.place.id).await.expect("upgrade"), new)
}

async fn a_downgrade_keeps_number_and_place_and_lets_readers_in(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (writer, reader, second) = (ctx.writer(&name), ctx.reader(&name), ctx.writer(&name));
    let token = client.admitted(&writer).await;
    client.queued(&reader).await;
    client.queued(&second).await;
    let (waited, lowered) = tokio::join!(client.wait(&reader, crate::ctx::SOON), client.lower(&writer, 1));
    assert_eq!(lowered, Presence::There);
    assert!(matches!(waited, Waited::Admitted { .. }), "{waited:?}: the reader was not woken");
    assert!(!client.is_inside(&second).await, "a writer came in beside readers");
    let line = client.inspect(&name).await;
    assert_eq!(
        (line.inside[0].token, line.inside[0].mode, line.inside[0].weight),
        (client.shown(token), Mode::Shared, 1)
    );
    assert_eq!(line.inside.len(), 2);
    client.leave(&reader).await;
    assert!(!client.is_inside(&second).await, "the downgraded one is still inside");
    client.leave(&writer).await;
    client.comes_in(&second).await;
    client.leave(&second).await;
}

async fn weights_never_go_up(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (one, two) = (ctx.reader(&name), ctx.reader(&name));
    client.admitted(&one).await;
    assert_eq!(client.lower(&one, WHOLE).await, Presence::There);
    client.admitted(&unqueued(two.clone())).await;
    assert!(client.inspect(&name).await.inside.iter().all(|seen| seen.weight == 1 && seen.mode == Mode::Shared));
    client.leave(&one).await;
    client.leave(&two).await;
    let (three, two) = (ctx.permits(&name, 3, 4), ctx.permits(&name, 2, 4));
    client.admitted(&three).await;
    client.lower(&three, 2).await;
    client.lower(&three, 4).await;
    client.admitted(&unqueued(two.clone())).await;
    client.leave(&three).await;
    client.leave(&two).await;
}

async fn a_waiter_can_be_lowered(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (inside, heavy) = (ctx.permits(&name, 2, 3), ctx.permits(&name, 2, 3));
    client.admitted(&inside).await;
    client.queued(&heavy).await;
    client.lower(&heavy, 1).await;
    client.comes_in(&heavy).await;
    client.leave(&inside).await;
    client.leave(&heavy).await;
}

async fn a_ticket_that_is_gone_cannot_be_changed(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (ticket, other) = (ctx.mutex(&name), ctx.mutex(&name));
    assert_eq!(client.store.change(&ticket.place, None, None).await.expect("change"), Presence::Gone);
    client.admitted(&ticket).await;
    client.leave(&ticket).await;
    client.admitted(&other).await;
    let change = client.store.change(&ticket.place, Some(1), Some(ticket.note.clone())).await;
    assert_eq!(change.expect("change"), Presence::Gone, "a late change");
    assert_eq!(client.inspect(&name).await.inside[0].weight, WHOLE, "the late change hit the next ticket");
    client.leave(&other).await;
    assert!(client.is_empty(&name).await);
}

async fn a_new_note_is_shown(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    let token = client.admitted(&ticket).await;
    let mut note = ticket.note.clone();
    note.reason = Some("the second half".into());
    let changed = client.store.change(&ticket.place, None, Some(note)).await.expect("change");
    assert_eq!(changed, Presence::There);
    let other = ctx.client().await;
    // Of several servers one may be a little behind the others.
    eventually("the new note is shown", || async {
        other.inspect(&name).await.inside[0].reason.as_deref() == Some("the second half")
    })
    .await;
    let seen = other.inspect(&name).await.inside.remove(0);
    assert_eq!(seen.weight, WHOLE);
    assert_eq!(seen.token, client.shown(token));
    client.leave(&ticket).await;
}

async fn an_upgrade_needs_to_be_alone(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (one, two, writer) = (ctx.reader(&name), ctx.reader(&name), ctx.writer(&name));
    client.admitted(&one).await;
    client.admitted(&two).await;
    assert!(matches!(upgrade(&client, &one).await.0, Upgraded::Held { .. }), "beside another reader");
    client.leave(&two).await;
    client.queued(&writer).await;
    let (answer, new) = upgrade(&client, &one).await;
    assert!(matches!(answer, Upgraded::Held { .. }), "before a waiting writer: {answer:?}");
    assert_eq!(client.leave(&new).await, Presence::Gone, "a refused upgrade leaves no ticket");
    assert!(client.is_inside(&one).await, "a refused upgrade changes nothing");
    assert_eq!(client.inspect(&name).await.inside[0].weight, 1);
    client.leave(&one).await;
    client.comes_in(&writer).await;
    client.leave(&writer).await;
}

async fn an_upgrade_takes_a_new_id_and_kills_the_old_one(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let old = ctx.reader(&name);
    let token = client.admitted(&old).await;
    let (answer, new) = upgrade(&client, &old).await;
    let Upgraded::Admitted { token: larger } = answer else { panic!("not upgraded: {answer:?}") };
    assert!(larger > token, "{larger} after {token}");
    client.full(&unqueued(ctx.reader(&name))).await;
    // Whatever comes late for the old id hits nothing.
    assert_eq!(client.lower(&old, 1).await, Presence::Gone, "a late change lowered the upgraded ticket");
    assert_eq!(client.renew(&old, ctx.long()).await, Renewed::Gone);
    assert_eq!(client.leave(&old).await, Presence::Gone);
    assert_eq!(client.wait(&old, Duration::ZERO).await, Waited::Gone);
    let line = client.inspect(&name).await;
    assert_eq!(
        (line.inside.len(), line.inside[0].token, line.inside[0].mode),
        (1, client.shown(larger), Mode::Exclusive)
    );
    assert_eq!(client.comes_in(&new).await, larger);
    assert!(matches!(client.renew(&new, ctx.long()).await, Renewed::There { .. }));
    assert_eq!(client.leave(&new).await, Presence::There);
    assert!(client.is_empty(&name).await);
}

async fn a_repeated_upgrade_is_the_same_ticket(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let old = ctx.reader(&name);
    client.admitted(&old).await;
    let (first, new) = upgrade(&client, &old).await;
    let again = client.store.upgrade(&old.place, new.place.id).await.expect("upgrade");
    assert_eq!(again, first, "the second answer describes what is there");
    let waiter = ctx.reader(&name);
    client.queued(&waiter).await;
    let again = client.store.upgrade(&old.place, new.place.id).await.expect("upgrade");
    assert_eq!(again, first, "also with others behind it");
    client.leave(&new).await;
    client.comes_in(&waiter).await;
    client.leave(&waiter).await;
}

async fn an_upgrade_of_a_ticket_that_is_gone(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.reader(&name);
    assert_eq!(upgrade(&client, &ticket).await.0, Upgraded::Gone);
    client.admitted(&ticket).await;
    client.leave(&ticket).await;
    assert_eq!(upgrade(&client, &ticket).await.0, Upgraded::Gone);
    assert!(client.is_empty(&name).await, "it was not put back");
}

async fn an_upgrade_inherits_the_expiry(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let old = leased(ctx.reader(&name), ctx.lease());
    client.admitted(&old).await;
    let (answer, _new) = upgrade(&client, &old).await;
    if !matches!(answer, Upgraded::Gone) {
        let line = client.inspect(&name).await;
        let left = line.inside.first().and_then(|seen| seen.expires_in).unwrap_or_default();
        assert!(left <= ctx.lease(), "{left:?} left of a lease of {:?}", ctx.lease());
    }
    crate::ctx::eventually("it lapses like the ticket that it replaced", || client.is_empty(&name)).await;
}

/// Others come and go while a reader upgrades: its new number must be larger than all that were in the line before.
async fn an_upgrade_races_arrivals(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.name("a"));
    let end = std::time::Instant::now() + Duration::from_millis(400) * ctx.rounds(1) as u32;
    let over = Arc::new(AtomicBool::new(false));
    let passers_by = tokio::spawn({
        let (ctx, other, name, over) = (ctx.clone(), other.clone(), name.clone(), over.clone());
        async move {
            let mut last = 0;
            while !over.load(Ordering::SeqCst) {
                let reader = unqueued(ctx.reader(&name));
                if let fencelock::store::Entered::Admitted { token, .. } = other.enter(&reader).await {
                    assert!(token > last, "token {token} after token {last}");
                    last = token;
                    other.leave(&reader).await;
                }
            }
        }
    });
    let mut upgrades = 0;
    // On a slow store or a busy machine for longer, until one has succeeded.
    let goes_on = |upgrades: u32| match std::time::Instant::now() {
        now if now < end => true,
        now => upgrades == 0 && now < end + SOON,
    };
    while goes_on(upgrades) {
        let reader = ctx.reader(&name);
        client.enter(&reader).await;
        let token = client.comes_in(&reader).await;
        match upgrade(&client, &reader).await {
            (Upgraded::Admitted { token: larger }, new) => {
                upgrades += 1;
                assert!(larger > token);
                assert!(client.is_inside(&new).await);
                assert_eq!(client.numbers(&name).await.0, [client.told(larger)], "it is alone inside");
                client.leave(&new).await;
            }
            (Upgraded::Held { .. }, _) => {
                client.leave(&reader).await;
            }
            (Upgraded::Gone, _) => panic!("nobody took it out"),
        }
    }
    over.store(true, Ordering::SeqCst);
    passers_by.await.expect("the passers-by saw nothing wrong");
    assert!(upgrades > 0);
    assert!(client.is_empty(&name).await);
}

async fn expelling_puts_out_that_one_only(ctx: Arc<Ctx>) {
    let (client, name, other) = (ctx.client().await, ctx.name("a"), ctx.name("b"));
    let (ticket, next, mut elsewhere) = (ctx.mutex(&name), ctx.mutex(&name), ctx.mutex(&other));
    let token = client.admitted(&ticket).await;
    // Two lines may count alike, but one of them does not stand still.
    while client.admitted(&elsewhere).await == token {
        client.leave(&elsewhere).await;
        elsewhere = ctx.mutex(&other);
    }
    client.queued(&next).await;
    let stranger = ctx.client().await;
    assert_eq!(stranger.store.expel(&name, token + 1_000_000).await.expect("expel"), Presence::Gone);
    assert_eq!(stranger.store.expel(&other, token).await.expect("expel"), Presence::Gone, "of another line");
    assert!(client.is_inside(&ticket).await);
    assert_eq!(stranger.store.expel(&name, token).await.expect("expel"), Presence::There);
    client.comes_in(&next).await;
    assert_eq!(client.wait(&ticket, Duration::ZERO).await, Waited::Gone);
    assert_eq!(stranger.store.expel(&name, token).await.expect("expel"), Presence::Gone, "a second time");
    assert!(client.is_inside(&next).await);
    client.leave(&next).await;
    client.leave(&elsewhere).await;
}

async fn expelling_a_waiter(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    let number = client.numbers(&name).await.1[0];
    assert_eq!(client.store.expel(&name, number).await.expect("expel"), Presence::There);
    assert_eq!(client.wait(&waiter, crate::ctx::SOON).await, Waited::Gone);
    assert!(client.is_inside(&holder).await);
    client.leave(&holder).await;
}

async fn whoever_was_expelled_cannot_come_back(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    let token = client.admitted(&ticket).await;
    client.store.expel(&name, token).await.expect("expel");
    assert_eq!(client.renew(&ticket, ctx.long()).await, Renewed::Gone);
    assert_eq!(client.leave(&ticket).await, Presence::Gone);
    assert!(client.is_empty(&name).await);
}

/// A store that does not claim something says so when it is asked for it, instead of doing something else.
async fn what_is_not_claimed_is_unsupported(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let capability = client.store.capability();
    let ticket = ctx.mutex(&name);
    let token = client.admitted(&ticket).await;
    if !capability.upgrade {
        let error = client.store.upgrade(&ticket.place, TicketId::new()).await.expect_err("not claimed");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    if !capability.expel {
        let error = client.store.expel(&name, token).await.expect_err("not claimed");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    if !capability.settable_token {
        let renew = Renew { place: ticket.place.clone(), lease: ctx.long(), at_least: Some(token + 1) };
        let error = client.store.renew(&[renew]).await.expect_err("not claimed");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let refused = match capability.weights {
        Weights::Any => Vec::new(),
        Weights::ReadWrite => vec![ctx.permits(&ctx.name("b"), 1, 3)],
        Weights::Whole => vec![ctx.permits(&ctx.name("b"), 1, 3), ctx.reader(&ctx.name("b"))],
    };
    for other in refused {
        let error = client.store.enter(&[other]).await.expect_err("not claimed");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    if capability.weights == Weights::Whole {
        let error = client.store.change(&ticket.place, Some(1), None).await.expect_err("not claimed");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    if capability.queue == Queue::Absent {
        client.full(&ctx.mutex(&name)).await;
    }
    assert!(client.is_inside(&ticket).await, "none of this has touched the ticket");
    client.leave(&ticket).await;
}
