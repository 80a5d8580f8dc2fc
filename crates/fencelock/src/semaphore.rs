//! The semaphore: at most so many permits at a time, over all machines.

use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Grip, Permit};
use crate::line::WHOLE;
use crate::locks::Core;
use crate::name::Name;
use crate::options::Options;
use crate::store::Kind;
use std::sync::Arc;
use std::time::Duration;

/// Permits, of which only so many are out at a time. Made by [`Locks::semaphore`](crate::Locks::semaphore).
///
/// Waiters stand in one queue, whatever they ask for: one that wants many is not overtaken by those that want few.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:semaphore-example").await?;
/// let uploads = locks.semaphore("uploads", 5);
/// let three = uploads.acquire_many(3).await?;
/// let two = uploads.acquire_many(2).await?;
/// assert!(uploads.try_acquire().await.is_err());
/// # drop((three, two));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    core: Arc<Core>,
    name: Arc<Result<Name>>,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(core: Arc<Core>, name: Result<Name>, permits: u32) -> Semaphore {
        let name = name.and_then(|name| check_size(&name, permits).map(|()| name));
        Semaphore { core, name: Arc::new(name), permits }
    }

    /// Waits in the queue for one permit, for as long as it takes.
    ///
    /// # Errors
    /// `Mismatch` if the semaphore is in use with another number of permits; `InvalidName`, `InvalidInput`, `Unsupported`, or
    /// whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, or the permit if it was just granted; nothing is left behind.
    pub async fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1).await
    }

    /// Waits in the queue for several permits at once. They come and go together.
    ///
    /// # Errors
    /// `InvalidInput` for more than there are; and those of [`acquire`](Semaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Permit> {
        self.acquire_many_with(permits, Options::new()).await
    }

    /// Takes a permit if one is free and nobody waits.
    ///
    /// # Errors
    /// `Held`, with the facts of who was first; and those of [`acquire`](Semaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub async fn try_acquire(&self) -> Result<Permit> {
        self.try_acquire_many(1).await
    }

    /// Takes several permits if they are free and nobody waits.
    ///
    /// # Errors
    /// As [`try_acquire`](Semaphore::try_acquire) and [`acquire_many`](Semaphore::acquire_many).
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Permit> {
        self.acquire_many_within(permits, Duration::ZERO).await
    }

    /// Waits in the queue at most this long for one permit.
    ///
    /// # Errors
    /// `TimedOut`, with the holder's facts; and those of [`acquire`](Semaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Permit> {
        self.acquire_many_within(1, wait).await
    }

    /// Waits in the queue at most this long for several permits.
    ///
    /// # Errors
    /// As [`acquire_within`](Semaphore::acquire_within) and [`acquire_many`](Semaphore::acquire_many).
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_many_within(&self, permits: u32, wait: Duration) -> Result<Permit> {
        self.acquire_many_with(permits, Options::new().wait(wait)).await
    }

    /// Takes one permit as the options say.
    ///
    /// # Errors
    /// `InvalidInput` for options that do not fit together or the store; and those of the other calls.
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_with(&self, options: Options) -> Result<Permit> {
        self.acquire_many_with(1, options).await
    }

    /// Takes several permits as the options say.
    ///
    /// # Errors
    /// As [`acquire_with`](Semaphore::acquire_with) and [`acquire_many`](Semaphore::acquire_many).
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_many_with(&self, permits: u32, options: Options) -> Result<Permit> {
        if self.name.is_ok() {
            check_permits(permits, self.permits)?;
        }
        let hold = self.core.acquire(&self.name, Kind::Permits, (permits, self.permits), &options, None).await?;
        Ok(Permit(Grip::new(self.core.clone(), hold, true)))
    }
}

pub(crate) fn check_size(name: &Name, size: u32) -> Result<()> {
    if size == 0 || size >= WHOLE {
        let message = format!("a semaphore has 1 to {} permits, not {size}", WHOLE - 1);
        return Err(Error::new(ErrorKind::InvalidInput, message).named(name.shown()));
    }
    Ok(())
}

pub(crate) fn check_permits(permits: u32, of: u32) -> Result<()> {
    if permits == 0 || permits > of {
        let message = format!("asked for {permits} permits of a semaphore of {of}");
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}
