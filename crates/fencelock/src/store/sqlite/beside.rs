//! What the file keeps beside its lines: the buckets of limiters and the values of registers, in tables of their own that are
//! made when they are first needed.

use super::SqliteStore;
use super::book::{Act, Txn, damaged};
use crate::beside::{Ask, Held, Limiters, Registers};
use crate::error::Result;
use crate::limit::bucket::{Bucket, SET_BACK, Verdict};
use crate::name::Name;
use crate::store::{BoxFuture, TicketId};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::atomic::{AtomicBool, Ordering};

const TABLES: &str = include_str!("beside.sql");

/// Whether the tables are known to be there.
#[derive(Debug, Default)]
pub(super) struct Tables(AtomicBool);

impl SqliteStore {
    /// Makes sure that the tables are there: one look for the first call of a client.
    async fn need_tables(&self) -> Result<()> {
        self.check_place()?;
        if self.tables.0.load(Ordering::Acquire) {
            return Ok(());
        }
        self.client.act(make, || make).await?;
        self.tables.0.store(true, Ordering::Release);
        Ok(())
    }
}

fn make(txn: &mut Txn<'_>) -> Act<()> {
    let made = txn
        .conn
        .prepare_cached("SELECT count(*) FROM sqlite_schema WHERE name IN ('bucket', 'register')")?
        .query_row([], |row| row.get::<_, i64>(0))?;
    if made < 2 {
        txn.wrote = true;
        txn.conn.execute_batch(TABLES)?;
    }
    // Buckets of a boot whose clock was further begin to recover now; otherwise they would lie about for as long as that boot had lasted.
    let sql = "UPDATE bucket SET fresh = fresh - at + ?1, at = ?1 WHERE at > ?1 + ?2";
    txn.write(sql, params![micros(txn.now), whole(SET_BACK)])?;
    Ok(())
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn micros(nanos: i64) -> i64 {
    nanos / 1000
}

/// Two statements, or four where it is let through.
fn decide(txn: &mut Txn<'_>, name: &str, ask: &Ask) -> Act<Verdict> {
    let now = micros(txn.now);
    let found = txn
        .conn
        .prepare_cached("SELECT level, cost, at FROM bucket WHERE name = ?1")?
        .query_row([name], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))
        .optional()?
        .map(|(level, cost, at)| Bucket {
            level: level.unsigned_abs(),
            cost: cost.unsigned_abs(),
            at: at.unsigned_abs(),
        });
    let (verdict, left) = ask.rule.decide(found, now.unsigned_abs(), ask.count, ask.at_most);
    if let (true, Some(left)) = (verdict.granted, left) {
        let fresh = left.at.saturating_add(ask.rule.fresh_after(&left));
        let sql = "INSERT INTO bucket (name, level, cost, at, fresh) VALUES (?1, ?2, ?3, ?4, ?5) \
                   ON CONFLICT (name) DO UPDATE SET level = ?2, cost = ?3, at = ?4, fresh = ?5";
        txn.write(sql, params![name, whole(left.level), whole(left.cost), whole(left.at), whole(fresh)])?;
        if found.is_none() {
            // For each that comes, two that are as good as none may go: they never pile up.
            let sql =
                "DELETE FROM bucket WHERE name IN (SELECT name FROM bucket WHERE fresh <= ?1 ORDER BY fresh LIMIT 2)";
            txn.write(sql, [now])?;
        }
    }
    Ok(verdict)
}

fn load(conn: &Connection, name: &str) -> Act<Held> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?));
    let found = conn
        .prepare_cached("SELECT version, value FROM register WHERE name = ?1")?
        .query_row([name], read)
        .optional()?;
    if let Some((version, value)) = found {
        return Ok(Held { value: Some(value), version: version.unsigned_abs() });
    }
    let last = conn
        .prepare_cached("SELECT last FROM kept WHERE name = '' AND id = x''")?
        .query_row([], |row| row.get::<_, i64>(0))
        .optional()?
        .ok_or_else(|| damaged("it has no counter"))?;
    Ok(Held { value: None, version: last.unsigned_abs() })
}

/// Four statements, or five for a deletion.
fn store_if(txn: &mut Txn<'_>, name: &Name, version: u64, value: Option<&[u8]>, write: TicketId) -> Act<Option<u64>> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, Vec<u8>>(1)?));
    let found = txn
        .conn
        .prepare_cached("SELECT version, write FROM register WHERE name = ?1")?
        .query_row([name.key()], read)
        .optional()?;
    match &found {
        Some((there, by)) if by == write.as_bytes() => return Ok(Some(*there)),
        Some((there, _)) if *there != version => return Ok(None),
        Some(_) => {}
        None => {
            let floor = txn
                .conn
                .prepare_cached("SELECT version FROM register WHERE name = ''")?
                .query_row([], |row| row.get::<_, i64>(0))?;
            if version < floor.unsigned_abs() {
                return Ok(None);
            }
            if value.is_none() {
                return Ok(Some(version));
            }
        }
    }
    let number = txn.numbers(1)?;
    match value {
        Some(value) => {
            let sql = "INSERT INTO register (name, version, write, value, long) VALUES (?1, ?2, ?3, ?4, ?5) \
                       ON CONFLICT (name) DO UPDATE SET version = ?2, write = ?3, value = ?4";
            txn.write(sql, params![name.key(), number, write.as_bytes(), value, name.long()])?;
        }
        None => {
            txn.write("DELETE FROM register WHERE name = ?1", [name.key()])?;
            txn.write("UPDATE register SET version = ?1 WHERE name = ''", [number])?;
        }
    }
    Ok(Some(number.unsigned_abs()))
}

impl Limiters for SqliteStore {
    /// One transaction.
    fn decide<'a>(&'a self, bucket: &'a str, ask: &'a Ask) -> BoxFuture<'a, Result<Verdict>> {
        Box::pin(async move {
            self.need_tables().await?;
            let again = || {
                let (bucket, ask) = (bucket.to_string(), *ask);
                move |txn: &mut Txn<'_>| decide(txn, &bucket, &ask)
            };
            self.client.act(|txn| decide(txn, bucket, ask), again).await
        })
    }
}

impl Registers for SqliteStore {
    /// One picture of the file.
    fn load<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Held>> {
        Box::pin(async move {
            self.need_tables().await?;
            let again = || {
                let name = name.clone();
                move |conn: &Connection, _: i64| load(conn, name.key())
            };
            self.client.read(|conn, _| load(conn, name.key()), again).await
        })
    }

    /// One transaction.
    fn store_if<'a>(
        &'a self,
        name: &'a Name,
        version: u64,
        value: Option<&'a [u8]>,
        write: TicketId,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(async move {
            self.need_tables().await?;
            let again = || {
                let (name, value) = (name.clone(), value.map(<[u8]>::to_vec));
                move |txn: &mut Txn<'_>| store_if(txn, &name, version, value.as_deref(), write)
            };
            self.client.act(|txn| store_if(txn, name, version, value, write), again).await
        })
    }
}
