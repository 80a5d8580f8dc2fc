//! The read-write lock: many readers or one writer, in the order of the queue, so that neither starves.

use crate::error::Result;
use crate::guard::{Grip, ReadGuard, WriteGuard};
use crate::hold::Hold;
use crate::line::WHOLE;
use crate::locks::Core;
use crate::name::Name;
use crate::options::Options;
use crate::owner::Owner;
use crate::store::Kind;
use std::sync::Arc;
use std::time::Duration;

/// A lock that many readers or one writer can have. Made by [`Locks::rwlock`](crate::Locks::rwlock).
///
/// Readers and writers wait in one queue: a reader that comes after a waiting writer waits behind it. The write side is the
/// same lock as the mutex of that name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:rwlock-example").await?;
/// let catalog = locks.rwlock("catalog");
/// let (one, two) = (catalog.read().await?, catalog.read().await?);
/// assert!(catalog.try_write().await.is_err());
/// drop((one, two));
/// let writer = catalog.write().await?;
/// let reader = writer.downgrade().await?; // nobody gets in between
/// assert!(catalog.try_read().await.is_ok());
/// # drop(reader);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    core: Arc<Core>,
    name: Arc<Result<Name>>,
}

impl RwLock {
    pub(crate) fn new(core: Arc<Core>, name: Result<Name>) -> RwLock {
        RwLock { core, name: Arc::new(name) }
    }

    async fn take(&self, kind: Kind, options: Options, owner: Option<&Owner>) -> Result<Arc<Hold>> {
        let weight = if kind == Kind::Read { 1 } else { WHOLE };
        self.core.acquire(&self.name, kind, (weight, WHOLE), &options, owner).await
    }
}

macro_rules! side {
    ($kind:expr, $guard:ident, $exclusive:expr, $doing:literal,
     $plain:ident, $try:ident, $within:ident, $with:ident, $as:ident, $as_with:ident) => {
        impl RwLock {
            #[doc = concat!("Waits in the queue, for as long as it takes, to ", $doing, ".")]
            ///
            /// # Errors
            /// `Mismatch`, `InvalidName`, `Unsupported`, or whatever keeps the store from answering.
            ///
            /// # Cancel safety
            /// Dropping the future gives up the place in the queue, or the lock if it was just granted; nothing is left
            /// behind.
            pub async fn $plain(&self) -> Result<$guard> {
                self.$with(Options::new()).await
            }

            #[doc = concat!("Takes it to ", $doing, " if nobody is in the way, and else says who is. Overtakes nobody.")]
            ///
            /// # Errors
            #[doc = concat!("`Held`, with the holder's facts; and those of [`", stringify!($plain), "`](RwLock::", stringify!($plain), ").")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`", stringify!($plain), "`](RwLock::", stringify!($plain), ").")]
            pub async fn $try(&self) -> Result<$guard> {
                self.$within(Duration::ZERO).await
            }

            #[doc = concat!("Waits in the queue at most this long to ", $doing, ".")]
            ///
            /// # Errors
            #[doc = concat!("`TimedOut`, with the holder's facts; and those of [`", stringify!($plain), "`](RwLock::", stringify!($plain), ").")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`", stringify!($plain), "`](RwLock::", stringify!($plain), ").")]
            pub async fn $within(&self, wait: Duration) -> Result<$guard> {
                self.$with(Options::new().wait(wait)).await
            }

            #[doc = concat!("Takes it to ", $doing, " as the options say.")]
            ///
            /// # Errors
            /// `InvalidInput` for options that do not fit together or the store; and those of the other calls.
            ///
            /// # Cancel safety
            #[doc = concat!("As [`", stringify!($plain), "`](RwLock::", stringify!($plain), ").")]
            pub async fn $with(&self, options: Options) -> Result<$guard> {
                let hold = self.take($kind, options, None).await?;
                Ok($guard(Grip::new(self.core.clone(), hold, $exclusive)))
            }

            #[doc = concat!("Takes it as `owner` to ", $doing, ": another guard at once if it may already.")]
            ///
            /// # Errors
            /// `Deadlock` if the owner holds it for reading and asks to write; and those of the other calls.
            ///
            /// # Cancel safety
            #[doc = concat!("As [`", stringify!($plain), "`](RwLock::", stringify!($plain), "); another call of the same owner goes on.")]
            pub async fn $as(&self, owner: &Owner) -> Result<$guard> {
                self.$as_with(owner, Options::new()).await
            }

            /// The same, as the options say. On a lock that the owner holds or waits for already, only the wait counts.
            ///
            /// # Errors
            #[doc = concat!("Those of [`", stringify!($as), "`](RwLock::", stringify!($as), ").")]
            ///
            /// # Cancel safety
            #[doc = concat!("As [`", stringify!($as), "`](RwLock::", stringify!($as), ").")]
            pub async fn $as_with(&self, owner: &Owner, options: Options) -> Result<$guard> {
                let hold = self.take($kind, options, Some(owner)).await?;
                Ok($guard(Grip::new(self.core.clone(), hold, $exclusive)))
            }
        }
    };
}

side!(Kind::Read, ReadGuard, false, "read", read, try_read, read_within, read_with, read_as, read_as_with);
side!(Kind::Write, WriteGuard, true, "write", write, try_write, write_within, write_with, write_as, write_as_with);
