//! The ZooKeeper store on an ensemble of three, held to the conformance suite.

#[path = "zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::store::{Store, zookeeper::ZookeeperStore};
use fencelock_testkit::Provider;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    let servers = server::Ensemble::start();
    let url = servers.url();
    let provider = Provider::new("zookeeper ensemble", move || {
        let url = servers.url();
        async move {
            let store = ZookeeperStore::connect(&url, &BTreeMap::new()).await;
            Arc::new(store.expect("the server is there")) as Arc<dyn Store>
        }
    });
    fencelock_testkit::main(provider.url(&url).lease(Duration::from_secs(1)).needs_no_runtime());
}
