//! The fence as SQL: the text of the table and of the statements, with their parameters, for whichever driver carries them.
//!
//! All of it is meant for the caller's own transaction: the row of the marks is locked until that ends, so an access that was
//! accepted and the write that it was for come about together or not at all.
//!
//! ```
//! use fencelock::{Token, fence::sql::{self, Dialect}, store::Mode};
//!
//! let token = Token::from_parts(34, Mode::Exclusive, "stock/42", "redis").unwrap();
//! let statements = sql::access(Dialect::Postgres, &token)?;
//! assert_eq!(statements.len(), 1, "MySQL takes two");
//! assert!(statements[0].text.contains("ON CONFLICT"));
//! # Ok::<(), fencelock::Error>(())
//! ```

use super::{Overtaken, checked};
use crate::error::Result;
use crate::store::Mode;
use crate::token::Token;

/// Whose SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// SQLite 3.24 or later.
    Sqlite,
    /// PostgreSQL 9.5 or later.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A text: the name, or the label.
    Text(String),
    /// A number: the token.
    Number(i64),
}

/// One statement: its text and its parameters, in the order in which the text has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// `$1`, `$2`, ... for SQLite and PostgreSQL, `?` for MySQL.
    pub text: &'static str,
    /// In order.
    pub parameters: Vec<Parameter>,
}

/// The table `fencelock_fence`. It can be made again and again.
#[must_use]
pub fn table(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite | Dialect::Postgres => include_str!("sql/table.sql"),
        Dialect::MySql => include_str!("sql/table.mysql.sql"),
    }
}

/// The statements of one access, to be sent in this order and in one transaction with the write that they protect. **The last
/// one writes one row if the access is accepted, and none if it was overtaken**: then the transaction is to be rolled back.
///
/// One round trip; on MySQL two.
///
/// # Errors
/// `InvalidInput` for a token that no store can have given.
pub fn access(dialect: Dialect, token: &Token) -> Result<Vec<Statement>> {
    let number = Parameter::Number(checked(token)?);
    let [name, label] = key(token);
    let exclusive = token.mode() == Mode::Exclusive;
    Ok(match dialect {
        Dialect::Sqlite | Dialect::Postgres => {
            let text = if exclusive { include_str!("sql/exclusive.sql") } else { include_str!("sql/shared.sql") };
            vec![Statement { text, parameters: vec![name, label, number] }]
        }
        Dialect::MySql => {
            let row =
                Statement { text: include_str!("sql/row.mysql.sql"), parameters: vec![name.clone(), label.clone()] };
            let (text, more) = if exclusive {
                (include_str!("sql/exclusive.mysql.sql"), 2)
            } else {
                (include_str!("sql/shared.mysql.sql"), 1)
            };
            let mut parameters = vec![number.clone(), name, label];
            parameters.extend(std::iter::repeat_n(number, more));
            vec![row, Statement { text, parameters }]
        }
    })
}

/// Reads both marks, the exclusive one first: for the message of a refusal. No row where nothing was accepted yet.
#[must_use]
pub fn marks(dialect: Dialect, token: &Token) -> Statement {
    let text = match dialect {
        Dialect::Sqlite | Dialect::Postgres => include_str!("sql/marks.sql"),
        Dialect::MySql => include_str!("sql/marks.mysql.sql"),
    };
    Statement { text, parameters: key(token).into() }
}

/// What a refusal says, from what [`marks`] found.
#[must_use]
pub fn overtaken(token: &Token, exclusive_mark: i64, shared_mark: i64) -> Overtaken {
    let by = if token.mode() == Mode::Exclusive { exclusive_mark.max(shared_mark) } else { exclusive_mark };
    Overtaken { token: token.number(), by: by.try_into().unwrap_or(0) }
}

fn key(token: &Token) -> [Parameter; 2] {
    [token.name(), token.label()].map(|text| Parameter::Text(text.to_string()))
}
