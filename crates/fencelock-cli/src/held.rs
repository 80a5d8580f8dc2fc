//! Taking a lock as `run` and `hold` do, whatever its kind, and what is then held.

use crate::args::Lock;
use crate::failure::Failure;
use crate::nesting::{self, Held as HeldMode};
use crate::output::{Event, Output};
use crate::signals::Signals;
use crate::store_url::Choice;
use crate::waiting;
use fencelock::{Error, Locks, Mode, MutexGuard, Options, Permit, ReadGuard, Released, State};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A guard of any kind.
#[derive(Debug)]
pub(crate) enum Held {
    Exclusive(MutexGuard),
    Shared(ReadGuard),
    Permits(Permit),
}

macro_rules! each {
    ($held:expr, $guard:ident => $what:expr) => {
        match $held {
            Held::Exclusive($guard) => $what,
            Held::Shared($guard) => $what,
            Held::Permits($guard) => $what,
        }
    };
}

impl Held {
    pub(crate) fn number(&self) -> u64 {
        match self {
            Held::Exclusive(guard) => guard.token().number(),
            Held::Shared(guard) => guard.token().number(),
            Held::Permits(permit) => permit.number(),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        match self {
            Held::Exclusive(_) => Mode::Exclusive,
            Held::Shared(_) => Mode::Shared,
            Held::Permits(_) => Mode::Permits,
        }
    }

    pub(crate) fn state(&self) -> State {
        each!(self, guard => guard.state())
    }

    pub(crate) fn remaining(&self) -> Duration {
        each!(self, guard => guard.remaining())
    }

    pub(crate) async fn lost(&self) {
        each!(self, guard => guard.lost().await);
    }

    /// Why it was lost, if it was.
    pub(crate) async fn why_lost(&self) -> Option<Error> {
        each!(self, guard => guard.run(std::future::ready(())).await.err())
    }

    async fn release(self) -> Result<Released, Error> {
        each!(self, guard => guard.release().await)
    }
}

/// A lock that was taken, with what has to be known to let it go.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) locks: Locks,
    pub(crate) held: Arc<Held>,
    pub(crate) waited: Duration,
    /// The name as the store spells it.
    pub(crate) spelled: String,
    /// What nested calls are told.
    pub(crate) nesting: String,
    since: Instant,
}

/// Checks everything, opens the store, queues, and comes back with the lock; or says why not. A signal ends the wait and
/// leaves no ticket.
pub(crate) async fn take(
    choice: &Choice,
    name: &str,
    lock: &Lock,
    signals: &mut Signals,
    output: Output,
) -> Result<Taken, Failure> {
    let spelled = choice.spelled(name)?;
    check(lock)?;
    let locks = choice.open().await?;
    let wish = HeldMode::of(lock);
    let fingerprint = choice.fingerprint(&locks);
    let started = Instant::now();
    let taken = {
        let outer = std::env::var("FENCELOCK_HELD").unwrap_or_default();
        match nesting::check(&outer, &fingerprint, &spelled, wish) {
            Err(failure) => Err(failure),
            Ok(()) => tokio::select! {
                biased;
                held = enter(&locks, name, lock) => held.map_err(Failure::from),
                signal = signals.next_ending() => Err(Failure::signal(signal as i32)),
                () = waiting::show(&locks, name, output) => unreachable!("it is shown for as long as we wait"),
            },
        }
    };
    match taken {
        Ok(held) => {
            let nesting = nesting::add(&fingerprint, &spelled, wish);
            Ok(Taken {
                locks,
                held: Arc::new(held),
                waited: started.elapsed(),
                spelled,
                nesting,
                since: Instant::now(),
            })
        }
        Err(mut failure) => {
            close(&locks).await;
            if let (crate::failure::HELD, Some(code)) = (failure.code, lock.held_code) {
                failure.code = code;
                if code == 0 && output.quiet {
                    failure.message.clear();
                }
            }
            Err(failure)
        }
    }
}

/// What the library would find only once the store is open.
fn check(lock: &Lock) -> Result<(), Failure> {
    if let (Some(permits), Some(of)) = (lock.permits, lock.of)
        && permits > of
    {
        return Err(Failure::usage(format!("--permits {permits} is more than --of {of}")));
    }
    if let (Some(min), Some(max)) = (lock.min_hold, lock.max_hold)
        && min > max
    {
        return Err(Failure::usage("--min-hold is longer than --max-hold"));
    }
    Ok(())
}

async fn enter(locks: &Locks, name: &str, lock: &Lock) -> Result<Held, Error> {
    let options = options(lock);
    match (lock.permits, lock.of) {
        (Some(permits), Some(of)) => {
            locks.semaphore(name, of).acquire_many_with(permits, options).await.map(Held::Permits)
        }
        _ if lock.shared => locks.rwlock(name).read_with(options).await.map(Held::Shared),
        _ => locks.mutex(name).lock_with(options).await.map(Held::Exclusive),
    }
}

/// `--min-hold` is not among them: a signal must be able to end that time, so it is waited for here.
fn options(lock: &Lock) -> Options {
    let mut options = Options::new().lease(lock.lease);
    if let Some(wait) = lock.wait {
        options = options.wait(wait);
    }
    if let Some(max) = lock.max_hold {
        options = options.max_hold(max);
    }
    if let Some(reason) = &lock.reason {
        options = options.reason(reason);
    }
    if lock.unfair { options.unfair() } else { options }
}

impl Taken {
    /// What is told with `--json` when it is ours.
    pub(crate) fn event<'a>(&self, name: &'a str) -> Event<'a> {
        let waited_ms = crate::json::millis(self.waited);
        Event::Acquired { name, token: self.held.number().to_string(), waited_ms }
    }

    /// How long it has been held.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// How much of `--min-hold` is left.
    fn to_hold_back(&self, lock: &Lock) -> Duration {
        lock.min_hold.unwrap_or_default().saturating_sub(self.since.elapsed())
    }

    /// Holds on until `--min-hold` is over, a signal comes, or it is lost.
    pub(crate) async fn hold_back(&self, lock: &Lock, signals: &mut Signals) {
        let left = self.to_hold_back(lock);
        if left.is_zero() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(left) => {}
            _ = signals.next_ending() => {}
            () = self.held.lost() => {}
        }
    }

    /// Whether it was gone before this call, although nobody has told us: the release will say so if it is to come at once,
    /// and if not, the store is asked. One round trip, with `--min-hold` only.
    pub(crate) async fn is_gone(&self, name: &str, lock: &Lock) -> bool {
        if self.to_hold_back(lock).is_zero() {
            return false;
        }
        let line = tokio::time::timeout(Duration::from_secs(1), self.locks.inspect(name)).await;
        let number = Some(self.held.number());
        matches!(line, Ok(Ok(line)) if line.inside.iter().all(|seen| seen.token != number))
    }

    /// Lets go. A store that does not answer is not waited for long: the lease ends by itself, and that is said.
    pub(crate) async fn release(self, output: Output) -> Released {
        let limit = self.held.remaining().min(Duration::from_secs(1));
        // Nobody else has it any more: the watchdog has ended.
        let released = match Arc::try_unwrap(self.held) {
            Ok(held) => tokio::time::timeout(limit, held.release()).await,
            Err(shared) => {
                drop(shared);
                Ok(Ok(Released::Held))
            }
        };
        close(&self.locks).await;
        let why = match released {
            Ok(Ok(released)) => return released,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the store did not answer in time".into(),
        };
        output.note(&format!("the release was not confirmed ({why}); the lease will end it"));
        Released::Held
    }
}

/// Gives pending releases a moment. Nothing is pending where all went well.
async fn close(locks: &Locks) {
    let _ = tokio::time::timeout(Duration::from_secs(1), locks.close()).await;
}
