//! The Consul store, held to the conformance suite, where there is a Consul.

#[path = "consul_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::store::{Store, consul::ConsulStore};
use fencelock_testkit::Provider;
use std::collections::BTreeMap;
use std::sync::Arc;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    if server::program().is_none() {
        println!("{}", server::MISSING);
        return;
    }
    let server = server::Server::start();
    let url = server.url();
    let provider = Provider::new("consul", move || {
        let url = server.url();
        async move {
            let store = ConsulStore::connect(&url, &BTreeMap::new()).await;
            Arc::new(store.expect("the server is there")) as Arc<dyn Store>
        }
    });
    // Shorter than a second the server takes none, and it may take twice as long to end one.
    fencelock_testkit::main(provider.lease(std::time::Duration::from_secs(2)).url(&url));
}
