//! What one sale is to be like, and the row of the table that comes out of it.

use crate::args::{Common, Limits};
use crate::shop;
use crate::strategy::Strategy;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// So many products a shop has that has a lock for each.
pub(crate) const PRODUCTS: u32 = 10;

/// One sale.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) strategy: Strategy,
    pub(crate) db: String,
    pub(crate) store: Option<String>,
    pub(crate) nodes: usize,
    pub(crate) products: u32,
    /// Of all products together.
    pub(crate) stock: i64,
    pub(crate) customers: usize,
    pub(crate) rounds: usize,
    pub(crate) work: Duration,
    pub(crate) lease: Duration,
    /// Of a lock by hand.
    pub(crate) expiry: Duration,
    pub(crate) pause_before_del: Duration,
    pub(crate) fault: Fault,
    pub(crate) nginx: bool,
    /// Where nginx listens, if not anywhere.
    pub(crate) front: Option<std::net::SocketAddr>,
    /// As it was written: `10/s`.
    pub(crate) limit: Option<String>,
    pub(crate) limits: Limits,
}

/// What goes wrong in the middle of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// A node is frozen between the read and the write until its lease is over and the others have sold the rest.
    Paused,
    /// Every node is killed and started again.
    Killed,
    /// A node is killed behind its SETNX, and started again.
    KilledAfterSetnx,
    /// The work takes longer than the lock by hand lives.
    WorkPastExpiry,
    /// A holder by hand is paused between GET and DEL.
    PausedBeforeDel,
}

impl Fault {
    pub(crate) fn told(self, strategy: Strategy) -> &'static str {
        match self {
            Fault::Nothing => "none",
            Fault::Paused => "a node frozen inside past its lease",
            Fault::Killed => "both nodes killed -9 and started again",
            Fault::KilledAfterSetnx if strategy == Strategy::SetnxExpire => "killed between SETNX and EXPIRE",
            Fault::KilledAfterSetnx => "killed after SETNX",
            Fault::WorkPastExpiry => "work longer than the expiry",
            Fault::PausedBeforeDel => "paused between GET and DEL",
        }
    }
}

impl Plan {
    /// A sale as the command line wants it.
    pub(crate) fn new(common: &Common, strategy: Strategy, db: &str, store: Option<&str>) -> Plan {
        let limit = common.limits.limit.map(|rate| rate.to_string().replace(" in ", "/").replace(' ', ""));
        Plan {
            strategy,
            db: db.into(),
            store: store.filter(|_| strategy.locks() || strategy.by_hand()).map(String::from),
            nodes: 2,
            products: if strategy == Strategy::LockPerProduct { PRODUCTS } else { 1 },
            stock: common.stock,
            customers: common.customers,
            rounds: common.rounds,
            work: common.work,
            lease: common.lease,
            expiry: Duration::from_secs(30),
            pause_before_del: Duration::ZERO,
            fault: Fault::Nothing,
            nginx: !common.no_nginx,
            front: None,
            limit,
            limits: common.limits.clone(),
        }
    }

    pub(crate) fn stock_of_each(&self) -> i64 {
        self.stock / i64::from(self.products.max(1))
    }

    /// Empties the shop and fills its shelves for this sale.
    pub(crate) async fn stock_up(&self, shop: &shop::Shop) -> crate::Result<()> {
        shop.stock_up(self.products, self.stock_of_each(), self.strategy == Strategy::Striped).await
    }

    /// The store's name in the table: where the locks are, and the database if that is another.
    pub(crate) fn store_name(&self) -> String {
        let db = shop::kind(&self.db).unwrap_or("?");
        match self.store.as_deref().map(store_kind) {
            Some(store) if store != db => format!("{store} + {db}"),
            _ => db.to_string(),
        }
    }
}

/// What people call the store of a URL.
pub(crate) fn store_kind(url: &str) -> String {
    let scheme = url.split(':').next().unwrap_or_default();
    let session = if url.contains("mode=session") { " session" } else { "" };
    let name = match scheme {
        "mysql" => "mariadb",
        "etcds" => "etcd",
        "rediss" | "redis+unix" => "redis",
        "consuls" => "consul",
        other => other,
    };
    format!("{name}{session}")
}

/// One row of the table.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Row {
    pub(crate) strategy: String,
    pub(crate) store: String,
    pub(crate) nodes: usize,
    pub(crate) stock: i64,
    pub(crate) stock_left: i64,
    pub(crate) sold: i64,
    pub(crate) oversold: i64,
    pub(crate) requests: u64,
    pub(crate) qps: f64,
    pub(crate) mean_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) fault: String,
    pub(crate) stuck_ms: u64,
    pub(crate) verdict: String,
}
