//! The tables: how they come to be, who may use them, and that they stay small.

use crate::rights::use_all;
use crate::server::Server;
use crate::soak::{counted, soaking};
use crate::{open, soon, ticket, try_open};
use fencelock::line::WHOLE;
use fencelock::sql::postgres::InSchema;
use fencelock::sql::{Wait, lock_in};
use fencelock::store::postgres::PostgresStore;
use fencelock::store::{Entered, Place, Store};
use fencelock::{Effect, ErrorKind, Locks, Migrated, Migration};
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
async fn another_layout_is_one_clear_error_and_an_older_one_is_brought_up_to_date() {
    let server = Server::shared();
    let schema = Server::schema();
    let migration = Migration::of(&server.url(&schema)).unwrap().unwrap();
    assert_eq!(migration.run().await.unwrap(), Migrated { from: None, to: 1 });
    let token = Locks::connect(&server.url(&schema)).await.unwrap().mutex("x").lock().await.unwrap().token();
    let sql = server.sql().await;
    for (there, said) in [(99, "layout 99, which is newer"), (0, "layout 0, which is older")] {
        sql.execute(&format!("UPDATE {schema}.layout SET version = {there}"), &[]).await.unwrap();
        for mode in ["rows", "session"] {
            let error = Locks::connect(&format!("{}&mode={mode}", server.url(&schema))).await.unwrap_err();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Broken, Effect::None), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }
    sql.batch_execute(&format!("DROP FUNCTION {schema}.renew; DROP TABLE {schema}.register")).await.unwrap();
    assert_eq!(migration.run().await.unwrap(), Migrated { from: Some(0), to: 1 });
    assert_eq!(migration.run().await.unwrap(), Migrated { from: Some(1), to: 1 });
    let locks = Locks::connect(&server.url(&schema)).await.unwrap();
    locks.register("x").set("1").await.unwrap();
    assert!(locks.mutex("x").lock().await.unwrap().token() > token, "what was there is still there");
    sql.execute(&format!("UPDATE {schema}.layout SET version = 2"), &[]).await.unwrap();
    let error = migration.run().await.unwrap_err();
    assert!(error.to_string().contains("newer"), "{error}");
    let version: i32 = sql.query_one(&format!("SELECT version FROM {schema}.layout"), &[]).await.unwrap().get(0);
    assert_eq!(version, 2, "a newer one is left alone");
}

#[tokio::test]
async fn a_role_needs_no_more_than_the_printed_rights() {
    let server = Server::shared();
    let schema = Server::schema();
    let role = format!("role_{schema}");
    let sql = server.sql().await;
    sql.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let theirs = server.url(&schema).replace("//postgres@", &format!("//{role}@"));

    let migration = Migration::of(&theirs).unwrap().unwrap();
    for error in [Locks::connect(&theirs).await.unwrap_err(), migration.run().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("fencelock migrate"), "{error}");
    }
    Migration::of(&server.url(&schema)).unwrap().unwrap().run().await.unwrap();
    assert_eq!(Locks::connect(&theirs).await.unwrap_err().kind(), ErrorKind::Denied);
    let grants: Vec<String> = (migration.sql().lines())
        .filter_map(|line| line.strip_prefix("-- GRANT "))
        .map(|grant| format!("GRANT {}", grant.replace(" TO app", &format!(" TO {role}"))))
        .collect();
    assert_eq!(grants.len(), 3);
    sql.batch_execute(&grants.join("")).await.unwrap();
    let stored: Vec<(String, String)> = [("schema".to_string(), schema.clone())].into();
    let store = PostgresStore::connect(theirs.split('?').next().unwrap(), &stored.into_iter().collect()).await.unwrap();
    soon("everything", use_all(&theirs)).await;
    soon("a sweep", async {
        while store.reap(Duration::ZERO).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let (client, connection) =
        tokio_postgres::connect(theirs.split('?').next().unwrap(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut client = client;
    let mut transaction = client.transaction().await.unwrap();
    let mut inside = InSchema { transaction: &mut transaction, schema: &schema };
    lock_in(&mut inside, "stock/42", Wait::No).await.unwrap();
    transaction.commit().await.unwrap();
}

/// With `FENCELOCK_SOAK=1` a million, and then a million that others have left behind.
#[tokio::test]
async fn names_used_once_leave_nothing_and_numbers_go_on() {
    let server = Server::shared();
    let schema = Server::schema();
    let store = open(&server, &schema, &[]).await;
    let sql = server.sql().await;
    let lines = format!("SELECT count(*) FROM {schema}.line");
    let (mut highest, mut most) = (0, 0);
    for round in 0..if soaking() { 5000 } else { 50 } {
        let batch: Vec<_> = (0..200).map(|i| ticket(&format!("once/{round}/{i}"), WHOLE, WHOLE, true)).collect();
        for answer in store.enter(&batch).await.unwrap() {
            let Entered::Admitted { token, .. } = answer else { panic!("{answer:?}") };
            highest = highest.max(token);
        }
        let places: Vec<Place> = batch.into_iter().map(|ticket| ticket.place).collect();
        store.leave(&places).await.unwrap();
        if round % 50 == 49 {
            most = most.max(sql.query_one(&lines, &[]).await.unwrap().get::<_, i64>(0));
        }
    }
    counted(&format!("at most {most} lines in the table at a time on PostgreSQL"));
    assert!(most <= 50_000, "{most} lines at a time");
    if soaking() {
        let left = format!(
            "INSERT INTO {schema}.line (name, last, touched) SELECT 'left/' || n, n, '2000-01-01' FROM generate_series(1, 1000000) n"
        );
        sql.execute(&left, &[]).await.unwrap();
        highest = highest.max(1_000_000);
        // Whoever makes a line takes out what was left behind.
        let ticket = ticket("new", WHOLE, WHOLE, true);
        store.enter(std::slice::from_ref(&ticket)).await.unwrap();
        store.leave(&[ticket.place]).await.unwrap();
    }
    let empty = async {
        while sql.query_one(&lines, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let limit = Duration::from_secs(if soaking() { 900 } else { 60 });
    tokio::time::timeout(limit, empty).await.expect("a small table");
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
