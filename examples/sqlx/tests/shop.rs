//! The example on a real PostgreSQL server.

#[path = "../../../crates/fencelock/tests/postgres_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::Locks;
use fencelock::sql::Wait;
use fencelock_with_sqlx::{Lock, lock_in, prepare, restock, sell};
use server::Server;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::time::Duration;

async fn shop(stock: i32) -> (Server, String, PgPool) {
    let server = tokio::task::spawn_blocking(|| Server::start(&[])).await.unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
    prepare(&url, &pool, stock).await.unwrap();
    (server, url, pool)
}

async fn stock(pool: &PgPool) -> i32 {
    sqlx::query_scalar("SELECT stock FROM product WHERE id = 42").fetch_one(pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sold_twice() {
    let (_server, _, pool) = shop(50).await;
    let buyers: Vec<_> = (0..80)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { sell(&pool, 42).await.unwrap() })
        })
        .collect();
    let mut sold = 0;
    for buyer in buyers {
        sold += i32::from(buyer.await.unwrap());
    }
    assert_eq!((sold, stock(&pool).await), (50, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_and_leases_exclude_each_other() {
    let (_server, url, pool) = shop(1).await;
    let mut one = pool.begin().await.unwrap();
    let mut two = pool.begin().await.unwrap();
    assert_eq!(lock_in(&mut one, "stock/42", Wait::No).await.unwrap(), Lock::Got);
    assert_eq!(lock_in(&mut two, "stock/42", Wait::No).await.unwrap(), Lock::Busy);
    let short = Wait::AtMost(Duration::from_millis(20));
    assert_eq!(lock_in(&mut two, "stock/42", short).await.unwrap(), Lock::Busy);
    one.rollback().await.unwrap();
    assert_eq!(lock_in(&mut two, "stock/42", Wait::No).await.unwrap(), Lock::Got);
    two.commit().await.unwrap();

    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("stock/42").lock().await.unwrap();
    let mut three = pool.begin().await.unwrap();
    assert_eq!(lock_in(&mut three, "stock/42", Wait::Forever).await.unwrap(), Lock::Leased);
    guard.release().await.unwrap();
    assert_eq!(lock_in(&mut three, "stock/42", Wait::Forever).await.unwrap(), Lock::Got);
    three.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_was_overtaken_writes_nothing() {
    let (_server, url, pool) = shop(0).await;
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("stock/42").lock().await.unwrap();
    let early = guard.token();
    guard.release().await.unwrap();
    let late = locks.mutex("stock/42").lock().await.unwrap();
    assert!(restock(&pool, 42, 5, &late.token()).await.unwrap());
    assert!(!restock(&pool, 42, 7, &early).await.unwrap());
    assert_eq!(stock(&pool).await, 5);
}
