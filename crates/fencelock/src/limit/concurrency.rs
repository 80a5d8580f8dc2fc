//! The concurrency limit: how many may be under way at once. Shared, it is the [semaphore](crate::Semaphore); local, a queue of this process.

use super::invalid;
use crate::error::{Error, ErrorKind, Result, spoken};
use crate::guard::Permit;
use crate::locks::{Core, Locks};
use crate::options::Options;
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At most so many at once; in the order of asking. Cheap to clone; clones share the slots.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// use fencelock::limit::Concurrency;
///
/// let uploads = Concurrency::local(2);
/// let first = uploads.try_acquire().await?;
/// let second = uploads.acquire().await?;
/// assert!(uploads.try_acquire().await.is_err());
/// drop(first);
/// uploads.try_acquire().await?;
/// // Each user has two of its own.
/// uploads.key("user-7").try_acquire().await?;
/// # drop(second);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Concurrency {
    home: Home,
    most: u32,
    key: Arc<str>,
}

#[derive(Clone, Debug)]
enum Home {
    Local(Arc<Queues>),
    Shared { core: Arc<Core>, name: Arc<str> },
}

/// A queue for each key that is in use at the moment; those that nobody uses are gone.
type Queues = Mutex<HashMap<Arc<str>, Weak<Semaphore>>>;

/// A place among those under way; free again when dropped.
#[derive(Debug)]
#[must_use = "the place is free again as soon as this is dropped"]
pub struct Slot {
    _place: Place,
}

#[derive(Debug)]
enum Place {
    Local { _permit: OwnedSemaphorePermit, _queue: InUse },
    Shared(#[allow(dead_code, reason = "held, not read")] Permit),
}

/// Takes the queue of a key out when its last user goes.
#[derive(Debug)]
struct InUse {
    queues: Arc<Queues>,
    key: Arc<str>,
    queue: Option<Arc<Semaphore>>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues);
        drop(self.queue.take());
        if queues.get(&self.key).is_some_and(|queue| queue.strong_count() == 0) {
            queues.remove(&self.key);
        }
    }
}

impl Concurrency {
    /// At most `most` in this process.
    #[must_use]
    pub fn local(most: u32) -> Concurrency {
        Concurrency { home: Home::Local(Arc::default()), most, key: "".into() }
    }

    /// At most `most` over all clients of the store: the permits of `locks.semaphore(name, most)`.
    #[must_use]
    pub fn shared(locks: &Locks, name: &str, most: u32) -> Concurrency {
        Concurrency { home: Home::Shared { core: locks.core.clone(), name: name.into() }, most, key: "".into() }
    }

    /// The limit of one key: an address, a user. Shared, that is the semaphore `name/key`. No I/O.
    #[must_use]
    pub fn key(&self, key: &str) -> Concurrency {
        Concurrency { key: key.into(), ..self.clone() }
    }

    /// Takes a slot if one is free and nobody waits.
    ///
    /// # Errors
    /// `Held` where none is free, or what the [semaphore](crate::Semaphore::try_acquire) says; `InvalidInput` for a limit of none.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn try_acquire(&self) -> Result<Slot> {
        self.acquire_within(Duration::ZERO).await
    }

    /// Waits for a slot for as long as it takes, in the order of asking.
    ///
    /// # Errors
    /// As [`try_acquire`](Concurrency::try_acquire), but for `Held`.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue; nothing is left behind.
    pub async fn acquire(&self) -> Result<Slot> {
        self.take(None).await
    }

    /// Waits for a slot at most this long.
    ///
    /// # Errors
    /// `TimedOut`, or `Held` where the wait is zero; and those of [`try_acquire`](Concurrency::try_acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Concurrency::acquire).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Slot> {
        self.take(Some(wait)).await
    }

    async fn take(&self, wait: Option<Duration>) -> Result<Slot> {
        let place = match &self.home {
            Home::Local(queues) => self.take_local(queues, wait).await?,
            Home::Shared { core, name } => {
                let name = if self.key.is_empty() { name.to_string() } else { format!("{name}/{}", self.key) };
                let options = wait.map_or_else(Options::new, |wait| Options::new().wait(wait));
                let semaphore = Locks { core: core.clone() }.semaphore(&name, self.most);
                Place::Shared(semaphore.acquire_with(options).await?)
            }
        };
        Ok(Slot { _place: place })
    }

    async fn take_local(&self, queues: &Arc<Queues>, wait: Option<Duration>) -> Result<Place> {
        if self.most == 0 {
            return Err(invalid("a concurrency limit is at least 1".into()));
        }
        let queue = {
            let mut queues = lock(queues);
            let found = queues.get(&self.key).and_then(Weak::upgrade);
            found.unwrap_or_else(|| {
                let queue = Arc::new(Semaphore::new(self.most as usize));
                queues.insert(self.key.clone(), Arc::downgrade(&queue));
                queue
            })
        };
        let in_use = InUse { queues: queues.clone(), key: self.key.clone(), queue: Some(queue.clone()) };
        let permit = match wait {
            Some(Duration::ZERO) => queue
                .try_acquire_owned()
                .map_err(|_| Error::new(ErrorKind::Held, format!("all {} slots are taken", self.most)))?,
            _ => {
                let clock = crate::clock::Clock::system();
                let until = wait.map_or(crate::clock::Moment::FAR, |wait| clock.now().after(wait));
                let turn = std::pin::pin!(queue.acquire_owned());
                match futures_util::future::select(turn, clock.sleep_until(until)).await {
                    futures_util::future::Either::Left((permit, _)) => {
                        permit.map_err(|_| Error::new(ErrorKind::Broken, "the queue is closed"))?
                    }
                    futures_util::future::Either::Right(_) => {
                        let message = format!("timed out after {}", spoken(wait.unwrap_or_default()));
                        return Err(Error::new(ErrorKind::TimedOut, message));
                    }
                }
            }
        };
        Ok(Place::Local { _permit: permit, _queue: in_use })
    }
}
