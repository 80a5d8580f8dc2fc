//! What a node does with one request: the strategy around the shop's ways to sell.

use crate::Result;
use crate::by_hand::ByHand;
use crate::hook::Hook;
use crate::shop::{Attempt, Outcome, STRIPES, Shop, Way};
use crate::strategy::Strategy;
use fencelock::{Locks, Options, Walk};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

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
    Process(Arc<tokio::sync::Mutex<()>>),
    Locks { locks: Locks, strategy: Strategy, lease: Duration },
    ByHand(Arc<ByHand>),
}

impl Seller {
    /// Sells one piece of a product, if it can. A customer may leave at any time, which drops this: while it waits for a lock the
    /// place is given up; what has begun under a lock goes on, lock included.
    pub(crate) async fn sell(self: &Arc<Seller>, product: i64) -> Result<Outcome> {
        match &self.how {
            How::Database(way) => {
                let limit = Instant::now() + PATIENCE;
                loop {
                    let outcome = self.attempt(product, way.clone(), async { Ok(()) }).await?;
                    let again = matches!(way, Way::Version | Way::Value) && Instant::now() < limit;
                    if outcome != Outcome::Conflict || !again {
                        return Ok(outcome);
                    }
                }
            }
            How::Process(lock) => {
                let inside = lock.clone().lock_owned().await;
                let release = async move {
                    drop(inside);
                    Ok(())
                };
                self.attempt(product, Way::Naive, release).await
            }
            How::Locks { locks, strategy, lease } => {
                let options = Options::new().wait(PATIENCE).lease(*lease);
                match strategy {
                    Strategy::Striped => self.striped(product, locks, options).await,
                    _ => self.locked(product, locks, *strategy, options).await,
                }
            }
            How::ByHand(by_hand) => self.by_hand(product, by_hand.clone()).await,
        }
    }

    async fn locked(&self, product: i64, locks: &Locks, strategy: Strategy, options: Options) -> Result<Outcome> {
        let options = if strategy == Strategy::LockUnfair { options.unfair() } else { options };
        let name = match strategy {
            Strategy::LockPerProduct => format!("{LOCK}/{product}"),
            _ => LOCK.to_string(),
        };
        // Before the transaction begins:
        let guard = locks.mutex(&name).lock_with(options).await?;
        let way = if strategy == Strategy::Fenced { Way::Fenced(guard.token()) } else { Way::Naive };
        // And after the commit. A lock that was lost meanwhile cannot be given back; what was sold is sold.
        let release = async move {
            let _ = guard.release().await;
            Ok(())
        };
        self.attempt(product, way, release).await
    }

    async fn striped(self: &Arc<Seller>, product: i64, locks: &Locks, options: Options) -> Result<Outcome> {
        // Who comes when all stripes are empty would ask each of them in turn. Nothing comes back into this shop, so a look at
        // the sum, without any lock, is enough to be sent home.
        if self.shop.left(product).await? <= 0 {
            return Ok(Outcome::SoldOut);
        }
        let stripes = locks.striped(&format!("{LOCK}/{product}"), STRIPES);
        let (seller, working) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let (_here, left) = oneshot::channel::<()>();
        let walk = async move {
            let walk = stripes.walk_with(options, |stripe| {
                let (seller, working) = (seller.clone(), working.clone());
                async move {
                    working.store(true, Ordering::Relaxed);
                    let outcome = seller.attempt(product, Way::Stripe(stripe.index), async { Ok(()) }).await;
                    working.store(false, Ordering::Relaxed);
                    if let Ok(Outcome::SoldOut) = outcome { Walk::Empty } else { Walk::Done(outcome) }
                }
            });
            tokio::pin!(walk);
            let found = tokio::select! {
                found = &mut walk => found?,
                // The walk stands still meanwhile: it is either at a stripe's stock, and goes on, or waits for a lock.
                _ = left => match working.load(Ordering::Relaxed) {
                    true => walk.await?,
                    false => return Err("the customer has left".into()),
                },
            };
            found.unwrap_or(Ok(Outcome::SoldOut))
        };
        tokio::spawn(walk).await?
    }

    async fn by_hand(self: &Arc<Seller>, product: i64, by_hand: Arc<ByHand>) -> Result<Outcome> {
        let (seller, (_here, left)) = (self.clone(), oneshot::channel::<()>());
        // All of it on a task of its own: a lock that was taken for somebody who has left must be given back too.
        let sale = async move {
            let held = by_hand.lock(&seller.hook, left).await?;
            seller.attempt(product, Way::Naive, async move { by_hand.unlock(held).await }).await
        };
        tokio::spawn(sale).await?
    }

    /// One attempt and what comes behind it, on a task of its own: it goes on when the customer leaves, and also when the lock is
    /// lost while it runs. A guard's `run` would often stop it in time, but not always: a process can be frozen between the
    /// last look at the guard and the write, and this shop is about that moment.
    async fn attempt(
        &self,
        product: i64,
        way: Way,
        behind: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<Outcome> {
        let (shop, node, hook) = (self.shop.clone(), self.node.clone(), self.hook.clone());
        let attempt = Attempt { product, node, work: self.work, way, hook };
        let attempt = async move {
            let outcome = shop.sell(attempt).await;
            behind.await?;
            outcome
        };
        tokio::spawn(attempt).await?
    }
}
