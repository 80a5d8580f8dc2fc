//! The conformance suite on `GET_LOCK`: a real MariaDB, other processes included.

#[path = "mysql_store/server.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod server;
#[path = "sql_store/under.rs"]
mod under;

use fencelock::store::Store;
use fencelock::store::mysql::MysqlStore;
use fencelock_testkit::Provider;
use std::sync::Arc;
use std::time::Duration;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    let url = under::a_server(|| {
        let server = server::Server::start(&[]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let url = server.url(&runtime.block_on(server.database()));
        (server, url)
    });
    let at = url.clone();
    let open = move || {
        let url = at.clone();
        async move {
            let store = MysqlStore::connect_session(&url, &Default::default()).await;
            Arc::new(store.expect("the store opens")) as Arc<dyn Store>
        }
    };
    let provider = Provider::new("mysql-session", open).lease(Duration::from_secs(2));
    fencelock_testkit::main(provider.url(&format!("{url}?mode=session")));
}
