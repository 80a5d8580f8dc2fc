//! Locks and fences inside transactions of the user's own.

use crate::server::Server;
use crate::{open, soon};
use fencelock::fence::sql::{self as fence, Dialect};
use fencelock::sql::change::{OwnRow, change_one};
use fencelock::sql::postgres::{InSchema, lock_statement};
use fencelock::sql::{Parameter, Wait, fence_in, lock_in};
use fencelock::{ErrorKind, Locks, Mode, Token};
use std::time::Duration;

const LONG: Wait = Wait::AtMost(Duration::from_secs(30));

/// A server with the tables in a schema of their own.
async fn tables() -> (std::sync::Arc<Server>, String) {
    let server = Server::shared();
    let schema = Server::schema();
    open(&server, &schema, &[]).await;
    (server, schema)
}

async fn waits_for_a_lock(server: &Server) {
    let sql = server.sql().await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%lock_in%'";
    soon("a wait in the server", async {
        while sql.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_transaction_excludes_the_others_until_it_ends() {
    let server = Server::start(&[]);
    open(&server, "fencelock", &[]).await;
    let (mut first, mut second) = (server.sql().await, server.sql().await);
    for ending in ["commit", "rollback", "drop"] {
        let mut one = first.transaction().await.unwrap();
        lock_in(&mut one, "stock/42", Wait::No).await.unwrap();
        let mut two = second.transaction().await.unwrap();
        let error = lock_in(&mut two, "stock/42", Wait::No).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held, "{error}");
        let error = lock_in(&mut two, "stock/42", Wait::AtMost(Duration::from_millis(50))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        lock_in(&mut two, "stock/43", Wait::No).await.expect("the transaction goes on, and the other name is free");
        let timeout: String = two.query_one("SHOW lock_timeout", &[]).await.unwrap().get(0);
        assert_eq!(timeout, "0", "settings are as they were");
        let waiting = soon("the lock", lock_in(&mut two, "stock/42", Wait::Forever));
        let ends = async {
            waits_for_a_lock(&server).await;
            match ending {
                "commit" => one.commit().await.unwrap(),
                "rollback" => one.rollback().await.unwrap(),
                _ => drop(one),
            }
        };
        let (got, ()) = tokio::join!(waiting, ends);
        got.unwrap();
        two.commit().await.unwrap();
    }
    let mut one = first.transaction().await.unwrap();
    lock_in(&mut one, "stock/42", Wait::No).await.expect("free again");
}

#[tokio::test]
async fn transactions_and_leases_exclude_each_other() {
    let (server, schema) = tables().await;
    let locks = Locks::connect(&server.url(&schema)).await.unwrap();
    let guard = locks.mutex("both").lock().await.unwrap();
    let mut sql = server.sql().await;
    let mut transaction = sql.transaction().await.unwrap();
    let mut inside = InSchema { transaction: &mut transaction, schema: &schema };
    // While the guard is being renewed it is that call, and not the guard, which has the row.
    let error = soon("the holder", async {
        loop {
            let error = lock_in(&mut inside, "both", Wait::No).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Held);
            if error.holder().is_some() {
                return error;
            }
        }
    })
    .await;
    assert_eq!(error.holder().and_then(|holder| holder.token), Some(guard.token().number()), "{error}");
    let error = lock_in(&mut inside, "both", Wait::AtMost(Duration::from_millis(60))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let token = guard.token();
    let (got, released) = tokio::join!(soon("the lock", lock_in(&mut inside, "both", LONG)), guard.release());
    got.unwrap();
    released.unwrap();
    let error = locks.mutex("both").lock_within(Duration::from_millis(300)).await.unwrap_err();
    assert!(error.is_temporary(), "nobody gets in beside the transaction: {error}");
    transaction.commit().await.unwrap();
    let next = soon("the lock", locks.mutex("both").lock()).await.unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn fifty_buyers_of_one_thing() {
    let (server, schema) = tables().await;
    let sql = server.sql().await;
    let table = format!("{schema}.product");
    sql.batch_execute(&format!(
        "CREATE TABLE {table} (id int PRIMARY KEY, stock int); INSERT INTO {table} VALUES (1, 5)"
    ))
    .await
    .unwrap();
    let buyers = (0..12).map(|_| {
        let (server, schema, table) = (server.clone(), schema.clone(), table.clone());
        tokio::spawn(async move {
            let mut sql = server.sql().await;
            let mut bought = 0;
            for _ in 0..3 {
                let mut transaction = sql.transaction().await.unwrap();
                let mut inside = InSchema { transaction: &mut transaction, schema: &schema };
                lock_in(&mut inside, "product/1", LONG).await.unwrap();
                let stock: i32 = transaction
                    .query_one(&format!("SELECT stock FROM {table} WHERE id = 1"), &[])
                    .await
                    .unwrap()
                    .get(0);
                if stock > 0 {
                    tokio::task::yield_now().await;
                    transaction
                        .execute(&format!("UPDATE {table} SET stock = {stock} - 1 WHERE id = 1"), &[])
                        .await
                        .unwrap();
                    bought += 1;
                }
                transaction.commit().await.unwrap();
            }
            bought
        })
    });
    let mut sold = 0;
    for buyer in buyers.collect::<Vec<_>>() {
        sold += soon("a buyer", buyer).await.unwrap();
    }
    let left: i32 = sql.query_one(&format!("SELECT stock FROM {table}"), &[]).await.unwrap().get(0);
    assert_eq!((sold, left), (5, 0));
}

#[tokio::test]
async fn numbers_go_on_behind_a_line_that_a_transaction_made() {
    let (server, schema) = tables().await;
    let locks = Locks::connect(&server.url(&schema)).await.unwrap();
    let token = locks.mutex("x").lock().await.unwrap().token().number();
    let store = open(&server, &schema, &[]).await;
    soon("an empty line", async {
        while store.reap(Duration::ZERO).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let mut sql = server.sql().await;
    let mut transaction = sql.transaction().await.unwrap();
    let mut inside = InSchema { transaction: &mut transaction, schema: &schema };
    lock_in(&mut inside, "x", Wait::No).await.unwrap();
    transaction.commit().await.unwrap();
    let next = locks.mutex("x").lock().await.unwrap();
    assert!(next.token().number() > token, "{} after {token}", next.token());
}

#[tokio::test]
async fn whoever_was_overtaken_writes_nothing() {
    let (server, schema) = tables().await;
    let mut sql = server.sql().await;
    sql.batch_execute(&format!("SET search_path TO {schema}")).await.unwrap();
    sql.batch_execute(fence::table(Dialect::Postgres)).await.unwrap();
    let mut marks = fencelock::fence::Marks::default();
    let mut dice = 0x2545_F491_4F6C_DD1D_u64;
    let mut refused = 0;
    for round in 0..300 {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let mode = if dice.is_multiple_of(3) { Mode::Exclusive } else { Mode::Shared };
        let token = Token::from_parts(dice % 20 + 1 + round / 10, mode, "stock/42", "redis").unwrap();
        let rolled_back = dice.is_multiple_of(5);
        let mut transaction = sql.transaction().await.unwrap();
        let mut before = marks;
        let expected = before.accept(&token);
        let fenced = fence_in(&mut InSchema { transaction: &mut transaction, schema: &schema }, &token).await;
        match (expected, fenced) {
            (Ok(()), Ok(())) if rolled_back => transaction.rollback().await.unwrap(),
            (Ok(()), Ok(())) => {
                marks = before;
                transaction.commit().await.unwrap();
            }
            (Err(overtaken), Err(error)) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Overtaken);
                assert!(error.to_string().contains(&overtaken.to_string()), "{error}");
                transaction.rollback().await.unwrap();
            }
            (expected, fenced) => panic!("round {round}: {expected:?}, but {fenced:?}"),
        }
    }
    assert!(refused > 20, "{refused} were refused");
    let mut transaction = sql.transaction().await.unwrap();
    let other = Token::from_parts(1, Mode::Exclusive, "stock/42", "etcd").unwrap();
    fence_in(&mut InSchema { transaction: &mut transaction, schema: &schema }, &other).await.expect("another label");
}

#[tokio::test]
async fn opposite_orders_are_a_deadlock_that_is_told() {
    let (server, schema) = tables().await;
    let (mut first, mut second) = (server.sql().await, server.sql().await);
    let (mut one, mut two) = (first.transaction().await.unwrap(), second.transaction().await.unwrap());
    let lock = async |transaction: &mut tokio_postgres::Transaction<'_>, name: &str| {
        lock_in(&mut InSchema { transaction, schema: &schema }, name, LONG).await
    };
    lock(&mut one, "a").await.unwrap();
    lock(&mut two, "b").await.unwrap();
    let one = async {
        let got = lock(&mut one, "b").await;
        drop(one);
        got
    };
    let two = async {
        let got = lock(&mut two, "a").await;
        drop(two);
        got
    };
    let (one, two) = soon("an end", async { tokio::join!(one, two) }).await;
    let kinds = [one.map_err(|error| error.kind()), two.map_err(|error| error.kind())];
    assert!(kinds.contains(&Err(ErrorKind::Deadlock)) && kinds.contains(&Ok(())), "{kinds:?}");
}

#[tokio::test]
async fn statements_run_on_any_driver() {
    let (server, schema) = tables().await;
    let mut sql = server.sql().await;
    let transaction = sql.transaction().await.unwrap();
    // As text, which is what the least of drivers can do.
    let statement = lock_statement(&schema, "x", Wait::Forever).unwrap();
    let mut text = statement.text;
    for (i, parameter) in statement.parameters.iter().enumerate().rev() {
        let value = match parameter {
            Parameter::Text(Some(text)) => format!("'{text}'"),
            Parameter::Number(Some(number)) => number.to_string(),
            Parameter::Text(None) | Parameter::Number(None) => "NULL".into(),
        };
        text = text.replace(&format!("${}", i + 1), &value);
    }
    assert_eq!(transaction.query_one(&text, &[]).await.unwrap().get::<_, i32>("what"), 0);
    transaction.commit().await.unwrap();
    assert_eq!(lock_statement("no schema", "x", Wait::No).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn without_a_lock_nothing_is_sold_twice_and_no_write_is_lost() {
    let server = Server::shared();
    let table = format!("own_{}", Server::schema());
    let sql = server.sql().await;
    sql.batch_execute(&format!(
        "CREATE TABLE {table} (id int PRIMARY KEY, place text, stock int, seen bigint, version int); \
         INSERT INTO {table} VALUES (1, 'a', 20, 0, 7), (2, 'b', 1, 0, 1), (3, 'b', 1, 0, 1)"
    ))
    .await
    .unwrap();
    let row = OwnRow::new(Dialect::Postgres, &table, "id", 1).unwrap();
    let workers = (0..8).map(|_| {
        let (server, table, row) = (server.clone(), table.clone(), row.clone());
        tokio::spawn(async move {
            let mut sql = server.sql().await;
            let (mut sold, mut written) = (0, 0);
            while written < 10 {
                let mut transaction = sql.transaction().await.unwrap();
                sold += i32::from(change_one(&mut transaction, &row.take("stock", 3).unwrap()).await.unwrap());
                transaction.commit().await.unwrap();
                let mut transaction = sql.transaction().await.unwrap();
                let read = format!("SELECT seen, version FROM {table} WHERE id = 1");
                let found = transaction.query_one(&read, &[]).await.unwrap();
                let (seen, version): (i64, i32) = (found.get(0), found.get(1));
                let update = row.update_if("version", version.into(), &[("seen", (seen + 1).into())]).unwrap();
                written += i32::from(change_one(&mut transaction, &update).await.unwrap());
                transaction.commit().await.unwrap();
            }
            sold
        })
    });
    let mut sold = 0;
    for worker in workers.collect::<Vec<_>>() {
        sold += soon("a worker", worker).await.unwrap();
    }
    let left = sql.query_one(&format!("SELECT stock, seen, version FROM {table} WHERE id = 1"), &[]).await.unwrap();
    assert_eq!((sold, left.get::<_, i32>(0)), (6, 2), "three at a time, as long as there were three");
    assert_eq!((left.get::<_, i64>(1), left.get::<_, i32>(2)), (80, 87));

    let mut one = server.sql().await;
    let mut transaction = one.transaction().await.unwrap();
    let nobody = OwnRow::new(Dialect::Postgres, &table, "id", 9).unwrap();
    assert!(!change_one(&mut transaction, &nobody.take("stock", 1).unwrap()).await.unwrap());
    let two = OwnRow::new(Dialect::Postgres, &table, "place", "b").unwrap();
    let error = change_one(&mut transaction, &two.take("stock", 1).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("2 rows"), "{error}");
}
