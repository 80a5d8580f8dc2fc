//! Locks and fences inside a transaction of your own, on PostgreSQL and MySQL or MariaDB.
//!
//! [`lock_in`] locks the row of a name until the transaction ends, by commit, rollback or a crash: no lease, no renewal, no token,
//! since whatever the transaction writes ends with it. It excludes everybody else who locks that name in this way, and whoever
//! holds it by a lease ([`Locks`](crate::Locks) on the same database). Keep such a transaction short. Until it ends, whoever
//! wants the name by a lease waits in the database, and gets an error after some seconds.
//!
//! It needs the tables of the store in this database and schema: connect to it once. Drivers other than tokio-postgres and
//! mysql_async run its [`Statement`]s by themselves; `examples/sqlx` in the repository does so with sqlx.
//!
//! [`fence_in`] is for a lock that is held elsewhere: the transaction's writes are accepted only if no later holder has written
//! before. The [marks](crate::fence) lie in a table beside the data, and are raised in the same transaction as the write. It
//! needs that table and nothing else: run [`fence::sql::table`](crate::fence::sql::table) once. Other drivers send the statements
//! of [`fence::sql::access`](crate::fence::sql::access).
//!
#![cfg_attr(feature = "postgres", doc = "```no_run")]
#![cfg_attr(not(feature = "postgres"), doc = "```text")]
//! # async fn sell(client: &mut tokio_postgres::Client, guard: &fencelock::MutexGuard) -> Result<(), Box<dyn std::error::Error>> {
//! use fencelock::sql::{Wait, fence_in, lock_in};
//! use std::time::Duration;
//!
//! let mut transaction = client.transaction().await?;
//! lock_in(&mut transaction, "stock/42", Wait::AtMost(Duration::from_secs(2))).await?;
//! transaction.execute("UPDATE product SET stock = stock - 1 WHERE id = 42 AND stock > 0", &[]).await?;
//! transaction.commit().await?;
//!
//! let mut transaction = client.transaction().await?;
//! fence_in(&mut transaction, &guard.token()).await?; // an error if a later holder has been here
//! transaction.execute("UPDATE product SET stock = stock - 1 WHERE id = 42 AND stock > 0", &[]).await?;
//! transaction.commit().await?;
//! # Ok(()) }
//! ```

use crate::error::{Error, ErrorKind, Result};
use crate::fence::Overtaken;
use crate::name::Name;
use crate::store::BoxFuture;
use crate::token::Token;
use std::time::Duration;

pub mod change;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;

/// How long [`lock_in`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: [`ErrorKind::Held`] if somebody else has it.
    No,
    /// At most this long, then [`ErrorKind::TimedOut`]. MySQL counts whole seconds, and begun ones as whole.
    AtMost(Duration),
    /// As long as it takes.
    Forever,
}

/// A statement for a driver of your own: text and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The SQL, with `$1`, `$2` for PostgreSQL and `?` for MySQL.
    pub text: String,
    /// What goes in there, in order.
    pub parameters: Vec<Parameter>,
}

/// One parameter of a [`Statement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// `text`, or bytes on MySQL; `None` is NULL.
    Text(Option<String>),
    /// `bigint`; `None` is NULL.
    Number(Option<i64>),
}

/// A transaction that can be locked and fenced in: of tokio-postgres or of mysql_async.
pub trait InTransaction: Send {
    #[doc(hidden)]
    fn lock_line<'a>(&'a mut self, name: &'a Name, wait: Wait) -> BoxFuture<'a, Result<()>>;
    #[doc(hidden)]
    fn fence<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<Option<Overtaken>>>;
}

/// Locks a name until the transaction ends. In a namespace, put that and a `/` before the name.
///
/// It should be the first statement of the transaction: at an isolation level with one picture for all statements, one that is
/// older than the lock is an error. Several names are to be locked in the same order by everybody, best sorted. On MySQL the
/// row must be [there before](mysql::prepare), and a holder by lease is `Held` at once, since a row cannot be let go inside of a
/// transaction.
///
/// One round trip on PostgreSQL, two on MySQL, four there with [`Wait::AtMost`]; again while a holder by lease is waited for.
///
/// # Errors
/// `Held` or `TimedOut`: on PostgreSQL the transaction can go on without the lock, on MySQL it should be rolled back. `Deadlock`
/// if the database has chosen this transaction as the victim. Everything else that the database can refuse.
///
/// # Cancel safety
/// A dropped call may still get the lock; roll the transaction back.
pub async fn lock_in(transaction: &mut impl InTransaction, name: &str, wait: Wait) -> Result<()> {
    let name = Name::new("", name)?;
    transaction.lock_line(&name, wait).await
}

/// Makes sure that nobody who got the lock later has written here before, and that nobody who got it earlier will hereafter.
///
/// Call it in the transaction of each write that the lock protects. The mark is raised with the commit, so a rollback leaves
/// nothing. One round trip on PostgreSQL, two on MySQL; one more for the words of a refusal. The table is
/// [`fencelock_fence`](crate::fence::sql::table), found as the transaction finds the caller's own tables.
///
/// # Errors
/// `Overtaken` if a later holder has been here: roll back. `InvalidInput` for a token that no store can have given. Everything
/// that the database can refuse.
///
/// # Cancel safety
/// A dropped call may still raise the mark; roll the transaction back.
pub async fn fence_in(transaction: &mut impl InTransaction, token: &Token) -> Result<()> {
    match transaction.fence(token).await? {
        None => Ok(()),
        Some(overtaken) => Err(Error::from(overtaken).named(token.name())),
    }
}

fn not_got(name: &Name, wait: Wait) -> Error {
    let error = match wait {
        Wait::AtMost(limit) => {
            let message = format!("timed out after {}: another transaction has it", crate::error::spoken(limit));
            Error::new(ErrorKind::TimedOut, message)
        }
        _ => Error::new(ErrorKind::Held, "another transaction has it"),
    };
    error.named(name.shown())
}
