//! Taking a lock as `run`, `hold` and `elect` do, whatever its kind, and what is then held.

use crate::args::Lock;
use crate::failure::Failure;
use crate::nesting::{self, Held as HeldMode};
use crate::output::{Event, Output};
use crate::signals::Signals;
use crate::store_url::Choice;
use crate::waiting;
use fencelock::{
    Error, Leadership, Locks, Mode, MultiGuard, MutexGuard, Options, Part, Permit, ReadGuard, Released, State,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A guard of any kind.
#[derive(Debug)]
pub(crate) enum Held {
    Exclusive(MutexGuard),
    Shared(ReadGuard),
    Permits(Permit),
    Several(MultiGuard, Mode),
    Leader(Leadership),
}

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Want<'a> {
    /// These names, all of them.
    Names(&'a [String]),
    /// To lead, and what to say of ourselves.
    ToLead(&'a String, &'a str),
}

impl<'a> Want<'a> {
    fn names(self) -> &'a [String] {
        match self {
            Want::Names(names) => names,
            Want::ToLead(name, _) => std::slice::from_ref(name),
        }
    }
}

macro_rules! each {
    ($held:expr, $guard:ident => $what:expr) => {
        match $held {
            Held::Exclusive($guard) => $what,
            Held::Shared($guard) => $what,
            Held::Permits($guard) => $what,
            Held::Several($guard, _) => $what,
            Held::Leader($guard) => $what,
        }
    };
}

impl Held {
    /// In the order of the names.
    fn numbers(&self) -> Vec<u64> {
        match self {
            Held::Exclusive(guard) => vec![guard.token().number()],
            Held::Shared(guard) => vec![guard.token().number()],
            Held::Permits(permit) => vec![permit.number()],
            Held::Several(guard, _) => guard.numbers(),
            Held::Leader(leadership) => vec![leadership.term()],
        }
    }

    /// The tokens, separated by spaces.
    pub(crate) fn tokens(&self) -> String {
        self.numbers().iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn mode(&self) -> Mode {
        match self {
            Held::Exclusive(_) | Held::Leader(_) => Mode::Exclusive,
            Held::Several(_, mode) => *mode,
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
        match self {
            Held::Exclusive(guard) => guard.release().await,
            Held::Shared(guard) => guard.release().await,
            Held::Permits(permit) => permit.release().await,
            Held::Several(guard, _) => guard.release().await,
            Held::Leader(leadership) => leadership.resign().await,
        }
    }
}

/// A lock that was taken, with what has to be known to let it go.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) locks: Locks,
    pub(crate) held: Arc<Held>,
    pub(crate) waited: Duration,
    /// The names as they were given.
    names: Vec<String>,
    /// The names as the store spells them, separated by spaces.
    pub(crate) spelled: String,
    /// What nested calls are told.
    pub(crate) nesting: String,
    since: Instant,
}

/// Checks everything, opens the store, queues, and comes back with the lock; or says why not. A signal ends the wait and
/// leaves no ticket.
pub(crate) async fn take(
    choice: &Choice,
    want: Want<'_>,
    lock: &Lock,
    signals: &mut Signals,
    output: Output,
) -> Result<Taken, Failure> {
    let names = want.names();
    let spelled = names.iter().map(|name| choice.spelled(name)).collect::<Result<Vec<_>, _>>()?;
    if let Some(twice) = spelled.iter().enumerate().find_map(|(i, name)| spelled[..i].contains(name).then_some(name)) {
        return Err(Failure::usage(format!("{twice} is named twice")));
    }
    check(lock)?;
    let locks = choice.open().await?;
    let wish = HeldMode::of(lock);
    let fingerprint = choice.fingerprint(&locks);
    let started = Instant::now();
    let taken = {
        let outer = std::env::var("FENCELOCK_HELD").unwrap_or_default();
        match spelled.iter().try_for_each(|name| nesting::check(&outer, &fingerprint, name, wish)) {
            Err(failure) => Err(failure),
            Ok(()) => tokio::select! {
                biased;
                held = enter(&locks, want, lock) => held.map_err(Failure::from),
                signal = signals.next_ending() => Err(Failure::signal(signal as i32)),
                () = waiting::show(&locks, names, output) => unreachable!("it is shown for as long as we wait"),
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
                names: names.to_vec(),
                spelled: spelled.join(" "),
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

async fn enter(locks: &Locks, want: Want<'_>, lock: &Lock) -> Result<Held, Error> {
    let options = options(lock);
    let name = match want {
        Want::ToLead(name, value) => {
            return locks.election(name).campaign_with(value, options).await.map(Held::Leader);
        }
        Want::Names([name]) => name,
        Want::Names(names) => {
            let part = |name: &String| match (lock.permits, lock.of) {
                (Some(permits), Some(of)) => (Part::permits(name, permits, of), Mode::Permits),
                _ if lock.shared => (Part::read(name), Mode::Shared),
                _ => (Part::lock(name), Mode::Exclusive),
            };
            let mode = names.first().map_or(Mode::Exclusive, |name| part(name).1);
            let several = locks.all(names.iter().map(|name| part(name).0));
            return several.lock_with(options).await.map(|guard| Held::Several(guard, mode));
        }
    };
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
    pub(crate) fn event(&self) -> Event<'static> {
        let waited_ms = crate::json::millis(self.waited);
        Event::Acquired { name: self.names.join(" "), token: self.held.tokens(), waited_ms }
    }

    /// The same word for each of the names, separated by spaces.
    pub(crate) fn for_each_name(&self, word: &str) -> String {
        vec![word; self.names.len()].join(" ")
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
    /// and if not, the store is asked. One round trip for each name, with `--min-hold` only.
    pub(crate) async fn is_gone(&self, lock: &Lock) -> bool {
        if self.to_hold_back(lock).is_zero() {
            return false;
        }
        for (name, number) in self.names.iter().zip(self.held.numbers()) {
            let line = tokio::time::timeout(Duration::from_secs(1), self.locks.inspect(name)).await;
            if matches!(line, Ok(Ok(line)) if line.inside.iter().all(|seen| seen.token != Some(number))) {
                return true;
            }
        }
        false
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
