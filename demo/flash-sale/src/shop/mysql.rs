//! The shop in MySQL or MariaDB. The naive read and the write share one transaction at the usual isolation (repeatable read), which
//! is no help: the read is of a picture, the write of what is there.

use super::{Attempt, Outcome, Shelf, Way, sql};
use crate::Result;
use fencelock::fence::sql::{Dialect, Parameter, access, table};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts, TxOpts, Value};

#[derive(Clone)]
pub(crate) struct Db {
    pool: Pool,
}

impl Db {
    pub(super) fn new(url: &str) -> Result<Db> {
        let url = url.replacen("mariadb://", "mysql://", 1);
        let room = PoolConstraints::new(1, 32).ok_or("a pool of 1 to 32")?;
        let options = OptsBuilder::from_opts(Opts::from_url(&url)?)
            .client_found_rows(true)
            .pool_opts(PoolOpts::default().with_constraints(room));
        Ok(Db { pool: Pool::new(options) })
    }

    pub(super) async fn migrate(&self) -> Result<()> {
        let mut connection = self.pool.get_conn().await?;
        for text in sql::MYSQL.iter().copied().chain([table(Dialect::MySql)]) {
            connection.query_drop(text).await?;
        }
        Ok(())
    }

    pub(super) async fn stock_up(&self, shelves: Vec<Shelf>) -> Result<()> {
        let mut connection = self.pool.get_conn().await?;
        let mut transaction = connection.start_transaction(TxOpts::default()).await?;
        for text in sql::CLEAR {
            transaction.query_drop(text).await?;
        }
        for shelf in shelves {
            let row = (shelf.id, shelf.name(), shelf.stock);
            transaction.exec_drop(sql::mysql(sql::ADD_PRODUCT), row).await?;
            for (i, stock) in shelf.stripes.iter().enumerate() {
                transaction.exec_drop(sql::mysql(sql::ADD_STRIPE), (shelf.id, i as i64, stock)).await?;
            }
        }
        Ok(transaction.commit().await?)
    }

    pub(super) async fn sell(&self, attempt: Attempt) -> Result<Outcome> {
        let mut connection = self.pool.get_conn().await?;
        match sell(&mut connection, &attempt).await {
            // A changed row at stricter settings, a wait that was too long, a deadlock: the transaction was rolled back.
            Err(mysql_async::Error::Server(error)) if matches!(error.code, 1020 | 1205 | 1213) => Ok(Outcome::Conflict),
            other => Ok(other?),
        }
    }

    pub(super) async fn left(&self, product: i64) -> Result<i64> {
        let mut connection = self.pool.get_conn().await?;
        let left: Option<i64> = connection.exec_first(sql::mysql(sql::LEFT), (product, product)).await?;
        Ok(left.unwrap_or(0))
    }

    pub(super) async fn books(&self) -> Result<(i64, Vec<(String, i64)>)> {
        let mut connection = self.pool.get_conn().await?;
        let mut transaction = connection.start_transaction(TxOpts::default()).await?;
        let left: Option<i64> = transaction.exec_first(sql::LEFT_OF_ALL, ()).await?;
        let sold = transaction.exec(sql::SOLD_BY, ()).await?;
        transaction.commit().await?;
        Ok((left.unwrap_or(0), sold))
    }
}

async fn sell(connection: &mut Conn, attempt: &Attempt) -> std::result::Result<Outcome, mysql_async::Error> {
    let product = attempt.product;
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let row: Option<(i64, i64)> = match attempt.way {
        Way::Stripe(i) => transaction.exec_first(sql::mysql(sql::READ_STRIPE), (product, i as i64)).await?,
        Way::ForUpdate => transaction.exec_first(sql::mysql(sql::READ_FOR_UPDATE), (product,)).await?,
        _ => transaction.exec_first(sql::mysql(sql::READ), (product,)).await?,
    };
    let Some((stock, version)) = row.filter(|(stock, _)| *stock > 0) else {
        transaction.rollback().await?;
        return Ok(Outcome::SoldOut);
    };
    attempt.hook.work(attempt.work).await;
    if let Way::Fenced(token) = &attempt.way {
        let statements = access(Dialect::MySql, token).map_err(|error| mysql_async::Error::Other(Box::new(error)))?;
        for statement in statements {
            let values: Vec<Value> = statement.parameters.iter().map(value).collect();
            transaction.exec_drop(statement.text, values).await?;
        }
        if transaction.affected_rows() == 0 {
            transaction.rollback().await?;
            return Ok(Outcome::Overtaken);
        }
    }
    match attempt.way {
        Way::Naive | Way::ForUpdate | Way::Fenced(_) => {
            transaction.exec_drop(sql::mysql(sql::TAKE), (product,)).await?
        }
        Way::Version => transaction.exec_drop(sql::mysql(sql::TAKE_IF_VERSION), (product, version)).await?,
        Way::Value => transaction.exec_drop(sql::mysql(sql::TAKE_IF_STOCK), (product, stock)).await?,
        Way::Stripe(i) => transaction.exec_drop(sql::mysql(sql::TAKE_STRIPE), (product, i as i64)).await?,
    }
    if transaction.affected_rows() == 0 {
        transaction.rollback().await?;
        return Ok(Outcome::Conflict);
    }
    transaction.exec_drop(sql::mysql(sql::ORDER), (product, &*attempt.node)).await?;
    transaction.commit().await?;
    Ok(Outcome::Sold)
}

fn value(parameter: &Parameter) -> Value {
    match parameter {
        Parameter::Text(text) => text.as_str().into(),
        Parameter::Number(number) => (*number).into(),
    }
}
