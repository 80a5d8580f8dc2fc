//! The shop in a SQLite file. Its transactions are serialisable, so the naive read and the write are two statements here, the read
//! committed by itself; in one transaction the second of two writers would be refused, and nothing could be shown.

use super::{Attempt, Outcome, Shelf, Way, sql};
use crate::Result;
use fencelock::{ErrorKind, fence};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longer than any pause: a writer that is frozen in its transaction keeps the others waiting, not failing.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct Db {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Db {
    pub(super) fn new(path: &str) -> Db {
        Db { path: path.into(), idle: Arc::default() }
    }

    /// Runs it on a thread that may block, with a connection of its own.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let db = self.clone();
        tokio::task::spawn_blocking(move || {
            let idle = db.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => db.open()?,
            };
            let answer = work(&mut connection);
            if answer.is_ok() {
                db.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            }
            answer
        })
        .await?
    }

    fn open(&self) -> Result<Connection> {
        let connection = Connection::open(&self.path)?;
        connection.busy_timeout(PATIENCE)?;
        connection.execute_batch("PRAGMA synchronous = NORMAL")?;
        Ok(connection)
    }

    pub(super) async fn migrate(&self) -> Result<()> {
        self.with(|connection| {
            connection.execute_batch(sql::SQLITE)?;
            Ok(fence::sqlite::migrate(connection)?)
        })
        .await
    }

    pub(super) async fn stock_up(&self, shelves: Vec<Shelf>) -> Result<()> {
        self.with(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for text in sql::CLEAR {
                transaction.execute(text, ())?;
            }
            for shelf in shelves {
                transaction.execute(sql::ADD_PRODUCT, params![shelf.id, shelf.name(), shelf.stock])?;
                for (i, stock) in shelf.stripes.iter().enumerate() {
                    transaction.execute(sql::ADD_STRIPE, params![shelf.id, i as i64, stock])?;
                }
            }
            Ok(transaction.commit()?)
        })
        .await
    }

    pub(super) async fn sell(&self, attempt: Attempt) -> Result<Outcome> {
        self.with(move |connection| sell(connection, &attempt)).await
    }

    pub(super) async fn left(&self, product: i64) -> Result<i64> {
        self.with(move |connection| Ok(connection.query_row(sql::LEFT, [product, product], |row| row.get(0))?)).await
    }

    pub(super) async fn books(&self) -> Result<(i64, Vec<(String, i64)>)> {
        self.with(|connection| {
            let transaction = connection.transaction()?;
            let left = transaction.query_row(sql::LEFT_OF_ALL, (), |row| row.get(0))?;
            let mut statement = transaction.prepare_cached(sql::SOLD_BY)?;
            let sold = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok((left, sold.collect::<rusqlite::Result<_>>()?))
        })
        .await
    }
}

fn sell(connection: &mut Connection, attempt: &Attempt) -> Result<Outcome> {
    let inside = || tokio::runtime::Handle::current().block_on(attempt.hook.work(attempt.work));
    if matches!(attempt.way, Way::ForUpdate) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let Some(seen) = read(&transaction, attempt)? else { return Ok(Outcome::SoldOut) };
        inside();
        write(&transaction, attempt, seen)?;
        transaction.commit()?;
        return Ok(Outcome::Sold);
    }
    let Some(seen) = read(connection, attempt)? else { return Ok(Outcome::SoldOut) };
    inside();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if let Way::Fenced(token) = &attempt.way {
        match fence::sqlite::accept(&transaction, token) {
            Err(refused) if refused.kind() == ErrorKind::Overtaken => return Ok(Outcome::Overtaken),
            other => other?,
        }
    }
    if write(&transaction, attempt, seen)? == 0 {
        return Ok(Outcome::Conflict);
    }
    transaction.commit()?;
    Ok(Outcome::Sold)
}

/// Stock and version, while there is any.
fn read(connection: &Connection, attempt: &Attempt) -> Result<Option<(i64, i64)>> {
    let columns = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let row: Option<(i64, i64)> = match attempt.way {
        Way::Stripe(i) => {
            connection.prepare_cached(sql::READ_STRIPE)?.query_row([attempt.product, i as i64], columns).optional()?
        }
        _ => connection.prepare_cached(sql::READ)?.query_row([attempt.product], columns).optional()?,
    };
    Ok(row.filter(|(stock, _)| *stock > 0))
}

/// The write and the order, in one transaction. How many rows the write has met.
fn write(transaction: &rusqlite::Transaction<'_>, attempt: &Attempt, (stock, version): (i64, i64)) -> Result<usize> {
    let product = attempt.product;
    let met = match attempt.way {
        Way::Naive | Way::ForUpdate | Way::Fenced(_) => transaction.prepare_cached(sql::TAKE)?.execute([product])?,
        Way::Version => transaction.prepare_cached(sql::TAKE_IF_VERSION)?.execute([product, version])?,
        Way::Value => transaction.prepare_cached(sql::TAKE_IF_STOCK)?.execute([product, stock])?,
        Way::Stripe(i) => transaction.prepare_cached(sql::TAKE_STRIPE)?.execute([product, i as i64])?,
    };
    if met > 0 {
        transaction.prepare_cached(sql::ORDER)?.execute(params![product, &*attempt.node])?;
    }
    Ok(met)
}
