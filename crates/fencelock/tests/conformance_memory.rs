//! The memory store, held to the conformance suite.

use fencelock::VirtualClock;
use fencelock::beside::Beside;
use fencelock::store::{Store, memory::MemoryStore};
use fencelock_testkit::Provider;
use std::sync::Arc;
use std::time::Duration;

fn main() {
    let client = |store: &MemoryStore| std::future::ready(Arc::new(store.clone()) as Arc<dyn Store>);
    let store = MemoryStore::new();
    let beside = Beside::all(&Arc::new(store.clone()));
    let provider = Provider::new("memory", move || client(&store)).needs_no_runtime();
    let provider = provider.beside(move || std::future::ready(beside.clone()));
    fencelock_testkit::main(provider.lease(Duration::from_millis(300)).virtual_time(move || {
        let clock = VirtualClock::new();
        let store = MemoryStore::with_clock(clock.clock());
        (clock, Box::new(move || client(&store)))
    }));
}
