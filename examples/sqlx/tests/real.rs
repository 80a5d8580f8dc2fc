//! The example on a real PostgreSQL and a real MariaDB.

#[path = "../../../crates/fencelock/tests/mysql_store/server.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod mariadb;
#[path = "../../../crates/fencelock/tests/postgres_store/server.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod postgres;

use fencelock::{Locks, Mode, Token};
use fencelock_with_sqlx::{fence_mysql, fence_postgres, lock_mysql, lock_postgres, take_mysql, take_postgres};
use sqlx::Connection;

const TABLE: &str = "CREATE TABLE product (id BIGINT PRIMARY KEY, stock BIGINT)";
const ROW: &str = "INSERT INTO product VALUES (42, 2)";

fn token(number: u64) -> Token {
    Token::from_parts(number, Mode::Exclusive, "stock/42", "redis").unwrap()
}

#[tokio::test]
async fn on_postgres() {
    let server = postgres::Server::start(&[]);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let locks = Locks::connect(&url).await.unwrap();
    let mut one = sqlx::PgConnection::connect(&url).await.unwrap();
    for statement in [TABLE, ROW] {
        sqlx::query(statement).execute(&mut one).await.unwrap();
    }
    let mut transaction = one.begin().await.unwrap();
    lock_postgres(&mut transaction, "stock/42").await.unwrap();
    assert!(fence_postgres(&mut transaction, &token(7)).await.unwrap());
    assert!(!fence_postgres(&mut transaction, &token(6)).await.unwrap(), "a later one has been here");
    let taken = [take_postgres(&mut transaction, 42).await, take_postgres(&mut transaction, 42).await];
    assert!(taken.into_iter().all(Result::unwrap));
    assert!(!take_postgres(&mut transaction, 42).await.unwrap(), "there were two");
    assert!(locks.mutex("stock/42").lock_within(std::time::Duration::from_millis(300)).await.is_err(), "it is locked");
    transaction.commit().await.unwrap();
    let guard = locks.mutex("stock/42").lock().await.unwrap();
    let mut transaction = one.begin().await.unwrap();
    assert!(
        tokio::time::timeout(std::time::Duration::from_secs(30), lock_postgres(&mut transaction, "stock/42"))
            .await
            .unwrap()
            .is_err()
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn on_mariadb() {
    let server = tokio::task::spawn_blocking(|| mariadb::Server::start(&[])).await.unwrap();
    let database = server.database().await;
    let url = server.url(&database);
    let locks = Locks::connect(&url).await.unwrap();
    fencelock::sql::mysql::prepare(&mut server.sql(&database).await, "stock/42").await.unwrap();
    let mut one = sqlx::MySqlConnection::connect(&url).await.unwrap();
    for statement in [TABLE, ROW] {
        sqlx::query(statement).execute(&mut one).await.unwrap();
    }
    let mut transaction = one.begin().await.unwrap();
    lock_mysql(&mut transaction, "stock/42").await.unwrap();
    assert!(fence_mysql(&mut transaction, &token(7)).await.unwrap());
    assert!(!fence_mysql(&mut transaction, &token(6)).await.unwrap(), "a later one has been here");
    let taken = [take_mysql(&mut transaction, 42).await, take_mysql(&mut transaction, 42).await];
    assert!(taken.into_iter().all(Result::unwrap));
    assert!(!take_mysql(&mut transaction, 42).await.unwrap(), "there were two");
    assert!(locks.mutex("stock/42").lock_within(std::time::Duration::from_millis(300)).await.is_err(), "it is locked");
    transaction.commit().await.unwrap();
    let guard = locks.mutex("stock/42").lock().await.unwrap();
    let mut transaction = one.begin().await.unwrap();
    assert!(lock_mysql(&mut transaction, "stock/42").await.is_err(), "held by a lease");
    guard.release().await.unwrap();
}
