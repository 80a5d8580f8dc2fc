//! Several locks at once: all of them or none, in one sorted order, with one time limit and one guard.
//!
//! Where one store holds them all and nobody is in the way, that is one call. Whoever finds somebody in the way queues for one
//! name after the other, in the order of names, and keeps what he has got: since everybody goes in the same order, nobody
//! waits for somebody who waits for him. An attempt to take the rest in one call never waits, so it changes nothing of that.

use crate::acquire::{self, Attempt, Found, Limit, Request, flush, held};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Grip;
use crate::line::WHOLE;
use crate::locks::{Core, Locks};
use crate::name::Name;
use crate::observe;
use crate::options::Options;
use crate::owner::Owner;
use crate::semaphore::{check_permits, check_size};
use crate::store::{Kind, Mode, OwnerId};
use futures_util::future::{Either, join_all, select, select_all};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tracing::Instrument;

mod guard;

pub use guard::MultiGuard;

/// Tickets carry the names that are held already, for people and for whoever looks for deadlocks; beyond this many they only
/// make the tickets longer.
const MOST_NAMED: usize = 32;

/// One lock of several: see [`Locks::all`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    name: String,
    kind: Kind,
    weight: u32,
    capacity: u32,
}

impl Part {
    /// A mutex.
    #[must_use]
    pub fn lock(name: impl Into<String>) -> Part {
        Part { name: name.into(), kind: Kind::Mutex, weight: WHOLE, capacity: WHOLE }
    }

    /// The read side of a read-write lock.
    #[must_use]
    pub fn read(name: impl Into<String>) -> Part {
        Part { kind: Kind::Read, weight: 1, ..Part::lock(name) }
    }

    /// The write side of a read-write lock.
    #[must_use]
    pub fn write(name: impl Into<String>) -> Part {
        Part { kind: Kind::Write, ..Part::lock(name) }
    }

    /// Some permits of a semaphore of `of`. They bring no token.
    #[must_use]
    pub fn permits(name: impl Into<String>, permits: u32, of: u32) -> Part {
        Part { name: name.into(), kind: Kind::Permits, weight: permits, capacity: of }
    }
}

impl From<&str> for Part {
    /// A mutex.
    fn from(name: &str) -> Part {
        Part::lock(name)
    }
}

impl From<String> for Part {
    /// A mutex.
    fn from(name: String) -> Part {
        Part::lock(name)
    }
}

impl From<&String> for Part {
    /// A mutex.
    fn from(name: &String) -> Part {
        Part::lock(name)
    }
}

/// Several locks that are taken together: all of them or none. Made by [`Locks::all`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:multi-example").await?;
/// use fencelock::Part;
///
/// let guard = locks.all(["accounts/7", "accounts/3"]).lock().await?;
/// assert_eq!(guard.tokens().len(), 2);
/// guard.release().await?;
///
/// // Kinds may be mixed.
/// let guard = locks.all([Part::read("prices"), Part::write("stock")]).lock().await?;
/// assert!(guard.token("prices").is_some());
/// assert!(locks.rwlock("prices").try_read().await.is_ok());
/// assert!(locks.rwlock("stock").try_read().await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is locked"]
pub struct MultiLock {
    wanted: Vec<(Arc<Core>, Part)>,
}

impl Locks {
    /// Several locks at once: all of them or none, under one time limit, with one guard. No I/O.
    ///
    /// They are queued for in the order of their names, whatever the order here, so two callers never wait for each other. If
    /// one store keeps them all and nobody is in the way, that is one call to it, however many they are, and one to release
    /// them. Names alone are mutexes; [`Part`] says other kinds.
    ///
    /// Do not use it while you hold one of the names: you would wait for yourself. An [`Owner`] may.
    pub fn all<P: Into<Part>>(&self, parts: impl IntoIterator<Item = P>) -> MultiLock {
        MultiLock { wanted: parts.into_iter().map(|part| (self.core.clone(), part.into())).collect() }
    }
}

impl MultiLock {
    /// These and those of another: on another store as well, if its label differs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> fencelock::Result<()> {
    /// # let shop = fencelock::Locks::connect("memory:multi-shop").await?;
    /// # let bank = fencelock::Locks::connect("memory:multi-bank?label=bank").await?;
    /// let guard = shop.all(["stock/42"]).and(bank.all(["accounts/7"])).lock().await?;
    /// let labels: Vec<String> = guard.tokens().iter().map(|token| token.label().to_string()).collect();
    /// assert_eq!(labels, ["memory", "bank"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn and(mut self, other: MultiLock) -> MultiLock {
        self.wanted.extend(other.wanted);
        self
    }

    /// Waits in the queues for as long as it takes.
    ///
    /// # Errors
    /// `InvalidInput` for no name at all, a name twice, or two stores with the same label; `Mismatch`, `InvalidName`, or
    /// whatever keeps a store from answering. Nothing is held then.
    ///
    /// # Cancel safety
    /// Dropping the future gives up every place in a queue and everything that was granted; nothing is left behind.
    pub async fn lock(&self) -> Result<MultiGuard> {
        self.lock_with(Options::new()).await
    }

    /// Takes them if all are free, and else says who has one of them.
    ///
    /// # Errors
    /// `Held`, with the name and the holder's facts; and those of [`lock`](MultiLock::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    pub async fn try_lock(&self) -> Result<MultiGuard> {
        self.lock_within(Duration::ZERO).await
    }

    /// Waits at most this long, for all of them together.
    ///
    /// # Errors
    /// `TimedOut`, with the name that was waited for at the end, its holder's facts and the place in its queue; and those of
    /// [`lock`](MultiLock::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    pub async fn lock_within(&self, wait: Duration) -> Result<MultiGuard> {
        self.lock_with(Options::new().wait(wait)).await
    }

    /// Takes them as the options say. The times of `max_hold`, `min_hold` and a fixed lease begin when all are there.
    ///
    /// # Errors
    /// `InvalidInput` for options that do not fit together or a store; and those of the other calls.
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    pub async fn lock_with(&self, options: Options) -> Result<MultiGuard> {
        let wishes = self.wishes(&options, None)?;
        let (clock, name) = (wishes[0].core.keeper.clock.clone(), wishes[0].request.name.clone());
        let (started, limit) = (clock.now(), Limit::of(&wishes[0].request));
        let progress = Progress::default();
        let way_in = get_in(&wishes, started, &progress).instrument(observe::acquiring(&name, Kind::Mutex));
        match limit.keep(&wishes[0].core, started, way_in).await {
            Ok(grips) => Ok(MultiGuard::new(grips?, &wishes)),
            Err(waited) => {
                let wish = &wishes[progress.at.load(Ordering::Relaxed)];
                let token = progress.token.load(Ordering::Relaxed);
                Err(limit.error(&wish.core, &wish.request.name, waited, token).await)
            }
        }
    }

    /// Takes them as `owner`: what it holds already it gets once more, at once. One call for each name.
    ///
    /// # Errors
    /// `Deadlock` if the owner holds one of them for reading and wants to write; and those of [`lock`](MultiLock::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    pub async fn lock_as(&self, owner: &Owner) -> Result<MultiGuard> {
        self.lock_as_with(owner, Options::new()).await
    }

    /// The same, as the options say.
    ///
    /// Whoever takes a name while it holds a later one may come to wait for somebody who waits for him: an owner that nests
    /// such calls is better off with a time limit.
    ///
    /// # Errors
    /// Those of [`lock_as`](MultiLock::lock_as) and [`lock_with`](MultiLock::lock_with).
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    pub async fn lock_as_with(&self, owner: &Owner, options: Options) -> Result<MultiGuard> {
        let wishes = self.wishes(&options, Some(owner))?;
        let clock = &wishes[0].core.keeper.clock;
        let started = clock.now();
        let mut grips = Vec::with_capacity(wishes.len());
        for wish in &wishes {
            let mut request = wish.request.clone();
            request.wait = options.wait.map(|wait| wait.saturating_sub(clock.now().since(started)));
            // Permits are not shared between the guards of an owner.
            let hold = match request.kind {
                Kind::Permits => acquire::acquire(&wish.core, request).await?,
                _ => owner.acquire(&wish.core, request).await?,
            };
            grips.push(Grip::new(wish.core.clone(), hold, wish.exclusive()));
        }
        Ok(MultiGuard::new(grips, &wishes))
    }

    /// What is to be entered, in the order of entering.
    fn wishes(&self, options: &Options, owner: Option<&Owner>) -> Result<Vec<Wish>> {
        let invalid = |message: &str| Error::new(ErrorKind::InvalidInput, message);
        // Tickets of one call belong together.
        let id = owner.map_or_else(OwnerId::new, Owner::id);
        let mut wishes = Vec::with_capacity(self.wanted.len());
        for (given, (core, part)) in self.wanted.iter().enumerate() {
            if let Some((_, same)) =
                self.wanted.iter().find(|(other, _)| !Arc::ptr_eq(core, other) && core.info.label == other.info.label)
            {
                let message = format!(
                    "two stores are both labelled {:?}, so their tokens cannot be told apart: give one of them another label",
                    core.info.label
                );
                return Err(invalid(&message).named(same.name.clone()));
            }
            let name = Name::new(&core.namespace, &part.name)?;
            if part.kind == Kind::Permits {
                check_size(&name, part.capacity)?;
                check_permits(part.weight, part.capacity).map_err(|error| error.named(name.shown()))?;
            }
            let size = (part.weight, part.capacity);
            let request = Request { owner: id, ..core.request(name, part.kind, size, options, owner)? };
            wishes.push(Wish { core: core.clone(), request, given });
        }
        wishes.sort_by(|a, b| a.order().cmp(&b.order()));
        if let Some(twice) = wishes.windows(2).find(|pair| pair[0].order() == pair[1].order()) {
            return Err(invalid("the same name twice in one multi-lock").named(twice[0].request.name.shown()));
        }
        if wishes.is_empty() {
            return Err(invalid("a multi-lock needs at least one name"));
        }
        for at in 1..wishes.len().min(MOST_NAMED) {
            let (before, rest) = wishes.split_at_mut(at);
            let Wish { core, request, .. } = &mut rest[0];
            let same = before.iter().filter(|wish| Arc::ptr_eq(&wish.core, core));
            request.held.extend(same.map(|wish| wish.request.name.clone()));
        }
        Ok(wishes)
    }
}

/// One lock of several, ready to be entered.
struct Wish {
    core: Arc<Core>,
    request: Request,
    /// Its place in what the caller has written.
    given: usize,
}

impl Wish {
    fn order(&self) -> (&str, &str) {
        (self.request.name.key(), &self.core.info.label)
    }

    fn exclusive(&self) -> bool {
        self.request.kind.mode() != Mode::Shared
    }
}

/// Where a way in has got to, for the message of a time limit.
#[derive(Default)]
struct Progress {
    at: AtomicUsize,
    token: AtomicU64,
}

/// Gets all of them in. One call where one store keeps them all and nobody is in the way; otherwise at most two for each name,
/// and the waiting.
async fn get_in(wishes: &[Wish], started: Moment, progress: &Progress) -> Result<Vec<Grip>> {
    loop {
        for wish in wishes {
            flush(&wish.core, &wish.request.name).await;
        }
        let Some(inside) = enter(wishes, progress).await? else {
            // One of those that we had was lost while we waited for another.
            observe::queued_again(&wishes[progress.at.load(Ordering::Relaxed)].request.name);
            continue;
        };
        // Those that have waited for others may have to be renewed: at the same time.
        let confirmed = wishes.iter().zip(inside).map(|(wish, attempt)| async move {
            let hold = attempt.confirm().await?;
            // A guard from here on, so that whoever goes away now lets it go.
            Ok(hold.map(|hold| Grip::new(wish.core.clone(), hold, wish.exclusive())))
        });
        let grips = join_all(confirmed).await.into_iter().collect::<Result<Option<Vec<Grip>>>>()?;
        match grips.filter(|grips| grips.iter().all(Grip::is_ours)) {
            Some(grips) => {
                grips.iter().for_each(|grip| grip.acquired(started));
                return Ok(grips);
            }
            None => observe::queued_again(&wishes[0].request.name),
        }
    }
}

/// Enters one after the other, in order, as many in one call as can be had. `None` if one that was inside was lost meanwhile.
async fn enter<'a>(wishes: &'a [Wish], progress: &Progress) -> Result<Option<Vec<Attempt<'a>>>> {
    let mut inside: Vec<Attempt<'a>> = Vec::with_capacity(wishes.len());
    let mut together = true;
    while let Some(next) = wishes.get(inside.len()) {
        let at = inside.len();
        progress.at.store(at, Ordering::Relaxed);
        let same = wishes[at..].iter().take_while(|wish| Arc::ptr_eq(&wish.core, &next.core)).count();
        let batch = same.min(next.core.capability.atomic_batch);
        if together && batch > 1 {
            let mut attempts: Vec<Attempt<'a>> =
                wishes[at..at + batch].iter().map(|wish| Attempt::new(&wish.core, &wish.request)).collect();
            let found = Attempt::enter_all(&mut attempts, false).await?;
            if found.iter().all(|found| matches!(found, Found::Inside)) {
                inside.extend(attempts);
            } else if next.request.never_waits() {
                return Err(refused(&wishes[at..], found));
            } else {
                together = false;
            }
        } else {
            progress.token.store(0, Ordering::Relaxed);
            let coming = acquire::come_in(&next.core, &next.request, &progress.token);
            let (attempt, waited) = match one_of_us_lost(&inside) {
                None => coming.await?,
                Some(lost) => match select(std::pin::pin!(coming), lost).await {
                    Either::Left((came, _)) => came?,
                    Either::Right(_) => return Ok(None),
                },
            };
            inside.push(attempt);
            // Whoever stood in the way has gone: the rest may be had at once.
            together |= waited;
        }
        if inside.len() < wishes.len() {
            inside[at..].iter_mut().for_each(Attempt::keep);
        }
    }
    Ok(Some(inside))
}

/// Ready when one of them is lost; `None` if there are none.
fn one_of_us_lost<'a>(inside: &'a [Attempt<'_>]) -> Option<impl Future<Output = ()> + Unpin + use<'a>> {
    (!inside.is_empty()).then(|| {
        let mut lost = select_all(inside.iter().map(Attempt::lost));
        std::future::poll_fn(move |cx| std::pin::Pin::new(&mut lost).poll(cx).map(|_| ()))
    })
}

/// Who was in the way: the one that the store could name, else whoever it is.
fn refused(wishes: &[Wish], found: Vec<Found>) -> Error {
    let mut holders = found.into_iter().map(|found| if let Found::Full(holder) = found { holder } else { None });
    match holders.by_ref().enumerate().find(|(_, holder)| holder.is_some()) {
        Some((at, holder)) => held(&wishes[at].request.name, holder),
        None => Error::new(ErrorKind::Held, "not acquired: one of several names is held"),
    }
}
