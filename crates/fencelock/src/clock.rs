//! Time: the clock that every deadline is measured on, and the timers that sleep on it.
//!
//! Deadlines are kept on a clock that goes on while the machine is suspended (`CLOCK_BOOTTIME` on Linux): a laptop that
//! slept past its lease has lost its lock. Timers run on one thread of their own for the whole process, so that they fire
//! although a runtime is blocked, and outside of any runtime. With the feature `test-util`, [`VirtualClock`] is a clock that
//! tests move by hand.
//!
//! Elsewhere than on Linux the clock is [`std::time::Instant`], which may stand still during a suspend.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
#[cfg(feature = "test-util")]
use std::sync::Arc;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A point in time on a [`Clock`]; only comparable with moments of the same clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// A moment that never comes.
    pub const FAR: Moment = Moment(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `after` later; at most [`FAR`](Moment::FAR).
    #[must_use]
    pub fn after(self, after: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The moment `before` earlier; at least the clock's zero.
    #[must_use]
    pub fn before(self, before: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(before.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::fmt::Debug for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Moment::FAR { f.write_str("never") } else { write!(f, "{:?}", Duration::from_nanos(self.0)) }
    }
}

/// A clock: the machine's, or one that a test moves. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock(Kind);

#[derive(Clone, Default)]
enum Kind {
    #[default]
    System,
    #[cfg(feature = "test-util")]
    Virtual(Arc<virtual_clock::Shared>),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::System => "system",
            #[cfg(feature = "test-util")]
            Kind::Virtual(_) => "virtual",
        })
    }
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Clock {
        Clock(Kind::System)
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Moment {
        match &self.0 {
            Kind::System => system_now(),
            #[cfg(feature = "test-util")]
            Kind::Virtual(shared) => shared.now(),
        }
    }

    /// Sleeps until `moment`. Needs no runtime; dropping the future ends the timer.
    pub fn sleep_until(&self, moment: Moment) -> Sleep {
        Sleep { clock: self.clone(), moment, key: None }
    }

    fn timers(&self) -> &Timers {
        match &self.0 {
            Kind::System => &system_timers().timers,
            #[cfg(feature = "test-util")]
            Kind::Virtual(shared) => &shared.timers,
        }
    }

    /// The virtual clock behind this one, if it is one.
    #[cfg(feature = "test-util")]
    pub(crate) fn as_virtual(&self) -> Option<&Arc<virtual_clock::Shared>> {
        match &self.0 {
            Kind::System => None,
            Kind::Virtual(shared) => Some(shared),
        }
    }
}

/// A future that is ready at its moment: see [`Clock::sleep_until`].
#[derive(Debug)]
#[must_use = "a sleep does nothing until it is polled"]
pub struct Sleep {
    clock: Clock,
    moment: Moment,
    key: Option<(Moment, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.moment {
            return Poll::Ready(());
        }
        if self.moment == Moment::FAR {
            return Poll::Pending;
        }
        let (moment, key) = (self.moment, self.key);
        let (key, first) = self.clock.timers().set(moment, key, cx.waker());
        self.key = Some(key);
        match &self.clock.0 {
            // An alarm for a moment that has come in the meantime goes off at once.
            Kind::System if first => system_timers().arm(),
            Kind::System => {}
            // This clock may have been moved between the look and the setting of the timer.
            #[cfg(feature = "test-util")]
            Kind::Virtual(shared) if shared.now() >= moment => return Poll::Ready(()),
            #[cfg(feature = "test-util")]
            Kind::Virtual(_) => {}
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.clock.timers().cancel(key);
        }
    }
}

/// The pending timers of one clock, in the order in which they are due.
#[derive(Default)]
struct Timers(Mutex<TimerState>);

#[derive(Default)]
struct TimerState {
    due: BTreeMap<(Moment, u64), Waker>,
    next: u64,
    /// The alarm will go off by then. One that is too early only makes its thread look once more, so it is not set back for
    /// timers that are gone: most of them are, long before their time.
    armed: Option<Moment>,
}

impl Timers {
    /// Sets or refreshes a timer; says its key and whether it is the first to be due.
    fn set(&self, moment: Moment, key: Option<(Moment, u64)>, waker: &Waker) -> ((Moment, u64), bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key.unwrap_or_else(|| {
            state.next += 1;
            (moment, state.next)
        });
        match state.due.get_mut(&key) {
            Some(old) => {
                old.clone_from(waker);
                (key, false)
            }
            None => {
                state.due.insert(key, waker.clone());
                (key, state.due.first_key_value().is_some_and(|(first, _)| *first == key))
            }
        }
    }

    fn cancel(&self, key: (Moment, u64)) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).due.remove(&key);
        drop(waker); // outside of the lock: a waker's drop may run anything
    }

    #[cfg(feature = "test-util")]
    fn first(&self) -> Option<Moment> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).due.first_key_value().map(|((moment, _), _)| *moment)
    }

    /// Wakes everybody who is due.
    fn fire(&self, now: Moment) {
        let due = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let later = state.due.split_off(&(now, u64::MAX));
            std::mem::replace(&mut state.due, later)
        };
        due.into_values().for_each(Waker::wake);
    }
}

/// The machine's timers and the thread that waits for the next one.
struct SystemTimers {
    timers: Timers,
    alarm: alarm::Alarm,
}

impl SystemTimers {
    /// Makes the thread wake up in time for the first timer. Under the timers' lock from the look to the setting: of two at
    /// once, the one that looked first could otherwise set the alarm back to a later moment.
    fn arm(&self) {
        let mut state = self.timers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = state.due.first_key_value().map(|((moment, _), _)| *moment);
        if let Some(moment) = first.filter(|first| state.armed.is_none_or(|armed| *first < armed)) {
            state.armed = Some(moment);
            self.alarm.set(moment);
        }
    }
}

fn system_timers() -> &'static SystemTimers {
    static TIMERS: OnceLock<&'static SystemTimers> = OnceLock::new();
    TIMERS.get_or_init(|| {
        let timers: &'static SystemTimers =
            Box::leak(Box::new(SystemTimers { timers: Timers::default(), alarm: alarm::Alarm::new() }));
        std::thread::Builder::new()
            .name("fencelock-timer".into())
            .stack_size(128 * 1024)
            .spawn(move || {
                loop {
                    timers.alarm.wait();
                    timers.timers.0.lock().unwrap_or_else(PoisonError::into_inner).armed = None;
                    timers.timers.fire(system_now());
                    timers.arm();
                }
            })
            .expect("the system can start one more thread");
        timers
    })
}

#[cfg(target_os = "linux")]
fn system_now() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Moment(u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(not(target_os = "linux"))]
fn system_now() -> Moment {
    static ZERO: OnceLock<std::time::Instant> = OnceLock::new();
    // An hour past zero, so that `before` has room.
    Moment::from_nanos(3_600_000_000_000).after(ZERO.get_or_init(std::time::Instant::now).elapsed())
}

/// A `timerfd` on the boot-time clock: it may be set from any thread while one thread reads it.
#[cfg(target_os = "linux")]
mod alarm {
    use super::Moment;
    use rustix::fd::OwnedFd;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };

    pub(super) struct Alarm(OwnedFd);

    impl Alarm {
        pub(super) fn new() -> Alarm {
            let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC);
            Alarm(fd.expect("the system can make one more timer"))
        }

        pub(super) fn set(&self, moment: Moment) {
            let nanos = moment.as_nanos().max(1); // zero would switch it off
            let value = Timespec {
                tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (nanos % 1_000_000_000) as _,
            };
            let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            // It cannot fail on our own descriptor with a valid time.
            let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec);
        }

        pub(super) fn wait(&self) {
            let mut count = [0u8; 8];
            // An interruption only makes the thread look once more than it had to.
            let _ = rustix::io::read(&self.0, &mut count);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod alarm {
    use super::Moment;
    use std::sync::{Condvar, Mutex, PoisonError};

    #[derive(Default)]
    pub(super) struct Alarm {
        at: Mutex<Option<Moment>>,
        changed: Condvar,
    }

    impl Alarm {
        pub(super) fn new() -> Alarm {
            Alarm::default()
        }

        pub(super) fn set(&self, moment: Moment) {
            *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
            self.changed.notify_one();
        }

        pub(super) fn wait(&self) {
            let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let now = super::system_now();
                match *at {
                    Some(moment) if moment <= now => {
                        *at = None;
                        return;
                    }
                    Some(moment) => {
                        let left = moment.since(now);
                        at = self.changed.wait_timeout(at, left).unwrap_or_else(PoisonError::into_inner).0;
                    }
                    None => at = self.changed.wait(at).unwrap_or_else(PoisonError::into_inner),
                }
            }
        }
    }
}

#[cfg(feature = "test-util")]
pub use virtual_clock::VirtualClock;
#[cfg(feature = "test-util")]
pub(crate) use virtual_clock::Worker;

#[cfg(feature = "test-util")]
mod virtual_clock {
    use super::{Arc, Clock, Duration, Kind, Moment, Mutex, PoisonError, Timers};
    use std::sync::Weak;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Somebody who works when the clock moves, and can say when he is done with it: the keeper of a `Locks`.
    pub(crate) trait Worker: Send + Sync {
        /// Blocks until everything that is due at the clock's present time has been done.
        fn settle(&self);
    }

    /// A clock that stands still until a test moves it, so that code which waits for leases can be tested without waiting.
    ///
    /// ```
    /// use fencelock::{Locks, State, VirtualClock, store::memory::MemoryStore};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> fencelock::Result<()> {
    /// let clock = VirtualClock::new();
    /// let locks = Locks::with_store(MemoryStore::with_clock(clock.clock()));
    /// let options = fencelock::Options::new().fixed_lease(Duration::from_secs(10));
    /// let guard = locks.mutex("nightly").lock_with(options).await?;
    ///
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!(guard.state(), State::Safe);
    /// clock.advance(Duration::from_secs(6));
    /// assert_eq!(guard.state(), State::Lost);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Clone)]
    pub struct VirtualClock(Arc<Shared>);

    pub(crate) struct Shared {
        now: AtomicU64,
        pub(super) timers: Timers,
        workers: Mutex<Vec<Weak<dyn Worker>>>,
    }

    impl Shared {
        pub(super) fn now(&self) -> Moment {
            Moment(self.now.load(Ordering::SeqCst))
        }

        pub(crate) fn add_worker(&self, worker: Weak<dyn Worker>) {
            self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
    }

    impl std::fmt::Debug for VirtualClock {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "VirtualClock({:?})", self.0.now())
        }
    }

    impl Default for VirtualClock {
        fn default() -> Self {
            VirtualClock::new()
        }
    }

    impl VirtualClock {
        /// A clock that stands at one hour.
        #[must_use]
        pub fn new() -> VirtualClock {
            VirtualClock(Arc::new(Shared {
                now: AtomicU64::new(3_600_000_000_000),
                timers: Timers::default(),
                workers: Mutex::new(Vec::new()),
            }))
        }

        /// The clock to hand to a store.
        #[must_use]
        pub fn clock(&self) -> Clock {
            Clock(Kind::Virtual(self.0.clone()))
        }

        /// The time now.
        #[must_use]
        pub fn now(&self) -> Moment {
            self.0.now()
        }

        /// Moves the clock, timer by timer, and blocks until every `Locks` on this clock has done what was due: renewals,
        /// deadlines, releases. Tasks of the caller's own runtime run when the caller next yields.
        pub fn advance(&self, by: Duration) {
            let target = self.0.now().after(by);
            // Whoever was told of something just now has to set its timers first.
            self.settle();
            loop {
                let step = self.0.timers.first().map_or(target, |first| first.max(self.0.now()).min(target));
                self.jump_to(step);
                self.settle();
                let none_left = self.0.timers.first().is_none_or(|first| first > step);
                if step == target && none_left {
                    return;
                }
            }
        }

        /// Moves the clock in one jump, as a suspended machine or a stopped process would see it: what was due on the way
        /// is late. Does not wait for anybody.
        pub fn jump(&self, by: Duration) {
            self.jump_to(self.0.now().after(by));
        }

        /// Blocks until every `Locks` on this clock has done what is due now.
        pub fn settle(&self) {
            let workers: Vec<_> = {
                let mut workers = self.0.workers.lock().unwrap_or_else(PoisonError::into_inner);
                workers.retain(|worker| worker.strong_count() > 0);
                workers.iter().filter_map(Weak::upgrade).collect()
            };
            workers.iter().for_each(|worker| worker.settle());
        }

        #[cfg(all(test, not(fencelock_shuttle)))]
        pub(crate) fn has_timer_beyond(&self, after: Duration) -> bool {
            let latest = self.0.timers.0.lock().unwrap_or_else(PoisonError::into_inner);
            latest.due.last_key_value().is_some_and(|((moment, _), _)| *moment > self.0.now().after(after))
        }

        fn jump_to(&self, moment: Moment) {
            self.0.now.fetch_max(moment.as_nanos(), Ordering::SeqCst);
            self.0.timers.fire(self.0.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_need_no_runtime_and_fire_in_order() {
        let clock = Clock::system();
        let start = clock.now();
        let late = clock.sleep_until(start.after(Duration::from_millis(30)));
        let soon = clock.sleep_until(start.after(Duration::from_millis(5)));
        let first = futures_util::future::select(late, soon);
        let which = block_on(first);
        assert!(matches!(which, futures_util::future::Either::Right(_)), "the sooner timer fires first");
        assert!(clock.now() >= start.after(Duration::from_millis(5)));
    }

    #[test]
    fn a_dropped_sleep_leaves_no_timer() {
        #[cfg(feature = "test-util")]
        {
            let clock = VirtualClock::new();
            let handle = clock.clock();
            let mut sleep = Box::pin(handle.sleep_until(clock.now().after(Duration::from_secs(1))));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(sleep.as_mut().poll(&mut cx).is_pending());
            assert!(handle.timers().first().is_some());
            drop(sleep);
            assert!(handle.timers().first().is_none());
        }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }
}
