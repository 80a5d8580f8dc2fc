//! The MySQL and MariaDB store: lines and tickets are rows, each verb is one statement or one script of statements, and so one round
//! trip.
//!
//! # The tables
//!
//! `fencelock_layout`, `fencelock_line`, `fencelock_ticket` and others, in the database that the URL names. They are made at the first
//! connection, if the user may; concurrent first connections are safe. With `?migrate=off` nothing is made: run `fencelock migrate`
//! ([`Migration`](crate::Migration)) as somebody who may, or what `fencelock migrate --print` prints. A layout that is older than this version's
//! is never changed by a mere connection, since others may still use it: it is an error that says so. End the programs that use the older
//! one before you migrate: they would not see who holds what. After that a user needs
//!
//! ```sql
//! GRANT SELECT, UPDATE ON app.fencelock_layout TO 'app'@'%';
//! GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_line TO 'app'@'%';
//! GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_ticket TO 'app'@'%';
//! GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_register TO 'app'@'%';
//! GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_session TO 'app'@'%'; -- mode=session only
//! GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_client TO 'app'@'%'; -- mode=session only
//! GRANT SELECT, UPDATE ON app.fencelock_token TO 'app'@'%'; -- mode=session only
//! GRANT SELECT, INSERT ON app.fencelock_number TO 'app'@'%'; -- mode=session on MariaDB only
//! ```
//!
//! No stored routines are needed. Lapsed tickets and lines that nobody uses are taken out by whoever makes new ones; numbers go
//! on all the same, above a floor that is raised first. Needs window functions and, on MariaDB, sequences (MySQL 8, MariaDB 10.6) and, where there is a
//! binary log, one in row or mixed format: transactions are read-committed, since the gaps that a stricter level locks are what
//! InnoDB deadlocks on.
//!
//! # What to expect
//!
//! Who finds nobody in a line is kept in the line's own row: to enter and to leave is one update of one row each, without a
//! transaction around it. As soon as a second one comes, tickets are rows of their own, and each verb is a script in one
//! transaction; to join at the end and to let in the next one touches a few rows, however long the line is. The first call that
//! finds things other than they were takes a round trip more.
//!
//! Leases are measured on the database's clock (`SYSDATE`): a step of it frees or keeps tickets by as much. The database cannot
//! tell anybody anything, so one poller per process looks for all who wait in it: an eighth of the time that nothing has
//! happened goes by between two looks, 1 ms at least for who is next (5 ms for who is further back) and 400 ms at most. Within a process a release wakes the next one at once.
//! Whoever is put out learns of it at its next renewal.
//!
//! Of several hosts in the URL the one that can be written to is used (`read_only` is off), and looked for again when it can no longer
//! be: the user must be one whom `read_only` binds, not one with SUPER or READ ONLY ADMIN. What survives a promotion is what the
//! replica had. Replication is asynchronous unless it is set up otherwise: the last grants may be lost with the old
//! primary, and their tokens given again. With semi-synchronous replication (`rpl_semi_sync_master_wait_point = AFTER_SYNC`)
//! a grant that was answered is on a replica.
//!
//! With `?mode=session` locks are those of `GET_LOCK` instead, which belong to a connection: see [`SessionStore`].
//! [`sql`](crate::sql) locks inside a transaction of your own.

use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch, sql,
};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::name::Name;
pub use crate::store::sql::face::SessionStore;
use client::Client;
use futures_util::future::{Either, select};
use hosts::Hosts;
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use fault::of_transaction;
pub(crate) use script::seen;

mod alone;
mod attend;
mod client;
mod crowd;
mod fault;
mod hosts;
mod registers;
mod script;
mod seeing;
mod session;
mod verbs;

/// The layout that this version reads and writes.
pub(crate) const VERSION: i64 = 3;

/// A store in a MySQL or MariaDB database. Each value is a client of its own.
#[derive(Debug)]
pub struct MysqlStore {
    client: Arc<Client>,
    label: Arc<str>,
}

impl MysqlStore {
    /// Connects, and makes the tables if they are missing.
    ///
    /// `url` is `mysql://[USER:PASSWORD@]HOST[:PORT][,HOST...]/DATABASE`. The options are those of the URL's query: `migrate` (`on`,
    /// `off`), `tls` (`off`, `on`: certificates are checked), `ca` (a PEM file; the well-known authorities by default).
    ///
    /// # Errors
    /// `InvalidInput` for a URL or option that makes no sense; `Unavailable` if there is no answer; `Denied` if the database
    /// refuses the user, or the tables are missing and the user may not make them; `Broken` for an unknown layout.
    pub async fn connect(url: &str, options: &BTreeMap<String, String>) -> Result<MysqlStore> {
        let hosts = Hosts::parse(url, options)?;
        let migrate = hosts.migrate;
        let store = MysqlStore { client: Client::new(hosts, Clock::system()), label: "mysql".into() };
        store.check_layout(migrate).await?;
        Ok(store)
    }

    /// The same database with locks that belong to a connection: `?mode=session`. The options are those of
    /// [`connect`](MysqlStore::connect).
    ///
    /// # Errors
    /// As [`connect`](MysqlStore::connect).
    ///
    /// # Cancel safety
    /// Nothing is left behind, except for tables that were made.
    pub async fn connect_session(url: &str, options: &BTreeMap<String, String>) -> Result<SessionStore> {
        let hosts = Hosts::parse(url, options)?;
        let address = hosts.address.clone();
        // It makes the tables, and goes.
        drop(MysqlStore::connect(url, options).await?);
        let session = session::connect(hosts, Clock::system()).await?;
        Ok(SessionStore::new(session, "mysql-session", false, address))
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> MysqlStore {
        self.label = label.into();
        self
    }

    /// The SQL that makes the tables. It may be run again.
    #[must_use]
    pub fn layout() -> &'static str {
        concat!(include_str!("mysql/tables.sql"), include_str!("mysql/session.sql"), include_str!("mysql/version.sql"))
    }

    /// Takes out lapsed tickets and every line that nobody has used for `idle`, and says how many lines that were. Clients do
    /// this by themselves, bit by bit, while they make new lines. Two round trips for 500 lines.
    ///
    /// # Errors
    /// Whatever keeps the database from answering.
    pub async fn reap(&self, idle: Duration) -> Result<u64> {
        let mut after: Option<Vec<u8>> = None;
        let mut all = 0;
        loop {
            let (upto, reaped) = seeing::reap(&self.client, after.as_deref(), attend::REAPED, idle).await?;
            all += reaped;
            if upto.is_none() {
                return Ok(all);
            }
            after = upto;
        }
    }

    /// Makes sure that the tables are there and that we know them: one round trip, or three the first time.
    async fn check_layout(&self, migrate: bool) -> Result<()> {
        let mut found = self.version().await?;
        if found.is_none() && migrate {
            self.make().await?;
            found = self.version().await?;
        }
        sql::judge_layout(found, VERSION, &self.client.hosts.address)
    }

    /// The layout that is there; `None` if there is none, or somebody is making it at this moment, or gave up half-way. One
    /// round trip.
    async fn version(&self) -> Result<Option<i64>> {
        match self.client.try_run("SELECT CAST(version AS SIGNED) FROM fencelock_layout;").await? {
            Ok(answers) => Ok(answers.first().and_then(|rows| rows.first()).and_then(|row| row.get(0))),
            Err(error) if fault::is_missing(&error) => Ok(None),
            Err(error) => Err(fault::of_call(error, &self.client.hosts.address)),
        }
    }

    /// Runs the layout. One round trip.
    async fn make(&self) -> Result<()> {
        self.client.run(MysqlStore::layout()).await.map(drop).map_err(sql::not_made)
    }
}

/// Makes the tables, or brings an older layout up to date; says which layout was there. Three round trips.
pub(crate) async fn migrate(url: &str, options: &BTreeMap<String, String>) -> Result<Option<i64>> {
    let client = Client::new(Hosts::parse(url, options)?, Clock::system());
    let store = MysqlStore { client, label: "mysql".into() };
    let was = store.version().await?;
    if was.is_none_or(|was| was <= VERSION) {
        store.make().await?;
    }
    sql::judge_layout(store.version().await?, VERSION, &store.client.hosts.address)?;
    Ok(was)
}

impl Drop for MysqlStore {
    fn drop(&mut self) {
        self.client.close();
    }
}

impl Store for MysqlStore {
    fn info(&self) -> Info {
        Info {
            kind: "mysql",
            label: self.label.clone(),
            address: self.client.hosts.address.clone(),
            clock: self.client.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::SingleNode,
            queue: Queue::Fifo,
            wake: Wake::Poll,
            lifetime: Lifetime::Ticket,
            reach: Reach::Network,
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
        // Whoever attaches a second time has its work done on the first one's thread.
        let _ = self.client.host.set(host);
    }

    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            verbs::enter(&self.client, batch).await
        })
    }

    /// One round trip at first, or none for a ticket that has just joined here; after that the poller looks for all who wait in this process.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(async move {
            let client = &self.client;
            let listening = client.ears.listen(place);
            client.stir();
            attend::start(client);
            let here = std::slice::from_ref(place);
            // Who has just joined here is looked for with all the others, very soon.
            if client.stand.of(place).is_none() {
                let found = seeing::look(client, here).await?.pop().unwrap_or(Waited::Gone);
                if found != Waited::Waiting {
                    return Ok(found);
                }
            }
            client.bell.ring();
            match select(pin!(listening.hear()), client.clock.sleep_until(until)).await {
                Either::Left((found, _)) => Ok(found),
                Either::Right(_) => Ok(seeing::look(client, here).await?.pop().unwrap_or(Waited::Gone)),
            }
        })
    }

    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(verbs::renew(&self.client, batch))
    }

    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(verbs::leave(&self.client, batch))
    }

    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(verbs::change(&self.client, place, weight, note))
    }

    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(verbs::upgrade(&self.client, place, new))
    }

    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(verbs::expel(&self.client, name, token))
    }

    /// No round trip; then one for all that is watched, several times a second.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move {
            let client = &self.client;
            *sql::lock(&client.watched).entry(scope.clone()).or_default() += 1;
            let watching = Watching { hints: client.hints.subscribe(scope.clone()), client: client.clone(), scope };
            attend::start(client);
            client.bell.ring();
            Ok(Box::pin(watching) as BoxStream<'static, Hint>)
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(seeing::inspect(&self.client, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(seeing::list(&self.client, prefix, after, limit))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.client.close() })
    }
}

/// A stream of hints; with the last one of a scope it is no longer looked at.
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
        let mut watched = sql::lock(&self.client.watched);
        if let Some(count) = watched.get_mut(&self.scope) {
            *count -= 1;
            if *count == 0 {
                watched.remove(&self.scope);
            }
        }
    }
}
