//! A store whose calls go wrong by plan, for tests of what the library makes of it.

use fencelock::clock::Moment;
use fencelock::name::Name;
use fencelock::store::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Hint, Host, Info, Line, Listed, Note, Place, Presence, Renew,
    Renewed, Scope, Store, TicketId, Upgraded, Waited,
};
use fencelock::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A verb of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// [`Store::enter`]
    Enter,
    /// [`Store::wait`]
    Wait,
    /// [`Store::renew`]
    Renew,
    /// [`Store::leave`]
    Leave,
    /// [`Store::change`]
    Change,
    /// [`Store::upgrade`]
    Upgrade,
    /// [`Store::expel`]
    Expel,
    /// [`Store::watch`]
    Watch,
    /// [`Store::inspect`]
    Inspect,
    /// [`Store::list`]
    List,
}

/// What goes wrong with one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// Not carried out; `Unavailable`, certainly without effect.
    Fail,
    /// Not carried out; `Unavailable`, and nobody knows.
    Drop,
    /// Not carried out; after this long, on the store's clock, as [`Drop`](Fault::Drop).
    DropAfter(Duration),
    /// Carried out, but the answer is lost: `Unavailable` with unknown effect.
    LoseReply,
    /// Carried out this much later, on the store's clock.
    DelayBefore(Duration),
    /// Carried out, answered this much later, on the store's clock.
    DelayAfter(Duration),
    /// Carried out twice; the second answer counts.
    Repeat,
    /// Gives way once before the call is carried out and once before its answer: two more places to be cancelled at.
    Yield,
    /// Never carried out, never answered.
    Blackhole,
    /// Carried out, never answered.
    BlackholeAfter,
    /// Carried out only when the valve is opened, even though the caller may have given up by then.
    HoldBack(Valve),
}

/// Holds calls back until it is opened: see [`Fault::HoldBack`].
#[derive(Clone, Debug, Default)]
pub struct Valve(Arc<ValveState>);

#[derive(Debug, Default)]
struct ValveState {
    /// Whether it is open, how many calls have arrived at it, how many have been carried out behind it.
    state: Mutex<(bool, usize, usize)>,
    changed: Condvar,
}

impl Valve {
    /// A closed one.
    #[must_use]
    pub fn new() -> Valve {
        Valve::default()
    }

    /// Lets everything through, now and later.
    pub fn open(&self) {
        self.lock().0 = true;
        self.0.changed.notify_all();
    }

    /// How many calls have arrived at it.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.lock().1
    }

    /// How many calls have been carried out behind it.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.lock().2
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (bool, usize, usize)> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries `call` out on a thread of its own once the valve is open.
    fn pass<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> tokio::sync::oneshot::Receiver<T> {
        let (answer, receiver) = tokio::sync::oneshot::channel();
        let valve = self.clone();
        self.lock().1 += 1;
        std::thread::spawn(move || {
            let state = valve.lock();
            drop(valve.0.changed.wait_while(state, |state| !state.0));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let output = runtime.expect("the system can make one more runtime").block_on(call);
            valve.lock().2 += 1;
            let _ = answer.send(output);
        });
        receiver
    }
}

#[derive(Default)]
struct Plan {
    script: HashMap<Verb, VecDeque<Fault>>,
    always: HashMap<Verb, Fault>,
    random: Option<(fastrand::Rng, f64)>,
    /// When each call was made.
    calls: HashMap<Verb, Vec<Moment>>,
    tickets: HashMap<Verb, usize>,
    delayed: usize,
    /// One for each stream of hints that is open.
    watches: Vec<tokio::sync::oneshot::Sender<()>>,
}

/// A store whose calls go wrong by plan: replies are lost, calls are delayed, repeated, held back or never answered. It also
/// counts the calls. Clones share plan and counts.
#[derive(Clone)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    plan: Arc<Mutex<Plan>>,
}

impl Faulty {
    /// Around `inner`, with nothing planned.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Faulty {
        Faulty { inner, plan: Arc::default() }
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next calls of this verb that have no fault planned yet go wrong like this, one after the other.
    pub fn next(&self, verb: Verb, faults: impl IntoIterator<Item = Fault>) {
        self.plan().script.entry(verb).or_default().extend(faults);
    }

    /// Every call of this verb goes wrong like this from now on, unless [`next`](Faulty::next) says otherwise.
    pub fn always(&self, verb: Verb, fault: Fault) {
        self.plan().always.insert(verb, fault);
    }

    /// Every call of every verb but `wait` and `watch` goes wrong with this probability: it fails, its reply is lost, or it is
    /// repeated.
    pub fn random(&self, seed: u64, probability: f64) {
        self.plan().random = Some((fastrand::Rng::with_seed(seed), probability));
    }

    /// Every call of every verb gives way before and after it is carried out: see [`Fault::Yield`].
    pub fn yielding(&self) {
        use Verb::{Change, Enter, Expel, Inspect, Leave, List, Renew, Upgrade, Wait, Watch};
        for verb in [Enter, Wait, Renew, Leave, Change, Upgrade, Expel, Watch, Inspect, List] {
            self.always(verb, Fault::Yield);
        }
    }

    /// Ends every stream of hints that is open now, as a lost connection would.
    pub fn cut_watches(&self) {
        self.plan().watches.clear();
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&self) {
        let mut plan = self.plan();
        plan.script.clear();
        plan.always.clear();
        plan.random = None;
    }

    /// How often this verb was called.
    #[must_use]
    pub fn calls(&self, verb: Verb) -> usize {
        self.plan().calls.get(&verb).map_or(0, Vec::len)
    }

    /// When this verb was called, on the store's clock.
    #[must_use]
    pub fn sent(&self, verb: Verb) -> Vec<Moment> {
        self.plan().calls.get(&verb).cloned().unwrap_or_default()
    }

    /// How many delays have begun. When one of them ends is settled by then: a virtual clock may be moved.
    #[must_use]
    pub fn delayed(&self) -> usize {
        self.plan().delayed
    }

    /// How many tickets or places these calls were about.
    #[must_use]
    pub fn tickets(&self, verb: Verb) -> usize {
        self.plan().tickets.get(&verb).copied().unwrap_or(0)
    }

    /// Counts anew.
    pub fn reset_counts(&self) {
        let mut plan = self.plan();
        plan.calls.clear();
        plan.tickets.clear();
    }

    fn fault(&self, verb: Verb, tickets: usize) -> Fault {
        let now = self.inner.info().clock.now();
        let mut plan = self.plan();
        plan.calls.entry(verb).or_default().push(now);
        *plan.tickets.entry(verb).or_default() += tickets;
        if let Some(fault) = plan.script.get_mut(&verb).and_then(VecDeque::pop_front) {
            return fault;
        }
        if let Some(fault) = plan.always.get(&verb) {
            return fault.clone();
        }
        let Some((rng, probability)) = &mut plan.random else { return Fault::None };
        if matches!(verb, Verb::Wait | Verb::Watch) || rng.f64() >= *probability {
            return Fault::None;
        }
        match rng.u8(..4) {
            0 => Fault::Fail,
            1 => Fault::Drop,
            2 => Fault::Repeat,
            _ => Fault::LoseReply,
        }
    }

    async fn sleep(&self, duration: Duration) {
        let clock = self.inner.info().clock;
        let sleep = clock.sleep_until(clock.now().after(duration));
        self.plan().delayed += 1;
        sleep.await;
    }

    async fn go<'a, T>(
        &'a self,
        verb: Verb,
        tickets: usize,
        call: impl Fn() -> BoxFuture<'a, Result<T>> + Send + 'a,
    ) -> Result<T> {
        match self.fault(verb, tickets) {
            Fault::None => call().await,
            Fault::Fail => Err(Error::new(ErrorKind::Unavailable, "the call failed on purpose")),
            Fault::Drop => Err(Error::unknown("the call was dropped on purpose")),
            Fault::DropAfter(delay) => {
                self.sleep(delay).await;
                Err(Error::unknown("the call was dropped on purpose"))
            }
            Fault::LoseReply => {
                let _ = call().await;
                Err(Error::unknown("the reply was lost on purpose"))
            }
            Fault::DelayBefore(delay) => {
                self.sleep(delay).await;
                call().await
            }
            Fault::DelayAfter(delay) => {
                let answer = call().await;
                self.sleep(delay).await;
                answer
            }
            Fault::Repeat => {
                let _ = call().await;
                call().await
            }
            Fault::Yield => {
                tokio::task::yield_now().await;
                let answer = call().await;
                tokio::task::yield_now().await;
                answer
            }
            Fault::Blackhole => std::future::pending().await,
            Fault::BlackholeAfter => {
                let _ = call().await;
                std::future::pending().await
            }
            Fault::HoldBack(valve) => {
                let _ = valve.pass(std::future::ready(())).await;
                call().await
            }
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({:?})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for Faulty {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn attach(&self, host: Host) {
        self.inner.attach(host);
    }

    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            // An enter that is held back is carried out even if its caller has gone.
            let held_back = match self.plan().script.get(&Verb::Enter).and_then(VecDeque::front) {
                Some(Fault::HoldBack(valve)) => Some(valve.clone()),
                _ => None,
            };
            let Some(valve) = held_back else {
                return self.go(Verb::Enter, batch.len(), || self.inner.enter(batch)).await;
            };
            self.fault(Verb::Enter, batch.len());
            let (inner, batch) = (self.inner.clone(), batch.to_vec());
            let answer = valve.pass(async move { inner.enter(&batch).await });
            answer.await.unwrap_or_else(|_| Err(Error::unknown("the call was given up")))
        })
    }

    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(self.go(Verb::Wait, 1, move || self.inner.wait(place, until)))
    }

    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(self.go(Verb::Renew, batch.len(), move || self.inner.renew(batch)))
    }

    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(self.go(Verb::Leave, batch.len(), move || self.inner.leave(batch)))
    }

    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(self.go(Verb::Change, 1, move || self.inner.change(place, weight, note.clone())))
    }

    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(self.go(Verb::Upgrade, 1, move || self.inner.upgrade(place, new)))
    }

    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(self.go(Verb::Expel, 1, move || self.inner.expel(name, token)))
    }

    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move {
            let hints = self.go(Verb::Watch, 1, move || self.inner.watch(scope.clone())).await?;
            let (cut, is_cut) = tokio::sync::oneshot::channel();
            self.plan().watches.push(cut);
            Ok(hints.take_until(is_cut).boxed())
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(self.go(Verb::Inspect, 1, move || self.inner.inspect(name)))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(self.go(Verb::List, 1, move || self.inner.list(prefix, after, limit)))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}
