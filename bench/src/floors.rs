//! The floors below the SQL stores: two bare single-row UPDATE transactions for rows, the bare lock calls for sessions.

use crate::Failure;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

/// One connection.
#[derive(Clone)]
pub(crate) enum Floor {
    Postgres { client: Arc<tokio_postgres::Client>, session: bool },
    Mysql { conn: Arc<Mutex<Conn>>, session: bool },
}

impl Floor {
    pub(crate) async fn postgres(url: &str, session: bool) -> Result<Floor, Failure> {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("fencelock-bench: {error}");
            }
        });
        // Two who make it at the same moment get in each other's way: then it is there.
        let table = "CREATE TABLE IF NOT EXISTS fencelock_floor (name text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50)";
        let _ = client.batch_execute(table).await;
        Ok(Floor::Postgres { client: Arc::new(client), session })
    }

    pub(crate) async fn mysql(url: &str, session: bool) -> Result<Floor, Failure> {
        let mut conn = Conn::from_url(url).await?;
        let table = "CREATE TABLE IF NOT EXISTS fencelock_floor (name VARBINARY(200) PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB";
        conn.query_drop(table).await?;
        Ok(Floor::Mysql { conn: Arc::new(Mutex::new(conn)), session })
    }

    pub(crate) async fn lock(&self, name: &str) -> Result<(), Failure> {
        match self {
            Floor::Postgres { client, session: true } => {
                client.query_typed("SELECT pg_advisory_lock(hashtextextended($1, 0))", &[(&name, Type::TEXT)]).await?;
            }
            Floor::Mysql { conn, session: true } => {
                conn.lock().await.query_drop(format!("SELECT GET_LOCK('{name}', 3600)")).await?;
            }
            rows => rows.update(name).await?,
        }
        Ok(())
    }

    pub(crate) async fn release(&self, name: &str) -> Result<(), Failure> {
        match self {
            Floor::Postgres { client, session: true } => {
                client
                    .query_typed("SELECT pg_advisory_unlock(hashtextextended($1, 0))", &[(&name, Type::TEXT)])
                    .await?;
            }
            Floor::Mysql { conn, session: true } => {
                conn.lock().await.query_drop(format!("SELECT RELEASE_LOCK('{name}')")).await?;
            }
            rows => rows.update(name).await?,
        }
        Ok(())
    }

    /// One write transaction on one row, which is made the first time.
    async fn update(&self, name: &str) -> Result<(), Failure> {
        match self {
            Floor::Postgres { client, .. } => {
                let update = "UPDATE fencelock_floor SET n = n + 1 WHERE name = $1";
                if client.execute_typed(update, &[(&name, Type::TEXT)]).await? == 0 {
                    let make = "INSERT INTO fencelock_floor VALUES ($1, 1) ON CONFLICT DO NOTHING";
                    client.execute_typed(make, &[(&name, Type::TEXT)]).await?;
                }
            }
            Floor::Mysql { conn, .. } => {
                let mut conn = conn.lock().await;
                conn.query_drop(format!("UPDATE fencelock_floor SET n = n + 1 WHERE name = '{name}'")).await?;
                if conn.affected_rows() == 0 {
                    conn.query_drop(format!("INSERT IGNORE INTO fencelock_floor VALUES ('{name}', 1)")).await?;
                }
            }
        }
        Ok(())
    }
}

/// `host:port` with the user and database that the tests use, or a URL.
pub(crate) fn url(kind: &str, addr: &str) -> String {
    match (addr.contains("://"), kind) {
        (true, _) => addr.to_string(),
        (false, "postgres") => format!("postgres://postgres@{addr}/postgres"),
        (false, _) => format!("mysql://root@{addr}/test"),
    }
}

/// The same, for locks of a connection.
pub(crate) fn session_url(kind: &str, addr: &str) -> String {
    let url = url(kind, addr);
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}mode=session")
}
