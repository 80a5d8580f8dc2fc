//! The locks that people write on Redis by hand, each a step better than the one before, and each with its own way to fail.

use crate::Result;
use crate::hook::{Hook, Point};
use crate::strategy::Strategy;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The key of all of them.
pub(crate) const KEY: &str = "by-hand:shop";

/// How long somebody asks again and again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Deletes the key if the value is still ours.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// A lock by hand.
pub(crate) struct ByHand {
    connection: MultiplexedConnection,
    strategy: Strategy,
    expiry: Duration,
    /// What a holder sleeps between GET and DEL, once or twice this long: a pause of its thread.
    pause: Duration,
}

impl ByHand {
    pub(crate) async fn connect(url: &str, strategy: Strategy, expiry: Duration, pause: Duration) -> Result<ByHand> {
        let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        Ok(ByHand { connection, strategy, expiry, pause })
    }

    /// Takes the lock; gives the value that it was taken with. Asks no more once the customer has left.
    pub(crate) async fn lock(&self, hook: &Hook, mut left: oneshot::Receiver<()>) -> Result<String> {
        let mut redis = self.connection.clone();
        let value = format!("{:032x}", fastrand::u128(..));
        let limit = Instant::now() + PATIENCE;
        let expiry = u64::try_from(self.expiry.as_millis())?;
        loop {
            let got: bool = match self.strategy {
                Strategy::Setnx | Strategy::SetnxExpire => redis.set_nx(KEY, &value).await?,
                _ => {
                    let mut set = redis::cmd("SET");
                    set.arg(KEY).arg(&value).arg("NX").arg("PX").arg(expiry);
                    set.query_async::<Option<String>>(&mut redis).await?.is_some()
                }
            };
            if got {
                hook.at(Point::AfterSetnx).await;
                if self.strategy == Strategy::SetnxExpire {
                    let _: bool = redis.pexpire(KEY, i64::try_from(expiry)?).await?;
                }
                return Ok(value);
            }
            let gone = left.try_recv() == Err(oneshot::error::TryRecvError::Closed);
            if gone || Instant::now() > limit {
                return Err("the lock was not to be had".into());
            }
            tokio::time::sleep(Duration::from_micros(fastrand::u64(1_000..4_000))).await;
        }
    }

    /// Lets go, as well as this step knows how to.
    pub(crate) async fn unlock(&self, value: String) -> Result<()> {
        let mut redis = self.connection.clone();
        match self.strategy {
            Strategy::SetNxPxCheckDel => {
                let there: Option<String> = redis.get(KEY).await?;
                if there == Some(value) {
                    if !self.pause.is_zero() {
                        tokio::time::sleep(self.pause.mul_f64(1.0 + fastrand::f64())).await;
                    }
                    let _: u64 = redis.del(KEY).await?;
                }
            }
            Strategy::SetNxPxScript => {
                let _: u64 = redis::Script::new(RELEASE).key(KEY).arg(value).invoke_async(&mut redis).await?;
            }
            _ => {
                let _: u64 = redis.del(KEY).await?;
            }
        }
        Ok(())
    }
}
