//! The Redis store, held to the conformance suite: one server, and a cluster of three.

#[path = "redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

#[path = "redis_store/nodes.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod nodes;

use fencelock::beside::Beside;
use fencelock::store::{Store, redis::RedisStore};
use fencelock_testkit::Provider;
use std::collections::BTreeMap;
use std::sync::Arc;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    let (server, nodes) = (server::Server::start(), nodes::Nodes::start());
    let (one, cluster) = (server.url(), nodes.url());
    fencelock_testkit::main_of(vec![provider("redis", one, server), provider("cluster", cluster, nodes)]);
}

/// Clients of what `servers` are, which live as long as it does.
fn provider<T: Send + Sync + 'static>(name: &str, url: String, servers: T) -> Provider {
    let at = url.clone();
    let open = move || {
        let (url, _servers) = (at.clone(), &servers);
        async move {
            let store = RedisStore::connect(&url, &BTreeMap::new()).await;
            Arc::new(store.expect("the server is there")) as Arc<dyn Store>
        }
    };
    let address = url.clone();
    let beside = move || {
        let url = address.clone();
        async move {
            let store = RedisStore::connect(&url, &BTreeMap::new()).await;
            Beside::all(&Arc::new(store.expect("the server is there")))
        }
    };
    Provider::new(name, open).url(&url).beside(beside)
}
