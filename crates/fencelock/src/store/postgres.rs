//! The PostgreSQL store: lines and tickets are rows, each verb is one call of a function and so one transaction.
//!
//! # The tables
//!
//! They live in a schema of their own (`fencelock`, or what `?schema=` says) and are made at the first connection, if the role
//! may create a schema; concurrent first connections are safe. With `?migrate=off` nothing is made: run `fencelock migrate`
//! ([`Migration`](crate::Migration)) as somebody who may, or what `fencelock migrate --print` prints. A layout that is older than this version's
//! is never changed by a mere connection, since others may still use it: it is an error that says so. After that a role needs
//!
//! ```sql
//! GRANT USAGE ON SCHEMA fencelock TO app;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencelock TO app;
//! GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA fencelock TO app; -- mode=session only
//! ```
//!
//! Lapsed tickets and lines that nobody uses are taken out by whoever makes new ones, so a million names used once leave a
//! small table. Numbers go on all the same: before a line is taken out, a floor for all new lines is raised to its last one.
//!
//! # What to expect
//!
//! Leases are measured on the database's clock: a step of it frees or keeps tickets by as much. Waiters are woken by
//! LISTEN/NOTIFY on one connection for the whole process, and by a slow tick should a message get lost. A pooler that shares
//! connections between transactions swallows LISTEN. That is found out when connecting: waiters then look by themselves
//! ([`Wake::Poll`]), unless `?listen=HOST:PORT` names the database's own address.
//!
//! Each call is one round trip and one transaction. Its text is prepared once for each connection, which is one more; not
//! where LISTEN is swallowed, or off, or elsewhere, since a pooler may be there that does not keep what was prepared.
//!
//! A disk that is full is `Unavailable`. Where the tables have no room, nothing was done, and what is held can mostly be renewed.
//! Where the log has none, PostgreSQL ends: whether the last call was done is unknown, and guards are lost at their deadlines.
//!
//! Each runtime that calls has one connection, the library thread another one, the listener a third. Of several hosts in the
//! URL the one that can be written to is used. What survives a failover is what the standby had: with asynchronous replication
//! the last grants may be lost, and their tokens given again; with `synchronous_standby_names` set they are not.
//!
//! With `?mode=session` locks are advisory locks of a connection instead: see [`SessionStore`]. [`sql`](crate::sql) locks inside a
//! transaction of your own.

use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch, sql,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
pub use crate::store::sql::face::SessionStore;
use client::Client;
use futures_util::future::{Either, select};
use settings::{Listen, Settings};
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use client::spelled;
pub(crate) use fault::of_transaction;
pub(crate) use settings::{SCHEMA, check_schema};
pub(crate) use verbs::seen;

mod attend;
mod client;
mod fault;
mod prepared;
mod registers;
mod session;
mod settings;
mod verbs;

/// The layout that this version reads and writes.
pub(crate) const VERSION: i32 = 1;

/// A store in a PostgreSQL database. Each value is a client of its own.
#[derive(Debug)]
pub struct PostgresStore {
    client: Arc<Client>,
    label: Arc<str>,
}

impl PostgresStore {
    /// Connects, makes the tables if they are missing, and finds out whether waiters can be told.
    ///
    /// `url` is `postgres://[USER:PASSWORD@]HOST[:PORT][,HOST...]/DATABASE`. The options are those of the URL's query:
    /// `migrate` (`on`, `off`), `schema`, `listen` (`on`, `off`, `HOST:PORT`), `sslmode` (`disable`, `verify-full`),
    /// `sslrootcert` (a PEM file; the well-known authorities by default).
    ///
    /// # Errors
    /// `InvalidInput` for a URL or option that makes no sense; `Unavailable` if there is no answer; `Denied` if the database
    /// refuses the user, or the tables are missing and the user may not make them; `Broken` for an unknown layout.
    pub async fn connect(url: &str, options: &BTreeMap<String, String>) -> Result<PostgresStore> {
        let settings = Settings::parse(url, options)?;
        let clock = Clock::system();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::new(ErrorKind::Unsupported, "PostgreSQL can only be called from a tokio runtime"));
        };
        let limit = clock.sleep_until(clock.now().after(Duration::from_secs(10)));
        let opening = async {
            let (connection, _) = settings::open(&settings, &runtime)
                .await
                .map_err(|error| fault::of_connecting(error, &settings.address))?;
            check_layout(&connection, &settings).await?;
            let pushes =
                settings.listen != Listen::Off && attend::can_listen(&connection, &settings, &clock, &runtime).await;
            if !pushes && settings.listen != Listen::Off {
                tracing::info!(
                    address = settings.address,
                    "nothing can be told here, a pooler perhaps: waiters will poll"
                );
            }
            Ok::<_, Error>((connection, pushes))
        };
        let (connection, pushes) = match select(pin!(opening), limit).await {
            Either::Left((opened, _)) => opened?,
            Either::Right(_) => {
                let message = format!("{} did not answer within 10 s", settings.address);
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
        };
        let client = Client::new(settings, clock, pushes);
        client.adopt(&runtime, connection);
        Ok(PostgresStore { client, label: "postgres".into() })
    }

    /// The same database with locks that belong to a connection: `?mode=session`. The options are those of
    /// [`connect`](PostgresStore::connect), without `listen`.
    ///
    /// # Errors
    /// As [`connect`](PostgresStore::connect); `Unsupported` behind a pooler that shares connections between transactions.
    ///
    /// # Cancel safety
    /// Nothing is left behind, except for tables that were made.
    pub async fn connect_session(url: &str, options: &BTreeMap<String, String>) -> Result<SessionStore> {
        let settings = Settings::parse(url, options)?;
        let address = settings.address.clone();
        let session = session::connect(settings, Clock::system()).await?;
        Ok(SessionStore::new(session, "postgres-session", true, address))
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> PostgresStore {
        self.label = label.into();
        self
    }

    /// The SQL that makes the tables and functions, for `psql --single-transaction`. It may be run again.
    #[must_use]
    pub fn layout(schema: &str) -> String {
        let sql = concat!(
            include_str!("postgres/tables.sql"),
            include_str!("postgres/verbs.sql"),
            include_str!("postgres/one.sql"),
            include_str!("postgres/registers.sql"),
            include_str!("postgres/session.sql"),
            include_str!("postgres/version.sql")
        );
        client::spelled(sql, schema).into_owned()
    }

    /// Takes out lapsed tickets and every line that nobody has used for `idle`, and says how many lines that were. Clients do
    /// this by themselves, bit by bit, while they make new lines. One round trip for 2,000 lines.
    ///
    /// # Errors
    /// Whatever keeps the database from answering.
    pub async fn reap(&self, idle: Duration) -> Result<u64> {
        let mut after: Option<String> = None;
        let mut all = 0;
        loop {
            let (upto, reaped) = verbs::reap(&self.client, after.as_deref(), 2000, idle).await?;
            all += u64::try_from(reaped).unwrap_or(0);
            if upto.is_none() || upto == after {
                return Ok(all);
            }
            after = upto;
        }
    }
}

/// Makes the tables, or brings an older layout up to date; says which layout was there. Three round trips.
pub(crate) async fn migrate(url: &str, options: &BTreeMap<String, String>) -> Result<Option<i64>> {
    let settings = Settings::parse(url, options)?;
    let clock = Clock::system();
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return Err(Error::new(ErrorKind::Unsupported, "PostgreSQL can only be called from a tokio runtime"));
    };
    let limit = clock.sleep_until(clock.now().after(Duration::from_secs(60)));
    let making = async {
        let (connection, _) = settings::open(&settings, &runtime)
            .await
            .map_err(|error| fault::of_connecting(error, &settings.address))?;
        let was = version(&connection, &settings).await?;
        if was.is_none_or(|was| was <= VERSION.into()) {
            make(&connection, &settings).await?;
        }
        sql::judge_layout(version(&connection, &settings).await?, VERSION.into(), &settings.address)?;
        Ok(was)
    };
    match select(pin!(making), limit).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => {
            let message = format!("{} did not answer within a minute", settings.address);
            Err(Error::new(ErrorKind::Unavailable, message).effect_unknown())
        }
    }
}

/// Makes sure that the tables are there and that we know them: one round trip, or three the first time.
async fn check_layout(connection: &tokio_postgres::Client, settings: &Settings) -> Result<()> {
    let mut found = version(connection, settings).await?;
    if found.is_none() && settings.migrate {
        make(connection, settings).await?;
        found = version(connection, settings).await?;
    }
    sql::judge_layout(found, VERSION.into(), &settings.address)
}

/// The layout that is there; `None` if there is none. One round trip.
async fn version(connection: &tokio_postgres::Client, settings: &Settings) -> Result<Option<i64>> {
    let sql = client::spelled("SELECT version::bigint FROM fencelock.layout", &settings.schema);
    match connection.query_typed(&sql, &[]).await {
        Ok(rows) => Ok(rows.first().and_then(|row| row.try_get::<_, i64>(0).ok())),
        Err(error) if fault::is_missing(&error) => Ok(None),
        Err(error) => Err(fault::of_call(error, &settings.address)),
    }
}

/// Runs the layout: one implicit transaction, behind a lock of its own. Others who do the same at this moment wait, and find it
/// done. One round trip.
async fn make(connection: &tokio_postgres::Client, settings: &Settings) -> Result<()> {
    let layout = PostgresStore::layout(&settings.schema);
    let made = connection.batch_execute(&layout).await;
    made.map_err(|error| sql::not_made(fault::of_call(error, &settings.address)))
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.client.close();
    }
}

impl Store for PostgresStore {
    fn info(&self) -> Info {
        Info {
            kind: "postgres",
            label: self.label.clone(),
            address: self.client.settings.address.clone(),
            clock: self.client.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::SingleNode,
            queue: Queue::Fifo,
            wake: if self.client.pushes() { Wake::Push } else { Wake::Poll },
            lifetime: Lifetime::Ticket,
            reach: Reach::Network,
            weights: Weights::Any,
            atomic_batch: 256,
            settable_token: true,
            upgrade: true,
            expel: true,
            shortest_lease: Duration::from_millis(100),
            longest_lease: Duration::from_secs(365 * 86_400),
        }
    }

    fn attach(&self, host: Host) {
        // Whoever attaches a second time gets its news through the first one's thread.
        let _ = self.client.host.set(host);
    }

    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            verbs::enter(&self.client, batch).await
        })
    }

    /// One round trip at first; then none until something is told, or somebody may have lapsed.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(async move {
            let client = &self.client;
            let listening = client.ears.listen(place);
            client.stir();
            attend::start(client);
            let here = std::slice::from_ref(place);
            let found = verbs::look(client, here).await?.pop().unwrap_or(Waited::Gone);
            if found != Waited::Waiting {
                return Ok(found);
            }
            client.bell.ring();
            match select(pin!(listening.hear()), client.clock.sleep_until(until)).await {
                Either::Left((found, _)) => Ok(found),
                Either::Right(_) => Ok(verbs::look(client, here).await?.pop().unwrap_or(Waited::Gone)),
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

    /// One round trip; then a message for each change that another client makes, or a look five times a second.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move {
            let client = &self.client;
            *sql::lock(&client.watched).entry(scope.clone()).or_default() += 1;
            let watching = Watching { hints: client.hints.subscribe(scope.clone()), client: client.clone(), scope };
            attend::start(client);
            if client.pushes() {
                verbs::watch(client, std::slice::from_ref(&watching.scope)).await?;
            }
            client.bell.ring();
            Ok(Box::pin(watching) as BoxStream<'static, Hint>)
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(verbs::inspect(&self.client, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(verbs::list(&self.client, prefix, after, limit))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.client.close() })
    }
}

/// A stream of hints; the last one of a scope takes its row out of the database.
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
        let left = watched.get_mut(&self.scope).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left > 0 {
            return;
        }
        watched.remove(&self.scope);
        drop(watched);
        let Some(runtime) = self.client.own_runtime().filter(|_| self.client.pushes()) else { return };
        let (client, scope) = (self.client.clone(), self.scope.clone());
        runtime.spawn(async move {
            // Somebody may have begun to watch it again. If this fails, the row's own lease ends it.
            if !sql::lock(&client.watched).contains_key(&scope) {
                let _ = verbs::unwatch(&client, &[scope]).await;
            }
        });
    }
}
