//! Getting in: one ticket is entered, waited for, confirmed; a lost reply is asked for again under the same id; whatever is
//! given up on the way, by an error, a time limit or a dropped future, is handed to the keeper to clean up.

use crate::clock::Moment;
use crate::error::{Effect, Error, ErrorKind, Result, spoken};
use crate::hold::{Hold, Lost, Terms};
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
    pub(crate) fn never_waits(&self) -> bool {
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
    let (name, limit) = (request.name.clone(), Limit::of(&request));
    match limit.keep(core, started, get_in(core, request, started, &token)).await {
        Ok(answer) => answer,
        Err(waited) => Err(limit.error(core, &name, waited, token.load(Ordering::Relaxed)).await),
    }
}

/// How long a way in may take: the caller's time limit, or, where there is no waiting, the store's time to answer.
pub(crate) struct Limit {
    never_waits: bool,
    wait: Option<Duration>,
}

impl Limit {
    pub(crate) fn of(request: &Request) -> Limit {
        let never_waits = request.never_waits();
        Limit { never_waits, wait: request.wait.map(|wait| if never_waits { request.patience() } else { wait }) }
    }

    /// What came of it, or how long it was waited for in vain.
    pub(crate) async fn keep<T>(
        &self,
        core: &Core,
        started: Moment,
        way_in: impl Future<Output = T>,
    ) -> std::result::Result<T, Duration> {
        let Some(wait) = self.wait else { return Ok(way_in.await) };
        let clock = &core.keeper.clock;
        let limit = pin!(clock.sleep_until(started.after(wait)));
        // The way in is asked first: where there is room at once, no timer is ever set.
        match select(pin!(way_in), limit).await {
            Either::Left((answer, _)) => Ok(answer),
            Either::Right(_) => Err(clock.now().since(started)),
        }
    }

    /// The error of a way in that took too long.
    pub(crate) async fn error(&self, core: &Arc<Core>, name: &Name, waited: Duration, token: u64) -> Error {
        if self.never_waits {
            let message = format!("the store did not answer within {}", spoken(waited));
            return Error::unknown(message).named(name.shown());
        }
        timed_out_error(core, name, waited, token).await
    }
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
    loop {
        let (attempt, _) = come_in(core, &request, token).await?;
        if let Some(hold) = attempt.confirm().await? {
            observe::acquired(&hold, core.keeper.clock.now().since(started));
            return Ok(hold);
        }
        observe::queued_again(&request.name);
    }
}

/// Gets one ticket in, in the queue or beside it, and says whether it had to wait. It has still to be confirmed.
pub(crate) async fn come_in<'a>(
    core: &'a Arc<Core>,
    request: &'a Request,
    token: &AtomicU64,
) -> Result<(Attempt<'a>, bool)> {
    let beside = request.unfair || core.capability.queue == Queue::Absent;
    if beside && !request.never_waits() {
        return crate::barge::come_in(core, request).await;
    }
    let mut waited = false;
    loop {
        let mut attempt = Attempt::new(core, request);
        match attempt.enter(!request.never_waits()).await? {
            Found::Full(holder) => return Err(held(&request.name, holder)),
            Found::Inside => return Ok((attempt, waited)),
            Found::Queued(number) => {
                token.store(number.unwrap_or(0), Ordering::Relaxed);
                observe::waiting(&request.name, number);
                waited = true;
                if attempt.wait().await? {
                    return Ok((attempt, waited));
                }
                observe::queued_again(&request.name);
            }
        }
    }
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
    /// It has to wait, for its own turn or for that of others: it is renewed, and its lease may be a waiting one's.
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
        let found = Attempt::enter_all(std::slice::from_mut(self), queue).await?.pop();
        Ok(found.expect("as many answers as tickets"))
    }

    /// Enters tickets of one `Locks` in one call, all or none. One round trip; more only if a reply is lost.
    pub(crate) async fn enter_all(attempts: &mut [Attempt<'a>], queue: bool) -> Result<Vec<Found>> {
        let Some(first) = attempts.first() else { return Ok(Vec::new()) };
        let (keeper, patience, lease) = (&first.core.keeper, first.request.patience(), first.request.terms.lease);
        let of = first.request.name.clone();
        let tickets: Vec<Enter> = attempts.iter().map(|attempt| attempt.ticket(queue)).collect();
        let give_up = keeper.clock.now().after(patience);
        let mut tries = 0;
        let (sent, answers) = loop {
            let sent = keeper.clock.now();
            for attempt in &mut *attempts {
                attempt.open = true;
                attempt.under_way = Some(sent);
            }
            let answer = keeper.ask("an enter", patience, || keeper.store.enter(&tickets)).await;
            let answer = answer.and_then(|answers| all_of(&answers, tickets.len()).map(|()| answers));
            attempts.iter_mut().for_each(|attempt| attempt.under_way = None);
            match answer {
                Ok(answers) => break (sent, answers),
                Err(error) => {
                    let unknown = error.effect() == Effect::Unknown;
                    for attempt in &mut *attempts {
                        if unknown {
                            attempt.hold.note_unanswered(keeper.unanswered_until(sent, lease));
                        } else {
                            // This enter did nothing; an earlier one may have.
                            attempt.not_in_line();
                        }
                    }
                    let again = unknown || error.kind() == ErrorKind::Unavailable;
                    tries += 1;
                    let pause = backoff(tries);
                    if !again || keeper.clock.now().after(pause) >= give_up {
                        return Err(if error.name().is_some() { error } else { error.named(of.shown()) });
                    }
                    keeper.clock.sleep_until(keeper.clock.now().after(pause)).await;
                }
            }
        };
        attempts.iter_mut().zip(answers).map(|(attempt, answer)| attempt.entered(sent, answer)).collect()
    }

    fn ticket(&self, queue: bool) -> Enter {
        Enter {
            place: self.hold.place(),
            kind: self.request.kind,
            weight: self.request.weight,
            capacity: self.request.capacity,
            lease: self.request.terms.lease,
            queue,
            owner: self.request.owner,
            held: self.request.held.clone(),
            note: self.request.note.clone(),
        }
    }

    /// As far as we know there is no ticket of this id in the line, unless an unanswered enter brings it there.
    fn not_in_line(&mut self) {
        self.open = self.hold.unanswered() > self.core.keeper.clock.now();
    }

    fn entered(&mut self, sent: Moment, answer: Entered) -> Result<Found> {
        match answer {
            Entered::Admitted { token, lease } => {
                self.hold.set_number(token);
                if !self.hold.confirm(sent, lease) {
                    let late = Error::unknown("the lease had ended before the answer came");
                    return Err(late.named(self.request.name.shown()));
                }
                Ok(Found::Inside)
            }
            Entered::Queued { token, lease, ahead: _ } => {
                self.hold.set_number(token.unwrap_or(0));
                self.hold.confirm(sent, lease);
                self.keep();
                Ok(Found::Queued(token))
            }
            Entered::Full { holder } => {
                self.not_in_line();
                Ok(Found::Full(holder))
            }
        }
    }

    /// From now on it is renewed: its guard may take its time.
    pub(crate) fn keep(&mut self) {
        self.queued = true;
        self.core.keeper.keep(&self.hold);
    }

    /// Ready when it is lost.
    pub(crate) fn lost(&self) -> Lost<'_> {
        self.hold.lost()
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
