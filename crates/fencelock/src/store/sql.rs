//! What the SQL stores share: who waits in this process ([`Ears`]), when to look for them ([`Bell`]), and the news that a
//! verb brings back.

pub(crate) mod face;
pub(crate) mod session;

use super::{Name, Place, TicketId, Waited};
use crate::error::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Whether the layout that was found is the one that this version knows.
pub(crate) fn judge_layout(found: Option<i64>, known: i64, address: &str) -> Result<()> {
    let broken = |message: String| Err(Error::new(ErrorKind::Broken, message));
    match found {
        Some(found) if found == known => Ok(()),
        None => broken(format!(
            "{address} has no tables of ours: run `fencelock migrate`, or leave out migrate=off to have them made"
        )),
        Some(found) if found < known => broken(format!(
            "the tables at {address} have layout {found}, which is older than the layout {known} of this version: run `fencelock migrate`"
        )),
        Some(found) => broken(format!(
            "the tables at {address} have layout {found}, which is newer than the layout {known} of this version: use a newer fencelock"
        )),
    }
}

/// The tables could not be made.
pub(crate) fn not_made(error: Error) -> Error {
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    let cure = "have somebody who may run `fencelock migrate`";
    let message = format!("the tables cannot be made by this user: {}; {cure}", error.message());
    Error::new(ErrorKind::Denied, message)
}

/// A line of news, as the database writes it.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "MySQL pushes no news"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// `+<id> <number>`: this ticket came in.
    In(TicketId, u64),
    /// `-<id>`: this ticket was taken out by somebody else, or has lapsed.
    Out(TicketId),
    /// `~<key>[ <long name>]`: this line has changed.
    Changed(Name),
}

impl News {
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "MySQL pushes no news"))]
    /// One line; `None` for what this version does not understand.
    pub(crate) fn parse(line: &str) -> Option<News> {
        let rest = line.get(1..)?;
        match line.as_bytes()[0] {
            b'+' => {
                let (id, number) = rest.split_once(' ')?;
                Some(News::In(ticket_id(id)?, number.parse().ok()?))
            }
            b'-' => Some(News::Out(ticket_id(rest)?)),
            b'~' => {
                let (key, long) = rest.split_once(' ').map_or((rest, None), |(key, long)| (key, Some(long)));
                Some(News::Changed(Name::from_key(key, long)))
            }
            _ => None,
        }
    }
}

/// An id from its 32 hex digits.
pub(crate) fn ticket_id(hex: &str) -> Option<TicketId> {
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(TicketId::from_bytes(bytes))
}

/// Microseconds for the database. Leases end long before they run out.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A duration of the database; what is negative is over.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Text that a database takes: none of them keeps a NUL everywhere.
pub(crate) fn text(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// 16 hex digits that nobody else has.
pub(crate) fn client_name() -> String {
    super::random_bits()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tickets that somebody in this process waits for.
#[derive(Debug, Default)]
pub(crate) struct Ears(Mutex<HashMap<TicketId, Vec<Arc<Ear>>>>);

/// One `wait`.
#[derive(Debug)]
struct Ear {
    place: Place,
    heard: Mutex<(Option<Waited>, Option<Waker>)>,
}

impl Ears {
    /// From now on what is told of this ticket is heard.
    pub(crate) fn listen(&self, place: &Place) -> Listening<'_> {
        let ear = Arc::new(Ear { place: place.clone(), heard: Mutex::default() });
        lock(&self.0).entry(place.id).or_default().push(ear.clone());
        Listening { ears: self, ear }
    }

    /// Tells whoever waits for this ticket.
    pub(crate) fn tell(&self, id: TicketId, found: &Waited) {
        for ear in lock(&self.0).get(&id).into_iter().flatten() {
            let mut heard = lock(&ear.heard);
            heard.0 = Some(found.clone());
            if let Some(waker) = heard.1.take() {
                waker.wake();
            }
        }
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// What is still waited for, in the order of names, as verbs want it.
    pub(crate) fn places(&self) -> Vec<Place> {
        let ears = lock(&self.0);
        let waiting = |ear: &&Arc<Ear>| lock(&ear.heard).0.is_none();
        let mut places: Vec<Place> =
            ears.values().filter_map(|all| all.iter().find(waiting)).map(|ear| ear.place.clone()).collect();
        places.sort_by(|a, b| a.name.key().cmp(b.name.key()));
        places
    }
}

/// One wait, registered until it is dropped.
pub(crate) struct Listening<'a> {
    ears: &'a Ears,
    ear: Arc<Ear>,
}

impl Listening<'_> {
    /// Ready when something was told.
    pub(crate) async fn hear(&self) -> Waited {
        poll_fn(|cx| {
            let mut heard = lock(&self.ear.heard);
            match heard.0.clone() {
                Some(found) => Poll::Ready(found),
                None => {
                    heard.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut ears = lock(&self.ears.0);
        if let Some(all) = ears.get_mut(&self.ear.place.id) {
            all.retain(|ear| !Arc::ptr_eq(ear, &self.ear));
            if all.is_empty() {
                ears.remove(&self.ear.place.id);
            }
        }
    }
}

/// Wakes one task, which need not sleep yet.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Bell {
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }

    /// Ready when the bell was rung since the last time.
    pub(crate) async fn rung(&self) {
        poll_fn(|cx| {
            *lock(&self.waker) = Some(cx.waker().clone());
            if self.rung.swap(false, Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_understood_or_left_alone() {
        let id = TicketId::from_bytes([0xAB; 16]);
        assert_eq!(News::parse(&format!("+{id} 7")), Some(News::In(id, 7)));
        assert_eq!(News::parse(&format!("-{id}")), Some(News::Out(id)));
        assert_eq!(News::parse("~a/b"), Some(News::Changed(Name::from_key("a/b", None))));
        assert_eq!(News::parse("~%~00 very long"), Some(News::Changed(Name::from_key("%~00", Some("very long")))));
        for strange in ["", "+", "+12 3", "-", "x", "+ü", "-ü1234567890123456789012345678901"] {
            assert_eq!(News::parse(strange), None, "{strange}");
        }
    }
}
