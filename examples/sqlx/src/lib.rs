//! fencelock inside transactions of sqlx: the statements are fencelock's, sqlx runs them.
//!
//! The tables must be there: run `fencelock migrate`, or connect once with `Locks::connect`.

use fencelock::sql::change::{Dialect, OwnRow, changed_one};
use fencelock::sql::{Parameter, Statement, Wait, mysql, postgres};
use fencelock::{Error, ErrorKind, Token};
use sqlx::{MySql, MySqlConnection, PgConnection, Postgres, Row};
use std::time::Duration;

/// What can go wrong: the database's errors and ours.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

type PgQuery<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;
type MyQuery<'q> = sqlx::query::Query<'q, MySql, sqlx::mysql::MySqlArguments>;

/// A statement as sqlx has it for PostgreSQL.
pub fn on_postgres(statement: &Statement) -> PgQuery<'_> {
    statement.parameters.iter().fold(sqlx::query(&statement.text), |query, parameter| match parameter {
        Parameter::Text(text) => query.bind(text.as_deref()),
        Parameter::Number(number) => query.bind(*number),
        Parameter::Truth(truth) => query.bind(*truth),
    })
}

/// A statement as sqlx has it for MySQL and MariaDB: text is bytes there.
pub fn on_mysql(statement: &Statement) -> MyQuery<'_> {
    statement.parameters.iter().fold(sqlx::query(&statement.text), |query, parameter| match parameter {
        Parameter::Text(text) => query.bind(text.as_ref().map(|text| text.as_bytes())),
        Parameter::Number(number) => query.bind(*number),
        Parameter::Truth(truth) => query.bind(*truth),
    })
}

fn held(name: &str) -> Failure {
    Error::new(ErrorKind::Held, format!("{name} is held by somebody else")).into()
}

/// Locks a name in a transaction on PostgreSQL; released by its end.
pub async fn lock_postgres(transaction: &mut PgConnection, name: &str) -> Result<(), Failure> {
    let lock = postgres::lock_statement("fencelock", name, Wait::AtMost(Duration::from_secs(5)))?;
    let what: i32 = on_postgres(&lock).fetch_one(transaction).await?.try_get("what")?;
    if what == 0 { Ok(()) } else { Err(held(name)) }
}

/// Makes sure that no later holder of the lock has written here before. On `false` roll back.
pub async fn fence_postgres(transaction: &mut PgConnection, token: &Token) -> Result<bool, Failure> {
    let fence = postgres::fence_statement("fencelock", token)?;
    Ok(on_postgres(&fence).fetch_one(transaction).await?.try_get("accepted")?)
}

/// Takes one of a product, if there is one: no lock at all.
pub async fn take_postgres(transaction: &mut PgConnection, id: i64) -> Result<bool, Failure> {
    let take = OwnRow::new(Dialect::Postgres, "product", "id", id)?.take("stock", 1)?;
    Ok(changed_one(on_postgres(&take).execute(transaction).await?.rows_affected())?)
}

/// Locks a name in a transaction on MySQL or MariaDB; released by its end. The row must have been made by
/// `fencelock::sql::mysql::prepare`.
pub async fn lock_mysql(transaction: &mut MySqlConnection, name: &str) -> Result<(), Failure> {
    let statements = mysql::lock_statements(name, Wait::AtMost(Duration::from_secs(5)))?;
    let mut rows = Vec::new();
    for statement in &statements {
        rows.push(on_mysql(statement).fetch_all(&mut *transaction).await?.len());
    }
    // Remember the limit, lock the row, restore the limit, look for a holder by lease.
    match rows[..] {
        [_, 1, _, 0] => Ok(()),
        [_, 0, ..] => Err("there is no row to lock: prepare it first".into()),
        _ => Err(held(name)),
    }
}

/// Makes sure that no later holder of the lock has written here before. On `false` roll back.
pub async fn fence_mysql(transaction: &mut MySqlConnection, token: &Token) -> Result<bool, Failure> {
    let mut accepted = false;
    for statement in mysql::fence_statements(token)? {
        let rows = on_mysql(&statement).fetch_all(&mut *transaction).await?;
        if let Some(row) = rows.first() {
            accepted = row.try_get::<i64, _>("accepted")? == 1;
        }
    }
    Ok(accepted)
}

/// Takes one of a product, if there is one: no lock at all.
pub async fn take_mysql(transaction: &mut MySqlConnection, id: i64) -> Result<bool, Failure> {
    let take = OwnRow::new(Dialect::Mysql, "product", "id", id)?.take("stock", 1)?;
    Ok(changed_one(on_mysql(&take).execute(transaction).await?.rows_affected())?)
}
