//! The Redis store on Valkey, held to the conformance suite, where there is a Valkey: what `FENCELOCK_VALKEY` names, `valkey-server`
//! from the path, or one that lies beside the build.

#[path = "redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::store::{Store, redis::RedisStore};
use fencelock_testkit::Provider;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    let Some(program) = valkey() else {
        println!("not run: no valkey-server, and FENCELOCK_VALKEY names none");
        return;
    };
    let server = server::Server::of(&program, &[]);
    let url = server.url();
    let provider = Provider::new("valkey", move || {
        let url = server.url();
        async move {
            let store = RedisStore::connect(&url, &BTreeMap::new()).await;
            Arc::new(store.expect("the server is there")) as Arc<dyn Store>
        }
    });
    fencelock_testkit::main(provider.url(&url));
}

fn valkey() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FENCELOCK_VALKEY") {
        return Some(named.into());
    }
    // Where `cargo xtask test` unpacks it, if the machine has none.
    let unpacked = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("valkey/usr/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([unpacked]);
    folders.find_map(|folder| Some(folder.join("valkey-server")).filter(|program| program.is_file()))
}
