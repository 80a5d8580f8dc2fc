//! What can be measured: our locks on a store, and the floor below them.

use crate::Failure;
use fencelock::{Locks, MutexGuard, Options};
use rusqlite::Connection;
use std::sync::{Arc, Mutex, PoisonError};

/// One client.
#[derive(Clone)]
pub(crate) enum Client {
    Ours { locks: Locks, unfair: bool },
    FloorSqlite(Arc<Mutex<Connection>>),
}

/// One held lock.
pub(crate) enum Held {
    Ours(MutexGuard),
    FloorSqlite(Arc<Mutex<Connection>>),
}

impl Client {
    pub(crate) async fn connect(name: &str, addr: &str) -> Result<Client, Failure> {
        let (kind, unfair) = match name.strip_suffix("-unfair") {
            Some(kind) => (kind, true),
            None => (name, false),
        };
        let url = match kind {
            "floor-sqlite" => return Ok(Client::FloorSqlite(Arc::new(Mutex::new(floor(addr)?)))),
            "memory" | "sqlite" if addr.starts_with(&format!("{kind}:")) => addr.to_string(),
            "memory" | "sqlite" => format!("{kind}:{addr}"),
            _ => return Err(format!("no implementation is called {name:?}").into()),
        };
        Ok(Client::Ours { locks: Locks::connect(&url).await?, unfair })
    }

    /// As long as it takes, with default options.
    pub(crate) async fn lock(&self, name: &str) -> Result<Held, Failure> {
        match self {
            Client::Ours { locks, unfair: false } => Ok(Held::Ours(locks.mutex(name).lock().await?)),
            Client::Ours { locks, unfair: true } => {
                Ok(Held::Ours(locks.mutex(name).lock_with(Options::new().unfair()).await?))
            }
            Client::FloorSqlite(connection) => {
                update(connection)?;
                Ok(Held::FloorSqlite(connection.clone()))
            }
        }
    }

    pub(crate) async fn close(&self) {
        if let Client::Ours { locks, .. } = self {
            locks.close().await;
        }
    }
}

impl Held {
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Held::Ours(guard) if guard.state() == fencelock::State::Lost)
    }

    pub(crate) async fn release(self) -> Result<(), Failure> {
        match self {
            Held::Ours(guard) => drop(guard.release().await?),
            Held::FloorSqlite(connection) => update(&connection)?,
        }
        Ok(())
    }
}

/// A file with the settings of our store.
fn floor(path: &str) -> Result<Connection, Failure> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = 60000;
         CREATE TABLE IF NOT EXISTS floor (id INTEGER PRIMARY KEY, n INTEGER NOT NULL);
         INSERT OR IGNORE INTO floor VALUES (1, 0);",
    )?;
    Ok(connection)
}

/// The barest correct call: one write transaction.
fn update(connection: &Mutex<Connection>) -> rusqlite::Result<()> {
    let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    connection.prepare_cached("UPDATE floor SET n = n + 1 WHERE id = 1")?.execute([])?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}
