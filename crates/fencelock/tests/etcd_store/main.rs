//! The etcd store against real servers: what it costs, what it says, who else it excludes, and what becomes of it when something
//! breaks.

mod access;
mod cost;
mod faults;
mod interop;
mod proxy;
mod server;

use std::time::{Duration, Instant};

/// How often something is done: once, or in a long run so many times.
pub(crate) fn rounds(soak: usize) -> usize {
    if std::env::var_os("FENCELOCK_SOAK").is_some_and(|on| on == "1") { soak } else { 1 }
}

/// Waits for something that must come true soon.
pub(crate) async fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < limit, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Something that must end within this.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("{what} took longer than {limit:?}"))
}
