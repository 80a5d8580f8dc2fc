//! The MySQL store on a real MariaDB: the rule, several processes, loss of connections and servers, rights, the tables' size.
//! What every store must do is in the conformance suite.

#[path = "mysql_store/access.rs"]
mod access;
#[path = "mysql_store/faults.rs"]
mod faults;
#[path = "sql_store/full.rs"]
mod full;
#[path = "sql_store/histories.rs"]
mod histories;
#[path = "sql_store/processes.rs"]
mod processes;
#[path = "mysql_store/replica.rs"]
mod replica;
#[path = "sql_store/rights.rs"]
mod rights;
#[path = "mysql_store/server.rs"]
mod server;
#[path = "mysql_store/session.rs"]
mod session;
#[path = "sql_store/showing.rs"]
mod showing;
#[path = "sql_store/soak.rs"]
mod soak;
#[path = "mysql_store/sums.rs"]
mod sums;
#[path = "mysql_store/tables.rs"]
mod tables;
#[path = "mysql_store/telling.rs"]
mod telling;
#[path = "mysql_store/transactions.rs"]
mod transactions;

use fencelock::line::WHOLE;
use fencelock::name::Name;
use fencelock::store::mysql::MysqlStore;
use fencelock::store::{Enter, Kind, Note, OwnerId, Place, Store, TicketId};
use mysql_async::prelude::Queryable;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A server, and the URL of a store in it that no other test uses.
async fn fresh() -> (Arc<server::Server>, String) {
    let server = tokio::task::spawn_blocking(server::Server::shared).await.expect("a server");
    let url = server.url(&server.database().await);
    (server, url)
}

/// A server that no other test uses, and the URL of a store in it.
async fn alone() -> (server::Server, String) {
    let server = tokio::task::spawn_blocking(|| server::Server::start(&[])).await.expect("a server");
    let url = server.url(&server.database().await);
    (server, url)
}

/// How many deadlocks there have been. What the server knows of the last one is printed.
async fn deadlocks(server: &server::Server) -> i64 {
    let mut sql = server.sql("mysql").await;
    let counted = "SELECT CAST(count AS SIGNED) FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'";
    let count: i64 = sql.query_first(counted).await.expect("a count").expect("it is counted by default");
    if count > 0 {
        let status: Option<(String, String, String)> =
            sql.query_first("SHOW ENGINE INNODB STATUS").await.expect("the status");
        let status = status.expect("one row").2;
        let last = status.split_once("LATEST DETECTED DEADLOCK").map_or("", |(_, last)| last);
        eprintln!("the last deadlock: {}", last.split("\nTRANSACTIONS\n").next().unwrap_or(last));
    }
    count
}

/// How many session locks have a row, and how many clients have more to tell.
async fn left_behind(server: &server::Server, url: &str) -> (i64, i64) {
    let mut sql = server.sql(url.rsplit('/').next().expect("the URL names a database")).await;
    let count = "SELECT (SELECT COUNT(*) FROM fencelock_session),
        (SELECT COUNT(*) FROM fencelock_client WHERE IS_USED_LOCK(CONCAT(CAST(marker AS CHAR), ':behind')) IS NOT NULL)";
    sql.query_first(count).await.expect("a count").expect("one row")
}

/// Ends a statement of somebody, as a timeout would, or a connection.
async fn disturb(server: &server::Server) {
    let mut sql = server.sql("mysql").await;
    let one = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND command IN ('Query', 'Execute') ORDER BY RAND() LIMIT 1";
    let Some(id) = sql.query_first::<u64, _>(one).await.expect("a list") else { return };
    let what = if fastrand::bool() { "QUERY" } else { "CONNECTION" };
    // It may have ended by itself.
    let _ = sql.query_drop(format!("KILL {what} {id}")).await;
}

/// A store of locks that belong to a connection.
async fn session(url: &str) -> Arc<dyn Store> {
    Arc::new(MysqlStore::connect_session(url, &BTreeMap::new()).await.expect("the store opens"))
}

/// Ends connections of stores, as many as that at most.
async fn end_some(server: &server::Server, most: usize) {
    let mut sql = server.sql("mysql").await;
    let ours = "SELECT id FROM information_schema.processlist WHERE db LIKE 't%' ORDER BY RAND()";
    for id in sql.query::<u64, _>(ours).await.expect("a list").into_iter().take(most) {
        // It may have ended by itself.
        let _ = sql.query_drop(format!("KILL {id}")).await;
    }
}

async fn open(url: &str) -> Arc<MysqlStore> {
    Arc::new(try_open(url, &[]).await.expect("the store opens"))
}

async fn try_open(url: &str, options: &[(&str, &str)]) -> fencelock::Result<MysqlStore> {
    let all: BTreeMap<String, String> = options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    MysqlStore::connect(url, &all).await
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
