//! Without a lock: one statement that changes a row of your own table only if the row is still what it should be.
//!
//! [`OwnRow::update_if`] is the version column: read a row with its version, think, and write it if the version is still that one.
//! [`OwnRow::take`] is the conditional update, for a stock that must not go below zero. Both are worth nothing unless somebody
//! looks how many rows were changed: [`change_one`] does, or [`changed_one`] for who runs the [`Statement`] on another driver.
//!
#![cfg_attr(feature = "postgres", doc = "```no_run")]
#![cfg_attr(not(feature = "postgres"), doc = "```text")]
//! # async fn sell(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use fencelock::sql::change::{Dialect, OwnRow, change_one};
//!
//! let product = OwnRow::new(Dialect::Postgres, "product", "id", 42_i64)?;
//! let mut transaction = client.transaction().await?;
//! if change_one(&mut transaction, &product.take("stock", 1)?).await? {
//!     transaction.commit().await?; // sold
//! } else {
//!     transaction.rollback().await?; // sold out
//! }
//!
//! let mut transaction = client.transaction().await?;
//! let row = transaction.query_one("SELECT price, version FROM product WHERE id = 42", &[]).await?;
//! let (price, version): (i64, i64) = (row.get(0), row.get(1));
//! if change_one(&mut transaction, &product.update_if("version", version, &[("price", (price + 10).into())])?).await? {
//!     transaction.commit().await?;
//! } else {
//!     transaction.rollback().await?; // somebody was faster: begin again
//! }
//! # Ok(()) }
//! ```

use super::{Parameter, Statement};
use crate::error::{Error, ErrorKind, Result};
pub use crate::fence::sql::Dialect;
use crate::store::BoxFuture;

impl From<i64> for Parameter {
    fn from(number: i64) -> Parameter {
        Parameter::Number(Some(number))
    }
}

impl From<&str> for Parameter {
    fn from(text: &str) -> Parameter {
        Parameter::Text(Some(text.into()))
    }
}

/// A row of a table of your own, found by a unique key.
#[derive(Clone, Debug)]
pub struct OwnRow {
    dialect: Dialect,
    table: String,
    key: (String, Parameter),
}

impl OwnRow {
    /// The row of `table` whose column `key` is `value`. The key must be unique: a condition without an index locks the whole
    /// table on MySQL.
    ///
    /// # Errors
    /// `InvalidInput` for a table or column that is not named by letters, digits and `_` (a table also by its schema and a dot).
    pub fn new(dialect: Dialect, table: &str, key: &str, value: impl Into<Parameter>) -> Result<OwnRow> {
        let parts: Vec<&str> = table.split('.').collect();
        if parts.len() > 2 {
            return Err(odd(table));
        }
        parts.into_iter().try_for_each(plain)?;
        plain(key)?;
        Ok(OwnRow { dialect, table: table.into(), key: (key.into(), value.into()) })
    }

    /// Sets columns if the row still has this version, and counts the version up. A version is never used twice as long as
    /// everybody who writes the row does it like this, so it is safe where comparing a value is not (a value may change and
    /// change back).
    ///
    /// # Errors
    /// `InvalidInput` for a column's name, as [`new`](OwnRow::new).
    pub fn update_if(&self, column: &str, version: i64, set: &[(&str, Parameter)]) -> Result<Statement> {
        plain(column)?;
        let mut text = Text::new(self.dialect);
        text.push(&format!("UPDATE {} SET ", self.table));
        for (name, value) in set {
            plain(name)?;
            text.push(&format!("{name} = "));
            text.parameter(value.clone());
            text.push(", ");
        }
        text.push(&format!("{column} = {column} + 1 WHERE {} = ", self.key.0));
        text.parameter(self.key.1.clone());
        text.push(&format!(" AND {column} = "));
        text.parameter(version.into());
        Ok(text.0)
    }

    /// Takes `amount` from a column if there is as much.
    ///
    /// # Errors
    /// `InvalidInput` for a column's name, as [`new`](OwnRow::new), and for an amount of 0: MySQL does not count a row that stays
    /// what it was.
    pub fn take(&self, column: &str, amount: u32) -> Result<Statement> {
        plain(column)?;
        if amount == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "nothing is to be taken"));
        }
        let mut text = Text::new(self.dialect);
        text.push(&format!("UPDATE {} SET {column} = {column} - ", self.table));
        text.parameter(i64::from(amount).into());
        text.push(&format!(" WHERE {} = ", self.key.0));
        text.parameter(self.key.1.clone());
        text.push(&format!(" AND {column} >= "));
        text.parameter(i64::from(amount).into());
        Ok(text.0)
    }
}

/// A statement that is being written.
struct Text(Statement, Dialect);

impl Text {
    fn new(dialect: Dialect) -> Text {
        Text(Statement { text: String::new(), parameters: Vec::new() }, dialect)
    }

    fn push(&mut self, text: &str) {
        self.0.text.push_str(text);
    }

    fn parameter(&mut self, value: Parameter) {
        self.0.parameters.push(value);
        match self.1 {
            Dialect::Postgres => self.0.text.push_str(&format!("${}", self.0.parameters.len())),
            Dialect::MySql | Dialect::Sqlite => self.0.text.push('?'),
        }
    }
}

fn odd(name: &str) -> Error {
    let message = format!("{:?} is no plain name of a table or column", crate::name::printable(name));
    Error::new(ErrorKind::InvalidInput, message)
}

fn plain(name: &str) -> Result<()> {
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if letters && first && name.len() <= 64 { Ok(()) } else { Err(odd(name)) }
}

/// What the number of changed rows means: whether the row was changed.
///
/// # Errors
/// `InvalidInput` if it was more than one: the key is not unique, and the transaction has to be rolled back.
pub fn changed_one(rows: u64) -> Result<bool> {
    match rows {
        0 => Ok(false),
        1 => Ok(true),
        more => {
            let message = format!("{more} rows were changed: the key is not unique; roll back");
            Err(Error::new(ErrorKind::InvalidInput, message))
        }
    }
}

/// A transaction that statements can be run in: of tokio-postgres or of mysql_async.
pub trait Changing: Send {
    #[doc(hidden)]
    fn change<'a>(&'a mut self, statement: &'a Statement) -> BoxFuture<'a, Result<u64>>;
}

/// Runs a statement of an [`OwnRow`] in your transaction. Says whether it changed the row: if not, somebody was faster, there
/// was not enough, or there is no such row. One round trip.
///
/// # Errors
/// `InvalidInput` if more than one row was changed: roll back. `Deadlock` if the database has chosen this transaction as the
/// victim. Everything else that the database can refuse.
///
/// # Cancel safety
/// A dropped call may still change the row; roll the transaction back.
pub async fn change_one(transaction: &mut impl Changing, statement: &Statement) -> Result<bool> {
    changed_one(transaction.change(statement).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_both_dialects() {
        let row = |dialect| OwnRow::new(dialect, "shop.product", "id", 42).unwrap();
        let set = [("price", Parameter::from(7)), ("name", "x".into())];
        let update = row(Dialect::Postgres).update_if("version", 3, &set).unwrap();
        assert_eq!(
            update.text,
            "UPDATE shop.product SET price = $1, name = $2, version = version + 1 WHERE id = $3 AND version = $4"
        );
        assert_eq!(update.parameters, [7.into(), "x".into(), 42.into(), 3.into()]);
        let take = row(Dialect::MySql).take("stock", 2).unwrap();
        assert_eq!(take.text, "UPDATE shop.product SET stock = stock - ? WHERE id = ? AND stock >= ?");
        assert_eq!(take.parameters, [2.into(), 42.into(), 2.into()]);
    }

    #[test]
    fn nothing_can_be_smuggled_in() {
        let product = OwnRow::new(Dialect::MySql, "product", "id", 1).unwrap();
        for bad in ["", "1x", "a b", "a;b", "a'", "a`", "a\"", "a.b", "ä", "a--"] {
            assert_eq!(product.take(bad, 1).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(product.update_if(bad, 1, &[]).is_err() && product.update_if("v", 1, &[(bad, 1.into())]).is_err());
            assert!(OwnRow::new(Dialect::MySql, "t", bad, 1).is_err());
        }
        for bad in ["", "a.b.c", ".a", "a.", "a b.c"] {
            assert!(OwnRow::new(Dialect::MySql, bad, "id", 1).is_err(), "{bad}");
        }
        assert!(product.take("stock", 0).is_err());
    }

    #[test]
    fn the_count_is_looked_at() {
        assert_eq!((changed_one(0).unwrap(), changed_one(1).unwrap()), (false, true));
        assert_eq!(changed_one(2).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
