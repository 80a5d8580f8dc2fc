//! What stands beside locks, on real stores: limiters held to a simulation and to nginx, registers counted exactly, both shared by
//! several processes.
//!
//! A test that needs other processes starts this very binary again, for the one test `process`, with its part in the
//! environment.
#![cfg(target_os = "linux")]

mod layer;
mod limiters;
mod nginx;
mod processes;
mod reference;
mod registers;
#[path = "../redis_store/server.rs"]
#[allow(dead_code, reason = "the Redis tests use the rest")]
mod server;
mod traces;

use fencelock::beside::Beside;
use fencelock::clock::Clock;
use fencelock::store::memory::MemoryStore;
use fencelock::{Locks, VirtualClock};
use std::sync::Arc;

/// So many rounds, or with `FENCELOCK_SOAK=1` another number.
fn rounds(usual: usize, soak: usize) -> usize {
    if std::env::var_os("FENCELOCK_SOAK").is_some_and(|value| value == "1") { soak } else { usual }
}

/// Random numbers from the seed of this run, which a failure tells.
fn random() -> fastrand::Rng {
    let seed = fencelock_testkit::seed();
    eprintln!("again with: FENCELOCK_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Every store that keeps something beside its locks, with what must outlive it.
struct Stores {
    memory: Locks,
    sqlite: Locks,
    redis: Locks,
    folder: tempfile::TempDir,
    server: server::Server,
}

impl Stores {
    async fn open() -> Stores {
        let folder = tempfile::tempdir().unwrap();
        let server = server::Server::start();
        let file = folder.path().join("locks.db");
        Stores {
            memory: Locks::with_store_and_all(MemoryStore::new()),
            sqlite: Locks::connect(&format!("sqlite:{}", file.display())).await.unwrap(),
            redis: Locks::connect(&server.url()).await.unwrap(),
            folder,
            server,
        }
    }

    fn each(&self) -> [(&'static str, &Locks); 3] {
        [("memory", &self.memory), ("sqlite", &self.sqlite), ("redis", &self.redis)]
    }
}

/// Shorter to say.
trait WithAll {
    fn with_store_and_all(store: MemoryStore) -> Locks;
}

impl WithAll for Locks {
    fn with_store_and_all(store: MemoryStore) -> Locks {
        let store = Arc::new(store);
        Locks::with_store_and(store.clone(), Beside::all(&store))
    }
}

/// A clock that does not begin at zero, where everything is special.
fn clock() -> (VirtualClock, Clock) {
    let clock = VirtualClock::new();
    clock.advance(std::time::Duration::from_secs(1_000));
    (clock.clone(), clock.clock())
}
