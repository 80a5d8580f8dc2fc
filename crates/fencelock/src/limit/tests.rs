//! The edges of the arithmetic, and how much memory keys may take. The comparison with a simulation is in `tests/beside`.

use super::bucket::{Bucket, MOST, Rule, SET_BACK};
use super::buckets::Buckets;
use super::{Limit, Rate};
use crate::beside::Ask;
use std::time::Duration;

fn tokens(count: u32, per: Duration, burst: u32) -> Rule {
    Limit::token_bucket(Rate::new(count, per)).burst(burst).rule().unwrap()
}

#[test]
fn rates_are_read_as_they_are_written() {
    for (text, count, millis) in
        [("10/s", 10, 1_000), ("600/m", 600, 60_000), ("1/30s", 1, 30_000), ("5/h", 5, 3_600_000), ("3/250ms", 3, 250)]
    {
        assert_eq!(text.parse::<Rate>().unwrap(), Rate::new(count, Duration::from_millis(millis)), "{text}");
    }
    for text in ["", "10", "/s", "10/", "0/s", "-1/s", "1/0s", "10/x", "1.5/s", "10/s ", "1/99999999999999999999s"] {
        let error = text.parse::<Rate>().unwrap_err().to_string();
        assert!(error.contains("say 10/s"), "{text}: {error}");
    }
}

#[test]
fn nothing_is_rounded_over_a_year_of_thirds() {
    // 3 in 7 ms: a request is due every 2333.33 us. After n requests, exactly n * 7000 / 3 us have to pass.
    let rule = tokens(3, Duration::from_millis(7), 1);
    let (mut bucket, mut now, start) = (None, 1_000, 1_000);
    for n in 0u64..100_000 {
        let (verdict, left) = rule.decide(bucket, now, 1, MOST / 8);
        assert!(verdict.granted);
        assert_eq!(now + verdict.wait - start, (n * 7_000).div_ceil(3));
        bucket = left;
        now += 1_000;
    }
}

#[test]
fn extreme_numbers_stay_below_two_to_the_53() {
    for rule in [
        tokens(u32::MAX, Duration::from_micros(1), u32::MAX),
        tokens(1, Duration::from_secs(86_400 * 365), 71),
        tokens(999_983, Duration::from_secs(86_400), 20_000),
        Limit::leaky_bucket(Rate::per_second(1_000_000_000)).burst(u32::MAX).rule().unwrap(),
        Limit::leaky_bucket(Rate::new(1, Duration::from_secs(1_000))).burst(u32::MAX).nodelay().rule().unwrap(),
    ] {
        let mut bucket = None;
        for now in [0, 1, 1 << 51, 1 << 51, (1 << 51) + 7_000_001] {
            let most = rule.room / rule.cost;
            let (_, left) = rule.decide(
                bucket,
                now,
                most.max(1),
                if rule.leaky { u64::MAX } else { (MOST - 2 * rule.room) / rule.give / 4 },
            );
            bucket = left;
            let left = left.unwrap();
            assert!(left.level <= MOST, "{rule:?} {left:?}");
            assert!(rule.fresh_after(&left) < 1 << 63);
        }
    }
    let too_much = Limit::token_bucket(Rate::new(1, Duration::from_secs(86_400 * 365))).burst(1_000).rule();
    assert!(too_much.unwrap_err().to_string().contains("more than can be counted"));
}

#[test]
fn a_clock_that_is_set_back_gives_nothing_and_takes_nothing() {
    for rule in
        [tokens(1, Duration::from_secs(1), 2), Limit::leaky_bucket(Rate::per_second(1)).burst(1).rule().unwrap()]
    {
        let now = 10 * SET_BACK;
        let (_, bucket) = rule.decide(None, now, 2, MOST / 8);
        // A little: it waits until the clock has come back.
        let (verdict, _) = rule.decide(bucket, now - SET_BACK / 2, 1, 0);
        assert!(!verdict.granted && verdict.wait > SET_BACK / 2 - 1_000_001, "{rule:?} {verdict:?}");
        // A lot: it goes on from there, as full as it was.
        let back = now - 2 * SET_BACK;
        let (verdict, _) = rule.decide(bucket, back, 1, 0);
        assert!(!verdict.granted && verdict.wait <= 2_000_000, "{rule:?} {verdict:?}");
        let (verdict, _) = rule.decide(bucket, back, 1, 10_000_000);
        assert_eq!(verdict.granted, !rule.leaky, "{rule:?}");
    }
}

#[test]
fn a_fresh_bucket_is_as_good_as_none_and_no_earlier() {
    for rule in
        [tokens(3, Duration::from_millis(7), 5), Limit::leaky_bucket(Rate::per_second(7)).burst(5).rule().unwrap()]
    {
        let grain = if rule.leaky { 1_000 } else { 1 };
        let (_, left) = rule.decide(None, 1_000_000, 5, MOST / 8);
        let left: Bucket = left.unwrap();
        let fresh = left.at + rule.fresh_after(&left);
        let ask = |bucket, now| rule.decide(bucket, now, 5, MOST / 8).1;
        assert_eq!(ask(Some(left), fresh), ask(None, fresh), "{rule:?}");
        assert_ne!(ask(Some(left), fresh - grain), ask(None, fresh - grain), "{rule:?}");
    }
}

#[test]
fn a_million_keys_take_bounded_memory() {
    let buckets = Buckets::new(1_000);
    let ask = Ask { rule: tokens(1, Duration::from_secs(1), 5), count: 1, at_most: 0 };
    // Those that come once are forgotten when they have recovered.
    for i in 0..100_000u64 {
        buckets.decide(&i.to_string(), &ask, i * 10_000);
        assert!(buckets.len() <= 200, "{}", buckets.len());
    }
    // A flood of keys throws out those with the least to remember, not the one that is at its limit.
    let now = 10_000_000_000;
    for _ in 0..5 {
        assert!(buckets.decide("busy", &ask, now).0.granted);
    }
    for i in 0..1_000_000u64 {
        buckets.decide(&format!("flood {i}"), &ask, now);
    }
    assert!(buckets.len() <= 1_000, "{}", buckets.len());
    assert!(!buckets.decide("busy", &ask, now).0.granted);
}
