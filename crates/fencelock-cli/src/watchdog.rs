//! The thread that stops the child before another may start. It does nothing else, so nothing can delay it: it does not
//! talk to the store, it only looks at the clock and at what the guard knows.
//!
//! - No renewal gets through: SIGTERM at the local deadline minus the grace, SIGKILL at the deadline.
//! - The store tells that the lock is gone: SIGTERM at once, SIGKILL after the grace, never later than the deadline.
//! - The deadline is past already (we were stopped): SIGKILL at once. Another may hold the lock by then; only a resource
//!   that checks the token is safe.

use crate::child::Group;
use crate::held::Held;
use fencelock::State;
use fencelock::clock::{Clock, Moment};
use nix::sys::signal::Signal;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// The running watch.
#[derive(Debug)]
pub(crate) struct Watchdog {
    thread: JoinHandle<Option<Moment>>,
}

impl Watchdog {
    pub(crate) fn start(held: Arc<Held>, group: Group, clock: Clock, grace: Duration) -> Watchdog {
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .stack_size(64 * 1024)
            .spawn(move || watch(&held, &group, &clock, grace))
            .expect("the system can start one more thread");
        Watchdog { thread }
    }

    /// Ends it: the child is gone. If it was stopped, this is the moment at which nothing of it may be left.
    pub(crate) fn end(self) -> Option<Moment> {
        self.thread.thread().unpark();
        // It can only have panicked, and then the program is about to end with code 70.
        self.thread.join().ok().flatten()
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Says when the child was to be gone, if it had to be stopped.
fn watch(held: &Held, group: &Group, clock: &Clock, grace: Duration) -> Option<Moment> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut lost = pin!(held.lost());
    // As it was when we last looked and it was not lost. It may have moved since, always to later. A loss before
    // `deadline - grace` leaves room for all of the grace either way, and at that moment we look again.
    let mut deadline = clock.now().after(held.remaining());
    loop {
        if !group.is_there() {
            return None;
        }
        let told = lost.as_mut().poll(&mut cx).is_ready();
        if told || held.state() == State::Lost {
            break;
        }
        deadline = clock.now().after(held.remaining());
        let warning = deadline.before(grace);
        if clock.now() >= warning {
            break;
        }
        sleep(clock, warning, &mut cx);
    }
    let now = clock.now();
    let kill_at = deadline.min(now.after(grace));
    let mut heard = false;
    if now < kill_at {
        heard = group.signal(Signal::SIGTERM);
        // A stopped child could not hear it.
        group.signal(Signal::SIGCONT);
        while group.is_there() && clock.now() < kill_at {
            sleep(clock, kill_at, &mut cx);
        }
    }
    heard |= group.signal(Signal::SIGKILL);
    heard.then_some(kill_at)
}

/// Until that moment, a wake-up, or sooner. The clock's timer counts suspends, the thread's does not: both are set.
fn sleep(clock: &Clock, until: Moment, cx: &mut Context<'_>) {
    let mut timer = pin!(clock.sleep_until(until));
    if timer.as_mut().poll(cx).is_pending() {
        std::thread::park_timeout(until.since(clock.now()));
    }
}
