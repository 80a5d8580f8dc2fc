//! Locks and fences inside transactions of the user's own, and the check of a locking statement.

use crate::server::Server;
use crate::{open, soon};
use fencelock::fence::sql::{self as fence, Dialect};
use fencelock::sql::change::{OwnRow, change_one};
use fencelock::sql::mysql::{check_locking, lock_statements, prepare};
use fencelock::sql::{Parameter, Wait, fence_in, lock_in};
use fencelock::{ErrorKind, Locks, Mode, Token};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, IsolationLevel, TxOpts};
use std::sync::Arc;
use std::time::Duration;

const LONG: Wait = Wait::AtMost(Duration::from_secs(30));

async fn tables() -> (Arc<Server>, String) {
    let server = Server::shared();
    let database = server.database().await;
    open(&server.url(&database)).await;
    (server, database)
}

async fn begin(conn: &mut Conn) -> mysql_async::Transaction<'_> {
    conn.start_transaction(TxOpts::default()).await.unwrap()
}

#[tokio::test]
async fn a_transaction_excludes_the_others_until_it_ends() {
    let (server, database) = tables().await;
    let (mut first, mut second) = (server.sql(&database).await, server.sql(&database).await);
    let error = lock_in(&mut begin(&mut first).await, "stock/42", Wait::No).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "it says what to do: {error}");
    for name in ["stock/42", "stock/42", "stock/43"] {
        prepare(&mut first, name).await.unwrap();
    }
    for ending in ["commit", "rollback"] {
        let mut one = begin(&mut first).await;
        lock_in(&mut one, "stock/42", Wait::No).await.unwrap();
        let mut two = begin(&mut second).await;
        let error = lock_in(&mut two, "stock/42", Wait::No).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held, "{error}");
        let error = lock_in(&mut two, "stock/42", Wait::AtMost(Duration::from_millis(50))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        lock_in(&mut two, "stock/43", Wait::No).await.expect("the other name is free");
        let wait: u64 = two.query_first("SELECT @@innodb_lock_wait_timeout").await.unwrap().unwrap();
        assert_eq!(wait, 50, "settings are as they were");
        let waiting = soon("the lock", lock_in(&mut two, "stock/42", Wait::Forever));
        let ends = async {
            let mut sql = server.sql("information_schema").await;
            let waits = "SELECT COUNT(*) FROM INNODB_TRX WHERE trx_state = 'LOCK WAIT'";
            soon("a wait in the server", async {
                while sql.query_first::<u64, _>(waits).await.unwrap() == Some(0) {
                    // The server makes this table anew only if nobody has read it for a tenth of a second.
                    tokio::time::sleep(Duration::from_millis(150)).await;
                }
            })
            .await;
            match ending {
                "commit" => one.commit().await.unwrap(),
                _ => one.rollback().await.unwrap(),
            }
        };
        let (got, ()) = tokio::join!(waiting, ends);
        got.unwrap();
        two.commit().await.unwrap();
    }
    // A client that goes without a word is rolled back.
    let mut gone = server.sql(&database).await;
    let mut lost = begin(&mut gone).await;
    lock_in(&mut lost, "stock/42", Wait::No).await.unwrap();
    drop(lost);
    drop(gone);
    soon("the lock", lock_in(&mut begin(&mut first).await, "stock/42", LONG)).await.unwrap();
}

#[tokio::test]
async fn transactions_and_leases_exclude_each_other() {
    let (server, database) = tables().await;
    let locks = Locks::connect(&server.url(&database)).await.unwrap();
    let mut sql = server.sql(&database).await;
    prepare(&mut sql, "both").await.unwrap();
    let guard = locks.mutex("both").lock().await.unwrap();
    let mut transaction = begin(&mut sql).await;
    let error = lock_in(&mut transaction, "both", LONG).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(error.holder().and_then(|holder| holder.token), Some(guard.token().number()), "{error}");
    transaction.rollback().await.unwrap();
    let token = guard.token();
    soon("the release", guard.release()).await.unwrap();
    let mut transaction = begin(&mut sql).await;
    lock_in(&mut transaction, "both", Wait::No).await.unwrap();
    let error = locks.mutex("both").lock_within(Duration::from_millis(300)).await.unwrap_err();
    assert!(error.is_temporary(), "nobody gets in beside the transaction: {error}");
    transaction.commit().await.unwrap();
    let next = soon("the lock", locks.mutex("both").lock()).await.unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn an_old_picture_is_not_trusted() {
    let (server, database) = tables().await;
    let locks = Locks::connect(&server.url(&database)).await.unwrap();
    let mut sql = server.sql(&database).await;
    prepare(&mut sql, "old").await.unwrap();
    let mut options = TxOpts::default();
    options.with_isolation_level(IsolationLevel::RepeatableRead);
    let mut transaction = sql.start_transaction(options).await.unwrap();
    transaction.query_drop("SELECT COUNT(*) FROM fencelock_line").await.unwrap();
    let guard = locks.mutex("old").lock().await.unwrap();
    let error = lock_in(&mut transaction, "old", Wait::No).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    transaction.rollback().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn buyers_of_one_thing_and_no_deadlock() {
    let (server, database) = tables().await;
    let mut sql = server.sql(&database).await;
    sql.query_drop("CREATE TABLE product (id INT PRIMARY KEY, stock INT) ENGINE = InnoDB").await.unwrap();
    sql.query_drop("INSERT INTO product VALUES (1, 5)").await.unwrap();
    let deadlocks = crate::deadlocks(&server).await;
    let buyers = (0..12).map(|i| {
        let (server, database) = (server.clone(), database.clone());
        tokio::spawn(async move {
            let mut sql = server.sql(&database).await;
            prepare(&mut sql, "product/1").await.unwrap();
            let mut bought = 0;
            for round in 0..3 {
                let mut transaction = begin(&mut sql).await;
                lock_in(&mut transaction, "product/1", LONG).await.unwrap();
                let stock: i64 = transaction
                    .query_first("SELECT stock FROM product WHERE id = 1 FOR UPDATE")
                    .await
                    .unwrap()
                    .unwrap();
                if stock > 0 && (i + round) % 4 == 0 {
                    transaction.rollback().await.unwrap();
                } else if stock > 0 {
                    transaction
                        .query_drop(format!("UPDATE product SET stock = {stock} - 1 WHERE id = 1"))
                        .await
                        .unwrap();
                    transaction.commit().await.unwrap();
                    bought += 1;
                } else {
                    transaction.commit().await.unwrap();
                }
            }
            bought
        })
    });
    let mut sold = 0;
    for buyer in buyers.collect::<Vec<_>>() {
        sold += soon("a buyer", buyer).await.unwrap();
    }
    assert_eq!(sold, 5);
    assert_eq!(sql.query_first::<i64, _>("SELECT stock FROM product").await.unwrap(), Some(0));
    assert_eq!(crate::deadlocks(&server).await, deadlocks);
}

#[tokio::test]
async fn whoever_was_overtaken_writes_nothing() {
    let (server, database) = tables().await;
    let mut sql = server.sql(&database).await;
    sql.query_drop(fence::table(Dialect::MySql)).await.unwrap();
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
        let mut transaction = begin(&mut sql).await;
        let mut before = marks;
        let expected = before.accept(&token);
        match (expected, fence_in(&mut transaction, &token).await) {
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
}

#[tokio::test]
async fn a_statement_that_would_lock_the_table_is_told() {
    let (server, database) = tables().await;
    let mut sql = server.sql(&database).await;
    sql.query_drop("CREATE TABLE product (id INT PRIMARY KEY, sku INT UNIQUE, name VARCHAR(20), stock INT, KEY (name)) ENGINE = InnoDB")
        .await
        .unwrap();
    sql.query_drop("INSERT INTO product SELECT seq, seq, seq % 10, 1 FROM seq_1_to_500").await.unwrap();
    for good in ["id = ?", "sku = ?", "id = ? + 1000000"] {
        let statement = format!("SELECT stock FROM product WHERE {good} FOR UPDATE");
        check_locking(&mut sql, &statement, (42,)).await.unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    for bad in ["stock = ?", "name = ?", "id > ?", "id + 0 = ?"] {
        let statement = format!("SELECT stock FROM product WHERE {bad} FOR UPDATE");
        let error = check_locking(&mut sql, &statement, (42,)).await.expect_err(bad);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("product"), "{error}");
    }
}

#[tokio::test]
async fn statements_run_on_any_driver() {
    let (server, database) = tables().await;
    let mut sql = server.sql(&database).await;
    prepare(&mut sql, "x").await.unwrap();
    let values = |statement: &fencelock::sql::Statement| {
        let value = |parameter: &Parameter| match parameter {
            Parameter::Text(text) => mysql_async::Value::from(text.clone()),
            Parameter::Number(number) => mysql_async::Value::from(*number),
        };
        mysql_async::Params::Positional(statement.parameters.iter().map(value).collect())
    };
    let mut transaction = begin(&mut sql).await;
    let mut rows = Vec::new();
    for statement in lock_statements("x", LONG).unwrap() {
        let values = if statement.parameters.is_empty() { mysql_async::Params::Empty } else { values(&statement) };
        rows.push(transaction.exec::<mysql_async::Row, _, _>(&statement.text, values).await.unwrap().len());
    }
    assert_eq!(rows, [0, 1, 0, 0], "locked, and held by nobody");
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn without_a_lock_nothing_is_sold_twice_and_no_write_is_lost() {
    let (server, database) = tables().await;
    let mut sql = server.sql(&database).await;
    sql.query_drop(
        "CREATE TABLE own (id INT PRIMARY KEY, place VARCHAR(9), stock INT, seen BIGINT, version INT) ENGINE = InnoDB",
    )
    .await
    .unwrap();
    sql.query_drop("INSERT INTO own VALUES (1, 'a', 20, 0, 7), (2, 'b', 1, 0, 1), (3, 'b', 1, 0, 1)").await.unwrap();
    let row = OwnRow::new(Dialect::MySql, "own", "id", 1).unwrap();
    let workers = (0..8).map(|_| {
        let (server, database, row) = (server.clone(), database.clone(), row.clone());
        tokio::spawn(async move {
            let mut sql = server.sql(&database).await;
            let (mut sold, mut written) = (0, 0);
            while written < 10 {
                let mut transaction = begin(&mut sql).await;
                sold += i32::from(change_one(&mut transaction, &row.take("stock", 3).unwrap()).await.unwrap());
                transaction.commit().await.unwrap();
                let read = "SELECT seen, version FROM own WHERE id = 1";
                let (seen, version): (i64, i64) = sql.query_first(read).await.unwrap().unwrap();
                let mut transaction = begin(&mut sql).await;
                let update = row.update_if("version", version, &[("seen", (seen + 1).into())]).unwrap();
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
    let left: Option<(i64, i64, i64)> =
        sql.query_first("SELECT stock, seen, version FROM own WHERE id = 1").await.unwrap();
    assert_eq!((sold, left), (6, Some((2, 80, 87))), "three at a time, as long as there were three");

    let mut transaction = begin(&mut sql).await;
    let nobody = OwnRow::new(Dialect::MySql, "own", "id", 9).unwrap();
    assert!(!change_one(&mut transaction, &nobody.take("stock", 1).unwrap()).await.unwrap());
    let two = OwnRow::new(Dialect::MySql, "own", "place", "b").unwrap();
    let error = change_one(&mut transaction, &two.take("stock", 1).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("2 rows"), "{error}");
}
