//! One client of the database: its connections, its calls, and what it is told.
//!
//! Each runtime that calls has one connection, opened at its first call; calls on it are pipelined. The listener has a
//! connection of its own.

use super::fault;
use super::prepared::Connection;
use super::settings::{self, Listen, Settings};
use crate::clock::{Clock, Moment};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::store::hints::Hints;
use crate::store::sql::{Bell, Ears, News, client_name, lock};
use crate::store::{Host, Scope, TicketId, Waited};
use futures_util::future::{Either, select};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// We give up a call after this long: a little more than the server does.
const PATIENCE: Duration = Duration::from_secs(5);
/// A call that the database rolled back for another one's sake is sent again this often.
const TRIES: u32 = 5;

pub(super) type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

pub(super) struct Client {
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    /// What the database knows us by; empty where it cannot tell us anything.
    pub(super) me: String,
    /// Whether what we are connected to is the database itself: a listener there is told, which no pooler does that shares
    /// connections between transactions.
    direct: bool,
    pub(super) ears: Ears,
    pub(super) hints: Hints,
    /// What this client watches, and how many streams there are of it.
    pub(super) watched: Mutex<HashMap<Scope, usize>>,
    pub(super) host: OnceLock<Host>,
    pub(super) bell: Bell,
    /// When somebody in a line that we wait in may lapse.
    pub(super) lapse: Mutex<Moment>,
    /// Since when nothing has happened to those who wait here.
    pub(super) stirred: Mutex<Moment>,
    pub(super) attended: AtomicBool,
    pub(super) listening: AtomicBool,
    /// Lines made since the last look for abandoned ones.
    pub(super) made: AtomicU64,
    pub(super) closed: AtomicBool,
    pub(super) end: Bell,
    slots: Mutex<HashMap<Id, Arc<Slot>>>,
    /// Enters that were sent and not answered yet, or given up, and the connection that they are on.
    unanswered: Mutex<HashMap<TicketId, Arc<Connection>>>,
    itself: Weak<Client>,
}

/// The connection of one runtime.
#[derive(Default)]
struct Slot {
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

impl Client {
    pub(super) fn new(settings: Settings, clock: Clock, pushes: bool) -> Arc<Client> {
        Arc::new_cyclic(|itself| Client {
            itself: itself.clone(),
            me: if pushes { client_name() } else { String::new() },
            direct: pushes && settings.listen == Listen::Here,
            ears: Ears::default(),
            hints: Hints::default(),
            watched: Mutex::default(),
            host: OnceLock::new(),
            bell: Bell::default(),
            lapse: Mutex::new(Moment::FAR),
            stirred: Mutex::new(clock.now()),
            attended: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            made: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            end: Bell::default(),
            slots: Mutex::default(),
            unanswered: Mutex::default(),
            settings,
            clock,
        })
    }

    pub(super) fn pushes(&self) -> bool {
        !self.me.is_empty()
    }

    /// The runtime that the library's own work is done on.
    pub(super) fn own_runtime(&self) -> Option<Handle> {
        self.host.get().map(|host| host.runtime().clone()).or_else(|| Handle::try_current().ok())
    }

    /// The connection of the runtime that we are on (of the library thread, if on none). No round trip once it is open.
    async fn connection(&self) -> Result<Arc<Connection>> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store was closed"));
        }
        let runtime = Handle::try_current().ok().or_else(|| self.own_runtime());
        let Some(runtime) = runtime else {
            return Err(Error::new(ErrorKind::Unsupported, "PostgreSQL can only be called from a tokio runtime"));
        };
        let slot = lock(&self.slots).entry(runtime.id()).or_default().clone();
        let mut connection = slot.connection.lock().await;
        if let Some(open) = connection.as_ref().filter(|open| !open.is_closed()) {
            return Ok(open.clone());
        }
        let (open, _) = self
            .within("connect", settings::open(&self.settings, &runtime))
            .await?
            .map_err(|error| fault::of_connecting(error, &self.settings.address))?;
        let open = Arc::new(Connection::new(open, self.direct));
        lock(&self.unanswered).retain(|_, on| !on.is_closed());
        *connection = Some(open.clone());
        drop(connection);
        // Runtimes come and go; their connections end with them.
        lock(&self.slots).retain(|id, slot| {
            *id == runtime.id()
                || slot.connection.try_lock().map_or(true, |c| c.as_ref().is_some_and(|c| !c.is_closed()))
        });
        Ok(open)
    }

    /// Takes a connection that was opened already.
    pub(super) fn adopt(&self, runtime: &Handle, connection: tokio_postgres::Client) {
        let connection = Arc::new(Connection::new(connection, self.direct));
        let slot = Slot { connection: tokio::sync::Mutex::new(Some(connection)) };
        lock(&self.slots).insert(runtime.id(), Arc::new(slot));
    }

    /// Something that must not take for ever. Runs on our own clock: the caller's runtime may have none.
    async fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> Result<T> {
        let limit = self.clock.sleep_until(self.clock.now().after(PATIENCE));
        match select(pin!(future), limit).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => {
                let address = &self.settings.address;
                let secs = PATIENCE.as_secs();
                Err(Error::new(ErrorKind::Unavailable, format!("{address} did not answer within {secs} s ({what})")))
            }
        }
    }

    /// Calls a function of ours: one round trip, one transaction.
    pub(super) async fn call(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        self.call_on(None, &[], sql, params).await
    }

    /// The same for an enter of these tickets. Should the caller give it up, it may still be carried out: so it is known which
    /// connection it is on until a leave has come behind it.
    pub(super) async fn call_entering(&self, ids: &[TicketId], sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        let answer = self.call_on(None, ids, sql, params).await;
        if answer.as_ref().err().is_none_or(|error| error.effect() == Effect::None) {
            self.answered(ids);
        }
        answer
    }

    /// On which connection an unanswered enter of this ticket is, while that is open: a leave there comes after it.
    pub(super) fn entering(&self, id: TicketId) -> Option<Arc<Connection>> {
        lock(&self.unanswered).get(&id).filter(|connection| !connection.is_closed()).cloned()
    }

    /// No enter of these tickets is under way any more.
    pub(super) fn answered(&self, ids: &[TicketId]) {
        let mut unanswered = lock(&self.unanswered);
        ids.iter().for_each(|id| drop(unanswered.remove(id)));
    }

    /// Calls on this connection, or on the runtime's own.
    pub(super) async fn call_on(
        &self,
        on: Option<&Arc<Connection>>,
        entering: &[TicketId],
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>> {
        let sql = self.spelled(sql);
        let mut tries = 0;
        loop {
            let connection = match on {
                Some(connection) => connection.clone(),
                None => self.connection().await?,
            };
            lock(&self.unanswered).extend(entering.iter().map(|id| (*id, connection.clone())));
            let answer = match self.within("call", connection.query(&sql, params)).await {
                Ok(answer) => answer,
                Err(late) => {
                    // What was sent is still under way on this connection: nobody else shall stand behind it.
                    self.discard(&connection).await;
                    return Err(late.effect_unknown());
                }
            };
            match answer {
                Ok(rows) => return Ok(rows),
                Err(error) if fault::is_transient(&error) && tries < TRIES => {
                    tries += 1;
                    let pause = Duration::from_millis(fastrand::u64(1..=10 << tries));
                    self.clock.sleep_until(self.clock.now().after(pause)).await;
                }
                Err(error) => return Err(fault::of_call(error, &self.settings.address)),
            }
        }
    }

    /// Our SQL speaks of the schema `fencelock`; the user may have chosen another.
    pub(super) fn spelled<'a>(&self, sql: &'a str) -> std::borrow::Cow<'a, str> {
        spelled(sql, &self.settings.schema)
    }

    async fn discard(&self, connection: &Arc<Connection>) {
        lock(&self.unanswered).retain(|_, on| !Arc::ptr_eq(on, connection));
        let slots: Vec<Arc<Slot>> = lock(&self.slots).values().cloned().collect();
        for slot in slots {
            let mut open = slot.connection.lock().await;
            if open.as_ref().is_some_and(|open| Arc::ptr_eq(open, connection)) {
                *open = None;
            }
        }
    }

    /// What a verb's answer, or another client, says.
    pub(super) fn hear(&self, news: &str, from_others: bool) {
        for line in news.lines() {
            match News::parse(line) {
                Some(News::In(id, token)) => {
                    self.stir();
                    self.ears.tell(id, &Waited::Admitted { token });
                }
                Some(News::Out(id)) => {
                    self.stir();
                    self.ears.tell(id, &Waited::Gone);
                    if let Some(host) = self.host.get() {
                        host.doubt(Some(id));
                    }
                }
                Some(News::Changed(name)) => self.hints.tell(&name),
                None => tracing::debug!(line, from_others, "a message that this version does not understand"),
            }
        }
    }

    /// Something has happened to those who wait here: it is worth looking more often.
    pub(super) fn stir(&self) {
        *lock(&self.stirred) = self.clock.now();
    }

    /// Somebody in a line that we wait in may lapse then.
    pub(super) fn expect_lapse(&self, rest: Option<Duration>) {
        let Some(rest) = rest else { return };
        let at = self.clock.now().after(rest);
        let mut lapse = lock(&self.lapse);
        if at < *lapse {
            *lapse = at;
            drop(lapse);
            self.bell.ring();
        }
    }

    /// Whether anything is left to be told of.
    pub(super) fn listens(&self) -> bool {
        self.settings.listen != Listen::Off && self.pushes()
    }

    /// For the client's own tasks.
    pub(super) fn arc(&self) -> Arc<Client> {
        self.itself.upgrade().expect("whoever calls has one")
    }

    /// Once in a while somebody has to take out what was left behind: the attendant.
    pub(super) fn look_for_abandoned(&self) {
        let made = self.made.load(Ordering::Relaxed);
        if made == 1 || made >= super::attend::MADE {
            self.bell.ring();
        }
    }

    /// Ends the tasks and connections.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.end.ring();
        self.bell.ring();
        lock(&self.slots).clear();
        lock(&self.unanswered).clear();
    }
}

/// Our SQL with the schema's name put in.
pub(crate) fn spelled<'a>(sql: &'a str, schema: &str) -> std::borrow::Cow<'a, str> {
    if schema == settings::SCHEMA {
        return sql.into();
    }
    let mut sql = sql.replace("fencelock.", &format!("{schema}."));
    for before in ["SCHEMA IF NOT EXISTS", "SCHEMA"] {
        sql = sql.replace(&format!("{before} fencelock"), &format!("{before} {schema}"));
    }
    sql.into()
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.settings.address)
    }
}
