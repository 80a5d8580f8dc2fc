//! Watching: one stream to the server, on the library thread, for everything that this client watches. A watch begins *now*
//! and counts from the server's acknowledgement on (one that begins in the past is served only every 100 ms); a line is read
//! once after that, and again after every gap.

use super::Shared;
use super::connection::Live;
use super::followed::{Followed, Turn};
use super::handing::Parked;
use super::leases::Session;
use super::rpc::event::EventType;
use super::rpc::watch_client::WatchClient;
use super::rpc::watch_request::RequestUnion;
use super::rpc::{Event, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use super::{fault, keys, txn};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::backoff;
use crate::name::Name;
use crate::store::note::Record;
use crate::store::{Scope, TicketId};
use futures_util::future::{Either, FutureExt, select};
use prost::bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tonic::Status;

/// A watch that nobody needs any more stays for so long: the next one may come soon.
const LINGER: Duration = Duration::from_secs(1);
/// A line with waiters is read again after so long, whatever the watch says.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long whoever sent a leave may take to say how it ended, once the watch has told of it.
const HAND_OVER_WITHIN: Duration = Duration::from_millis(50);
/// How long the server may take to open the stream.
const OPEN_WITHIN: Duration = Duration::from_secs(3);

/// What is watched.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A line, for those who wait in it.
    Line(Name),
    /// Lines, for those who want to be told.
    Hints(Scope),
    /// The marker of a session.
    Marker(Arc<Session>),
}

impl What {
    fn range(&self) -> txn::Range {
        match self {
            What::Line(name) | What::Hints(Scope::Name(name)) => keys::line(name),
            What::Hints(Scope::Prefix(prefix)) => keys::prefix(prefix),
            What::Marker(session) => (keys::marker(session.lease), Bytes::new()),
        }
    }

    fn same(&self, other: &What) -> bool {
        match (self, other) {
            (What::Line(one), What::Line(other)) => one.key() == other.key(),
            (What::Hints(one), What::Hints(other)) => one == other,
            _ => false,
        }
    }
}

/// One watch.
pub(super) struct Entry {
    what: What,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// How many need it.
    joined: usize,
    idle_since: Option<Moment>,
    /// The id under which the server knows it, on the stream that is open.
    id: Option<i64>,
    /// Whether the server has acknowledged it.
    open: bool,
    failed: Option<Error>,
    opening: Vec<Waker>,
    pub(super) line: Followed,
    /// Enters that wait for a moment for a leave to take one of them along.
    pub(super) parked: VecDeque<Parked>,
    /// Since when the watch is ahead of a leave that looks for the next one.
    pub(super) ahead_since: Option<Moment>,
    read_at: Moment,
    /// Counts the gaps: a reading from before one does not count after it.
    gaps: u64,
}

impl Entry {
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is told at the moment.
    fn gap(&self) {
        let mut state = self.lock();
        (state.id, state.open) = (None, false);
        state.gaps += 1;
        state.line.gap();
    }

    fn fail(&self, error: Error) {
        let mut state = self.lock();
        state.failed = Some(error);
        state.opening.drain(..).for_each(Waker::wake);
        state.line.wake_all();
    }
}

/// Somebody's interest in a watch.
pub(super) struct Joined {
    hub: Arc<Hub>,
    entry: Arc<Entry>,
}

impl Joined {
    /// Ready when everything that happens from now on will be told.
    pub(super) fn poll_open(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = self.entry.lock();
        match &state.failed {
            Some(error) => Poll::Ready(Err(error.again())),
            None if state.open => Poll::Ready(Ok(())),
            None => {
                state.opening.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Ready when there is something to be asked of the server about this ticket.
    pub(super) fn poll_turn(&self, id: TicketId, number: i64, cx: &mut Context<'_>) -> Poll<Result<Turn>> {
        let mut state = self.entry.lock();
        match &state.failed {
            Some(error) => Poll::Ready(Err(error.again())),
            None => state.line.poll(id, number, cx).map(Ok),
        }
    }

    /// How a ticket stands, as far as is known.
    pub(super) fn turn(&self, number: i64) -> Turn {
        self.entry.lock().line.turn(number)
    }

    pub(super) fn wait(&self, number: i64) {
        self.entry.lock().line.wait(number);
    }

    pub(super) fn forget(&self, id: TicketId, number: i64) {
        self.entry.lock().line.forget(id, number);
    }

    /// The server says otherwise than the watch: the line is read again before anybody is asked to look again.
    pub(super) fn reread(&self) {
        let mut state = self.entry.lock();
        state.read_at = Moment::default();
        state.line.gap();
        drop(state);
        self.hub.bell.notify_one();
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut state = self.entry.lock();
        state.joined -= 1;
        if state.joined == 0 {
            state.idle_since = Some(self.hub.clock.now());
            drop(state);
            self.hub.bell.notify_one();
        }
    }
}

/// Everything that is watched.
pub(super) struct Hub {
    clock: crate::clock::Clock,
    entries: Mutex<Vec<Arc<Entry>>>,
    bell: Notify,
    /// How often the stream was opened.
    streams: AtomicU64,
}

impl Hub {
    pub(super) fn new(clock: crate::clock::Clock) -> Arc<Hub> {
        Arc::new(Hub { clock, entries: Mutex::default(), bell: Notify::new(), streams: AtomicU64::new(0) })
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches something, together with whoever does already.
    pub(super) fn join(self: &Arc<Self>, what: What) -> Joined {
        let mut entries = self.entries();
        let there = entries.iter().find(|entry| entry.what.same(&what) && entry.lock().failed.is_none()).cloned();
        let entry = there.unwrap_or_else(|| {
            let entry = Arc::new(Entry { what, state: Mutex::default() });
            entries.push(entry.clone());
            entry
        });
        let mut state = entry.lock();
        state.joined += 1;
        state.idle_since = None;
        let open = state.open;
        drop(state);
        drop(entries);
        // Nothing is to be done for a watch that is open: no need to call the library thread.
        if !open {
            self.bell.notify_one();
        }
        Joined { hub: self.clone(), entry }
    }

    /// Where a line is followed.
    pub(super) fn line(&self, name: &Name) -> Option<Arc<Entry>> {
        let of_it = |entry: &&Arc<Entry>| matches!(&entry.what, What::Line(line) if line.key() == name.key());
        self.entries().iter().find(of_it).cloned()
    }

    /// Where a line is followed: a ticket that keeps one out that came now.
    pub(super) fn blocker(&self, name: &Name, weight: u32, capacity: u32) -> Option<(Bytes, i64)> {
        let entry = self.line(name)?;
        let state = entry.lock();
        state.line.blocker(weight, capacity).filter(|_| state.open && state.joined > 0)
    }

    /// Takes out what nobody needs any more; says what the server is to forget, and when to look again.
    fn tidy(&self) -> (Vec<i64>, Moment) {
        let now = self.clock.now();
        let (mut forgotten, mut next) = (Vec::new(), Moment::FAR);
        self.entries().retain(|entry| {
            let mut state = entry.lock();
            if let Some(until) = state.ahead_since.map(|since| since.after(HAND_OVER_WITHIN)) {
                if until <= now {
                    state.ahead_since = None;
                    state.line.give_up();
                } else {
                    next = next.min(until);
                }
            }
            if let Some(since) = state.idle_since {
                let until = if state.failed.is_some() { since } else { since.after(LINGER) };
                if until <= now {
                    forgotten.extend(state.id);
                    return false;
                }
                next = next.min(until);
            } else if state.open && matches!(entry.what, What::Line(_)) {
                next = next.min(state.read_at.after(LOOK_AGAIN));
            }
            true
        });
        (forgotten, next)
    }
}

/// Keeps the stream open while there is something to watch.
pub(super) async fn run(shared: Weak<Shared>) {
    let Some(this) = shared.upgrade() else { return };
    let (hub, clock) = (this.hub.clone(), this.clock.clone());
    let closing = this.closed.subscribe();
    drop(this);
    let mut tries = 0;
    loop {
        while hub.entries().is_empty() {
            if let Either::Right(_) = select(pin!(hub.bell.notified()), pin!(closed(&closing))).await {
                return;
            }
        }
        let Some(this) = shared.upgrade() else { return };
        let before = hub.streams.load(Ordering::Relaxed);
        if let Either::Right(_) = select(pin!(this.follow()), pin!(closed(&closing))).await {
            return;
        }
        hub.entries().iter().for_each(|entry| entry.gap());
        this.hints.somewhere();
        drop(this);
        tries = if hub.streams.load(Ordering::Relaxed) > before { 1 } else { tries + 1 };
        let pause = clock.sleep_until(clock.now().after(backoff(tries)));
        if let Either::Right(_) = select(pin!(pause), pin!(closed(&closing))).await {
            return;
        }
        hub.tidy();
    }
}

/// Ready when the store is closed, or whatever else this tells of.
pub(super) async fn closed(closing: &watch::Receiver<bool>) {
    // An error means that nobody is left to tell it.
    let _ = closing.clone().wait_for(|closed| *closed).await;
}

/// What may happen to an open stream.
enum News {
    Told(Result<Option<WatchResponse>, Status>),
    Asked,
    Ended,
}

impl Shared {
    /// Opens the stream and follows it until it breaks.
    async fn follow(self: &Arc<Self>) -> Result<()> {
        let live = self.connections.of_this_runtime().await?;
        let broken = self.follow_on(&live).await;
        self.connections.drop_live(&live);
        broken
    }

    async fn follow_on(self: &Arc<Self>, live: &Live) -> Result<()> {
        let hub = &self.hub;
        let (asks, mut asked) = mpsc::unbounded_channel::<WatchRequest>();
        let mut open: HashMap<i64, Arc<Entry>> = HashMap::new();
        let mut last_id = 0;
        // The server opens its side only when it is asked for something.
        create_new(hub, &mut open, &mut last_id, &asks);
        let mut request = live.request(futures_util::stream::poll_fn(move |cx| asked.poll_recv(cx)));
        // A server that is cut off from the others then ends the stream, instead of keeping silent.
        request.metadata_mut().insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
        let mut client = WatchClient::new(live.channel()).max_decoding_message_size(64 << 20);
        let limit = self.clock.sleep_until(self.clock.now().after(OPEN_WITHIN));
        let mut told = match select(pin!(client.watch(request)), pin!(limit)).await {
            Either::Left((Ok(stream), _)) => stream.into_inner(),
            Either::Left((Err(status), _)) => return Err(self.refused(&status)),
            Either::Right(_) => return Err(Error::unknown("the server did not open the watch in time")),
        };
        hub.streams.fetch_add(1, Ordering::Relaxed);
        loop {
            create_new(hub, &mut open, &mut last_id, &asks);
            let (forgotten, mut next) = hub.tidy();
            for id in forgotten {
                open.remove(&id);
                let cancel = RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id });
                let _ = asks.send(WatchRequest { request_union: Some(cancel) });
            }
            if next <= self.clock.now() {
                open.values().for_each(|entry| self.read_if_due(entry));
                next = self.clock.now().after(LINGER);
            }
            let news = futures_util::select_biased! {
                told = told.message().fuse() => News::Told(told),
                () = live.ended().fuse() => News::Ended,
                () = hub.bell.notified().fuse() => News::Asked,
                () = self.clock.sleep_until(next).fuse() => News::Asked,
            };
            match news {
                News::Asked => {}
                News::Ended => return Err(Error::unknown("the connection has ended")),
                News::Told(Err(status)) => return Err(self.refused(&status)),
                News::Told(Ok(None)) => return Err(Error::unknown("the server ended the watch")),
                News::Told(Ok(Some(response))) => self.heard(&mut open, response),
            }
        }
    }

    /// The server does not let us watch at all: whoever waits is told.
    fn refused(&self, status: &Status) -> Error {
        let error: Error = fault::of(status, self.connections.address()).into();
        if error.kind() == ErrorKind::Denied && status.code() != tonic::Code::Unauthenticated {
            self.hub.entries().iter().for_each(|entry| entry.fail(error.again()));
        }
        error
    }

    fn heard(self: &Arc<Self>, open: &mut HashMap<i64, Arc<Entry>>, response: WatchResponse) {
        let Some(entry) = open.get(&response.watch_id).cloned() else { return };
        if response.canceled {
            open.remove(&response.watch_id);
            entry.gap();
            if response.cancel_reason.contains("permission denied") {
                let message = "the user has no right to read the keys of this lock: see the least rights in the docs";
                entry.fail(Error::new(ErrorKind::Denied, message).caused_by(response.cancel_reason));
            } else {
                // Compacted, or whatever: it is opened again.
                self.hints.somewhere();
                self.hub.bell.notify_one();
            }
            return;
        }
        if response.created {
            let mut state = entry.lock();
            state.open = true;
            state.opening.drain(..).for_each(Waker::wake);
            drop(state);
            match &entry.what {
                What::Line(_) => self.read(&entry),
                // It may have gone before the watch began.
                What::Marker(session) => session.doubt(),
                What::Hints(_) => {}
            }
        }
        if !response.events.is_empty() {
            self.told(&entry, response.events);
        }
    }

    fn told(self: &Arc<Self>, entry: &Entry, events: Vec<Event>) {
        match &entry.what {
            What::Line(name) => {
                self.doubt_deleted(&events);
                let mut state = entry.lock();
                state.line.told(name.key(), events);
                if state.ahead_since.is_none() && state.line.is_ahead() {
                    state.ahead_since = Some(self.clock.now());
                }
            }
            What::Hints(_) => events.iter().filter_map(name_of).for_each(|name| self.hints.tell(&name)),
            What::Marker(session) => {
                for event in &events {
                    // Whoever puts out a ticket says here which one.
                    let expelled = event.kv.as_ref().and_then(|kv| keys::split(&kv.value)?.1.id);
                    match expelled {
                        _ if event.r#type() == EventType::Delete => session.doubt(),
                        Some(id) => self.host(|host| host.doubt(Some(id))),
                        None => {}
                    }
                }
            }
        }
    }

    /// Whoever holds a ticket that is deleted looks at once.
    fn doubt_deleted(&self, events: &[Event]) {
        for event in events.iter().filter(|event| event.r#type() == EventType::Delete) {
            let id = event.kv.as_ref().and_then(|kv| keys::split(&kv.key)?.1.id);
            if let Some(id) = id {
                self.host(|host| host.doubt(Some(id)));
            }
        }
    }

    /// Reads a line that has not been read for long.
    fn read_if_due(self: &Arc<Self>, entry: &Arc<Entry>) {
        let due = {
            let state = entry.lock();
            state.open && state.joined > 0 && state.read_at.after(LOOK_AGAIN) <= self.clock.now()
        };
        if due && matches!(entry.what, What::Line(_)) {
            self.read(entry);
        }
    }

    /// Reads a line in the background: one round trip.
    fn read(self: &Arc<Self>, entry: &Arc<Entry>) {
        let What::Line(name) = &entry.what else { return };
        let (name, entry, this) = (name.clone(), entry.clone(), self.clone());
        let gaps = {
            let mut state = entry.lock();
            state.read_at = self.clock.now();
            state.gaps
        };
        self.host(|host| {
            host.spawn(async move {
                let answer = this.ask(txn::whole(&keys::line(&name))).await;
                let mut state = entry.lock();
                match answer {
                    Ok(found) if state.gaps == gaps => {
                        let revision = found.header.map_or(0, |header| header.revision);
                        state.line.read(name.key(), &found.kvs, revision);
                        drop(state);
                        this.delete_strays(found.kvs.iter().map(|kv| (&kv.key, kv.create_revision)));
                    }
                    Ok(_) => {}
                    Err(fault) if fault.error.kind() == ErrorKind::Denied => {
                        drop(state);
                        entry.fail(fault.error);
                    }
                    // Again, soon.
                    Err(_) => state.read_at = this.clock.now().before(LOOK_AGAIN - Duration::from_millis(100)),
                }
                this.hub.bell.notify_one();
            });
        });
    }
}

/// Asks for every watch that the stream does not have yet.
fn create_new(
    hub: &Hub,
    open: &mut HashMap<i64, Arc<Entry>>,
    last_id: &mut i64,
    asks: &mpsc::UnboundedSender<WatchRequest>,
) {
    for entry in hub.entries().iter() {
        let mut state = entry.lock();
        if state.id.is_some() || state.failed.is_some() || (state.joined == 0 && state.idle_since.is_some()) {
            continue;
        }
        *last_id += 1;
        state.id = Some(*last_id);
        drop(state);
        open.insert(*last_id, entry.clone());
        let (key, range_end) = entry.what.range();
        let create = WatchCreateRequest { key, range_end, watch_id: *last_id, ..WatchCreateRequest::default() };
        let _ = asks.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
    }
}

/// The name that something happened to.
fn name_of(event: &Event) -> Option<Name> {
    let kv = event.kv.as_ref()?;
    let (key, _) = keys::split(&kv.key)?;
    // Only a hashed name has more to say.
    let record = (key.contains("%~") && !kv.value.is_empty()).then(|| Record::parse(&kv.value, "").ok()).flatten();
    Some(Name::from_key(key, record.and_then(|record| record.name).as_deref()))
}
