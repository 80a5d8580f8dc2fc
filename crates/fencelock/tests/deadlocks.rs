//! The example `deadlocks`, on real servers: each cause ends in a deadlock, each answer in none.

#[path = "../examples/deadlocks.rs"]
#[allow(dead_code, reason = "its main is not run")]
mod example;
#[path = "mysql_store/server.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod mariadb;
#[path = "postgres_store/server.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod postgres;

use example::Seen;
use std::time::Duration;

fn deadlocks(all: &[Seen]) -> Vec<Option<&str>> {
    all.iter().map(|seen| seen.deadlock.as_deref()).collect()
}

#[tokio::test]
async fn on_mariadb() {
    let server = tokio::task::spawn_blocking(|| mariadb::Server::start(&[])).await.unwrap();
    let url = server.url(&server.database().await);
    let all = tokio::time::timeout(Duration::from_secs(60), example::on_mysql(&url)).await.expect("an end").unwrap();
    let caught = Some("1213");
    assert_eq!(deadlocks(&all), [caught, None, caught, None, caught, None, None], "{all:?}");
}

#[tokio::test]
async fn on_postgres() {
    let server = tokio::task::spawn_blocking(|| postgres::Server::start(&[])).await.unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let all = tokio::time::timeout(Duration::from_secs(60), example::on_postgres(&url)).await.expect("an end").unwrap();
    let caught = Some("40P01");
    assert_eq!(deadlocks(&all), [caught, None, caught, None, None], "{all:?}");
}
