//! What limiters promise beside their arithmetic: order, deadlines, keys, bounded memory, one request per decision.

use crate::{Stores, clock, server::Server};
use fencelock::limit::{Concurrency, Decision, Limit, Limiter, Rate};
use fencelock::{ErrorKind, Locks};
use futures_util::FutureExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SLOW: Limit = Limit::token_bucket(Rate::per_hour(1));

#[tokio::test]
async fn a_refusal_says_what_and_when() {
    let stores = Stores::open().await;
    for (what, locks) in stores.each() {
        let api = locks.limiter("api", SLOW.burst(2));
        api.try_acquire_many(2).await.unwrap();
        let error = api.try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.name()), (ErrorKind::Limited, Some("api")), "{what}");
        let again = error.retry_after().unwrap();
        assert!(again > Duration::from_secs(3_500) && again <= Duration::from_secs(3_600), "{what}: {again:?}");
        assert!(error.is_temporary() && error.to_string().contains("over the limit; again in"), "{what}: {error}");
        // Who would wait too long is told at once.
        let error = api.acquire_within(Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limited, "{what}");
        // Another handle, the same bucket; another key or name, another one.
        assert!(locks.limiter("api", SLOW.burst(2)).try_acquire().await.is_err(), "{what}");
        for other in [api.key("a"), api.key("b"), api.key(""), api.key("%"), locks.limiter("api2", SLOW)] {
            other.try_acquire().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert!(api.key("a").key("b").try_acquire_many(2).await.is_err(), "{what}: the last key counts");
        // What makes no sense.
        for (limiter, count, kind) in [
            (locks.limiter("", SLOW), 1, ErrorKind::InvalidName),
            (locks.limiter("x", SLOW.burst(0)), 1, ErrorKind::InvalidInput),
            (locks.limiter("x", Limit::token_bucket(Rate::per_second(0))), 1, ErrorKind::InvalidInput),
            (
                locks.limiter("x", Limit::leaky_bucket(Rate::new(1, Duration::from_secs(2_000)))),
                1,
                ErrorKind::InvalidInput,
            ),
            (locks.limiter("x", SLOW.burst(3)), 4, ErrorKind::InvalidInput),
            (locks.limiter("x", SLOW.burst(3)), 0, ErrorKind::InvalidInput),
        ] {
            assert_eq!(limiter.try_acquire_many(count).await.unwrap_err().kind(), kind, "{what}");
        }
    }
}

#[tokio::test]
async fn a_store_without_limiters_says_so() {
    let locks = Locks::with_store(fencelock::store::memory::MemoryStore::new());
    assert_eq!(locks.limiter("x", SLOW).try_acquire().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(locks.register("x").load().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

/// A limit that makes an acquire wait for about 20 ms each.
const BRISK: Limit = Limit::token_bucket(Rate::per_second(50));

#[tokio::test]
async fn waiters_go_in_the_order_of_asking() {
    let stores = Stores::open().await;
    let local = Limiter::local(BRISK);
    let mut limiters: Vec<_> = stores.each().iter().map(|(what, locks)| (*what, locks.limiter("q", BRISK))).collect();
    limiters.push(("local", local));
    for (what, limiter) in limiters {
        let started = std::time::Instant::now();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for i in 0..8 {
            // Asked one after the other; the waits overlap.
            let Decision::Granted { wait } = limiter.reserve(1, Duration::from_secs(60)).await.unwrap() else {
                panic!("{what}: there is time enough")
            };
            let order = order.clone();
            waiting.push(async move {
                tokio::time::sleep(wait).await;
                order.lock().unwrap().push(i);
            });
        }
        futures_util::future::join_all(waiting).await;
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>(), "{what}");
        assert!(started.elapsed() >= Duration::from_millis(139), "{what}: {:?}", started.elapsed());
        limiter.acquire().await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(159), "{what}: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_turn_that_is_given_up_goes_to_the_next_if_nobody_came_since() {
    let (virtual_clock, clock) = clock();
    let limiter = Limiter::local_with(Limit::token_bucket(Rate::per_second(1)), 10, clock);
    limiter.try_acquire().await.unwrap();
    let given_up = || assert!(limiter.acquire().now_or_never().is_none(), "it waits");
    for _ in 0..5 {
        given_up();
    }
    let Decision::Granted { wait } = limiter.reserve(1, Duration::MAX).await.unwrap() else { panic!("it waits") };
    assert_eq!(wait, Duration::from_secs(1));
    // Now somebody comes after the one that gives up: the place is lost.
    let mut first = Box::pin(limiter.acquire());
    assert!(first.as_mut().now_or_never().is_none());
    let Decision::Granted { wait } = limiter.reserve(1, Duration::MAX).await.unwrap() else { panic!("it waits") };
    assert_eq!(wait, Duration::from_secs(3));
    drop(first);
    let Decision::Granted { wait } = limiter.reserve(1, Duration::MAX).await.unwrap() else { panic!("it waits") };
    assert_eq!(wait, Duration::from_secs(4));
    virtual_clock.advance(Duration::from_secs(10));
    limiter.try_acquire().await.unwrap();
}

#[tokio::test]
async fn a_key_that_recovers_is_forgotten_everywhere() {
    let stores = Stores::open().await;
    let quick = Limit::token_bucket(Rate::new(1, Duration::from_millis(1)));
    for (_, locks) in stores.each() {
        for i in 0..500 {
            locks.limiter("k", quick).key(&format!("once/{i}")).try_acquire().await.unwrap();
        }
        // It remembers one that has something to remember.
        locks.limiter("slow", SLOW).try_acquire().await.unwrap();
    }
    let file = rusqlite::Connection::open(stores.folder.path().join("locks.db")).unwrap();
    let rows: i64 = file.query_row("SELECT count(*) FROM bucket", [], |row| row.get(0)).unwrap();
    assert!((1..50).contains(&rows), "{rows} rows for 500 keys that were used once");
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    while stores.server.command::<Vec<String>>(&["KEYS", "fencelock:bucket:*"]) != ["fencelock:bucket:{slow}"] {
        assert!(std::time::Instant::now() < limit, "keys stay");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let left: i64 = stores.server.command(&["PTTL", "fencelock:bucket:{slow}"]);
    assert!((3_500_000..=3_600_100).contains(&left), "{left}");
}

#[tokio::test]
async fn one_request_for_each_decision_on_redis() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let tokens = locks.limiter("t", Limit::token_bucket(Rate::per_second(1_000)).burst(20));
    let leaky = locks.limiter("l", Limit::leaky_bucket(Rate::per_second(1_000)).burst(20));
    tokens.try_acquire().await.unwrap();
    let before = (server.requests(), server.calls("evalsha"));
    for i in 0..100 {
        // Granted, waited for, refused: all the same.
        let _ = tokens.try_acquire_many(5).await;
        let _ = leaky.key(&i.to_string()).try_acquire().await;
        leaky.acquire_within(Duration::from_secs(60)).await.unwrap();
    }
    assert_eq!((server.requests() - before.0, server.calls("evalsha") - before.1), (300, 300));
}

#[tokio::test]
async fn a_concurrency_limit_is_kept_in_order() {
    let stores = Stores::open().await;
    let mut limits = vec![("local", Concurrency::local(2))];
    limits.extend(stores.each().map(|(what, locks)| (what, Concurrency::shared(locks, "slots", 2))));
    for (what, limit) in limits {
        let first = limit.acquire().await.unwrap();
        let _second = limit.try_acquire().await.unwrap();
        assert_eq!(limit.try_acquire().await.unwrap_err().kind(), ErrorKind::Held, "{what}");
        let late = limit.acquire_within(Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut, "{what}");
        let _other = limit.key("user").try_acquire().await.unwrap();
        let mut third = Box::pin(limit.acquire());
        assert!(futures_util::poll!(third.as_mut()).is_pending(), "{what}");
        drop(first);
        let third = tokio::time::timeout(Duration::from_secs(20), third).await.unwrap().unwrap();
        assert!(limit.try_acquire().await.is_err(), "{what}");
        drop(third);
    }
    assert_eq!(Concurrency::local(0).acquire().await.unwrap_err().kind(), ErrorKind::InvalidInput);
}
