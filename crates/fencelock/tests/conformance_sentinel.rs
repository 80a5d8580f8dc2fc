//! The Redis store behind sentinels, held to the conformance suite.

#[path = "redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;
#[path = "redis_store/trio.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod trio;

use fencelock::store::{Store, redis::RedisStore};
use fencelock_testkit::Provider;
use std::collections::BTreeMap;
use std::sync::Arc;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let trio = runtime.expect("the system can make one more runtime").block_on(trio::Trio::start());
    let url = trio.url();
    let provider = Provider::new("sentinel", move || {
        let url = trio.url();
        async move {
            let store = RedisStore::connect(&url, &BTreeMap::new()).await;
            Arc::new(store.expect("the sentinels are there")) as Arc<dyn Store>
        }
    });
    fencelock_testkit::main(provider.url(&url));
}
