//! Entering, renewing and leaving: idempotent, strict, and never about another ticket than the one named.

use crate::ctx::{Ctx, leased, poll_times, unqueued};
use crate::suite::tests;
use fencelock::ErrorKind;
use fencelock::store::{Entered, Lifetime, Presence, Queue, Renewed, TicketId, Waited};
use std::sync::Arc;
use std::time::Duration;

tests!("enter":
    a_repeated_enter_is_the_same_ticket,
    a_repeated_enter_of_a_waiter_keeps_its_place [Queue],
    a_repeated_enter_refreshes_the_expiry [OwnLease],
    a_shorter_enter_or_renew_never_lowers_the_expiry [OwnLease],
    a_renewal_never_brings_back_a_ticket,
    only_the_own_id_leaves [Queue],
    leaving_twice_is_no_harm,
    leaving_as_a_waiter [Queue],
    an_id_is_of_one_line_only,
    weights_that_do_not_fit_are_refused,
    a_mismatch_says_both_numbers [Permits],
    the_number_is_forgotten_with_the_last_ticket [Permits],
    a_cancelled_call_leaves_the_client_usable,
    calls_from_several_runtimes [Queue],
    calls_from_no_runtime_at_all [NoRuntime],
);

async fn a_repeated_enter_is_the_same_ticket(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    let first = client.admitted(&ticket).await;
    for again in [ticket.clone(), unqueued(ticket.clone())] {
        assert_eq!(client.admitted(&again).await, first, "the same id has the same number");
    }
    let capability = client.store.capability();
    if capability.lifetime == Lifetime::Ticket && capability.queue != Queue::Absent {
        assert_eq!(ctx.client().await.admitted(&ticket).await, first, "another client with the same id");
    }
    assert_eq!(client.numbers(&name).await, (vec![client.told(first)], vec![]), "one ticket");
    assert_eq!(client.leave(&ticket).await, Presence::There);
    assert!(client.is_empty(&name).await);
}

async fn a_repeated_enter_of_a_waiter_keeps_its_place(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let [holder, first, second] = [0; 3].map(|_| ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&first).await;
    client.queued(&second).await;
    client.queued(&first).await;
    client.queued(&unqueued(first.clone())).await;
    let (inside, waiting) = client.numbers(&name).await;
    assert_eq!((inside.len(), waiting.len()), (1, 2), "no ticket was added");
    client.leave(&holder).await;
    let number = client.comes_in(&first).await;
    assert_eq!(client.admitted(&first).await, number, "entering again while inside");
    assert!(!client.is_inside(&second).await, "the place was kept");
    client.leave(&first).await;
    client.leave(&second).await;
}

async fn a_repeated_enter_refreshes_the_expiry(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = leased(ctx.mutex(&name), ctx.lease() * 2);
    let token = client.admitted(&ticket).await;
    // Over three leases, at half a lease each: without the refresh it would have lapsed in between.
    for _ in 0..6 {
        let next = client.clock().now().after(ctx.lease());
        client.clock().sleep_until(next).await;
        let sent = client.clock().now();
        let Entered::Admitted { token: again, lease } = client.enter(&ticket).await else { panic!("not inside") };
        if client.clock().now().since(sent) < ctx.lease() / 2 {
            assert_eq!(again, token, "it lapsed although it was entered again in time");
        }
        assert!(lease >= ticket.lease, "{lease:?} were granted, {:?} asked for", ticket.lease);
    }
    client.leave(&ticket).await;
}

async fn a_shorter_enter_or_renew_never_lowers_the_expiry(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    let token = client.admitted(&ticket).await;
    let short = ctx.lease();
    let Entered::Admitted { lease, .. } = client.enter(&leased(ticket.clone(), short)).await else {
        panic!("not inside")
    };
    assert!(lease > ctx.long() / 2, "a shorter enter lowered the lease to {lease:?}");
    let Renewed::There { lease } = client.renew(&ticket, short).await else { panic!("gone") };
    assert!(lease > ctx.long() / 2, "a shorter renewal lowered the lease to {lease:?}");
    client.sleep_past(client.clock().now().after(short * 2)).await;
    assert_eq!(client.numbers(&name).await.0, [client.told(token)], "it lapsed by the shorter lease");
    client.leave(&ticket).await;
}

async fn a_renewal_never_brings_back_a_ticket(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    assert_eq!(client.renew(&ticket, ctx.long()).await, Renewed::Gone, "never entered");
    assert!(client.is_empty(&name).await);
    client.admitted(&ticket).await;
    client.leave(&ticket).await;
    assert_eq!(client.renew(&ticket, ctx.long()).await, Renewed::Gone, "left");
    assert!(client.is_empty(&name).await);
    let other = ctx.mutex(&name);
    client.admitted(&other).await;
    assert_eq!(client.renew(&ticket, ctx.long()).await, Renewed::Gone, "left, and another is there");
    client.leave(&other).await;
    assert!(client.is_empty(&name).await);
}

async fn only_the_own_id_leaves(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    let token = client.admitted(&ticket).await;
    let mut stranger = ticket.clone();
    stranger.place.id = TicketId::new();
    assert_eq!(ctx.client().await.leave(&stranger).await, Presence::Gone);
    assert_eq!(client.numbers(&name).await.0, [client.told(token)], "somebody else's leave took it out");
    let waiter = ctx.mutex(&name);
    client.queued(&waiter).await;
    assert_eq!(client.leave(&ticket).await, Presence::There);
    assert_eq!(client.leave(&ticket).await, Presence::Gone, "a late leave");
    // Where others are let in between, its turn may come a moment later. The late leave does not touch it.
    client.comes_in(&waiter).await;
    assert_eq!(client.leave(&waiter).await, Presence::There, "the late leave did not touch the next one");
}

async fn leaving_twice_is_no_harm(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let ticket = ctx.mutex(&name);
    client.admitted(&ticket).await;
    assert_eq!(client.leave(&ticket).await, Presence::There);
    for _ in 0..3 {
        assert_eq!(client.leave(&ticket).await, Presence::Gone);
    }
    assert_eq!(client.store.leave(&[]).await.expect("an empty leave"), []);
}

async fn leaving_as_a_waiter(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let [holder, gives_up, stays] = [0; 3].map(|_| ctx.mutex(&name));
    client.admitted(&holder).await;
    client.queued(&gives_up).await;
    client.queued(&stays).await;
    assert_eq!(client.leave(&gives_up).await, Presence::There);
    assert!(!client.is_inside(&stays).await, "the holder is still inside");
    client.leave(&holder).await;
    client.comes_in(&stays).await;
    client.leave(&stays).await;
    assert!(client.is_empty(&name).await);
}

async fn an_id_is_of_one_line_only(ctx: Arc<Ctx>) {
    let (client, a, b) = (ctx.client().await, ctx.name("a"), ctx.name("b"));
    let (in_a, mut in_b) = (ctx.mutex(&a), ctx.mutex(&b));
    in_b.place.id = in_a.place.id;
    client.admitted(&in_a).await;
    assert_eq!(client.leave(&in_b).await, Presence::Gone);
    assert_eq!(client.renew(&in_b, ctx.long()).await, Renewed::Gone);
    assert!(client.is_inside(&in_a).await);
    client.leave(&in_a).await;
}

async fn weights_that_do_not_fit_are_refused(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    for (weight, capacity) in [(0, 5), (6, 5), (1, 0), (fencelock::line::WHOLE + 1, fencelock::line::WHOLE + 1)] {
        let ticket = ctx.permits(&name, weight, capacity);
        let error = client.store.enter(&[ticket]).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{weight} of {capacity}: {error}");
    }
    assert!(client.is_empty(&name).await);
}

async fn a_mismatch_says_both_numbers(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let three = ctx.permits(&name, 1, 3);
    client.admitted(&three).await;
    for other in [ctx.permits(&name, 1, 5), unqueued(ctx.permits(&name, 1, 5))] {
        let error = client.store.enter(&[other]).await.expect_err("a semaphore of another size");
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        let text = error.to_string();
        assert!(text.contains('3') && text.contains('5'), "both numbers: {text}");
    }
    let error = client.store.enter(&[ctx.mutex(&name)]).await.expect_err("a mutex of the same name");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(client.is_inside(&three).await, "nothing happened to who was there");
    assert_eq!(client.numbers(&name).await.1, Vec::<u64>::new(), "nobody was queued by a mismatch");
    client.leave(&three).await;
}

async fn the_number_is_forgotten_with_the_last_ticket(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (one, two) = (ctx.permits(&name, 1, 3), ctx.permits(&name, 1, 3));
    client.admitted(&one).await;
    client.admitted(&two).await;
    client.leave(&one).await;
    client.store.enter(&[ctx.permits(&name, 1, 5)]).await.expect_err("still a semaphore of 3");
    client.leave(&two).await;
    let five = ctx.permits(&name, 5, 5);
    client.admitted(&five).await;
    client.leave(&five).await;
    let mutex = ctx.mutex(&name);
    client.admitted(&mutex).await;
    client.leave(&mutex).await;
}

/// Each verb is polled a few times and dropped; whatever it did, the client goes on working and nothing is left that its own
/// id cannot take out.
async fn a_cancelled_call_leaves_the_client_usable(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, ticket) = (ctx.mutex(&name), ctx.mutex(&name));
    client.admitted(&holder).await;
    for k in 1..6 {
        drop(poll_times(client.store.enter(std::slice::from_ref(&ticket)), k).await);
        drop(poll_times(client.store.renew(&[]), k).await);
        drop(poll_times(client.store.inspect(&name), k).await);
        let until = client.clock().now().after(Duration::from_millis(20));
        drop(poll_times(client.store.wait(&ticket.place, until), k).await);
        drop(poll_times(client.store.list(ctx.folder(), None, 10), k).await);
        drop(poll_times(client.store.change(&ticket.place, None, None), k).await);
        drop(poll_times(client.store.leave(std::slice::from_ref(&ticket.place)), k).await);
        // An enter that was dropped may yet be carried out: it is left until it is gone for good.
        crate::ctx::eventually("a cancelled enter can be taken back", || async {
            client.leave(&ticket).await;
            client.numbers(&name).await.1.is_empty()
        })
        .await;
        assert!(client.is_inside(&holder).await, "the client still works");
    }
    client.leave(&ticket).await;
    client.leave(&holder).await;
    let next = ctx.mutex(&name);
    crate::ctx::eventually("the line is free", || async {
        client.leave(&ticket).await;
        matches!(client.enter(&next).await, Entered::Admitted { .. })
    })
    .await;
    client.leave(&next).await;
}

async fn calls_from_no_runtime_at_all(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let thread = std::thread::spawn(move || {
        block_on(async {
            let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
            client.admitted(&holder).await;
            client.queued(&waiter).await;
            assert_eq!(client.wait(&waiter, Duration::from_millis(20)).await, Waited::Waiting);
            client.leave(&holder).await;
            client.comes_in(&waiter).await;
            client.leave(&waiter).await;
            let guard = client.locks.mutex(&ctx.text("a")).lock_within(ctx.long()).await.expect("free");
            guard.release().await.expect("release");
            assert!(client.is_empty(&name).await);
        });
    });
    tokio::task::spawn_blocking(move || thread.join()).await.expect("joined").expect("no panic");
}

/// Runs a future on this thread, with nothing but a parked thread to wake.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::park();
    }
}

async fn calls_from_several_runtimes(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let (client, ctx, name) = (client.clone(), ctx.clone(), name.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    let mut numbers = Vec::new();
                    for _ in 0..5 {
                        let ticket = ctx.mutex(&name);
                        client.enter(&ticket).await;
                        numbers.push(client.comes_in(&ticket).await);
                        assert_eq!(client.leave(&ticket).await, Presence::There, "thread {i}");
                    }
                    numbers
                })
            })
        })
        .collect();
    // Joined elsewhere, so that this runtime stays free.
    let joined =
        tokio::task::spawn_blocking(move || threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>());
    let numbers: Vec<Vec<u64>> = joined.await.expect("joined").into_iter().map(|n| n.expect("no panic")).collect();
    assert!(numbers.iter().all(|numbers| numbers.len() == 5));
    assert!(client.is_empty(&name).await);
}
