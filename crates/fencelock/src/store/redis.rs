//! The Redis store (and Valkey's): a line is a string while one ticket is alone in it, else a hash and two indexes; each
//! verb is one script.
//!
//! # What it costs
//!
//! Lock and unlock are one request each, however many wait: the script that lets a ticket go lets the next one in and
//! publishes that to its client, the grant in the message. An idle waiter costs nothing but its share of a renewal. No
//! script walks the queue. Where nobody else is in the line, the server reads one key and writes it, for lock and for
//! unlock alike.
//!
//! # What it promises
//!
//! A token is `max(last + 1, the server's clock in microseconds)`, so it goes on growing although the server lost its data
//! or a replica took over, as long as the clock of the one that goes on is not behind by more than the outage. The last
//! number of a line outlives it by a minute at least: a clock that is set back by less than that repeats nothing. That is all
//! that stays of a name, about 100 bytes: for a minute and what was left of the lease where it was used once, for less than
//! four minutes where it was used again and again. (Of one who died inside, his ticket stays as long, and counts for nothing.)
//! Leases run on the server's clock: one that jumps forward ends them early, one that jumps back makes them last longer.
//!
//! # Sentinels
//!
//! `redis+sentinel://` follows the master that the sentinels name: every connection goes to it, and when they name another
//! one, all connections are dropped and every hold is looked at on the new master. What the old one had not replicated yet
//! is lost: whoever held it is told then, and may have had company in between. The tokens keep growing, so a resource that
//! checks them rejects the one that came first.
//!
//! With `?replicas=K` a grant and a renewal count only when K replicas have confirmed them: too few is an `Unavailable` error
//! with unknown effect. A replica that has confirmed a grant and is promoted knows it; one that has not may be promoted too,
//! unless K is all of them. `docs/redis.md` says what that does not give, and has a table of faults and verdicts.
//!
//! # Cluster
//!
//! `redis+cluster://` finds the node that has a line, follows its slot when that is moved, and the replica that takes over from
//! a master; what holds for sentinels then holds here, without `?replicas=K`. While a slot is being moved, its locks stand
//! still; they are then where they were. Names are on different nodes: several of them are not entered as one, and a renewal
//! of many is a request to each node with a script for each name in it, so holding 10,000 locks costs what 10,000 small
//! scripts cost. Whoever watches a whole prefix is made to look every second.
//!
//! # What it needs of the server
//!
//! Redis 6 or later, 7 for a cluster. A `maxmemory-policy` other than `noeviction` can remove locks and is refused
//! (`?evictable=allow` overrides that). On one server a script is given the first key of each line and makes the others from
//! it; they share a hash tag. In a cluster all of them are named. The least rights of a user:
//!
//! ```text
//! ACL SETUSER locks on >secret resetkeys ~fencelock:* resetchannels &fencelock:* -@all
//!     +evalsha +eval +time +get +hmget +hget +hgetall +hkeys +hset +hdel +zadd +zrem +zpopmin +zrange +zrangebyscore +zcard
//!     +exists +del +pexpireat +pttl +publish +subscribe +unsubscribe +set +psetex +scan
//!     +info +hello +select
//! ```
//!
//! Behind sentinels also `+role`, with `?replicas=K` also `+wait`. In a cluster, on every node: also
//! `+spublish +ssubscribe +sunsubscribe +cluster|slots +cluster|info +asking`.

use super::hints::Hints;
use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use answer::{holder, number, presences, standing, standings, texts, unreadable};
use connection::{Connections, Live};
use futures_util::future::{Either, select};
use redis::Value;
use script::Call;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use waiters::{Standing, Waiters};

mod answer;
mod awake;
mod beside;
mod cluster;
mod connection;
mod fault;
mod inbox;
mod open;
mod record;
mod replicas;
mod script;
mod seeing;
mod sentinel;
mod waiters;
mod way;

/// A Redis server, or another that speaks its language.
pub struct RedisStore {
    shared: Arc<Shared>,
    label: Arc<str>,
}

/// What the verbs and the library thread share.
struct Shared {
    clock: Clock,
    connections: Connections,
    /// The channel on which this client is told.
    inbox: String,
    waiters: Waiters,
    hints: Hints,
    watched: inbox::Watched,
    line: watch::Sender<inbox::Line>,
    closed: Notify,
    host: OnceLock<Host>,
}

impl RedisStore {
    /// Connects to the server that the URL names: `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://`,
    /// `rediss+sentinel://`, `redis+cluster://` or `rediss+cluster://`, without a query, and checks that it can keep locks.
    /// `options` are those of the query.
    ///
    /// # Errors
    /// `InvalidInput` for a URL or options that make no sense, `Denied` where the server does not want us, `Unavailable` where
    /// it cannot be reached, `Unsupported` where it would lose locks.
    pub async fn connect(url: &str, options: &BTreeMap<String, String>) -> Result<RedisStore> {
        let server = open::Server::parse(url, options)?;
        let mut connections = Connections::new(server.dial, server.address);
        connections.replicas = server.replicas;
        if let Some(cluster) = connections.cluster() {
            cluster.check(server.evictable).await?;
        } else if connections.sentinels().is_some() {
            // Whichever server they name must be fit for it.
            connections.check_each = Some((server.evictable, Duration::ZERO));
            connections.of_this_runtime().await?;
        } else {
            connections.awake = server.awake;
            let live = connections.of_this_runtime().await?;
            open::check(&live, &connections.address, server.evictable, Duration::ZERO).await?;
        }
        Ok(RedisStore::with(connections))
    }

    /// A node of a quorum. Nothing is sent yet; every connection is checked as it is opened, and refused while the server has
    /// been up for less than `grown`.
    pub(crate) fn node(url: &str, options: &BTreeMap<String, String>, grown: Duration) -> Result<RedisStore> {
        let server = open::Server::parse(url, options)?;
        let mut connections = Connections::new(server.dial, server.address);
        connections.check_each = Some((server.evictable, grown));
        Ok(RedisStore::with(connections))
    }

    /// What tells this server from all others, from its start to its end: one round trip.
    pub(crate) async fn run_id(&self) -> Result<String> {
        let connections = &self.shared.connections;
        let info = open::info(&connections.of_this_runtime().await?, &connections.address).await?;
        info.fact("run_id").map(String::from).ok_or_else(unreadable)
    }

    fn with(connections: Connections) -> RedisStore {
        let shared = Shared {
            clock: Clock::system(),
            connections,
            inbox: format!("fencelock:inbox:{:016x}", fastrand::u64(..)),
            waiters: Waiters::default(),
            hints: Hints::default(),
            watched: inbox::Watched::default(),
            line: watch::Sender::new(inbox::Line::New),
            closed: Notify::new(),
            host: OnceLock::new(),
        };
        RedisStore { shared: Arc::new(shared), label: "redis".into() }
    }

    /// What the server answered to [`renew_call`].
    fn renewed(&self, batch: &[Renew], answer: Value) -> Result<Vec<Renewed>> {
        let answers = standings(answer, batch.len())?;
        let now = self.shared.clock.now();
        let renewed = |(ticket, standing): (&Renew, Standing)| {
            self.shared.waiters.told(ticket.place.id, standing, now);
            match standing {
                Standing::Inside { lease, .. } | Standing::Waiting { lease, .. } => Renewed::There { lease },
                Standing::Gone => Renewed::Gone,
            }
        };
        Ok(batch.iter().zip(answers).map(renewed).collect())
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> RedisStore {
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

    fn is_closed(&self) -> bool {
        matches!(*self.line.borrow(), inbox::Line::Closed)
    }

    /// Ready when the store is closed.
    async fn closing(&self) {
        let mut line = self.line.subscribe();
        let _ = line.wait_for(|line| matches!(line, inbox::Line::Closed)).await;
    }

    /// The connection for a call from here: the library thread has its own, every other runtime one that was opened there.
    async fn connection(&self) -> Result<Live> {
        let library = self.host.get().map(|host| host.runtime().id());
        match Handle::try_current() {
            Ok(here) if Some(here.id()) != library => self.connections.of_this_runtime().await,
            _ => self.library_connection().await,
        }
    }

    /// One round trip; more only for the first call of a runtime, or of a script.
    async fn call(self: &Arc<Self>, call: Call) -> Result<Value> {
        if Handle::try_current().is_ok() {
            return self.reach(call).await;
        }
        // Called from outside of any runtime: the library thread does it.
        let (answer, told) = tokio::sync::oneshot::channel();
        let this = self.clone();
        self.host(|host| {
            host.spawn(async move {
                let _ = answer.send(this.reach(call).await);
            });
        });
        told.await.map_err(|_| Error::unknown("the library thread has ended"))?
    }

    /// Nothing is sent to the queue before somebody listens. No round trip but at the very beginning.
    async fn listening(&self) -> Result<()> {
        // In a cluster a line is listened to as soon as somebody waits in it.
        let new = self.connections.cluster().is_none() && matches!(*self.line.borrow(), inbox::Line::New);
        if new && self.host.get().is_some() {
            self.library_connection().await?;
        }
        Ok(())
    }

    /// One round trip.
    async fn stand(self: &Arc<Self>, place: &Place) -> Result<Standing> {
        let answer = self.call(Shared::look_call(std::slice::from_ref(place))).await?;
        standings(answer, 1)?.pop().ok_or_else(unreadable)
    }
}

fn renew_call(batch: &[Renew]) -> Result<Call> {
    let mut call = Call::new(&script::RENEW, batch.len(), batch.len() * 3);
    batch.iter().for_each(|ticket| call.line(&ticket.place.name));
    for ticket in batch {
        if ticket.at_least.is_some_and(|least| least >= 1 << 53) {
            return Err(Error::new(ErrorKind::InvalidInput, "a token is below 2^53 on this store"));
        }
        call.id(ticket.place.id);
        call.arg(record::micros(ticket.lease));
        call.arg(ticket.at_least.unwrap_or(0));
    }
    Ok(call)
}

/// Tickets that a grant is expected of while their enter is under way; those that do not queue are forgotten at the end,
/// also if the caller goes away.
struct Expecting<'a> {
    waiters: &'a Waiters,
    batch: &'a [Enter],
    kept: Vec<TicketId>,
}

impl<'a> Expecting<'a> {
    fn of(waiters: &'a Waiters, batch: &'a [Enter]) -> Expecting<'a> {
        batch.iter().filter(|ticket| ticket.queue).for_each(|ticket| waiters.expect(&ticket.place));
        Expecting { waiters, batch, kept: Vec::new() }
    }

    /// It is in the queue: its grant is awaited from now on.
    fn keep(&mut self, id: TicketId) {
        self.kept.push(id);
    }
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        let queueing = self.batch.iter().filter(|ticket| ticket.queue).map(|ticket| ticket.place.id);
        queueing.filter(|id| !self.kept.contains(id)).for_each(|id| self.waiters.forget(id));
    }
}

impl Store for RedisStore {
    fn info(&self) -> Info {
        Info {
            kind: "redis",
            label: self.label.clone(),
            address: self.shared.connections.address.clone(),
            clock: self.shared.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::SingleNode,
            queue: Queue::Fifo,
            wake: Wake::Push,
            lifetime: Lifetime::Ticket,
            reach: Reach::Network,
            weights: Weights::Any,
            // In a cluster other names are on other nodes.
            atomic_batch: if self.shared.connections.cluster().is_some() { 1 } else { 500 },
            settable_token: true,
            upgrade: true,
            expel: true,
            shortest_lease: Duration::from_millis(100),
            longest_lease: Duration::from_secs(365 * 86_400),
        }
    }

    fn attach(&self, host: Host) {
        if self.shared.host.set(host).is_ok() {
            if self.shared.connections.cluster().is_some() {
                return cluster::listen::start(&self.shared);
            }
            self.shared.host(|host| {
                host.spawn(inbox::run(Arc::downgrade(&self.shared)));
                if self.shared.connections.sentinels().is_some() {
                    host.spawn(sentinel::follow(Arc::downgrade(&self.shared)));
                }
            });
        }
    }

    /// One round trip.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            let shared = &self.shared;
            shared.listening().await?;
            let mut call = Call::new(&script::ENTER, batch.len(), batch.len() * 2);
            batch.iter().for_each(|ticket| call.line(&ticket.place.name));
            for ticket in batch {
                call.arg(record::millis(ticket.lease));
                call.arg(record::entry(ticket, &shared.inbox_of(&ticket.place.name)));
            }
            let heard = batch.first().and_then(|ticket| shared.hears(&ticket.place.name));
            let mut expecting = Expecting::of(&shared.waiters, batch);
            let patience = replicas::patience(batch.iter().map(|ticket| ticket.lease).min());
            let answers = texts(shared.call_confirmed(call, patience).await?, batch.len())?;
            let now = shared.clock.now();
            for (ticket, answer) in batch.iter().zip(&answers) {
                if let Some(there) = answer.strip_prefix("3 ") {
                    let there = number(Some(there))?;
                    return Err(Error::mismatch(&ticket.place.name.shown(), ticket.capacity, there));
                }
            }
            let entered = |(ticket, answer): (&Enter, &String)| match answer.split_once(' ') {
                Some(("1", token)) if !token.contains(' ') => {
                    Ok(Entered::Admitted { token: number(Some(token))?, lease: ticket.lease })
                }
                Some(("4", rest)) => Ok(Entered::Full { holder: holder(rest)? }),
                None if answer == "5" => Ok(Entered::Full { holder: None }),
                _ => match standing(answer)? {
                    Standing::Inside { token, lease } => Ok(Entered::Admitted { token, lease }),
                    told @ Standing::Waiting { token, lease, .. } => {
                        expecting.keep(ticket.place.id);
                        shared.waiters.told(ticket.place.id, told, now);
                        shared.must_hear(&ticket.place, heard);
                        Ok(Entered::Queued { token: Some(token), lease, ahead: None })
                    }
                    Standing::Gone => Err(unreadable()),
                },
            };
            batch.iter().zip(&answers).map(entered).collect()
        })
    }

    /// No round trip where the grant is pushed; one where nothing is known of the ticket here.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(async move {
            let shared = &self.shared;
            loop {
                let told = pin!(poll_fn(|cx| shared.waiters.poll(place.id, cx)));
                let late = match select(told, pin!(shared.clock.sleep_until(until))).await {
                    Either::Left((Some(found), _)) => return shared.confirm_grant(place, found).await,
                    Either::Left((None, _)) => false,
                    Either::Right(_) if shared.connections.cluster().is_none() => return Ok(Waited::Waiting),
                    // In a cluster its line may not be listened to yet: the server has the last word.
                    Either::Right(_) => true,
                };
                shared.waiters.expect(place);
                let heard = shared.hears(&place.name);
                let answer = shared.stand(place).await;
                let now = shared.clock.now();
                match answer {
                    Ok(Standing::Inside { token, .. }) => {
                        shared.waiters.forget(place.id);
                        return shared.confirm_grant(place, Waited::Admitted { token }).await;
                    }
                    Ok(Standing::Gone) => {
                        shared.waiters.forget(place.id);
                        return Ok(Waited::Gone);
                    }
                    Ok(waiting) => {
                        shared.waiters.told(place.id, waiting, now);
                        shared.must_hear(place, heard);
                        if late {
                            return Ok(Waited::Waiting);
                        }
                    }
                    Err(error) => {
                        shared.waiters.forget(place.id);
                        return Err(error);
                    }
                }
            }
        })
    }

    /// One round trip. What it tells of waiting tickets counts as a look at them.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(async move {
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            if let Some(parts) = self.shared.apart(batch, |renew| &renew.place.name) {
                return cluster::route::renew_apart(self, &parts, batch.len()).await;
            }
            let patience = replicas::patience(batch.iter().map(|ticket| ticket.lease).min());
            self.renewed(batch, self.shared.call_confirmed(renew_call(batch)?, patience).await?)
        })
    }

    /// One round trip.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(async move {
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            if let Some(parts) = self.shared.apart(batch, |place| &place.name) {
                return cluster::route::leave_apart(self, &parts, batch.len()).await;
            }
            let mut call = Call::new(&script::LEAVE, batch.len(), batch.len());
            batch.iter().for_each(|place| call.line(&place.name));
            batch.iter().for_each(|place| call.id(place.id));
            let left = presences(self.shared.call(call).await?, batch.len())?;
            batch.iter().for_each(|place| self.shared.waiters.forget(place.id));
            Ok(left)
        })
    }

    /// One round trip.
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move {
            let mut call = Call::new(&script::CHANGE, 1, 4);
            call.line(&place.name);
            call.id(place.id);
            call.arg(weight.unwrap_or(0));
            call.arg(if note.is_some() { "1" } else { "0" });
            call.arg(note.map(|note| record::note(&note)).unwrap_or_default());
            Ok(presences(self.shared.call(call).await?, 1)?[0])
        })
    }

    /// One round trip.
    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(async move {
            let mut call = Call::new(&script::UPGRADE, 1, 2);
            call.line(&place.name);
            call.id(place.id);
            call.id(new);
            let answer = self.shared.call_confirmed(call, replicas::patience(None)).await?;
            let answer: String = redis::from_redis_value(answer).map_err(|_| unreadable())?;
            match answer.strip_prefix("4 ") {
                Some(rest) => Ok(Upgraded::Held { by: holder(rest)? }),
                None => match standing(&answer)? {
                    Standing::Inside { token, .. } => {
                        self.shared.waiters.forget(place.id);
                        Ok(Upgraded::Admitted { token })
                    }
                    Standing::Gone => Ok(Upgraded::Gone),
                    Standing::Waiting { .. } => Err(unreadable()),
                },
            }
        })
    }

    /// One round trip.
    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move {
            let mut call = Call::new(&script::EXPEL, 1, 1);
            call.line(name);
            call.arg(format!("{token:016}"));
            Ok(presences(self.shared.call(call).await?, 1)?[0])
        })
    }

    /// Two round trips.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move { self.shared.watch_scope(scope).await })
    }

    /// One round trip.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(async move { self.shared.inspect(name).await })
    }

    /// The server has no index of names, so all of its keys are gone through: one round trip for each thousand keys, and
    /// one for each hundred names that are told.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move { self.shared.list(prefix, after, limit).await })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.line.send_replace(inbox::Line::Closed);
            self.shared.closed.notify_one();
            self.shared.connections.close();
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({})", self.shared.connections.address)
    }
}
