//! Inside a transaction of tokio-postgres; and the same statements for other drivers.

use super::{InTransaction, Parameter, Statement, Wait, not_got};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Overtaken;
use crate::fence::sql::{self, Dialect};
use crate::name::Name;
use crate::store::BoxFuture;
use crate::store::postgres::{SCHEMA, check_schema, of_transaction, seen, spelled};
use crate::token::Token;
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Transaction};

/// A holder by lease is looked for this often.
const AGAIN: Duration = Duration::from_millis(25);

/// A transaction with the store's tables in another schema than `fencelock`. (The table of the fence is the caller's own, and is
/// found by the search path in either case.)
pub struct InSchema<'a, 'b> {
    /// The transaction.
    pub transaction: &'a mut Transaction<'b>,
    /// Where the store's tables are.
    pub schema: &'a str,
}

impl std::fmt::Debug for InSchema<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InSchema({})", self.schema)
    }
}

/// What [`lock_in`](super::lock_in) runs. The one row's column `what` is 0 if the row is locked, 1 if it was not within the time,
/// 2 if somebody holds it by a lease; the transaction goes on in any case.
///
/// # Errors
/// `InvalidName`; `InvalidInput` for a schema that is not one.
pub fn lock_statement(schema: &str, name: &str, wait: Wait) -> Result<Statement> {
    check_schema(schema)?;
    Ok(locking(schema, &Name::new("", name)?, wait))
}

fn locking(schema: &str, name: &Name, wait: Wait) -> Statement {
    let millis = match wait {
        Wait::No => Some(0),
        Wait::AtMost(limit) => Some(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).min(i64::from(i32::MAX))),
        Wait::Forever => None,
    };
    Statement {
        text: spelled("SELECT * FROM fencelock.lock_in($1, $2, $3)", schema).into_owned(),
        parameters: vec![
            Parameter::Text(Some(name.key().into())),
            Parameter::Text(name.long().map(crate::store::sql::text)),
            Parameter::Number(millis),
        ],
    }
}

fn typed<'a>(statement: &'a Statement) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    let typed = |parameter: &'a Parameter| match parameter {
        Parameter::Text(text) => (text as &'a (dyn ToSql + Sync), Type::TEXT),
        Parameter::Number(number) => (number as _, Type::INT8),
    };
    statement.parameters.iter().map(typed).collect()
}

async fn run(transaction: &Transaction<'_>, statement: &Statement) -> Result<Row> {
    let rows = transaction.query_typed(&statement.text, &typed(statement)).await.map_err(of_transaction)?;
    rows.into_iter().next().ok_or_else(|| Error::new(ErrorKind::Broken, "the database gave no answer"))
}

fn get<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|error| {
        Error::new(ErrorKind::Broken, "the database answered something that this version does not understand")
            .caused_by(error)
    })
}

async fn lock(transaction: &Transaction<'_>, schema: &str, name: &Name, wait: Wait) -> Result<()> {
    check_schema(schema)?;
    let clock = Clock::system();
    let began = clock.now();
    loop {
        let left = match wait {
            Wait::AtMost(limit) => Wait::AtMost(limit.saturating_sub(clock.now().since(began))),
            other => other,
        };
        let row = run(transaction, &locking(schema, name, left)).await?;
        match get::<i32>(&row, "what")? {
            0 => return Ok(()),
            1 => return Err(not_got(name, wait)),
            _ => {}
        }
        let holder = seen(&row)?.map(|(_, seen)| seen);
        match left {
            Wait::No => return Err(Error::new(ErrorKind::Held, "held").named(name.shown()).held_by(holder)),
            Wait::AtMost(Duration::ZERO) => {
                let message = format!("timed out after {}", crate::error::spoken(clock.now().since(began)));
                return Err(Error::new(ErrorKind::TimedOut, message).named(name.shown()).held_by(holder));
            }
            _ => clock.sleep_until(clock.now().after(AGAIN)).await,
        }
    }
}

async fn fence(transaction: &Transaction<'_>, token: &Token) -> Result<Option<Overtaken>> {
    let mut written = 0;
    for statement in sql::access(Dialect::Postgres, token)? {
        written = transaction
            .execute_typed(statement.text, &marks_typed(&statement.parameters))
            .await
            .map_err(of_transaction)?;
    }
    if written == 1 {
        return Ok(None);
    }
    let statement = sql::marks(Dialect::Postgres, token);
    let rows =
        transaction.query_typed(statement.text, &marks_typed(&statement.parameters)).await.map_err(of_transaction)?;
    let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Broken, "the database lost the marks of the fence"))?;
    Ok(Some(sql::overtaken(token, get(row, "exclusive_mark")?, get(row, "shared_mark")?)))
}

fn marks_typed(parameters: &[sql::Parameter]) -> Vec<(&(dyn ToSql + Sync), Type)> {
    let mut all: Vec<(&(dyn ToSql + Sync), Type)> = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        all.push(match parameter {
            sql::Parameter::Text(text) => (text, Type::TEXT),
            sql::Parameter::Number(number) => (number, Type::INT8),
        });
    }
    all
}

impl InTransaction for Transaction<'_> {
    fn lock_line<'a>(&'a mut self, name: &'a Name, wait: Wait) -> BoxFuture<'a, Result<()>> {
        Box::pin(lock(self, SCHEMA, name, wait))
    }

    fn fence<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<Option<Overtaken>>> {
        Box::pin(fence(self, token))
    }
}

impl InTransaction for InSchema<'_, '_> {
    fn lock_line<'a>(&'a mut self, name: &'a Name, wait: Wait) -> BoxFuture<'a, Result<()>> {
        Box::pin(lock(self.transaction, self.schema, name, wait))
    }

    fn fence<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<Option<Overtaken>>> {
        Box::pin(fence(self.transaction, token))
    }
}

impl super::change::Changing for Transaction<'_> {
    fn change<'a>(&'a mut self, statement: &'a Statement) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move { self.execute_typed(&statement.text, &typed(statement)).await.map_err(of_transaction) })
    }
}
