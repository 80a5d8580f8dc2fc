//! Distributed locks with fencing tokens, over the stores people already run.
//!
//! Start with [`Locks`]. A lock is held through a guard, whose [`state`](MutexGuard::state), [`lost`](MutexGuard::lost) and
//! [`run`](MutexGuard::run) tell when it is lost, and whose [`token`](MutexGuard::token) lets the resource refuse whoever
//! comes too late. [`store`] is for those who add a store.

pub mod blocking;
pub mod clock;
pub mod connect;
pub mod duration;
pub mod error;
pub mod fence;
pub mod line;
pub mod name;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod sql;
pub mod store;

mod acquire;
mod barge;
mod guard;
mod hold;
mod keeper;
mod locks;
mod mutex;
mod observe;
mod options;
mod owner;
mod rwlock;
mod semaphore;
mod sync;
mod token;

#[cfg(feature = "test-util")]
pub use clock::VirtualClock;
pub use error::{Effect, Error, ErrorKind, Result};
pub use guard::{MutexGuard, Permit, ReadGuard, Released, UpgradeError, WriteGuard};
pub use hold::State;
pub use locks::{Builder, Locks};
pub use mutex::Mutex;
pub use options::{DEFAULT_LEASE, Options};
pub use owner::Owner;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use store::{Line, Listed, Mode, Seen};
pub use token::Token;

/// The examples of the README run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
