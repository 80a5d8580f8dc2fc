//! Somebody who waits in a line, for tests that break something meanwhile.

use fencelock::{ErrorKind, Locks, MutexGuard, Options};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Somebody who waits for a lock, and when it came. That the store cannot be reached is said after a while, and tried again.
///
/// # Panics
/// Anything else is wrong: the task panics.
#[must_use]
pub fn waiter(locks: &Locks, name: &str, options: Options) -> JoinHandle<(MutexGuard, Instant)> {
    let mutex = locks.mutex(name);
    tokio::spawn(async move {
        loop {
            match mutex.lock_with(options.clone()).await {
                Ok(guard) => return (guard, Instant::now()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
}

/// Waits until so many wait in the line, as this client sees it.
///
/// # Panics
/// In vain, for a minute.
pub async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    let limit = Instant::now() + LONG;
    while locks.inspect(name).await.map_or(usize::MAX, |line| line.waiting.len()) != count {
        assert!(Instant::now() < limit, "there are not {count} who wait for {name}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a test that is a future.
///
/// # Panics
/// There can be no runtime.
pub fn with_a_runtime<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("the system can make one more runtime").block_on(test)
}
