//! The keeper: one library thread per `Locks` that renews what we hold and wait for, fires deadlines, sends the releases of
//! dropped guards, and cleans up after what was given up half-way. A blocked or ended runtime of the caller therefore neither
//! loses a lock in silence nor leaks one.
//!
//! The callers' own enters and leaves do not pass through here (a hop between threads costs a third of the speed); they only
//! enter and strike out tickets in the **book**, which wakes nobody as long as nothing is due earlier than before.
//!
//! - **Renewal** goes by rounds, one for each lease in use: every third of the lease (less a little, at random) all tickets of
//!   that lease are renewed in batches. The ticket's own record decides what the answer means ([`crate::hold`]).
//! - A **leave** is sent once, and again until it is confirmed or the lease must have ended. A place that was given up while
//!   an enter of it was unanswered is an **orphan**: "not there" proves nothing then, so it is left again and again until that
//!   enter can have no effect any more: for a lease; or, where tickets hang on a session or a connection, until that ends, less
//!   and less often and at last once a lease.

mod book;
mod under_way;

pub(crate) use book::Leave;
pub(crate) use under_way::OwnLeaves;

use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Hold, State};
use crate::name::Name;
use crate::observe;
use crate::store::{BoxFuture, Lifetime, Place, Presence, Renew, Renewed, Store, TicketId, Tickets};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, lock};
use book::{Book, Entry, Round, period};
use futures_util::FutureExt;
use futures_util::future::Either;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex as StdMutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use under_way::Flight;

/// The most tickets that one call to the store is asked to renew or leave.
const BATCH: usize = 500;

/// How long a store has to answer what a lease does not hang on.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    lifetime: Lifetime,
    book: Mutex<Book>,
    bell: Bell,
    signals: StdMutex<Signals>,
    signalled: Condvar,
}

#[derive(Default)]
struct Signals {
    /// How often somebody has asked for what is due to be done, and up to which of these it has been.
    wanted: u64,
    settled: u64,
    ended: bool,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Keeper> {
        let clock = store.info().clock;
        let lifetime = store.capability().lifetime;
        Arc::new(Keeper {
            store,
            clock,
            lifetime,
            book: Mutex::new(Book { wake_at: Moment::FAR, ..Book::default() }),
            bell: Bell::default(),
            signals: StdMutex::default(),
            signalled: Condvar::new(),
        })
    }

    // What the callers do.

    /// From now on this ticket is renewed and its deadline watched. Only after its enter was answered: a renewal that
    /// overtakes the enter would be told that there is no such ticket.
    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        let now = self.clock.now();
        let (id, class, deadline, renew_by) = (hold.id(), hold.class(), hold.deadline(), hold.renew_by());
        let mut book = lock(&self.book);
        book.strike(id);
        book.entries.insert(id, Entry { hold: hold.clone(), looked_at: deadline, class });
        book.deadlines.insert((deadline, id));
        let mut first = deadline;
        if let Some(lease) = class {
            let round = book
                .rounds
                .entry(lease)
                .or_insert_with(|| Round { next: now.after(period(lease)), ids: Tickets::default() });
            round.ids.insert(id, ());
            round.next = round.next.min(renew_by);
            first = first.min(round.next);
        }
        self.due_at(book, first);
    }

    /// It is no longer renewed: it is being left, or lost. Says whether it was.
    pub(crate) fn strike(&self, id: TicketId) -> bool {
        lock(&self.book).strike(id)
    }

    /// The leave of a ticket that was ours.
    pub(crate) fn leave_of(&self, hold: &Hold) -> Leave {
        let unanswered = hold.unanswered();
        Leave {
            place: hold.place(),
            lease: hold.terms.lease,
            unanswered,
            give_up: match self.lifetime {
                // One lease from now: the deadline says less, since max_hold cuts it short and a renewal without an answer
                // may have been carried out.
                Lifetime::Ticket => self.clock.now().after(hold.terms.lease).max(unanswered),
                Lifetime::Session | Lifetime::Connection => Moment::FAR,
            },
            tries: 0,
            confirmed: false,
            watched: 0,
            lingering: None,
            done: None,
        }
    }

    /// Until when an enter that was sent at `sent` and never answered may have an effect, as far as anybody can say.
    pub(crate) fn unanswered_until(&self, sent: Moment, lease: Duration) -> Moment {
        match self.lifetime {
            Lifetime::Ticket => sent.after(lease),
            Lifetime::Session | Lifetime::Connection => Moment::FAR,
        }
    }

    /// Sends a leave in the background.
    pub(crate) fn leave(&self, leave: Leave) {
        self.strike(leave.place.id);
        let mut book = lock(&self.book);
        book.leaves.push_back(leave);
        self.due_at(book, Moment::default());
    }

    /// Leaves at `until`; the ticket is renewed until then.
    pub(crate) fn linger(&self, hold: &Arc<Hold>, until: Moment) -> oneshot::Receiver<Presence> {
        let (done, receiver) = oneshot::channel();
        let leave = Leave { lingering: Some(hold.clone()), done: Some(done), ..self.leave_of(hold) };
        let mut book = lock(&self.book);
        let at = (until, book.next_sequence());
        book.later.insert(at, leave);
        self.due_at(book, until);
        receiver
    }

    /// A leave was confirmed. If an enter of it may still be under way, it stays on the list.
    pub(crate) fn left(&self, mut leave: Leave) {
        leave.confirmed = true;
        let now = self.clock.now();
        if now < leave.unanswered {
            leave.tries = 0;
            let at = now.after(watch_after(self.lifetime, leave.lease, leave.watched)).min(leave.unanswered);
            leave.watched += 1;
            self.leave_at(leave, at);
        }
    }

    fn leave_at(&self, leave: Leave, at: Moment) {
        let mut book = lock(&self.book);
        let key = (at, book.next_sequence());
        book.later.insert(key, leave);
        self.due_at(book, at);
    }

    /// Takes the releases of this name that nobody has sent yet, so that the caller can send them itself. They count as
    /// under way until then.
    pub(crate) fn take_pending(self: &Arc<Self>, name: &Name) -> Option<OwnLeaves> {
        let mut book = lock(&self.book);
        // What failed and waits to be tried again is pending too; what waits for `min_hold`, or is only watched, is not.
        let of_it =
            |leave: &Leave| leave.place.name.key() == name.key() && !leave.confirmed && leave.lingering.is_none();
        let failed: Vec<_> = book.later.iter().filter(|(_, leave)| of_it(leave)).map(|(at, _)| *at).collect();
        for at in failed {
            if let Some(leave) = book.later.remove(&at) {
                book.leaves.push_back(leave);
            }
        }
        if !book.leaves.iter().any(|leave| leave.place.name.key() == name.key()) {
            return None;
        }
        let (mine, others): (VecDeque<_>, _) =
            book.leaves.drain(..).partition(|leave| leave.place.name.key() == name.key());
        book.leaves = others;
        let flight = book.take_off(self, vec![name.shared_key()]);
        Some(OwnLeaves { keeper: self.clone(), leaves: mine.into(), _flight: Some(flight) })
    }

    /// Whether there is nothing of any name that an enter would have to wait for. The rule, and one look at the book.
    pub(crate) fn is_calm(&self) -> bool {
        let book = lock(&self.book);
        book.leaves.is_empty() && book.later.is_empty() && book.flying.is_empty()
    }

    /// The release of a guard, to be sent by the caller.
    pub(crate) fn own_leave(self: &Arc<Self>, hold: &Hold) -> OwnLeaves {
        self.strike(hold.id());
        OwnLeaves { keeper: self.clone(), leaves: vec![self.leave_of(hold)], _flight: None }
    }

    /// Ready when no release or change of this name is under way.
    pub(crate) async fn landed(&self, key: &str) {
        poll_fn(|cx| {
            let mut book = lock(&self.book);
            if !book.flying.contains_key(key) {
                return Poll::Ready(());
            }
            book.waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ready when every release has been sent and confirmed, or can have no effect any more.
    pub(crate) async fn quiet(&self) {
        poll_fn(|cx| {
            let mut book = lock(&self.book);
            if book.is_quiet() {
                return Poll::Ready(());
            }
            book.waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Runs something on the library thread. With a name, an enter of that name waits for it.
    pub(crate) fn run(self: &Arc<Self>, name: Option<Arc<str>>, task: impl Future<Output = ()> + Send + 'static) {
        let mut book = lock(&self.book);
        let flight = book.take_off(self, name.into_iter().collect());
        book.tasks.push(Box::pin(async move {
            let flight = flight;
            task.await;
            drop(flight);
        }));
        self.due_at(book, Moment::default());
    }

    /// Looks at a ticket (or all) at once, because somebody said that it may be gone.
    pub(crate) fn doubt(&self, id: Option<TicketId>) {
        let mut book = lock(&self.book);
        match id {
            Some(id) if book.entries.contains_key(&id) => book.doubts.push(id),
            Some(_) => return,
            None => book.doubt_all = true,
        }
        self.due_at(book, Moment::default());
    }

    /// The ticket has a new id.
    pub(crate) fn rename(&self, old: TicketId, hold: &Arc<Hold>) {
        if self.strike(old) {
            self.keep(hold);
        }
    }

    /// No more is coming: the keeper ends when everything has been sent.
    pub(crate) fn end(&self) {
        let mut book = lock(&self.book);
        book.closing = true;
        self.due_at(book, Moment::default());
    }

    /// Waits, on a thread, until the keeper has ended.
    pub(crate) fn wait_for_end(&self, at_most: Duration) {
        let signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.signalled.wait_timeout_while(signals, at_most, |signals| !signals.ended);
    }

    /// Something is due at `at`: wakes the keeper if it would sleep longer.
    fn due_at(&self, book: crate::sync::MutexGuard<'_, Book>, at: Moment) {
        let wake = at < book.wake_at;
        drop(book);
        if wake {
            self.bell.ring();
        }
    }

    // What the library thread does.

    /// The life of the library thread.
    pub(crate) async fn work(self: Arc<Self>) {
        let mut flying: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        loop {
            let wanted = self.signals.lock().unwrap_or_else(PoisonError::into_inner).wanted;
            let (work, wake_at) = self.plan();
            let done = work.is_empty() && flying.is_empty() && lock(&self.book).is_over();
            if done {
                break;
            }
            // A store that panics must not take the library thread with it.
            flying.extend(work.into_iter().map(|work| AssertUnwindSafe(work).catch_unwind().map(drop).boxed()));
            let mut sleep = std::pin::pin!(self.clock.sleep_until(wake_at));
            poll_fn(|cx| {
                let rung = self.bell.poll(cx).is_ready();
                let landed = matches!(flying.poll_next_unpin(cx), Poll::Ready(Some(())));
                if rung || landed || sleep.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                self.has_settled(wanted);
                Poll::Pending
            })
            .await;
        }
        let closing = self.ask("the end", Duration::from_secs(1), || self.store.close().map(Ok).boxed());
        // Whether it came to a good end or not, nobody is left to be told.
        drop(closing.await);
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        signals.ended = true;
        signals.settled = u64::MAX;
        self.signalled.notify_all();
    }

    fn has_settled(&self, wanted: u64) {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        if signals.settled < wanted {
            signals.settled = wanted;
            self.signalled.notify_all();
        }
    }

    /// Takes everything that is due out of the book, and says when to look again.
    fn plan(self: &Arc<Self>) -> (Vec<BoxFuture<'static, ()>>, Moment) {
        let now = self.clock.now();
        let late = lock(&self.book).take_late(now);
        late.iter().for_each(|hold| self.expire(hold));
        let mut work = Vec::new();
        let mut book = lock(&self.book);
        work.append(&mut book.tasks);
        for batch in chunks(book.take_renewals(now)) {
            let flight = book.take_off(self, Vec::new());
            work.push(Box::pin(self.clone().renew(batch, flight)) as BoxFuture<'static, ()>);
        }
        for batch in chunks(book.take_leaves(now)) {
            let flight = book.take_off(self, batch.iter().map(|leave| leave.place.name.shared_key()).collect());
            work.push(Box::pin(self.clone().send_leaves(batch, flight)));
        }
        book.wake_at = book.next_due();
        let wake_at = book.wake_at;
        if book.is_quiet() {
            let waiters = std::mem::take(&mut book.waiters);
            drop(book);
            waiters.into_iter().for_each(Waker::wake);
        }
        (work, wake_at)
    }

    /// A ticket's deadline is past: it is lost.
    fn expire(&self, hold: &Arc<Hold>) {
        if hold.lose_if_late() {
            if hold.is_lingering() {
                self.strike(hold.id()); // nobody's loss, and its leave has its time
            } else {
                self.bury(hold);
            }
        } else {
            self.keep(hold);
        }
    }

    /// A ticket is lost by the clock: what may be left of it in the store is taken out, once, by whoever comes first.
    pub(crate) fn bury(&self, hold: &Hold) {
        if self.strike(hold.id()) {
            observe::lost(hold);
            self.leave(self.leave_of(hold));
        }
    }

    /// One round trip for up to [`BATCH`] tickets.
    async fn renew(self: Arc<Self>, batch: Vec<(Arc<Hold>, Renew)>, _flight: Flight) {
        let (holds, batch): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let sent = self.clock.now();
        let patience = holds.iter().map(|hold| hold.terms.lease / 3).min().unwrap_or(Duration::ZERO);
        match self.ask("a renewal", patience.max(Duration::from_millis(20)), || self.store.renew(&batch)).await {
            Ok(answers) => {
                observe::renewed(answers.len());
                for ((hold, asked), answer) in holds.iter().zip(&batch).zip(answers) {
                    match answer {
                        _ if hold.id() != asked.place.id => {} // upgraded in the meantime: this was about its old ticket
                        Renewed::There { lease } => {
                            let late = hold.state() == State::Jeopardy;
                            if hold.confirm(sent, lease) && late {
                                observe::renewed_late(hold);
                            }
                        }
                        Renewed::Gone => {
                            // While an upgrade is under way it may have been replaced: the upgrade's answer tells.
                            if hold.upgrading.load(Ordering::Acquire) == 0 && hold.gone() {
                                observe::lost(hold);
                                self.strike(asked.place.id);
                            }
                        }
                    }
                }
                // Not at once, whatever the answers were.
                let now = self.clock.now();
                self.hurry(&holds, |hold| hold.renew_by().max(now.after(retry_after(hold.terms.lease))));
            }
            Err(error) => {
                observe::renewal_failed(&error, holds.len());
                holds.iter().for_each(|hold| hold.renewal_failed(sent));
                let now = self.clock.now();
                self.hurry(&holds, |hold| now.after(retry_after(hold.terms.lease)));
            }
        }
    }

    /// Those of these tickets that cannot wait for their round are renewed by themselves, when the first of them wants it:
    /// the others of the round are none the worse for it.
    fn hurry(&self, holds: &[Arc<Hold>], by: impl Fn(&Hold) -> Moment) {
        let (mut soonest, mut hasty) = (Moment::FAR, Vec::new());
        let mut book = lock(&self.book);
        for hold in holds {
            let by = by(hold);
            if hold.class().and_then(|class| book.rounds.get(&class)).is_some_and(|round| by < round.next) {
                soonest = soonest.min(by);
                hasty.push(hold.id());
            }
        }
        if !hasty.is_empty() {
            let at = (soonest, book.next_sequence());
            book.hasty.insert(at, hasty);
        }
        self.due_at(book, soonest);
    }

    /// One round trip for up to [`BATCH`] tickets.
    async fn send_leaves(self: Arc<Self>, mut batch: Vec<Leave>, _flight: Flight) {
        for leave in &mut batch {
            if let Some(hold) = leave.lingering.take() {
                // It was renewed until now.
                leave.give_up = leave.give_up.max(self.clock.now().after(leave.lease));
                hold.start_leaving();
                self.strike(leave.place.id);
            }
        }
        let places: Vec<Place> = batch.iter().map(|leave| leave.place.clone()).collect();
        let answer = self.ask("a release", PATIENCE, || self.store.leave(&places)).await;
        let answer = answer.and_then(|answers| all_of(&answers, places.len()).map(|()| answers));
        self.leaves_answered(batch, answer);
    }

    /// Asks the store something, at most for so long. No answer, or a panic, is an error with unknown effect.
    pub(crate) async fn ask<'a, T>(
        &self,
        what: &str,
        patience: Duration,
        question: impl FnOnce() -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let limit = std::pin::pin!(self.clock.sleep_until(self.clock.now().after(patience)));
        let answer = std::pin::pin!(AssertUnwindSafe(async { question().await }).catch_unwind());
        match futures_util::future::select(answer, limit).await {
            Either::Left((Ok(answer), _)) => answer,
            Either::Left((Err(_), _)) => Err(Error::unknown(format!("the store panicked during {what}"))),
            Either::Right(_) => Err(Error::unknown(format!("the store did not answer {what} in time"))),
        }
    }

    fn leaves_answered(&self, batch: Vec<Leave>, answer: Result<Vec<Presence>>) {
        match answer {
            Ok(answers) => {
                for (mut leave, presence) in batch.into_iter().zip(answers) {
                    if let Some(done) = leave.done.take() {
                        let _ = done.send(presence);
                    }
                    self.left(leave);
                }
            }
            Err(error) => {
                observe::release_failed(&error, batch.len());
                let now = self.clock.now();
                for mut leave in batch {
                    leave.tries += 1;
                    if now < leave.give_up {
                        let at = now.after(backoff(leave.tries)).min(leave.give_up);
                        self.leave_at(leave, at);
                    }
                }
            }
        }
    }

    /// Something is no longer under way.
    fn landed_one(&self, names: &[Arc<str>]) {
        let mut book = lock(&self.book);
        book.running -= 1;
        for name in names {
            if let Some(flying) = book.flying.get_mut(name) {
                *flying -= 1;
                if *flying == 0 {
                    book.flying.remove(name);
                }
            }
        }
        let waiters = std::mem::take(&mut book.waiters);
        drop(book);
        waiters.into_iter().for_each(Waker::wake);
    }

    #[cfg(all(test, not(fencelock_shuttle), feature = "test-util"))]
    pub(crate) fn kept(&self) -> usize {
        lock(&self.book).entries.len()
    }
}

#[cfg(feature = "test-util")]
impl crate::clock::Worker for Keeper {
    fn settle(&self) {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        signals.wanted = signals.wanted.saturating_add(1);
        let wanted = signals.wanted;
        drop(signals);
        self.bell.ring();
        let signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.signalled.wait_while(signals, |signals| signals.settled < wanted));
    }
}

/// A bell that wakes one sleeper; ringing it while nobody sleeps is not lost.
#[derive(Default)]
struct Bell(Mutex<(bool, Option<Waker>)>);

impl Bell {
    fn ring(&self) {
        let waker = {
            let mut bell = lock(&self.0);
            bell.0 = true;
            bell.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut bell = lock(&self.0);
        if std::mem::take(&mut bell.0) {
            return Poll::Ready(());
        }
        bell.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// How long after this confirmed leave an orphan is left again. Where it is watched for as long as a session lives: less and
/// less often, and at last once a lease.
fn watch_after(lifetime: Lifetime, lease: Duration, times: u32) -> Duration {
    let first = (lease / 10).max(Duration::from_millis(10));
    match lifetime {
        Lifetime::Ticket => first,
        Lifetime::Session | Lifetime::Connection => (first * (1 << times.min(4))).min(lease.max(first)),
    }
}

/// After a failed renewal: soon, but not in a hot loop.
fn retry_after(lease: Duration) -> Duration {
    (lease / 15).clamp(Duration::from_millis(10), Duration::from_secs(1)).mul_f64(0.75 + fastrand::f64() / 2.0)
}

/// A store that answers for fewer tickets than it was asked about is broken, and nothing can be told from its answer.
pub(crate) fn all_of<T>(answers: &[T], asked: usize) -> Result<()> {
    if answers.len() == asked {
        return Ok(());
    }
    let message = format!("the store gave {} answers for {asked} tickets", answers.len());
    Err(Error::new(ErrorKind::Broken, message).effect_unknown())
}

/// 20 ms, doubling up to 2 s, with jitter.
pub(crate) fn backoff(tries: u32) -> Duration {
    Duration::from_millis(20 << tries.min(7)).min(Duration::from_secs(2)).mul_f64(0.5 + fastrand::f64() / 2.0)
}

fn chunks<T>(all: Vec<T>) -> Vec<Vec<T>> {
    let mut all = all.into_iter();
    std::iter::from_fn(|| {
        let batch: Vec<T> = all.by_ref().take(BATCH).collect();
        (!batch.is_empty()).then_some(batch)
    })
    .collect()
}

#[cfg(all(test, fencelock_shuttle))]
mod shuttle;
#[cfg(all(test, not(fencelock_shuttle), feature = "test-util"))]
mod tests;
