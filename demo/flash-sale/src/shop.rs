//! The shop's database: products, stripes and orders, on SQLite, PostgreSQL or MariaDB; and the ways to sell one piece in it.

mod mysql;
mod postgres;
mod sql;
mod sqlite;

use crate::Result;
use crate::hook::Hook;
use fencelock::Token;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// So many parts a striped stock has.
pub(crate) const STRIPES: usize = 20;

/// How one piece is sold.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Read, check, write.
    Naive,
    /// The same under a lock of the row; on SQLite in a transaction that begins as a writer.
    ForUpdate,
    /// Writes only if the version is the one that was read.
    Version,
    /// Writes only if the stock is the one that was read.
    Value,
    /// Naive, from one stripe.
    Stripe(usize),
    /// Naive, with the token checked in the transaction that writes.
    Fenced(Token),
}

/// One piece to be sold.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(crate) product: i64,
    pub(crate) node: Arc<str>,
    /// What takes time between the read and the write.
    pub(crate) work: Duration,
    pub(crate) way: Way,
    pub(crate) hook: Arc<Hook>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sold,
    SoldOut,
    /// Somebody else was faster: read again.
    Conflict,
    /// The fence refused the write.
    Overtaken,
}

/// What the books say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Books {
    pub(crate) left: i64,
    pub(crate) sold: i64,
    pub(crate) by_node: BTreeMap<String, i64>,
}

/// A connection to the shop's database; a pool of them.
#[derive(Clone)]
pub(crate) enum Shop {
    Sqlite(sqlite::Db),
    Postgres(postgres::Db),
    MySql(mysql::Db),
}

/// One call for whichever database it is.
macro_rules! each {
    ($shop:expr, $db:ident => $call:expr) => {
        match $shop {
            Shop::Sqlite($db) => $call,
            Shop::Postgres($db) => $call,
            Shop::MySql($db) => $call,
        }
    };
}

impl Shop {
    /// Connects, and makes the tables where they are not there.
    pub(crate) async fn open(url: &str) -> Result<Shop> {
        let shop = match kind(url)? {
            "sqlite" => Shop::Sqlite(sqlite::Db::new(url.trim_start_matches("sqlite:"))),
            "postgres" => Shop::Postgres(postgres::Db::new(url)?),
            _ => Shop::MySql(mysql::Db::new(url)?),
        };
        each!(&shop, db => db.migrate().await)?;
        Ok(shop)
    }

    /// Empties the shop and puts so much of each product into it; in stripes, if asked for.
    pub(crate) async fn stock_up(&self, products: u32, stock_of_each: i64, striped: bool) -> Result<()> {
        let mut rows = Vec::new();
        for id in 1..=i64::from(products) {
            let mut stripes = Vec::new();
            if striped {
                let (each, rest) = (stock_of_each / STRIPES as i64, stock_of_each % STRIPES as i64);
                stripes = (0..STRIPES as i64).map(|i| each + i64::from(i < rest)).collect();
            }
            rows.push(Shelf { id, stock: if striped { 0 } else { stock_of_each }, stripes });
        }
        each!(self, db => db.stock_up(rows).await)
    }

    /// Sells one piece, or says why not.
    pub(crate) async fn sell(&self, attempt: Attempt) -> Result<Outcome> {
        each!(self, db => db.sell(attempt).await)
    }

    /// What is left of a product.
    pub(crate) async fn left(&self, product: i64) -> Result<i64> {
        each!(self, db => db.left(product).await)
    }

    /// What is left and what was sold.
    pub(crate) async fn books(&self) -> Result<Books> {
        let (left, sold): (i64, Vec<(String, i64)>) = each!(self, db => db.books().await)?;
        Ok(Books { left, sold: sold.iter().map(|(_, n)| n).sum(), by_node: sold.into_iter().collect() })
    }
}

/// A product as it is put on the shelf.
struct Shelf {
    id: i64,
    stock: i64,
    stripes: Vec<i64>,
}

impl Shelf {
    fn name(&self) -> String {
        format!("teapot {}", self.id)
    }
}

/// Which database a URL names.
pub(crate) fn kind(url: &str) -> Result<&'static str> {
    match url.split(':').next().unwrap_or_default() {
        "sqlite" => Ok("sqlite"),
        "postgres" | "postgresql" => Ok("postgres"),
        "mysql" | "mariadb" => Ok("mariadb"),
        other => {
            Err(format!("{other:?} is no database for the shop: sqlite:PATH, postgres://... or mysql://...").into())
        }
    }
}
