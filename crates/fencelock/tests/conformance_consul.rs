//! The Consul store, held to the conformance suite, where there is a Consul: on one server, on three, and with the lock of
//! `consul lock`.

#[path = "consul_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::store::Store;
use fencelock::store::consul::{ConsulLockStore, ConsulStore};
use fencelock_testkit::Provider;
use server::Server;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn provider(name: &str, servers: Vec<Server>) -> Provider {
    let url = servers[0].url();
    let provider = Provider::new(name, move || {
        let url = servers[0].url();
        async move {
            let store = ConsulStore::connect(&url, &BTreeMap::new()).await;
            Arc::new(store.expect("the server is there")) as Arc<dyn Store>
        }
    });
    provider.lease(LEASE).url(&url)
}

/// Shorter than a second the server takes none, and it may take twice as long to end one.
const LEASE: Duration = Duration::from_secs(2);

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    if server::program().is_none() {
        println!("{}", server::MISSING);
        return;
    }
    let foreign = Server::start();
    let url = format!("{}?layout=consul-lock", foreign.url());
    let lock = Provider::new("consul-lock", move || {
        let url = foreign.url();
        async move {
            let options = BTreeMap::from([("layout".to_string(), "consul-lock".to_string())]);
            let store = ConsulLockStore::connect(&url, &options).await;
            Arc::new(store.expect("the server is there")) as Arc<dyn Store>
        }
    });
    // Everybody who comes reads the whole line, and a change of it is told with all of it.
    fencelock_testkit::main_of(vec![
        provider("one", vec![Server::start()]).crowd(200),
        provider("three", Server::cluster()).crowd(100),
        lock.lease(LEASE).url(&url).crowd(50),
    ]);
}
