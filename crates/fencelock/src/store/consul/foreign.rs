//! The lock of `consul lock` and of the Go client's `api.Lock`: one key, `NAME/.lock`, that a session holds. No queue, no
//! readers, no permits. Whoever holds it can be one of theirs or one of ours.

use super::api::{Done, Entry, Operation};
use super::settings::Settings;
use super::{Mine, Session, Shared};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::note::{Picture, Record, Ticket};
use crate::store::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Seen, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch,
};
use futures_util::future::{join_all, select};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// What their clients put on the key, and check.
const FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// For how long somebody waits to hear whether another of this process got in.
const UNDECIDED: Duration = Duration::from_secs(5);

/// The locks of `consul lock`.
pub struct ConsulLockStore {
    shared: Arc<Shared>,
    label: Arc<str>,
    /// Told when a try of this process got in or did not.
    decided: Notify,
}

fn key(name: &Name) -> String {
    format!("{}/.lock", name.key())
}

impl ConsulLockStore {
    /// Connects like [`ConsulStore::connect`](super::ConsulStore::connect), with `layout=consul-lock`.
    ///
    /// # Errors
    /// The same.
    pub async fn connect(url: &str, options: &BTreeMap<String, String>) -> Result<ConsulLockStore> {
        let settings = Settings::parse(url, options)?;
        if !settings.foreign {
            return Err(Error::new(ErrorKind::InvalidInput, "this store needs layout=consul-lock"));
        }
        let shared = Shared::connect(settings).await?;
        Ok(ConsulLockStore { shared: Arc::new(shared), label: "consul".into(), decided: Notify::new() })
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> ConsulLockStore {
        self.label = label.into();
        self
    }

    /// The key as it is: one request.
    async fn entry(&self, name: &Name) -> Result<Option<Entry>> {
        let key = key(name);
        let (entries, _) = self.shared.agent.tree(&key, None).await?;
        Ok(entries.into_iter().find(|entry| entry.key == key))
    }

    fn session_of(&self, place: &Place) -> Option<Arc<Session>> {
        self.shared.mine().get(place).map(|mine| mine.session.clone())
    }

    /// One transaction; where it is refused, one read to say who holds it.
    async fn enter_one(&self, ticket: &Enter) -> Result<Entered> {
        let shared = &self.shared;
        let called = shared.clock.now();
        let place = &ticket.place;
        let session = match self.session_of(place).filter(|session| !session.has_ended()) {
            Some(session) => session,
            None => shared.session_for(ticket.lease).await?,
        };
        let limit = called.after(UNDECIDED);
        let mine = loop {
            let decided = self.decided.notified();
            {
                let mut all = shared.mine();
                // A session may take its own lock twice: two of us must not.
                let other = all.iter().find(|(other, _)| other.name.key() == place.name.key() && other.id != place.id);
                match other {
                    None => {
                        let new = Mine { session, record: Record::of(ticket)?, known: None, token: None };
                        break all.entry(place.clone()).or_insert(new).clone();
                    }
                    Some((_, other)) if other.token.is_some() || shared.clock.now() >= limit => {
                        return match other.record.capacity {
                            there if there == ticket.capacity => Ok(Entered::Full { holder: None }),
                            there => Err(Error::mismatch(&place.name.shown(), ticket.capacity, there)),
                        };
                    }
                    Some(_) => {}
                }
            }
            // Whether that one gets in is not known yet. If it does not, nothing changes in the store, and nobody would be told
            // that it is our turn.
            select(pin!(decided), pin!(shared.clock.sleep_until(limit))).await;
        };
        let (key, value, session) = (key(&place.name), mine.record.to_bytes(), mine.session.id.as_str());
        let lock = Operation::Lock { key: &key, value: &value, session, flags: FLAGS };
        // A ticket that is inside keeps its token: it is not written again.
        let operations = match mine.token {
            Some(_) => vec![Operation::CheckSession { key: &key, session }, Operation::GetTree(&key)],
            None => vec![lock],
        };
        match shared.agent.transaction(&operations).await? {
            Done::Well(entries) => {
                let index = entries.first().map(|entry| entry.modify_index);
                let token = mine.token.or(index).ok_or_else(super::api::unreadable)?;
                if let Some(kept) = shared.mine().get_mut(place) {
                    kept.token = Some(token);
                }
                self.decided.notify_waiters();
                Ok(Entered::Admitted { token, lease: mine.session.remaining(called) })
            }
            Done::Refused(why) => {
                shared.mine().remove(place);
                self.decided.notify_waiters();
                if why.contains("invalid session") {
                    mine.session.end();
                    return Err(Error::unknown("the session has ended"));
                }
                let entry = self.entry(&place.name).await?;
                if entry.as_ref().is_some_and(|entry| entry.flags != FLAGS) {
                    let message = "the key is in use for something else than a lock";
                    return Err(Error::new(ErrorKind::Mismatch, message).named(place.name.shown()));
                }
                let holder = entry.as_ref().and_then(record);
                if let Some(there) = holder.map(|holder| holder.capacity).filter(|there| *there != ticket.capacity) {
                    return Err(Error::mismatch(&place.name.shown(), ticket.capacity, there));
                }
                Ok(Entered::Full { holder: entry.as_ref().and_then(seen) })
            }
        }
    }
}

/// Who holds it. Its number is known to the holder alone: what it says of itself may have been written since.
fn seen(entry: &Entry) -> Option<Seen> {
    let record = record(entry)?;
    Some(Ticket { order: entry.create_index, token: None, id: None, record, expires_in: None }.seen())
}

/// What the holder says of itself, if there is one.
fn record(entry: &Entry) -> Option<Record> {
    Record::parse(&entry.value(), entry.session.as_deref()?).ok()
}

impl Store for ConsulLockStore {
    fn info(&self) -> Info {
        Info {
            kind: "consul",
            label: self.label.clone(),
            address: format!("{}?layout=consul-lock", self.shared.agent.address()),
            clock: self.shared.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::Replicated,
            queue: Queue::Absent,
            wake: Wake::LongPoll,
            lifetime: Lifetime::Session,
            reach: Reach::Network,
            weights: Weights::Whole,
            atomic_batch: 1,
            settable_token: false,
            upgrade: false,
            expel: false,
            shortest_lease: self.shared.shortest,
            longest_lease: super::sessions::LONGEST,
        }
    }

    fn attach(&self, host: Host) {
        let _ = self.shared.host.set(host);
    }

    /// One round trip; two where it is held.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            match batch.first() {
                Some(ticket) if ticket.weight != ticket.capacity => {
                    Err(Error::new(ErrorKind::Unsupported, "this layout keeps no permits")
                        .named(ticket.place.name.shown()))
                }
                Some(ticket) => Ok(vec![self.enter_one(ticket).await?]),
                None => Ok(Vec::new()),
            }
        })
    }

    /// One round trip: nobody waits in line here.
    fn wait<'a>(&'a self, place: &'a Place, _until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(async move {
            let Some(mine) = self.shared.mine().get(place).cloned() else { return Ok(Waited::Gone) };
            let entry = self.entry(&place.name).await?;
            let held = entry.filter(|entry| entry.session.as_deref() == Some(mine.session.id.as_str()));
            Ok(match held {
                Some(entry) => Waited::Admitted { token: mine.token.unwrap_or(entry.modify_index) },
                None => Waited::Gone,
            })
        })
    }

    /// One round trip: a request for each session and for each ticket, at once.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(async move {
            if batch.iter().any(|ticket| ticket.at_least.is_some()) {
                return Err(Error::new(ErrorKind::Unsupported, "Consul's indexes cannot be raised"));
            }
            let called = self.shared.clock.now();
            let mut sessions: Vec<Arc<Session>> = batch.iter().filter_map(|one| self.session_of(&one.place)).collect();
            sessions.sort_by(|a, b| a.id.cmp(&b.id));
            sessions.dedup_by(|a, b| a.id == b.id);
            let renewals = join_all(sessions.iter().map(|session| self.shared.renew_session(session)));
            let looks = join_all(batch.iter().map(|one| self.entry(&one.place.name)));
            let (renewals, looks) = futures_util::future::join(renewals, looks).await;
            renewals.into_iter().collect::<Result<Vec<()>>>()?;
            batch
                .iter()
                .zip(looks)
                .map(|(one, entry)| {
                    let (session, entry) = (self.session_of(&one.place), entry?);
                    let held = session.filter(|session| {
                        !session.has_ended() && entry.is_some_and(|entry| entry.session.as_ref() == Some(&session.id))
                    });
                    Ok(held.map_or(Renewed::Gone, |session| Renewed::There { lease: session.remaining(called) }))
                })
                .collect()
        })
    }

    /// One round trip for each ticket, at once.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(async move {
            let leaving = batch.iter().map(|place| async {
                let Some(session) = self.session_of(place) else { return Ok(Presence::Gone) };
                let key = key(&place.name);
                // Their waiters take a key that is gone for a free one.
                let operations = [
                    Operation::CheckSession { key: &key, session: &session.id },
                    Operation::Unlock { key: &key, session: &session.id },
                    Operation::Delete(&key),
                ];
                let done = self.shared.agent.transaction(&operations).await?;
                self.shared.mine().remove(place);
                self.decided.notify_waiters();
                Ok(match done {
                    Done::Well(_) => Presence::There,
                    Done::Refused(_) => Presence::Gone,
                })
            });
            join_all(leaving).await.into_iter().collect()
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
            let Some(mut mine) = self.shared.mine().get(place).cloned() else { return Ok(Presence::Gone) };
            if weight.is_some() {
                return Err(Error::new(ErrorKind::Unsupported, "this layout keeps no readers"));
            }
            if let Some(note) = &note {
                mine.record.say(note)?;
            }
            let (key, value, session) = (key(&place.name), mine.record.to_bytes(), mine.session.id.as_str());
            let operations = [
                Operation::CheckSession { key: &key, session },
                Operation::Lock { key: &key, value: &value, session, flags: FLAGS },
            ];
            Ok(match self.shared.agent.transaction(&operations).await? {
                Done::Well(_) => Presence::There,
                Done::Refused(_) => Presence::Gone,
            })
        })
    }

    /// Not here: there are no readers.
    fn upgrade<'a>(&'a self, _place: &'a Place, _new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(async move { Err(Error::new(ErrorKind::Unsupported, "this layout keeps no readers")) })
    }

    /// Not here: nobody but the holder knows its number.
    fn expel<'a>(&'a self, _name: &'a Name, _token: u64) -> BoxFuture<'a, Result<Presence>> {
        let message = "this layout cannot put anybody out: `consul kv delete` does it";
        Box::pin(async move { Err(Error::new(ErrorKind::Unsupported, message)) })
    }

    /// One round trip.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move { self.shared.watch(scope).await })
    }

    /// One round trip.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(async move {
            let inside: Vec<Seen> = self.entry(name).await?.iter().filter_map(seen).collect();
            let capacity = if inside.is_empty() { 0 } else { crate::line::WHOLE };
            Ok(Line { capacity, inside, waiting: Vec::new() })
        })
    }

    /// One round trip, which reads everything below the prefix.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move {
            let (entries, _) = self.shared.agent.tree(prefix, None).await?;
            let lock = |entry: &Entry| {
                let name = entry.key.strip_suffix("/.lock").filter(|name| after.is_none_or(|after| *name > after))?;
                let (session, value) = (entry.session.as_deref()?, entry.value());
                let record = Record::parse(&value, session).ok()?;
                Picture::new(vec![Ticket { order: 0, token: None, id: None, record, expires_in: None }]).listed(name)
            };
            let mut listed: Vec<Listed> = entries.iter().filter_map(lock).collect();
            listed.sort_by(|a, b| a.name.key().cmp(b.name.key()));
            listed.truncate(limit);
            Ok(listed)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.close())
    }
}

impl fmt::Debug for ConsulLockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConsulLockStore({})", self.shared.agent.address())
    }
}
