//! The memory store: [the rule](crate::line) behind a mutex, for the tasks and threads of one process. It is the reference
//! that every other store is compared with, so it is kept dull. With a [`VirtualClock`](crate::VirtualClock) it lets users
//! test their own code without waiting.

use super::hints::Hints;
use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Mode, Note,
    OwnerId, Place, Presence, Queue, Reach, Renew, Renewed, Scope, Seen, Store, TicketId, Upgraded, Waited, Wake,
    Weights, check_batch, waiting_lease,
};
use crate::clock::{Clock, Moment, Sleep};
use crate::error::{Error, Result};
use crate::line::{self, Entry, Raise};
use crate::name::Name;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

mod beside;

/// A store in this process's memory. A clone is another client of the same store.
pub struct MemoryStore {
    shared: Arc<Shared>,
    label: Arc<str>,
    client: u64,
}

struct Shared {
    clock: Clock,
    state: Mutex<State>,
    hints: Hints,
    clients: AtomicU64,
    side: beside::Side,
}

#[derive(Default)]
struct State {
    /// One counter for all lines: a line that was empty for a while goes on above its old numbers.
    last: u64,
    lines: BTreeMap<Arc<str>, Kept>,
    hosts: HashMap<u64, Host>,
}

/// A line, its name, and the earliest moment at which one of its tickets can lapse.
struct Kept {
    name: Name,
    line: line::Line<TicketId, Facts>,
    earliest: Moment,
}

struct Facts {
    mode: Mode,
    owner: OwnerId,
    note: Note,
    entered: Moment,
    admitted: Option<Moment>,
    expiry: Moment,
    waker: Option<Waker>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl MemoryStore {
    /// A new, empty store.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::with_clock(Clock::system())
    }

    /// A new, empty store on another clock.
    #[must_use]
    pub fn with_clock(clock: Clock) -> MemoryStore {
        let shared = Shared {
            clock,
            state: Mutex::default(),
            hints: Hints::default(),
            clients: AtomicU64::new(1),
            side: beside::Side::default(),
        };
        MemoryStore { shared: Arc::new(shared), label: "memory".into(), client: 0 }
    }

    /// The store that everybody in this process who asks for the same `name` shares: what `memory:name` means.
    #[must_use]
    pub fn shared(name: &str) -> MemoryStore {
        static STORES: OnceLock<Mutex<HashMap<String, MemoryStore>>> = OnceLock::new();
        let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        stores.entry(name.to_string()).or_default().clone()
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> MemoryStore {
        self.label = label.into();
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the line of `name` as it is now, lapsed tickets taken out, and tells whoever it concerns.
    ///
    /// `act` also gets the last number that was given: whatever takes a new one does so while the line is locked.
    fn with_line<T>(&self, name: &Name, act: impl FnOnce(&mut Kept, Moment, &mut News, &mut u64) -> T) -> T {
        let mut news = News::default();
        let now = self.shared.clock.now();
        let mut state = self.lock();
        let State { last, lines, .. } = &mut *state;
        let kept = lines.entry(name.shared_key()).or_insert_with(|| Kept::new(name.clone()));
        kept.sweep(now, &mut news);
        let answer = act(kept, now, &mut news, last);
        if kept.line.is_empty() {
            lines.remove(name.key());
        }
        drop(state);
        news.tell(&self.shared.hints, name);
        answer
    }

    fn enter_now(&self, batch: &[Enter]) -> Result<Vec<Entered>> {
        check_batch(batch, &self.capability())?;
        let now = self.shared.clock.now();
        let mut news: Vec<News> = Vec::with_capacity(batch.len());
        let mut state = self.lock();
        let State { last, lines, .. } = &mut *state;
        let mut full = vec![false; batch.len()];
        let mut failed = None;
        for (ticket, full) in batch.iter().zip(&mut full) {
            let mut told = News::default();
            let key = ticket.place.name.shared_key();
            let kept = lines.entry(key).or_insert_with(|| Kept::new(ticket.place.name.clone()));
            kept.sweep(now, &mut told);
            news.push(told);
            if kept.line.get(ticket.place.id).is_some() {
                continue;
            }
            match kept.line.capacity() {
                Some(there) if there != ticket.capacity => {
                    failed = Some(Error::mismatch(&ticket.place.name.shown(), ticket.capacity, there));
                }
                _ => *full = !ticket.queue && !kept.line.has_room(ticket.weight, ticket.capacity),
            }
        }
        let answer = match failed {
            Some(error) => Err(error),
            None if full.contains(&true) => Ok(batch
                .iter()
                .zip(full)
                .map(|(ticket, full)| Entered::Full {
                    holder: if full { lines[ticket.place.name.key()].head(now) } else { None },
                })
                .collect()),
            None => Ok(batch
                .iter()
                .zip(&mut news)
                .map(|(ticket, news)| {
                    let kept = lines.get_mut(ticket.place.name.key()).expect("made above");
                    kept.enter(ticket, last, now, news)
                })
                .collect()),
        };
        for ticket in batch {
            if lines.get(ticket.place.name.key()).is_some_and(|kept| kept.line.is_empty()) {
                lines.remove(ticket.place.name.key());
            }
        }
        drop(state);
        for (ticket, news) in batch.iter().zip(news) {
            news.tell(&self.shared.hints, &ticket.place.name);
        }
        answer
    }
}

/// Who has to be told of what was done to a line.
#[derive(Default)]
struct News {
    changed: bool,
    wakers: Vec<Waker>,
}

impl News {
    fn tell(self, hints: &Hints, name: &Name) {
        self.wakers.into_iter().for_each(Waker::wake);
        if self.changed {
            hints.tell(name);
        }
    }
}

impl Kept {
    fn new(name: Name) -> Kept {
        Kept { name, line: line::Line::default(), earliest: Moment::FAR }
    }

    /// Takes out every ticket whose lease has ended.
    fn sweep(&mut self, now: Moment, news: &mut News) {
        if now < self.earliest {
            return;
        }
        let lapsed: Vec<TicketId> =
            self.line.iter().filter(|(_, ticket)| ticket.facts.expiry <= now).map(|(_, ticket)| ticket.id).collect();
        for id in lapsed {
            self.leave(id, now, news);
        }
        self.earliest = self.line.iter().map(|(_, ticket)| ticket.facts.expiry).min().unwrap_or(Moment::FAR);
    }

    fn enter(&mut self, ticket: &Enter, last: &mut u64, now: Moment, news: &mut News) -> Entered {
        if self.line.get(ticket.place.id).is_none() {
            *last += 1;
            let facts = Facts {
                mode: ticket.kind.mode(),
                owner: ticket.owner,
                note: ticket.note.clone(),
                entered: now,
                admitted: None,
                expiry: now,
                waker: None,
            };
            let (weight, capacity) = (ticket.weight, ticket.capacity);
            if self.line.enter(ticket.place.id, *last, weight, capacity, ticket.queue, facts) == Entry::Admitted {
                self.admitted(&[ticket.place.id], now, news);
            }
            news.changed = true;
        }
        let (token, there) = self.line.get(ticket.place.id).expect("entered above");
        let admitted = there.admitted;
        let lease = if admitted { ticket.lease } else { waiting_lease(ticket.lease) };
        let lease = self.extend(ticket.place.id, lease, now);
        if admitted {
            Entered::Admitted { token, lease }
        } else {
            Entered::Queued { token: Some(token), lease, ahead: self.head(now) }
        }
    }

    fn leave(&mut self, id: TicketId, now: Moment, news: &mut News) -> Presence {
        match self.line.leave(id) {
            None => Presence::Gone,
            Some((ticket, newly)) => {
                news.wakers.extend(ticket.facts.waker);
                news.changed = true;
                self.admitted(&newly, now, news);
                Presence::There
            }
        }
    }

    fn admitted(&mut self, newly: &[TicketId], now: Moment, news: &mut News) {
        for id in newly {
            if let Some(facts) = self.line.facts_mut(*id) {
                facts.admitted = Some(now);
                news.wakers.extend(facts.waker.take());
            }
        }
    }

    /// The later of the ticket's expiry and now plus the lease, as a lease from now.
    fn extend(&mut self, id: TicketId, lease: Duration, now: Moment) -> Duration {
        let facts = self.line.facts_mut(id).expect("only called for a ticket that is there");
        facts.expiry = facts.expiry.max(now.after(lease));
        self.earliest = self.earliest.min(facts.expiry);
        facts.expiry.since(now)
    }

    fn head(&self, now: Moment) -> Option<Seen> {
        self.line.iter().next().map(|(token, ticket)| seen(token, ticket, now))
    }
}

fn seen(token: u64, ticket: &line::Ticket<TicketId, Facts>, now: Moment) -> Seen {
    let facts = &ticket.facts;
    Seen {
        token: Some(token),
        mode: facts.mode,
        weight: ticket.weight,
        host: facts.note.host.to_string(),
        pid: facts.note.pid,
        identity: facts.note.identity.to_string(),
        owner: facts.owner.to_string(),
        reason: facts.note.reason.as_deref().map(String::from),
        value: facts.note.value.as_deref().map(String::from),
        entered: Some(now.since(facts.entered)),
        admitted: facts.admitted.map(|at| now.since(at)),
        expires_in: Some(facts.expiry.since(now)),
    }
}

impl Store for MemoryStore {
    fn info(&self) -> Info {
        Info { kind: "memory", label: self.label.clone(), address: "memory:".into(), clock: self.shared.clock.clone() }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::SingleNode,
            queue: Queue::Fifo,
            wake: Wake::Push,
            lifetime: Lifetime::Ticket,
            reach: Reach::Process,
            weights: Weights::Any,
            atomic_batch: 1024,
            settable_token: true,
            upgrade: true,
            expel: true,
            shortest_lease: Duration::from_millis(50),
            longest_lease: Duration::from_secs(365 * 86_400),
        }
    }

    fn attach(&self, host: Host) {
        self.lock().hosts.insert(self.client, host);
    }

    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move { self.enter_now(batch) })
    }

    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        let mut timer: Option<(Moment, Pin<Box<Sleep>>)> = None;
        Box::pin(poll_fn(move |cx| {
            loop {
                let found = self.with_line(&place.name, |kept, now, _, _| {
                    let Some((token, ticket)) = kept.line.get(place.id) else { return Ok(Waited::Gone) };
                    if ticket.admitted {
                        return Ok(Waited::Admitted { token });
                    }
                    if now >= until {
                        return Ok(Waited::Waiting);
                    }
                    kept.line.facts_mut(place.id).expect("found above").waker = Some(cx.waker().clone());
                    Err(kept.earliest.min(until))
                });
                let look_again = match found {
                    Ok(answer) => return Poll::Ready(Ok(answer)),
                    Err(look_again) => look_again,
                };
                let (at, sleep) = match &mut timer {
                    Some(timer) if timer.0 == look_again => timer,
                    _ => timer.insert((look_again, Box::pin(self.shared.clock.sleep_until(look_again)))),
                };
                debug_assert_eq!(*at, look_again);
                if sleep.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                timer = None;
            }
        }))
    }

    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(async move {
            let renew = |ticket: &Renew| {
                self.with_line(&ticket.place.name, |kept, now, _, last| {
                    if kept.line.get(ticket.place.id).is_none() {
                        return Renewed::Gone;
                    }
                    *last = ticket.at_least.unwrap_or(0).max(*last);
                    Renewed::There { lease: kept.extend(ticket.place.id, ticket.lease, now) }
                })
            };
            Ok(batch.iter().map(renew).collect())
        })
    }

    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(async move {
            let leave =
                |place: &Place| self.with_line(&place.name, |kept, now, news, _| kept.leave(place.id, now, news));
            Ok(batch.iter().map(leave).collect())
        })
    }

    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move {
            Ok(self.with_line(&place.name, |kept, now, news, _| {
                let Some((_, ticket)) = kept.line.get(place.id) else { return Presence::Gone };
                let (old, capacity) = (ticket.weight, ticket.capacity);
                if let Some(weight) = weight {
                    let newly = kept.line.change(place.id, weight).expect("found above");
                    kept.admitted(&newly, now, news);
                }
                let facts = kept.line.facts_mut(place.id).expect("found above");
                if weight.is_some_and(|weight| weight < old) {
                    facts.mode = Mode::of(weight.unwrap_or(old), capacity);
                }
                if let Some(note) = note {
                    facts.note = note;
                }
                news.changed = true;
                Presence::There
            }))
        })
    }

    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(async move {
            Ok(self.with_line(&place.name, |kept, now, news, last| {
                if let Some((token, _)) = kept.line.get(new) {
                    return Upgraded::Admitted { token };
                }
                match kept.line.upgrade(place.id, new, *last + 1) {
                    Raise::Gone => Upgraded::Gone,
                    Raise::Held => {
                        let other = kept.line.iter().find(|(_, ticket)| ticket.id != place.id);
                        Upgraded::Held { by: other.map(|(token, ticket)| seen(token, ticket, now)) }
                    }
                    Raise::Admitted => {
                        let facts = kept.line.facts_mut(new).expect("made just now");
                        facts.mode = Mode::Exclusive;
                        facts.admitted = Some(now);
                        news.changed = true;
                        *last += 1;
                        Upgraded::Admitted { token: *last }
                    }
                }
            }))
        })
    }

    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move {
            let id = self.with_line(name, |kept, now, news, _| {
                let id = kept.line.iter().find(|(number, _)| *number == token).map(|(_, ticket)| ticket.id);
                if let Some(id) = id {
                    kept.leave(id, now, news);
                }
                id
            });
            if id.is_some() {
                let hosts: Vec<Host> = self.lock().hosts.values().cloned().collect();
                hosts.iter().for_each(|host| host.doubt(id));
            }
            Ok(if id.is_some() { Presence::There } else { Presence::Gone })
        })
    }

    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move { Ok(self.shared.hints.subscribe(scope)) })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(async move {
            Ok(self.with_line(name, |kept, now, _, _| {
                let (mut inside, mut waiting) = (Vec::new(), Vec::new());
                for (token, ticket) in kept.line.iter() {
                    let list = if ticket.admitted { &mut inside } else { &mut waiting };
                    list.push(seen(token, ticket, now));
                }
                Line { capacity: kept.line.capacity().unwrap_or(0), inside, waiting }
            }))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move {
            use std::ops::Bound::{Excluded, Included, Unbounded};
            let now = self.shared.clock.now();
            let mut news = Vec::new();
            let mut state = self.lock();
            let from = match after {
                Some(after) if after >= prefix => Excluded(after),
                _ => Included(prefix),
            };
            let mut listed = Vec::new();
            for (_, kept) in state.lines.range_mut::<str, _>((from, Unbounded)) {
                if !kept.name.key().starts_with(prefix) || listed.len() == limit {
                    break;
                }
                let mut told = News::default();
                kept.sweep(now, &mut told);
                news.push((kept.name.clone(), told));
                let inside = kept.line.iter().take_while(|(_, ticket)| ticket.admitted).count();
                if let Some((_, head)) = kept.line.iter().next() {
                    let held = Some(now.since(head.facts.admitted.unwrap_or(head.facts.entered)));
                    listed.push(Listed { name: kept.name.clone(), inside, waiting: kept.line.len() - inside, held });
                }
            }
            for (name, _) in &news {
                if state.lines.get(name.key()).is_some_and(|kept| kept.line.is_empty()) {
                    state.lines.remove(name.key());
                }
            }
            drop(state);
            news.into_iter().for_each(|(name, told)| told.tell(&self.shared.hints, &name));
            Ok(listed)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.lock().hosts.remove(&self.client);
        })
    }
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        let client = self.shared.clients.fetch_add(1, Ordering::Relaxed);
        MemoryStore { shared: self.shared.clone(), label: self.label.clone(), client }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}
