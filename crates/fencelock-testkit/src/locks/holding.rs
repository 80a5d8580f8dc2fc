//! Holding: being told of a loss, readers and writers, order, what others see.

use crate::ctx::{Ctx, PUSHED, SOON, eventually, soon, within};
use crate::suite::tests;
use crate::wrap::faulty::{Fault, Verb};
use fencelock::{ErrorKind, Options, Released, State};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

tests!("holding":
    waiters_get_in_by_the_order_of_asking [Fair],
    a_broken_lock_is_lost_within_a_second [Push Expel],
    a_broken_lock_is_lost_at_the_next_renewal [OwnLease Expel],
    a_broken_waiter_queues_again [Fair Expel],
    a_lock_that_cannot_be_renewed_is_lost_in_time [OwnLease Fencing],
    work_ends_with_the_lock [Expel],
    work_is_run_for_as_long_as_it_is_held,
    a_lock_is_kept_past_its_lease [OwnLease],
    readers_share_and_see_each_other [Readers],
    a_downgrade_lets_readers_in [Fair Readers],
    an_upgrade_when_alone [Readers Upgrade],
    an_upgrade_when_not_alone [Readers Upgrade],
    permits_come_and_go_together [Permits],
    a_mismatch_is_told [Permits],
    impossible_names_and_options_are_told,
    a_timeout_says_who_and_where [Fair],
    a_list_and_a_watch_for_people,
);

async fn waiters_get_in_by_the_order_of_asking(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let first = one.locks.mutex(&name).lock().await.expect("free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..10 {
        let (mutex, order) = ([&one, &two][i % 2].locks.mutex(&name), order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.expect("lock");
            order.lock().expect("no panic").push((i, guard.token().number()));
            guard.release().await.expect("release");
        }));
        eventually("it waits", || async { one.inspect(&ctx.name("a")).await.waiting.len() == i + 1 }).await;
    }
    first.release().await.expect("release");
    for task in tasks {
        soon("everybody gets in", task).await.expect("no panic");
    }
    let order = order.lock().expect("no panic").clone();
    assert!(order.iter().map(|(i, _)| *i).eq(0..10), "{order:?}");
    assert!(order.is_sorted(), "{order:?}");
}

async fn a_broken_lock_is_lost_within_a_second(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let mut delays = Vec::new();
    for _ in 0..3 {
        let guard = one.locks.mutex(&name).lock().await.expect("free");
        let broken = Instant::now();
        assert!(two.locks.break_ticket(&name, guard.token()).await.expect("break"));
        soon("it is told", guard.lost()).await;
        delays.push(broken.elapsed());
        assert_eq!(guard.state(), State::Lost);
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert_eq!(guard.release().await.expect("release"), Released::AlreadyGone);
    }
    delays.sort();
    assert!(delays[1] < PUSHED, "the store says that it pushes, but it took {delays:?}");
}

async fn a_broken_lock_is_lost_at_the_next_renewal(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let guard = one.locks.mutex(&name).lock_with(Options::new().lease(ctx.lease() * 3)).await.expect("free");
    assert!(two.locks.break_ticket(&name, guard.token()).await.expect("break"));
    within(ctx.lease() * 3 + SOON, "it is told", || std::future::ready(guard.state() == State::Lost)).await;
    let error = guard.run(async {}).await.expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains(&name), "{error}");
}

async fn a_broken_waiter_queues_again(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let guard = one.locks.mutex(&name).lock().await.expect("free");
    let waiter = tokio::spawn({
        let mutex = two.locks.mutex(&name);
        async move { mutex.lock_within(SOON * 3).await }
    });
    let waiting = async || one.inspect(&ctx.name("a")).await.waiting.first().map_or(0, |seen| seen.token.unwrap_or(1));
    eventually("it waits", || async { waiting().await != 0 }).await;
    let number = waiting().await;
    assert!(one.locks.break_ticket(&name, number).await.expect("break"));
    eventually("it queues again, with a new number", || async { ![0, number].contains(&waiting().await) }).await;
    guard.release().await.expect("release");
    let guard = soon("it gets in", waiter).await.expect("no panic").expect("lock");
    assert!(guard.token().number() > number);
    guard.release().await.expect("release");
}

async fn a_lock_that_cannot_be_renewed_is_lost_in_time(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let lease = ctx.lease() * 2;
    let guard = client.locks.mutex(&name).lock_with(Options::new().lease(lease)).await.expect("free");
    faulty.always(Verb::Renew, Fault::Drop);
    faulty.always(Verb::Leave, Fault::Drop);
    let token = guard.token();
    let waiter = tokio::spawn({
        let mutex = other.locks.mutex(&name);
        async move { mutex.lock_within(SOON * 2).await }
    });
    let next = soon("the lease ends", waiter).await.expect("no panic").expect("lock");
    assert_eq!(guard.state(), State::Lost, "another holds it, and this one does not know");
    guard.lost().await;
    assert!(next.token().number() > token.number());
    assert_eq!(guard.release().await.expect("release"), Released::AlreadyGone);
    assert_eq!(next.state(), State::Safe);
    next.release().await.expect("release");
    faulty.heal();
}

async fn work_ends_with_the_lock(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let options = Options::new().lease(ctx.lease() * 3);
    let guard = client.locks.mutex(&name).lock_with(options).await.expect("free");
    let polled = AtomicUsize::new(0);
    let work = std::future::poll_fn(|cx| {
        polled.fetch_add(1, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        std::task::Poll::<()>::Pending
    });
    let broken = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        other.locks.break_ticket(&name, guard.token()).await.expect("break")
    };
    let (outcome, broken) = soon("the work ends", async { tokio::join!(guard.run(work), broken) }).await;
    assert!(broken);
    assert_eq!(outcome.expect_err("lost").kind(), ErrorKind::Lost);
    let polls = polled.load(Ordering::Relaxed);
    assert!(polls > 0);
    let never = guard.run(async { polled.fetch_add(1, Ordering::Relaxed) });
    assert_eq!(never.await.expect_err("lost").kind(), ErrorKind::Lost);
    assert_eq!(polled.load(Ordering::Relaxed), polls, "work was polled after the loss");
}

async fn work_is_run_for_as_long_as_it_is_held(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.text("a"));
    let guard = client.locks.mutex(&name).lock().await.expect("free");
    let done = guard
        .run(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            42
        })
        .await;
    assert_eq!(done.expect("held"), 42);
    let given_up = tokio::time::timeout(Duration::from_millis(5), guard.run(std::future::pending::<()>())).await;
    assert!(given_up.is_err());
    assert_eq!(guard.state(), State::Safe, "giving up the work keeps the guard");
    assert_eq!(guard.release().await.expect("release"), Released::Held);
}

async fn a_lock_is_kept_past_its_lease(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let lease = (ctx.lease() * 2).max(Duration::from_secs(1));
    let guard = client.locks.mutex(&name).lock_with(Options::new().lease(lease)).await.expect("free");
    client.sleep_past(client.clock().now().after(lease * 3 / 2)).await;
    assert_ne!(guard.state(), State::Lost);
    let error = other.locks.mutex(&name).try_lock().await.expect_err("still held");
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(guard.release().await.expect("release"), Released::Held);
}

async fn readers_share_and_see_each_other(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let a = one.locks.rwlock(&name).read().await.expect("free");
    let b = two.locks.rwlock(&name).try_read().await.expect("shared");
    assert_ne!(a.token(), b.token());
    assert_eq!(two.locks.rwlock(&name).try_write().await.expect_err("read").kind(), ErrorKind::Held);
    assert_eq!(two.locks.mutex(&name).try_lock().await.expect_err("read").kind(), ErrorKind::Held);
    a.release().await.expect("release");
    b.release().await.expect("release");
    let writer = two.locks.rwlock(&name).try_write().await.expect("free");
    assert_eq!(one.locks.rwlock(&name).try_read().await.expect_err("written").kind(), ErrorKind::Held);
    writer.release().await.expect("release");
}

async fn a_downgrade_lets_readers_in(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let writer = one.locks.rwlock(&name).write().await.expect("free");
    let token = writer.token().number();
    let reader = tokio::spawn({
        let lock = two.locks.rwlock(&name);
        async move { lock.read_within(SOON * 2).await }
    });
    eventually("it waits", || async { one.inspect(&ctx.name("a")).await.waiting.len() == 1 }).await;
    let kept = writer.downgrade().await.expect("held");
    assert_eq!(kept.token().number(), token);
    let beside = soon("the reader gets in", reader).await.expect("no panic").expect("read");
    assert_eq!(two.locks.rwlock(&name).try_write().await.expect_err("read").kind(), ErrorKind::Held);
    beside.release().await.expect("release");
    assert_eq!(kept.release().await.expect("release"), Released::Held);
}

async fn an_upgrade_when_alone(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let reader = one.locks.rwlock(&name).read().await.expect("free");
    let token = reader.token().number();
    let writer = reader.try_upgrade().await.expect("alone");
    assert!(writer.token().number() > token);
    assert_eq!(two.locks.rwlock(&name).try_read().await.expect_err("written").kind(), ErrorKind::Held);
    let reader = writer.downgrade().await.expect("held");
    let beside = two.locks.rwlock(&name).try_read().await.expect("shared again");
    beside.release().await.expect("release");
    assert_eq!(reader.release().await.expect("release"), Released::Held);
    assert!(one.is_empty(&ctx.name("a")).await);
}

async fn an_upgrade_when_not_alone(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let reader = one.locks.rwlock(&name).read().await.expect("free");
    let other = two.locks.rwlock(&name).read().await.expect("shared");
    let failed = reader.try_upgrade().await.expect_err("not alone");
    assert_eq!(failed.kind(), ErrorKind::Held);
    let reader = failed.into_guard();
    assert_eq!(reader.state(), State::Safe, "the read guard is given back");
    other.release().await.expect("release");
    let writer = reader.try_upgrade().await.expect("alone now");
    writer.release().await.expect("release");
}

async fn permits_come_and_go_together(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let three = one.locks.semaphore(&name, 5).acquire_many(3).await.expect("free");
    let two_more = two.locks.semaphore(&name, 5).try_acquire_many(2).await.expect("free");
    assert_eq!(two.locks.semaphore(&name, 5).try_acquire().await.expect_err("taken").kind(), ErrorKind::Held);
    three.release().await.expect("release");
    assert_eq!(
        two.locks.semaphore(&name, 5).try_acquire_many(4).await.expect_err("only three").kind(),
        ErrorKind::Held
    );
    let again = one.locks.semaphore(&name, 5).acquire_many_within(3, SOON).await.expect("free");
    drop((again, two_more));
    one.locks.close().await;
    two.locks.close().await;
    assert!(one.is_empty(&ctx.name("a")).await);
}

async fn a_mismatch_is_told(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.text("a"));
    let permit = client.locks.semaphore(&name, 3).acquire().await.expect("free");
    let error = client.locks.semaphore(&name, 4).acquire().await.expect_err("another size");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    let text = error.to_string();
    assert!(text.contains('3') && text.contains('4') && text.contains(&name), "{text}");
    assert_eq!(client.locks.mutex(&name).try_lock().await.expect_err("no mutex").kind(), ErrorKind::Mismatch);
    permit.release().await.expect("release");
    client.locks.mutex(&name).try_lock().await.expect("free").release().await.expect("release");
}

async fn impossible_names_and_options_are_told(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let (locks, name) = (&client.locks, ctx.text("a"));
    let kind = async |options: Options| locks.mutex(&name).lock_with(options).await.expect_err("refused").kind();
    assert_eq!(locks.mutex("").lock().await.expect_err("empty").kind(), ErrorKind::InvalidName);
    let capability = client.store.capability();
    for options in [
        Options::new().lease(Duration::ZERO),
        Options::new().lease(Duration::from_nanos(1)),
        Options::new().lease(Duration::MAX),
        Options::new().lease(capability.longest_lease + Duration::from_secs(1)),
        Options::new().lease(capability.shortest_lease - Duration::from_millis(1)),
        Options::new().max_hold(Duration::ZERO),
        Options::new().max_hold(Duration::from_secs(1)).min_hold(Duration::from_secs(2)),
        Options::new().fixed_lease(ctx.long()).min_hold(ctx.long() * 2),
    ] {
        assert_eq!(kind(options.clone()).await, ErrorKind::InvalidInput, "{options:?}");
    }
    for (permits, asked) in [(0, 1), (1 << 20, 1), (3, 0), (3, 4)] {
        let error = locks.semaphore(&name, permits).acquire_many(asked).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{asked} of {permits}");
    }
    assert!(client.is_empty(&ctx.name("a")).await);
    let for_ever = locks.mutex(&name).lock_within(Duration::MAX).await.expect("free");
    for_ever.release().await.expect("release");
}

async fn a_timeout_says_who_and_where(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let guard = one.locks.mutex(&name).lock_with(Options::new().reason("deploy 88")).await.expect("free");
    // Long enough to get into the line, its first connection and session included.
    let limit = Duration::from_millis(500).max(ctx.lease() / 4);
    let error = two.locks.mutex(&name).lock_within(limit).await.expect_err("held");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let holder = error.holder().expect("who");
    assert_eq!((holder.token, holder.reason.as_deref()), (one.shown(guard.token().number()), Some("deploy 88")));
    assert_eq!(error.position(), Some((1, 1)));
    let text = error.to_string();
    assert!(text.contains("timed out") && text.contains("deploy 88") && text.contains("1st of 1"), "{text}");
    guard.release().await.expect("release");
}

async fn a_list_and_a_watch_for_people(ctx: Arc<Ctx>) {
    use futures_util::StreamExt;
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let prefix = format!("{}/", ctx.folder());
    assert!(one.locks.list(&prefix).await.expect("list").is_empty());
    let mut hints = two.locks.watch(&prefix).await.expect("watch");
    let guard = one.locks.mutex(&name).lock().await.expect("free");
    soon("a hint", hints.next()).await.expect("the stream goes on");
    let listed = two.locks.list(&prefix).await.expect("list");
    assert_eq!((listed.len(), listed[0].name.shown(), listed[0].inside), (1, name.clone(), 1));
    let line = two.locks.inspect(&name).await.expect("inspect");
    assert_eq!(line.inside[0].token, one.shown(guard.token().number()));
    guard.release().await.expect("release");
    assert!(two.locks.list(&prefix).await.expect("list").is_empty());
}
