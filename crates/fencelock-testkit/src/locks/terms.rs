//! What can be agreed for a lock: `min_hold`, `max_hold`, a fixed lease. On a clock that the test moves, to the nanosecond.

use crate::ctx::{Client, Ctx, eventually, soon};
use crate::suite::tests;
use crate::wrap::faulty::{Faulty, Verb};
use fencelock::{ErrorKind, Options, Released, State, VirtualClock};
use std::sync::Arc;
use std::time::Duration;

tests!("terms":
    a_fixed_lease_is_never_renewed_and_ends [VirtualTime],
    a_fixed_lease_starts_at_the_grant [VirtualTime],
    max_hold_caps_the_renewals [VirtualTime],
    min_hold_holds_a_release_back [VirtualTime],
    min_hold_holds_a_dropped_guard_back [VirtualTime],
    a_waiter_with_a_long_lease_gets_all_of_it_at_the_grant [VirtualTime],
    a_lock_is_held_for_as_long_as_its_guard [VirtualTime],
);

const SECOND: Duration = Duration::from_secs(1);

/// A faulty client on virtual time, and a plain one beside it.
pub(crate) async fn clients(ctx: &Ctx) -> (VirtualClock, Client, Faulty, Client) {
    let (clock, open) = ctx.virtual_time();
    let faulty = Faulty::new(open().await);
    (clock, Client::of(Arc::new(faulty.clone())), faulty, Client::of(open().await))
}

async fn a_fixed_lease_is_never_renewed_and_ends(ctx: Arc<Ctx>) {
    let (clock, client, faulty, other) = clients(&ctx).await;
    let guard = client.locks.mutex("a").lock_with(Options::new().fixed_lease(10 * SECOND)).await.expect("free");
    assert_eq!(guard.remaining(), Duration::from_millis(9800));
    clock.advance(Duration::from_millis(9800) - Duration::from_nanos(1));
    assert_eq!(guard.state(), State::Safe, "nothing is overdue on a fixed lease");
    assert_eq!(faulty.calls(Verb::Renew), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(guard.state(), State::Lost);
    soon("it is told", guard.lost()).await;
    eventually("it is given up, whatever the guard does", || async { other.is_empty(&name("a")).await }).await;
    assert_eq!(guard.release().await.expect("release"), Released::AlreadyGone);
}

fn name(name: &str) -> fencelock::name::Name {
    fencelock::name::Name::new("", name).expect("a name")
}

async fn a_fixed_lease_starts_at_the_grant(ctx: Arc<Ctx>) {
    let (clock, client, _, other) = clients(&ctx).await;
    let holder = other.locks.mutex("a").lock().await.expect("free");
    let waiter = tokio::spawn({
        let mutex = client.locks.mutex("a");
        async move { mutex.lock_with(Options::new().fixed_lease(10 * SECOND)).await }
    });
    eventually("it waits", || async { other.inspect(&name("a")).await.waiting.len() == 1 }).await;
    clock.advance(60 * SECOND);
    assert!(!waiter.is_finished(), "a waiter's place is renewed");
    holder.release().await.expect("release");
    let guard = soon("it gets in", waiter).await.expect("no panic").expect("lock");
    assert_eq!(guard.remaining(), Duration::from_millis(9800));
    clock.advance(10 * SECOND);
    assert_eq!(guard.state(), State::Lost);
}

async fn max_hold_caps_the_renewals(ctx: Arc<Ctx>) {
    let (clock, client, _, other) = clients(&ctx).await;
    let options = Options::new().lease(10 * SECOND).max_hold(25 * SECOND);
    let guard = client.locks.mutex("a").lock_with(options).await.expect("free");
    clock.advance(25 * SECOND - Duration::from_nanos(1));
    assert_ne!(guard.state(), State::Lost);
    assert_eq!(other.locks.mutex("a").try_lock().await.expect_err("held").kind(), ErrorKind::Held);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(guard.state(), State::Lost);
    let error = guard.run(async {}).await.expect_err("lost");
    assert!(error.to_string().contains("25 s"), "{error}");
    clock.settle();
    other.locks.mutex("a").try_lock().await.expect("given up").release().await.expect("release");
}

async fn min_hold_holds_a_release_back(ctx: Arc<Ctx>) {
    let (clock, client, _, other) = clients(&ctx).await;
    let options = Options::new().lease(10 * SECOND).min_hold(60 * SECOND);
    let guard = client.locks.mutex("a").lock_with(options).await.expect("free");
    clock.advance(5 * SECOND);
    let release = tokio::spawn(guard.release());
    // It is not "pending": not even its own client gets in.
    for locks in [&client.locks, &other.locks] {
        assert_eq!(locks.mutex("a").try_lock().await.expect_err("held back").kind(), ErrorKind::Held);
    }
    clock.advance(55 * SECOND - Duration::from_nanos(1));
    assert!(!release.is_finished());
    assert_eq!(other.locks.mutex("a").try_lock().await.expect_err("held back").kind(), ErrorKind::Held);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(soon("the release", release).await.expect("no panic").expect("release"), Released::Held);
    other.locks.mutex("a").try_lock().await.expect("free").release().await.expect("release");
}

async fn min_hold_holds_a_dropped_guard_back(ctx: Arc<Ctx>) {
    let (clock, client, _, other) = clients(&ctx).await;
    let options = Options::new().lease(10 * SECOND).min_hold(60 * SECOND);
    drop(client.locks.mutex("a").lock_with(options).await.expect("free"));
    let close = tokio::spawn({
        let locks = client.locks.clone();
        async move { locks.close().await }
    });
    clock.advance(59 * SECOND);
    assert_eq!(other.locks.mutex("a").try_lock().await.expect_err("held back").kind(), ErrorKind::Held);
    assert!(!close.is_finished(), "close waits for it");
    clock.advance(SECOND);
    soon("close", close).await.expect("no panic");
    other.locks.mutex("a").try_lock().await.expect("free").release().await.expect("release");
}

async fn a_waiter_with_a_long_lease_gets_all_of_it_at_the_grant(ctx: Arc<Ctx>) {
    let (clock, client, faulty, other) = clients(&ctx).await;
    let hour = 3600 * SECOND;
    let holder = other.locks.mutex("a").lock().await.expect("free");
    let waiter = tokio::spawn({
        let mutex = client.locks.mutex("a");
        async move { mutex.lock_with(Options::new().lease(hour)).await }
    });
    eventually("it waits", || async { other.inspect(&name("a")).await.waiting.len() == 1 }).await;
    assert!(other.inspect(&name("a")).await.waiting[0].expires_in <= Some(30 * SECOND));
    clock.advance(120 * SECOND);
    let renewals = faulty.calls(Verb::Renew);
    assert!(renewals >= 12, "a waiter is renewed by its waiting lease: {renewals} times in two minutes");
    holder.release().await.expect("release");
    let guard = soon("it gets in", waiter).await.expect("no panic").expect("lock");
    assert_eq!(guard.remaining(), hour - hour / 50);
    assert_eq!(other.inspect(&name("a")).await.inside[0].expires_in, Some(hour));
    guard.release().await.expect("release");
}

async fn a_lock_is_held_for_as_long_as_its_guard(ctx: Arc<Ctx>) {
    let (clock, client, faulty, other) = clients(&ctx).await;
    let guard = client.locks.mutex("a").lock().await.expect("free");
    for _ in 0..100 {
        clock.advance(7 * SECOND);
        assert_eq!(guard.state(), State::Safe);
        assert!(guard.remaining() >= 14 * SECOND, "{:?} left of 30 s", guard.remaining());
    }
    // 700 s at a third of 30 s, less a seventh at most.
    let renewals = faulty.calls(Verb::Renew);
    assert!((60..=95).contains(&renewals), "{renewals} renewals in 700 s");
    assert_eq!(guard.release().await.expect("release"), Released::Held);
    faulty.reset_counts();
    clock.advance(60 * SECOND);
    assert_eq!(faulty.calls(Verb::Renew), 0, "nothing is renewed after the release");
    assert!(other.is_empty(&name("a")).await);
}
