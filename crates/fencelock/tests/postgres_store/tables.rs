//! The tables: how they come to be, who may use them, and that they stay small.

use crate::server::Server;
use crate::{open, soon, ticket, try_open};
use fencelock::ErrorKind;
use fencelock::line::WHOLE;
use fencelock::store::postgres::PostgresStore;
use fencelock::store::{Entered, Place, Store};
use std::collections::BTreeMap;
use std::time::Duration;

#[tokio::test]
async fn first_uses_at_the_same_moment_are_safe() {
    let server = Server::shared();
    let schema = Server::schema();
    let opening = (0..8).map(|_| {
        let (server, schema) = (server.clone(), schema.clone());
        tokio::spawn(async move { try_open(&server, &schema, &[]).await.map(drop) })
    });
    for one in opening.collect::<Vec<_>>() {
        soon("a store", one).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn nothing_is_made_where_that_is_not_wanted() {
    let server = Server::shared();
    let schema = Server::schema();
    let error = try_open(&server, &schema, &[("migrate", "off")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    let sql = server.sql().await;
    sql.batch_execute(&PostgresStore::layout(&schema)).await.unwrap();
    let store = open(&server, &schema, &[("migrate", "off")]).await;
    assert!(matches!(
        store.enter(&[ticket("x", 1, WHOLE, true)]).await.unwrap()[..],
        [Entered::Admitted { token: 1, .. }]
    ));
}

#[tokio::test]
async fn an_unknown_layout_is_refused() {
    let server = Server::shared();
    let schema = Server::schema();
    open(&server, &schema, &[]).await;
    let sql = server.sql().await;
    sql.execute(&format!("UPDATE {schema}.layout SET version = 99"), &[]).await.unwrap();
    let error = try_open(&server, &schema, &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken);
    assert!(error.to_string().contains("layout 99"), "{error}");
}

#[tokio::test]
async fn a_role_needs_no_more_than_the_documented_rights() {
    let server = Server::shared();
    let schema = Server::schema();
    let role = format!("role_{schema}");
    let sql = server.sql().await;
    sql.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let url = format!("postgres://{role}@127.0.0.1:{}/postgres", server.port);
    let options: BTreeMap<String, String> = [("schema".to_string(), schema.clone())].into();

    let error = PostgresStore::connect(&url, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    open(&server, &schema, &[]).await;
    let error = PostgresStore::connect(&url, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    sql.batch_execute(&format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
    ))
    .await
    .unwrap();
    let store = PostgresStore::connect(&url, &options).await.unwrap();
    let entered = ticket("x", 1, WHOLE, true);
    store.enter(std::slice::from_ref(&entered)).await.unwrap();
    store.leave(&[entered.place]).await.unwrap();
    assert_eq!(store.reap(Duration::ZERO).await.unwrap(), 1);
}

#[tokio::test]
async fn names_used_once_leave_nothing_and_numbers_go_on() {
    let server = Server::shared();
    let schema = Server::schema();
    let store = open(&server, &schema, &[]).await;
    let mut highest = 0;
    for round in 0..50 {
        let batch: Vec<_> = (0..200).map(|i| ticket(&format!("once/{round}/{i}"), WHOLE, WHOLE, true)).collect();
        for answer in store.enter(&batch).await.unwrap() {
            let Entered::Admitted { token, .. } = answer else { panic!("{answer:?}") };
            highest = highest.max(token);
        }
        let places: Vec<Place> = batch.into_iter().map(|ticket| ticket.place).collect();
        store.leave(&places).await.unwrap();
    }
    let sql = server.sql().await;
    let lines = format!("SELECT count(*) FROM {schema}.line");
    soon("a small table", async {
        while sql.query_one(&lines, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let Entered::Admitted { token, .. } = store.enter(&[ticket("once/0/0", WHOLE, WHOLE, true)]).await.unwrap()[0]
    else {
        panic!("nobody else is there")
    };
    assert!(token > highest, "{token} after {highest}");
    let tickets = format!("SELECT count(*) FROM {schema}.ticket");
    assert_eq!(sql.query_one(&tickets, &[]).await.unwrap().get::<_, i64>(0), 1);
}

#[tokio::test]
async fn lapsed_tickets_of_forgotten_lines_are_taken_out() {
    let server = Server::shared();
    let schema = Server::schema();
    let store = open(&server, &schema, &[]).await;
    let mut short = ticket("forgotten", WHOLE, WHOLE, true);
    short.lease = Duration::from_millis(100);
    store.enter(&[short]).await.unwrap();
    let sql = server.sql().await;
    let rows = format!("SELECT (SELECT count(*) FROM {schema}.line) + (SELECT count(*) FROM {schema}.ticket)");
    soon("its end", async {
        while sql.query_one(&rows, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}
