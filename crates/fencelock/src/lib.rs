//! Distributed locks with fencing tokens, over the stores people already run.
//!
//! Start with [`Locks`]. A lock is held through a guard, whose [`state`](MutexGuard::state), [`lost`](MutexGuard::lost) and
//! [`run`](MutexGuard::run) tell when it is lost, and whose [`token`](MutexGuard::token) lets the resource refuse whoever
//! comes too late. [`store`] is for those who add a store.

pub mod beside;
pub mod blocking;
pub mod clock;
pub mod connect;
pub mod duration;
pub mod error;
pub mod fence;
pub mod limit;
pub mod line;
pub mod name;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod sql;
pub mod store;

mod acquire;
mod barge;
mod election;
mod guard;
mod hold;
mod keeper;
mod locks;
mod migration;
mod multi;
mod mutex;
mod observe;
mod options;
mod owner;
mod register;
mod rwlock;
mod semaphore;
mod striped;
mod sync;
mod token;

#[cfg(feature = "test-util")]
pub use clock::VirtualClock;
pub use election::{Election, Leader, Leadership};
pub use error::{Effect, Error, ErrorKind, Result};
pub use guard::{MutexGuard, Permit, ReadGuard, Released, UpgradeError, WriteGuard};
pub use hold::State;
pub use locks::{Builder, Locks};
pub use migration::{Migrated, Migration};
pub use multi::{MultiGuard, MultiLock, Part};
pub use mutex::Mutex;
pub use options::{DEFAULT_LEASE, Options};
pub use owner::Owner;
/// The driver whose connections `fence::redis` takes.
#[cfg(feature = "redis")]
pub use redis;
pub use register::{Register, Version, Versioned};
/// The driver whose connections `fence::sqlite` takes.
#[cfg(feature = "sqlite")]
pub use rusqlite;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use store::{Line, Listed, Mode, Seen};
pub use striped::{Stripe, Striped, Walk};
pub use token::Token;
/// The driver whose transactions `fence::zookeeper` takes.
#[cfg(feature = "zookeeper")]
pub use zookeeper_client;

/// The examples of the README run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
