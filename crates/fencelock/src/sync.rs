//! The locks and atomics of the state machine of holding, so that they can be exchanged for those of a checker that runs
//! every order of threads (`--cfg fencelock_shuttle`).

#[cfg(not(fencelock_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(fencelock_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};

/// Locks a mutex. A panic of another thread in the middle of it is no reason to panic here: every critical section of this
/// crate leaves what it guards in order before it calls anything that may panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
