//! The mutex: one holder at a time.

use crate::error::Result;
use crate::guard::{Grip, MutexGuard};
use crate::line::WHOLE;
use crate::locks::Core;
use crate::name::Name;
use crate::options::Options;
use crate::owner::Owner;
use crate::store::Kind;
use std::sync::Arc;
use std::time::Duration;

/// A lock that one holder at a time can have, on whatever machine. Made by [`Locks::mutex`](crate::Locks::mutex).
///
/// It protects no value of yours: what it protects is elsewhere, and should check the guard's [token](MutexGuard::token).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:mutex-example").await?;
/// use fencelock::ErrorKind;
///
/// let mutex = locks.mutex("stock/42");
/// let guard = mutex.lock().await?;
/// let refused = mutex.try_lock().await.unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Held);
/// assert_eq!(refused.holder().unwrap().pid, std::process::id());
/// guard.release().await?;
/// assert!(mutex.try_lock().await.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    core: Arc<Core>,
    name: Arc<Result<Name>>,
}

impl Mutex {
    pub(crate) fn new(core: Arc<Core>, name: Result<Name>) -> Mutex {
        Mutex { core, name: Arc::new(name) }
    }

    /// Waits in the queue for as long as it takes.
    ///
    /// # Errors
    /// `Mismatch`, `InvalidName`, or whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, or the lock if it was just granted; nothing is left behind.
    pub async fn lock(&self) -> Result<MutexGuard> {
        self.lock_with(Options::new()).await
    }

    /// Takes it if it is free, and else says who has it. Does not overtake anybody who waits.
    ///
    /// # Errors
    /// `Held`, with the holder's facts; and those of [`lock`](Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    pub async fn try_lock(&self) -> Result<MutexGuard> {
        self.lock_within(Duration::ZERO).await
    }

    /// Waits in the queue at most this long.
    ///
    /// # Errors
    /// `TimedOut`, with the holder's facts and the place in the queue; and those of [`lock`](Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    pub async fn lock_within(&self, wait: Duration) -> Result<MutexGuard> {
        self.lock_with(Options::new().wait(wait)).await
    }

    /// Takes it as the options say.
    ///
    /// # Errors
    /// `InvalidInput` for options that do not fit together or the store; and those of the other calls.
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    pub async fn lock_with(&self, options: Options) -> Result<MutexGuard> {
        self.take(options, None).await
    }

    /// Takes it as `owner`, who gets another guard at once if it holds it already. A second call while the first is still
    /// waiting shares its place in the queue.
    ///
    /// # Errors
    /// `Deadlock` if the owner holds it for reading; and those of [`lock`](Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock); another call of the same owner that waits for the same lock goes on.
    pub async fn lock_as(&self, owner: &Owner) -> Result<MutexGuard> {
        self.lock_as_with(owner, Options::new()).await
    }

    /// The same, as the options say. On a lock that the owner holds or waits for already, only the wait counts.
    ///
    /// # Errors
    /// Those of [`lock_as`](Mutex::lock_as) and [`lock_with`](Mutex::lock_with).
    ///
    /// # Cancel safety
    /// As [`lock_as`](Mutex::lock_as).
    pub async fn lock_as_with(&self, owner: &Owner, options: Options) -> Result<MutexGuard> {
        self.take(options, Some(owner)).await
    }

    async fn take(&self, options: Options, owner: Option<&Owner>) -> Result<MutexGuard> {
        let hold = self.core.acquire(&self.name, Kind::Mutex, (WHOLE, WHOLE), &options, owner).await?;
        Ok(MutexGuard(Grip::new(self.core.clone(), hold, true)))
    }
}
