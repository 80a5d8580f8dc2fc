//! The conformance suite on PostgreSQL's advisory locks: a real server, other processes included.

#[path = "postgres_store/server.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod server;
#[path = "sql_store/under.rs"]
mod under;

use fencelock::store::Store;
use fencelock::store::postgres::PostgresStore;
use fencelock_testkit::Provider;
use std::sync::Arc;
use std::time::Duration;

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    let url = under::a_server(|| {
        let server = server::Server::start(&[]);
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
        (server, url)
    });
    let at = url.clone();
    let open = move || {
        let url = at.clone();
        async move {
            let store = PostgresStore::connect_session(&url, &Default::default()).await;
            Arc::new(store.expect("the store opens")) as Arc<dyn Store>
        }
    };
    let provider = Provider::new("postgres-session", open).lease(Duration::from_secs(2));
    fencelock_testkit::main(provider.url(&format!("{url}?mode=session")));
}
