//! The striped lock: one resource in several parts that are locked one by one, so that not everybody waits for everybody.

use crate::error::{Error, ErrorKind, Result};
use crate::locks::Locks;
use crate::mutex::Mutex;
use crate::options::Options;
use crate::token::Token;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Several mutexes of one resource: `stock/0`, `stock/1` and so on. Made by [`Locks::striped`].
///
/// Either each key has its stripe ([`of_key`](Striped::of_key)), or any stripe will do that still has something
/// ([`walk`](Striped::walk)).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:striped-example").await?;
/// use fencelock::Walk;
/// use std::sync::Mutex;
///
/// // 20 stripes, each with a part of the stock: only the last one has any.
/// let stock = locks.striped("stock", 20);
/// let pieces = Mutex::new(vec![0; 19].into_iter().chain([1]).collect::<Vec<u32>>());
/// let buy = |stripe: fencelock::Stripe| {
///     let left = &mut pieces.lock().unwrap()[stripe.index];
///     let bought = if *left > 0 { *left -= 1; Walk::Done(stripe.index) } else { Walk::Empty };
///     async move { bought }
/// };
/// assert_eq!(stock.walk(buy).await?, Some(19));
/// assert_eq!(stock.walk(buy).await?, None, "sold out: every stripe was asked");
///
/// // Or by key: the same key is always the same stripe.
/// let guard = stock.of_key("customer 7").lock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Striped {
    locks: Locks,
    name: String,
    stripes: usize,
}

/// One stripe, held while the work of a [`walk`](Striped::walk) is at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Which, from 0.
    pub index: usize,
    /// The fencing token: hand it to the resource with every access.
    pub token: Token,
}

/// What the work of a [`walk`](Striped::walk) says of one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk<T> {
    /// It is done: the walk ends here.
    Done(T),
    /// There was nothing here: on to the next.
    Empty,
}

impl Locks {
    /// A resource in so many stripes. No I/O; a senseless number is told by the first call that needs it.
    ///
    /// The number of stripes is part of what all users of the resource must agree on: with another one, the same key is
    /// another stripe.
    pub fn striped(&self, name: &str, stripes: usize) -> Striped {
        Striped { locks: self.clone(), name: name.to_string(), stripes }
    }
}

impl Striped {
    /// How many stripes there are.
    #[must_use]
    pub fn stripes(&self) -> usize {
        self.stripes
    }

    /// The stripe of a key: the first eight bytes of the SHA-256 of its UTF-8, as a big-endian number, modulo the number of
    /// stripes. The same in every version and on every machine. 0 where there are no stripes.
    #[must_use]
    pub fn index_of(&self, key: &str) -> usize {
        let hash = Sha256::digest(key.as_bytes());
        let number = hash.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number.checked_rem(self.stripes as u64).unwrap_or(0)).unwrap_or(0)
    }

    /// The mutex of the key's stripe. Other keys share it: do not hold two stripes at a time unless through
    /// [`Locks::all`].
    #[must_use]
    pub fn of_key(&self, key: &str) -> Mutex {
        self.stripe(self.index_of(key))
    }

    /// The mutex of one stripe, which is called `NAME/INDEX`. One that is not there is told by the first call.
    #[must_use]
    pub fn stripe(&self, index: usize) -> Mutex {
        let name = format!("{}/{index}", self.name);
        match index < self.stripes {
            true => self.locks.mutex(&name),
            false => self.locks.impossible_mutex(self.no_such_stripe(index).named(name)),
        }
    }

    fn no_such_stripe(&self, index: usize) -> Error {
        let message = format!("there is no stripe {index}: it has {}", self.stripes);
        Error::new(ErrorKind::InvalidInput, message)
    }

    /// Takes a stripe at random, lets `work` look at it, and goes on to the next until the work is done or every stripe was
    /// empty. Each stripe is let go before the next is taken, so no two are held at a time, and walkers do not block each
    /// other for longer than the work takes. `None` if all were empty.
    ///
    /// The work is never polled past the deadline of its stripe's lease.
    ///
    /// # Errors
    /// `Lost` if a stripe was lost while the work was at it; `InvalidInput` if there are no stripes; and those of
    /// [`Mutex::lock`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, if it was at it, and lets the stripe go in the background.
    pub async fn walk<T, F: Future<Output = Walk<T>>>(&self, work: impl FnMut(Stripe) -> F) -> Result<Option<T>> {
        self.walk_with(Options::new(), work).await
    }

    /// The same, as the options say. The wait is for all stripes together, the work not counted.
    ///
    /// # Errors
    /// `TimedOut`, or `Held` where it is not to wait; and those of [`walk`](Striped::walk).
    ///
    /// # Cancel safety
    /// As [`walk`](Striped::walk).
    pub async fn walk_with<T, F: Future<Output = Walk<T>>>(
        &self,
        options: Options,
        mut work: impl FnMut(Stripe) -> F,
    ) -> Result<Option<T>> {
        if self.stripes == 0 {
            return Err(self.no_such_stripe(0).named(self.name.clone()));
        }
        let clock = self.locks.info().clock.clone();
        let first = fastrand::usize(..self.stripes);
        let mut waited = Duration::ZERO;
        for index in (first..self.stripes).chain(0..first) {
            let mut options = options.clone();
            options.wait = options.wait.map(|wait| wait.saturating_sub(waited));
            let asked = clock.now();
            let guard = self.stripe(index).lock_with(options).await?;
            waited += clock.now().since(asked);
            let found = guard.run(work(Stripe { index, token: guard.token() })).await?;
            // Let go before the next is taken. If that cannot be told to the store, it goes on in the background.
            let released = guard.release().await;
            match found {
                Walk::Done(value) => return Ok(Some(value)),
                Walk::Empty => drop(released?),
            }
        }
        Ok(None)
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn the_hash_stays_what_it_is() {
        let striped = Locks::with_store(MemoryStore::new()).striped("s", 20);
        // By `printf %s KEY | sha256sum`, the first 16 digits.
        for (key, number) in
            [("", 0xe3b0_c442_98fc_1c14_u64), ("a", 0xca97_8112_ca1b_bdca), ("ä", 0x33e6_d73f_ee82_904c)]
        {
            assert_eq!(striped.index_of(key) as u64, number % 20, "{key:?}");
        }
        let mut used = [0; 20];
        (0..2000).for_each(|i| used[striped.index_of(&format!("key {i}"))] += 1);
        assert!(used.iter().all(|n| (50..200).contains(n)), "{used:?}");
    }

    #[tokio::test]
    async fn senseless_numbers_are_refused() {
        let locks = Locks::with_store(MemoryStore::new());
        let none = locks.striped("s", 0);
        let refused = none.walk(|_| async { Walk::Done(()) }).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert_eq!(none.of_key("a").lock().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(locks.striped("s", 3).stripe(3).lock().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[tokio::test]
    async fn the_walk_asks_each_stripe_once_and_holds_one_at_a_time() {
        let locks = Locks::with_store(MemoryStore::new());
        let striped = locks.striped("s", 7);
        let mut firsts = std::collections::HashSet::new();
        for _ in 0..60 {
            let mut seen = Vec::new();
            let most = AtomicUsize::new(0);
            let found: Option<()> = striped
                .walk(|stripe| {
                    seen.push(stripe.index);
                    let (locks, most) = (locks.clone(), &most);
                    async move {
                        let held = locks.list("s/").await.unwrap();
                        most.fetch_max(held.len(), Ordering::Relaxed);
                        assert_eq!(held[0].name.shown(), format!("s/{}", stripe.index));
                        Walk::Empty
                    }
                })
                .await
                .unwrap();
            assert_eq!((found, most.into_inner()), (None, 1));
            firsts.insert(seen[0]);
            assert!(seen.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 7), "{seen:?}");
            assert_eq!(seen.len(), 7);
        }
        assert!(firsts.len() > 3, "always the same first: {firsts:?}");
        assert!(locks.list("").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn one_wait_for_all_stripes_and_nothing_is_left() {
        let locks = Locks::with_store(MemoryStore::new());
        let striped = locks.striped("s", 3);
        let _held = locks.mutex("s/1").lock().await.unwrap();
        let options = Options::new().wait(Duration::from_millis(50));
        let refused = striped.walk_with(options, |_| async { Walk::<()>::Empty }).await.unwrap_err();
        assert_eq!((refused.kind(), refused.name()), (ErrorKind::TimedOut, Some("s/1")));
        let options = Options::new().wait(Duration::ZERO);
        let refused = striped.walk_with(options, |_| async { Walk::<()>::Empty }).await.unwrap_err();
        assert_eq!((refused.kind(), refused.name()), (ErrorKind::Held, Some("s/1")));
        locks.close().await;
        assert_eq!(locks.list("").await.unwrap().len(), 1);
    }
}
