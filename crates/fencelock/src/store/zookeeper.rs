//! The ZooKeeper store: a line is a container node, a ticket an ephemeral sequential node in it, spelled so that Apache
//! Curator's recipes see it and are seen.
//!
//! # What it costs
//!
//! An uncontended lock is a create and a list of children, sent together, and its release a delete: three packets in two round
//! trips; two packets where nobody else has used the name since we last did (`zookeeper/alone.rs`). Who has to wait watches only the nearest ticket ahead that it cannot share with, and all waiters of a process on a
//! name share one watch; where the one ahead is the process's own, none is needed. So a hand-over wakes one process, and
//! costs at most five packets, four where several of a process wait. A held lock costs one small transaction every sixth of
//! its session's timeout and, so that a holder that was put out learns of it, one question a second per session.
//!
//! # What it promises
//!
//! A token is the id of the transaction that created the node: it grows over all that an ensemble ever does, also over leader
//! changes, and also where the node of the line was removed and made again (its counter then starts anew).
//! A ticket lives as long as its session. Sessions end by the leader's clock; how long one surely lives is counted as
//! `zookeeper/live.rs` says, and a client on a server that is cut off counts itself lost before the others let anybody in.
//!
//! # Others
//!
//! `mutex` and Curator's `InterProcessMutex` exclude each other on the same path, and so do `rwlock` and its
//! `InterProcessReadWriteLock`. (Curator's two recipes do not see each other; ours see both.) Nodes of any other recipe
//! below the same path are refused as a mismatch: their makers would not see ours.
//!
//! # What it needs of the servers
//!
//! ZooKeeper 3.6 or later, and sessions of at least two ticks. With a user in the address (digest authentication) all nodes
//! belong to that user; `?acl=open` leaves them to everybody.

use super::note::{Record, Standing};
use super::session::Sessions;
use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Seen, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use attend::Slot;
use futures_util::future::{Either, select};
use lines::Lines;
use live::Live;
use open::Servers;
use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

mod alone;
mod attend;
mod carry;
mod change;
mod enter;
mod fault;
mod keep;
mod lines;
mod live;
mod look;
mod node;
mod nodelay;
mod open;
mod watch;

/// How long an answer may take, where nobody else sets a limit.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// An ensemble of ZooKeeper servers, or a single one.
pub struct ZookeeperStore {
    shared: Arc<Shared>,
    label: Arc<str>,
}

/// What the verbs and the library thread share.
struct Shared {
    clock: Clock,
    servers: Servers,
    longest: Duration,
    sessions: Mutex<Sessions<Arc<Slot>>>,
    /// The servers' numbers of all sessions that were ever ours, the latest last.
    ours: Mutex<Vec<i64>>,
    lines: Lines,
    alone: alone::Alone,
    watches: watch::Watches,
    host: OnceLock<Host>,
    closed: AtomicBool,
}

impl ZookeeperStore {
    /// Connects to the servers that the URL names: `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST...][/CHROOT]`, without a
    /// query, and looks whether they take us. `options` are those of the query.
    ///
    /// # Errors
    /// `InvalidInput` for a URL or options that make no sense, `Denied` where the servers do not want us, `Unavailable` where
    /// none can be reached.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str, options: &BTreeMap<String, String>) -> Result<ZookeeperStore> {
        let servers = Servers::parse(url, options)?;
        if tokio::runtime::Handle::try_current().is_err() {
            let message = "this store needs a tokio runtime to connect (or the blocking interface)";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let longest = servers.look().await?;
        let shared = Shared {
            clock: Clock::system(),
            servers,
            longest,
            sessions: Mutex::default(),
            ours: Mutex::default(),
            lines: Lines::default(),
            alone: alone::Alone::default(),
            watches: watch::Watches::default(),
            host: OnceLock::new(),
            closed: AtomicBool::new(false),
        };
        Ok(ZookeeperStore { shared: Arc::new(shared), label: "zookeeper".into() })
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> ZookeeperStore {
        self.label = label.into();
        self
    }
}

impl Shared {
    fn host(&self, act: impl FnOnce(&Host)) {
        if let Some(host) = self.host.get() {
            act(host);
        }
    }

    /// The session for tickets with this lease. No round trip, but for the first of them.
    async fn session(self: &Arc<Self>, lease: Duration) -> Result<Arc<Live>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unavailable, "this store is closed"));
        }
        let timeout = self.servers.session.unwrap_or(lease).clamp(open::SHORTEST, self.longest);
        let (timeout, slot) = {
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            let (timeout, slot) = sessions.slot(timeout, Arc::default);
            (timeout, slot.clone())
        };
        let now = self.clock.now();
        match slot.get().filter(|live| !live.is_stale(now)) {
            Some(live) => {
                live.used(now);
                Ok(live)
            }
            None => self.open(&slot, timeout).await,
        }
    }

    /// Any session: to look at what is there.
    async fn any_session(self: &Arc<Self>) -> Result<Arc<Live>> {
        let now = self.clock.now();
        let open = self.all_sessions().into_iter().find(|live| !live.has_ended() && live.is_connected());
        match open {
            Some(live) => {
                live.used(now);
                Ok(live)
            }
            None => self.session(crate::options::DEFAULT_LEASE).await,
        }
    }

    fn all_sessions(&self) -> Vec<Arc<Live>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().filter_map(|(_, slot)| slot.get()).collect()
    }

    fn note_session(&self, id: i64) {
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        ours.push(id);
        if ours.len() > 1000 {
            ours.remove(0);
        }
    }

    fn was_ours(&self, id: i64) -> bool {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// A line in which somebody of ours waits from now on.
    fn needs_attendant(self: &Arc<Self>, name: &Name) {
        self.host(|host| host.spawn(attend::attend(Arc::downgrade(self), name.clone())));
    }

    /// Not for longer than this: while no server is connected, questions are only put off.
    async fn bounded<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.clock.sleep_until(self.clock.now().after(ANSWER_WITHIN));
        match select(pin!(answer), pin!(limit)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Error::unknown(format!("{} did not answer in time", self.servers.address))),
        }
    }

    fn asking(&self, error: zookeeper_client::Error) -> Error {
        fault::asking(error, &self.servers.address)
    }
}

impl Store for ZookeeperStore {
    fn info(&self) -> Info {
        Info {
            kind: "zookeeper",
            label: self.label.clone(),
            address: self.shared.servers.address.clone(),
            clock: self.shared.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::Replicated,
            queue: Queue::Fifo,
            wake: Wake::Push,
            lifetime: Lifetime::Session,
            reach: Reach::Network,
            weights: Weights::Any,
            atomic_batch: 64,
            settable_token: false,
            upgrade: true,
            expel: true,
            shortest_lease: open::SHORTEST.min(self.shared.longest),
            longest_lease: self.shared.longest,
        }
    }

    /// Opens the session of the usual lease, so that it is there when the first lock is asked for.
    fn attach(&self, host: Host) {
        if self.shared.host.set(host).is_ok() {
            let shared = Arc::downgrade(&self.shared);
            self.shared.host(|host| {
                host.spawn(async move {
                    if let Some(shared) = shared.upgrade() {
                        drop(shared.session(crate::options::DEFAULT_LEASE).await);
                    }
                });
            });
        }
    }

    /// One round trip, two packets; one packet where somebody of ours waits in the line already, or where only we use it (the first
    /// time that this turns out not to hold costs another round trip). A refusal costs another round trip, the first ticket of a
    /// name as many more as its path has new parts, the first of a lease a session.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            match batch {
                [] => Ok(Vec::new()),
                [ticket] => Ok(vec![self.shared.enter(ticket).await?]),
                _ => self.shared.enter_all(batch).await,
            }
        })
    }

    /// No round trip by itself: the line's attendant watches, one packet, and reads, one round trip, when the one ahead goes.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(self.shared.wait(place, until))
    }

    /// One round trip for each session; two where some are gone.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(self.shared.renew(batch))
    }

    /// One round trip for each session.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(self.shared.leave(batch))
    }

    /// One round trip.
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(self.shared.change(place, weight, note))
    }

    /// Two round trips.
    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(self.shared.upgrade(place, new))
    }

    /// Three round trips.
    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(self.shared.bounded(self.shared.expel(name, token)))
    }

    /// One round trip, after a session of its own was opened for it.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(self.shared.bounded(self.shared.watch(scope)))
    }

    /// Two round trips.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(self.shared.bounded(self.shared.inspect(name)))
    }

    /// One round trip for each level below the prefix.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(self.shared.bounded(self.shared.list(prefix, after, limit)))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.close())
    }
}

impl fmt::Debug for ZookeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZookeeperStore({})", self.shared.servers.address)
    }
}
