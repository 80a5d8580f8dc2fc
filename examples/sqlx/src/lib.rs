//! Locks and fences of fencelock inside a transaction of sqlx, on PostgreSQL.
//!
//! fencelock drives the database by a driver of its own, and so can [`fencelock::sql::lock_in`] only join transactions of that
//! driver. Another driver sends the same statements by itself: fencelock gives their text and parameters, and says what their
//! answers mean. That is all that is done here, and it is the same for any driver.

use fencelock::Token;
use fencelock::fence::sql::{self as fence, Dialect};
use fencelock::sql::postgres::lock_statement;
use fencelock::sql::{Parameter, Wait};
use sqlx::{PgConnection, Row};
use std::time::Duration;

/// What may go wrong: of fencelock, or of sqlx.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Where the store keeps its tables, unless its URL says `?schema=`.
pub const SCHEMA: &str = "fencelock";

/// What became of a wish for a lock. The transaction goes on in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// It is ours until the transaction ends.
    Got,
    /// Another transaction had it for all of the time.
    Busy,
    /// Somebody holds it by a lease: a guard of `Locks`. This is said at once; try again later.
    Leased,
}

/// Locks a name until the transaction ends. One round trip.
pub async fn lock_in(transaction: &mut PgConnection, name: &str, wait: Wait) -> Result<Lock, Error> {
    let statement = lock_statement(SCHEMA, name, wait)?;
    let mut query = sqlx::query(&statement.text);
    for parameter in &statement.parameters {
        query = match parameter {
            Parameter::Text(text) => query.bind(text.as_deref()),
            Parameter::Number(number) => query.bind(*number),
        };
    }
    let row = query.fetch_one(transaction).await?;
    Ok(match row.try_get::<i32, _>("what")? {
        0 => Lock::Got,
        1 => Lock::Busy,
        _ => Lock::Leased,
    })
}

/// Whether nobody who got the lock after this token has written here before; nobody who got it earlier will hereafter. After
/// `false` the transaction is to be rolled back. One round trip. It needs the table of [`fence::table`].
pub async fn fence_in(transaction: &mut PgConnection, token: &Token) -> Result<bool, Error> {
    let mut written = 0;
    for statement in fence::access(Dialect::Postgres, token)? {
        let mut query = sqlx::query(statement.text);
        for parameter in statement.parameters {
            query = match parameter {
                fence::Parameter::Text(text) => query.bind(text),
                fence::Parameter::Number(number) => query.bind(number),
            };
        }
        written = query.execute(&mut *transaction).await?.rows_affected();
    }
    Ok(written == 1)
}

/// Sells one piece: reads the stock, thinks, and writes, which loses a sale if somebody else does so at the same time. The
/// lock keeps them apart. `false`: sold out.
pub async fn sell(pool: &sqlx::PgPool, product: i32) -> Result<bool, Error> {
    let mut transaction = pool.begin().await?;
    // First of all: what is read before the lock may be old.
    while lock_in(&mut transaction, &format!("stock/{product}"), Wait::Forever).await? != Lock::Got {
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let read = sqlx::query("SELECT stock FROM product WHERE id = $1").bind(product);
    let stock: i32 = read.fetch_one(&mut *transaction).await?.try_get(0)?;
    if stock == 0 {
        return Ok(false);
    }
    let write = sqlx::query("UPDATE product SET stock = $1 WHERE id = $2").bind(stock - 1).bind(product);
    write.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Writes for whoever holds a lock by a lease, unless a later holder has been here. `false`: it has, and nothing was written.
pub async fn restock(pool: &sqlx::PgPool, product: i32, stock: i32, token: &Token) -> Result<bool, Error> {
    let mut transaction = pool.begin().await?;
    if !fence_in(&mut transaction, token).await? {
        return Ok(false);
    }
    let write = sqlx::query("UPDATE product SET stock = $1 WHERE id = $2").bind(stock).bind(product);
    write.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}

/// The tables: fencelock's own, that of the fence, and the shop's.
pub async fn prepare(url: &str, pool: &sqlx::PgPool, stock: i32) -> Result<(), Error> {
    if let Some(migration) = fencelock::Migration::of(url)? {
        migration.run().await?;
    }
    sqlx::raw_sql(fence::table(Dialect::Postgres)).execute(pool).await?;
    let table = "DROP TABLE IF EXISTS product; CREATE TABLE product (id int PRIMARY KEY, stock int NOT NULL)";
    sqlx::raw_sql(table).execute(pool).await?;
    sqlx::query("INSERT INTO product VALUES (42, $1)").bind(stock).execute(pool).await?;
    Ok(())
}
