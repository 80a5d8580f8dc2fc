//! What goes wrong, and what becomes of locks then.

use crate::server::Server;
use crate::{open, soon, ticket, try_open};
use fencelock::line::WHOLE;
use fencelock::store::postgres::PostgresStore;
use fencelock::store::{Entered, Presence, Store};
use fencelock::{Effect, ErrorKind, Locks, State};
use std::collections::BTreeMap;
use std::time::Duration;

#[tokio::test]
async fn killed_connections_are_opened_again() {
    let server = Server::start(&[]);
    let locks = Locks::connect(&server.url("killed")).await.unwrap();
    let guard = locks.mutex("kept").lock().await.unwrap();
    let token = guard.token();
    let sql = server.sql().await;
    for round in 0..5 {
        sql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencelock'", &[])
            .await
            .unwrap();
        let other = soon("another lock", locks.mutex("other").lock()).await.unwrap_or_else(|e| panic!("{round}: {e}"));
        soon("its release", other.release()).await.unwrap();
    }
    soon("a renewal", async {
        while guard.state() != State::Safe {
            assert_ne!(guard.state(), State::Lost);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(locks.inspect("kept").await.unwrap().inside[0].token, Some(token.into()));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_comes_back_still_has_its_tickets() {
    let server = Server::start(&[]);
    let locks = Locks::connect(&server.url("restart")).await.unwrap();
    let guard = locks.mutex("kept").lock().await.unwrap();
    let other = Locks::connect(&server.url("restart")).await.unwrap();
    let waiting = tokio::spawn({
        let mutex = other.mutex("kept");
        async move { mutex.lock().await }
    });
    soon("a place in the line", async {
        while locks.inspect("kept").await.unwrap().waiting.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    server.stop("INT");
    let error = soon("an error", locks.mutex("new").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.run(&[]);
    let token = guard.token();
    soon("the release", guard.release()).await.unwrap();
    let next = soon("the next one", waiting).await.unwrap().unwrap();
    assert!(u64::from(next.token()) > u64::from(token));
}

#[tokio::test]
async fn a_line_that_somebody_keeps_locked_ends_in_an_error_without_effect() {
    let server = Server::shared();
    let schema = Server::schema();
    let store = open(&server, &schema, &[]).await;
    let (first, second) = (ticket("stuck", 1, WHOLE, true), ticket("stuck", 1, WHOLE, true));
    store.enter(&[first]).await.unwrap();
    let mut sql = server.sql().await;
    let transaction = sql.transaction().await.unwrap();
    transaction.execute(&format!("SELECT FROM {schema}.line WHERE name = 'stuck' FOR UPDATE"), &[]).await.unwrap();
    let error = soon("an error", store.enter(&[second])).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    transaction.rollback().await.unwrap();
    let name = ticket("stuck", 1, WHOLE, true).place.name;
    assert_eq!(soon("a look", store.inspect(&name)).await.unwrap().inside.len(), 1);
}

/// Statements are prepared once for each connection. What does not fit any more is sent anew, and the caller sees nothing of it.
#[tokio::test]
async fn functions_that_are_made_anew_do_no_harm() {
    let server = Server::shared();
    let schema = Server::schema();
    let store = open(&server, &schema, &[]).await;
    let enter = async || {
        let one = ticket("x", WHOLE, WHOLE, true);
        let answer = store.enter(std::slice::from_ref(&one)).await.unwrap();
        assert!(matches!(answer[..], [Entered::Admitted { .. }]), "{answer:?}");
        one.place
    };
    let place = enter().await;
    assert_eq!(store.leave(&[place]).await.unwrap(), [Presence::There]);
    let sql = server.sql().await;
    // With one more column, as a later version might have it.
    sql.batch_execute(&format!(
        "ALTER FUNCTION {schema}.leave RENAME TO leave_before; \
         CREATE FUNCTION {schema}.leave(me text, names text[], ids bytea[]) RETURNS TABLE (there boolean, more integer, news text) \
         LANGUAGE sql AS $$ SELECT l.there, 1, l.news FROM {schema}.leave_before(me, names, ids) l $$"
    ))
    .await
    .unwrap();
    for _ in 0..2 {
        let place = enter().await;
        assert_eq!(store.leave(&[place]).await.unwrap(), [Presence::There]);
    }
}

#[tokio::test]
async fn another_isolation_level_does_no_harm() {
    let server = Server::start(&["-c", "default_transaction_isolation=serializable"]);
    let store = open(&server, "isolated", &[]).await;
    let answer = store.enter(&[ticket("x", 1, WHOLE, true)]).await.unwrap();
    assert!(matches!(answer[..], [Entered::Admitted { .. }]));
}

#[tokio::test]
async fn refusals_are_told_with_their_reason() {
    let server = Server::start(&[]);
    let sql = server.sql().await;
    sql.batch_execute("CREATE ROLE ann LOGIN PASSWORD 'right'").await.unwrap();
    let rules = server.folder().join("data/pg_hba.conf");
    std::fs::write(
        &rules,
        "host all ann 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\nlocal all all trust\n",
    )
    .unwrap();
    sql.batch_execute("GRANT CREATE ON DATABASE postgres TO ann; SELECT pg_reload_conf()").await.unwrap();
    let connect = async |user: &str, database: &str| {
        let url = format!("postgres://{user}@127.0.0.1:{}/{database}", server.port);
        PostgresStore::connect(&url, &BTreeMap::new()).await
    };
    soon("the rules", async {
        while connect("ann:wrong", "postgres").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let error = connect("ann:wrong", "postgres").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
    connect("ann:right", "postgres").await.unwrap();
    assert_eq!(connect("postgres", "nowhere").await.unwrap_err().kind(), ErrorKind::InvalidInput);

    let store = open(&server, "fencelock", &[]).await;
    sql.batch_execute("DROP FUNCTION fencelock.renew").await.unwrap();
    let entered = ticket("x", 1, WHOLE, true);
    store.enter(std::slice::from_ref(&entered)).await.unwrap();
    let renew = fencelock::store::Renew { place: entered.place, lease: Duration::from_secs(1), at_least: None };
    let error = store.renew(&[renew]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Broken, Effect::None), "{error}");

    server.stop("INT");
    let error = try_open(&server, "fencelock", &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
