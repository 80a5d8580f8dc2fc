//! The PostgreSQL store on a real server: the rule, several processes, loss of connections and servers, rights, the tables'
//! size. What every store must do is in the conformance suite.

#[path = "postgres_store/access.rs"]
mod access;
#[path = "postgres_store/faults.rs"]
mod faults;
#[path = "sql_store/histories.rs"]
mod histories;
#[path = "postgres_store/pgbouncer.rs"]
mod pgbouncer;
#[path = "postgres_store/pooler.rs"]
mod pooler;
#[path = "sql_store/processes.rs"]
mod processes;
#[path = "sql_store/rights.rs"]
mod rights;
#[path = "postgres_store/server.rs"]
mod server;
#[path = "postgres_store/session.rs"]
mod session;
#[path = "sql_store/showing.rs"]
mod showing;
#[path = "sql_store/soak.rs"]
mod soak;
#[path = "postgres_store/standby.rs"]
mod standby;
#[path = "postgres_store/tables.rs"]
mod tables;
#[path = "postgres_store/telling.rs"]
mod telling;
#[path = "postgres_store/transactions.rs"]
mod transactions;

use fencelock::line::WHOLE;
use fencelock::name::Name;
use fencelock::store::postgres::PostgresStore;
use fencelock::store::{Enter, Kind, Note, OwnerId, Place, Store, TicketId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A server, and the URL of a store in it that no other test uses.
async fn fresh() -> (Arc<server::Server>, String) {
    let server = server::Server::shared();
    let url = server.url(&server::Server::schema());
    (server, url)
}

/// A server that no other test uses, and the URL of a store in it.
async fn alone() -> (server::Server, String) {
    let server = tokio::task::spawn_blocking(|| server::Server::start(&[])).await.expect("a server");
    let url = server.url("alone");
    (server, url)
}

/// How many session locks have a row, and how many clients have more to tell.
async fn left_behind(server: &server::Server, _url: &str) -> (i64, i64) {
    let count = "SELECT (SELECT count(*) FROM alone.session),
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2)";
    let row = server.sql().await.query_one(count, &[]).await.expect("a count");
    (row.get(0), row.get(1))
}

/// How many deadlocks there have been.
async fn deadlocks(server: &server::Server) -> i64 {
    let count = "SELECT sum(deadlocks)::bigint FROM pg_stat_database";
    server.sql().await.query_one(count, &[]).await.expect("a count").get(0)
}

/// Ends a statement of somebody, as a timeout would, or a connection.
async fn disturb(server: &server::Server) {
    let end = if fastrand::bool() { "pg_cancel_backend" } else { "pg_terminate_backend" };
    let one = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencelock' AND state = 'active' ORDER BY random() LIMIT 1";
    server.sql().await.execute(&format!("SELECT {end}(pid) FROM ({one}) one"), &[]).await.expect("it is asked to");
}

/// A store of locks that belong to a connection.
async fn session(url: &str) -> Arc<dyn Store> {
    let (url, query) = url.split_once('?').unwrap_or((url, ""));
    let options = query.split('&').filter_map(|one| one.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
    Arc::new(PostgresStore::connect_session(url, &options).await.expect("the store opens"))
}

/// Ends connections of stores, as many as that at most.
async fn end_some(server: &server::Server, most: usize) {
    let some = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencelock' ORDER BY random()";
    let end = format!("SELECT pg_terminate_backend(pid) FROM ({some} LIMIT {most}) few");
    server.sql().await.execute(&end, &[]).await.expect("it is asked to");
}

/// A store in this schema.
async fn open(server: &server::Server, schema: &str, options: &[(&str, &str)]) -> Arc<PostgresStore> {
    Arc::new(try_open(server, schema, options).await.expect("the store opens"))
}

async fn try_open(server: &server::Server, schema: &str, options: &[(&str, &str)]) -> fencelock::Result<PostgresStore> {
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let mut all: BTreeMap<String, String> = options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    all.insert("schema".into(), schema.into());
    PostgresStore::connect(&url, &all).await
}

fn place(name: &str) -> Place {
    Place { name: Name::new("", name).expect("a good name"), id: TicketId::new() }
}

fn ticket(name: &str, weight: u32, capacity: u32, queue: bool) -> Enter {
    Enter {
        place: place(name),
        kind: if capacity != WHOLE {
            Kind::Permits
        } else if weight == WHOLE {
            Kind::Mutex
        } else {
            Kind::Read
        },
        weight,
        capacity,
        lease: Duration::from_secs(60),
        queue,
        owner: OwnerId::new(),
        held: Vec::new(),
        note: Note { host: "here".into(), pid: 7, identity: "a test".into(), reason: None, value: None },
    }
}

/// Something that must happen soon.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(60), future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within a minute"),
    }
}
