//! One ticket of ours, waiting or held: its deadline, its guards, and the one place where it can become lost.
//!
//! The **deadline** is the moment at which the latest confirmed enter or renew of this ticket was *sent*, plus the lease that
//! was granted, minus a margin. A grant that was pushed, or the answer to a wait, never moves it: a message can be late
//! without bound. Whoever finds the deadline past makes the ticket lost, once and for ever: a renewal that is confirmed
//! later is too late.

use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, spoken};
use crate::name::Name;
use crate::store::{Kind, Place, Renew, TicketId, waiting_lease};
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How sure a guard can be of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Held, and renewed in time.
    Safe,
    /// Still held, but a renewal is overdue or has failed. It is tried again until the deadline.
    Jeopardy,
    /// No longer held. Another may hold it by now.
    Lost,
}

/// What was agreed for one ticket.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// Never renewed once it is held.
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
}

/// Why a ticket is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Loss {
    /// No renewal got through before the deadline.
    Unrenewed = 1,
    /// The store says that it is not there.
    Gone = 2,
    /// A fixed lease or `max_hold` came to its end.
    Ended = 3,
}

/// What the last guard's end asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Other guards are still there.
    Nothing,
    /// The last exclusive guard is gone, shared ones are left: the ticket becomes a reader's.
    Downgrade,
    /// Leave now.
    Leave,
    /// Leave at this moment (`min_hold`).
    Linger(Moment),
    /// It was lost before.
    WasLost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Held,
    /// No guard is left, `min_hold` is not over yet.
    Lingering,
    Leaving,
}

pub(crate) struct Hold {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) capacity: u32,
    pub(crate) terms: Terms,
    clock: Clock,
    number: AtomicU64,
    deadline: AtomicU64,
    /// When a renewal that has not come is overdue.
    due: AtomicU64,
    failed: AtomicBool,
    /// How many upgrades of it are under way. Only the library thread reads and writes it.
    pub(crate) upgrading: AtomicU64,
    /// 0, or a [`Loss`].
    lost: AtomicU8,
    inner: Mutex<Inner>,
}

struct Inner {
    id: TicketId,
    phase: Phase,
    weight: u32,
    exclusive: u32,
    shared: u32,
    /// When the latest confirmed enter or renew was sent.
    sent: Moment,
    granted: Moment,
    /// Until when an unanswered enter of this id may still have an effect.
    unanswered: Moment,
    wakers: Vec<(u64, Waker)>,
    next_waker: u64,
}

/// The deadline is this much before the end of the lease.
pub(crate) fn margin(lease: Duration) -> Duration {
    (lease / 50).max(Duration::from_millis(20))
}

impl Hold {
    pub(crate) fn new(clock: Clock, place: Place, kind: Kind, weight: u32, capacity: u32, terms: Terms) -> Hold {
        Hold {
            name: place.name,
            kind,
            capacity,
            terms,
            clock,
            number: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            failed: AtomicBool::new(false),
            upgrading: AtomicU64::new(0),
            lost: AtomicU8::new(0),
            inner: Mutex::new(Inner {
                id: place.id,
                phase: Phase::Waiting,
                weight,
                exclusive: 0,
                shared: 0,
                sent: Moment::default(),
                granted: Moment::default(),
                unanswered: Moment::default(),
                wakers: Vec::new(),
                next_waker: 0,
            }),
        }
    }

    pub(crate) fn place(&self) -> Place {
        Place { name: self.name.clone(), id: self.id() }
    }

    pub(crate) fn id(&self) -> TicketId {
        lock(&self.inner).id
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    pub(crate) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Release);
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn unanswered(&self) -> Moment {
        lock(&self.inner).unanswered
    }

    pub(crate) fn note_unanswered(&self, until: Moment) {
        let mut inner = lock(&self.inner);
        inner.unanswered = inner.unanswered.max(until);
    }

    /// Counts from the clock, at this very moment.
    pub(crate) fn state(&self) -> State {
        self.state_at(self.clock.now())
    }

    fn state_at(&self, now: Moment) -> State {
        if self.lost.load(Ordering::Acquire) != 0 {
            return State::Lost;
        }
        if now >= self.deadline() && self.lose_if_late() {
            return State::Lost;
        }
        if self.failed.load(Ordering::Acquire) || now.as_nanos() > self.due.load(Ordering::Acquire) {
            State::Jeopardy
        } else {
            State::Safe
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        let now = self.clock.now();
        match self.state_at(now) {
            State::Lost => Duration::ZERO,
            _ => self.deadline().since(now),
        }
    }

    /// Makes it lost if its deadline is past. Under the same lock as [`confirm`](Hold::confirm), so that a ticket that was
    /// once seen lost stays lost.
    pub(crate) fn lose_if_late(&self) -> bool {
        let inner = lock(&self.inner);
        if self.clock.now() < self.deadline() {
            return self.lost.load(Ordering::Acquire) != 0;
        }
        let ended = inner.phase != Phase::Waiting && self.end(&inner) <= self.deadline();
        let wakers = self.set_lost(inner, if ended { Loss::Ended } else { Loss::Unrenewed });
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    /// The moment at which it ends whatever the renewals say.
    fn end(&self, inner: &Inner) -> Moment {
        let most = self.most(inner);
        if self.terms.fixed { most.min(self.deadline()) } else { most }
    }

    /// The moment at which `max_hold` is over.
    fn most(&self, inner: &Inner) -> Moment {
        self.terms.max_hold.map_or(Moment::FAR, |max| inner.granted.after(max))
    }

    fn set_lost(&self, mut inner: crate::sync::MutexGuard<'_, Inner>, loss: Loss) -> Vec<Waker> {
        let first = self.lost.compare_exchange(0, loss as u8, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first { inner.wakers.drain(..).map(|(_, waker)| waker).collect() } else { Vec::new() }
    }

    /// The store says that it is gone. No loss if we have let go of it before. Says whether it was a loss.
    pub(crate) fn gone(&self) -> bool {
        let inner = lock(&self.inner);
        if inner.phase == Phase::Leaving || self.lost.load(Ordering::Acquire) != 0 {
            return false;
        }
        let wakers = self.set_lost(inner, Loss::Gone);
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        match self.lost.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Loss::Unrenewed),
            2 => Some(Loss::Gone),
            _ => Some(Loss::Ended),
        }
    }

    pub(crate) fn lost_error(&self) -> Error {
        let message = match self.loss() {
            Some(Loss::Gone) => "lost: the store says that it is gone (broken by somebody, or lapsed)".to_string(),
            Some(Loss::Ended) => match self.terms.max_hold {
                Some(max) if !self.terms.fixed || max < self.terms.lease => {
                    format!("lost: held for {}, the longest that was allowed", spoken(max))
                }
                _ => format!("lost: its fixed lease of {} has ended", spoken(self.terms.lease)),
            },
            _ => format!("lost: no renewal got through for {}", spoken(self.terms.lease)),
        };
        Error::new(ErrorKind::Lost, message).named(self.name.shown())
    }

    /// A confirmed enter or renew that was sent at `sent` and granted `lease` from then on. Says whether it is still ours.
    pub(crate) fn confirm(&self, sent: Moment, lease: Duration) -> bool {
        let mut inner = lock(&self.inner);
        if self.lost.load(Ordering::Acquire) != 0 {
            return false;
        }
        let first = self.deadline() == Moment::default();
        if !first && self.clock.now() >= self.deadline() {
            let wakers = self.set_lost(inner, Loss::Unrenewed);
            wakers.into_iter().for_each(Waker::wake);
            return false;
        }
        let mut deadline = sent.after(lease).before(margin(lease));
        let waits = inner.phase == Phase::Waiting;
        if !waits {
            deadline = deadline.min(self.most(&inner));
        }
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        if sent >= inner.sent {
            inner.sent = sent;
            self.failed.store(false, Ordering::Release);
            let last = !waits && self.end(&inner) <= self.deadline();
            let due = if last { Moment::FAR } else { sent.after(lease.min(self.renew_lease(waits)) / 2) };
            self.due.store(due.as_nanos(), Ordering::Release);
        }
        true
    }

    /// A renewal that was sent at `sent` failed, with what became of it unknown. Old news if a later one was confirmed.
    pub(crate) fn renewal_failed(&self, sent: Moment) {
        let inner = lock(&self.inner);
        if sent >= inner.sent {
            self.failed.store(true, Ordering::Release);
        }
    }

    fn renew_lease(&self, waits: bool) -> Duration {
        if waits { waiting_lease(self.terms.lease) } else { self.terms.lease }
    }

    /// The lease that its renewals ask for in its present phase; `None` if it is not to be renewed.
    pub(crate) fn class(&self) -> Option<Duration> {
        let inner = lock(&self.inner);
        let waits = inner.phase == Phase::Waiting;
        (waits || !self.terms.fixed).then(|| self.renew_lease(waits))
    }

    /// When it wants to be renewed at the latest: after a third of the lease that was granted, which may be less than what
    /// was asked for.
    pub(crate) fn renew_by(&self) -> Moment {
        let (due, sent) = (Moment::from_nanos(self.due.load(Ordering::Acquire)), lock(&self.inner).sent);
        if due == Moment::FAR { due } else { sent.after(due.since(sent) / 3 * 2) }
    }

    /// What to send to renew it now; `None` if it is not to be renewed, or was so just now.
    pub(crate) fn renewal(&self, now: Moment, even_if_fresh: bool) -> Option<Renew> {
        let inner = lock(&self.inner);
        let waits = inner.phase == Phase::Waiting;
        if inner.phase == Phase::Leaving || self.lost.load(Ordering::Acquire) != 0 {
            return None;
        }
        let mut lease = self.renew_lease(waits);
        let last = !waits && self.end(&inner) <= self.deadline();
        // A tenth of the lease that it really has: the renewal is overdue after half of it.
        let fresh = now.since(inner.sent) < Moment::from_nanos(self.due.load(Ordering::Acquire)).since(inner.sent) / 5;
        if !even_if_fresh && (last || fresh) {
            return None;
        }
        if !waits {
            // As far as its end, if it has one: beyond that there is nothing to renew, only to ask whether it is there.
            lease = lease.min(self.end(&inner).since(now).saturating_add(margin(lease)));
        }
        Some(Renew { place: Place { name: self.name.clone(), id: inner.id }, lease, at_least: None })
    }

    /// It is ours from now on. Needs at least one guard, which is counted here.
    pub(crate) fn grant(&self, exclusive: bool) {
        let mut inner = lock(&self.inner);
        let now = self.clock.now();
        inner.phase = Phase::Held;
        inner.granted = now;
        *(if exclusive { &mut inner.exclusive } else { &mut inner.shared }) += 1;
        self.deadline.fetch_min(self.end(&inner).as_nanos(), Ordering::AcqRel);
        if self.end(&inner) <= self.deadline() {
            self.due.store(u64::MAX, Ordering::Release);
        }
    }

    /// One more guard on the same ticket; refused if it is not held, or if a reader wants to become a writer that way.
    pub(crate) fn attach(&self, exclusive: bool) -> Attach {
        if self.state() == State::Lost {
            return Attach::NotHeld;
        }
        let mut inner = lock(&self.inner);
        if inner.phase != Phase::Held || inner.exclusive + inner.shared == 0 {
            return Attach::NotHeld;
        }
        if exclusive && inner.weight != self.capacity {
            return Attach::Deadlock;
        }
        *(if exclusive { &mut inner.exclusive } else { &mut inner.shared }) += 1;
        Attach::Done
    }

    /// Whether `min_hold` is not over yet.
    pub(crate) fn is_held_back(&self) -> bool {
        self.clock.now() < lock(&self.inner).granted.after(self.terms.min_hold)
    }

    /// Whether somebody has a guard on it and it is not lost.
    pub(crate) fn is_held(&self) -> bool {
        let inner = lock(&self.inner);
        inner.phase == Phase::Held && inner.exclusive + inner.shared > 0 && self.lost.load(Ordering::Acquire) == 0
    }

    /// One guard less. Under the same lock as [`attach`](Hold::attach): whoever comes after the last one finds nothing.
    pub(crate) fn detach(&self, exclusive: bool) -> Ending {
        let mut inner = lock(&self.inner);
        *(if exclusive { &mut inner.exclusive } else { &mut inner.shared }) -= 1;
        if self.lost.load(Ordering::Acquire) != 0 {
            return Ending::WasLost;
        }
        match (inner.exclusive, inner.shared) {
            (0, 0) => {
                let until = inner.granted.after(self.terms.min_hold);
                if self.clock.now() < until {
                    inner.phase = Phase::Lingering;
                    return Ending::Linger(until);
                }
                inner.phase = Phase::Leaving;
                Ending::Leave
            }
            (0, _) if inner.weight == self.capacity => {
                inner.weight = 1;
                Ending::Downgrade
            }
            _ => Ending::Nothing,
        }
    }

    pub(crate) fn is_lingering(&self) -> bool {
        lock(&self.inner).phase == Phase::Lingering
    }

    /// From now on it is being left; says whether it was still ours to leave.
    pub(crate) fn start_leaving(&self) -> bool {
        let mut inner = lock(&self.inner);
        inner.phase = Phase::Leaving;
        self.lost.load(Ordering::Acquire) == 0
    }

    /// The same, if it has never been granted.
    pub(crate) fn start_leaving_if_waiting(&self) -> bool {
        let mut inner = lock(&self.inner);
        let waiting = inner.phase == Phase::Waiting;
        if waiting {
            inner.phase = Phase::Leaving;
        }
        waiting
    }

    /// An exclusive guard becomes a shared one. Says whether the ticket's weight has to follow.
    pub(crate) fn soften(&self) -> bool {
        let mut inner = lock(&self.inner);
        inner.exclusive -= 1;
        inner.shared += 1;
        let last = inner.exclusive == 0 && inner.weight == self.capacity;
        if last {
            inner.weight = 1;
        }
        last
    }

    /// A shared guard becomes an exclusive one, if the ticket is a writer's already.
    pub(crate) fn harden(&self) -> bool {
        let mut inner = lock(&self.inner);
        let writer = inner.weight == self.capacity;
        if writer {
            inner.shared -= 1;
            inner.exclusive += 1;
        }
        writer
    }

    /// The ticket was replaced by one with a new id and number and all of the capacity; one shared guard becomes exclusive.
    /// `false` if it was lost before.
    pub(crate) fn upgraded(&self, id: TicketId, number: u64) -> bool {
        let mut inner = lock(&self.inner);
        if self.lost.load(Ordering::Acquire) != 0 {
            return false;
        }
        inner.id = id;
        inner.weight = self.capacity;
        inner.shared -= 1;
        inner.exclusive += 1;
        inner.unanswered = Moment::default();
        self.number.store(number, Ordering::Release);
        true
    }

    /// Ready when it is lost. `key` belongs to the caller's future, which must hand it to [`forget`](Hold::forget) at its end.
    pub(crate) fn poll_lost(&self, cx: &mut Context<'_>, key: &mut Option<u64>) -> Poll<()> {
        if self.state() == State::Lost {
            return Poll::Ready(());
        }
        let mut inner = lock(&self.inner);
        if self.lost.load(Ordering::Acquire) != 0 {
            return Poll::Ready(());
        }
        let known = key.and_then(|key| inner.wakers.iter_mut().find(|(other, _)| *other == key));
        match known {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => {
                inner.next_waker += 1;
                let new = inner.next_waker;
                inner.wakers.push((new, cx.waker().clone()));
                *key = Some(new);
            }
        }
        Poll::Pending
    }

    pub(crate) fn forget(&self, key: Option<u64>) {
        if let Some(key) = key {
            lock(&self.inner).wakers.retain(|(other, _)| *other != key);
        }
    }

    /// A future that is ready when it is lost.
    pub(crate) fn lost(&self) -> Lost<'_> {
        Lost { hold: self, key: None }
    }
}

/// What became of an [`attach`](Hold::attach).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    Done,
    NotHeld,
    Deadlock,
}

/// See [`Hold::lost`].
pub(crate) struct Lost<'a> {
    hold: &'a Hold,
    key: Option<u64>,
}

impl Future for Lost<'_> {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.hold.poll_lost(cx, &mut this.key)
    }
}

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        self.hold.forget(self.key);
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hold({:?} token {} {:?})", self.name, self.number(), self.state())
    }
}
