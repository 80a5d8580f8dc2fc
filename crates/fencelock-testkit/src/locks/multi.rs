//! Several locks at once: all or none, one order, one limit, and nothing left when it is given up half-way.

use crate::ctx::{Client, Ctx, SOON, eventually, poll_times, soon};
use crate::suite::tests;
use crate::wrap::faulty::{Fault, Valve, Verb};
use fencelock::store::Queue;
use fencelock::{ErrorKind, Locks, MultiLock, Options, Part, Released, State};
use futures_util::future::{Either, select};
use std::sync::Arc;
use std::time::{Duration, Instant};

tests!("multi":
    a_token_for_each_name_in_the_order_given,
    one_call_where_one_call_can_do_it [Batch],
    one_call_of_an_owner_too [Batch],
    kinds_may_be_mixed [Readers],
    permits_among_them [Permits],
    a_try_that_finds_the_third_of_five_held_leaves_nothing,
    a_wait_for_one_holds_the_earlier_and_not_the_later [Fair],
    one_limit_for_all,
    if_one_is_a_semaphore_nothing_is_left [OnePermit],
    lost_when_any_is_lost [Expel],
    an_earlier_one_lost_meanwhile_is_taken_anew [Expel Fair],
    a_fixed_lease_begins_when_all_are_there [OwnLease],
    a_lost_reply_is_asked_for_again,
    calls_that_fail_half_way_leave_nothing,
    a_batch_that_is_carried_out_late_is_taken_back [OwnLease],
    cancelled_at_every_await,
    cancelled_at_every_await_while_one_is_held,
    beside_the_queue,
    an_owner_gets_what_it_has_once_more,
    what_makes_no_sense_is_refused,
    in_any_order_nobody_waits_for_ever,
);

const FIVE: [&str; 5] = ["a", "b", "c", "d", "e"];

/// These names of this test, below a folder of their own.
fn all(ctx: &Ctx, locks: &Locks, folder: &str, names: &[&str]) -> MultiLock {
    locks.all(names.iter().map(|name| ctx.text(&format!("{folder}/{name}"))))
}

async fn nothing_is_left(ctx: &Ctx, client: &Client, folder: &str) {
    let prefix = format!("{}/", ctx.text(folder));
    eventually(&format!("nothing is left of {folder}"), || async {
        client.locks.list(&prefix).await.expect("list").is_empty()
    })
    .await;
}

async fn a_token_for_each_name_in_the_order_given(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let guard = all(&ctx, &client.locks, "x", &["c", "a", "b"]).lock().await.expect("free");
    let names: Vec<String> = ["c", "a", "b"].map(|name| ctx.text(&format!("x/{name}"))).into();
    assert_eq!(guard.names(), names);
    for (name, token) in names.iter().zip(guard.tokens()) {
        let seen = client.locks.inspect(name).await.expect("inspect").inside;
        assert_eq!(seen.len(), 1);
        assert!(seen[0].token.is_none_or(|number| number == token.number()), "{seen:?}");
        assert_eq!(guard.token(name), Some(token));
        assert_eq!(client.locks.mutex(name).try_lock().await.expect_err("held").kind(), ErrorKind::Held);
    }
    assert_eq!((guard.token("x"), guard.state()), (None, State::Safe));
    assert!(guard.remaining() > Duration::from_secs(1));
    assert_eq!(guard.run(async { 7 }).await.expect("held"), 7);
    assert_eq!(guard.release().await.expect("release"), Released::Held);
    nothing_is_left(&ctx, &client, "x").await;
}

async fn one_call_where_one_call_can_do_it(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let most = client.store.capability().atomic_batch.min(10);
    let names: Vec<String> = (0..most).map(|i| ctx.text(&format!("x/{i}"))).collect();
    faulty.reset_counts();
    let guard = client.locks.all(&names).lock().await.expect("free");
    assert_eq!((faulty.calls(Verb::Enter), faulty.tickets(Verb::Enter)), (1, most));
    assert_eq!(guard.release().await.expect("release"), Released::Held);
    assert_eq!((faulty.calls(Verb::Leave), faulty.tickets(Verb::Leave)), (1, most));
    assert_eq!(faulty.calls(Verb::Wait) + faulty.calls(Verb::Renew) + faulty.calls(Verb::Inspect), 0);
}

async fn one_call_of_an_owner_too(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let owner = client.locks.owner();
    let most = client.store.capability().atomic_batch.min(10);
    let names: Vec<String> = (0..most).map(|i| ctx.text(&format!("x/{i}"))).collect();
    faulty.reset_counts();
    let guard = client.locks.all(&names).lock_as(&owner).await.expect("free");
    assert_eq!((faulty.calls(Verb::Enter), faulty.tickets(Verb::Enter)), (1, most));
    let again = client.locks.mutex(&names[1]).lock_as(&owner).await.expect("its own");
    assert_eq!(again.token(), guard.tokens()[1]);
    let all_again = client.locks.all(&names).lock_as(&owner).await.expect("its own");
    assert_eq!(all_again.tokens(), guard.tokens());
    assert_eq!(faulty.calls(Verb::Enter), 1, "what it has it gets without a call");
    all_again.release().await.expect("release");
    assert_eq!(guard.release().await.expect("release"), Released::Held);
    assert_eq!((faulty.calls(Verb::Leave), faulty.tickets(Verb::Leave)), (1, most - 1));
    again.release().await.expect("release");
    // With somebody in the way: all or none, and nothing is left.
    let other = ctx.client().await;
    let holder = other.locks.mutex(&names[1]).lock().await.expect("free");
    let refused = client.locks.all(&names).lock_as_with(&owner, Options::new().wait(Duration::ZERO)).await;
    assert_eq!(refused.expect_err("one is held").kind(), ErrorKind::Held);
    let (multi, mine) = (client.locks.all(&names), owner.clone());
    let waiting = tokio::spawn(async move { multi.lock_as(&mine).await });
    eventually("it has the first and waits for the second", || async {
        other.inspect(&ctx.name("x/0")).await.inside.len() == 1
    })
    .await;
    holder.release().await.expect("release");
    let guard = soon("its turn", waiting).await.expect("no panic").expect("free");
    guard.release().await.expect("release");
    // Dropped at its first await: nothing is left.
    let multi = client.locks.all(&names);
    assert!(poll_times(multi.lock_as(&owner), 1).await.is_none_or(|guard| guard.is_ok()));
    soon("close", client.locks.close()).await;
    nothing_is_left(&ctx, &client, "x").await;
}

async fn kinds_may_be_mixed(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let (a, b) = (ctx.text("a"), ctx.text("b"));
    let guard = client.locks.all([Part::write(&b), Part::read(&a)]).lock().await.expect("free");
    let modes: Vec<&str> = guard.tokens().iter().map(|token| token.mode().as_str()).collect();
    assert_eq!(modes, ["exclusive", "shared"]);
    other.locks.rwlock(&a).try_read().await.expect("beside a reader").release().await.expect("release");
    assert!(other.locks.rwlock(&a).try_write().await.is_err());
    assert!(other.locks.rwlock(&b).try_read().await.is_err());
    guard.release().await.expect("release");
}

async fn permits_among_them(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let (lock, permits) = (ctx.text("a"), ctx.text("s"));
    let guard = client.locks.all([Part::permits(&permits, 2, 3), Part::lock(&lock)]).lock().await.expect("free");
    assert_eq!((guard.tokens().len(), guard.numbers().len()), (1, 2), "permits are no fence");
    assert_eq!(guard.token(&permits), None);
    assert!(client.locks.semaphore(&permits, 3).try_acquire_many(2).await.is_err());
    client.locks.semaphore(&permits, 3).try_acquire().await.expect("one is left").release().await.expect("release");
    guard.release().await.expect("release");
}

async fn a_try_that_finds_the_third_of_five_held_leaves_nothing(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let holder = other.locks.mutex(&ctx.text("x/c")).lock().await.expect("free");
    let refused = all(&ctx, &client.locks, "x", &FIVE).try_lock().await.expect_err("the third is held");
    assert_eq!(refused.kind(), ErrorKind::Held);
    if let Some(seen) = refused.holder() {
        assert_eq!(refused.name(), Some(&*ctx.text("x/c")));
        assert!(seen.token.is_none_or(|number| number == holder.token().number()));
    }
    soon("close", client.locks.close()).await;
    let left = client.locks.list(&format!("{}/", ctx.text("x"))).await.expect("list");
    assert_eq!(left.len(), 1, "{left:?}");
    holder.release().await.expect("release");
    let guard = all(&ctx, &client.locks, "x", &FIVE).try_lock().await.expect("free");
    guard.release().await.expect("release");
    nothing_is_left(&ctx, &client, "x").await;
}

async fn a_wait_for_one_holds_the_earlier_and_not_the_later(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let holder = other.locks.mutex(&ctx.text("x/c")).lock().await.expect("free");
    let multi = all(&ctx, &client.locks, "x", &["e", "d", "c", "b", "a"]);
    let waiting = tokio::spawn(async move { multi.lock_within(SOON).await });
    let names = FIVE.map(|name| ctx.name(&format!("x/{name}")));
    eventually("it waits for the third", || async { other.inspect(&names[2]).await.waiting.len() == 1 }).await;
    for (i, inside) in [(0, 1), (1, 1), (3, 0), (4, 0)] {
        assert_eq!(other.inspect(&names[i]).await.inside.len(), inside, "{i}: what comes later is not taken yet");
    }
    holder.release().await.expect("release");
    let guard = soon("its turn", waiting).await.expect("no panic").expect("free");
    assert_eq!(guard.tokens().len(), 5);
    guard.release().await.expect("release");
    nothing_is_left(&ctx, &client, "x").await;
}

async fn one_limit_for_all(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let holder = other.locks.all([ctx.text("x/b"), ctx.text("x/d")]).lock().await.expect("free");
    // The first call of a client takes longer.
    client.locks.mutex(&ctx.text("warm")).lock().await.expect("free").release().await.expect("release");
    let wait = Duration::from_secs(1);
    eventually("the error says who has it (unless the store was too busy to be asked)", || async {
        let started = Instant::now();
        let refused = all(&ctx, &client.locks, "x", &FIVE).lock_within(wait).await;
        let refused = refused.expect_err("two are held");
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
        assert_eq!(refused.name(), Some(&*ctx.text("x/b")), "the one that was waited for");
        assert!(started.elapsed() >= wait && started.elapsed() < SOON + wait);
        let Some(seen) = refused.holder() else { return false };
        assert!(seen.token.is_none_or(|number| number == holder.tokens()[0].number()), "{refused}");
        true
    })
    .await;
    soon("close", client.locks.close()).await;
    eventually("only what the other holds is left", || async {
        client.locks.list(&format!("{}/", ctx.text("x"))).await.expect("list").len() == 2
    })
    .await;
}

async fn if_one_is_a_semaphore_nothing_is_left(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let permit = other.locks.semaphore(&ctx.text("x/c"), 1).acquire().await.expect("free");
    let refused = all(&ctx, &client.locks, "x", &FIVE).lock().await.expect_err("the third is no lock");
    assert_eq!((refused.kind(), refused.name()), (ErrorKind::Mismatch, Some(&*ctx.text("x/c"))));
    soon("close", client.locks.close()).await;
    eventually("only the semaphore is left", || async {
        client.locks.list(&format!("{}/", ctx.text("x"))).await.expect("list").len() == 1
    })
    .await;
    permit.release().await.expect("release");
}

async fn lost_when_any_is_lost(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let multi = all(&ctx, &client.locks, "x", &FIVE);
    let guard = multi.lock_with(Options::new().lease(ctx.lease())).await.expect("free");
    let token = guard.tokens()[3].clone();
    assert!(other.locks.break_ticket(&ctx.text("x/d"), token).await.expect("expel"));
    let lost = soon("it is told", guard.run(std::future::pending::<()>())).await.expect_err("lost");
    assert_eq!((lost.kind(), lost.name()), (ErrorKind::Lost, Some(&*ctx.text("x/d"))));
    soon("lost", guard.lost()).await;
    assert_eq!((guard.state(), guard.remaining()), (State::Lost, Duration::ZERO));
    assert_eq!(guard.release().await.expect("release"), Released::AlreadyGone);
    nothing_is_left(&ctx, &client, "x").await;
}

async fn an_earlier_one_lost_meanwhile_is_taken_anew(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let holder = other.locks.mutex(&ctx.text("x/b")).lock().await.expect("free");
    let multi = all(&ctx, &client.locks, "x", &["a", "b"]);
    let lease = ctx.lease();
    let waiting = tokio::spawn(async move { multi.lock_with(Options::new().lease(lease).wait(SOON * 3)).await });
    let (a, b) = (ctx.name("x/a"), ctx.name("x/b"));
    eventually("it waits for the second", || async { other.inspect(&b).await.waiting.len() == 1 }).await;
    let first = other.numbers(&a).await.0[0];
    other.locks.break_ticket(&ctx.text("x/a"), first).await.expect("expel");
    // It must not come back with a guard on what it has lost.
    eventually("it has taken the first anew", || async {
        other.numbers(&a).await.0.first().is_some_and(|number| *number != first)
    })
    .await;
    holder.release().await.expect("release");
    let guard = waiting.await.expect("no panic").expect("free");
    assert_eq!(guard.state(), State::Safe);
    assert_ne!(guard.tokens()[0].number(), first);
    guard.release().await.expect("release");
    nothing_is_left(&ctx, &client, "x").await;
}

async fn a_fixed_lease_begins_when_all_are_there(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let fixed = ctx.lease() * 2;
    let holder = other.locks.mutex(&ctx.text("x/b")).lock().await.expect("free");
    let multi = all(&ctx, &client.locks, "x", &["a", "b"]);
    let waiting = tokio::spawn(async move { multi.lock_with(Options::new().fixed_lease(fixed)).await });
    let (a, b) = (ctx.name("x/a"), ctx.name("x/b"));
    let waits = || async { other.inspect(&a).await.inside.len() + other.inspect(&b).await.waiting.len() > 0 };
    eventually("it has begun", waits).await;
    // For as long as the lease would have lasted.
    tokio::time::sleep(fixed * 3 / 2).await;
    let released = Instant::now();
    holder.release().await.expect("release");
    let guard = soon("its turn", waiting).await.expect("no panic").expect("free");
    soon("its end", guard.lost()).await;
    assert!(released.elapsed() >= fixed / 2, "the fixed lease began before all were there");
    drop(guard);
    nothing_is_left(&ctx, &client, "x").await;
}

async fn a_lost_reply_is_asked_for_again(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    faulty.next(Verb::Enter, [Fault::LoseReply, Fault::Drop]);
    faulty.next(Verb::Leave, [Fault::LoseReply]);
    let guard = all(&ctx, &client.locks, "x", &FIVE).lock_within(SOON).await.expect("its own tickets are no obstacle");
    assert_eq!(guard.state(), State::Safe);
    assert_eq!(guard.release().await.expect("release"), Released::Held);
    nothing_is_left(&ctx, &client, "x").await;
}

/// The second, third, ... call fails for good, with and without effect.
async fn calls_that_fail_half_way_leave_nothing(ctx: Arc<Ctx>) {
    let other = ctx.client().await;
    for (i, fault) in [Fault::Fail, Fault::Drop, Fault::LoseReply].into_iter().enumerate() {
        for after in 0..3 {
            let (client, faulty) = ctx.faulty().await;
            let folder = format!("x{i}.{after}");
            // Somebody in the way, so that it goes name by name.
            let holder = other.locks.mutex(&ctx.text(&format!("{folder}/a"))).lock().await.expect("free");
            let multi = all(&ctx, &client.locks, &folder, &FIVE);
            // Half of it is how long a call that fails is tried again.
            let lease = ctx.lease().max(Duration::from_secs(1));
            let waiting = tokio::spawn(async move { multi.lock_with(Options::new().lease(lease)).await });
            let a = ctx.name(&format!("{folder}/a"));
            eventually("it waits, or a machine with too much to do kept it from it", || async {
                let beside = client.store.capability().queue == Queue::Absent && faulty.calls(Verb::Enter) > 1;
                beside || waiting.is_finished() || other.inspect(&a).await.waiting.len() == 1
            })
            .await;
            faulty.next(Verb::Enter, vec![Fault::None; after]);
            faulty.always(Verb::Enter, fault.clone());
            holder.release().await.expect("release");
            match soon("it gives up or gets in", waiting).await.expect("no panic") {
                Ok(guard) => drop(guard), // all the rest in the calls before the first that failed
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
            }
            faulty.heal();
            soon("close", client.locks.close()).await;
            nothing_is_left(&ctx, &other, &folder).await;
        }
    }
}

async fn a_batch_that_is_carried_out_late_is_taken_back(ctx: Arc<Ctx>) {
    let other = ctx.client().await;
    let (client, faulty) = ctx.faulty().await;
    let valve = Valve::new();
    faulty.next(Verb::Enter, [Fault::HoldBack(valve.clone())]);
    let multi = all(&ctx, &client.locks, "x", &FIVE);
    let lease = ctx.lease().max(Duration::from_secs(2));
    let entering = multi.lock_with(Options::new().lease(lease));
    assert!(poll_times(entering, 1).await.is_none());
    eventually("it is under way", || std::future::ready(valve.arrived() == 1)).await;
    valve.open();
    eventually("it is carried out", || std::future::ready(valve.passed() == 1)).await;
    nothing_is_left(&ctx, &other, "x").await;
}

/// Polls it once, twice, and so on until it completes, and drops it; with somebody on the third name or not.
async fn at_every_await(ctx: &Ctx, held: bool) {
    let other = ctx.client().await;
    let (client, faulty) = ctx.faulty().await;
    faulty.yielding();
    for k in 1.. {
        assert!(k < 500, "it never completes");
        let folder = format!("k{k}");
        let third = other.locks.mutex(&ctx.text(&format!("{folder}/c")));
        let holder = if held { Some(third.lock().await.expect("free")) } else { None };
        let multi = all(ctx, &client.locks, &folder, &FIVE);
        let polled = Box::pin(poll_times(async move { multi.lock().await.expect("lock").release().await }, k));
        let stalled = Box::pin(tokio::time::sleep(Duration::from_millis(if held { 8 } else { 5000 })));
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
        nothing_is_left(ctx, &other, &folder).await;
        let guard = all(ctx, &other.locks, &folder, &FIVE).lock_within(SOON).await.expect("free at once");
        guard.release().await.expect("release");
        if completed {
            return;
        }
    }
}

async fn cancelled_at_every_await(ctx: Arc<Ctx>) {
    at_every_await(&ctx, false).await;
}

async fn cancelled_at_every_await_while_one_is_held(ctx: Arc<Ctx>) {
    at_every_await(&ctx, true).await;
}

async fn beside_the_queue(ctx: Arc<Ctx>) {
    let other = ctx.client().await;
    let (client, faulty) = ctx.faulty().await;
    let holder = other.locks.mutex(&ctx.text("x/c")).lock().await.expect("free");
    let multi = all(&ctx, &client.locks, "x", &FIVE);
    let waiting = tokio::spawn(async move { multi.lock_with(Options::new().unfair().wait(SOON * 2)).await });
    let (b, c) = (ctx.name("x/b"), ctx.name("x/c"));
    eventually("it has got as far as the third", || async { other.inspect(&b).await.inside.len() == 1 }).await;
    eventually("it is told when to try again", || std::future::ready(faulty.calls(Verb::Watch) > 0)).await;
    // Where the clients decide, the ticket of a try is seen until it is taken back.
    eventually("it waits beside the queue", || async { other.inspect(&c).await.waiting.is_empty() }).await;
    holder.release().await.expect("release");
    let guard = waiting.await.expect("no panic").expect("free");
    guard.release().await.expect("release");
    nothing_is_left(&ctx, &client, "x").await;
}

async fn an_owner_gets_what_it_has_once_more(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let owner = client.locks.owner();
    let outer = client.locks.mutex(&ctx.text("x/b")).lock_as(&owner).await.expect("free");
    let guard = all(&ctx, &client.locks, "x", &FIVE).lock_as(&owner).await.expect("its own lock is no obstacle");
    assert_eq!(guard.tokens()[1], outer.token());
    outer.release().await.expect("release");
    let b = ctx.name("x/b");
    assert_eq!(client.inspect(&b).await.inside.len(), 1, "still held by the other guard");
    guard.release().await.expect("release");
    nothing_is_left(&ctx, &client, "x").await;
}

async fn what_makes_no_sense_is_refused(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let (a, b) = (ctx.text("x/a"), ctx.text("x/b"));
    let none: [&str; 0] = [];
    for senseless in [
        client.locks.all(none),
        client.locks.all([&a, &b, &a]),
        client.locks.all([&a]).and(other.locks.all([&b])), // two stores, one label
        client.locks.all([Part::permits(&a, 0, 3)]),
        client.locks.all([Part::permits(&a, 4, 3)]),
    ] {
        assert_eq!(senseless.lock().await.expect_err("senseless").kind(), ErrorKind::InvalidInput, "{senseless:?}");
    }
    assert_eq!(client.locks.all(["", &a]).lock().await.expect_err("no name").kind(), ErrorKind::InvalidName);
    nothing_is_left(&ctx, &client, "x").await;
}

/// Random subsets in random order, some with a limit, some beside the queue, and single locks among them.
async fn in_any_order_nobody_waits_for_ever(ctx: Arc<Ctx>) {
    let clients = [ctx.client().await, ctx.client().await, ctx.client().await];
    let rounds = ctx.rounds(15);
    let names: Vec<String> = (0..6).map(|i| ctx.text(&format!("x/{i}"))).collect();
    let mut tasks = Vec::new();
    for task in 0..6_u64 {
        let (locks, names) = (clients[task as usize % 3].locks.clone(), names.clone());
        let mut rng = fastrand::Rng::with_seed(ctx.rng().u64(..) ^ task);
        tasks.push(tokio::spawn(async move {
            for _ in 0..rounds {
                let mut subset = names.clone();
                rng.shuffle(&mut subset);
                subset.truncate(rng.usize(1..=4));
                let options = match rng.u8(..4) {
                    0 => Options::new().wait(Duration::from_millis(rng.u64(..20))),
                    1 => Options::new().unfair(),
                    _ => Options::new(),
                };
                match locks.all(&subset).lock_with(options).await {
                    Ok(guard) if rng.bool() => drop(guard),
                    Ok(guard) => drop(guard.release().await.expect("release")),
                    Err(error) => assert!(
                        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Held),
                        "{error:?} for {subset:?}"
                    ),
                }
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("nobody is stuck").expect("no panic");
    }
    for client in &clients {
        soon("close", client.locks.close()).await;
    }
    nothing_is_left(&ctx, &clients[0], "x").await;
}
