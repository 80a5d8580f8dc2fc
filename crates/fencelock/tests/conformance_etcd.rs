//! The etcd store, held to the conformance suite: on one server, and on three.

#[path = "etcd_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::beside::Beside;
use fencelock::store::{Store, etcd::EtcdStore};
use fencelock_testkit::Provider;
use server::Cluster;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn provider(name: &str, cluster: Cluster) -> Provider {
    let url = cluster.url();
    let at = url.clone();
    let registers = move || {
        let url = at.clone();
        async move {
            let store = EtcdStore::connect(&url, &BTreeMap::new()).await;
            Beside::nothing().with_registers(Arc::new(store.expect("the server is there")))
        }
    };
    let provider = Provider::new(name, move || {
        let url = cluster.url();
        async move {
            let store = EtcdStore::connect(&url, &BTreeMap::new()).await;
            Arc::new(store.expect("the server is there")) as Arc<dyn Store>
        }
    });
    // The server keeps no shorter one.
    provider.lease(Duration::from_secs(2)).url(&url).registers(registers)
}

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    // Three servers on one machine have a third of it each.
    let three = provider("three", Cluster::three()).crowd(300);
    fencelock_testkit::main_of(vec![provider("one", Cluster::one()), three]);
}
