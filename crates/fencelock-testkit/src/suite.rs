//! The suite: tests by name, chosen by what the store declares, each run on a runtime of its own with a time limit.

use crate::ctx::Ctx;
use crate::provider::Provider;
use fencelock::store::{BoxFuture, Capability, Fencing, Lifetime, Listed, Queue, Reach, Wake, Weights};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// How long one test may take.
const LIMIT: Duration = Duration::from_secs(120);

/// What a test needs of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Admission in the order of entering.
    Fair,
    /// A line that tickets can wait in.
    Queue,
    /// Readers beside each other.
    Readers,
    /// Permits of a semaphore, several at a time.
    Permits,
    /// A semaphore of one.
    OnePermit,
    /// [`Store::upgrade`](fencelock::store::Store::upgrade).
    Upgrade,
    /// [`Store::expel`](fencelock::store::Store::expel).
    Expel,
    /// Numbers that grow.
    Fencing,
    /// Waiters are told.
    Push,
    /// Several tickets in one call.
    Batch,
    /// A counter that can be raised.
    SettableToken,
    /// Tickets with a lease of their own.
    OwnLease,
    /// Other processes reach it.
    Processes,
    /// Verbs that can be called without a runtime.
    NoRuntime,
    /// A clock that the test moves.
    VirtualTime,
    /// Limiters beside the locks.
    Limiters,
    /// Registers beside the locks.
    Registers,
}

impl Need {
    /// Why the store cannot be asked for it, if it cannot.
    fn missing(self, capability: &Capability, provider: &Provider) -> Option<&'static str> {
        let (there, why) = match self {
            Need::Fair => (capability.queue == Queue::Fifo, "not fair"),
            Need::Queue => (capability.queue != Queue::Absent, "no queue"),
            Need::Readers => (capability.weights != Weights::Whole, "no readers"),
            Need::Permits => (capability.weights == Weights::Any, "no permits"),
            Need::OnePermit => (capability.weights != Weights::ReadWrite, "no permits"),
            Need::Upgrade => (capability.upgrade, "no upgrade"),
            Need::Expel => (capability.expel, "nobody can be put out"),
            Need::Fencing => (capability.fencing != Fencing::None, "no fencing"),
            Need::Push => (capability.wake == Wake::Push, "no push"),
            Need::Batch => (capability.atomic_batch > 1, "no batches"),
            Need::SettableToken => (capability.settable_token, "no settable token"),
            Need::OwnLease => (capability.lifetime == Lifetime::Ticket, "no leases of their own"),
            Need::Processes if capability.reach == Reach::Process => (false, "one process only"),
            Need::Processes => (provider.url.is_some() && cfg!(unix), "no URL to reach it by"),
            Need::NoRuntime => (!provider.needs_runtime, "needs a runtime"),
            Need::VirtualTime => (provider.virtual_time.is_some(), "no virtual time"),
            Need::Limiters => (provider.keeps_limiters, "no limiters"),
            Need::Registers => (provider.beside.is_some(), "no registers"),
        };
        (!there).then_some(why)
    }
}

/// One promise.
#[derive(Clone, Copy)]
pub struct Test {
    /// Its name: `group::promise`.
    pub name: &'static str,
    /// What it needs.
    pub needs: &'static [Need],
    run: fn(Arc<Ctx>) -> BoxFuture<'static, ()>,
}

impl std::fmt::Debug for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Test {
    pub(crate) const fn new(
        name: &'static str,
        needs: &'static [Need],
        run: fn(Arc<Ctx>) -> BoxFuture<'static, ()>,
    ) -> Test {
        Test { name, needs, run }
    }

    /// Why it cannot be run on a store with this capability, if it cannot.
    #[must_use]
    pub fn missing(&self, capability: &Capability, provider: &Provider) -> Option<&'static str> {
        self.needs.iter().find_map(|need| need.missing(capability, provider))
    }

    /// Runs it, with what went wrong.
    ///
    /// # Errors
    /// The message of its panic, with the seed.
    pub fn run(&self, provider: &Provider, seed: u64) -> Result<(), String> {
        let (test, ctx) = (*self, Arc::new(Ctx::new(provider, seed)));
        let (done, outcome) = mpsc::channel();
        let thread = std::thread::Builder::new().name(test.name.into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.expect("the system can make one more runtime");
            let result = runtime.block_on(async move { tokio::spawn((test.run)(ctx)).await });
            runtime.shutdown_background();
            let _ = done.send(result.map_err(|failed| message(failed.into_panic())));
        });
        thread.map_err(|error| error.to_string())?;
        let result = outcome.recv_timeout(LIMIT).unwrap_or_else(|_| Err(format!("not over after {LIMIT:?}")));
        result.map_err(|message| format!("{message}\nagain with: FENCELOCK_SEED={seed}"))
    }
}

fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "it panicked".into())
}

/// The tests of a module: `tests!("group": name, name [Need Need], ...)`.
macro_rules! tests {
    ($group:literal: $($name:ident $([$($need:ident)*])?),+ $(,)?) => {
        /// The tests of this module.
        pub(crate) const TESTS: &[crate::suite::Test] = &[$(
            crate::suite::Test::new(
                concat!($group, "::", stringify!($name)),
                &[$($(crate::suite::Need::$need),*)?],
                |ctx| Box::pin($name(ctx)),
            )
        ),+];
    };
}
pub(crate) use tests;

/// Every test there is.
#[must_use]
pub fn all() -> Vec<Test> {
    [crate::store::all(), crate::locks::all(), crate::histories::TESTS.to_vec(), crate::beside::all()].concat()
}

/// The seed of this run: `FENCELOCK_SEED`, or another one each time.
#[must_use]
pub fn seed() -> u64 {
    let given = std::env::var("FENCELOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..1_000_000_000))
}

/// Works as told and ends, if this program was started by itself as a worker of the tests with several processes; otherwise
/// does nothing. [`main`] calls it; a test program with a `main` of its own that runs such tests calls it first.
pub fn be_a_worker_if_asked() {
    crate::store::worker();
}

/// Runs every test that the store's capability allows, as a test program's `main` does. What it excludes is shown as ignored,
/// with the reason.
pub fn main(provider: Provider) {
    main_of(vec![provider]);
}

/// The same for several set-ups of one store, in one program: the tests of all but the first have its name before their own.
pub fn main_of(providers: Vec<Provider>) {
    be_a_worker_if_asked();
    let mut arguments = libtest_mimic::Arguments::from_args();
    // Tests wait for most of their time: twice as many as the machine has cores do not get in each other's way.
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    arguments.test_threads = arguments.test_threads.or(Some(2 * cores));
    let seed = seed();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("the system can make one more runtime");
    let mut trials = Vec::new();
    for (at, provider) in providers.iter().enumerate() {
        let capability = runtime.block_on(async { (provider.open)().await.capability() });
        let name =
            |test: &Test| if at == 0 { test.name.to_string() } else { format!("{}::{}", provider.name, test.name) };
        trials.extend(all().into_iter().map(|test| {
            let (missing, name) = (test.missing(&capability, provider), name(&test));
            let provider = provider.clone();
            let trial = libtest_mimic::Trial::test(name, move || test.run(&provider, seed).map_err(Into::into));
            match missing {
                Some(why) => trial.with_kind(why).with_ignored_flag(true),
                None => trial,
            }
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !conclusion.has_failed() && conclusion.num_passed > 0 {
        let left: Vec<_> = providers.iter().flat_map(|provider| runtime.block_on(left_behind(provider))).collect();
        if !left.is_empty() {
            eprintln!("the store is not clean at the end: {left:?}");
            drop(providers);
            std::process::exit(101);
        }
    }
    // With them goes what their closures own: a server, a folder. An exit drops nothing.
    drop(providers);
    conclusion.exit();
}

/// What the tests have left in the store, once the last releases and lapses have had their time.
async fn left_behind(provider: &Provider) -> Vec<Listed> {
    let store = (provider.open)().await;
    let _locks = fencelock::Locks::with_shared_store(store.clone());
    let end = std::time::Instant::now() + provider.lease * 4 + Duration::from_secs(5);
    loop {
        let left = store.list(crate::ctx::run_prefix(), None, 10).await.expect("list");
        if left.is_empty() || std::time::Instant::now() > end {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
