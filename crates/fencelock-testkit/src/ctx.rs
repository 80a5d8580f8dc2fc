//! What a test has at hand: clients of the store, names of its own, tickets, and waiting for something to become true.

use crate::provider::{Open, Provider};
use crate::wrap::faulty::Faulty;
use fencelock::beside::{Beside, Registers};
use fencelock::clock::{Clock, Moment};
use fencelock::line::WHOLE;
use fencelock::name::Name;
use fencelock::store::{
    Enter, Entered, Kind, Lifetime, Line, Note, OwnerId, Place, Presence, Renew, Renewed, Store, TicketId, Waited,
};
use fencelock::{Locks, VirtualClock};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long something may take that should happen at once: generous, since a busy machine is no reason to fail.
pub const SOON: Duration = Duration::from_secs(10);
/// What "within a second" means where a store says that it pushes.
pub const PUSHED: Duration = Duration::from_secs(1);

/// What the names of all tests of this run begin with.
pub(crate) fn run_prefix() -> &'static str {
    static PREFIX: OnceLock<String> = OnceLock::new();
    PREFIX.get_or_init(|| format!("testkit.{}.", &TicketId::new().to_string()[..8]))
}

/// The surroundings of one test: see the [module](self).
#[derive(Debug)]
pub struct Ctx {
    provider: Provider,
    seed: u64,
    folder: String,
}

impl Ctx {
    /// For one run of one test.
    #[must_use]
    pub fn new(provider: &Provider, seed: u64) -> Ctx {
        let folder = format!("{}{}", run_prefix(), &TicketId::new().to_string()[..8]);
        Ctx { provider: provider.clone(), seed, folder }
    }

    /// Another client of the store.
    pub async fn client(&self) -> Client {
        Client::of(self.open().await)
    }

    /// Another client's store, not yet in use.
    pub async fn open(&self) -> Arc<dyn Store> {
        (self.provider.open)().await
    }

    /// Another client with what its store keeps beside locks.
    ///
    /// # Panics
    /// For a provider without: such tests are not chosen.
    pub async fn beside(&self) -> Locks {
        Locks::with_store_and(self.open().await, self.open_beside().await)
    }

    /// The registers of another client.
    ///
    /// # Panics
    /// For a provider without: such tests are not chosen.
    pub async fn registers(&self) -> Arc<dyn Registers> {
        self.open_beside().await.registers().expect("chosen only with registers")
    }

    async fn open_beside(&self) -> Beside {
        (self.provider.beside.as_ref().expect("chosen only with something beside locks"))().await
    }

    /// Another client, seen through a store whose calls can be made to go wrong.
    pub async fn faulty(&self) -> (Client, Faulty) {
        let faulty = Faulty::new(self.open().await);
        (Client::of(Arc::new(faulty.clone())), faulty)
    }

    /// A new store on a clock of its own, and how to open clients of it.
    ///
    /// # Panics
    /// For a provider without one: such tests are not chosen.
    #[must_use]
    pub fn virtual_time(&self) -> (VirtualClock, Open) {
        (self.provider.virtual_time.as_ref().expect("chosen only with virtual time"))()
    }

    /// The folder of this test's names.
    #[must_use]
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// A name that no other test uses, as users write it.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// A name that no other test uses.
    #[must_use]
    pub fn name(&self, name: &str) -> Name {
        Name::new("", &self.text(name)).expect("a name")
    }

    /// A short lease: for what is to lapse.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.provider.lease
    }

    /// A lease that does not end during the test.
    #[must_use]
    pub fn long(&self) -> Duration {
        Duration::from_secs(30).max(self.provider.lease * 10)
    }

    /// How many may come to one lock at the same moment.
    #[must_use]
    pub fn crowd(&self) -> usize {
        self.provider.crowd
    }

    /// The store's URL.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.provider.url.as_deref()
    }

    /// Random numbers, the same for the same seed.
    #[must_use]
    pub fn rng(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed)
    }

    /// So many rounds, or with `FENCELOCK_SOAK=1` ten times as many.
    #[must_use]
    pub fn rounds(&self, rounds: usize) -> usize {
        if std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1") { rounds * 10 } else { rounds }
    }

    /// A mutex's ticket with a lease that does not end.
    #[must_use]
    pub fn mutex(&self, name: &Name) -> Enter {
        self.ticket(name, Kind::Mutex, WHOLE, WHOLE)
    }

    /// A reader's ticket.
    #[must_use]
    pub fn reader(&self, name: &Name) -> Enter {
        self.ticket(name, Kind::Read, 1, WHOLE)
    }

    /// A writer's ticket.
    #[must_use]
    pub fn writer(&self, name: &Name) -> Enter {
        self.ticket(name, Kind::Write, WHOLE, WHOLE)
    }

    /// Permits of a semaphore.
    #[must_use]
    pub fn permits(&self, name: &Name, permits: u32, of: u32) -> Enter {
        self.ticket(name, Kind::Permits, permits, of)
    }

    fn ticket(&self, name: &Name, kind: Kind, weight: u32, capacity: u32) -> Enter {
        Enter {
            place: Place { name: name.clone(), id: TicketId::new() },
            kind,
            weight,
            capacity,
            lease: self.long(),
            queue: true,
            owner: OwnerId::new(),
            held: Vec::new(),
            note: Note {
                host: "testkit".into(),
                pid: std::process::id(),
                identity: "conformance".into(),
                reason: None,
                value: None,
            },
        }
    }
}

/// The same ticket, not to be queued.
#[must_use]
pub fn unqueued(mut ticket: Enter) -> Enter {
    ticket.queue = false;
    ticket
}

/// The same ticket, with another lease.
#[must_use]
pub fn leased(mut ticket: Enter, lease: Duration) -> Enter {
    ticket.lease = lease;
    ticket
}

/// One client of the store: a [`Locks`] and the store under it.
#[derive(Clone, Debug)]
pub struct Client {
    /// The user's side.
    pub locks: Locks,
    /// The store's side.
    pub store: Arc<dyn Store>,
}

impl Client {
    /// A client on a store that was opened for it.
    #[must_use]
    pub fn of(store: Arc<dyn Store>) -> Client {
        Client { locks: Locks::with_shared_store(store.clone()), store }
    }

    /// The store's clock on this side.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.store.info().clock
    }

    /// Enters one ticket.
    pub async fn enter(&self, ticket: &Enter) -> Entered {
        let mut answers = self.store.enter(std::slice::from_ref(ticket)).await.expect("enter");
        assert_eq!(answers.len(), 1, "one ticket, one answer");
        answers.remove(0)
    }

    /// Enters a ticket that must be admitted at once, and gives its number.
    pub async fn admitted(&self, ticket: &Enter) -> u64 {
        match self.enter(ticket).await {
            Entered::Admitted { token, .. } => token,
            other => panic!("not admitted at once: {other:?}"),
        }
    }

    /// Enters a ticket that must have to wait.
    pub async fn queued(&self, ticket: &Enter) {
        match self.enter(ticket).await {
            Entered::Queued { .. } => {}
            other => panic!("not queued: {other:?}"),
        }
    }

    /// Enters a ticket that must find no room.
    pub async fn full(&self, ticket: &Enter) {
        match self.enter(ticket).await {
            Entered::Full { .. } => {}
            other => panic!("not full: {other:?}"),
        }
    }

    /// Leaves.
    pub async fn leave(&self, ticket: &Enter) -> Presence {
        let answers = self.store.leave(std::slice::from_ref(&ticket.place)).await.expect("leave");
        assert_eq!(answers.len(), 1, "one place, one answer");
        answers[0]
    }

    /// Renews.
    pub async fn renew(&self, ticket: &Enter, lease: Duration) -> Renewed {
        self.renew_at_least(ticket, lease, None).await
    }

    /// Renews and raises the line's counter.
    pub async fn renew_at_least(&self, ticket: &Enter, lease: Duration, at_least: Option<u64>) -> Renewed {
        let renew = Renew { place: ticket.place.clone(), lease, at_least };
        let answers = self.store.renew(&[renew]).await.expect("renew");
        assert_eq!(answers.len(), 1, "one ticket, one answer");
        answers[0]
    }

    /// Waits for a ticket, at most `at_most`.
    pub async fn wait(&self, ticket: &Enter, at_most: Duration) -> Waited {
        self.store.wait(&ticket.place, self.clock().now().after(at_most)).await.expect("wait")
    }

    /// Waits for a ticket that must come in soon, and gives its number.
    pub async fn comes_in(&self, ticket: &Enter) -> u64 {
        match self.wait(ticket, SOON).await {
            Waited::Admitted { token } => token,
            other => panic!("not let in: {other:?}"),
        }
    }

    /// Whether a ticket is inside now.
    pub async fn is_inside(&self, ticket: &Enter) -> bool {
        matches!(self.wait(ticket, Duration::ZERO).await, Waited::Admitted { .. })
    }

    /// Lowers a ticket's weight.
    pub async fn lower(&self, ticket: &Enter, weight: u32) -> Presence {
        self.store.change(&ticket.place, Some(weight), None).await.expect("change")
    }

    /// Who is in the line.
    pub async fn inspect(&self, name: &Name) -> Line {
        self.store.inspect(name).await.expect("inspect")
    }

    /// What others see of a number: a store that can put a ticket out by its number tells it. So does one whose tickets live
    /// with a connection, which is not put out for one of them.
    pub fn shown(&self, token: u64) -> Option<u64> {
        let capability = self.store.capability();
        (capability.expel || capability.lifetime == Lifetime::Connection).then_some(token)
    }

    /// The same as [`numbers`](Self::numbers) gives it.
    pub fn told(&self, token: u64) -> u64 {
        self.shown(token).unwrap_or(0)
    }

    /// The numbers of who is inside and who waits; 0 where the store does not know it before the grant.
    pub async fn numbers(&self, name: &Name) -> (Vec<u64>, Vec<u64>) {
        let line = self.inspect(name).await;
        let numbers = |list: Vec<fencelock::Seen>| list.into_iter().map(|seen| seen.token.unwrap_or(0)).collect();
        (numbers(line.inside), numbers(line.waiting))
    }

    /// Whether nobody is in the line.
    pub async fn is_empty(&self, name: &Name) -> bool {
        let line = self.inspect(name).await;
        line.inside.is_empty() && line.waiting.is_empty()
    }

    /// Sleeps until `moment`, on the machine's clock, a little more.
    pub async fn sleep_past(&self, moment: Moment) {
        self.clock().sleep_until(moment.after(Duration::from_millis(5))).await;
    }
}

/// Asks again until it is true; panics with `what` if it never is.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut is_true: impl FnMut() -> F) {
    within(SOON, what, &mut is_true).await;
}

/// The same with another limit.
pub async fn within<F: Future<Output = bool>>(limit: Duration, what: &str, mut is_true: impl FnMut() -> F) {
    let started = std::time::Instant::now();
    let mut pause = Duration::from_micros(200);
    while !is_true().await {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// The output of a future that must be ready soon.
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(SOON, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {SOON:?}: {what}"),
    }
}

/// Polls a future until it is done or has been pending `k` times; then drops it.
pub async fn poll_times<F: Future>(future: F, k: usize) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = k;
    std::future::poll_fn(move |cx| {
        use std::task::Poll;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                left = left.saturating_sub(1);
                if left == 0 { Poll::Ready(None) } else { Poll::Pending }
            }
        }
    })
    .await
}
