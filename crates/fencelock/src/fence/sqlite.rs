//! The fence in a SQLite database of the caller's own, inside the caller's own transaction.
//!
//! ```
//! use fencelock::{ErrorKind, Token, fence, rusqlite::Connection, store::Mode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let token = |n| Token::from_parts(n, Mode::Exclusive, "stock/42", "redis").unwrap();
//! let mut shop = Connection::open_in_memory()?;
//! shop.execute_batch("CREATE TABLE stock (item INTEGER PRIMARY KEY, pieces INTEGER)")?;
//! fence::sqlite::migrate(&shop)?;
//!
//! let transaction = shop.transaction()?;
//! fence::sqlite::accept(&transaction, &token(34))?;
//! transaction.execute("INSERT INTO stock VALUES (42, 7)", ())?;
//! transaction.commit()?;
//!
//! let transaction = shop.transaction()?;
//! let refused = fence::sqlite::accept(&transaction, &token(33)).unwrap_err();
//! assert_eq!(refused.kind(), ErrorKind::Overtaken);
//! # Ok(())
//! # }
//! ```

use super::sql::{self, Dialect, Parameter, Statement};
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;
use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OptionalExtension, ToSql, params_from_iter};

/// Makes the table of the marks, where it is not there yet.
///
/// # Errors
/// Whatever keeps the database from it.
pub fn migrate(connection: &Connection) -> Result<()> {
    connection.execute_batch(sql::table(Dialect::Sqlite)).map_err(|error| failed("made", error))
}

/// Accepts an access and remembers it, or refuses it because a later grant has been here. Give it the transaction (or its
/// connection) that writes: then the write and the mark come about together. One statement; on a refusal two.
///
/// # Errors
/// `Overtaken`: roll the transaction back. `InvalidInput` for a token that no store can have given; whatever keeps the
/// database from answering.
pub fn accept(connection: &Connection, token: &Token) -> Result<()> {
    let mut written = 0;
    for Statement { text, parameters } in sql::access(Dialect::Sqlite, token)? {
        let mut statement = connection.prepare_cached(text).map_err(|error| failed("asked", error))?;
        written = statement.execute(params_from_iter(parameters)).map_err(|error| failed("asked", error))?;
    }
    if written == 1 {
        return Ok(());
    }
    let Statement { text, parameters } = sql::marks(Dialect::Sqlite, token);
    let marks = connection
        .query_row(text, params_from_iter(parameters), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
        .map_err(|error| failed("read", error))?;
    let (exclusive, shared) = marks.unwrap_or_default();
    Err(sql::overtaken(token, exclusive, shared).into())
}

fn failed(what: &str, error: rusqlite::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the fence could not be {what}")).effect_unknown().caused_by(error)
}

impl ToSql for Parameter {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Parameter::Text(text) => text.to_sql(),
            Parameter::Number(number) => number.to_sql(),
        }
    }
}
