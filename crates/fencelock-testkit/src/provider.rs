//! What the suite has to know of a store: how to open another client of it, and what it can be asked.

use fencelock::VirtualClock;
use fencelock::beside::Beside;
use fencelock::store::{BoxFuture, Store};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Opens another, independent client of the same store.
pub type Open = Arc<dyn Fn() -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync>;

/// A store to be tested.
#[derive(Clone)]
pub struct Provider {
    pub(crate) name: Arc<str>,
    pub(crate) open: Open,
    pub(crate) lease: Duration,
    pub(crate) url: Option<Arc<str>>,
    pub(crate) needs_runtime: bool,
    pub(crate) crowd: usize,
    pub(crate) virtual_time: Option<Arc<dyn Fn() -> (VirtualClock, Open) + Send + Sync>>,
    pub(crate) beside: Option<OpenBeside>,
    pub(crate) keeps_limiters: bool,
}

/// Opens what another client of the same store keeps beside locks.
pub(crate) type OpenBeside = Arc<dyn Fn() -> BoxFuture<'static, Beside> + Send + Sync>;

impl Provider {
    /// A store called `name`; each call of `open` makes another client of the same server, file or memory.
    pub fn new<F>(name: &str, open: impl Fn() -> F + Send + Sync + 'static) -> Provider
    where
        F: Future<Output = Arc<dyn Store>> + Send + 'static,
    {
        Provider {
            name: name.into(),
            open: Arc::new(move || Box::pin(open())),
            lease: Duration::from_millis(500),
            url: None,
            needs_runtime: true,
            crowd: 1000,
            virtual_time: None,
            beside: None,
            keeps_limiters: false,
        }
    }

    /// The shortest lease that makes sense in a test on this store: long enough that a busy machine renews in time.
    /// Half a second unless told otherwise.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Provider {
        self.lease = lease;
        self
    }

    /// The URL by which another process reaches the same store. Without it nothing is tested across processes.
    #[must_use]
    pub fn url(mut self, url: &str) -> Provider {
        self.url = Some(url.into());
        self
    }

    /// How many may come to one lock at the same moment: each must be answered within seconds, however slow the surroundings
    /// are. A thousand unless told otherwise.
    #[must_use]
    pub fn crowd(mut self, crowd: usize) -> Provider {
        self.crowd = crowd;
        self
    }

    /// For a store whose verbs can be called where there is no runtime at all.
    #[must_use]
    pub fn needs_no_runtime(mut self) -> Provider {
        self.needs_runtime = false;
        self
    }

    /// For a store that can run on a [`VirtualClock`]: each call makes a new, empty store on a clock of its own. Deadlines are
    /// then tested to the nanosecond.
    #[must_use]
    pub fn virtual_time<F>(
        mut self,
        make: impl Fn() -> (VirtualClock, Box<dyn Fn() -> F + Send + Sync>) + Send + Sync + 'static,
    ) -> Provider
    where
        F: Future<Output = Arc<dyn Store>> + Send + 'static,
    {
        self.virtual_time = Some(Arc::new(move || {
            let (clock, open) = make();
            (clock, Arc::new(move || Box::pin(open()) as BoxFuture<'static, _>) as Open)
        }));
        self
    }

    /// For a store that keeps limiters and registers: each call opens what another client of the same store has of them.
    #[must_use]
    pub fn beside<F>(self, open: impl Fn() -> F + Send + Sync + 'static) -> Provider
    where
        F: Future<Output = Beside> + Send + 'static,
    {
        Provider { keeps_limiters: true, ..self.registers(open) }
    }

    /// The same for a store that keeps registers only.
    #[must_use]
    pub fn registers<F>(mut self, open: impl Fn() -> F + Send + Sync + 'static) -> Provider
    where
        F: Future<Output = Beside> + Send + 'static,
    {
        self.beside = Some(Arc::new(move || Box::pin(open())));
        self
    }

    /// The same store seen through a wrapper: what every client is put into. Processes and virtual time stay unwrapped.
    #[must_use]
    pub fn wrapped(mut self, wrap: impl Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync + 'static) -> Provider {
        let (open, wrap) = (self.open, Arc::new(wrap));
        self.open = Arc::new(move || {
            let (opening, wrap) = (open(), wrap.clone());
            Box::pin(async move { wrap(opening.await) })
        });
        self
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({})", self.name)
    }
}
