//! Getting into a line, and raising a ticket that is alone in it: what is decided from a line that may change meanwhile is done
//! only if it has not.

use super::fault::Fault;
use super::leases::{self, Session};
use super::rpc::{KeyValue, RequestOp, TxnRequest, TxnResponse};
use super::{Mine, Ours, Shared, keys, mine, txn};
use crate::clock::Moment;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::store::note::{Picture, Record, Standing};
use crate::store::{BoxFuture, Enter, Entered, Place, Seen, TicketId, Upgraded};
use prost::bytes::Bytes;
use std::sync::Arc;
use tokio::sync::watch;

/// How often a decision is made again because the line has changed, before that is an error.
const MOST_ROUNDS: usize = 20;

/// Tickets that are being entered. They are known before anything is sent, so that nobody takes them for strays. If the caller
/// goes away, what is under way is waited for in its place: a ticket that nobody wants any more is taken out when it is there.
struct Entering<'a> {
    shared: &'a Arc<Shared>,
    /// Those that were not known before, and their keys.
    new: Vec<(Mine, Bytes)>,
    sessions: Vec<Arc<Session>>,
    under_way: Option<BoxFuture<'static, Result<TxnResponse, Fault>>>,
}

impl Entering<'_> {
    /// Nothing of it is in a line.
    fn forget(&mut self) {
        let mut tickets = self.shared.tickets();
        self.new.drain(..).for_each(|(id, _)| drop(tickets.remove(&id)));
    }

    /// These were not there, whatever was known of them.
    fn has_put<'b>(&mut self, put: impl Iterator<Item = &'b Coming<'b>>) {
        for one in put {
            let id = mine(&one.ticket.place);
            if !self.new.iter().any(|(new, _)| *new == id) {
                self.new.push((id, one.key.clone()));
            }
        }
    }

    /// One round trip. Where nothing was done, nothing of the tickets is left.
    async fn send(&mut self, question: TxnRequest) -> Result<TxnResponse, Refused> {
        let shared = self.shared.clone();
        self.answered(Box::pin(async move { shared.ask(question).await })).await
    }

    /// The same for an enter that has to wait in its line anyhow: none where a leave of that line takes it along.
    async fn send_along(&mut self, one: &Coming<'_>, question: TxnRequest) -> Result<TxnResponse, Refused> {
        let parking = match self.shared.hub.park(&one.ticket.place.name, &one.key, question) {
            Ok(parking) => parking,
            Err(question) => return self.send(question).await,
        };
        let shared = self.shared.clone();
        let taken_or_sent = async move {
            match parking.answer().await {
                Ok(answer) => answer,
                Err(question) => shared.ask(question).await,
            }
        };
        self.answered(Box::pin(taken_or_sent)).await
    }

    async fn answered(
        &mut self,
        under_way: BoxFuture<'static, Result<TxnResponse, Fault>>,
    ) -> Result<TxnResponse, Refused> {
        let answer = self.under_way.insert(under_way).await;
        self.under_way = None;
        answer.map_err(|fault| {
            if fault.error.effect() == Effect::None {
                self.forget();
            } else {
                self.sessions.iter().for_each(|session| session.suspect());
            }
            (fault.error, fault.no_lease.then(|| self.sessions.clone()))
        })
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        let Some(under_way) = self.under_way.take() else { return };
        let (landing, landed) = watch::channel(false);
        {
            let mut tickets = self.shared.tickets();
            for (id, _) in &self.new {
                if let Some(ours) = tickets.get_mut(id) {
                    ours.under_way = Some(landed.clone());
                }
            }
        }
        let (shared, keys) = (self.shared.clone(), self.new.drain(..).map(|(_, key)| key).collect::<Vec<_>>());
        let sessions = std::mem::take(&mut self.sessions);
        self.shared.host(|host| {
            host.spawn(async move {
                let answer = under_way.await;
                landing.send_replace(true);
                match answer {
                    // Those that were left meanwhile are strays; the others will be left.
                    Ok(answer) if answer.succeeded => {
                        let made = txn::revision(&answer).unwrap_or(0);
                        shared.delete_strays(keys.iter().map(|key| (key, made)));
                    }
                    Ok(_) => {}
                    Err(_) => sessions.iter().for_each(|session| session.suspect()),
                }
            });
        });
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
    /// Its number, where it is there.
    made: Option<i64>,
}

/// A line as far as it was read.
struct Found {
    line: Picture,
    kvs: Vec<KeyValue>,
    /// There are more, with larger numbers.
    more: bool,
}

impl Coming<'_> {
    /// How it stands, or would stand if it came now; nothing where that cannot be told from what was read.
    fn standing(&self, found: &Found) -> Option<Standing> {
        let (id, weight, capacity) = (self.ticket.place.id, self.ticket.weight, self.ticket.capacity);
        if !found.more && found.line.get(id).is_some() {
            return Some(found.line.standing(id));
        }
        // Everybody else came before it, and those that were not read can only be in its way.
        Some(found.line.behind(weight, capacity, Some(id)))
            .filter(|standing| !found.more || *standing != Standing::Inside)
    }
}

/// What went wrong; with sessions: one of them has ended, and nothing was done.
type Refused = (Error, Option<Vec<Arc<Session>>>);

fn plain(error: Error) -> Refused {
    (error, None)
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

    async fn try_enter(self: &Arc<Self>, batch: &[Enter]) -> Result<Vec<Entered>, Refused> {
        let called = self.clock.now();
        let mut entering = Entering { shared: self, new: Vec::new(), sessions: Vec::new(), under_way: None };
        let mut coming = Vec::with_capacity(batch.len());
        for ticket in batch {
            match self.coming(ticket, &mut entering).await {
                Ok(one) => coming.push(one),
                Err(error) => {
                    entering.forget();
                    return Err(plain(error));
                }
            }
        }
        if let [one] = &coming[..]
            && one.ticket.queue
            && one.made.is_none()
            && let Some(blocker) = self.hub.blocker(&one.ticket.place.name, one.ticket.weight, one.ticket.capacity)
            && let Some(entered) = self.queue_behind(one, blocker, &mut entering, called).await?
        {
            return Ok(vec![entered]);
        }
        // What a ticket that does not queue must find: at first, nobody at all.
        let mut seen = None;
        let mut whole = false;
        for _ in 0..MOST_ROUNDS {
            let answer = entering.send(self.entrance(&coming, seen, whole)).await?;
            let revision = txn::revision(&answer).map_err(plain)?;
            let put = answer.succeeded;
            let found = txn::reads(answer);
            if found.len() != coming.len() {
                return Err(plain(txn::unreadable()));
            }
            self.delete_strays(found.iter().flat_map(|found| &found.kvs).map(|kv| (&kv.key, kv.create_revision)));
            let lines = coming.iter().zip(found).map(|(one, found)| {
                let line = keys::picture(one.ticket.place.name.key(), &found.kvs)?;
                Ok(Found { line, kvs: found.kvs, more: found.more })
            });
            let lines: Vec<Found> = match lines.collect::<Result<_>>() {
                Ok(lines) => lines,
                Err(error) => return Err(plain(self.take_back(&mut entering, put, error).await)),
            };
            if put {
                entering.has_put(coming.iter().filter(|one| one.made.is_none()));
            }
            for (one, found) in coming.iter_mut().zip(&lines) {
                let there = found.kvs.iter().find(|kv| kv.key == one.key).map(|kv| kv.create_revision);
                one.made = one.made.or(put.then_some(revision)).or(there);
            }
            if let Some(error) = mismatch(&coming, &lines) {
                return Err(plain(self.take_back(&mut entering, put, error).await));
            }
            if self.adopt_elders(&mut coming, &lines, put).await.map_err(plain)? {
                continue;
            }
            let standings: Vec<Option<Standing>> =
                coming.iter().zip(&lines).map(|(one, found)| one.standing(found)).collect();
            if coming.iter().all(|one| one.made.is_some()) {
                return self.entered(&coming, &lines, &standings, called).await.map_err(plain);
            }
            let is_full = |(one, standing): (&Coming<'_>, &Option<Standing>)| {
                one.made.is_none() && !one.ticket.queue && *standing == Some(Standing::Waiting)
            };
            let full: Vec<bool> = coming.iter().zip(&standings).map(is_full).collect();
            if full.contains(&true) {
                entering.forget();
                let holder = |(full, found): (bool, &Found)| if full { found.line.head() } else { None };
                return Ok(full.into_iter().zip(&lines).map(|pair| Entered::Full { holder: holder(pair) }).collect());
            }
            // Decided from the whole line only.
            (whole, seen) =
                (true, whole.then_some(revision).or(lines.iter().all(|found| !found.more).then_some(revision)));
        }
        entering.forget();
        Err(plain(restless()))
    }

    /// One ticket, made known. A round trip only where its session has to be opened or kept alive first.
    async fn coming<'a>(self: &Arc<Self>, ticket: &'a Enter, entering: &mut Entering<'_>) -> Result<Coming<'a>> {
        let id = mine(&ticket.place);
        let known = self.tickets().get(&id).filter(|ours| !ours.session.has_ended()).cloned();
        let (session, key) = match known {
            Some(ours) => (ours.session, ours.key),
            None => {
                let record = Record::of(ticket)?;
                let session = self.session(ticket.lease).await?;
                let key = keys::of(&ticket.place.name, session.lease, ticket.place.id);
                let ours = Ours { session: session.clone(), key: key.clone(), record, made: None, under_way: None };
                self.tickets().insert(id.clone(), ours);
                entering.new.push((id, key.clone()));
                (session, key)
            }
        };
        entering.sessions.push(session.clone());
        Ok(Coming { ticket, session, key, range: keys::line(&ticket.place.name), made: None })
    }

    /// Joins a line that is followed here, if the ticket is still there that keeps this one out: there is no need to read it.
    /// Nothing where that has changed, and nothing was done.
    async fn queue_behind(
        self: &Arc<Self>,
        one: &Coming<'_>,
        (blocker, made): (Bytes, i64),
        entering: &mut Entering<'_>,
        called: Moment,
    ) -> Result<Option<Entered>, Refused> {
        let question = TxnRequest {
            compare: vec![txn::made_in(&one.key, 0), txn::made_in(&blocker, made)],
            success: vec![self.put(one)],
            failure: Vec::new(),
        };
        let answer = entering.send_along(one, question).await?;
        if !answer.succeeded {
            return Ok(None);
        }
        let made = txn::revision(&answer).map_err(plain)?;
        Ok(Some(self.has_entered(one, made, Standing::Waiting, None, called)))
    }

    fn put(&self, one: &Coming<'_>) -> RequestOp {
        // Made anew it is what is asked for now, whatever became of an earlier ticket of this id.
        let value = Record::of(one.ticket).map(|record| record.to_bytes());
        txn::put(&one.key, value.unwrap_or_default(), one.session.lease)
    }

    /// Puts every ticket that is not there, if the lines of those that do not queue are as they were when it was decided.
    fn entrance(&self, coming: &[Coming<'_>], seen: Option<i64>, whole: bool) -> TxnRequest {
        let mut question = TxnRequest::default();
        for one in coming.iter().filter(|one| one.made.is_none()) {
            question.compare.push(txn::made_in(&one.key, 0));
            if !one.ticket.queue {
                question.compare.push(match seen {
                    None => txn::empty(&one.range),
                    Some(revision) => txn::nothing_after(&one.range, revision),
                });
            }
            question.success.push(self.put(one));
        }
        let read = |one: &Coming<'_>| match one.ticket.queue && !whole {
            true => txn::read_some(&one.range),
            false => txn::read(&one.range),
        };
        let reads: Vec<RequestOp> = coming.iter().map(read).collect();
        question.failure.extend(reads.iter().cloned());
        question.success.extend(reads);
        question
    }

    /// Somebody may have entered one of these before, under the same id and another session: then that one counts. Says whether
    /// there was one; then everything has to be read again.
    async fn adopt_elders(self: &Arc<Self>, coming: &mut [Coming<'_>], lines: &[Found], put: bool) -> Result<bool> {
        let mut adopted = false;
        for (one, found) in coming.iter_mut().zip(lines) {
            let place = &one.ticket.place;
            let elder = found.kvs.iter().find(|kv| kv.key != one.key && keys::is_of(&kv.key, place));
            let Some(ours) = elder.and_then(|elder| self.adopt(place, elder)) else { continue };
            if put {
                self.ask(txn::take_out(&one.key, None)).await?;
            }
            if !self.keep_alive(&ours.session).await? {
                continue;
            }
            (one.key, one.session, one.made) = (ours.key.clone(), ours.session.clone(), ours.made);
            self.tickets().insert(mine(place), ours);
            adopted = true;
        }
        Ok(adopted)
    }

    /// Takes back what was put; the error that made it necessary, or the one that came then.
    async fn take_back(self: &Arc<Self>, entering: &mut Entering<'_>, put: bool, error: Error) -> Error {
        if put {
            let success = entering.new.iter().map(|(_, key)| txn::delete(key)).collect();
            if let Err((error, _)) = entering.send(TxnRequest { success, ..TxnRequest::default() }).await {
                return error.effect_unknown();
            }
        }
        entering.forget();
        error
    }

    /// One more round trip only where too little of a line was read to tell.
    async fn entered(
        self: &Arc<Self>,
        coming: &[Coming<'_>],
        lines: &[Found],
        standings: &[Option<Standing>],
        called: Moment,
    ) -> Result<Vec<Entered>> {
        let mut entered = Vec::with_capacity(coming.len());
        for ((one, found), standing) in coming.iter().zip(lines).zip(standings) {
            let made = one.made.unwrap_or(0);
            let standing = match standing {
                Some(standing) => *standing,
                None => self.look(&one.ticket.place, &one.key, made).await?,
            };
            let ahead = found.line.head().filter(|_| !found.more);
            entered.push(self.has_entered(one, made, standing, ahead, called));
        }
        Ok(entered)
    }

    fn has_entered(
        &self,
        one: &Coming<'_>,
        made: i64,
        standing: Standing,
        ahead: Option<Seen>,
        called: Moment,
    ) -> Entered {
        if let Some(ours) = self.tickets().get_mut(&mine(&one.ticket.place)).filter(|ours| ours.made != Some(made)) {
            ours.made = Some(made);
            ours.record = Record::of(one.ticket).unwrap_or_else(|_| ours.record.clone());
        }
        let (token, lease) = (u64::try_from(made).unwrap_or(0), one.session.remaining(called));
        match standing {
            Standing::Inside => Entered::Admitted { token, lease },
            // One that is gone already is found so by whoever waits for it.
            _ => Entered::Queued { token: Some(token), lease, ahead },
        }
    }

    /// The line must hold nobody else. One round trip where no other name lies below this one; else two.
    pub(super) async fn upgrade(self: &Arc<Self>, place: &Place, new: TicketId) -> Result<Upgraded> {
        let Some((old, made)) = self.find(place).await? else { return self.upgraded(place, new).await };
        // Another client would take a ticket of its own session that it does not know for a stray.
        let session =
            if old.session.is_of_another() { self.session(leases::USUAL).await? } else { old.session.clone() };
        let key = keys::of(&place.name, session.lease, new);
        let mut ours = Ours { session, key: key.clone(), made: None, under_way: None, ..old.clone() };
        ours.record.raise();
        let new_one = (place.name.shared_key(), new);
        self.tickets().insert(new_one.clone(), ours.clone());
        let (new_ones, sessions) = (vec![(new_one, key)], vec![ours.session.clone()]);
        let mut entering = Entering { shared: self, new: new_ones, sessions, under_way: None };
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
            let put = txn::put(&ours.key, ours.record.to_bytes(), ours.session.lease);
            let question =
                TxnRequest { compare, success: vec![txn::delete(&old.key), put], failure: vec![txn::read(&range)] };
            let answer = match entering.send(question).await {
                Ok(answer) => answer,
                Err((_, Some(_))) => {
                    ours.session.end();
                    return Ok(Upgraded::Gone);
                }
                Err((error, None)) => return Err(error),
            };
            let revision = txn::revision(&answer)?;
            if answer.succeeded {
                return Ok(self.raised(place, new, revision));
            }
            let found = txn::reads(answer).pop().ok_or_else(txn::unreadable)?;
            let line = keys::picture(place.name.key(), &found.kvs)?;
            if let Some(token) = line.get(new).and_then(|ticket| ticket.token) {
                return Ok(self.raised(place, new, i64::try_from(token).unwrap_or(0)));
            }
            match line.get(place.id).and_then(|ticket| ticket.token) {
                None => {
                    entering.forget();
                    return Ok(Upgraded::Gone);
                }
                // Entered again, elsewhere: it is found there.
                Some(token) if u64::try_from(made) != Ok(token) && self.is_stale(place, made) => {
                    entering.forget();
                    drop(entering);
                    return Box::pin(self.upgrade(place, new)).await;
                }
                Some(_) => {}
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
        tickets.remove(&mine(place));
        if let Some(ours) = tickets.get_mut(&(place.name.shared_key(), new)) {
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

/// The line of one of them has another capacity.
fn mismatch(coming: &[Coming<'_>], lines: &[Found]) -> Option<Error> {
    coming.iter().zip(lines).find_map(|(one, found)| match one.standing(found) {
        Some(Standing::Mismatch { there }) => {
            Some(Error::mismatch(&one.ticket.place.name.shown(), one.ticket.capacity, there))
        }
        _ => None,
    })
}
