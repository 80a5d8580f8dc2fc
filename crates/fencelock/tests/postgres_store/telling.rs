//! Who is told of what, and how soon: grants, expulsions, changes; and that it works where nothing can be told.

use crate::server::Server;
use crate::soak::{counted, soaking};
use crate::{open, place, soon, ticket};
use fencelock::clock::Moment;
use fencelock::line::WHOLE;
use fencelock::store::{Entered, Hint, Scope, Store, Waited, Wake};
use fencelock::{Locks, Options, State};
use futures_util::StreamExt;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_waiter_of_another_client_is_told() {
    let server = Server::shared();
    let schema = Server::schema();
    let (a, b) = (open(&server, &schema, &[]).await, open(&server, &schema, &[]).await);
    assert_eq!(a.capability().wake, Wake::Push);
    let (first, second) = (ticket("told", WHOLE, WHOLE, true), ticket("told", WHOLE, WHOLE, true));
    a.enter(std::slice::from_ref(&first)).await.unwrap();
    assert!(matches!(b.enter(std::slice::from_ref(&second)).await.unwrap()[..], [Entered::Queued { .. }]));
    let waiting = tokio::spawn({
        let (b, place) = (b.clone(), second.place.clone());
        async move { b.wait(&place, Moment::FAR).await }
    });
    // The listener is there once its channel is known to the server.
    let sql = server.sql().await;
    soon("a listener", async {
        let listening =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN fencelock_%' AND state = 'idle'";
        while sql.query_one(listening, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let left = Instant::now();
    a.leave(&[first.place]).await.unwrap();
    assert!(matches!(soon("the grant", waiting).await.unwrap().unwrap(), Waited::Admitted { .. }));
    // The slow tick would take five seconds.
    assert!(left.elapsed() < Duration::from_secs(3), "{:?}", left.elapsed());
}

#[tokio::test]
async fn who_is_put_out_is_told_long_before_its_renewal() {
    let server = Server::shared();
    let schema = Server::schema();
    let a = Locks::connect(&server.url(&schema)).await.unwrap();
    let b = Locks::connect(&server.url(&schema)).await.unwrap();
    let guard = a.mutex("put-out").lock_with(Options::new().lease(Duration::from_secs(3600))).await.unwrap();
    // Being in line behind it proves that nothing else ended the lock.
    assert!(b.mutex("put-out").try_lock().await.is_err());
    soon("the end", async {
        // The first message may come before the listener is there: tickets are put out until one is told.
        assert!(b.break_ticket("put-out", guard.token()).await.unwrap());
        guard.lost().await;
    })
    .await;
    assert_eq!(guard.state(), State::Lost);
}

#[tokio::test]
async fn changes_are_told_to_those_who_watch() {
    let server = Server::shared();
    let schema = Server::schema();
    for listen in ["on", "off"] {
        let watcher = open(&server, &schema, &[("listen", listen)]).await;
        let other = open(&server, &schema, &[]).await;
        let name = place("watched/x").name;
        let mut one = watcher.watch(Scope::Name(name.clone())).await.unwrap();
        let mut all = watcher.watch(Scope::Prefix("watched/".into())).await.unwrap();
        let entered = ticket("watched/x", WHOLE, WHOLE, true);
        other.enter(std::slice::from_ref(&ticket("elsewhere", WHOLE, WHOLE, true))).await.unwrap();
        other.enter(std::slice::from_ref(&entered)).await.unwrap();
        let concerns = |hint| hint == Some(Hint::Changed(name.clone())) || hint == Some(Hint::Somewhere);
        assert!(concerns(soon("a hint", one.next()).await), "{listen}");
        assert!(concerns(soon("a hint", all.next()).await), "{listen}");
        // By now the listener is there, so that the name is told; who has to look by itself may be told to look everywhere.
        other.leave(&[entered.place]).await.unwrap();
        soon("a hint", async {
            loop {
                match one.next().await {
                    Some(Hint::Changed(told)) if told == name => break,
                    Some(Hint::Somewhere) if listen == "off" => break,
                    hint => assert_eq!(hint, Some(Hint::Somewhere), "{listen}"),
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn where_nothing_can_be_told_waiters_look() {
    let server = Server::shared();
    let schema = Server::schema();
    let (a, b) =
        (open(&server, &schema, &[("listen", "off")]).await, open(&server, &schema, &[("listen", "off")]).await);
    assert_eq!(b.capability().wake, Wake::Poll);
    let (first, second) = (ticket("polled", WHOLE, WHOLE, true), ticket("polled", WHOLE, WHOLE, true));
    a.enter(std::slice::from_ref(&first)).await.unwrap();
    b.enter(std::slice::from_ref(&second)).await.unwrap();
    let waiting = tokio::spawn({
        let (b, place) = (b.clone(), second.place.clone());
        async move { b.wait(&place, Moment::FAR).await }
    });
    tokio::task::yield_now().await;
    a.leave(&[first.place]).await.unwrap();
    assert!(matches!(soon("the grant", waiting).await.unwrap().unwrap(), Waited::Admitted { .. }));
}

/// With `FENCELOCK_SOAK=1` a thousand, looked at for half a minute.
#[tokio::test]
async fn a_crowd_that_waits_costs_next_to_nothing() {
    let (count, seconds) = if soaking() { (1000, 30) } else { (200, 8) };
    let server = Server::start(&["-c", "shared_preload_libraries=pg_stat_statements"]);
    let locks = Locks::connect(&server.url("crowd")).await.unwrap();
    let other = Locks::connect(&server.url("crowd")).await.unwrap();
    let guard = other.mutex("crowd").lock_with(Options::new().lease(Duration::from_secs(3600))).await.unwrap();
    let crowd: Vec<_> = (0..count)
        .map(|_| {
            let mutex = locks.mutex("crowd");
            tokio::spawn(async move { mutex.lock().await.map(drop) })
        })
        .collect();
    let sql = server.sql().await;
    sql.batch_execute("CREATE EXTENSION pg_stat_statements").await.unwrap();
    let statements = async || {
        let count = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query LIKE '%fencelock%' OR query LIKE '%crowd.%'";
        sql.query_one(count, &[]).await.unwrap().get::<_, i64>(0)
    };
    soon("all in line", async {
        while other.inspect("crowd").await.unwrap().waiting.len() < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    // The last ones in line are still having their first look.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = statements().await;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let cost = statements().await - before;
    counted(&format!("{cost} statements in {seconds} s for {count} waiters on PostgreSQL"));
    // The renewals of everybody come once in ten seconds, and may all be in a short look.
    let renewals = if soaking() { 0 } else { 8 };
    assert!(cost <= seconds as i64 + renewals, "{cost} statements in {seconds} s");
    guard.release().await.unwrap();
    for one in crowd {
        soon("its turn", one).await.unwrap().unwrap();
    }
}
