//! The tables: how they come to be, who may use them, and that they stay small.

use crate::{fresh, open, soon, ticket, try_open};
use fencelock::ErrorKind;
use fencelock::line::WHOLE;
use fencelock::store::mysql::MysqlStore;
use fencelock::store::{Entered, Place, Store};
use mysql_async::prelude::Queryable;
use std::time::Duration;

fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("the URL names a database")
}

#[tokio::test]
async fn first_uses_at_the_same_moment_are_safe() {
    let (_server, url) = fresh().await;
    let opening = (0..8).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { try_open(&url, &[]).await.map(drop) })
    });
    for one in opening.collect::<Vec<_>>() {
        soon("a store", one).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn nothing_is_made_where_that_is_not_wanted() {
    let (server, url) = fresh().await;
    let error = try_open(&url, &[("migrate", "off")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    server.sql(database(&url)).await.query_drop(MysqlStore::layout()).await.unwrap();
    let store = try_open(&url, &[("migrate", "off")]).await.unwrap();
    assert!(matches!(
        store.enter(&[ticket("x", 1, WHOLE, true)]).await.unwrap()[..],
        [Entered::Admitted { token: 1, .. }]
    ));
}

#[tokio::test]
async fn an_unknown_layout_is_refused() {
    let (server, url) = fresh().await;
    open(&url).await;
    server.sql(database(&url)).await.query_drop("UPDATE fencelock_layout SET version = 99").await.unwrap();
    let error = try_open(&url, &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken);
    assert!(error.to_string().contains("layout 99"), "{error}");
}

#[tokio::test]
async fn a_user_needs_no_more_than_the_documented_rights() {
    let (server, url) = fresh().await;
    let database = database(&url);
    let mut sql = server.sql("mysql").await;
    sql.query_drop(format!("CREATE USER '{database}'@'%' IDENTIFIED BY 'right'")).await.unwrap();
    sql.query_drop(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO '{database}'@'%'")).await.unwrap();
    let theirs = format!("mysql://{database}:right@127.0.0.1:{}/{database}", server.port);
    let error = try_open(&theirs, &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    open(&url).await;
    let store = open(&theirs).await;
    let entered = ticket("x", 1, WHOLE, true);
    store.enter(std::slice::from_ref(&entered)).await.unwrap();
    store.leave(&[entered.place]).await.unwrap();
    assert_eq!(store.reap(Duration::ZERO).await.unwrap(), 1);
    let error = try_open(&theirs.replace("right", "wrong"), &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
}

#[tokio::test]
async fn names_used_once_leave_nothing_and_numbers_go_on() {
    let (server, url) = fresh().await;
    let store = open(&url).await;
    let mut highest = 0;
    for round in 0..160 {
        let batch: Vec<_> = (0..64).map(|i| ticket(&format!("once/{round}/{i}"), WHOLE, WHOLE, true)).collect();
        for answer in store.enter(&batch).await.unwrap() {
            let Entered::Admitted { token, .. } = answer else { panic!("{answer:?}") };
            highest = highest.max(token);
        }
        let places: Vec<Place> = batch.into_iter().map(|ticket| ticket.place).collect();
        store.leave(&places).await.unwrap();
    }
    let mut sql = server.sql(database(&url)).await;
    soon("a small table", async {
        loop {
            let lines: Option<i64> = sql.query_first("SELECT COUNT(*) FROM fencelock_line").await.unwrap();
            if lines == Some(0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let Entered::Admitted { token, .. } = store.enter(&[ticket("once/0/0", WHOLE, WHOLE, true)]).await.unwrap()[0]
    else {
        panic!("nobody else is there")
    };
    assert!(token > highest, "{token} after {highest}");
}

#[tokio::test]
async fn lapsed_tickets_of_forgotten_lines_are_taken_out() {
    let (server, url) = fresh().await;
    let store = open(&url).await;
    let mut short = ticket("forgotten", WHOLE, WHOLE, true);
    short.lease = Duration::from_millis(100);
    store.enter(&[short]).await.unwrap();
    let mut sql = server.sql(database(&url)).await;
    soon("its end", async {
        loop {
            let count = "SELECT (SELECT COUNT(*) FROM fencelock_line) + (SELECT COUNT(*) FROM fencelock_ticket)";
            let rows: Option<i64> = sql.query_first(count).await.unwrap();
            if rows == Some(0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}
