//! The inbox: one channel for each client, on the library thread's connection. The server's scripts publish to it who was
//! let in; the message carries the grant. The task here keeps that connection open, subscribes again after a loss and looks
//! at once at everything that waits, sends the looks that are due, and keeps the server marked while somebody watches.

use super::answer::standings;
use super::connection::{Live, Message};
use super::script::{self, ALL_CHANGES, Call, WATCH_KEY, changes, name_in};
use super::waiters::Standing;
use super::{Shared, record};
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::backoff;
use crate::name::Name;
use crate::store::{BoxStream, Hint, Place, Scope, TicketId};
use futures_util::future::select;
use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// The server stays marked as watched for this long; the mark is renewed every third of it.
pub(super) const WATCHED_FOR: Duration = Duration::from_secs(90);
/// The most tickets that one request looks at.
const BATCH: usize = 500;

/// The library thread's connection.
#[derive(Default)]
pub(super) enum Line {
    /// Not tried yet.
    #[default]
    New,
    Up(Live),
    /// The last try failed, or the connection was lost.
    Down(Option<Error>),
    Closed,
}

/// What is watched, and by how many.
#[derive(Default)]
pub(super) struct Watched(Mutex<HashMap<String, usize>>);

impl Watched {
    fn channels(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}

/// The life of the inbox. Ends when the store is closed, or nobody has it any more.
pub(super) async fn run(shared: Weak<Shared>) {
    let mut tries = 0;
    let mut first = true;
    loop {
        let Some(this) = shared.upgrade() else { return };
        match this.open_inbox().await {
            Ok(live) => {
                tries = 0;
                // What was published before the subscription is lost. Whoever enters from here on is heard of.
                this.waiters.doubt_all();
                this.set_line(Line::Up(live.clone()));
                if !first {
                    // Whatever was published in between is lost; the server may be another one.
                    this.hints.somewhere();
                    this.host(|host| host.doubt(None));
                }
                first = false;
                drop(this);
                serve(&shared, &live).await;
                let Some(this) = shared.upgrade() else { return };
                if !this.set_line(Line::Down(None)) {
                    return;
                }
            }
            Err(error) => {
                tries += 1;
                let pause = this.clock.sleep_until(this.clock.now().after(backoff(tries)));
                if !this.set_line(Line::Down(Some(error))) {
                    return;
                }
                first = false;
                let (closed, moved) = (pin!(this.closed.notified()), pin!(this.connections.moved.notified()));
                select(pin!(pause), select(closed, moved)).await;
            }
        }
    }
}

/// Sends what is due until the connection is lost.
async fn serve(shared: &Weak<Shared>, live: &Live) {
    let Some(mut rearm) = shared.upgrade().map(|this| this.clock.now().after(WATCHED_FOR / 3)) else { return };
    loop {
        let Some(this) = shared.upgrade() else { return };
        if this.is_closed() || !live.is_open() {
            return;
        }
        let now = this.clock.now();
        if this.waiters.due() <= now {
            let places = this.waiters.take_due(now);
            for places in places.chunks(BATCH) {
                this.look(live, places).await;
            }
        }
        if rearm <= now {
            rearm = now.after(WATCHED_FOR / 3);
            if !this.watched.channels().is_empty() {
                // If it fails, the connection is lost or the next round will do it.
                let _ = this.arm(live).await;
            }
        }
        let sleep = pin!(this.clock.sleep_until(this.waiters.due().min(rearm)));
        let (rung, closed, ended) =
            (pin!(this.waiters.bell.notified()), pin!(this.closed.notified()), pin!(live.ended()));
        select(select(sleep, rung), select(closed, ended)).await;
    }
}

impl Shared {
    /// The library thread's connection with everything subscribed that has to be.
    async fn open_inbox(self: &Arc<Self>) -> Result<Live> {
        let this = Arc::downgrade(self);
        let heard = move |message| {
            if let Some(this) = this.upgrade() {
                this.heard(message);
            }
        };
        let live = self.connections.open(heard).await?;
        live.subscribe(&self.inbox, &self.connections.address).await?;
        let channels = self.watched.channels();
        for channel in &channels {
            live.subscribe(channel, &self.connections.address).await?;
        }
        if !channels.is_empty() {
            self.arm(&live).await?;
        }
        Ok(live)
    }

    /// A message has come in. Called by the connection's own task: it must not wait for anything.
    pub(super) fn heard(&self, (channel, said): Message) {
        if channel.ends_with(script::inbox_end(&self.inbox).as_bytes()) {
            let said = String::from_utf8_lossy(&said);
            let mut words = said.split(' ');
            let (what, id) = (words.next(), words.next().and_then(ticket_id));
            match (what, id, words.next().map(str::parse)) {
                (Some("g"), Some(id), Some(Ok(token))) => self.waiters.granted(id, token, self.clock.now()),
                (Some("l"), Some(id), Some(Ok(micros))) => {
                    self.waiters.lapse_in(id, Duration::from_micros(micros), self.clock.now());
                }
                (Some("x"), Some(id), None) => {
                    self.waiters.doubt(id);
                    self.host(|host| host.doubt(Some(id)));
                }
                _ => {}
            }
        } else {
            let said = String::from_utf8_lossy(&said);
            let (what, said) = said.split_once(' ').unwrap_or(("", &said));
            let (key, facts) = said.split_once(' ').unwrap_or((said, ""));
            if let Some(key) = name_in(key) {
                let name = Name::from_key(key, record::long_name(facts).as_deref());
                if what == "e" { self.hints.entered(&name) } else { self.hints.tell(&name) }
            }
        }
    }

    /// One round trip: what became of these?
    async fn look(&self, live: &Live, places: &[Place]) {
        let answer =
            async { standings(live.call(&Self::look_call(places), &self.connections.address).await?, places.len()) };
        self.looked(places, answer.await);
    }

    /// What a look has found.
    pub(super) fn looked(&self, places: &[Place], answer: Result<Vec<Standing>>) {
        match answer {
            Ok(answers) => {
                let now = self.clock.now();
                for (place, standing) in places.iter().zip(answers) {
                    if let Standing::Waiting { next_lapse, .. } = standing {
                        self.waiters.line_told(&place.name, next_lapse, now);
                    }
                    self.waiters.told(place.id, standing, now);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "could not look at {} waiting tickets", places.len());
                self.waiters.look_failed(places, self.clock.now());
            }
        }
    }

    pub(super) fn look_call(places: &[Place]) -> Call {
        let mut call = Call::new(&script::RENEW, places.len(), places.len() * 3);
        places.iter().for_each(|place| call.line(&place.name));
        for place in places {
            call.id(place.id);
            call.arg("0");
            call.arg("0");
        }
        call
    }

    /// Marks the server as watched, so that changes are published. One round trip.
    async fn arm(&self, live: &Live) -> Result<()> {
        let mut cmd = redis::cmd("SET");
        cmd.arg(WATCH_KEY).arg("1").arg("PX").arg(WATCHED_FOR.as_millis().to_string());
        live.send(&cmd, &self.connections.address).await.map(drop)
    }

    /// Two round trips.
    pub(super) async fn watch_scope(self: &Arc<Self>, scope: Scope) -> Result<BoxStream<'static, Hint>> {
        if let Some(cluster) = self.connections.cluster() {
            return self.watch_in(cluster, scope).await;
        }
        let channel = match &scope {
            Scope::Name(name) => changes(name.key()),
            Scope::Prefix(_) => ALL_CHANGES.to_string(),
        };
        let hints = self.hints.subscribe(scope);
        let watch = Watch { shared: self.clone(), channel: channel.clone() };
        *self.watched.0.lock().unwrap_or_else(PoisonError::into_inner).entry(channel.clone()).or_default() += 1;
        let live = self.library_connection().await?;
        live.subscribe(&channel, &self.connections.address).await?;
        self.arm(&live).await?;
        Ok(Box::pin(Watching { hints, _watch: watch }))
    }

    /// The library thread's connection, as soon as it is open; its last error where it cannot be opened.
    pub(super) async fn library_connection(&self) -> Result<Live> {
        let mut line = self.line.subscribe();
        loop {
            match &*line.borrow_and_update() {
                Line::Up(live) if live.is_open() => return Ok(live.clone()),
                Line::Down(Some(error)) => return Err(error.again()),
                Line::Closed => return Err(Error::new(ErrorKind::Unavailable, "the store was closed")),
                _ => {}
            }
            if line.changed().await.is_err() {
                return Err(Error::new(ErrorKind::Unavailable, "the store was closed"));
            }
        }
    }

    /// Says whether the store is still open.
    fn set_line(&self, line: Line) -> bool {
        self.line.send_if_modified(|there| {
            let open = !matches!(there, Line::Closed);
            if open {
                *there = line;
            }
            open
        })
    }
}

/// 32 hex digits.
fn ticket_id(text: &str) -> Option<TicketId> {
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(TicketId::from_bytes(bytes))
}

/// A pattern that matches nothing but this text.
pub(super) fn literally(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// One watcher's share in a channel.
struct Watch {
    shared: Arc<Shared>,
    channel: String,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let last = {
            let mut watched = self.shared.watched.0.lock().unwrap_or_else(PoisonError::into_inner);
            let count = watched.get_mut(&self.channel).map(|count| {
                *count -= 1;
                *count
            });
            if count == Some(0) {
                watched.remove(&self.channel);
            }
            count == Some(0)
        };
        if last && let Line::Up(live) = &*self.shared.line.borrow() {
            let (live, channel, shared) = (live.clone(), self.channel.clone(), self.shared.clone());
            self.shared.host(|host| {
                host.spawn(async move {
                    // Somebody may have come back in the meantime.
                    if !shared.watched.channels().contains(&channel) {
                        live.unsubscribe(&channel).await;
                    }
                    if shared.watched.channels().contains(&channel) {
                        let _ = live.subscribe(&channel, &shared.connections.address).await;
                    }
                });
            });
        }
    }
}

/// What is told to one watcher, for as long as its share in the watch is there.
pub(super) struct Watching<W> {
    pub(super) hints: BoxStream<'static, Hint>,
    pub(super) _watch: W,
}

impl<W: Unpin> futures_core::Stream for Watching<W> {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.hints.as_mut().poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_can_be_read_back() {
        let id = TicketId::new();
        assert_eq!(ticket_id(&id.to_string()), Some(id));
        assert_eq!(ticket_id("00"), None);
        assert_eq!(ticket_id(&"é".repeat(16)), None);
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(literally("a*b/c%7E"), "a\\*b/c%7E");
    }
}
