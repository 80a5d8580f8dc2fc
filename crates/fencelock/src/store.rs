//! The store contract: what every store must do, and the words it is said in.
//!
//! A store keeps one [line](crate::line) per name. A ticket's **id** is chosen by the client before the first try, so that a
//! lost reply is simply asked for again; a **place** is a line and a ticket id. The types that users see (`Mutex`, `RwLock`,
//! `Semaphore`, guards) are written once, on top of this. `CONTRIBUTING.md` walks through adding a store; the conformance
//! suite of `fencelock-testkit` checks every sentence below on the real thing.
//!
//! # What holds for every verb
//!
//! - **Time.** Shared state lives on the store's clock. Where a verb answers with a lease, that lease counts *from the
//!   moment of the call*, before anything was sent: the caller adds it to the moment it noted then. A ticket whose lease has
//!   ended is gone, swept or not.
//! - **Unknown is not no.** An error whose [effect](crate::Error::effect) is `Unknown` may have been carried out, or may yet
//!   be. Every verb may be repeated: the second answer describes what is there.
//! - **Cancellation.** Dropping a verb's future is the same as an error with unknown effect; it must leave the store's client
//!   usable.
//! - **Runtimes.** Verbs are called from the caller's tokio runtime (or from none at all, if the store needs none) and from
//!   the library thread, which has its own. A store with connections keeps one per runtime.

use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::name::Name;
pub use futures_core::future::BoxFuture;
pub use futures_core::stream::BoxStream;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "consul")]
pub mod consul;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod hints;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "_session")]
pub mod note;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "_session")]
pub mod session;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "etcd", feature = "redis"))]
mod together;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// A waiting ticket's lease is at most this, so that a killed waiter with a lease of an hour does not block for an hour.
pub const LONGEST_WAITING_LEASE: Duration = Duration::from_secs(30);

/// The lease that a ticket has while it waits.
#[must_use]
pub fn waiting_lease(lease: Duration) -> Duration {
    lease.min(LONGEST_WAITING_LEASE)
}

/// 128 random bits. Asked of the system for many at a time, by each thread and process for itself: a call of its own for each
/// ticket is a noticeable part of what a lock costs.
fn random_bits() -> [u8; 16] {
    struct Stock {
        bits: [u8; 512],
        left: usize,
        process: u32,
    }
    thread_local! {
        static STOCK: std::cell::RefCell<Stock> =
            const { std::cell::RefCell::new(Stock { bits: [0; 512], left: 0, process: 0 }) };
    }
    STOCK.with_borrow_mut(|stock| {
        // A process that was forked must not give out what its parent gives out.
        let process = std::process::id();
        if stock.left == 0 || stock.process != process {
            getrandom::fill(&mut stock.bits).expect("the system's source of randomness works");
            (stock.left, stock.process) = (stock.bits.len(), process);
        }
        stock.left -= 16;
        let mut bits = [0; 16];
        bits.copy_from_slice(&stock.bits[stock.left..][..16]);
        // Nothing is left of a secret but the secret.
        stock.bits[stock.left..][..16].fill(0);
        bits
    })
}

/// 16 bytes in 32 hex digits.
fn hex(bytes: [u8; 16]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    digits
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl $name {
            /// A new one, at random.
            #[must_use]
            #[allow(clippy::new_without_default, reason = "every call gives another one")]
            pub fn new() -> Self {
                $name(random_bits())
            }

            /// From its bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                $name(bytes)
            }

            /// Its bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }

            /// What it is written as.
            pub(crate) fn digits(&self) -> [u8; 32] {
                hex(self.0)
            }
        }

        impl fmt::Display for $name {
            /// 32 hex digits.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(std::str::from_utf8(&self.digits()).unwrap_or_default())
            }
        }
    };
}

id_type! {
    /// A ticket's id: the secret that renews and releases. 128 random bits, chosen by the client. Never shown to others.
    TicketId
}
id_type! {
    /// Whose ticket it is: tickets of one owner may belong together. Public.
    OwnerId
}

/// Hashes ids for tables of our own tickets: they are random bits already, chosen by us.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ById(u64);

impl std::hash::Hasher for ById {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A table of our own tickets.
pub(crate) type Tickets<T> = std::collections::HashMap<TicketId, T, std::hash::BuildHasherDefault<ById>>;

impl fmt::Debug for TicketId {
    /// The first four digits: the rest is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A ticket in a line, there or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The line.
    pub name: Name,
    /// The ticket.
    pub id: TicketId,
}

/// What a ticket is for. Capacity and weight say what it excludes; the kind says how people and other clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A mutex.
    Mutex,
    /// The read side of a read-write lock.
    Read,
    /// The write side of a read-write lock.
    Write,
    /// Permits of a semaphore.
    Permits,
    /// A candidate of an election.
    Leader,
}

impl Kind {
    /// Whether others may be inside at the same time.
    #[must_use]
    pub fn mode(self) -> Mode {
        match self {
            Kind::Mutex | Kind::Write | Kind::Leader => Mode::Exclusive,
            Kind::Read => Mode::Shared,
            Kind::Permits => Mode::Permits,
        }
    }
}

/// How a ticket is inside: alone, beside other readers, or beside other permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Beside other shared ones.
    Shared,
    /// Beside as many as the semaphore allows.
    Permits,
}

impl Mode {
    /// `exclusive`, `shared` or `permits`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Permits => "permits",
        }
    }

    /// What a ticket's weight and capacity say of its mode: what the line knows where no kind was kept.
    #[must_use]
    pub fn of(weight: u32, capacity: u32) -> Mode {
        if capacity != crate::line::WHOLE {
            Mode::Permits
        } else if weight == capacity {
            Mode::Exclusive
        } else {
            Mode::Shared
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a client says of itself and its ticket, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Note {
    /// The machine.
    pub host: Arc<str>,
    /// The process.
    pub pid: u32,
    /// What the client calls itself.
    pub identity: Arc<str>,
    /// Why it wants the lock.
    pub reason: Option<Arc<str>>,
    /// A leader's value.
    pub value: Option<Arc<str>>,
}

/// One ticket to be entered.
#[derive(Clone, Debug)]
pub struct Enter {
    /// The line, and the id that the ticket has or will have.
    pub place: Place,
    /// What it is for.
    pub kind: Kind,
    /// How much of the capacity it takes: at least 1, at most the capacity.
    pub weight: u32,
    /// The line's capacity.
    pub capacity: u32,
    /// The lease it wants. A ticket that has to wait gets [`waiting_lease`] of it.
    pub lease: Duration,
    /// Whether to join the line if there is no room; otherwise the answer is [`Entered::Full`].
    pub queue: bool,
    /// Whose it is.
    pub owner: OwnerId,
    /// What this owner holds already.
    pub held: Vec<Name>,
    /// What to say of it.
    pub note: Note,
}

/// What became of one [`Enter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// Inside.
    Admitted {
        /// The ticket's number.
        token: u64,
        /// The lease that was granted, from the moment of the call.
        lease: Duration,
    },
    /// In the line.
    Queued {
        /// The ticket's number, where it is known already.
        token: Option<u64>,
        /// The lease that was granted, from the moment of the call.
        lease: Duration,
        /// Who is ahead, where the answer tells.
        ahead: Option<Seen>,
    },
    /// Not in the line: no room, and it was not to queue.
    Full {
        /// Who is inside, where the answer tells.
        holder: Option<Seen>,
    },
}

/// What a [`wait`](Store::wait) found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Inside.
    Admitted {
        /// The ticket's number.
        token: u64,
    },
    /// Still waiting when the time was up.
    Waiting,
    /// Not in the line: lapsed, left or expelled.
    Gone,
}

/// One ticket to be renewed.
#[derive(Clone, Debug)]
pub struct Renew {
    /// Which.
    pub place: Place,
    /// Its expiry becomes the later of what it is and now plus this. A store whose tickets live with a session renews the
    /// session, for as long as sessions live there.
    pub lease: Duration,
    /// Raises the line's counter to at least this, only if the ticket is still there. Needs
    /// [`settable_token`](Capability::settable_token).
    pub at_least: Option<u64>,
}

/// What became of one [`Renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// There.
    There {
        /// How long it will be, from the moment of the call.
        lease: Duration,
    },
    /// Not in the line. It was not put back.
    Gone,
}

/// Whether a ticket was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It was.
    There,
    /// It was not.
    Gone,
}

/// What became of an [`upgrade`](Store::upgrade).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upgraded {
    /// The ticket was alone; the new one is inside with all of the capacity.
    Admitted {
        /// The new ticket's number.
        token: u64,
    },
    /// Somebody else is in the line; nothing has changed.
    Held {
        /// Who, where the answer tells.
        by: Option<Seen>,
    },
    /// Neither the old ticket nor the new one is in the line.
    Gone,
}

/// A ticket as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its number, where the store knows it; of who is inside always, where the store can [put it out](Store::expel).
    pub token: Option<u64>,
    /// How it is, or wants to be, inside.
    pub mode: Mode,
    /// How much of the capacity it takes.
    pub weight: u32,
    /// The machine.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// What the client calls itself.
    pub identity: String,
    /// Whose it is.
    pub owner: String,
    /// Why.
    pub reason: Option<String>,
    /// A leader's or candidate's value.
    pub value: Option<String>,
    /// How long ago it joined the line, where the store knows it.
    pub entered: Option<Duration>,
    /// How long ago it was admitted, where the store knows it.
    pub admitted: Option<Duration>,
    /// How long its lease still runs, where the store tells others.
    pub expires_in: Option<Duration>,
}

impl fmt::Display for Seen {
    /// `held for 42 s by web-3 pid 912 (deploy 88), token 1187, lease ends in 12 s`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::{error::spoken, name::printable};
        f.write_str("held")?;
        if let Some(held) = self.admitted.or(self.entered) {
            write!(f, " for {}", spoken(held))?;
        }
        write!(f, " by {} pid {}", printable(&self.identity), self.pid)?;
        if self.host != self.identity {
            write!(f, " on {}", printable(&self.host))?;
        }
        if let Some(reason) = &self.reason {
            write!(f, " ({})", printable(reason))?;
        }
        if let Some(token) = self.token {
            write!(f, ", token {token}")?;
        }
        if let Some(left) = self.expires_in {
            write!(f, ", lease ends in {}", spoken(left))?;
        }
        Ok(())
    }
}

/// A line as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Line {
    /// Its capacity; 0 when nobody is in it.
    pub capacity: u32,
    /// Who is inside, in order.
    pub inside: Vec<Seen>,
    /// Who waits, in order.
    pub waiting: Vec<Seen>,
}

/// One name with somebody in its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Name,
    /// How many are inside.
    pub inside: usize,
    /// How many wait.
    pub waiting: usize,
    /// How long the first one has been inside, or, where the store does not know that, in the line.
    pub held: Option<Duration>,
}

/// What to [`watch`](Store::watch).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One line.
    Name(Name),
    /// Every line whose key begins with this.
    Prefix(String),
}

impl Scope {
    /// Whether a line is within.
    #[must_use]
    pub fn covers(&self, name: &Name) -> bool {
        match self {
            Scope::Name(one) => one.key() == name.key(),
            Scope::Prefix(prefix) => name.key().starts_with(prefix),
        }
    }
}

/// Something has changed: look again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// In this line.
    Changed(Name),
    /// Somebody came into this line, or was only changed in it: there is no more room than before. A store that cannot tell
    /// says [`Changed`](Hint::Changed).
    Entered(Name),
    /// Somewhere within what is watched; hints may have been missed.
    Somewhere,
}

/// How far a store's numbers can be trusted as fencing tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fencing {
    /// Not at all: a number may repeat.
    None,
    /// As long as the one node keeps its data.
    SingleNode,
    /// They survive the loss of a node.
    Replicated,
}

/// How a waiter learns that its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The store tells.
    Push,
    /// The store answers a pending question.
    LongPoll,
    /// The client asks again and again.
    Poll,
}

/// What a ticket's life hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Its own lease.
    Ticket,
    /// The session of the client that entered it.
    Session,
    /// The connection of the client that entered it.
    Connection,
}

/// Who can share the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// This process only.
    Process,
    /// All processes of a host.
    Host,
    /// All machines that reach it.
    Network,
}

/// What becomes of a ticket that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// It is admitted in the order of entering.
    Fifo,
    /// It waits in the line, in no particular order.
    Unordered,
    /// It cannot wait in the line: enter answers `Full` even where queueing was asked for, and clients wait beside it.
    Absent,
}

/// Which weights a store can keep apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Only all of the capacity: a mutex.
    Whole,
    /// All of it or one: readers and writers, no permits.
    ReadWrite,
    /// Any: readers and permits as well.
    Any,
}

/// What a store promises. Each claim has a test in the conformance suite that fails where it is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// How far its tokens can be trusted.
    pub fencing: Fencing,
    /// What becomes of a ticket that finds no room.
    pub queue: Queue,
    /// How a waiter learns that its turn has come.
    pub wake: Wake,
    /// What a ticket's life hangs on.
    pub lifetime: Lifetime,
    /// Who can share it.
    pub reach: Reach,
    /// Which weights it can keep apart.
    pub weights: Weights,
    /// How many tickets one [`enter`](Store::enter) takes all or none of; at least 1.
    pub atomic_batch: usize,
    /// Whether [`Renew::at_least`] is heeded; otherwise it is an `Unsupported` error.
    pub settable_token: bool,
    /// Whether [`Store::upgrade`] works; otherwise it is an `Unsupported` error.
    pub upgrade: bool,
    /// Whether [`Store::expel`] works; otherwise it is an `Unsupported` error.
    pub expel: bool,
    /// The shortest lease it can keep.
    pub shortest_lease: Duration,
    /// The longest lease it can keep.
    pub longest_lease: Duration,
}

/// Facts about a store.
#[derive(Clone, Debug)]
pub struct Info {
    /// What kind of store it is: `memory`, `sqlite`, `redis`, ...
    pub kind: &'static str,
    /// What its tokens are labelled with: the kind, unless the user chose another. Never derived from an address.
    pub label: Arc<str>,
    /// Where it is, without credentials.
    pub address: String,
    /// The clock that the client's deadlines run on: the machine's, except in tests.
    pub clock: Clock,
}

/// The client's side, as a store sees it: handed to [`Store::attach`].
#[derive(Clone)]
pub struct Host {
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) doubt: Arc<dyn Fn(Option<TicketId>) + Send + Sync>,
}

impl Host {
    /// Runs a task on the library thread.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    /// The library thread's runtime: for connections that tickets hang on.
    #[must_use]
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Tells that a ticket (or, with `None`, any of ours) may be gone: it is renewed at once, and the answer to that counts.
    pub fn doubt(&self, id: Option<TicketId>) {
        (self.doubt)(id);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}

/// A place where lines are kept. See the [module](self) for what holds for every verb.
///
/// There are no default methods: a store that forgot one would silently do something else.
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// Facts. No I/O.
    fn info(&self) -> Info;

    /// What it promises. No I/O.
    fn capability(&self) -> Capability;

    /// Called once, before any verb. A store whose tickets hang on a session or a connection opens it on the host's library
    /// thread. It cannot fail: what goes wrong is told by the verbs that need it.
    fn attach(&self, host: Host);

    /// Joins lines. Up to [`atomic_batch`](Capability::atomic_batch) tickets in one call, all or none: if one is `Full` or
    /// fails, none is in its line; the others then answer `Full` with nobody to name. Answers are in the order of the batch.
    /// Where a store enters first and takes back what was refused, others may see that for a moment, which can only delay.
    ///
    /// Idempotent by id: a ticket that is there already keeps its number; its expiry becomes the later of what it is and now
    /// plus the lease.
    ///
    /// # Errors
    /// `Mismatch` if the head of a line has another capacity; `InvalidInput` for a name twice in a batch, a batch that is too
    /// large, a weight of zero or above the capacity.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>>;

    /// Waits until the ticket is admitted or gone, at most until `until`. Extends nothing, and its answer moves no deadline.
    /// A store that is told by others must not rely on it alone: messages get lost.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>>;

    /// Renews tickets, waiting and admitted ones alike. Never brings back one that is gone.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>>;

    /// Takes tickets out of their lines and lets in whoever fits then. Never touches another ticket than the one named.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>>;

    /// Lowers a ticket's weight (number and place stay; whoever fits then is let in), and says something new of it.
    /// A larger weight than it has is ignored.
    ///
    /// # Errors
    /// `Unsupported` for a weight where [`weights`](Capability::weights) is `Whole`.
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>>;

    /// Replaces a ticket that is alone in its line by one with the id `new`, a new, larger number and all of the capacity.
    /// The new ticket inherits the expiry. Idempotent by the new id.
    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>>;

    /// Puts out the ticket with this number, whoever it belongs to.
    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>>;

    /// A stream of hints that something within `scope` has changed: somebody came, left, was admitted, lapsed and was swept,
    /// was changed. Every change after the answer is told, several maybe by one hint, and where the store has to poll up to a
    /// second late; a lapse that nobody has noticed yet is not.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>>;

    /// Who is in a line.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>>;

    /// Names with somebody in their line whose key begins with `prefix`, in the order of their keys, after the key `after`,
    /// at most `limit` of them.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>>;

    /// The last call: ends sessions and connections. Called on the library thread.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// What every store checks before it sends anything: see the errors of [`Store::enter`].
///
/// # Errors
/// `InvalidInput`, `Unsupported`.
pub fn check_batch(batch: &[Enter], capability: &Capability) -> Result<()> {
    use crate::error::{Error, ErrorKind};
    if batch.len() > capability.atomic_batch {
        let message = format!("{} tickets at once, this store takes {} at most", batch.len(), capability.atomic_batch);
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    for (i, ticket) in batch.iter().enumerate() {
        let name = || ticket.place.name.shown();
        if batch[..i].iter().any(|other| other.place.name.key() == ticket.place.name.key()) {
            return Err(Error::new(ErrorKind::InvalidInput, "the same name twice in one call").named(name()));
        }
        if ticket.weight == 0 || ticket.weight > ticket.capacity || ticket.capacity > crate::line::WHOLE {
            let message = format!("a weight of {} does not fit a capacity of {}", ticket.weight, ticket.capacity);
            return Err(Error::new(ErrorKind::InvalidInput, message).named(name()));
        }
        let readers_only = capability.weights == Weights::ReadWrite && ticket.capacity != crate::line::WHOLE;
        if readers_only || (capability.weights == Weights::Whole && ticket.weight != ticket.capacity) {
            let kept = if readers_only { "permits" } else { "readers and no permits" };
            return Err(Error::new(ErrorKind::Unsupported, format!("this store keeps no {kept}")).named(name()));
        }
    }
    Ok(())
}
