//! Lines as this client reads them: what stands below a name, and one blocking query for each name that somebody of this
//! client waits for, however many wait.

use super::Shared;
use super::api::Entry;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::backoff;
use crate::name::Name;
use crate::store::TicketId;
use crate::store::note::{Picture, Record, Ticket};
use futures_util::future::{Either, select};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// How long the server may keep a query open. Also the slow tick for whatever is never told.
const WAIT: Duration = Duration::from_secs(60);

/// The key of a ticket.
pub(super) fn key(name: &Name, id: TicketId) -> String {
    format!("{}/{id}", name.key())
}

/// What the keys of a line's tickets begin with.
pub(super) fn prefix(name: &Name) -> String {
    format!("{}/", name.key())
}

/// The id, if nothing but one ticket follows the name.
fn ticket_id(rest: &str) -> Option<TicketId> {
    let digits = rest.len() == 32 && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let id = digits.then(|| u128::from_str_radix(rest, 16).ok()).flatten()?;
    Some(TicketId::from_bytes(id.to_be_bytes()))
}

/// The line's key and the ticket's id in a key.
pub(super) fn split(key: &str) -> Option<(&str, TicketId)> {
    let (line, rest) = key.rsplit_once('/')?;
    Some((line, ticket_id(rest)?))
}

/// A ticket, if a session holds this key.
pub(super) fn ticket(entry: &Entry, id: TicketId) -> Result<Option<Ticket>> {
    let Some(session) = &entry.session else { return Ok(None) };
    Ok(Some(Ticket {
        order: entry.create_index,
        token: Some(entry.create_index),
        id: Some(id),
        record: Record::parse(&entry.value(), session)?,
        expires_in: None,
    }))
}

/// The line of this name, as it stands in what was read.
pub(super) fn picture(name: &Name, entries: &[Entry]) -> Result<Picture> {
    let mut tickets = Vec::new();
    for entry in entries {
        if let Some((line, id)) = split(&entry.key)
            && line == name.key()
        {
            tickets.extend(ticket(entry, id)?);
        }
    }
    Ok(Picture::new(tickets))
}

/// Whether the lock of `consul lock` is held under this name: it and a line of ours do not exclude each other.
pub(super) fn held_by_foreign_lock(name: &Name, entries: &[Entry]) -> Option<Error> {
    let foreign = format!("{}/.lock", name.key());
    entries.iter().find(|entry| entry.key == foreign && entry.session.is_some()).map(|_| {
        let message = "held by `consul lock` or another client of that layout: use ?layout=consul-lock to share it";
        Error::new(ErrorKind::Mismatch, message).named(name.shown())
    })
}

/// What is known of a line, and as of which index.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub(super) index: u64,
    pub(super) picture: Arc<Picture>,
}

/// The lines that somebody waits for.
#[derive(Default)]
pub(super) struct Lines(Mutex<HashMap<Arc<str>, Arc<watch::Sender<Known>>>>);

impl Lines {
    fn lines(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<watch::Sender<Known>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line was read by the way.
    pub(super) fn learn(&self, name: &Name, known: &Known) {
        if let Some(line) = self.lines().get(name.key()) {
            tell(line, known);
        }
    }
}

fn tell(line: &watch::Sender<Known>, known: &Known) {
    line.send_if_modified(|old| {
        let newer = known.index > old.index;
        if newer {
            *old = known.clone();
        }
        newer
    });
}

impl Shared {
    /// What becomes known of a line from now on, beginning with `known`. One query stays open for as long as somebody
    /// listens.
    pub(super) fn follow(self: &Arc<Self>, name: &Name, known: Known) -> watch::Receiver<Known> {
        let mut lines = self.lines.lines();
        if let Some(line) = lines.get(name.key()) {
            tell(line, &known);
            return line.subscribe();
        }
        let index = known.index;
        let line = Arc::new(watch::Sender::new(known));
        let heard = line.subscribe();
        lines.insert(name.shared_key(), line.clone());
        drop(lines);
        let task = query(Arc::downgrade(self), name.clone(), line, index);
        match self.host.get() {
            Some(host) => host.spawn(task),
            None => drop(tokio::spawn(task)),
        }
        heard
    }
}

/// Asks again and again what has changed, until nobody listens any more. Runs on the library thread.
async fn query(shared: Weak<Shared>, name: Name, line: Arc<watch::Sender<Known>>, mut index: u64) {
    let mut failed = 0;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        {
            let mut lines = shared.lines.lines();
            if line.receiver_count() == 0 {
                lines.remove(name.key());
                return;
            }
        }
        let prefix = prefix(&name);
        // Index 0 is answered at once: after a failure nobody knows what was missed.
        let asked = pin!(shared.agent.tree(&prefix, Some((index, WAIT))));
        let answer = match select(asked, pin!(line.closed())).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => continue,
        };
        match answer.and_then(|(entries, new)| Ok((picture(&name, &entries)?, entries, new))) {
            Ok((picture, entries, new)) => {
                failed = 0;
                // An index that goes back belongs to a server that was restored: begin anew.
                if new < index {
                    line.send_modify(|known| known.index = 0);
                    index = 0;
                } else {
                    index = new;
                }
                shared.drop_strangers(&entries);
                // An enter may have read the line since: what is older than that says nothing.
                tell(&line, &Known { index: new, picture: Arc::new(picture) });
            }
            Err(_) => {
                index = 0;
                failed += 1;
                let pause = shared.clock.now().after(backoff(failed));
                select(pin!(shared.clock.sleep_until(pause)), pin!(line.closed())).await;
            }
        }
    }
}
