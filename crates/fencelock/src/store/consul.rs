//! The Consul store: a ticket is a key below the name, held by a session and gone with it; the client decides from the line
//! that it reads.
//!
//! # What it costs
//!
//! Lock and unlock are one transaction each: the one that enters reads the line as well. Waiters of one process share one
//! blocking query per name; what it brings decides whose turn it is, and one more request makes sure of it. A renewal is one request per session, and one
//! for each 64 tickets to see that they are still there.
//!
//! # What it promises
//!
//! A token is the key's `CreateIndex`, the index of the transaction that made it: it grows with every write of the whole
//! cluster and survives the loss of servers, and of the key. The order of the line is the order of the tokens.
//!
//! A session's time to live is 10 s at least (`session_ttl_min`; a shorter lease is refused) and 24 h at most, and Consul may
//! take **up to twice as long** to end one whose client is gone: a dead holder blocks for up to two leases. The holder itself
//! knows better: it is lost after one.
//!
//! Anybody who may write a key may delete it, which ends a lock; the holder learns of it with its next renewal.
//!
//! # What it needs
//!
//! Consul 1.8 or later; with access lists a token (`consul://TOKEN@HOST`, or `CONSUL_HTTP_TOKEN`) that may `key:write` on the
//! names' prefix and `session:write` on the agent's node:
//!
//! ```text
//! key_prefix "shop/"  { policy = "write" }
//! session_prefix ""   { policy = "write" }
//! ```
//!
//! # The lock of `consul lock`
//!
//! `?layout=consul-lock` takes the very lock that `consul lock NAME` and the Go client's `api.Lock` take, the key
//! `NAME/.lock`: a mutex without a queue, `?lock_delay=` as they have it (0 s unless said). The two layouts do not know of each
//! other; a held `.lock` under a name of the first is an error that says so.

use super::note::{Record, Standing};
use super::session::Sessions;
use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use api::{Agent, Done, Entry, MOST_OPERATIONS, Operation};
use futures_util::future::{Either, join_all, select};
use lines::{Known, Lines};
use sessions::Session;
use settings::Settings;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

mod api;
mod entering;
mod foreign;
mod lines;
mod sessions;
mod settings;

pub use foreign::ConsulLockStore;

/// A Consul cluster, by one of its agents.
pub struct ConsulStore {
    shared: Arc<Shared>,
    label: Arc<str>,
}

/// What the verbs and the library thread share.
struct Shared {
    clock: Clock,
    agent: Agent,
    /// The shortest time to live that the server takes.
    shortest: Duration,
    /// What becomes of the keys of a session that ends, and for how long nobody gets them then.
    behavior: &'static str,
    lock_delay: Duration,
    sessions: tokio::sync::Mutex<Sessions<Option<Arc<Session>>>>,
    /// The tickets of this client, from before their enter is sent until their leave is confirmed.
    mine: Mutex<HashMap<Place, Mine>>,
    lines: Lines,
    host: OnceLock<Host>,
    closed: watch::Sender<bool>,
}

#[derive(Clone)]
struct Mine {
    session: Arc<Session>,
    record: Record,
    /// The index as of which it is in the line, once that is known.
    known: Option<Known>,
    /// Its token, where it is known for good: of an upgraded one, or where no line tells.
    token: Option<u64>,
}

impl ConsulStore {
    /// Connects to the agent that the URL names: `consul://` or `consuls://`, without a query. `options` are those of the
    /// query.
    ///
    /// # Errors
    /// `InvalidInput` for a URL or options that make no sense, `Denied` where the token may not make sessions, `Unavailable`
    /// where the agent cannot be reached or has no leader.
    pub async fn connect(url: &str, options: &BTreeMap<String, String>) -> Result<ConsulStore> {
        let settings = Settings::parse(url, options)?;
        if settings.foreign {
            return Err(Error::new(ErrorKind::InvalidInput, "layout=consul-lock is the other store"));
        }
        let shared = Shared::connect(settings).await?;
        Ok(ConsulStore { shared: Arc::new(shared), label: "consul".into() })
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> ConsulStore {
        self.label = label.into();
        self
    }
}

/// Whether a URL's options ask for the lock of `consul lock`.
pub(crate) fn is_foreign(options: &BTreeMap<String, String>) -> bool {
    options.get("layout").is_some_and(|layout| layout == "consul-lock")
}

impl Shared {
    async fn connect(settings: Settings) -> Result<Shared> {
        let (foreign, lock_delay) = (settings.foreign, settings.lock_delay);
        let agent = Agent::new(settings);
        let shortest = Shared::find_shortest(&agent).await?;
        Ok(Shared {
            clock: Clock::system(),
            agent,
            shortest,
            behavior: if foreign { "release" } else { "delete" },
            lock_delay,
            sessions: tokio::sync::Mutex::default(),
            mine: Mutex::default(),
            lines: Lines::default(),
            host: OnceLock::new(),
            closed: watch::Sender::new(false),
        })
    }

    fn mine(&self) -> MutexGuard<'_, HashMap<Place, Mine>> {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// The answer, or nothing if the store is closed first.
    async fn until_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut closed = self.closed.subscribe();
        match select(pin!(future), pin!(closed.wait_for(|closed| *closed))).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }

    /// Deletes the tickets of our own sessions that we know nothing of: what is left of calls that were given up.
    fn drop_strangers(self: &Arc<Self>, entries: &[Entry]) {
        let mine = self.mine();
        let sessions: Vec<&str> = mine.values().map(|mine| mine.session.id.as_str()).collect();
        let unknown = entries.iter().filter(|entry| {
            let ours = entry.session.as_deref().is_some_and(|session| sessions.contains(&session));
            ours && lines::split(&entry.key)
                .is_some_and(|(line, id)| !mine.keys().any(|place| place.id == id && place.name.key() == line))
        });
        let keys: Vec<String> = unknown.map(|entry| entry.key.clone()).collect();
        drop(mine);
        if let Some(host) = self.host.get().filter(|_| !keys.is_empty()) {
            let this = self.clone();
            host.spawn(async move {
                for key in keys {
                    let _ = this.agent.transaction(&[Operation::Delete(&key)]).await;
                }
            });
        }
    }

    /// One transaction for each 32 tickets.
    async fn leave(&self, batch: &[Place]) -> Result<Vec<Presence>> {
        let mut left = Vec::with_capacity(batch.len());
        for places in batch.chunks(MOST_OPERATIONS / 2) {
            let keys: Vec<String> = places.iter().map(|place| lines::key(&place.name, place.id)).collect();
            let operations: Vec<Operation<'_>> =
                keys.iter().flat_map(|key| [Operation::GetTree(key), Operation::Delete(key)]).collect();
            let entries = match self.agent.transaction(&operations).await? {
                Done::Well(entries) => entries,
                Done::Refused(why) => return Err(Error::unknown(format!("the server refused a release: {why}"))),
            };
            for (place, key) in places.iter().zip(&keys) {
                self.mine().remove(place);
                let there = entries.iter().any(|entry| entry.key == *key && entry.session.is_some());
                left.push(if there { Presence::There } else { Presence::Gone });
            }
        }
        Ok(left)
    }

    /// One request.
    async fn read(&self, name: &Name) -> Result<(Vec<Entry>, Known)> {
        let (entries, index) = self.agent.tree(&lines::prefix(name), None).await?;
        let picture = Arc::new(lines::picture(name, &entries)?);
        Ok((entries, Known { index, picture }))
    }

    /// No request until something is heard of the line that may concern this ticket; then one.
    async fn wait(self: &Arc<Self>, place: &Place, until: Moment) -> Result<Waited> {
        let known = self.mine().get(place).and_then(|mine| mine.known.clone());
        let known = match known.filter(|known| known.picture.standing(place.id) == Standing::Waiting) {
            Some(known) => known,
            // Not ours, or not waiting when we last looked: what is there now counts.
            None => match self.look_again(place).await? {
                (Waited::Waiting, known) => known,
                (waited, _) => return Ok(waited),
            },
        };
        let entered = known.index;
        let mut line = self.follow(&place.name, known);
        loop {
            let known = line.borrow_and_update().clone();
            // What was read before our ticket was entered says nothing of it.
            let standing = Some(known.picture.standing(place.id)).filter(|_| known.index >= entered);
            // A picture may be old, and says nothing of our own ticket's life: a transaction does.
            match standing {
                Some(Standing::Inside) => {
                    let token = known.picture.get(place.id).and_then(|ticket| ticket.token);
                    return match (self.is_there(place).await?, token) {
                        (true, Some(token)) => Ok(Waited::Admitted { token }),
                        _ => Ok(self.look_again(place).await?.0),
                    };
                }
                Some(Standing::Gone) => match self.look_again(place).await?.0 {
                    Waited::Waiting => {}
                    waited => return Ok(waited),
                },
                _ => {}
            }
            match select(pin!(line.changed()), pin!(self.clock.sleep_until(until))).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(_), _)) => return Ok(Waited::Waiting),
                // The slow tick for whatever was never told.
                Either::Right(_) => return Ok(self.look_again(place).await?.0),
            }
        }
    }

    /// Whether the session of one of our tickets still holds its key: one request.
    async fn is_there(&self, place: &Place) -> Result<bool> {
        let session = self.mine().get(place).map(|mine| mine.session.id.clone());
        let (key, Some(session)) = (lines::key(&place.name, place.id), session) else { return Ok(false) };
        let check = Operation::CheckSession { key: &key, session: &session };
        Ok(matches!(self.agent.transaction(&[check]).await?, Done::Well(_)))
    }

    /// How a ticket stands now: one request.
    async fn look_again(self: &Arc<Self>, place: &Place) -> Result<(Waited, Known)> {
        let (_, known) = self.read(&place.name).await?;
        self.lines.learn(&place.name, &known);
        let token = known.picture.get(place.id).and_then(|ticket| ticket.token);
        let waited = match (known.picture.standing(place.id), token) {
            (Standing::Inside, Some(token)) => Waited::Admitted { token },
            (Standing::Gone, _) => Waited::Gone,
            _ => Waited::Waiting,
        };
        Ok((waited, known))
    }

    /// One request for each session, and one for each 64 tickets, all at once.
    async fn renew(&self, batch: &[Renew]) -> Result<Vec<Renewed>> {
        let called = self.clock.now();
        let held: Vec<Option<Arc<Session>>> = {
            let mine = self.mine();
            batch.iter().map(|one| mine.get(&one.place).map(|mine| mine.session.clone())).collect()
        };
        let mut sessions: Vec<&Arc<Session>> = held.iter().flatten().collect();
        sessions.sort_by_key(|session| &session.id);
        sessions.dedup_by_key(|session| &session.id);
        let renewals = join_all(sessions.iter().map(|session| self.renew_session(session)));
        let keys: Vec<String> = batch.iter().map(|one| lines::key(&one.place.name, one.place.id)).collect();
        let looks = join_all(keys.chunks(MOST_OPERATIONS).map(|keys| async {
            let operations: Vec<Operation<'_>> = keys.iter().map(|key| Operation::GetTree(key)).collect();
            match self.agent.transaction(&operations).await? {
                Done::Well(entries) => Ok(entries),
                Done::Refused(why) => Err(Error::unknown(format!("the server refused a look: {why}"))),
            }
        }));
        let (renewals, looks) = futures_util::future::join(renewals, looks).await;
        renewals.into_iter().collect::<Result<Vec<()>>>()?;
        let mut there: HashMap<String, Option<String>> = HashMap::new();
        for entries in looks {
            there.extend(entries?.into_iter().map(|entry| (entry.key, entry.session)));
        }
        let renewed = |(key, session): (&String, &Option<Arc<Session>>)| match session {
            Some(session) if !session.has_ended() && there.get(key) == Some(&Some(session.id.clone())) => {
                Renewed::There { lease: session.remaining(called) }
            }
            _ => Renewed::Gone,
        };
        Ok(keys.iter().zip(&held).map(renewed).collect())
    }

    /// One transaction.
    async fn change(&self, place: &Place, weight: Option<u32>, note: Option<Note>) -> Result<Presence> {
        let Some(mut mine) = self.mine().get(place).cloned() else { return Ok(Presence::Gone) };
        if let Some(weight) = weight {
            mine.record.lower(weight);
        }
        if let Some(note) = &note {
            mine.record.say(note)?;
        }
        let (key, value) = (lines::key(&place.name, place.id), mine.record.to_bytes());
        let session = mine.session.id.as_str();
        let operations = [
            Operation::CheckSession { key: &key, session },
            Operation::Lock { key: &key, value: &value, session, flags: 0 },
        ];
        match self.agent.transaction(&operations).await? {
            Done::Well(_) => {
                if let Some(kept) = self.mine().get_mut(place) {
                    kept.record = mine.record;
                }
                Ok(Presence::There)
            }
            Done::Refused(_) => Ok(Presence::Gone),
        }
    }

    /// One read and one transaction.
    async fn expel(&self, name: &Name, token: u64) -> Result<Presence> {
        loop {
            let (entries, _) = self.read(name).await?;
            let ticket = |entry: &&Entry| {
                let of_this_line = lines::split(&entry.key).is_some_and(|(line, _)| line == name.key());
                of_this_line && entry.session.is_some() && entry.create_index == token
            };
            let Some(found) = entries.iter().find(ticket) else { return Ok(Presence::Gone) };
            let operation = Operation::DeleteUnchanged { key: &found.key, index: found.modify_index };
            if let Done::Well(_) = self.agent.transaction(&[operation]).await? {
                return Ok(Presence::There);
            }
        }
    }

    /// One request now, then one for each change.
    async fn watch(self: &Arc<Self>, scope: Scope) -> Result<BoxStream<'static, Hint>> {
        let (prefix, hint) = match scope {
            Scope::Name(name) => (lines::prefix(&name), Hint::Changed(name)),
            Scope::Prefix(prefix) => (prefix, Hint::Somewhere),
        };
        let (_, index) = self.agent.tree(&prefix, None).await?;
        let shared = Arc::downgrade(self);
        Ok(Box::pin(futures_util::stream::unfold((shared, index), move |(shared, index)| {
            let (prefix, hint) = (prefix.clone(), hint.clone());
            async move {
                let this = shared.upgrade()?;
                let mut index = index;
                loop {
                    let asked = this.agent.tree(&prefix, Some((index, Duration::from_secs(60))));
                    match this.until_closed(asked).await? {
                        Ok((_, new)) if new == index => {}
                        Ok((_, new)) => {
                            // An index that goes back belongs to a server that was restored.
                            index = if new < index { 0 } else { new };
                            return Some((hint, (shared, index)));
                        }
                        // Whoever watches begins anew, and looks.
                        Err(_) => return None,
                    }
                }
            }
        })))
    }

    /// One request, which reads all that begins so.
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        let (entries, _) = self.agent.tree(prefix, None).await?;
        let mut found: BTreeMap<String, Vec<super::note::Ticket>> = BTreeMap::new();
        for entry in &entries {
            let Some((line, id)) = lines::split(&entry.key) else { continue };
            if line.starts_with(prefix) && after.is_none_or(|after| line > after) {
                found.entry(line.to_string()).or_default().extend(lines::ticket(entry, id)?);
            }
        }
        let listed = found.into_iter().filter_map(|(key, tickets)| super::note::Picture::new(tickets).listed(&key));
        Ok(listed.take(limit).collect())
    }

    async fn close(&self) {
        self.closed.send_replace(true);
        self.end_sessions().await;
        self.agent.forget_clients();
    }
}

impl Store for ConsulStore {
    fn info(&self) -> Info {
        Info {
            kind: "consul",
            label: self.label.clone(),
            address: self.shared.agent.address().to_string(),
            clock: self.shared.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::Replicated,
            queue: Queue::Fifo,
            wake: Wake::LongPoll,
            lifetime: Lifetime::Session,
            reach: Reach::Network,
            weights: Weights::Any,
            // Two operations each; a few are left for what the server may add.
            atomic_batch: 30,
            settable_token: false,
            upgrade: true,
            expel: true,
            shortest_lease: self.shared.shortest,
            longest_lease: sessions::LONGEST,
        }
    }

    fn attach(&self, host: Host) {
        let _ = self.shared.host.set(host);
    }

    /// One round trip; one more where it is refused, and for the first ticket of a lease.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            if batch.is_empty() { Ok(Vec::new()) } else { self.shared.enter(batch).await }
        })
    }

    /// No round trip of its own: one query per name is open for all who wait for it.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(async move { self.shared.wait(place, until).await })
    }

    /// One round trip: a request for each session and for each 64 tickets, at once.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(async move {
            if batch.iter().any(|ticket| ticket.at_least.is_some()) {
                return Err(Error::new(ErrorKind::Unsupported, "Consul's indexes cannot be raised"));
            }
            if batch.is_empty() { Ok(Vec::new()) } else { self.shared.renew(batch).await }
        })
    }

    /// One round trip for each 32 tickets.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(async move { self.shared.leave(batch).await })
    }

    /// One round trip.
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move { self.shared.change(place, weight, note).await })
    }

    /// Two round trips.
    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(async move { self.shared.upgrade(place, new).await })
    }

    /// Two round trips.
    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move { self.shared.expel(name, token).await })
    }

    /// One round trip.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move { self.shared.watch(scope).await })
    }

    /// One round trip.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(async move { Ok(self.shared.read(name).await?.1.picture.line()) })
    }

    /// One round trip, which reads everything below the prefix.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move { self.shared.list(prefix, after, limit).await })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.close())
    }
}

impl fmt::Debug for ConsulStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConsulStore({})", self.shared.agent.address())
    }
}
