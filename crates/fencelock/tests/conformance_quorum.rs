//! A quorum of three Redis servers, held to the conformance suite.

#[path = "redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::store::{Store, quorum::QuorumStore};
use fencelock_testkit::Provider;
use std::collections::BTreeMap;
use std::sync::Arc;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    let servers: Vec<_> = (0..3).map(|_| server::Server::start()).collect();
    let nodes: Vec<String> = servers.iter().map(server::Server::url).collect();
    let nodes = nodes.join("|");
    // The servers have just been started, and the machine is busy with the tests.
    let options = [("young", "allow"), ("node_timeout", "2s"), ("longest_lease", "1h")];
    let query: Vec<String> = options.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let url = format!("quorum:{nodes}?{}", query.join("&"));
    let options: BTreeMap<String, String> = options.map(|(key, value)| (key.into(), value.into())).into();
    let provider = Provider::new("quorum", move || {
        // They live for as long as they are asked.
        let (_servers, nodes, options) = (&servers, nodes.clone(), options.clone());
        async move {
            let store = QuorumStore::connect(&nodes, &options).await;
            Arc::new(store.expect("the servers are there")) as Arc<dyn Store>
        }
    });
    fencelock_testkit::main(provider.url(&url));
}
