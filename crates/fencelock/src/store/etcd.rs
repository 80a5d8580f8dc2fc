//! The etcd store: a ticket is a key of the client's session, `<name>/<lease>-<id>`, as Go's `concurrency` package and
//! `etcdctl lock` make them, so that they exclude our mutexes and are excluded by them. Its number is the revision in which it
//! was made. The client decides by [the rule](crate::line) from the line that it reads.
//!
//! # What it costs
//!
//! Lock and unlock are one transaction each, also for a waiter: the leave of the one ahead sees it in the same transaction, if its
//! client follows the line; else it costs one more when its turn has come. The first waiter of a name in a process also opens a
//! watch and reads the line once after that. A session is kept alive by one message every
//! third of its lease, however many tickets hang on it.
//!
//! # What it promises
//!
//! Tokens grow for ever, over the loss of any minority of the servers. A server that was paused while it led has been seen to
//! end sessions that were alive: the holder is told at once, the next token is larger, and only a resource that checks
//! tokens is safe in between.
//!
//! # What it needs of the servers
//!
//! etcd 3.4 or later. With users, the least rights are reading and writing every key that begins with the names of the locks,
//! and, for registers and so that the end of a session is noticed at once rather than within a second, with `%fencelock/`:
//!
//! ```text
//! etcdctl role grant-permission locks --prefix=true readwrite stock/
//! etcdctl role grant-permission locks --prefix=true readwrite %fencelock/
//! ```

use super::hints::Hints;
use super::note::{Picture, Record, Standing};
use super::session::Sessions;
use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use connection::{Call, Connections};
use fault::Fault;
use followed::Turn;
use futures_util::future::{Either, join_all, select};
use hub::{Hub, Joined, What};
use leases::{Session, Slot};
use prost::bytes::Bytes;
use rpc::{RangeRequest, TxnRequest};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

mod connection;
mod connector;
mod entering;
mod fault;
mod followed;
mod frame;
mod handing;
mod hub;
mod keys;
mod leases;
mod leaving;
mod open;
mod registers;
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "it is made by a program"
)]
mod rpc;
mod seeing;
mod txn;
mod unhurried;

/// How many tickets are looked at or taken out by one transaction; the server takes 128 operations.
const AT_ONCE: usize = 100;

/// A cluster of etcd servers.
pub struct EtcdStore {
    shared: Arc<Shared>,
    label: Arc<str>,
}

/// What the verbs and the library thread share.
struct Shared {
    clock: Clock,
    connections: Connections,
    sessions: Mutex<Sessions<Arc<Slot>>>,
    /// Our tickets: entered, or being entered, and not yet left.
    tickets: Mutex<HashMap<Mine, Ours>>,
    /// Sessions of other clients whose tickets were asked for here.
    adopted: Mutex<HashMap<i64, Arc<Session>>>,
    hub: Arc<Hub>,
    hints: Hints,
    host: OnceLock<Host>,
    closed: watch::Sender<bool>,
}

/// By what a ticket is known: the line's key, and its id.
type Mine = (Arc<str>, TicketId);

fn mine(place: &Place) -> Mine {
    (place.name.shared_key(), place.id)
}

/// A ticket of ours.
#[derive(Clone)]
struct Ours {
    session: Arc<Session>,
    key: Bytes,
    record: Record,
    /// Its number, once it is known.
    made: Option<i64>,
    /// An enter of it that was given up before it was answered.
    under_way: Option<watch::Receiver<bool>>,
}

impl EtcdStore {
    /// Connects to one of the servers that the URL names: `etcd://` or `etcds://`, without a query. `options` are those of the
    /// query.
    ///
    /// # Errors
    /// `InvalidInput` for a URL or options that make no sense, `Denied` where the servers do not want us, `Unavailable` where
    /// none of them can be reached.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str, options: &BTreeMap<String, String>) -> Result<EtcdStore> {
        let clock = Clock::system();
        let shared = Arc::new(Shared {
            connections: Connections::new(open::Servers::parse(url, options)?, clock.clone()),
            sessions: Mutex::default(),
            tickets: Mutex::default(),
            adopted: Mutex::default(),
            hub: Hub::new(clock.clone()),
            hints: Hints::default(),
            host: OnceLock::new(),
            closed: watch::Sender::new(false),
            clock,
        });
        // Whether it answers, and knows us. What this user may read is told by the first lock.
        let question = RangeRequest { key: keys::marker(0), count_only: true, ..RangeRequest::default() };
        match shared.connections.call(&question).await {
            Err(fault) if !fault.forbidden => Err(fault.into()),
            _ => Ok(EtcdStore { shared, label: "etcd".into() }),
        }
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> EtcdStore {
        self.label = label.into();
        self
    }
}

impl Shared {
    fn host(&self, act: impl FnOnce(&Host)) {
        if let Some(host) = self.host.get() {
            act(host);
        }
    }

    fn tickets(&self) -> MutexGuard<'_, HashMap<Mine, Ours>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One round trip; more only for the first call of a runtime.
    async fn ask<C: Call>(self: &Arc<Self>, question: C) -> Result<C::Answer, Fault> {
        if Handle::try_current().is_ok() {
            return self.connections.call(&question).await;
        }
        // Called from outside of any runtime: the library thread does it.
        let (answer, told) = tokio::sync::oneshot::channel();
        let this = self.clone();
        self.host(|host| {
            host.spawn(async move {
                let _ = answer.send(this.connections.call(&question).await);
            });
        });
        told.await.map_err(|_| Error::unknown("the library thread has ended"))?
    }

    /// Whether this is the key of a ticket of a session of ours that nobody knows.
    fn is_stray(&self, key: &[u8]) -> bool {
        let Some((name, keys::Shape { lease, id: Some(id) })) = keys::split(key) else { return false };
        self.open_sessions().iter().any(|session| session.lease == lease)
            && !self.tickets().contains_key(&(name.into(), id))
    }

    /// Deletes, in the background, what is ours and nobody knows.
    fn delete_strays<'a>(self: &Arc<Self>, found: impl IntoIterator<Item = (&'a Bytes, i64)>) {
        for (key, made) in found {
            if self.is_stray(key) {
                let (this, question) = (self.clone(), txn::take_out(key, Some(made)));
                // If it fails, whoever finds it next tries again.
                self.host(|host| host.spawn(async move { drop(this.ask(question).await) }));
            }
        }
    }

    /// The line as the server has it. One round trip.
    async fn read_line(self: &Arc<Self>, name: &Name) -> Result<Picture> {
        let found = self.ask(txn::whole(&keys::line(name))).await?;
        keys::picture(name.key(), &found.kvs)
    }

    /// A ticket and its number. No round trip where it was entered here and that was answered; else one. Another client's
    /// ticket is adopted: whoever knows its id may do with it what its owner may.
    async fn find(self: &Arc<Self>, place: &Place) -> Result<Option<(Ours, i64)>> {
        let known = self.tickets().get(&mine(place)).cloned();
        if let Some((ours, made)) = known.and_then(|ours| ours.made.map(|made| (ours, made))) {
            return Ok(Some((ours, made)));
        }
        let found = self.ask(txn::whole(&keys::line(&place.name))).await?;
        let kv = found.kvs.iter().find(|kv| keys::is_of(&kv.key, place));
        Ok(kv.and_then(|kv| self.adopt(place, kv)).map(|ours| (ours, kv.map_or(0, |kv| kv.create_revision))))
    }

    /// A ticket is not where it was when we last heard of it. If it was entered again elsewhere, it is found there: says whether
    /// that is worth a try.
    fn is_stale(&self, place: &Place, made: i64) -> bool {
        let mut tickets = self.tickets();
        let stale = tickets.get(&mine(place)).is_some_and(|ours| ours.made == Some(made));
        stale && tickets.remove(&mine(place)).is_some()
    }

    /// A ticket as it was found in the store.
    fn adopt(&self, place: &Place, kv: &rpc::KeyValue) -> Option<Ours> {
        let record = keys::ticket(place.name.key(), kv)?.ok()?.record;
        let ours = self.open_sessions().into_iter().find(|session| session.lease == kv.lease);
        let session = ours.unwrap_or_else(|| {
            let mut adopted = self.adopted.lock().unwrap_or_else(PoisonError::into_inner);
            adopted.retain(|_, session| Arc::strong_count(session) > 1);
            adopted.entry(kv.lease).or_insert_with(|| Arc::new(Session::of_another(kv.lease))).clone()
        });
        Some(Ours { session, key: kv.key.clone(), record, made: Some(kv.create_revision), under_way: None })
    }

    /// How a ticket stands, by the log. One round trip.
    async fn look(self: &Arc<Self>, place: &Place, key: &Bytes, made: i64) -> Result<Standing> {
        let question = txn::if_there(key, made, vec![txn::read(&keys::line(&place.name))]);
        let answer = self.ask(question).await?;
        if !answer.succeeded {
            return Ok(Standing::Gone);
        }
        let found = txn::reads(answer).pop().ok_or_else(txn::unreadable)?;
        Ok(keys::picture(place.name.key(), &found.kvs)?.standing(place.id))
    }

    /// Whether a ticket is there, by the log. One round trip.
    async fn is_there(self: &Arc<Self>, key: &Bytes, made: i64) -> Result<bool> {
        Ok(self.ask(txn::if_there(key, made, Vec::new())).await?.succeeded)
    }

    async fn wait(self: &Arc<Self>, place: &Place, until: Moment) -> Result<Waited> {
        loop {
            let Some((ours, made)) = self.find(place).await? else { return Ok(Waited::Gone) };
            match self.wait_for(place, &ours.key, made, until).await? {
                Waited::Gone if self.is_stale(place, made) => {}
                waited => return Ok(waited),
            }
        }
    }

    async fn wait_for(self: &Arc<Self>, place: &Place, key: &Bytes, made: i64, until: Moment) -> Result<Waited> {
        let admitted = || Waited::Admitted { token: u64::try_from(made).unwrap_or(0) };
        let waiting = Waiting { joined: self.hub.join(What::Line(place.name.clone())), id: place.id, made };
        waiting.joined.wait(made);
        loop {
            let turn = if self.clock.now() >= until && waiting.joined.turn(made) == Turn::Unknown {
                match self.look(place, key, made).await? {
                    Standing::Inside => return Ok(admitted()),
                    Standing::Gone => return Ok(Waited::Gone),
                    Standing::Waiting | Standing::Mismatch { .. } => Turn::NotYet,
                }
            } else {
                let told = poll_fn(|cx| waiting.joined.poll_turn(place.id, made, cx));
                match select(told, pin!(self.clock.sleep_until(until))).await {
                    Either::Left((turn, _)) => turn?,
                    Either::Right(_) => waiting.joined.turn(made),
                }
            };
            match turn {
                Turn::Inside => return Ok(admitted()),
                // A message may be old, and says nothing of our own ticket's life: a transaction does.
                Turn::Maybe | Turn::Gone => match (self.is_there(key, made).await?, turn) {
                    (true, Turn::Maybe) => return Ok(admitted()),
                    (false, _) => return Ok(Waited::Gone),
                    (true, _) => waiting.joined.reread(),
                },
                Turn::NotYet if self.clock.now() >= until => return Ok(Waited::Waiting),
                Turn::NotYet | Turn::Unknown => {}
            }
        }
    }

    async fn renew(self: &Arc<Self>, batch: &[Renew]) -> Result<Vec<Renewed>> {
        if batch.iter().any(|ticket| ticket.at_least.is_some()) {
            let message = "the numbers of this store are the server's own and cannot be raised";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let called = self.clock.now();
        let mut renewed = vec![Renewed::Gone; batch.len()];
        let mut left: Vec<usize> = (0..batch.len()).collect();
        // A second time only for those that are not where they were.
        while !left.is_empty() {
            let mut found: Vec<(usize, Ours, i64)> = Vec::with_capacity(left.len());
            for at in left.drain(..) {
                found.extend(self.find(&batch[at].place).await?.map(|(ours, made)| (at, ours, made)));
            }
            let mut sessions: Vec<&Arc<Session>> = Vec::new();
            for (_, ours, _) in &found {
                if !sessions.iter().any(|session| Arc::ptr_eq(session, &ours.session)) {
                    sessions.push(&ours.session);
                }
            }
            let alive = join_all(sessions.iter().map(|session| self.keep_alive(session)));
            let looks = join_all(found.chunks(AT_ONCE).map(|some| self.look_at(some)));
            let (alive, looks) = futures_util::future::join(alive, looks).await;
            alive.into_iter().collect::<Result<Vec<bool>, Fault>>()?;
            let there = looks.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten();
            for ((at, ours, made), there) in found.iter().zip(there) {
                if there && !ours.session.has_ended() {
                    renewed[*at] = Renewed::There { lease: ours.session.remaining(called) };
                } else if self.is_stale(&batch[*at].place, *made) {
                    left.push(*at);
                }
            }
        }
        Ok(renewed)
    }

    /// Which of these tickets are there, by the log. One round trip.
    async fn look_at(self: &Arc<Self>, some: &[(usize, Ours, i64)]) -> Result<Vec<bool>> {
        let question = TxnRequest {
            compare: Vec::new(),
            success: some.iter().map(|(_, ours, _)| txn::look_at(&ours.key)).collect(),
            // Never done; but with it the transaction goes through the log.
            failure: some.first().map(|(_, ours, _)| txn::delete(&ours.key)).into_iter().collect(),
        };
        let found = txn::reads(self.ask(question).await?);
        if found.len() != some.len() {
            return Err(txn::unreadable());
        }
        let same = |((_, _, made), found): (&(usize, Ours, i64), rpc::RangeResponse)| {
            found.kvs.first().is_some_and(|kv| *made == kv.create_revision)
        };
        Ok(some.iter().zip(found).map(same).collect())
    }

    async fn change(self: &Arc<Self>, place: &Place, weight: Option<u32>, note: Option<&Note>) -> Result<Presence> {
        loop {
            let Some((ours, made)) = self.find(place).await? else { return Ok(Presence::Gone) };
            match self.change_it(place, ours, made, weight, note).await? {
                Presence::Gone if self.is_stale(place, made) => {}
                presence => return Ok(presence),
            }
        }
    }

    async fn change_it(
        self: &Arc<Self>,
        place: &Place,
        mut ours: Ours,
        made: i64,
        weight: Option<u32>,
        note: Option<&Note>,
    ) -> Result<Presence> {
        if let Some(weight) = weight {
            ours.record.lower(weight);
        }
        if let Some(note) = note {
            ours.record.say(note)?;
        }
        let put = txn::put(&ours.key, ours.record.to_bytes(), ours.session.lease);
        match self.ask(txn::if_there(&ours.key, made, vec![put])).await {
            Ok(answer) if answer.succeeded => {
                if let Some(there) = self.tickets().get_mut(&mine(place)) {
                    there.record = ours.record;
                }
                Ok(Presence::There)
            }
            Ok(_) => Ok(Presence::Gone),
            Err(fault) if fault.no_lease => {
                ours.session.end();
                Ok(Presence::Gone)
            }
            Err(fault) => Err(fault.into()),
        }
    }
}

/// Somebody who waits in a line.
struct Waiting {
    joined: Joined,
    id: TicketId,
    made: i64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.joined.forget(self.id, self.made);
    }
}

impl Store for EtcdStore {
    fn info(&self) -> Info {
        Info {
            kind: "etcd",
            label: self.label.clone(),
            address: self.shared.connections.address().to_string(),
            clock: self.shared.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::Replicated,
            queue: Queue::Fifo,
            wake: Wake::Push,
            lifetime: Lifetime::Session,
            reach: Reach::Network,
            weights: Weights::Any,
            atomic_batch: 60,
            settable_token: false,
            upgrade: true,
            expel: true,
            shortest_lease: leases::SHORTEST,
            longest_lease: Duration::from_secs(365 * 86_400),
        }
    }

    fn attach(&self, host: Host) {
        if self.shared.host.set(host).is_ok() {
            self.shared.host(|host| host.spawn(hub::run(Arc::downgrade(&self.shared))));
        }
    }

    /// One round trip. Two where a ticket that is not to queue finds others beside whom there is room, and where one has to be
    /// taken back because the line has another capacity.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            self.shared.enter(batch).await
        })
    }

    /// One round trip, when its turn has come; none where the one ahead was of this client. Two more for the first waiter of a
    /// name.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(self.shared.wait(place, until))
    }

    /// One round trip for each session and one for each hundred tickets, all together.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(self.shared.renew(batch))
    }

    /// One round trip for each hundred tickets; one more for one that this client does not know.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(self.shared.leave(batch))
    }

    /// One round trip.
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move { self.shared.change(place, weight, note.as_ref()).await })
    }

    /// One round trip; two where other names lie below this one.
    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(self.shared.upgrade(place, new))
    }

    /// Two round trips.
    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(self.shared.expel(name, token))
    }

    /// One round trip.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(self.shared.watch(scope))
    }

    /// Two round trips: the line, and how long its sessions live.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(self.shared.inspect(name))
    }

    /// One round trip for each thousand tickets below the prefix, wanted or not: the order of the keys is not that of the names.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(self.shared.list(prefix, after, limit))
    }

    /// One round trip.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let sessions = self.shared.open_sessions();
            join_all(sessions.iter().map(|session| self.shared.revoke(session))).await;
            self.shared.closed.send_replace(true);
            self.shared.connections.close();
        })
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({})", self.shared.connections.address())
    }
}
