//! Getting in: one ticket is entered, waited for, confirmed; a lost reply is asked for again under the same id; whatever is
//! given up on the way, by an error, a time limit or a dropped future, is handed to the keeper to clean up.

use crate::clock::Moment;
use crate::error::{Effect, Error, ErrorKind, Result, spoken};
use crate::hold::{Hold, Terms};
use crate::keeper::{all_of, backoff};
use crate::locks::Core;
use crate::name::Name;
use crate::observe;
use crate::store::{
    Enter, Entered, Kind, Line, Note, OwnerId, Place, Queue, Renewed, Seen, TicketId, Waited, waiting_lease,
};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One wish to get in.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    pub(crate) terms: Terms,
    /// How long to wait; `None` is for ever, zero is not at all.
    pub(crate) wait: Option<Duration>,
    pub(crate) unfair: bool,
    pub(crate) owner: OwnerId,
    pub(crate) held: Vec<Name>,
    pub(crate) note: Note,
}

impl Request {
    fn never_waits(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_zero())
    }

    /// How long a store that does not answer is asked again.
    fn patience(&self) -> Duration {
        let most = if self.never_waits() { Duration::from_secs(1) } else { Duration::from_secs(5) };
        (self.terms.lease / 2).min(most)
    }
}

/// Gets in, within the request's time limit.
///
/// Cancel safe: dropping the future at any point leaves no ticket behind.
pub(crate) async fn acquire(core: &Arc<Core>, request: Request) -> Result<Arc<Hold>> {
    let started = core.keeper.clock.now();
    let token = AtomicU64::new(0);
    let never_waits = request.never_waits();
    let wait = request.wait.map(|wait| if never_waits { request.patience() } else { wait });
    let name = request.name.clone();
    let Some(wait) = wait else { return get_in(core, request, started, &token).await };
    let limit = pin!(core.keeper.clock.sleep_until(started.after(wait)));
    // The way in is asked first: where there is room at once, no timer is ever set.
    let timed_out = {
        let way_in = pin!(get_in(core, request, started, &token));
        match select(way_in, limit).await {
            Either::Left((answer, _)) => return answer,
            Either::Right(_) => core.keeper.clock.now().since(started),
        }
    };
    if never_waits {
        let message = format!("the store did not answer within {}", spoken(timed_out));
        return Err(Error::unknown(message).named(name.shown()));
    }
    Err(timed_out_error(core, &name, timed_out, token.load(Ordering::Relaxed)).await)
}

/// What stood in the way when the time was up: one more round trip, which may fail, on a path that has failed anyway.
pub(crate) async fn timed_out_error(core: &Arc<Core>, name: &Name, waited: Duration, token: u64) -> Error {
    let clock = &core.keeper.clock;
    let limit = pin!(clock.sleep_until(clock.now().after(Duration::from_millis(500))));
    let line = match select(core.keeper.store.inspect(name), limit).await {
        Either::Left((Ok(line), _)) => line,
        _ => Line::default(),
    };
    let others = |before: bool| {
        line.waiting.iter().filter_map(|seen| seen.token).filter(move |n| *n != token && (*n < token) == before)
    };
    let ahead = others(true).count();
    let position = (token > 0).then(|| (ahead + 1, ahead + 1 + others(false).count()));
    let holder = line.inside.into_iter().find(|seen| seen.token != Some(token));
    Error::new(ErrorKind::TimedOut, format!("timed out after {}", spoken(waited)))
        .named(name.shown())
        .held_by(holder)
        .waited(waited, position)
}

async fn get_in(core: &Arc<Core>, request: Request, started: Moment, token: &AtomicU64) -> Result<Arc<Hold>> {
    flush(core, &request.name).await;
    let beside = request.unfair || core.capability.queue == Queue::Absent;
    let hold = if beside && !request.never_waits() {
        crate::barge::get_in(core, &request).await?
    } else {
        stand_in_line(core, &request, token).await?
    };
    observe::acquired(&hold, core.keeper.clock.now().since(started));
    Ok(hold)
}

/// Our own releases and changes of this name come first: a lock that was dropped a moment ago is not in its owner's way.
pub(crate) async fn flush(core: &Arc<Core>, name: &Name) {
    let keeper = &core.keeper;
    if keeper.is_calm() {
        return;
    }
    if let Some(mut pending) = keeper.take_pending(name) {
        // If it fails, the keeper tries again; the enter that follows will tell what is wrong.
        let _ = pending.send_once().await;
    }
    let limit = pin!(keeper.clock.sleep_until(keeper.clock.now().after(Duration::from_secs(1))));
    select(pin!(keeper.landed(name.key())), limit).await;
}

async fn stand_in_line(core: &Arc<Core>, request: &Request, token: &AtomicU64) -> Result<Arc<Hold>> {
    loop {
        let mut attempt = Attempt::new(core, request);
        match attempt.enter(!request.never_waits()).await? {
            Found::Full(holder) => return Err(held(&request.name, holder)),
            Found::Inside => {}
            Found::Queued(number) => {
                token.store(number.unwrap_or(0), Ordering::Relaxed);
                observe::waiting(&request.name, number);
                if !attempt.wait().await? {
                    observe::queued_again(&request.name);
                    continue;
                }
            }
        }
        if let Some(hold) = attempt.confirm().await? {
            return Ok(hold);
        }
        observe::queued_again(&request.name);
    }
}

pub(crate) fn held(name: &Name, holder: Option<Seen>) -> Error {
    Error::new(ErrorKind::Held, "not acquired").named(name.shown()).held_by(holder)
}

/// What an enter found.
pub(crate) enum Found {
    Inside,
    Queued(Option<u64>),
    Full(Option<Seen>),
}

/// One ticket on its way in. Dropped before it is done, it is given up: the keeper sees that nothing is left of it.
pub(crate) struct Attempt<'a> {
    core: &'a Arc<Core>,
    request: &'a Request,
    hold: Arc<Hold>,
    queued: bool,
    /// There is, or may be, a ticket to clean up.
    open: bool,
    /// When the enter was sent that is under way now.
    under_way: Option<Moment>,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, request: &'a Request) -> Attempt<'a> {
        let place = Place { name: request.name.clone(), id: TicketId::new() };
        let clock = core.keeper.clock.clone();
        let hold = Hold::new(clock, place, request.kind, request.weight, request.capacity, request.terms.clone());
        Attempt { core, request, hold: Arc::new(hold), queued: false, open: false, under_way: None }
    }

    /// One round trip; more only if a reply is lost.
    pub(crate) async fn enter(&mut self, queue: bool) -> Result<Found> {
        let keeper = &self.core.keeper;
        let ticket = [Enter {
            place: self.hold.place(),
            kind: self.request.kind,
            weight: self.request.weight,
            capacity: self.request.capacity,
            lease: self.request.terms.lease,
            queue,
            owner: self.request.owner,
            held: self.request.held.clone(),
            note: self.request.note.clone(),
        }];
        let give_up = keeper.clock.now().after(self.request.patience());
        let mut tries = 0;
        let (sent, answer) = loop {
            let sent = keeper.clock.now();
            self.open = true;
            self.under_way = Some(sent);
            let answer = keeper.ask("an enter", self.request.patience(), || keeper.store.enter(&ticket)).await;
            let answer = answer.and_then(|answers| all_of(&answers, 1).map(|()| answers));
            self.under_way = None;
            match answer {
                Ok(answers) => break (sent, answers.into_iter().next()),
                Err(error) => {
                    let unknown = error.effect() == Effect::Unknown;
                    if unknown {
                        self.hold.note_unanswered(keeper.unanswered_until(sent, self.request.terms.lease));
                    } else {
                        // This enter did nothing; an earlier one may have.
                        self.open = self.hold.unanswered() > keeper.clock.now();
                    }
                    let again = unknown || error.kind() == ErrorKind::Unavailable;
                    tries += 1;
                    let pause = backoff(tries);
                    if !again || keeper.clock.now().after(pause) >= give_up {
                        return Err(error.named(self.request.name.shown()));
                    }
                    keeper.clock.sleep_until(keeper.clock.now().after(pause)).await;
                }
            }
        };
        let late = || Error::unknown("the lease had ended before the answer came").named(self.request.name.shown());
        match answer {
            Some(Entered::Admitted { token, lease }) => {
                self.hold.set_number(token);
                if !self.hold.confirm(sent, lease) {
                    return Err(late());
                }
                Ok(Found::Inside)
            }
            Some(Entered::Queued { token, lease, ahead: _ }) => {
                self.hold.set_number(token.unwrap_or(0));
                self.queued = true;
                self.hold.confirm(sent, lease);
                keeper.keep(&self.hold);
                Ok(Found::Queued(token))
            }
            Some(Entered::Full { holder }) => {
                self.open = self.hold.unanswered() > keeper.clock.now();
                Ok(Found::Full(holder))
            }
            None => Err(Error::new(ErrorKind::Broken, "the store gave no answer for the ticket").effect_unknown()),
        }
    }

    /// Waits for our turn: `false` if the ticket is gone.
    async fn wait(&mut self) -> Result<bool> {
        let keeper = &self.core.keeper;
        let place = self.hold.place();
        let mut tries = 0;
        loop {
            let lost = pin!(self.hold.lost());
            match select(keeper.store.wait(&place, Moment::FAR), lost).await {
                Either::Left((Ok(Waited::Admitted { token }), _)) => {
                    self.hold.set_number(token);
                    return Ok(true);
                }
                Either::Left((Ok(Waited::Waiting), _)) => {}
                Either::Left((Ok(Waited::Gone), _)) => {
                    self.open = self.hold.unanswered() > keeper.clock.now();
                    return Ok(false);
                }
                Either::Right(_) => return Ok(false),
                Either::Left((Err(error), _)) if error.kind() == ErrorKind::Unavailable => {
                    // Still in the queue as far as we know: the renewals will tell.
                    tries += 1;
                    let pause = keeper.clock.now().after(backoff(tries));
                    select(pin!(keeper.clock.sleep_until(pause)), pin!(self.hold.lost())).await;
                }
                Either::Left((Err(error), _)) => return Err(error.named(self.request.name.shown())),
            }
        }
    }

    /// Makes sure that there is enough of the lease left to be worth a guard: no round trip where there is. `None` if the
    /// ticket turned out to be gone.
    pub(crate) async fn confirm(mut self) -> Result<Option<Arc<Hold>>> {
        let keeper = &self.core.keeper;
        let terms = &self.request.terms;
        // While it waited its lease may have been shorter than what was asked for; a fixed one starts at the grant.
        let short = self.queued && (terms.fixed || waiting_lease(terms.lease) < terms.lease);
        let mut fresh = !short && self.hold.remaining() >= terms.lease / 2;
        let mut tries = 0;
        while !fresh {
            let Some(mut renewal) = self.hold.renewal(keeper.clock.now(), true) else { return Ok(None) };
            renewal.lease = terms.lease;
            let sent = keeper.clock.now();
            let (batch, patience) = ([renewal], (terms.lease / 3).max(Duration::from_millis(20)));
            match keeper.ask("a renewal", patience, || keeper.store.renew(&batch)).await {
                Ok(answers) if answers.is_empty() => {
                    return Err(all_of(&answers, 1).unwrap_err().named(self.request.name.shown()));
                }
                Ok(answers) => match answers.first() {
                    Some(Renewed::There { lease }) => {
                        if !self.hold.confirm(sent, *lease) {
                            return Ok(None);
                        }
                        fresh = true;
                    }
                    _ => {
                        self.hold.gone();
                        return Ok(None);
                    }
                },
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    tries += 1;
                    let pause = keeper.clock.now().after(backoff(tries));
                    if pause >= self.hold.deadline() {
                        return Err(error.named(self.request.name.shown()));
                    }
                    keeper.clock.sleep_until(pause).await;
                }
                Err(error) => return Err(error.named(self.request.name.shown())),
            }
        }
        self.hold.grant(self.request.kind.mode() != crate::store::Mode::Shared);
        keeper.keep(&self.hold);
        self.open = false;
        Ok(Some(self.hold.clone()))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let keeper = &self.core.keeper;
        if let Some(sent) = self.under_way {
            self.hold.note_unanswered(keeper.unanswered_until(sent, self.request.terms.lease));
        }
        if self.open {
            self.hold.start_leaving();
            keeper.leave(keeper.leave_of(&self.hold));
        } else if self.queued && self.hold.start_leaving_if_waiting() {
            keeper.strike(self.hold.id());
        }
    }
}
