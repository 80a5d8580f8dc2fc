//! Locks that belong to a connection, where a client has two of them and servers differ.

use crate::server::Server;
use crate::soon;
use fencelock::{ErrorKind, Locks, Options, State};
use mysql_async::prelude::Queryable;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

async fn started(options: &'static [&'static str]) -> (Server, String) {
    let server = tokio::task::spawn_blocking(move || Server::start(options)).await.unwrap();
    let url = server.url(&server.database().await);
    (server, url)
}

async fn connect(url: &str) -> Locks {
    Locks::connect(&format!("{url}?mode=session")).await.unwrap()
}

/// A crowd on each of some names, all of one client.
async fn go_round(locks: &Locks, names: usize) {
    let last: Vec<AtomicU64> = (0..names).map(|_| AtomicU64::new(0)).collect();
    let last = &last;
    let workers = (0..12 * names).map(|i| async move {
        let mutex = locks.mutex(&format!("round/{}", i % names));
        for _ in 0..10 {
            let guard = mutex.lock().await.unwrap();
            let token = guard.token().number();
            let before = last[i % names].swap(token, Ordering::SeqCst);
            assert!(before < token, "{token} after {before}");
            guard.release().await.unwrap();
        }
    });
    soon("all of them", futures_util::future::join_all(workers)).await;
}

/// Many numbers come in one answer.
#[tokio::test]
async fn numbers_are_whole_on_a_server_that_cuts_what_it_joins() {
    let (_server, url) = started(&["--group-concat-max-len=24"]).await;
    go_round(&connect(&url).await, 1).await;
    go_round(&connect(&url).await, 20).await;
}

/// MySQL has no sequences: a server that says it is one.
#[tokio::test]
async fn numbers_come_from_a_row_where_there_are_no_sequences() {
    let (server, url) = started(&["--version=8.0.36"]).await;
    go_round(&connect(&url).await, 1).await;
    go_round(&connect(&url).await, 20).await;
    let given: Option<u64> = server
        .sql(url.rsplit('/').next().unwrap())
        .await
        .query_first("SELECT last FROM fencelock_token")
        .await
        .unwrap();
    assert!(given > Some(120), "{given:?}");
}

#[tokio::test]
async fn a_server_that_prepares_no_more_statements_will_do() {
    let (server, url) = started(&[]).await;
    let locks = connect(&url).await;
    server.sql("mysql").await.query_drop("SET GLOBAL max_prepared_stmt_count = 0").await.unwrap();
    go_round(&locks, 1).await;
    let guards = futures_util::future::join_all((0..8).map(|i| {
        let mutex = locks.mutex(&format!("own/{i}"));
        async move { mutex.lock().await.unwrap() }
    }));
    for guard in guards.await {
        assert_eq!(guard.release().await.unwrap(), fencelock::Released::Held);
    }
}

/// The server ends a silent connection; so does it with the second one, on which nothing has ever been held, or no longer.
#[tokio::test]
async fn a_client_that_was_silent_goes_on() {
    let (server, url) = started(&[]).await;
    let locks = connect(&url).await;
    let mut sql = server.sql("mysql").await;
    for round in 0..2 {
        for i in 0..8 {
            let short = Options::new().lease(Duration::from_secs(1));
            let guard = soon("a lock", locks.mutex(&format!("silent/{i}")).lock_with(short)).await;
            guard.unwrap_or_else(|error| panic!("round {round}: {error}")).release().await.unwrap();
        }
        soon("the end of both connections", async {
            let ours =
                "SELECT COUNT(*) FROM information_schema.processlist WHERE db LIKE 't%' AND id <> CONNECTION_ID()";
            while sql.query_first::<u64, _>(ours).await.unwrap() != Some(0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

/// Of two connections one ends: what hung on it is lost, and nothing else. Whoever comes next gets a larger number.
#[tokio::test]
async fn what_hangs_on_the_other_connection_stays() {
    let (server, url) = started(&[]).await;
    let locks = connect(&url).await;
    let name = |i: usize| format!("two/{i}");
    let mut guards = HashMap::new();
    for i in 0..16 {
        let short = Options::new().lease(Duration::from_secs(3));
        guards.insert(i, locks.mutex(&name(i)).lock_with(short).await.unwrap());
    }
    let mut sql = server.sql("mysql").await;
    let second = "SELECT MAX(id) FROM information_schema.processlist WHERE db LIKE 't%'";
    let second: u64 = sql.query_first(second).await.unwrap().unwrap();
    // All of them are seen, and listed, whichever connection they are on.
    let other = connect(&url).await;
    assert_eq!(soon("a list", locks.list("two")).await.unwrap().len(), 16);
    assert_eq!(soon("a list", other.list("two")).await.unwrap().len(), 16);
    sql.query_drop(format!("KILL {second}")).await.unwrap();
    soon("a loss", async {
        while guards.values().all(|guard| guard.state() != State::Lost) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let (lost, kept): (Vec<_>, Vec<_>) = guards.into_iter().partition(|(_, guard)| guard.state() == State::Lost);
    assert!(!lost.is_empty() && !kept.is_empty(), "{} lost, {} kept", lost.len(), kept.len());
    for (i, guard) in lost {
        let next = other.mutex(&name(i)).try_lock().await.unwrap();
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
    }
    for (i, guard) in kept {
        let error = other.mutex(&name(i)).try_lock().await.unwrap_err();
        assert_eq!(error.holder().and_then(|holder| holder.token), Some(guard.token().number()), "{error}");
        soon("a renewal", async {
            while guard.state() != State::Safe {
                assert_ne!(guard.state(), State::Lost);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(guard.release().await.unwrap(), fencelock::Released::Held);
    }
}

/// A look at one name does not wait until this very client, busy with others on its other connection, has told everything.
#[tokio::test]
async fn a_look_does_not_wait_for_ourselves() {
    let (_server, url) = started(&[]).await;
    let locks = connect(&url).await;
    let looks = async {
        let began = Instant::now();
        for i in 0..12 {
            assert!(soon("a look", locks.inspect(&format!("quiet/{i}"))).await.unwrap().inside.is_empty());
        }
        began.elapsed()
    };
    let busy = async {
        loop {
            go_round(&locks, 1).await;
        }
    };
    let took = tokio::select! { took = looks => took, () = busy => unreachable!() };
    // Each of those on the other connection would take 0.4 s.
    assert!(took < Duration::from_millis(1200), "{took:?}");
}

/// The most a client may hold is the client's, however many connections it has.
#[tokio::test]
async fn there_is_an_end_to_what_one_client_may_hold() {
    let (_server, url) = started(&[]).await;
    let (locks, mut guards, error) = soon("the end", async {
        loop {
            let (locks, mut guards) = (connect(&url).await, Vec::new());
            let error = loop {
                match locks.mutex(&format!("many/{}", guards.len())).try_lock().await {
                    Ok(guard) => guards.push(guard),
                    Err(error) => break error,
                }
                assert!(guards.len() <= 2000);
            };
            // On a busy machine a call may come too late: that is another error.
            if error.to_string().contains("2000") {
                break (locks, guards, error);
            }
        }
    })
    .await;
    assert_eq!((guards.len(), error.kind()), (2000, ErrorKind::Unavailable), "{error}");
    drop(guards.pop());
    soon("one more", locks.mutex("one/more").lock()).await.unwrap().release().await.unwrap();
}
