//! What a node does with one request: the strategy around the shop's ways to sell.

use crate::Result;
use crate::by_hand::ByHand;
use crate::hook::Hook;
use crate::shop::{Attempt, Outcome, STRIPES, Shop, Way};
use crate::strategy::Strategy;
use fencelock::{Locks, Options, Walk};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a customer waits for a lock, and for a write that is not overtaken by another.
const PATIENCE: Duration = Duration::from_secs(30);

/// The lock for the whole shop; those of products and stripes are below it.
pub(crate) const LOCK: &str = "shop";

/// A node's salesman.
pub(crate) struct Seller {
    pub(crate) shop: Shop,
    pub(crate) node: Arc<str>,
    pub(crate) work: Duration,
    pub(crate) hook: Arc<Hook>,
    pub(crate) how: How,
}

/// The strategy, with what it holds on to.
pub(crate) enum How {
    Database(Way),
    Process(tokio::sync::Mutex<()>),
    Locks { locks: Locks, strategy: Strategy, lease: Duration },
    ByHand(ByHand),
}

impl Seller {
    /// Sells one piece of a product, if it can.
    pub(crate) async fn sell(&self, product: i64) -> Result<Outcome> {
        match &self.how {
            How::Database(way) => {
                let limit = Instant::now() + PATIENCE;
                loop {
                    let outcome = self.attempt(product, way.clone()).await?;
                    let again = matches!(way, Way::Version | Way::Value) && Instant::now() < limit;
                    if outcome != Outcome::Conflict || !again {
                        return Ok(outcome);
                    }
                }
            }
            How::Process(lock) => {
                let _inside = lock.lock().await;
                self.attempt(product, Way::Naive).await
            }
            How::Locks { locks, strategy, lease } => self.locked(product, locks, *strategy, *lease).await,
            How::ByHand(by_hand) => {
                let held = by_hand.lock(&self.hook).await?;
                let outcome = self.attempt(product, Way::Naive).await;
                by_hand.unlock(held).await?;
                outcome
            }
        }
    }

    async fn locked(&self, product: i64, locks: &Locks, strategy: Strategy, lease: Duration) -> Result<Outcome> {
        let mut options = Options::new().wait(PATIENCE).lease(lease);
        if strategy == Strategy::Striped {
            // Who comes when all stripes are empty would ask each of them in turn. Nothing comes back into this shop, so a look at
            // the sum, without any lock, is enough to be sent home.
            if self.shop.left(product).await? <= 0 {
                return Ok(Outcome::SoldOut);
            }
            let stripes = locks.striped(&format!("{LOCK}/{product}"), STRIPES);
            let found = stripes
                .walk_with(options, |stripe| async move {
                    match self.attempt(product, Way::Stripe(stripe.index)).await {
                        Ok(Outcome::SoldOut) => Walk::Empty,
                        other => Walk::Done(other),
                    }
                })
                .await?;
            return found.unwrap_or(Ok(Outcome::SoldOut));
        }
        if strategy == Strategy::LockUnfair {
            options = options.unfair();
        }
        let name = match strategy {
            Strategy::LockPerProduct => format!("{LOCK}/{product}"),
            _ => LOCK.to_string(),
        };
        // A customer who leaves while waiting gives up the place. Before the transaction begins:
        let guard = locks.mutex(&name).lock_with(options).await?;
        let way = if strategy == Strategy::Fenced { Way::Fenced(guard.token()) } else { Way::Naive };
        let outcome = self.attempt(product, way).await;
        // And after the commit. A lock that was lost meanwhile cannot be given back; what was sold is sold.
        let _ = guard.release().await;
        outcome
    }

    /// One attempt, on a task of its own: it goes on when the customer leaves, and also when the lock is lost while it runs. A
    /// guard's `run` would often stop it in time, but not always: a process can be frozen between the last look at the guard
    /// and the write, and this shop is about that moment.
    async fn attempt(&self, product: i64, way: Way) -> Result<Outcome> {
        let (shop, node, hook) = (self.shop.clone(), self.node.clone(), self.hook.clone());
        let attempt = Attempt { product, node, work: self.work, way, hook };
        tokio::spawn(async move { shop.sell(attempt).await }).await?
    }
}
