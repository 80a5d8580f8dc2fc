//! The Redis store, held to the conformance suite.

#[path = "redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::beside::Beside;
use fencelock::store::{Store, redis::RedisStore};
use fencelock_testkit::Provider;
use std::collections::BTreeMap;
use std::sync::Arc;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    let server = server::Server::start();
    let url = server.url();
    let provider = Provider::new("redis", move || {
        let url = server.url();
        async move {
            let store = RedisStore::connect(&url, &BTreeMap::new()).await;
            Arc::new(store.expect("the server is there")) as Arc<dyn Store>
        }
    });
    let address = url.clone();
    let beside = move || {
        let url = address.clone();
        async move {
            let store = RedisStore::connect(&url, &BTreeMap::new()).await;
            Beside::all(&Arc::new(store.expect("the server is there")))
        }
    };
    fencelock_testkit::main(provider.url(&url).beside(beside));
}
