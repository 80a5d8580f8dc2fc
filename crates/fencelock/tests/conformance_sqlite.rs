//! The conformance suite on the SQLite store: a file in a temporary folder, other processes included.

use fencelock::beside::Beside;
use fencelock::store::Store;
use fencelock::store::sqlite::SqliteStore;
use fencelock_testkit::Provider;
use std::sync::Arc;
use std::time::Duration;

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let file = folder.path().join("locks.db");
    let beside = move || {
        let store = SqliteStore::open(&file).expect("the store opens");
        std::future::ready(Beside::all(&Arc::new(store)))
    };
    let open = move || {
        let path = folder.path().join("locks.db");
        async move { Arc::new(SqliteStore::open(path).expect("the store opens")) as Arc<dyn Store> }
    };
    fencelock_testkit::main(Provider::new("sqlite", open).lease(Duration::from_millis(600)).url(&url).beside(beside));
}
