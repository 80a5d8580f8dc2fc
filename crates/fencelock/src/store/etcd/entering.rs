//! Getting into a line, and raising a ticket that is alone in it: what is decided from a line that may change meanwhile is done
//! only if it has not.

use super::leases::Session;
use super::rpc::{KeyValue, TxnRequest};
use super::{Ours, Shared, keys, txn};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::store::note::{Picture, Record, Standing};
use crate::store::{Enter, Entered, Place, TicketId, Upgraded};
use prost::bytes::Bytes;
use std::sync::Arc;

/// How often a decision is made again because the line has changed, before that is an error.
const MOST_ROUNDS: usize = 20;

/// Tickets that are being entered. They are known before anything is sent, so that nobody takes them for strays; what becomes of
/// that is said at the end, or, if the caller goes away, nothing is known.
struct Entering<'a> {
    shared: &'a Arc<Shared>,
    /// Those that were not known before.
    new: Vec<TicketId>,
    sessions: Vec<Arc<Session>>,
    /// Whether something was sent that has not been answered.
    unanswered: bool,
}

impl Entering<'_> {
    /// Nothing of it is in a line.
    fn forget(&mut self) {
        let mut tickets = self.shared.tickets();
        self.new.drain(..).for_each(|id| drop(tickets.remove(&id)));
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if self.unanswered {
            self.sessions.iter().for_each(|session| session.suspect());
        }
    }
}

fn restless() -> Error {
    Error::new(ErrorKind::Unavailable, "the line changes faster than it can be read")
}

/// One ticket of a batch on its way.
struct Coming<'a> {
    ticket: &'a Enter,
    session: Arc<Session>,
    key: Bytes,
    range: txn::Range,
    /// It was there before.
    there: bool,
}

impl Shared {
    pub(super) async fn enter(self: &Arc<Self>, batch: &[Enter]) -> Result<Vec<Entered>> {
        let mut fault = None;
        // A session may end at any time: then nothing was done, and another one is opened.
        for _ in 0..3 {
            match self.try_enter(batch).await {
                Ok(entered) => return Ok(entered),
                Err((error, None)) => return Err(error),
                Err((error, Some(sessions))) => {
                    for session in sessions {
                        // Which one it was is not said.
                        self.keep_alive(&session).await?;
                    }
                    fault = Some(error);
                }
            }
        }
        Err(fault.unwrap_or_else(restless))
    }

    /// An error with sessions means that one of them has ended, and that nothing was done.
    async fn try_enter(self: &Arc<Self>, batch: &[Enter]) -> Result<Vec<Entered>, (Error, Option<Vec<Arc<Session>>>)> {
        let called = self.clock.now();
        let plain = |error: Error| (error, None);
        let mut entering = Entering { shared: self, new: Vec::new(), sessions: Vec::new(), unanswered: false };
        let mut coming = Vec::with_capacity(batch.len());
        for ticket in batch {
            let id = ticket.place.id;
            let known = self.tickets().get(&id).filter(|ours| !ours.session.has_ended()).cloned();
            let (session, key) = match known {
                Some(ours) => (ours.session, ours.key),
                None => {
                    let record = Record::of(ticket).map_err(plain)?;
                    let session = match self.session(ticket.lease).await {
                        Ok(session) => session,
                        Err(error) => {
                            entering.forget();
                            return Err(plain(error));
                        }
                    };
                    let key = keys::of(&ticket.place.name, session.lease, id);
                    let ours = Ours { session: session.clone(), key: key.clone(), record, made: None };
                    self.tickets().insert(id, ours);
                    entering.new.push(id);
                    (session, key)
                }
            };
            entering.sessions.push(session.clone());
            coming.push(Coming { ticket, session, key, range: keys::line(&ticket.place.name), there: false });
        }
        // What a ticket that does not queue must find: at first, nobody at all.
        let mut seen = None;
        for _ in 0..MOST_ROUNDS {
            entering.unanswered = true;
            let answer = match self.ask(self.entrance(&coming, seen)).await {
                Ok(answer) => answer,
                Err(fault) => {
                    if fault.error.effect() == Effect::None {
                        entering.unanswered = false;
                        entering.forget();
                    }
                    let sessions = fault.no_lease.then(|| entering.sessions.clone());
                    return Err((fault.error, sessions));
                }
            };
            entering.unanswered = false;
            let revision = txn::revision(&answer).map_err(plain)?;
            let put = answer.succeeded;
            let found = txn::reads(answer);
            if found.len() != coming.len() {
                return Err(plain(txn::unreadable()));
            }
            let lines = coming.iter().zip(&found).map(|(one, kvs)| keys::picture(one.ticket.place.name.key(), kvs));
            let lines: Vec<Picture> = match lines.collect::<Result<_>>() {
                Ok(lines) => lines,
                Err(error) => return Err(plain(self.take_back(&mut entering, &coming, put, error).await)),
            };
            self.delete_strays(&found.iter().flatten().map(made).collect::<Vec<_>>());
            for (one, line) in coming.iter_mut().zip(&lines) {
                one.there = line.get(one.ticket.place.id).is_some();
            }
            if let Some(error) = mismatch(&coming, &lines) {
                return Err(plain(self.take_back(&mut entering, &coming, put, error).await));
            }
            if coming.iter().all(|one| one.there) {
                return Ok(self.entered(&coming, &lines, called));
            }
            let full: Vec<bool> = coming.iter().zip(&lines).map(|(one, line)| is_full(one, line)).collect();
            if full.contains(&true) {
                entering.forget();
                let holder = |(full, line): (bool, &Picture)| if full { line.head() } else { None };
                return Ok(full.into_iter().zip(&lines).map(|pair| Entered::Full { holder: holder(pair) }).collect());
            }
            seen = Some(revision);
        }
        entering.forget();
        Err(plain(restless()))
    }

    /// Puts every ticket that is not there, if the lines of those that do not queue are as they were when it was decided.
    fn entrance(&self, coming: &[Coming<'_>], seen: Option<i64>) -> TxnRequest {
        let mut question = TxnRequest::default();
        for one in coming.iter().filter(|one| !one.there) {
            question.compare.push(txn::made_in(&one.key, 0));
            if !one.ticket.queue {
                question.compare.push(match seen {
                    None => txn::empty(&one.range),
                    Some(revision) => txn::nothing_after(&one.range, revision),
                });
            }
            let value = self.tickets().get(&one.ticket.place.id).map(|ours| ours.record.to_bytes());
            question.success.push(txn::put(&one.key, value.unwrap_or_default(), one.session.lease));
        }
        question.success.extend(coming.iter().map(|one| txn::read(&one.range)));
        question.failure.extend(coming.iter().map(|one| txn::read(&one.range)));
        question
    }

    /// Takes back what was put; the error that made it necessary, or the one that came then.
    async fn take_back(
        self: &Arc<Self>,
        entering: &mut Entering<'_>,
        coming: &[Coming<'_>],
        put: bool,
        error: Error,
    ) -> Error {
        if put {
            let new = coming.iter().filter(|one| entering.new.contains(&one.ticket.place.id));
            let success = new.map(|one| txn::delete(&one.key)).collect();
            entering.unanswered = true;
            if let Err(fault) = self.ask(TxnRequest { success, ..TxnRequest::default() }).await {
                return fault.error.effect_unknown();
            }
            entering.unanswered = false;
        }
        entering.forget();
        error
    }

    fn entered(&self, coming: &[Coming<'_>], lines: &[Picture], called: crate::clock::Moment) -> Vec<Entered> {
        let mut tickets = self.tickets();
        let answer = |(one, line): (&Coming<'_>, &Picture)| {
            let id = one.ticket.place.id;
            let token = line.get(id).and_then(|ticket| ticket.token).unwrap_or(0);
            if let Some(ours) = tickets.get_mut(&id) {
                ours.made = i64::try_from(token).ok();
            }
            let lease = one.session.remaining(called);
            match line.standing(id) {
                Standing::Inside => Entered::Admitted { token, lease },
                _ => Entered::Queued { token: Some(token), lease, ahead: line.head() },
            }
        };
        coming.iter().zip(lines).map(answer).collect()
    }

    /// The line must hold nobody else. One round trip where no other name lies below this one; else two.
    pub(super) async fn upgrade(self: &Arc<Self>, place: &Place, new: TicketId) -> Result<Upgraded> {
        let Some(old) = self.tickets().get(&place.id).cloned() else { return self.upgraded(place, new).await };
        let Some(made) = old.made else { return Ok(Upgraded::Gone) };
        let mut ours = Ours { key: keys::of(&place.name, old.session.lease, new), made: None, ..old.clone() };
        ours.record.raise();
        self.tickets().insert(new, ours.clone());
        let mut entering =
            Entering { shared: self, new: vec![new], sessions: vec![old.session.clone()], unanswered: false };
        let range = keys::line(&place.name);
        let mut seen = None;
        for _ in 0..MOST_ROUNDS {
            let mut compare = vec![txn::made_in(&old.key, made), txn::made_in(&ours.key, 0)];
            match seen {
                None => {
                    let behind: Bytes = [&old.key[..], &[0]].concat().into();
                    compare.push(txn::empty(&(range.0.clone(), old.key.clone())));
                    compare.push(txn::empty(&(behind, range.1.clone())));
                }
                Some(revision) => compare.push(txn::nothing_after(&range, revision)),
            }
            let put = txn::put(&ours.key, ours.record.to_bytes(), old.session.lease);
            let question =
                TxnRequest { compare, success: vec![txn::delete(&old.key), put], failure: vec![txn::read(&range)] };
            entering.unanswered = true;
            let answer = match self.ask(question).await {
                Ok(answer) => answer,
                Err(fault) if fault.no_lease => {
                    entering.unanswered = false;
                    entering.forget();
                    old.session.end();
                    return Ok(Upgraded::Gone);
                }
                Err(fault) => return Err(fault.into()),
            };
            entering.unanswered = false;
            let revision = txn::revision(&answer)?;
            if answer.succeeded {
                return Ok(self.raised(place, new, revision));
            }
            let found = txn::reads(answer).pop().ok_or_else(txn::unreadable)?;
            let line = keys::picture(place.name.key(), &found)?;
            if let Some(token) = line.get(new).and_then(|ticket| ticket.token) {
                return Ok(self.raised(place, new, i64::try_from(token).unwrap_or(0)));
            }
            if line.get(place.id).is_none() {
                entering.forget();
                return Ok(Upgraded::Gone);
            }
            if let Some(other) = line.other(&[place.id]) {
                entering.forget();
                return Ok(Upgraded::Held { by: Some(other) });
            }
            seen = Some(revision);
        }
        entering.forget();
        Err(restless())
    }

    fn raised(&self, place: &Place, new: TicketId, made: i64) -> Upgraded {
        let mut tickets = self.tickets();
        tickets.remove(&place.id);
        if let Some(ours) = tickets.get_mut(&new) {
            ours.made = Some(made);
        }
        Upgraded::Admitted { token: u64::try_from(made).unwrap_or(0) }
    }

    /// The old ticket is not known here: the new one may be there already.
    async fn upgraded(self: &Arc<Self>, place: &Place, new: TicketId) -> Result<Upgraded> {
        let there = self.read_line(&place.name).await?.get(new).and_then(|ticket| ticket.token);
        Ok(there.map_or(Upgraded::Gone, |token| Upgraded::Admitted { token }))
    }
}

fn made(kv: &KeyValue) -> (Bytes, i64) {
    (kv.key.clone(), kv.create_revision)
}

/// The line of one of them has another capacity.
fn mismatch(coming: &[Coming<'_>], lines: &[Picture]) -> Option<Error> {
    coming.iter().zip(lines).find_map(|(one, line)| {
        let ticket = one.ticket;
        let standing = match one.there {
            true => line.standing(ticket.place.id),
            false => line.newcomer(ticket.weight, ticket.capacity),
        };
        match standing {
            Standing::Mismatch { there } => Some(Error::mismatch(&ticket.place.name.shown(), ticket.capacity, there)),
            _ => None,
        }
    })
}

/// There is no room for it, and it is not to queue.
fn is_full(one: &Coming<'_>, line: &Picture) -> bool {
    let ticket = one.ticket;
    !one.there && !ticket.queue && line.newcomer(ticket.weight, ticket.capacity) != Standing::Inside
}
