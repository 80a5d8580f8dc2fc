//! One session: its client, how long it surely lives, and what keeps it so.
//!
//! # How long it surely lives
//!
//! A client speaks to one server, but sessions end by the leader's clock. A server tells the leader of the sessions that it
//! heard of only with the next heart beat, twice a tick. So pings and reads prove nothing, since a server that is cut off
//! answers them alone; and even a write that the leader confirmed proves only that the connection between the two stood then,
//! and with it that what the server had heard *a heart beat earlier* has reached the leader. Hence: a confirmed write that was
//! sent at `t` lets the session live for its timeout from the latest earlier write that was sent at least two sevenths of
//! the timeout before `t` (the shortest timeout that servers grant is two ticks, so a heart beat is at most a quarter of it).
//! A new session's own creation goes to the leader, and counts from its sending.
//!
//! So that there is always such an earlier write, a session in use that has nothing else to say writes every sixth of its
//! timeout: a transaction of one check.

use super::fault;
use crate::clock::{Clock, Moment};
use crate::store::session::Life;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use zookeeper_client::{Client, Error as ZkError, MultiWriteError};

/// A session that nobody has used for so many timeouts is not kept fresh any more; the next use opens another.
const IDLE: u32 = 10;
/// What was sent this long ago has had its effect, or will have none.
const SETTLED: Duration = Duration::from_secs(2);

/// Both answers. The questions were sent when these futures were made, and are answered in that order on one connection: whoever
/// waits for the second one first is woken once instead of twice.
pub(super) async fn in_turn<A, B>(
    first: impl Future<Output = A>,
    second: Option<impl Future<Output = B>>,
) -> (A, Option<B>) {
    let second = match second {
        Some(second) => Some(second.await),
        None => None,
    };
    (first.await, second)
}

/// A session.
pub(super) struct Live {
    pub(super) client: Client,
    /// The server's number of it: the owner of its nodes.
    pub(super) id: i64,
    /// The timeout that was granted.
    pub(super) timeout: Duration,
    clock: Clock,
    touches: Mutex<Touches>,
    connected: AtomicBool,
    /// How many tickets hang on it, or may.
    tickets: AtomicUsize,
    /// When it was last asked for, and when a ticket last went.
    used: AtomicU64,
    went: AtomicU64,
    /// Its upkeep sleeps for long.
    dozing: AtomicBool,
    pub(super) woken: Arc<Notify>,
}

/// What is known of its life.
struct Touches {
    life: Life,
    timeout: Duration,
    /// When confirmed writes were sent, oldest first: the latest that is old enough to count, and the younger ones.
    sent: VecDeque<Moment>,
}

impl Touches {
    fn new(sent: Moment, timeout: Duration) -> Touches {
        Touches { life: Life::new(sent, timeout), timeout, sent: VecDeque::from([sent]) }
    }

    /// How much earlier a write must have been sent to count.
    fn gap(timeout: Duration) -> Duration {
        timeout * 2 / 7
    }

    /// How long it will surely live, from `now`, if a write that is sent now is confirmed.
    fn promise(&self, now: Moment) -> Duration {
        let gap = Touches::gap(self.timeout);
        let first = self.sent.iter().rev().find(|touch| touch.after(gap) <= now);
        let then = first.map_or(Duration::ZERO, |touch| touch.after(self.timeout).since(now));
        self.life.remaining(now).max(then)
    }

    /// A write that was sent at `sent` was confirmed by the leader.
    fn confirmed(&mut self, sent: Moment) {
        // A few of each gap are enough.
        if self.sent.back().is_none_or(|last| sent >= last.after(self.timeout / 64)) {
            self.sent.push_back(sent);
        }
        let old_enough = |touch: &Moment| touch.after(Touches::gap(self.timeout)) <= sent;
        while self.sent.get(1).is_some_and(old_enough) {
            self.sent.pop_front();
        }
        if let Some(first) = self.sent.front().copied().filter(old_enough) {
            self.life.confirm(first, self.timeout);
        }
    }
}

impl Live {
    /// A session whose opening was sent at `sent`.
    pub(super) fn new(client: Client, clock: Clock, sent: Moment) -> Live {
        let timeout = client.session_timeout();
        Live {
            id: client.session_id().0,
            timeout,
            touches: Mutex::new(Touches::new(sent, timeout)),
            connected: AtomicBool::new(true),
            tickets: AtomicUsize::new(0),
            used: AtomicU64::new(sent.as_nanos()),
            went: AtomicU64::new(0),
            dozing: AtomicBool::new(false),
            woken: Arc::default(),
            clock,
            client,
        }
    }

    fn touches(&self) -> MutexGuard<'_, Touches> {
        self.touches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it surely lives, from `now`.
    pub(super) fn remaining(&self, now: Moment) -> Duration {
        self.touches().life.remaining(now)
    }

    /// A write that was sent at `sent` was answered.
    pub(super) fn wrote<T>(&self, sent: Moment, answer: &Result<T, ZkError>) {
        if answer.as_ref().err().is_none_or(fault::is_answer) {
            self.touches().confirmed(sent);
        }
    }

    /// The same for a transaction.
    pub(super) fn wrote_multi<T>(&self, sent: Moment, answer: &Result<T, MultiWriteError>) {
        match answer {
            Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => self.touches().confirmed(sent),
            Err(_) => {}
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Release);
    }

    /// The servers, or the client for them, say that it has ended: its nodes are gone, or will be before long.
    pub(super) fn end(&self) {
        self.set_connected(false);
        self.touches().life.end();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.touches().life.has_ended()
    }

    /// Whether a new ticket should rather get another session: nobody hangs on this one, and there is not much left of it.
    pub(super) fn is_stale(&self, now: Moment) -> bool {
        let half = self.timeout * 21 / 40;
        self.has_ended() || (!self.has_tickets() && self.touches().promise(now) < half)
    }

    /// Somebody wants something of it.
    pub(super) fn used(&self, now: Moment) {
        self.used.store(now.as_nanos(), Ordering::Relaxed);
        if self.dozing.load(Ordering::Relaxed) && self.dozing.swap(false, Ordering::AcqRel) {
            self.woken.notify_one();
        }
    }

    pub(super) fn has_tickets(&self) -> bool {
        self.tickets.load(Ordering::Acquire) > 0
    }

    pub(super) fn ticket_came(&self) {
        self.tickets.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn ticket_went(&self) {
        self.went.fetch_max(self.clock.now().as_nanos(), Ordering::AcqRel);
        self.tickets.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether what it owns is to be compared with what we know, if that was last done then: while it has tickets, and once
    /// more when what was sent for the last of them has surely had its effect.
    pub(super) fn wants_comparing(&self, compared: Moment) -> bool {
        let went = Moment::from_nanos(self.went.load(Ordering::Acquire));
        self.has_tickets() || (went > Moment::default() && compared < went.after(SETTLED))
    }

    /// When it must write something at the latest, so that what is left never falls below half; and whether it is in use.
    pub(super) fn next_touch(&self, now: Moment) -> Option<Moment> {
        let used = Moment::from_nanos(self.used.load(Ordering::Relaxed));
        let in_use = self.has_tickets() || used.after(self.timeout * IDLE) > now;
        let last = self.touches().sent.back().copied().unwrap_or(used);
        in_use.then(|| last.after(self.timeout / 6))
    }

    /// Its upkeep has nothing to do for long: the next use wakes it.
    pub(super) fn doze(&self) {
        self.dozing.store(true, Ordering::Release);
    }

    /// Says something to the leader, so that it hears of us: one round trip.
    pub(super) async fn touch(&self) {
        let sent = self.clock.now();
        let mut writer = self.client.new_multi_writer();
        if writer.add_check_version("/", -1).is_ok() {
            let answer = writer.commit().await;
            self.wrote_multi(sent, &answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_millis(8400);

    fn at(millis: u64) -> Moment {
        Moment::default().after(Duration::from_millis(100_000 + millis))
    }

    fn left(touches: &Touches, now: u64) -> u64 {
        u64::try_from(touches.life.remaining(at(now)).as_millis()).unwrap()
    }

    #[test]
    fn only_what_was_sent_a_heart_beat_before_counts() {
        let mut touches = Touches::new(at(0), T);
        assert_eq!(left(&touches, 0), 8400, "the creation counts by itself");
        touches.confirmed(at(1000));
        touches.confirmed(at(2000));
        assert_eq!(left(&touches, 2000), 6400, "what was sent just before may not have reached the leader");
        touches.confirmed(at(3400));
        assert_eq!(left(&touches, 3400), 6000, "the one of second 1 has");
        touches.confirmed(at(20_000));
        assert_eq!(left(&touches, 20_000), 0, "after a long silence nothing recent has been heard for sure");
        touches.confirmed(at(22_400));
        assert_eq!(left(&touches, 22_400), 6000);
    }

    #[test]
    fn a_busy_session_remembers_little_and_counts_closely() {
        let mut touches = Touches::new(at(0), T);
        for i in 0..10_000 {
            touches.confirmed(at(i * 10));
        }
        assert!(touches.sent.len() < 40, "{}", touches.sent.len());
        let left = left(&touches, 99_990);
        assert!((5800..=6000).contains(&left), "{left}");
    }

    #[test]
    fn a_session_that_writes_every_sixth_always_has_more_than_half() {
        let mut touches = Touches::new(at(0), T);
        for now in (0..60_000u64).step_by(50) {
            if now % 1400 == 0 {
                touches.confirmed(at(now));
            }
            assert!(touches.promise(at(now)) > T * 21 / 40, "nobody needs another session");
            // An enter at any moment is a write as well.
            let mut entered = Touches { sent: touches.sent.clone(), ..Touches::new(at(0), T) };
            entered.life = touches.life;
            entered.confirmed(at(now));
            assert!(left(&entered, now) > 8400 / 2 + 8400 / 50, "{} at {now}", left(&entered, now));
        }
    }
}
