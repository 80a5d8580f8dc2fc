//! Several tickets in one call: all or none.

use crate::ctx::{Ctx, unqueued};
use crate::suite::tests;
use fencelock::ErrorKind;
use fencelock::store::{Enter, Entered, Place, Presence, Renew, Renewed};
use std::sync::Arc;

tests!("batches":
    a_batch_gets_in_as_one [Batch],
    if_one_finds_no_room_none_is_in_its_line [Batch],
    if_one_fails_none_is_in_its_line [Batch Permits],
    a_batch_of_the_declared_size [Batch],
    answers_are_in_the_order_of_the_batch [Batch Queue],
    the_same_name_twice_is_refused,
    a_batch_that_is_too_large_is_refused,
    many_are_renewed_and_left_in_one_call,
);

fn batch(ctx: &Ctx, size: usize) -> Vec<Enter> {
    (0..size).map(|i| ctx.mutex(&ctx.name(&format!("n{i}")))).collect()
}

fn size(capability: usize) -> usize {
    capability.min(8)
}

async fn a_batch_gets_in_as_one(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let batch = batch(&ctx, size(client.store.capability().atomic_batch));
    let answers = client.store.enter(&batch).await.expect("enter");
    assert!(answers.iter().all(|answer| matches!(answer, Entered::Admitted { .. })), "{answers:?}");
    let again = client.store.enter(&batch).await.expect("enter");
    let number = |answer: &Entered| if let Entered::Admitted { token, .. } = answer { *token } else { 0 };
    assert!(answers.iter().map(number).eq(again.iter().map(number)), "idempotent: {answers:?} {again:?}");
    for ticket in &batch {
        assert_eq!(client.leave(ticket).await, Presence::There);
    }
}

async fn if_one_finds_no_room_none_is_in_its_line(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let batch: Vec<Enter> =
        batch(&ctx, size(client.store.capability().atomic_batch)).into_iter().map(unqueued).collect();
    let last = ctx.mutex(&batch[batch.len() - 1].place.name);
    other.admitted(&last).await;
    let answers = client.store.enter(&batch).await.expect("enter");
    assert_eq!(answers.len(), batch.len());
    for (i, answer) in answers.iter().enumerate() {
        match answer {
            Entered::Full { holder } => assert!(i == batch.len() - 1 || holder.is_none(), "{i}: nobody to name"),
            inside => panic!("{i}: {inside:?} although another was full"),
        }
    }
    for ticket in &batch[..batch.len() - 1] {
        assert!(client.is_empty(&ticket.place.name).await, "half of a batch is in its line");
    }
    other.leave(&last).await;
}

async fn if_one_fails_none_is_in_its_line(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let batch = batch(&ctx, size(client.store.capability().atomic_batch));
    let last = &batch[batch.len() - 1].place.name;
    let semaphore = ctx.permits(last, 1, 3);
    client.admitted(&semaphore).await;
    let error = client.store.enter(&batch).await.expect_err("the last one is a semaphore");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    for ticket in &batch[..batch.len() - 1] {
        assert!(client.is_empty(&ticket.place.name).await, "half of a batch is in its line");
    }
    client.leave(&semaphore).await;
}

async fn a_batch_of_the_declared_size(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let batch = batch(&ctx, client.store.capability().atomic_batch.min(2000));
    let answers = client.store.enter(&batch).await.expect("enter");
    assert!(answers.iter().all(|answer| matches!(answer, Entered::Admitted { .. })));
    let places: Vec<Place> = batch.iter().map(|ticket| ticket.place.clone()).collect();
    let left = client.store.leave(&places).await.expect("leave");
    assert!(left.len() == batch.len() && left.iter().all(|presence| *presence == Presence::There));
}

async fn answers_are_in_the_order_of_the_batch(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let mut batch = batch(&ctx, size(client.store.capability().atomic_batch));
    batch.reverse();
    let holder = ctx.mutex(&batch[0].place.name);
    client.admitted(&holder).await;
    let answers = client.store.enter(&batch).await.expect("enter");
    assert!(matches!(answers[0], Entered::Queued { .. }), "{answers:?}");
    assert!(answers[1..].iter().all(|answer| matches!(answer, Entered::Admitted { .. })), "{answers:?}");
    client.leave(&holder).await;
    client.comes_in(&batch[0]).await;
    for ticket in &batch {
        client.leave(ticket).await;
    }
}

async fn the_same_name_twice_is_refused(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let error = client.store.enter(&[ctx.mutex(&name), ctx.mutex(&name)]).await.expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(client.is_empty(&name).await);
}

async fn a_batch_that_is_too_large_is_refused(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let most = client.store.capability().atomic_batch;
    if most > 100_000 {
        return; // nobody asks for that many
    }
    let error = client.store.enter(&batch(&ctx, most + 1)).await.expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(client.is_empty(&ctx.name("n0")).await);
}

async fn many_are_renewed_and_left_in_one_call(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let tickets = batch(&ctx, 50);
    for ticket in &tickets {
        client.admitted(ticket).await;
    }
    // Every third is gone, one is there twice.
    for ticket in tickets.iter().step_by(3) {
        client.leave(ticket).await;
    }
    let places: Vec<Place> = tickets.iter().chain([&tickets[1]]).map(|ticket| ticket.place.clone()).collect();
    let renews: Vec<Renew> =
        places.iter().map(|place| Renew { place: place.clone(), lease: ctx.long(), at_least: None }).collect();
    let renewed = client.store.renew(&renews).await.expect("renew");
    assert_eq!(renewed.len(), renews.len());
    for (i, renewed) in renewed.iter().enumerate() {
        assert_eq!(*renewed == Renewed::Gone, i < 50 && i % 3 == 0, "{i}: {renewed:?}");
    }
    let left = client.store.leave(&places).await.expect("leave");
    for (i, left) in left.iter().enumerate() {
        assert_eq!(*left == Presence::Gone, i % 3 == 0 || i == 50, "{i}: {left:?}");
    }
}
