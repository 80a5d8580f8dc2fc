//! Getting into a line, and raising a ticket that is alone in it.

use super::api::{self, Done, Entry, Operation};
use super::lines::{self, Known};
use super::{Mine, Shared};
use crate::clock::Moment;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::store::note::{Record, Standing};
use crate::store::{Enter, Entered, Place, TicketId, Upgraded};
use std::sync::Arc;

/// One ticket of a batch on its way.
struct Coming<'a> {
    ticket: &'a Enter,
    mine: Mine,
    /// It was entered before, and may be there.
    known: bool,
    /// It is there.
    there: bool,
}

impl Coming<'_> {
    fn key(&self) -> String {
        lines::key(&self.ticket.place.name, self.ticket.place.id)
    }
}

/// What became of an attempt.
enum Attempt {
    Entered(Vec<Entered>),
    /// A session had ended: nothing was done.
    Ended,
}

/// What was read, without what was read twice: a name may stand below another one of the batch.
fn once_each(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries.dedup_by(|a, b| a.key == b.key);
    entries
}

impl Shared {
    /// One transaction. Before it a look where a ticket does not queue, so that one that is refused leaves no trace for others
    /// to wake up for, and where a ticket was entered before; behind it another one where somebody was faster, and where a
    /// session turned out to have ended.
    pub(super) async fn enter(self: &Arc<Self>, batch: &[Enter]) -> Result<Vec<Entered>> {
        for _ in 0..3 {
            if let Attempt::Entered(entered) = self.try_enter(batch).await? {
                return Ok(entered);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the server ends our sessions as soon as they are made"))
    }

    async fn try_enter(self: &Arc<Self>, batch: &[Enter]) -> Result<Attempt> {
        let called = self.clock.now();
        let mut coming = Vec::with_capacity(batch.len());
        for ticket in batch {
            match self.take_down(ticket).await {
                Ok(one) => coming.push(one),
                Err(error) => {
                    self.forget_new(&coming);
                    return Err(error);
                }
            }
        }
        if coming.iter().any(|one| one.known || !one.ticket.queue) {
            let looked = self.look(&coming).await;
            let entries = looked.inspect_err(|_| self.forget_new(&coming))?;
            self.compare(&mut coming, &entries)?;
            if coming.iter().all(|one| one.there) {
                return self.judge(&coming, &entries, called).await.map(Attempt::Entered);
            }
            if let Some(refused) = self.refuse(&coming, &entries)? {
                let (there, not): (Vec<&Coming<'_>>, Vec<_>) = coming.iter().partition(|one| one.there);
                let there: Vec<Place> = there.iter().map(|one| one.ticket.place.clone()).collect();
                self.leave(&there).await.map_err(Error::effect_unknown)?;
                not.iter().for_each(|one| drop(self.mine().remove(&one.ticket.place)));
                return refused.map(Attempt::Entered);
            }
        }
        match self.send(&coming).await {
            Ok(Done::Well(entries)) => self.judge(&coming, &entries, called).await.map(Attempt::Entered),
            Ok(Done::Refused(why)) if why.contains("invalid session") => {
                // It ended since the last renewal: its tickets are gone, this one can have another.
                let ended = coming.iter().filter(|one| why.contains(&one.mine.session.id));
                ended.for_each(|one| one.mine.session.end());
                if let Some(host) = self.host.get() {
                    host.doubt(None);
                }
                Ok(Attempt::Ended)
            }
            Ok(Done::Refused(why)) => {
                self.forget_new(&coming);
                Err(Error::new(ErrorKind::Broken, format!("the server refused the ticket: {why}")))
            }
            Err(error) => {
                if error.effect() == Effect::None {
                    self.forget_new(&coming);
                }
                Err(error)
            }
        }
    }

    /// Puts a ticket down as ours, with the session it has or is to have: before anything is sent, so that nobody takes it for
    /// a stray. One request only where a session has to be made.
    async fn take_down<'a>(self: &Arc<Self>, ticket: &'a Enter) -> Result<Coming<'a>> {
        let record = Record::of(ticket)?;
        let before = self.mine().get(&ticket.place).filter(|mine| !mine.session.has_ended()).cloned();
        let known = before.is_some();
        let mine = match before {
            Some(before) => before,
            None => {
                let mine = Mine { session: self.session_for(ticket.lease).await?, record, known: None, token: None };
                self.mine().insert(ticket.place.clone(), mine.clone());
                mine
            }
        };
        Ok(Coming { ticket, mine, known, there: false })
    }

    /// Nothing of these is in a line, nor on its way there.
    fn forget_new(&self, coming: &[Coming<'_>]) {
        let mut mine = self.mine();
        coming.iter().filter(|one| !one.known).for_each(|one| drop(mine.remove(&one.ticket.place)));
    }

    /// One request.
    async fn look(&self, coming: &[Coming<'_>]) -> Result<Vec<Entry>> {
        let prefixes: Vec<String> = coming.iter().map(|one| lines::prefix(&one.ticket.place.name)).collect();
        let operations: Vec<Operation<'_>> = prefixes.iter().map(|prefix| Operation::GetTree(prefix)).collect();
        match self.agent.transaction(&operations).await? {
            Done::Well(entries) => Ok(once_each(entries)),
            Done::Refused(why) => Err(Error::unknown(format!("the server refused a look: {why}"))),
        }
    }

    /// Finds out which of these are there. One that is not is made anew as what is asked for now, whatever became of an earlier
    /// ticket of this id.
    fn compare(&self, coming: &mut [Coming<'_>], entries: &[Entry]) -> Result<()> {
        let mut all = self.mine();
        for one in coming {
            let key = one.key();
            let held = |entry: &Entry| entry.key == key && entry.session.as_ref() == Some(&one.mine.session.id);
            one.there = entries.iter().any(held);
            if one.known && !one.there {
                one.mine.record = Record::of(one.ticket)?;
                (one.mine.known, one.mine.token) = (None, None);
                all.insert(one.ticket.place.clone(), one.mine.clone());
            }
        }
        Ok(())
    }

    /// Whether one that would not queue has no room now.
    fn refuse(&self, coming: &[Coming<'_>], entries: &[Entry]) -> Result<Option<Result<Vec<Entered>>>> {
        let mut refused = Vec::with_capacity(coming.len());
        for Coming { ticket, there, .. } in coming {
            let name = &ticket.place.name;
            let picture = lines::picture(name, entries)?;
            refused.push(match picture.behind(ticket.weight, ticket.capacity, Some(ticket.place.id)) {
                _ if ticket.queue || *there => None,
                Standing::Mismatch { there } => {
                    return Ok(Some(Err(Error::mismatch(&name.shown(), ticket.capacity, there))));
                }
                Standing::Waiting => Some(picture.other(&[ticket.place.id])),
                _ => None,
            });
        }
        if refused.iter().all(Option::is_none) {
            return Ok(None);
        }
        Ok(Some(Ok(refused.into_iter().map(|holder| Entered::Full { holder: holder.flatten() }).collect())))
    }

    /// One transaction: writes those that are not there, and reads all lines.
    async fn send(&self, coming: &[Coming<'_>]) -> Result<Done> {
        let new: Vec<&Coming<'_>> = coming.iter().filter(|one| !one.there).collect();
        let keys: Vec<String> = new.iter().map(|one| one.key()).collect();
        let values: Vec<Vec<u8>> = new.iter().map(|one| one.mine.record.to_bytes()).collect();
        let prefixes: Vec<String> = coming.iter().map(|one| lines::prefix(&one.ticket.place.name)).collect();
        let locks = keys.iter().zip(&values).zip(&new);
        let mut operations: Vec<Operation<'_>> = locks
            .map(|((key, value), one)| Operation::Lock { key, value, session: &one.mine.session.id, flags: 0 })
            .collect();
        operations.extend(prefixes.iter().map(|prefix| Operation::GetTree(prefix)));
        match self.agent.transaction(&operations).await? {
            // What the lock operations say has no value in it; the trees have everything.
            Done::Well(mut entries) => Ok(Done::Well(once_each(entries.split_off(new.len().min(entries.len()))))),
            refused => Ok(refused),
        }
    }

    /// How those stand that are in their lines now. One more transaction only where one is to go again.
    async fn judge(self: &Arc<Self>, coming: &[Coming<'_>], entries: &[Entry], called: Moment) -> Result<Vec<Entered>> {
        self.drop_strangers(entries);
        let mut entered = Vec::with_capacity(coming.len());
        let mut mismatch = None;
        let index = entries.iter().map(|entry| entry.modify_index).max().unwrap_or(0);
        for Coming { ticket, mine, there, .. } in coming {
            let (name, id) = (&ticket.place.name, ticket.place.id);
            let picture = Arc::new(lines::picture(name, entries)?);
            let known = Known { index, picture: picture.clone() };
            self.lines.learn(name, &known);
            if let Some(mine) = self.mine().get_mut(&ticket.place) {
                mine.known = Some(known);
            }
            let lease = mine.session.remaining(called);
            let token = picture.get(id).and_then(|ticket| ticket.token);
            mismatch = mismatch.or_else(|| lines::held_by_foreign_lock(name, entries));
            entered.push(match (picture.standing(id), token) {
                (Standing::Inside, Some(token)) => Entered::Admitted { token, lease },
                // One that stood in the line before goes on standing there.
                (Standing::Waiting, token) if ticket.queue || *there => {
                    Entered::Queued { token, lease, ahead: picture.other(&[id]) }
                }
                (Standing::Waiting, _) => Entered::Full { holder: picture.head() },
                (Standing::Mismatch { there }, _) => {
                    mismatch.get_or_insert_with(|| Error::mismatch(&name.shown(), ticket.capacity, there));
                    Entered::Full { holder: None }
                }
                _ => return Err(api::unreadable()),
            });
        }
        if mismatch.is_none() && !entered.iter().any(|one| matches!(one, Entered::Full { .. })) {
            return Ok(entered);
        }
        let places: Vec<Place> = coming.iter().map(|one| one.ticket.place.clone()).collect();
        self.leave(&places).await.map_err(Error::effect_unknown)?;
        match mismatch {
            Some(mismatch) => Err(mismatch),
            None => Ok(entered
                .into_iter()
                .map(|one| match one {
                    Entered::Full { .. } => one,
                    _ => Entered::Full { holder: None },
                })
                .collect()),
        }
    }

    /// Two transactions: a second, exclusive ticket is entered beside the first; then one of the two goes.
    pub(super) async fn upgrade(self: &Arc<Self>, place: &Place, new: TicketId) -> Result<Upgraded> {
        let new = Place { name: place.name.clone(), id: new };
        let (old_key, new_key) = (lines::key(&place.name, place.id), lines::key(&new.name, new.id));
        let (old, done) = {
            let mine = self.mine();
            (mine.get(place).cloned(), mine.get(&new).cloned())
        };
        if let Some((done, token)) = done.as_ref().and_then(|done| Some((done, done.token?))) {
            let check = Operation::CheckSession { key: &new_key, session: &done.session.id };
            return Ok(match self.agent.transaction(&[check]).await? {
                Done::Well(_) => Upgraded::Admitted { token },
                Done::Refused(_) => Upgraded::Gone,
            });
        }
        let Some(mut raised) = done.clone().or(old) else { return Ok(Upgraded::Gone) };
        raised.record.raise();
        raised.known = None;
        self.mine().insert(new.clone(), raised.clone());
        let (value, session) = (raised.record.to_bytes(), raised.session.id.as_str());
        let prefix = lines::prefix(&place.name);
        // A repeated call may find the first ticket gone already; then only the second one counts.
        let holds = if done.is_some() { &new_key } else { &old_key };
        let operations = [
            Operation::CheckSession { key: holds, session },
            Operation::Lock { key: &new_key, value: &value, session, flags: 0 },
            Operation::GetTree(&prefix),
        ];
        let entries = match self.agent.transaction(&operations).await? {
            Done::Well(entries) => entries,
            Done::Refused(_) if done.is_some() => {
                // The first try was not carried out, or it was and has lapsed: begin anew.
                self.mine().remove(&new);
                return if self.mine().contains_key(place) {
                    Box::pin(self.upgrade(place, new.id)).await
                } else {
                    Ok(Upgraded::Gone)
                };
            }
            Done::Refused(_) => {
                self.mine().remove(&new);
                return Ok(Upgraded::Gone);
            }
        };
        let picture = lines::picture(&place.name, &entries[1.min(entries.len())..])?;
        if let Some(by) = picture.other(&[place.id, new.id]) {
            self.leave(std::slice::from_ref(&new)).await?;
            return Ok(Upgraded::Held { by: Some(by) });
        }
        let token = picture.get(new.id).and_then(|ticket| ticket.token).ok_or_else(api::unreadable)?;
        self.leave(std::slice::from_ref(place)).await?;
        if let Some(raised) = self.mine().get_mut(&new) {
            raised.token = Some(token);
        }
        Ok(Upgraded::Admitted { token })
    }
}
