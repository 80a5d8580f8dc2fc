//! The SQLite store: one file, shared by all processes of a host, with nothing to install and nothing to run.
//!
//! # The file
//!
//! It is a file of its own (in an application's database its long write transactions would block renewals), on a local disk:
//! network file systems are refused. It is created when it is missing, for the current user only; give it (and its folder) the
//! rights of a group to share it with others. Beside it live SQLite's `-wal` and `-shm` and the folder `.wake`, which holds one
//! socket for each client that waits. A file that was moved, deleted or replaced while it was in use is an error for whoever
//! wants in and a loss for whoever is in.
//!
//! # What to expect
//!
//! An enter or leave is one short transaction on the caller's thread; if another process is writing at that very moment, the
//! store's own thread tries again. Waiters in other processes are woken by datagrams, and by a slow tick should one get lost.
//! Tokens grow for the whole file, also over restarts and power cuts: they are reserved on the disk in blocks of 1,024. Leases
//! are measured on the clock that goes on during a suspend, and end with the boot.
//!
//! Elsewhere than on Linux, leases are measured on the wall clock, and waiters look by themselves twenty times a second.

use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch,
};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::name::Name;
use book::Txn;
use client::{Client, Looked};
use fault::{Stop, explain};
use file::StoreFile;
use futures_util::future::{Either, select};
use job::Job;
use rusqlite::{Connection, OptionalExtension};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

mod beside;
mod book;
mod client;
mod fault;
mod file;
mod job;
mod socket;
#[cfg(test)]
mod tests;
mod thread;
mod verbs;

/// A log beside the file of more pages than this is worth a client's time when it leaves: whoever opens the file next while
/// nobody has it open reads all of it.
const LONG_LOG: i64 = 128;

/// A name that nobody else has: 16 hex digits.
fn random_name() -> String {
    super::random_bits()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A store in a file. Each value is a client of its own.
#[derive(Debug)]
pub struct SqliteStore {
    client: Arc<Client>,
    label: Arc<str>,
    tables: beside::Tables,
}

impl SqliteStore {
    /// Opens the file, and creates it, with its folder, if it is missing. Blocks for about a tenth of a millisecond; for a few
    /// milliseconds when the file is created, or first opened after a boot.
    ///
    /// # Errors
    /// `Unsupported` on a file system that is not local; `Denied` where the file cannot be written, is a symbolic link, or
    /// could be replaced by anybody; `Broken` if it is not a store file, is damaged, or has another layout.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteStore> {
        SqliteStore::open_in_boot(path.as_ref(), &file::boot_id()?, Clock::system())
    }

    /// The same, as if the machine had been booted under this id and had this clock. For tests.
    #[doc(hidden)]
    pub fn open_in_boot(path: &Path, boot: &str, clock: Clock) -> Result<SqliteStore> {
        let file = StoreFile::find(path)?;
        let conn = file.connect(false)?;
        file.check_layout(&conn)?;
        begin_boot(&file, &conn, boot)?;
        // Those who were here before us may have left no time to do it. If others are at it, one of them will.
        let _ = thread::end_log(&conn, 64 * LONG_LOG);
        let client = Client::new(file, conn, clock, boot.to_string());
        Ok(SqliteStore { client: Arc::new(client), label: "sqlite".into(), tables: beside::Tables::default() })
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> SqliteStore {
        self.label = label.into();
        self
    }

    /// An error if the path does not lead to the file any more: others would not see what we do.
    fn check_place(&self) -> Result<()> {
        if self.client.file.is_in_place() { Ok(()) } else { Err(self.client.file.moved()) }
    }

    /// Makes sure that this client can be woken by others. Without its socket it wakes up by itself, once in a while.
    fn open_socket(&self) {
        if !self.client.post.is_open()
            && let Err(error) = self.client.post.open()
        {
            tracing::warn!(%error, "waiters are woken by the clock only: the store's socket cannot be opened");
        }
    }

    /// What is true of a ticket now, lapsed ones ahead of it taken out.
    async fn look(&self, place: &Place) -> Result<Waited> {
        let owned = place.clone();
        let read = |conn: &Connection, now: i64| Ok((now, Client::look(conn, now, &place.name, place.id)?));
        let again = || move |conn: &Connection, now: i64| Ok((now, Client::look(conn, now, &owned.name, owned.id)?));
        match self.client.read(read, again).await? {
            (_, Looked::Found(found)) => Ok(found),
            (now, Looked::Waiting(earliest)) if earliest > now => Ok(Waited::Waiting),
            _ => {
                let look = |txn: &mut Txn<'_>, place: &Place| {
                    txn.line(&place.name)?;
                    Ok(match Client::look(txn.conn, txn.now, &place.name, place.id)? {
                        Looked::Found(found) => found,
                        Looked::Waiting(_) => Waited::Waiting,
                    })
                };
                let owned = place.clone();
                self.client.act(|txn| look(txn, place), || move |txn: &mut Txn<'_>| look(txn, &owned)).await
            }
        }
    }
}

/// The tickets of another boot are lapsed, and of the numbers reserved then any may have been given away: their record need
/// not have reached the disk.
fn begin_boot(file: &StoreFile, conn: &Connection, boot: &str) -> Result<()> {
    let fault = |error| explain(error, &file.path);
    let same = |conn: &Connection| -> rusqlite::Result<bool> {
        let sql = "SELECT boot = ?1 FROM kept WHERE name = '' AND id = x''";
        Ok(conn.query_row(sql, [boot], |row| row.get(0)).optional()?.unwrap_or(false))
    };
    if file::retry(|| same(conn)).map_err(fault)? {
        return Ok(());
    }
    let conn = file.connect(true)?;
    file::retry(|| {
        let txn = rusqlite::Transaction::new_unchecked(&conn, rusqlite::TransactionBehavior::Immediate)?;
        if same(&txn)? {
            return Ok(());
        }
        txn.execute("DELETE FROM kept WHERE name > ''", [])?;
        txn.execute("DELETE FROM watcher", [])?;
        let sql = "UPDATE kept SET last = max(last, reserved, promised), reserved = max(last, reserved, promised) + ?2, \
                   boot = ?1, watched = 0 \
                   WHERE name = '' AND id = x''";
        if txn.execute(sql, rusqlite::params![boot, book::BLOCK])? != 1 {
            return Err(rusqlite::Error::QueryReturnedNoRows);
        }
        txn.commit()
    })
    .map_err(fault)
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.client.close();
    }
}

impl Store for SqliteStore {
    fn info(&self) -> Info {
        let client = &self.client;
        let address = format!("sqlite:{}", client.file.path.display());
        Info { kind: "sqlite", label: self.label.clone(), address, clock: client.clock.clone() }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::SingleNode,
            queue: Queue::Fifo,
            wake: if cfg!(target_os = "linux") { Wake::Push } else { Wake::Poll },
            lifetime: Lifetime::Ticket,
            reach: Reach::Host,
            weights: Weights::Any,
            atomic_batch: 64,
            settable_token: true,
            upgrade: true,
            expel: true,
            shortest_lease: Duration::from_millis(100),
            longest_lease: Duration::from_secs(365 * 86_400),
        }
    }

    fn attach(&self, host: Host) {
        self.client.mine().host = Some(host);
    }

    /// One transaction.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            self.check_place()?;
            let client = &self.client;
            let again = || {
                let (batch, me) = (batch.to_vec(), client.me.clone());
                move |txn: &mut Txn<'_>| verbs::enter(txn, &batch, &me)
            };
            let answers = client.act(|txn| verbs::enter(txn, batch, &client.me), again).await?;
            for (ticket, answer) in batch.iter().zip(&answers) {
                let inside = match answer {
                    Entered::Full { .. } => continue,
                    Entered::Admitted { .. } => true,
                    Entered::Queued { .. } => {
                        self.open_socket();
                        false
                    }
                };
                client.note(&ticket.place.name, ticket.place.id, inside);
            }
            Ok(answers)
        })
    }

    /// One statement at first; then none until somebody says that there is something to see, or something lapses.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(async move {
            let client = &self.client;
            let listener = client.listen(place);
            self.open_socket();
            client.attendant.wake_up(client);
            match client.look_now(place) {
                Some(Ok(Looked::Found(found))) => {
                    client.found(place.id, found.clone());
                    return Ok(found);
                }
                Some(Ok(Looked::Waiting(earliest))) => client.attendant.expect_lapse(client, earliest),
                Some(Err(error)) => return Err(error),
                None => client.attendant.look_soon(client),
            }
            let sleep = client.clock.sleep_until(until);
            match select(pin!(listener.ear.hear()), sleep).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => self.look(place).await,
            }
        })
    }

    /// One transaction.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(async move {
            // The file that others use by now has no such tickets.
            if self.check_place().is_err() {
                batch.iter().for_each(|ticket| self.client.forget(ticket.place.id));
                return Ok(vec![Renewed::Gone; batch.len()]);
            }
            let again = || {
                let batch = batch.to_vec();
                move |txn: &mut Txn<'_>| verbs::renew(txn, &batch)
            };
            let answers = self.client.act(|txn| verbs::renew(txn, batch), again).await?;
            for (ticket, _) in batch.iter().zip(&answers).filter(|(_, answer)| **answer == Renewed::Gone) {
                self.client.forget(ticket.place.id);
            }
            Ok(answers)
        })
    }

    /// One transaction.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(async move {
            let client = &self.client;
            let again = || {
                let (batch, me) = (batch.to_vec(), client.me.clone());
                move |txn: &mut Txn<'_>| verbs::leave(txn, &batch, &me)
            };
            let answers = client.act(|txn| verbs::leave(txn, batch, &client.me), again).await?;
            batch.iter().for_each(|place| client.forget(place.id));
            Ok(answers)
        })
    }

    /// One transaction.
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move {
            self.check_place()?;
            let again = || {
                let (place, note) = (place.clone(), note.clone());
                move |txn: &mut Txn<'_>| verbs::change(txn, &place, weight, note.as_ref())
            };
            self.client.act(|txn| verbs::change(txn, place, weight, note.as_ref()), again).await
        })
    }

    /// One transaction.
    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(async move {
            self.check_place()?;
            let again = || {
                let place = place.clone();
                move |txn: &mut Txn<'_>| verbs::upgrade(txn, &place, new)
            };
            let answer = self.client.act(|txn| verbs::upgrade(txn, place, new), again).await?;
            if matches!(answer, Upgraded::Admitted { .. }) {
                self.client.forget(place.id);
                self.client.note(&place.name, new, true);
            }
            Ok(answer)
        })
    }

    /// One transaction.
    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move {
            self.check_place()?;
            let again = || {
                let name = name.clone();
                move |txn: &mut Txn<'_>| verbs::expel(txn, &name, token)
            };
            self.client.act(|txn| verbs::expel(txn, name, token), again).await
        })
    }

    /// One transaction; then a datagram for each change that another client makes.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move {
            self.check_place()?;
            let client = &self.client;
            self.open_socket();
            // From here on whoever stops watching the same leaves our row alone.
            {
                let mut mine = client.mine();
                *mine.watched.entry(scope.clone()).or_default() += 1;
                mine.has_watched = true;
            }
            let watching = Watching { hints: client.hints.subscribe(scope.clone()), client: client.clone(), scope };
            let scope = &watching.scope;
            let again = || {
                let (scope, me) = (scope.clone(), client.me.clone());
                move |txn: &mut Txn<'_>| verbs::watch(txn, &me, &scope)
            };
            client.act(|txn| verbs::watch(txn, &client.me, scope), again).await?;
            client.attendant.wake_up(client);
            Ok(Box::pin(watching) as BoxStream<'static, Hint>)
        })
    }

    /// One picture of the file.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(async move {
            self.check_place()?;
            let again = || {
                let name = name.clone();
                move |conn: &Connection, now: i64| book::read_line(conn, name.key(), now)
            };
            let found = self.client.read(|conn, now| book::read_line(conn, name.key(), now), again).await?;
            Ok(found.map(|(_, line)| line).unwrap_or_default())
        })
    }

    /// One picture of the file.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move {
            self.check_place()?;
            let again = || {
                let (prefix, after) = (prefix.to_string(), after.map(String::from));
                move |conn: &Connection, now: i64| list(conn, now, &prefix, after.as_deref(), limit)
            };
            self.client.read(|conn, now| list(conn, now, prefix, after, limit), again).await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.client.close() })
    }
}

fn list(conn: &Connection, now: i64, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>, Stop> {
    let mut listed = Vec::new();
    let mut next = match after {
        Some(after) if after >= prefix => book::next_line(conn, after, false)?,
        _ => book::next_line(conn, prefix, true)?,
    };
    while let Some(key) = next.filter(|key| key.starts_with(prefix) && listed.len() < limit) {
        if let Some((name, line)) = book::read_line(conn, &key, now)? {
            let held = line.inside.first().and_then(|head| head.admitted.or(head.entered));
            listed.push(Listed { name, inside: line.inside.len(), waiting: line.waiting.len(), held });
        }
        next = book::next_line(conn, &key, false)?;
    }
    Ok(listed)
}

/// A stream of hints; the last one of a scope takes its row out of the file.
struct Watching {
    hints: BoxStream<'static, Hint>,
    client: Arc<Client>,
    scope: Scope,
}

impl futures_core::Stream for Watching {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.hints.as_mut().poll_next(cx)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut mine = self.client.mine();
        let left = mine.watched.get_mut(&self.scope).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left > 0 {
            return;
        }
        mine.watched.remove(&self.scope);
        drop(mine);
        let (client, scope) = (self.client.clone(), self.scope.clone());
        let forget = move |txn: &mut Txn<'_>| {
            // Somebody may have begun to watch it again.
            if client.mine().watched.contains_key(&scope) {
                return Ok(());
            }
            verbs::unwatch(txn, &client.me, Some(&scope))
        };
        // A closed store has taken all its rows out already.
        let _ = self.client.attendant.give(&self.client, Job::errand(forget));
    }
}
