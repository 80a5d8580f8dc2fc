//! One client of the database: its connections, the scripts it sends, and who waits here.
//!
//! Each runtime that calls has up to [`CONNECTIONS`] of its own, opened when they are needed. A script is one packet and so one
//! round trip; a connection whose script failed or was given up is closed, which rolls back whatever was open on it.

use super::alone::Lines;
use super::crowd::Stand;
use super::fault;
use super::hosts::Hosts;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::store::hints::Hints;
use crate::store::sql::{Bell, Ears, client_name, lock};
use crate::store::{Host, Scope, TicketId};
use futures_core::future::BoxFuture;
use futures_util::future::{Either, select};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;

/// Scripts of one runtime that can be under way at once.
const CONNECTIONS: usize = 4;
/// We give up a call after this long; the server gives up waiting for a line's lock a little earlier.
const PATIENCE: Duration = Duration::from_secs(5);
/// A script that the database rolled back for another one's sake is sent again this often.
const TRIES: u32 = 5;

/// What a connection is told first.
const SESSION: &[&str] = &[
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = 4, autocommit = 1, sql_mode = 'STRICT_ALL_TABLES'",
];

/// What every script ends with.
const DONE: &str = "SELECT 'done'";

/// The rows of each statement that had any to give.
pub(super) type Answers = Vec<Vec<Row>>;

/// What is sent.
#[derive(Clone, Copy)]
enum Form {
    /// Statements, each with a semicolon.
    Script,
    /// The same with an answer that comes last, so that nothing else need say that all of it was carried out.
    Ending,
    /// One statement, and that it has answered says that it was carried out.
    Alone,
}

/// What came back: the rows; and how many rows the last statement has changed, and its insert id.
#[derive(Default)]
struct Answer {
    rows: Answers,
    changed: u64,
    id: u64,
}

pub(super) struct Client {
    pub(super) hosts: Hosts,
    pub(super) clock: Clock,
    pub(super) me: String,
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
    /// What we know of lines.
    pub(super) lines: Lines,
    /// Where those stand who wait here.
    pub(super) stand: Stand,
    /// Lines made since the last look for abandoned ones.
    pub(super) made: AtomicU64,
    pub(super) closed: AtomicBool,
    slots: Mutex<HashMap<Id, Arc<Slot>>>,
    /// Enters that were sent and not answered yet; whoever holds a receiver learns of the end.
    unanswered: Mutex<HashMap<TicketId, Vec<watch::Receiver<()>>>>,
    itself: Weak<Client>,
}

/// The connections of one runtime.
struct Slot {
    free: tokio::sync::Semaphore,
    idle: Mutex<Vec<Conn>>,
}

impl Client {
    pub(super) fn new(hosts: Hosts, clock: Clock) -> Arc<Client> {
        Arc::new_cyclic(|itself| Client {
            hosts,
            me: client_name(),
            ears: Ears::default(),
            hints: Hints::default(),
            watched: Mutex::default(),
            host: OnceLock::new(),
            bell: Bell::default(),
            lapse: Mutex::new(Moment::FAR),
            stirred: Mutex::new(clock.now()),
            attended: AtomicBool::new(false),
            lines: Lines::default(),
            stand: Stand::default(),
            made: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            slots: Mutex::default(),
            unanswered: Mutex::default(),
            itself: itself.clone(),
            clock,
        })
    }

    /// For the client's own task.
    pub(super) fn arc(&self) -> Arc<Client> {
        self.itself.upgrade().expect("whoever calls has one")
    }

    /// The runtime that the library's own work is done on.
    pub(super) fn own_runtime(&self) -> Option<Handle> {
        self.host.get().map(|host| host.runtime().clone()).or_else(|| Handle::try_current().ok())
    }

    /// Something that must not take for ever. Runs on our own clock: the caller's runtime may have none.
    async fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> Result<T> {
        let limit = self.clock.sleep_until(self.clock.now().after(PATIENCE));
        match select(pin!(future), limit).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => {
                let (address, secs) = (&self.hosts.address, PATIENCE.as_secs());
                Err(Error::new(ErrorKind::Unavailable, format!("{address} did not answer within {secs} s ({what})")))
            }
        }
    }

    /// Sends a script: one round trip, once a connection is open.
    pub(super) async fn run(&self, script: &str) -> Result<Answers> {
        self.try_run(script).await?.map_err(|error| fault::of_call(error, &self.hosts.address))
    }

    /// Sends a script whose last statement, and no other, answers something: one round trip.
    pub(super) async fn run_ending(&self, script: &str) -> Result<Vec<Row>> {
        self.send_ending(script).await?.pop().ok_or_else(super::script::broken)
    }

    async fn send_ending(&self, script: &str) -> Result<Answers> {
        let answer = self.try_send(script, Form::Ending).await?;
        Ok(answer.map_err(|error| fault::of_call(error, &self.hosts.address))?.rows)
    }

    /// Sends one statement that only reads: one round trip.
    pub(super) async fn run_alone(&self, statement: &str) -> Result<Vec<Row>> {
        Ok(self.send_alone(statement).await?.rows.pop().unwrap_or_default())
    }

    /// Sends one statement that changes something, without a transaction around it: one round trip. Says how many rows it has
    /// changed, and its insert id.
    pub(super) async fn run_update(&self, statement: &str) -> Result<(u64, u64)> {
        let answer = self.send_alone(statement).await?;
        Ok((answer.changed, answer.id))
    }

    async fn send_alone(&self, statement: &str) -> Result<Answer> {
        let answer = self.try_send(statement, Form::Alone).await?;
        answer.map_err(|error| fault::of_call(error, &self.hosts.address))
    }

    /// The same for an enter of these tickets. Should the caller give it up, it goes on in the background: the server carries
    /// it out anyhow, and a [`leave`](Client::answered) must come behind it.
    pub(super) async fn run_entering(&self, ids: Vec<TicketId>, script: String) -> Result<Answers> {
        self.lasting(ids, |client| async move { client.run(&script).await }).await
    }

    /// The same for one ticket and a script whose last statement says that all of it was carried out.
    pub(super) async fn run_following(&self, id: TicketId, script: String) -> Result<Answers> {
        self.lasting(vec![id], |client| async move { client.send_ending(&script).await }).await
    }

    /// The same for one ticket and one statement: [`run_update`](Client::run_update).
    pub(super) async fn run_taking(&self, id: TicketId, statement: String) -> Result<(u64, u64)> {
        self.lasting(vec![id], |client| async move { client.run_update(&statement).await }).await
    }

    /// A call that is carried out to its end though whoever asked for it has gone; until then an enter of these tickets is under way.
    async fn lasting<T, F>(&self, ids: Vec<TicketId>, call: impl FnOnce(Arc<Client>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (pending, answer) = (self.pending(ids), call(self.arc()));
        let running = async move {
            let answer = answer.await;
            drop(pending);
            answer
        };
        Lasting(Some(Box::pin(running))).await
    }

    /// An enter of these tickets is under way until this is dropped.
    fn pending(&self, ids: Vec<TicketId>) -> Pending {
        let (sender, receiver) = watch::channel(());
        for id in &ids {
            lock(&self.unanswered).entry(*id).or_default().push(receiver.clone());
        }
        Pending { client: self.arc(), ids, receiver, _sender: sender }
    }

    /// Waits until no enter of this ticket is under way.
    pub(super) async fn answered(&self, id: TicketId) -> Result<()> {
        loop {
            let Some(mut one) = lock(&self.unanswered).get(&id).and_then(|all| all.first().cloned()) else {
                return Ok(());
            };
            // It ends with an error, when the other end goes.
            let _ = self.within("enter", one.changed()).await?;
        }
    }

    /// The same, with the driver's own error where the server refused it.
    pub(super) async fn try_run(&self, script: &str) -> Result<Result<Answers, mysql_async::Error>> {
        Ok(self.try_send(script, Form::Script).await?.map(|answer| answer.rows))
    }

    async fn try_send(&self, script: &str, form: Form) -> Result<Result<Answer, mysql_async::Error>> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store was closed"));
        }
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::new(ErrorKind::Unsupported, "MySQL can only be called from a tokio runtime"));
        };
        let slot = {
            let mut slots = lock(&self.slots);
            let new = || Slot { free: tokio::sync::Semaphore::new(CONNECTIONS), idle: Mutex::default() };
            slots.entry(runtime.id()).or_insert_with(|| Arc::new(new())).clone()
        };
        let _turn = self.within("turn", slot.free.acquire()).await?;
        let mut tries = 0;
        loop {
            let idle = lock(&slot.idle).pop();
            let fresh = idle.is_none();
            let mut conn = match idle {
                Some(conn) => conn,
                None => self.hosts.open(SESSION, &self.clock).await?,
            };
            let answer = match self.within("script", send(&mut conn, script, form)).await {
                Ok(answer) => answer,
                Err(late) => return Err(late.effect_unknown()),
            };
            match answer {
                Ok(answer) => {
                    lock(&slot.idle).push(conn);
                    return Ok(Ok(answer));
                }
                Err(error) if fault::is_transient(&error) && tries < TRIES => {
                    tries += 1;
                    let pause = Duration::from_millis(fastrand::u64(1..=10 << tries));
                    self.clock.sleep_until(self.clock.now().after(pause)).await;
                }
                // The host was a primary and is none any more: there is another one by now, or soon.
                Err(error) if self.hosts.several() && fault::is_read_only(&error) && tries < TRIES => {
                    tries += 1;
                    lock(&slot.idle).clear();
                }
                // Every script may be repeated. A connection that stood idle may have been closed by the server.
                Err(mysql_async::Error::Io(_) | mysql_async::Error::Driver(_)) if !fresh && tries < TRIES => tries += 1,
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Something has happened to those who wait here: it is worth looking more often.
    pub(super) fn stir(&self) {
        *lock(&self.stirred) = self.clock.now();
    }

    /// Somebody in a line that we wait in may lapse then.
    pub(super) fn expect_lapse(&self, rest: Duration) {
        let at = self.clock.now().after(rest);
        let mut lapse = lock(&self.lapse);
        if at < *lapse {
            *lapse = at;
            drop(lapse);
            self.bell.ring();
        }
    }

    /// Ends the task and the connections.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.bell.ring();
        lock(&self.slots).clear();
    }
}

/// An enter that is under way.
struct Pending {
    client: Arc<Client>,
    ids: Vec<TicketId>,
    receiver: watch::Receiver<()>,
    _sender: watch::Sender<()>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut unanswered = lock(&self.client.unanswered);
        for id in &self.ids {
            if let Some(all) = unanswered.get_mut(id) {
                all.retain(|one| !one.same_channel(&self.receiver));
                if all.is_empty() {
                    unanswered.remove(id);
                }
            }
        }
    }
}

/// A future that goes on by itself when it is dropped.
struct Lasting<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Future for Lasting<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(running) = &mut self.0 else { return Poll::Pending };
        let done = running.as_mut().poll(cx);
        if done.is_ready() {
            self.0 = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for Lasting<T> {
    fn drop(&mut self) {
        // Where there is no runtime, its connections are gone as well.
        if let (Some(running), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(running);
        }
    }
}

async fn send(conn: &mut Conn, script: &str, form: Form) -> Result<Answer, mysql_async::Error> {
    match form {
        Form::Script => Ok(Answer { rows: answers(conn, script).await?, ..Answer::default() }),
        Form::Ending => Ok(Answer { rows: collect(conn, script).await?, ..Answer::default() }),
        Form::Alone => {
            let rows = vec![conn.query(script).await?];
            Ok(Answer { rows, changed: conn.affected_rows(), id: conn.last_insert_id().unwrap_or(0) })
        }
    }
}

/// Everything that a script answers, if it ran to its end.
pub(super) async fn answers(conn: &mut Conn, script: &str) -> Result<Answers, mysql_async::Error> {
    let mut all = collect(conn, &format!("{script}\n{DONE}")).await?;
    // Nothing of a script counts unless it ran to its end.
    let done: Option<String> = all.pop().and_then(|rows| rows.first().and_then(|row| row.get(0)));
    if done.as_deref() == Some("done") {
        Ok(all)
    } else {
        Err(mysql_async::DriverError::UnexpectedPacket { payload: Vec::new() }.into())
    }
}

/// The rows of every statement that has any to give.
pub(super) async fn collect(conn: &mut Conn, script: &str) -> Result<Answers, mysql_async::Error> {
    let mut result = conn.query_iter(script).await?;
    let mut all = Vec::new();
    while !result.is_empty() {
        let has_columns = result.columns().is_some_and(|columns| !columns.is_empty());
        let rows = result.collect::<Row>().await?;
        if has_columns {
            all.push(rows);
        }
    }
    // The error of a later statement is only told to whoever asks for one result more.
    result.collect::<Row>().await?;
    Ok(all)
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.hosts.address)
    }
}
