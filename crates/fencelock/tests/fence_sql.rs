//! The fence on PostgreSQL and MariaDB, held to the one suite: `fence_in` in the caller's transaction, and the plain statements
//! that any driver can send.

#[path = "mysql_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the MySQL store")]
mod mysql;
#[path = "postgres_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the PostgreSQL store")]
mod postgres;

use fencelock::fence::sql::{self, Dialect, Parameter, Statement};
use fencelock::sql::fence_in;
use fencelock::sql::postgres::InSchema;
use fencelock::store::BoxFuture;
use fencelock::{Locks, Result, Token};
use fencelock_testkit::{Checker, check_fence};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Params, TxOpts, Value};
use std::sync::Arc;
use tokio_postgres::types::ToSql;

async fn holds(mut checker: impl Checker) {
    let wrong = check_fence(&mut checker).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a driver makes of the statements: how many rows the last one wrote, and the marks where it wrote none.
fn judged(token: &Token, written: u64, marks: Option<(i64, i64)>) -> Result<()> {
    match written {
        1 => Ok(()),
        0 => {
            let (exclusive, shared) = marks.expect("something was accepted before");
            Err(sql::overtaken(token, exclusive, shared).into())
        }
        more => panic!("{more} rows"),
    }
}

struct Postgres {
    server: Arc<postgres::Server>,
    client: tokio_postgres::Client,
    schema: String,
    /// The store's own tables and functions, or the table of the fence alone.
    in_store: bool,
}

impl Postgres {
    async fn new(in_store: bool) -> Postgres {
        let (server, schema) = (postgres::Server::shared(), postgres::Server::schema());
        let client = server.sql().await;
        if in_store {
            let _makes_the_tables = Locks::connect(&server.url(&schema)).await.unwrap();
        } else {
            client.batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path TO {schema}")).await.unwrap();
            client.batch_execute(sql::table(Dialect::Postgres)).await.unwrap();
            client.batch_execute(sql::table(Dialect::Postgres)).await.expect("it can be made again");
        }
        Postgres { server, client, schema, in_store }
    }

    async fn write(&mut self, token: &Token) -> Result<()> {
        let mut transaction = self.client.transaction().await.unwrap();
        if self.in_store {
            fence_in(&mut InSchema { transaction: &mut transaction, schema: &self.schema }, token).await?;
        } else {
            let mut written = 0;
            for Statement { text, parameters } in sql::access(Dialect::Postgres, token)? {
                written = transaction.execute(text, &values(&parameters)).await.unwrap();
            }
            let Statement { text, parameters } = sql::marks(Dialect::Postgres, token);
            let marks = transaction.query_opt(text, &values(&parameters)).await.unwrap();
            judged(token, written, marks.map(|row| (row.get(0), row.get(1))))?;
        }
        transaction.commit().await.unwrap();
        Ok(())
    }
}

fn values(parameters: &[Parameter]) -> Vec<&(dyn ToSql + Sync)> {
    parameters.iter().map(value).collect()
}

fn value(parameter: &Parameter) -> &(dyn ToSql + Sync) {
    match parameter {
        Parameter::Text(text) => text,
        Parameter::Number(number) => number,
    }
}

impl Checker for Postgres {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.write(token))
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.client = self.server.sql().await;
            self.client.batch_execute(&format!("SET search_path TO {}", self.schema)).await.unwrap();
        })
    }
}

#[tokio::test]
async fn fence_in_on_postgres() {
    holds(Postgres::new(true).await).await;
}

#[tokio::test]
async fn plain_statements_on_postgres() {
    holds(Postgres::new(false).await).await;
}

struct MySql {
    server: Arc<mysql::Server>,
    connection: Conn,
    database: String,
    in_store: bool,
}

impl MySql {
    async fn new(in_store: bool) -> MySql {
        let server = mysql::Server::shared();
        let database = server.database().await;
        let mut connection = server.sql(&database).await;
        if in_store {
            let _makes_the_tables = Locks::connect(&server.url(&database)).await.unwrap();
        } else {
            connection.query_drop(sql::table(Dialect::MySql)).await.unwrap();
            connection.query_drop(sql::table(Dialect::MySql)).await.expect("it can be made again");
        }
        MySql { server, connection, database, in_store }
    }

    async fn write(&mut self, token: &Token) -> Result<()> {
        let mut transaction = self.connection.start_transaction(TxOpts::default()).await.unwrap();
        if self.in_store {
            fence_in(&mut transaction, token).await?;
        } else {
            let mut written = 0;
            for Statement { text, parameters } in sql::access(Dialect::MySql, token)? {
                transaction.exec_drop(text, bound(parameters)).await.unwrap();
                written = transaction.affected_rows();
            }
            let Statement { text, parameters } = sql::marks(Dialect::MySql, token);
            let marks = transaction.exec_first(text, bound(parameters)).await.unwrap();
            judged(token, written, marks)?;
        }
        transaction.commit().await.unwrap();
        Ok(())
    }
}

fn bound(parameters: Vec<Parameter>) -> Params {
    let value = |parameter| match parameter {
        Parameter::Text(text) => Value::Bytes(text.into_bytes()),
        Parameter::Number(number) => Value::Int(number),
    };
    Params::Positional(parameters.into_iter().map(value).collect())
}

impl Checker for MySql {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.write(token))
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.connection = self.server.sql(&self.database).await })
    }
}

#[tokio::test]
async fn fence_in_on_mariadb() {
    holds(MySql::new(true).await).await;
}

#[tokio::test]
async fn plain_statements_on_mariadb() {
    holds(MySql::new(false).await).await;
}
