//! How tickets enter: what can be said before the server is asked, one call for those of different lines, and what becomes of it.

use super::actor::{Actor, Ticket};
use super::driver::{Ask, Driver, Taken, is_shared};
use super::telling::{AGAIN, Look, Row};
use super::turns::Turn;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::{Enter, Entered, Mode, Seen, waiting_lease};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// As many tickets as one client keeps. The server's memory for locks is small and shared with everybody.
const MOST: usize = 2000;
/// An enter, and who asked for it.
pub(super) type Entering = (Enter, oneshot::Sender<Result<Entered>>);
/// An enter that the server is asked for.
pub(super) struct Asked {
    pub(super) enter: Enter,
    pub(super) answer: oneshot::Sender<Result<Entered>>,
    /// When to look again who is in the way, if that was not to be seen.
    pub(super) pause: Duration,
    attempt: bool,
    /// Whether others of this client are in the line.
    among: bool,
    ahead: Option<Seen>,
}

/// What can be said of an enter before the server is asked.
enum Before {
    Known(Entered),
    Ask { attempt: bool, among: bool, ahead: Option<Seen> },
}

/// Somebody is there: then one waits, or not.
pub(super) fn not_yet(enter: &Enter, ahead: Option<Seen>) -> Entered {
    if enter.queue {
        Entered::Queued { token: None, lease: waiting_lease(enter.lease), ahead }
    } else {
        Entered::Full { holder: ahead }
    }
}

/// Two names with one key.
pub(super) fn collision(name: &Name, other: &str) -> Error {
    let message = format!("its key is that of {}, which is in use: use mode=rows", crate::name::printable(other));
    Error::new(ErrorKind::Unsupported, message).named(name.shown())
}

/// One of each line at a time: the next one has to see what became of the one before.
pub(super) fn apart(enters: Vec<Entering>) -> Vec<Vec<Entering>> {
    let mut rounds: Vec<Vec<Entering>> = Vec::new();
    for one in enters {
        let same = |other: &Entering| other.0.place.name == one.0.place.name;
        match rounds.iter_mut().find(|round| !round.iter().any(same)) {
            Some(round) => round.push(one),
            None => rounds.push(vec![one]),
        }
    }
    rounds
}

impl<D: Driver> Actor<D> {
    /// Enters tickets of different lines, in one call; in none, if all of them wait for one of ours and the table is behind anyway.
    pub(super) async fn enter_all(&mut self, enters: Vec<Entering>) {
        let mut asked: Vec<Asked> = Vec::with_capacity(enters.len());
        for (enter, answer) in enters {
            match self.before(&enter, asked.len()).await {
                Ok(Before::Known(entered)) => drop(answer.send(Ok(entered))),
                Ok(Before::Ask { attempt, among, ahead }) => {
                    asked.push(Asked { enter, answer, pause: AGAIN, attempt, among, ahead });
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        }
        if asked.is_empty() {
            return;
        }
        let asks: Vec<Ask<'_>> =
            asked.iter().map(|one| Ask { enter: &one.enter, attempt: one.attempt, stay: one.enter.queue }).collect();
        let taken = if self.driver.is_behind() && !asks.iter().any(|ask| ask.attempt) {
            Ok(asks.iter().map(|_| Taken::Not).collect())
        } else {
            // Not where there is no call: then the server has not been told.
            let ttl = self.ttl(asked.iter().map(|one| one.enter.lease).max().unwrap_or_default());
            self.driver.take(ttl, &asks).await.map_err(|error| self.failed(error))
        };
        let mut taken = match taken {
            Ok(taken) => taken.into_iter(),
            Err(error) => {
                asked.into_iter().for_each(|one| drop(one.answer.send(Err(error.again()))));
                return;
            }
        };
        let mut unseen = Vec::new();
        for one in asked {
            match self.after(&one.enter, taken.next()) {
                // Whoever got in is told before anything else can go wrong.
                Ok(Some(token)) => drop(one.answer.send(Ok(Entered::Admitted { token, lease: one.enter.lease }))),
                // Behind others of ours who wait, it was asked for them.
                Ok(None) if one.ahead.is_some() || (one.among && one.enter.queue) => {
                    drop(one.answer.send(Ok(not_yet(&one.enter, one.ahead))));
                }
                Ok(None) => unseen.push(one),
                Err(error) => drop(one.answer.send(Err(error))),
            }
        }
        // Somebody of another client is there: who?
        for one in unseen {
            self.see(Look::Holder(Box::new(one)), self.clock.now()).await;
        }
    }

    /// What can be said of an enter before the server is asked, together with `others`.
    async fn before(&mut self, enter: &Enter, others: usize) -> Result<Before> {
        if let Some(ticket) = self.ticket(&enter.place) {
            ticket.enter.lease = ticket.enter.lease.max(enter.lease);
            let (number, lease) = (ticket.number, ticket.enter.lease);
            let ttl = self.ttl(lease);
            self.driver.touch(ttl).await.map_err(|error| self.failed(error))?;
            return Ok(Before::Known(match number {
                Some(token) => Entered::Admitted { token, lease: enter.lease },
                None => Entered::Queued { token: None, lease: waiting_lease(enter.lease), ahead: None },
            }));
        }
        self.connected().await?;
        if self.shared.tickets.load(Ordering::Relaxed) + others >= MOST {
            let message = format!("a client keeps {MOST} locks of connections at most, and has them; use mode=rows");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let name = &enter.place.name;
        let here = self.lines.get(name.key()).map_or(&[][..], Vec::as_slice);
        if let Some(other) = here.iter().find(|other| other.enter.capacity != enter.capacity) {
            return Err(Error::mismatch(&name.shown(), enter.capacity, other.enter.capacity));
        }
        // Ours are kept apart here: the server would let us in twice.
        let excludes = |other: &Ticket| other.number.is_none() || !is_shared(enter) || !is_shared(&other.enter);
        let blocked = here.iter().any(excludes);
        let ahead = here.iter().find(|other| other.number.is_some()).map(|other| self.seen(other));
        if blocked && !enter.queue {
            return Ok(Before::Known(Entered::Full { holder: ahead }));
        }
        Ok(Before::Ask { attempt: !blocked, among: !here.is_empty(), ahead })
    }

    /// Writes down what became of an enter; its number, if it is inside.
    fn after(&mut self, enter: &Enter, taken: Option<Taken>) -> Result<Option<u64>> {
        let name = &enter.place.name;
        let number = match taken {
            Some(Taken::Got(number)) => Some(number),
            Some(Taken::Not) => None,
            Some(Taken::Collision(other)) => return Err(collision(name, &other)),
            None => return Err(Error::new(ErrorKind::Broken, "the database gave no answer").effect_unknown()),
        };
        if number.is_some() || enter.queue {
            let now = self.clock.now();
            let admitted = number.map(|_| now);
            let (enter, row, turn) = (enter.clone(), Row::Missing, Turn::begun(now));
            let ticket = Ticket { enter, number, entered: now, admitted, row, changed: now, turn };
            self.lines.entry(name.key().to_string()).or_default().push(ticket);
            self.shared.tickets.fetch_add(1, Ordering::Relaxed);
            self.falls_behind();
            self.shared.hints.tell(name);
            if number.is_none() {
                self.stirred = now;
            }
        }
        Ok(number)
    }

    fn seen(&self, ticket: &Ticket) -> Seen {
        let (enter, now) = (&ticket.enter, self.clock.now());
        Seen {
            token: ticket.number,
            mode: Mode::of(enter.weight, enter.capacity),
            weight: enter.weight,
            host: enter.note.host.to_string(),
            pid: enter.note.pid,
            identity: enter.note.identity.to_string(),
            owner: enter.owner.to_string(),
            reason: enter.note.reason.as_deref().map(Into::into),
            entered: Some(now.since(ticket.entered)),
            admitted: ticket.admitted.map(|admitted| now.since(admitted)),
            expires_in: None,
            value: enter.note.value.as_deref().map(Into::into),
        }
    }
}
