//! `Locks`: the handle to a store. It makes locks, shows who holds what, and owns the library thread.

use crate::acquire::{self, Request};
use crate::barge::Gates;
use crate::beside::Beside;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::keeper::Keeper;
use crate::limit::{Limit, Limiter};
use crate::mutex::Mutex;
use crate::name::{self, Name};
use crate::options::{DEFAULT_LEASE, Options, check_lease};
use crate::owner::Owner;
use crate::register::Register;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
use crate::store::{
    BoxStream, Capability, Hint, Host, Info, Kind, Line, Listed, Note, OwnerId, Presence, Scope, Store,
};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

/// A store of locks, and this process's client of it. Cheap to clone; clones share everything.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// use fencelock::Locks;
///
/// let locks = Locks::connect("memory:").await?;
/// let guard = locks.mutex("stock/42").lock().await?;
/// println!("ours, with token {}", guard.token());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// One library thread per `Locks` renews what is held, fires deadlines and sends the releases of dropped guards, so it does
/// not matter whether the caller's runtime is blocked or has ended. When the last handle and guard are dropped, it waits up
/// to 200 ms for such releases to be sent; [`close`](Locks::close) waits for as long as it takes.
#[derive(Clone, Debug)]
pub struct Locks {
    pub(crate) core: Arc<Core>,
}

/// What all handles, locks and guards of one `Locks` share.
pub(crate) struct Core {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) info: Info,
    pub(crate) capability: Capability,
    pub(crate) gates: Gates,
    pub(crate) beside: Beside,
    pub(crate) namespace: String,
    lease: Duration,
    note: Note,
    /// Whose tickets are those that are taken as nobody in particular; it also tells one `Locks` from another.
    pub(crate) owner: OwnerId,
    thread: Option<std::thread::ThreadId>,
}

impl Locks {
    /// Connects to the store that the URL names, such as `memory:`, `sqlite:locks.db` or `redis://127.0.0.1`.
    ///
    /// Options go into the query: `?namespace=shop&label=main`.
    ///
    /// # Errors
    /// `InvalidInput` for a URL that makes no sense, `Unsupported` for a store that this build does not have, and whatever
    /// keeps the store from being reached.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but, for a store in a file, the file.
    pub async fn connect(url: &str) -> Result<Locks> {
        Locks::builder(url).connect().await
    }

    /// Connects with more said: a namespace, an identity, another default lease.
    pub fn builder(url: &str) -> Builder {
        Builder { url: url.to_string(), namespace: None, identity: None, label: None, lease: None }
    }

    /// Locks on a store of your own making, or one that was opened by hand.
    pub fn with_store(store: impl Store) -> Locks {
        Locks::with_shared_store(Arc::new(store))
    }

    /// The same for a store that is shared already.
    pub fn with_shared_store(store: Arc<dyn Store>) -> Locks {
        Locks::with_store_and(store, Beside::nothing())
    }

    /// The same with what the store keeps beside locks: limiters, registers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> fencelock::Result<()> {
    /// use fencelock::{Locks, beside::Beside, store::memory::MemoryStore};
    /// use std::sync::Arc;
    ///
    /// let store = Arc::new(MemoryStore::new());
    /// let locks = Locks::with_store_and(store.clone(), Beside::all(&store));
    /// locks.register("greeting").set("hello").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_store_and(store: Arc<dyn Store>, beside: Beside) -> Locks {
        Locks::start(store, beside, String::new(), None, None)
    }

    fn start(
        store: Arc<dyn Store>,
        beside: Beside,
        namespace: String,
        identity: Option<String>,
        lease: Option<Duration>,
    ) -> Locks {
        let (keeper, thread) = library_thread(store);
        Locks::around(keeper, beside, Some(thread), namespace, identity, lease)
    }

    /// Locks around a keeper that somebody sees to: the library thread, or a test.
    pub(crate) fn around(
        keeper: Arc<Keeper>,
        beside: Beside,
        thread: Option<std::thread::ThreadId>,
        namespace: String,
        identity: Option<String>,
        lease: Option<Duration>,
    ) -> Locks {
        let store = keeper.store.clone();
        let host: Arc<str> = host_name().into();
        let note = Note {
            identity: identity.map_or_else(|| host.clone(), Into::into),
            host,
            pid: std::process::id(),
            reason: None,
            value: None,
        };
        let capability = store.capability();
        // A store that cannot keep the usual lease gets the nearest one that it can.
        let usual = DEFAULT_LEASE.max(capability.shortest_lease).min(capability.longest_lease);
        let core = Core {
            keeper,
            info: store.info(),
            capability,
            gates: Gates::default(),
            beside,
            namespace,
            lease: lease.unwrap_or(usual),
            note,
            owner: OwnerId::new(),
            thread,
        };
        Locks { core: Arc::new(core) }
    }

    /// A mutex. No I/O; an impossible name is told by the first call that needs it.
    ///
    /// `mutex("x")` and the write side of `rwlock("x")` are the same lock.
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::new(self.core.clone(), self.name(name))
    }

    /// A mutex whose calls all answer with this error.
    pub(crate) fn impossible_mutex(&self, error: Error) -> Mutex {
        Mutex::new(self.core.clone(), Err(error))
    }

    /// A read-write lock. No I/O.
    pub fn rwlock(&self, name: &str) -> RwLock {
        RwLock::new(self.core.clone(), self.name(name))
    }

    /// A semaphore of `permits`, of which there are fewer than 2^20. No I/O.
    ///
    /// The number lives as long as anybody holds or waits: asking with another one meanwhile is a `Mismatch`.
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Semaphore::new(self.core.clone(), self.name(name), permits)
    }

    /// A limiter that all clients of the store share: see [`limit`](crate::limit). No I/O.
    ///
    /// It is no lock: a limiter and a lock of the same name have nothing to do with each other. Whoever uses the same name with
    /// another limit judges the same bucket by other numbers.
    pub fn limiter(&self, name: &str, limit: Limit) -> Limiter {
        Limiter::shared(self.core.clone(), self.name(name), limit)
    }

    /// A register: a value with a version, for when no lock is the right lock. No I/O.
    ///
    /// It is no lock: a register and a lock of the same name have nothing to do with each other.
    pub fn register(&self, name: &str) -> Register {
        Register::new(self.core.clone(), self.name(name))
    }

    /// A new owner: whoever locks again as the same owner gets another guard on the same hold instead of waiting for itself.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new()
    }

    /// Who holds `name`, and who waits.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn inspect(&self, name: &str) -> Result<Line> {
        let name = self.name(name)?;
        self.core.keeper.store.inspect(&name).await
    }

    /// Every name that begins with `prefix` and has somebody in it, in order.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let wanted = self.shown_prefix(prefix);
        let mut all = Vec::new();
        let folder = name::prefix_key(&self.core.namespace, prefix)?;
        self.list_keys(&folder, &wanted, &mut all).await?;
        let hashed = name::hashed_prefix(&self.core.namespace);
        if !hashed.starts_with(&folder) {
            self.list_keys(&hashed, &wanted, &mut all).await?;
        }
        all.sort_by_key(|listed| listed.name.shown());
        Ok(all)
    }

    /// One round trip per thousand names.
    async fn list_keys(&self, prefix: &str, wanted: &str, all: &mut Vec<Listed>) -> Result<()> {
        const PAGE: usize = 1000;
        let mut after: Option<String> = None;
        loop {
            let page = self.core.keeper.store.list(prefix, after.as_deref(), PAGE).await?;
            let full = page.len() == PAGE;
            after = page.last().map(|listed| listed.name.key().to_string());
            all.extend(page.into_iter().filter(|listed| listed.name.shown().starts_with(wanted)));
            if !full {
                return Ok(());
            }
        }
    }

    /// A stream of hints that somebody came, left or was admitted under `prefix`. What has changed is for
    /// [`inspect`](Locks::inspect) and [`list`](Locks::list) to say.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// Dropping the future, or the stream, ends the watch.
    pub async fn watch(&self, prefix: &str) -> Result<BoxStream<'static, Hint>> {
        let wanted = self.shown_prefix(prefix);
        // Hashed names are told through the namespace as a whole, and sorted out here.
        let scope = if prefix.is_empty() {
            name::prefix_key(&self.core.namespace, "")?
        } else {
            let folder = name::prefix_key(&self.core.namespace, prefix)?;
            let hashed = name::hashed_prefix(&self.core.namespace);
            let shared = folder.bytes().zip(hashed.bytes()).take_while(|(a, b)| a == b).count();
            folder[..shared].to_string()
        };
        let hints = self.core.keeper.store.watch(Scope::Prefix(scope)).await?;
        Ok(hints
            .filter(move |hint| {
                let concerns = match hint {
                    Hint::Changed(name) | Hint::Entered(name) => name.shown().starts_with(&wanted),
                    Hint::Somewhere => true,
                };
                std::future::ready(concerns)
            })
            .boxed())
    }

    /// Puts out the ticket with this token, inside or waiting, whoever it belongs to. Its holder is told within a second
    /// where the store can push, else at its next renewal.
    ///
    /// Says whether it was there.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not put it out.
    pub async fn break_ticket(&self, name: &str, token: impl Into<u64>) -> Result<bool> {
        let name = self.name(name)?;
        Ok(self.core.keeper.store.expel(&name, token.into()).await? == Presence::There)
    }

    /// Waits until every release of a dropped guard has been sent and confirmed, `min_hold` included. Guards that are alive
    /// stay as they are, and the handle can be used on.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the releases.
    pub async fn close(&self) {
        self.core.keeper.quiet().await;
    }

    /// What the store promises.
    #[must_use]
    pub fn capability(&self) -> &Capability {
        &self.core.capability
    }

    /// What kind of store it is, where, and its label.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.core.info
    }

    /// What every name is put under; empty if nothing.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.core.namespace
    }

    /// The store itself, for what is not said here.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.keeper.store
    }

    fn shown_prefix(&self, prefix: &str) -> String {
        let namespace = &self.core.namespace;
        if namespace.is_empty() { prefix.to_string() } else { format!("{namespace}/{prefix}") }
    }

    fn name(&self, name: &str) -> Result<Name> {
        Name::new(&self.core.namespace, name)
    }
}

impl Core {
    /// A wish to get in as `owner`, or as nobody in particular.
    pub(crate) fn request(
        &self,
        name: Name,
        kind: Kind,
        (weight, capacity): (u32, u32),
        options: &Options,
        owner: Option<&Owner>,
    ) -> Result<Request> {
        let terms = options.terms(&self.capability, self.lease).map_err(|error| error.named(name.shown()))?;
        Ok(Request {
            kind,
            weight,
            capacity,
            terms,
            wait: options.wait,
            unfair: options.unfair,
            owner: owner.map_or(self.owner, Owner::id),
            held: owner.map(|owner| owner.held(self.owner)).unwrap_or_default(),
            note: Note { reason: options.reason.clone(), ..self.note.clone() },
            name,
        })
    }

    /// Gets in as `owner`, or as nobody in particular.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        name: &Result<Name>,
        kind: Kind,
        size: (u32, u32),
        options: &Options,
        owner: Option<&Owner>,
    ) -> Result<Arc<Hold>> {
        let name = name.as_ref().map_err(Error::again)?.clone();
        let request = self.request(name, kind, size, options, owner)?;
        let span = crate::observe::acquiring(&request.name, kind);
        match owner {
            None => acquire::acquire(self, request).instrument(span).await,
            Some(owner) => owner.acquire(self, request).instrument(span).await,
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.keeper.end();
        // The library thread may be the one that drops the last handle: it must not wait for itself.
        if self.thread.is_some_and(|thread| thread != std::thread::current().id()) {
            self.keeper.wait_for_end(Duration::from_millis(200));
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.info.address)
    }
}

/// Starts the library thread of one store client.
fn library_thread(store: Arc<dyn Store>) -> (Arc<Keeper>, std::thread::ThreadId) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("the system can make one more event loop");
    let keeper = Keeper::new(store.clone());
    let weak = Arc::downgrade(&keeper);
    let doubt = Arc::new(move |id| {
        if let Some(keeper) = weak.upgrade() {
            keeper.doubt(id);
        }
    });
    store.attach(Host { runtime: runtime.handle().clone(), doubt });
    #[cfg(feature = "test-util")]
    if let Some(clock) = keeper.clock.as_virtual() {
        let worker: std::sync::Weak<dyn crate::clock::Worker> = Arc::downgrade(&(keeper.clone() as _));
        clock.add_worker(worker);
    }
    let work = keeper.clone().work();
    let thread = std::thread::Builder::new()
        .name("fencelock".into())
        .stack_size(512 * 1024)
        .spawn(move || runtime.block_on(work))
        .expect("the system can start one more thread");
    let id = thread.thread().id();
    (keeper, id)
}

fn host_name() -> String {
    #[cfg(unix)]
    {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }
    #[cfg(not(unix))]
    {
        std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".into())
    }
}

/// How to connect: see [`Locks::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    url: String,
    namespace: Option<String>,
    identity: Option<String>,
    label: Option<String>,
    lease: Option<Duration>,
}

impl Builder {
    /// Puts every name under `namespace/`. Parts of letters, digits, `.`, `_` and `-`, joined by `/`. Wins over the URL's.
    pub fn namespace(mut self, namespace: &str) -> Builder {
        self.namespace = Some(namespace.to_string());
        self
    }

    /// What this process calls itself, for others to read; the host's name by default.
    pub fn identity(mut self, identity: &str) -> Builder {
        self.identity = Some(identity.to_string());
        self
    }

    /// The label of the store's tokens; its kind by default. Wins over the URL's.
    pub fn label(mut self, label: &str) -> Builder {
        self.label = Some(label.to_string());
        self
    }

    /// The lease of locks that ask for none; 30 s by default.
    pub fn lease(mut self, lease: Duration) -> Builder {
        self.lease = Some(lease);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`Locks::connect`]; also `InvalidName` for an impossible namespace and `InvalidInput` for a lease that the store
    /// cannot keep.
    ///
    /// # Cancel safety
    /// As [`Locks::connect`].
    pub async fn connect(self) -> Result<Locks> {
        let target = crate::connect::parse(&self.url)?;
        let namespace = self.namespace.or(target.namespace.clone()).unwrap_or_default();
        if !namespace.is_empty() {
            Name::new(&namespace, "x")?;
        }
        let label = self.label.or(target.label.clone());
        if label
            .as_deref()
            .is_some_and(|label| label.is_empty() || !label.bytes().all(|b| b.is_ascii_graphic() && b != b'"'))
        {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a label is made of printable ASCII characters other than '\"'",
            ));
        }
        let mut beside = Beside::nothing();
        let store = target.open(label.as_deref(), &mut beside).await?;
        if let Some(lease) = self.lease {
            check_lease(lease, &store.capability())?;
        }
        Ok(Locks::start(store, beside, namespace, self.identity, self.lease))
    }
}
