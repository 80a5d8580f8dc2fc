//! What a store may keep beside its lines: the buckets of limiters and the values of registers. Two small contracts, each of which a store fills
//! or does not; neither is part of the lock's contract.
//!
//! [`Store`](crate::store::Store) says nothing of them. Whoever opens a store hands out a [`Beside`] with it, which names what there is:
//! `connect.rs` does so for every URL, and [`Locks::with_store_and`](crate::Locks::with_store_and) takes one for a store that was opened by hand.
//! A store that keeps neither changes nothing and is never asked.

use crate::error::{Error, ErrorKind, Result};
use crate::limit::bucket::{Rule, Verdict};
use crate::name::Name;
use crate::store::{BoxFuture, TicketId};
use std::fmt;
use std::sync::Arc;

/// What a store keeps beside its lines.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    limiters: Option<Arc<dyn Limiters>>,
    registers: Option<Arc<dyn Registers>>,
}

impl Beside {
    /// Nothing.
    #[must_use]
    pub fn nothing() -> Beside {
        Beside::default()
    }

    /// Both limiters and registers.
    #[must_use]
    pub fn all<S: Limiters + Registers>(store: &Arc<S>) -> Beside {
        Beside::nothing().with_limiters(store.clone()).with_registers(store.clone())
    }

    /// The same, with limiters.
    #[must_use]
    pub fn with_limiters(mut self, limiters: Arc<dyn Limiters>) -> Beside {
        self.limiters = Some(limiters);
        self
    }

    /// The same, with registers.
    #[must_use]
    pub fn with_registers(mut self, registers: Arc<dyn Registers>) -> Beside {
        self.registers = Some(registers);
        self
    }

    /// The limiters, if there are any.
    #[must_use]
    pub fn limiters(&self) -> Option<Arc<dyn Limiters>> {
        self.limiters.clone()
    }

    /// The registers, if there are any.
    #[must_use]
    pub fn registers(&self) -> Option<Arc<dyn Registers>> {
        self.registers.clone()
    }

    pub(crate) fn need_limiters(&self) -> Result<&Arc<dyn Limiters>> {
        self.limiters.as_ref().ok_or_else(|| Error::new(ErrorKind::Unsupported, "this store keeps no limiters"))
    }

    pub(crate) fn need_registers(&self) -> Result<&Arc<dyn Registers>> {
        self.registers.as_ref().ok_or_else(|| Error::new(ErrorKind::Unsupported, "this store keeps no registers"))
    }
}

/// Requests that ask a bucket to be let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What the bucket does.
    pub rule: Rule,
    /// How many requests, all or none; one at least.
    pub count: u64,
    /// How many microseconds they would wait.
    pub at_most: u64,
}

/// Keeps the buckets of limiters.
pub trait Limiters: Send + Sync + fmt::Debug + 'static {
    /// Decides by [`Rule::decide`], on the store's own clock, in one round trip. `bucket` is at most 401 bytes of
    /// `[A-Za-z0-9._/%~|-]`. A bucket that is [fresh](Rule::fresh_after) again is forgotten, sooner or later.
    fn decide<'a>(&'a self, bucket: &'a str, ask: &'a Ask) -> BoxFuture<'a, Result<Verdict>>;
}

/// What a register holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The value; `None` if there is none.
    pub value: Option<Vec<u8>>,
    /// Its version. Of a register without a value: a version that is older than whatever is written from now on.
    pub version: u64,
}

/// Keeps the values of registers.
///
/// A version is larger than every earlier one of the same register, also after it was deleted.
pub trait Registers: Send + Sync + fmt::Debug + 'static {
    /// The value and its version. One round trip.
    fn load<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Held>>;

    /// Writes a value, or deletes it (`None`), if the register has not been written or deleted since `version` was loaded.
    /// Says the new version; `None` if it has. One round trip.
    ///
    /// Idempotent by `write`, which is chosen by the client: a write that is there already says its version again. For a
    /// register without a value, `None` may also be said without a reason: who loads again gets on.
    fn store_if<'a>(
        &'a self,
        name: &'a Name,
        version: u64,
        value: Option<&'a [u8]>,
        write: TicketId,
    ) -> BoxFuture<'a, Result<Option<u64>>>;
}
