//! The same for code without async: a thin face. Every call blocks the thread; the calling thread is the owner, so a thread
//! that locks again what it holds gets another guard at once. Guards stay on their thread.
//!
//! ```
//! # fn main() -> fencelock::Result<()> {
//! use fencelock::blocking::Locks;
//!
//! let locks = Locks::connect("memory:blocking-example")?;
//! let mutex = locks.mutex("nightly");
//! let outer = mutex.lock()?;
//! let inner = mutex.lock()?; // the same thread: at once
//! assert_eq!(outer.token(), inner.token());
//! # Ok(())
//! # }
//! ```
//!
//! Not for use inside an async runtime: calls there answer with an `InvalidInput` error. A guard cannot be sent to another
//! thread:
//!
//! ```compile_fail
//! fn send<T: Send>(_: T) {}
//! fn give_away(guard: fencelock::blocking::MutexGuard) {
//!     send(guard);
//! }
//! ```

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Released;
use crate::hold::State;
use crate::multi::Part;
use crate::options::Options;
use crate::owner::Owner;
use crate::store::{Line, Listed};
use crate::token::Token;
use futures_util::future::{Either, select};
use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Runtime;

/// The longest that dropping a guard blocks: the release then goes on in the background.
const DROP_LIMIT: Duration = Duration::from_secs(1);

/// [`Locks`](crate::Locks) without async.
#[derive(Clone, Debug)]
pub struct Locks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    locks: crate::Locks,
    /// `None` only while it is being dropped.
    runtime: Option<Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // An ordinary drop of a runtime panics inside another one. Nothing runs on ours between calls.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Inner {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("only taken by the drop")
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        refuse_inside_a_runtime()?;
        Ok(self.runtime().block_on(future))
    }
}

thread_local! {
    /// This thread as an owner, per `Locks`.
    static OWNERS: RefCell<HashMap<usize, (Weak<Inner>, Owner)>> = RefCell::default();
}

/// The calling thread as an owner of `locks`.
fn this_thread(locks: &Arc<Inner>) -> Owner {
    OWNERS.with_borrow_mut(|owners| {
        let key = Arc::as_ptr(locks) as usize;
        if let Some((_, owner)) = owners.get(&key).filter(|(inner, _)| inner.strong_count() > 0) {
            return owner.clone();
        }
        owners.retain(|_, (inner, _)| inner.strong_count() > 0);
        let owner = locks.locks.owner();
        owners.insert(key, (Arc::downgrade(locks), owner.clone()));
        owner
    })
}

impl Locks {
    /// Connects to the store that the URL names.
    ///
    /// # Errors
    /// As [`crate::Locks::connect`].
    pub fn connect(url: &str) -> Result<Locks> {
        Locks::build(crate::Locks::builder(url))
    }

    /// Connects as the builder says.
    ///
    /// # Errors
    /// As [`crate::Builder::connect`].
    pub fn build(builder: crate::Builder) -> Result<Locks> {
        refuse_inside_a_runtime()?;
        let runtime = runtime()?;
        let locks = runtime.block_on(builder.connect())?;
        Ok(Locks(Arc::new(Inner { locks, runtime: Some(runtime) })))
    }

    /// The same locks as another handle's.
    ///
    /// # Errors
    /// `Unavailable` if the system cannot give one more event loop.
    pub fn new(locks: crate::Locks) -> Result<Locks> {
        Ok(Locks(Arc::new(Inner { locks, runtime: Some(runtime()?) })))
    }

    /// A mutex. No I/O.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex { inner: self.0.locks.mutex(name), locks: self.0.clone() }
    }

    /// A read-write lock. No I/O.
    #[must_use]
    pub fn rwlock(&self, name: &str) -> RwLock {
        RwLock { inner: self.0.locks.rwlock(name), locks: self.0.clone() }
    }

    /// A semaphore of `permits`. No I/O. Permits are not re-entrant: each call takes more of them.
    #[must_use]
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Semaphore { inner: self.0.locks.semaphore(name, permits), locks: self.0.clone() }
    }

    /// Several locks at once, all or none: see [`crate::Locks::all`]. No I/O. As for any lock here, what this thread holds
    /// already it gets once more; one call for each name.
    pub fn all<P: Into<Part>>(&self, parts: impl IntoIterator<Item = P>) -> MultiLock {
        MultiLock { inner: self.0.locks.all(parts), locks: self.0.clone() }
    }

    /// Who holds `name`, and who waits.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    pub fn inspect(&self, name: &str) -> Result<Line> {
        self.0.block_on(self.0.locks.inspect(name))?
    }

    /// Every name that begins with `prefix` and has somebody in it.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    pub fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.0.block_on(self.0.locks.list(prefix))?
    }

    /// Puts out the ticket with this token. Says whether it was there.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    pub fn break_ticket(&self, name: &str, token: impl Into<u64>) -> Result<bool> {
        self.0.block_on(self.0.locks.break_ticket(name, token))?
    }

    /// Waits until every background release has been sent.
    ///
    /// # Errors
    /// `InvalidInput` inside an async runtime.
    pub fn close(&self) -> Result<()> {
        self.0.block_on(self.0.locks.close())
    }
}

fn refuse_inside_a_runtime() -> Result<()> {
    if tokio::runtime::Handle::try_current().is_ok() {
        let message = "a blocking call inside an async runtime: use fencelock::Locks there, or a thread of its own";
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}

fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Error::new(ErrorKind::Unavailable, "no event loop could be made").caused_by(error))
}

/// [`Mutex`](crate::Mutex) without async. Re-entrant by thread.
#[derive(Clone, Debug)]
pub struct Mutex {
    inner: crate::Mutex,
    locks: Arc<Inner>,
}

/// [`RwLock`](crate::RwLock) without async. Re-entrant by thread.
#[derive(Clone, Debug)]
pub struct RwLock {
    inner: crate::RwLock,
    locks: Arc<Inner>,
}

/// [`Semaphore`](crate::Semaphore) without async.
#[derive(Clone, Debug)]
pub struct Semaphore {
    inner: crate::Semaphore,
    locks: Arc<Inner>,
}

/// [`MultiLock`](crate::MultiLock) without async. Re-entrant by thread.
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is locked"]
pub struct MultiLock {
    inner: crate::MultiLock,
    locks: Arc<Inner>,
}

impl MultiLock {
    /// These and those of another. What this thread holds already through the other's `Locks` is not known here: it would
    /// wait for itself.
    pub fn and(mut self, other: MultiLock) -> MultiLock {
        self.inner = self.inner.and(other.inner);
        self
    }
}

macro_rules! calls {
    ($lock:ident, $guard:ident, $async_as:ident, $plain:ident, $try:ident, $within:ident, $with:ident) => {
        impl $lock {
            /// Waits in the queue for as long as it takes.
            ///
            /// # Errors
            /// As the async call of this name.
            pub fn $plain(&self) -> Result<$guard> {
                self.$with(Options::new())
            }

            /// Takes it if nobody is in the way.
            ///
            /// # Errors
            /// As the async call of this name.
            pub fn $try(&self) -> Result<$guard> {
                self.$within(Duration::ZERO)
            }

            /// Waits in the queue at most this long.
            ///
            /// # Errors
            /// As the async call of this name.
            pub fn $within(&self, wait: Duration) -> Result<$guard> {
                self.$with(Options::new().wait(wait))
            }

            /// Takes it as the options say.
            ///
            /// # Errors
            /// As the async call of this name.
            pub fn $with(&self, options: Options) -> Result<$guard> {
                let owner = this_thread(&self.locks);
                let guard = self.locks.block_on(self.inner.$async_as(&owner, options))??;
                Ok($guard::new(guard, &self.locks))
            }
        }
    };
}

calls!(Mutex, MutexGuard, lock_as_with, lock, try_lock, lock_within, lock_with);
calls!(MultiLock, MultiGuard, lock_as_with, lock, try_lock, lock_within, lock_with);
calls!(RwLock, ReadGuard, read_as_with, read, try_read, read_within, read_with);
calls!(RwLock, WriteGuard, write_as_with, write, try_write, write_within, write_with);

impl Semaphore {
    /// Waits in the queue for one permit.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire`].
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_many_with(1, Options::new())
    }

    /// Waits in the queue for several permits at once.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire_many`].
    pub fn acquire_many(&self, permits: u32) -> Result<Permit> {
        self.acquire_many_with(permits, Options::new())
    }

    /// Takes a permit if one is free and nobody waits.
    ///
    /// # Errors
    /// As [`crate::Semaphore::try_acquire`].
    pub fn try_acquire(&self) -> Result<Permit> {
        self.acquire_many_with(1, Options::new().wait(Duration::ZERO))
    }

    /// Waits in the queue at most this long for one permit.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire_within`].
    pub fn acquire_within(&self, wait: Duration) -> Result<Permit> {
        self.acquire_many_with(1, Options::new().wait(wait))
    }

    /// Takes permits as the options say.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire_many_with`].
    pub fn acquire_many_with(&self, permits: u32, options: Options) -> Result<Permit> {
        let permit = self.locks.block_on(self.inner.acquire_many_with(permits, options))??;
        Ok(Permit::new(permit, &self.locks))
    }
}

macro_rules! guard_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Dropping it releases before the next line runs, or after a second in the background.
        #[must_use = "dropping a guard releases the lock"]
        #[derive(Debug)]
        pub struct $name {
            /// `None` only while it is being dropped or given away.
            inner: Option<crate::$name>,
            locks: Arc<Inner>,
            /// A guard belongs to the thread that is its owner.
            not_send: PhantomData<*const ()>,
        }

        impl $name {
            fn new(inner: crate::$name, locks: &Arc<Inner>) -> $name {
                $name { inner: Some(inner), locks: locks.clone(), not_send: PhantomData }
            }

            fn inner(&self) -> &crate::$name {
                self.inner.as_ref().expect("only given away by value")
            }

            /// How sure we can be of it.
            #[must_use]
            pub fn state(&self) -> State {
                self.inner().state()
            }

            /// How long until the local deadline.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.inner().remaining()
            }

            /// Blocks until it is lost, at most this long. Says whether it is.
            #[must_use]
            pub fn lost_within(&self, wait: Duration) -> bool {
                let clock = &self.locks.locks.core.keeper.clock;
                let limit = clock.sleep_until(clock.now().after(wait));
                // Inside a runtime there is no waiting: it says how things stand.
                let _ = self.locks.block_on(async { select(pin!(self.inner().lost()), pin!(limit)).await; });
                self.state() == State::Lost
            }

            /// Releases, and says whether it was still held until then.
            ///
            /// # Errors
            /// Whatever keeps the store from answering; the release is then tried again in the background.
            pub fn release(mut self) -> Result<Released> {
                let inner = self.inner.take().expect("only given away by value");
                self.locks.block_on(inner.release())?
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                let Some(inner) = self.inner.take() else { return };
                if inner.0.is_held_back() {
                    return; // `min_hold`: the library thread sees to it
                }
                let clock = &self.locks.locks.core.keeper.clock;
                let limit = clock.sleep_until(clock.now().after(DROP_LIMIT));
                // Cut off by the limit, by an error or by a runtime around us, the release goes on in the background.
                let _ = self.locks.block_on(async move {
                    match select(pin!(inner.release()), pin!(limit)).await {
                        Either::Left((released, _)) => drop(released),
                        Either::Right(_) => {}
                    }
                });
            }
        }
    };
}

macro_rules! fenced {
    ($name:ident) => {
        impl $name {
            /// The fencing token: hand it to the resource with every access.
            #[must_use]
            pub fn token(&self) -> Token {
                self.inner().token()
            }
        }
    };
}

guard_type! {
    /// A held [`Mutex`].
    MutexGuard
}
guard_type! {
    /// A [`RwLock`] held for reading.
    ReadGuard
}
guard_type! {
    /// A [`RwLock`] held for writing.
    WriteGuard
}
guard_type! {
    /// Permits of a [`Semaphore`].
    Permit
}
guard_type! {
    /// A held [`MultiLock`].
    MultiGuard
}

fenced!(MutexGuard);
fenced!(ReadGuard);
fenced!(WriteGuard);

impl MultiGuard {
    /// The fencing tokens, in the order in which the names were given. Permits have none.
    #[must_use]
    pub fn tokens(&self) -> Vec<Token> {
        self.inner().tokens()
    }

    /// The fencing token of one of the names: see [`crate::MultiGuard::token`].
    #[must_use]
    pub fn token(&self, name: &str) -> Option<Token> {
        self.inner().token(name)
    }
}

impl WriteGuard {
    /// Becomes a reader without letting anybody in between.
    ///
    /// # Errors
    /// As [`crate::WriteGuard::downgrade`].
    pub fn downgrade(mut self) -> Result<ReadGuard> {
        let inner = self.inner.take().expect("only given away by value");
        let guard = self.locks.block_on(inner.downgrade())??;
        Ok(ReadGuard::new(guard, &self.locks))
    }
}

impl ReadGuard {
    /// Becomes a writer if nobody else holds the lock or waits for it; else gives the read guard back with the reason.
    ///
    /// # Errors
    /// As [`crate::ReadGuard::try_upgrade`].
    pub fn try_upgrade(mut self) -> std::result::Result<WriteGuard, (ReadGuard, Error)> {
        let inner = self.inner.take().expect("only given away by value");
        // Asked first, so that the guard is not lost to the refusal.
        if let Err(error) = refuse_inside_a_runtime() {
            self.inner = Some(inner);
            return Err((self, error));
        }
        match self.locks.runtime().block_on(inner.try_upgrade()) {
            Ok(guard) => Ok(WriteGuard::new(guard, &self.locks)),
            Err(failed) => {
                let error = failed.error().again();
                Err((ReadGuard::new(failed.into_guard(), &self.locks), error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_waits_and_the_same_one_does_not() {
        let locks = Locks::new(crate::Locks::with_store(crate::store::memory::MemoryStore::new())).unwrap();
        let mutex = locks.mutex("a");
        let outer = mutex.lock().unwrap();
        let inner = mutex.try_lock().unwrap();
        assert_eq!(outer.token(), inner.token());
        let other = mutex.clone();
        let refused = std::thread::spawn(move || other.try_lock().map(|_| ()).unwrap_err().kind());
        assert_eq!(refused.join().unwrap(), ErrorKind::Held);
        drop(outer);
        assert_eq!(locks.inspect("a").unwrap().inside.len(), 1, "the inner guard still holds it");
        drop(inner);
        assert!(locks.list("").unwrap().is_empty(), "released before the next line runs");
    }

    #[test]
    fn readers_become_writers_and_back() {
        let locks = Locks::new(crate::Locks::with_store(crate::store::memory::MemoryStore::new())).unwrap();
        let lock = locks.rwlock("a");
        let write = lock.read().unwrap().try_upgrade().map_err(|(_, error)| error).unwrap();
        let read = write.downgrade().unwrap();
        let permit = locks.semaphore("b", 2).acquire().unwrap();
        assert_eq!((read.state(), permit.state()), (State::Safe, State::Safe));
        assert_eq!(read.release().unwrap(), Released::Held);
    }

    #[test]
    fn several_at_once_and_again() {
        let locks = Locks::new(crate::Locks::with_store(crate::store::memory::MemoryStore::new())).unwrap();
        let outer = locks.mutex("b").lock().unwrap();
        let guard = locks.all(["c", "b", "a"]).lock_within(Duration::from_secs(5)).unwrap();
        assert_eq!(guard.tokens()[1], outer.token(), "this thread holds it already");
        assert_eq!((guard.state(), guard.token("x")), (State::Safe, None));
        let other = locks.all(["d", "c"]);
        let refused = std::thread::spawn(move || other.try_lock().map(|_| ()).unwrap_err().kind());
        assert_eq!(refused.join().unwrap(), ErrorKind::Held);
        drop(guard);
        assert_eq!(
            locks.list("").unwrap().len(),
            1,
            "released before the next line runs, but what the outer guard holds"
        );
        assert_eq!(outer.release().unwrap(), Released::Held);
    }

    #[tokio::test]
    async fn inside_a_runtime_it_says_so() {
        let locks = Locks::new(crate::Locks::with_store(crate::store::memory::MemoryStore::new())).unwrap();
        assert_eq!(locks.mutex("a").lock().unwrap_err().kind(), ErrorKind::InvalidInput);
        drop(locks); // no panic either
    }
}
