//! The shop in PostgreSQL. The naive read and the write share one transaction at the usual isolation (read committed), which is no
//! help: the read takes no lock.

use super::{Attempt, Outcome, Shelf, Way, sql};
use crate::Result;
use fencelock::fence::sql::{Dialect, Parameter, access, table};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls};

/// So many connections a node has.
const CONNECTIONS: usize = 32;

#[derive(Clone)]
pub(crate) struct Db {
    config: Arc<Config>,
    idle: Arc<Mutex<Vec<Client>>>,
    free: Arc<Semaphore>,
}

/// A connection on loan. It goes back by [`Db::give_back`]; one that is dropped instead was in the middle of something.
struct Loan {
    client: Client,
    _free: tokio::sync::OwnedSemaphorePermit,
}

impl Db {
    pub(super) fn new(url: &str) -> Result<Db> {
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        Ok(Db { config: Arc::new(url.parse()?), idle: Arc::default(), free })
    }

    async fn borrow(&self) -> Result<Loan> {
        let free = self.free.clone().acquire_owned().await?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(client) = idle.filter(|client| !client.is_closed()) {
            return Ok(Loan { client, _free: free });
        }
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(Loan { client, _free: free })
    }

    fn give_back(&self, loan: Loan) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(loan.client);
    }

    pub(super) async fn migrate(&self) -> Result<()> {
        let loan = self.borrow().await?;
        // Several nodes may start at once, and two `CREATE TABLE IF NOT EXISTS` at a time can collide.
        let fence = table(Dialect::Postgres);
        let all = format!("BEGIN; SELECT pg_advisory_xact_lock(814227); {};\n{fence}; COMMIT", sql::POSTGRES);
        loan.client.batch_execute(&all).await?;
        self.give_back(loan);
        Ok(())
    }

    pub(super) async fn stock_up(&self, shelves: Vec<Shelf>) -> Result<()> {
        let mut loan = self.borrow().await?;
        let transaction = loan.client.transaction().await?;
        for text in sql::CLEAR {
            transaction.execute(text, &[]).await?;
        }
        for shelf in shelves {
            transaction.execute(sql::ADD_PRODUCT, &[&shelf.id, &shelf.name(), &shelf.stock]).await?;
            for (i, stock) in shelf.stripes.iter().enumerate() {
                transaction.execute(sql::ADD_STRIPE, &[&shelf.id, &(i as i64), stock]).await?;
            }
        }
        transaction.commit().await?;
        self.give_back(loan);
        Ok(())
    }

    pub(super) async fn sell(&self, attempt: Attempt) -> Result<Outcome> {
        let mut loan = self.borrow().await?;
        let outcome = sell(&mut loan.client, &attempt).await?;
        self.give_back(loan);
        Ok(outcome)
    }

    pub(super) async fn left(&self, product: i64) -> Result<i64> {
        let loan = self.borrow().await?;
        let row = loan.client.query_one(&sql::postgres(sql::LEFT), &[&product, &product]).await?;
        self.give_back(loan);
        Ok(row.get(0))
    }

    pub(super) async fn books(&self) -> Result<(i64, Vec<(String, i64)>)> {
        let mut loan = self.borrow().await?;
        let transaction =
            loan.client.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
        let transaction = transaction.read_only(true).start().await?;
        let left = transaction.query_one(&sql::postgres(sql::LEFT_OF_ALL), &[]).await?.get(0);
        let sold = transaction.query(sql::SOLD_BY, &[]).await?;
        let sold = sold.iter().map(|row| (row.get(0), row.get(1))).collect();
        transaction.commit().await?;
        self.give_back(loan);
        Ok((left, sold))
    }
}

async fn sell(client: &mut Client, attempt: &Attempt) -> Result<Outcome> {
    let product = attempt.product;
    let transaction = client.transaction().await?;
    let row = match attempt.way {
        Way::Stripe(i) => transaction.query_opt(sql::READ_STRIPE, &[&product, &(i as i64)]).await?,
        Way::ForUpdate => transaction.query_opt(sql::READ_FOR_UPDATE, &[&product]).await?,
        _ => transaction.query_opt(sql::READ, &[&product]).await?,
    };
    let seen: Option<(i64, i64)> = row.map(|row| (row.get(0), row.get(1)));
    let Some((stock, version)) = seen.filter(|(stock, _)| *stock > 0) else {
        transaction.rollback().await?;
        return Ok(Outcome::SoldOut);
    };
    attempt.hook.work(attempt.work).await;
    if let Way::Fenced(token) = &attempt.way {
        let mut accepted = 0;
        for statement in access(Dialect::Postgres, token)? {
            let values: Vec<_> = statement.parameters.iter().map(value).collect();
            accepted = transaction.execute(statement.text, &values).await?;
        }
        if accepted == 0 {
            transaction.rollback().await?;
            return Ok(Outcome::Overtaken);
        }
    }
    let met = match attempt.way {
        Way::Naive | Way::ForUpdate | Way::Fenced(_) => transaction.execute(sql::TAKE, &[&product]).await?,
        Way::Version => transaction.execute(sql::TAKE_IF_VERSION, &[&product, &version]).await?,
        Way::Value => transaction.execute(sql::TAKE_IF_STOCK, &[&product, &stock]).await?,
        Way::Stripe(i) => transaction.execute(sql::TAKE_STRIPE, &[&product, &(i as i64)]).await?,
    };
    if met == 0 {
        transaction.rollback().await?;
        return Ok(Outcome::Conflict);
    }
    transaction.execute(sql::ORDER, &[&product, &&*attempt.node]).await?;
    transaction.commit().await?;
    Ok(Outcome::Sold)
}

fn value(parameter: &Parameter) -> &(dyn ToSql + Sync) {
    match parameter {
        Parameter::Text(text) => text,
        Parameter::Number(number) => number,
    }
}
