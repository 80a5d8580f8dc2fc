//! The three ways in which a database deadlocks, provoked on a real one, and the answer to each: what `docs/deadlocks.md` tells.
//!
//! ```text
//! cargo run --example deadlocks --features mysql,postgres -- postgres://postgres@127.0.0.1/postgres mysql://root@127.0.0.1/test
//! ```
//!
//! It makes a table `fencelock_deadlocks` there, and drops it in the end.

use fencelock::sql::change::{Dialect, OwnRow, change_one};
use fencelock::sql::mysql::check_locking;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use tokio::join;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What one of them came to: the database's code of a deadlock, if it ended in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) what: &'static str,
    pub(crate) deadlock: Option<String>,
}

fn seen(what: &'static str, codes: [Option<String>; 2]) -> Seen {
    Seen { what, deadlock: codes.into_iter().flatten().next() }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    for url in std::env::args().skip(1) {
        println!("{}", url.split(':').next().unwrap_or_default());
        let all = if url.starts_with("mysql:") { on_mysql(&url).await? } else { on_postgres(&url).await? };
        for seen in all {
            println!("  {:<58} {}", seen.what, seen.deadlock.as_deref().unwrap_or("both went through"));
        }
    }
    Ok(())
}

const TABLE: &str = "CREATE TABLE fencelock_deadlocks (id INT PRIMARY KEY, sku INT, stock INT)";
const ROWS: &str = "INSERT INTO fencelock_deadlocks VALUES (1, 1, 9), (2, 2, 9), (3, 3, 9)";
const DROP: &str = "DROP TABLE IF EXISTS fencelock_deadlocks";

/// Sells one of this.
fn update(by: &str, value: u32) -> String {
    format!("UPDATE fencelock_deadlocks SET stock = stock - 1 WHERE {by} = {value}")
}

/// Locks these two at once, in the order of their keys, whatever order they are wanted in.
fn both(a: u32, b: u32) -> String {
    format!("SELECT stock FROM fencelock_deadlocks WHERE id IN ({a}, {b}) ORDER BY id FOR UPDATE")
}

fn one(how: &str) -> String {
    format!("SELECT stock FROM fencelock_deadlocks WHERE id = 1 {how}")
}

// MySQL and MariaDB

/// Two transactions: the first statements one after the other, the second ones at the same time.
async fn race_mysql(a: &mut Conn, b: &mut Conn, steps: [[&str; 2]; 2]) -> Result<[Option<String>; 2], Failure> {
    async fn end(conn: &mut Conn, statement: &str) -> Result<Option<String>, Failure> {
        match conn.query_drop(statement).await {
            Ok(()) => {
                conn.query_drop("COMMIT").await?;
                Ok(None)
            }
            Err(mysql_async::Error::Server(server)) if server.code == 1213 => Ok(Some("1213".into())),
            Err(error) => Err(error.into()),
        }
    }
    for (conn, [first, _]) in [&mut *a, &mut *b].into_iter().zip(steps) {
        conn.query_drop("START TRANSACTION").await?;
        conn.query_drop(first).await?;
    }
    let (a, b) = join!(end(a, steps[0][1]), end(b, steps[1][1]));
    Ok([a?, b?])
}

/// All of them on MySQL or MariaDB.
pub(crate) async fn on_mysql(url: &str) -> Result<Vec<Seen>, Failure> {
    let (mut a, mut b) = (Conn::from_url(url).await?, Conn::from_url(url).await?);
    for statement in [DROP, TABLE, ROWS] {
        a.query_drop(statement).await?;
    }
    let repeatable = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
    for conn in [&mut a, &mut b] {
        conn.query_drop(repeatable).await?;
    }
    let mut all = Vec::new();

    let (one_first, two_first) = ([&*update("id", 1), &*update("id", 2)], [&*update("id", 2), &*update("id", 1)]);
    all.push(seen("opposite order", race_mysql(&mut a, &mut b, [one_first, two_first]).await?));
    // Everything at once, in one order: whoever comes second waits at its first statement.
    let (first, second) = (both(1, 2), both(2, 1));
    let waiting = async {
        let mut transaction = a.start_transaction(TxOpts::default()).await?;
        transaction.query_drop(first).await?;
        transaction.query_drop(update("id", 1)).await?;
        transaction.commit().await
    };
    let other = async {
        let mut transaction = b.start_transaction(TxOpts::default()).await?;
        transaction.query_drop(second).await?;
        transaction.query_drop(update("id", 2)).await?;
        transaction.commit().await
    };
    let (left, right) = join!(waiting, other);
    left?;
    right?;
    all.push(seen("  answer: one order, everything at once", [None, None]));

    let (share, sell) = (one("LOCK IN SHARE MODE"), update("id", 1));
    let raising = [share.as_str(), sell.as_str()];
    all.push(seen("a shared lock raised to an exclusive one", race_mysql(&mut a, &mut b, [raising, raising]).await?));
    let take = OwnRow::new(Dialect::MySql, "fencelock_deadlocks", "id", 1)?.take("stock", 1)?;
    async fn sell_one(conn: &mut Conn, take: &fencelock::sql::Statement) -> Result<(), Failure> {
        let mut transaction = conn.start_transaction(TxOpts::default()).await?;
        if !change_one(&mut transaction, take).await? {
            return Err("sold out".into());
        }
        Ok(transaction.commit().await?)
    }
    let (left, right) = join!(sell_one(&mut a, &take), sell_one(&mut b, &take));
    left?;
    right?;
    all.push(seen("  answer: one statement with its condition", [None, None]));

    // Each of the two touches one row, and another one, of its own. But it has to look through the table to find the second.
    let (row1, row3, sku1, sku3) = (update("id", 1), update("id", 3), update("sku", 1), update("sku", 3));
    let scanning = [[row1.as_str(), sku1.as_str()], [row3.as_str(), sku3.as_str()]];
    all.push(seen("an UPDATE that looks through the table", race_mysql(&mut a, &mut b, scanning).await?));
    let locking = "SELECT stock FROM fencelock_deadlocks WHERE sku = ? FOR UPDATE";
    assert!(check_locking(&mut a, locking, (1,)).await.is_err(), "it is told beforehand");
    for conn in [&mut a, &mut b] {
        conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
    }
    all.push(seen("  answer: READ COMMITTED", race_mysql(&mut a, &mut b, scanning).await?));
    for conn in [&mut a, &mut b] {
        conn.query_drop(repeatable).await?;
    }
    a.query_drop("CREATE UNIQUE INDEX sku ON fencelock_deadlocks (sku)").await?;
    check_locking(&mut a, locking, (1,)).await?;
    all.push(seen("  answer: an index", race_mysql(&mut a, &mut b, scanning).await?));
    a.query_drop(DROP).await?;
    Ok(all)
}

// PostgreSQL

async fn connect(url: &str) -> Result<tokio_postgres::Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// As [`race_mysql`].
async fn race_postgres(
    a: &mut tokio_postgres::Client,
    b: &mut tokio_postgres::Client,
    steps: [[&str; 2]; 2],
) -> Result<[Option<String>; 2], Failure> {
    async fn end(transaction: tokio_postgres::Transaction<'_>, statement: &str) -> Result<Option<String>, Failure> {
        match transaction.batch_execute(statement).await {
            Ok(()) => {
                transaction.commit().await?;
                Ok(None)
            }
            Err(error) if error.code().is_some_and(|code| code.code() == "40P01") => {
                transaction.rollback().await?;
                Ok(Some("40P01".into()))
            }
            Err(error) => Err(error.into()),
        }
    }
    let (left, right) = (a.transaction().await?, b.transaction().await?);
    left.batch_execute(steps[0][0]).await?;
    right.batch_execute(steps[1][0]).await?;
    let (left, right) = join!(end(left, steps[0][1]), end(right, steps[1][1]));
    Ok([left?, right?])
}

/// All of them on PostgreSQL.
pub(crate) async fn on_postgres(url: &str) -> Result<Vec<Seen>, Failure> {
    let (mut a, mut b) = (connect(url).await?, connect(url).await?);
    a.batch_execute(&format!("{DROP}; {TABLE}; {ROWS}")).await?;
    let mut all = Vec::new();

    let (one_first, two_first) = ([&*update("id", 1), &*update("id", 2)], [&*update("id", 2), &*update("id", 1)]);
    all.push(seen("opposite order", race_postgres(&mut a, &mut b, [one_first, two_first]).await?));
    async fn in_order(client: &mut tokio_postgres::Client, lock: String, sell: String) -> Result<(), Failure> {
        let transaction = client.transaction().await?;
        transaction.batch_execute(&lock).await?;
        transaction.batch_execute(&sell).await?;
        Ok(transaction.commit().await?)
    }
    let first = in_order(&mut a, both(1, 2), update("id", 1));
    let second = in_order(&mut b, both(2, 1), update("id", 2));
    let (left, right) = join!(first, second);
    left?;
    right?;
    all.push(seen("  answer: one order, everything at once", [None, None]));

    let (share, sell) = (one("FOR SHARE"), update("id", 1));
    let raising = [share.as_str(), sell.as_str()];
    all.push(seen(
        "a shared lock raised to an exclusive one",
        race_postgres(&mut a, &mut b, [raising, raising]).await?,
    ));
    let take = OwnRow::new(Dialect::Postgres, "fencelock_deadlocks", "id", 1)?.take("stock", 1)?;
    async fn sell_one(client: &mut tokio_postgres::Client, take: &fencelock::sql::Statement) -> Result<(), Failure> {
        let mut transaction = client.transaction().await?;
        if !change_one(&mut transaction, take).await? {
            return Err("sold out".into());
        }
        Ok(transaction.commit().await?)
    }
    let (left, right) = join!(sell_one(&mut a, &take), sell_one(&mut b, &take));
    left?;
    right?;
    all.push(seen("  answer: one statement with its condition", [None, None]));

    // PostgreSQL locks only the rows that it changes, at any isolation: there is nothing to answer.
    let (row1, row3, sku1, sku3) = (update("id", 1), update("id", 3), update("sku", 1), update("sku", 3));
    let scanning = [[row1.as_str(), sku1.as_str()], [row3.as_str(), sku3.as_str()]];
    all.push(seen("an UPDATE that looks through the table", race_postgres(&mut a, &mut b, scanning).await?));
    a.batch_execute(DROP).await?;
    Ok(all)
}
