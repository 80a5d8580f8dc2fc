//! Limiters: what passes, when to come again, in which order, and never too much. Their arithmetic is compared with a simulation elsewhere; here
//! it is the store's own clock that counts.

use crate::ctx::Ctx;
use crate::suite::tests;
use fencelock::ErrorKind;
use fencelock::limit::{Decision, Limit, Rate};
use std::sync::Arc;
use std::time::{Duration, Instant};

tests!("limiters":
    a_refusal_says_when_to_come_again [Limiters],
    keys_and_names_have_buckets_of_their_own [Limiters],
    turns_are_given_in_the_order_of_asking [Limiters],
    a_leaky_bucket_refuses_what_does_not_fit [Limiters],
    never_more_than_rate_and_burst [Limiters],
    a_new_rule_takes_over_what_was_counted [Limiters],
);

const SLOW: Limit = Limit::token_bucket(Rate::per_hour(1));

async fn a_refusal_says_when_to_come_again(ctx: Arc<Ctx>) {
    let (one, other) = (ctx.beside().await, ctx.beside().await);
    one.limiter(&ctx.text("a"), SLOW.burst(2)).try_acquire_many(2).await.expect("a burst passes");
    let theirs = other.limiter(&ctx.text("a"), SLOW.burst(2));
    for wait in [0, 60] {
        let error = theirs.acquire_within(Duration::from_secs(wait)).await.expect_err("it is over the limit");
        assert_eq!(error.kind(), ErrorKind::Limited, "{error}");
        let again = error.retry_after().expect("when");
        assert!(again > Duration::from_secs(3_000) && again <= Duration::from_secs(3_600), "again in {again:?}");
    }
}

async fn keys_and_names_have_buckets_of_their_own(ctx: Arc<Ctx>) {
    let locks = ctx.beside().await;
    let limiter = locks.limiter(&ctx.text("a"), SLOW);
    let others = ["", "a", "b", "a/b", "%", "ä", "|", "a|b", "{a}", &"k".repeat(1_000)].map(|key| limiter.key(key));
    let named = locks.limiter(&ctx.text("a/a"), SLOW);
    for (i, limiter) in others.iter().chain([&limiter, &named]).enumerate() {
        assert!(limiter.try_acquire().await.is_ok(), "bucket {i} is another one's");
        assert!(limiter.try_acquire().await.is_err(), "bucket {i} has forgotten");
    }
}

async fn turns_are_given_in_the_order_of_asking(ctx: Arc<Ctx>) {
    let (one, other) = (ctx.beside().await, ctx.beside().await);
    let limit = Limit::token_bucket(Rate::per_second(1));
    let limiters = [one.limiter(&ctx.text("a"), limit), other.limiter(&ctx.text("a"), limit)];
    let started = Instant::now();
    for turn in 0..6u64 {
        let decided = limiters[turn as usize % 2].reserve(1, Duration::from_secs(3_600)).await.expect("reserve");
        let Decision::Granted { wait } = decided else { panic!("turn {turn}: {decided:?}") };
        // The time that the asking took may have passed already.
        let latest = Duration::from_secs(turn);
        let earliest = latest.saturating_sub(started.elapsed());
        assert!(wait <= latest && wait >= earliest, "turn {turn} in {wait:?}, not {earliest:?} to {latest:?}");
    }
}

async fn a_leaky_bucket_refuses_what_does_not_fit(ctx: Arc<Ctx>) {
    let locks = ctx.beside().await;
    let limit = Limit::leaky_bucket(Rate::per_minute(6)).burst(2);
    let (delayed, at_once) = (locks.limiter(&ctx.text("a"), limit), locks.limiter(&ctx.text("b"), limit.nodelay()));
    for turn in 0..3u64 {
        let decided = delayed.reserve(1, Duration::MAX).await.expect("reserve");
        let Decision::Granted { wait } = decided else { panic!("request {turn}: {decided:?}") };
        let latest = Duration::from_secs(10 * turn);
        assert!(wait <= latest && wait + Duration::from_secs(9) > latest, "request {turn} in {wait:?}");
        at_once.try_acquire().await.expect("the burst passes at once");
    }
    for limiter in [&delayed, &at_once] {
        let error = limiter.acquire().await.expect_err("the bucket is full");
        assert_eq!(error.kind(), ErrorKind::Limited, "{error}");
    }
}

async fn never_more_than_rate_and_burst(ctx: Arc<Ctx>) {
    let limit = Limit::token_bucket(Rate::per_second(100)).burst(10);
    let mut trying = tokio::task::JoinSet::new();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(ctx.beside().await.limiter(&ctx.text("a"), limit));
    }
    let started = Instant::now();
    for limiter in clients {
        trying.spawn(async move {
            let mut passed = 0;
            while started.elapsed() < Duration::from_secs(1) {
                match limiter.try_acquire().await {
                    Ok(()) => passed += 1,
                    Err(error) if error.kind() == ErrorKind::Limited => {
                        tokio::time::sleep(Duration::from_millis(1)).await
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            passed
        });
    }
    let mut passed = 0;
    while let Some(done) = trying.join_next().await {
        passed += done.expect("trying");
    }
    let most = 100.0 * started.elapsed().as_secs_f64() + 10.0;
    assert!(f64::from(passed) <= most, "{passed} passed, at most {most}");
    assert!(passed > 20, "{passed} passed: next to nothing");
}

async fn a_new_rule_takes_over_what_was_counted(ctx: Arc<Ctx>) {
    let locks = ctx.beside().await;
    let name = ctx.text("a");
    locks.limiter(&name, Limit::token_bucket(Rate::per_hour(7)).burst(10)).try_acquire_many(10).await.expect("a burst");
    // Ten are counted: an eleventh fits, a twelfth does not.
    let wider = locks.limiter(&name, Limit::token_bucket(Rate::per_hour(60)).burst(11));
    assert!(wider.try_acquire_many(2).await.is_err());
    wider.try_acquire().await.expect("there is room for one more");
    let leaky = locks.limiter(&name, Limit::leaky_bucket(Rate::per_minute(1)).burst(12).nodelay());
    assert!(leaky.try_acquire_many(2).await.is_err());
    leaky.try_acquire().await.expect("there is room for one more");
}
