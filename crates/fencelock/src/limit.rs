//! Limiters: how many requests may pass in a time ([`Limiter`]), and how many may be under way at once ([`Concurrency`]); in this
//! process, or shared by all clients of a store.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> fencelock::Result<()> {
//! use fencelock::limit::{Limit, Limiter, Rate};
//! use std::time::Duration;
//!
//! // Ten a second, twenty at once: in this process.
//! let mails = Limiter::local(Limit::token_bucket(Rate::per_second(10)).burst(20));
//! mails.try_acquire().await?;
//!
//! // The same for each user, shared by everybody who uses the store.
//! let locks = fencelock::Locks::connect("memory:").await?;
//! let api = locks.limiter("api", Limit::token_bucket(Rate::per_second(10)).burst(20));
//! api.key("user-7").acquire_within(Duration::from_secs(1)).await?;
//!
//! // Who is refused learns when to come again.
//! let strict = Limiter::local(Limit::leaky_bucket("30/m".parse()?));
//! strict.try_acquire().await?;
//! let refused = strict.try_acquire().await.unwrap_err();
//! assert!(refused.retry_after().unwrap() <= Duration::from_secs(2));
//! # Ok(())
//! # }
//! ```
//!
//! # Which bucket
//!
//! A **token bucket** lets `burst` requests through at once and then `rate`. Whoever comes too early may wait: its place is taken in the
//! bucket at once, so that waiters go in the order in which they asked, over all clients of a store, and one whose wait would be too
//! long is told so at once. In any stretch of time no more than `rate` times the time plus `burst` get through.
//!
//! A **leaky bucket** is nginx's `limit_req`, by the millisecond: `burst` requests fit into it beside the first, the others are refused at
//! once, however long they would wait. Those that fit are delayed so that they leave at `rate`, or not with
//! [`nodelay`](Limit::nodelay).
//!
//! # What it costs
//!
//! A decision of a shared limiter is one request to the store (on SQLite one transaction, on memory none), made there on the store's
//! own clock, so that clients with wrong clocks do no harm. Waiting costs nothing more. A bucket that has recovered is forgotten: a
//! key that was used once leaves nothing behind.

use crate::beside::{Ask, Limiters};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result, spoken};
use crate::locks::Core;
use crate::name::{Name, printable};
use bucket::{Bucket, MOST, Rule, Verdict};
use buckets::Buckets;
pub use concurrency::{Concurrency, Slot};
use std::sync::Arc;
use std::time::Duration;

pub mod bucket;
pub(crate) mod buckets;
mod concurrency;
#[cfg(feature = "tower")]
pub mod layer;
#[cfg(test)]
mod tests;

/// So many keys a local limiter keeps unless it is told otherwise; each takes some 200 bytes.
pub const USUAL_KEYS: usize = 65_536;

/// So many requests in so much time.
///
/// ```
/// # use fencelock::limit::Rate;
/// # use std::time::Duration;
/// assert_eq!("10/s".parse::<Rate>()?, Rate::per_second(10));
/// assert_eq!("3/250ms".parse::<Rate>()?, Rate::new(3, Duration::from_millis(250)));
/// # Ok::<(), fencelock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    per: Duration,
}

impl Rate {
    /// `count` requests in `per`. What cannot be (none, or in no time) is told by the first call that needs it.
    #[must_use]
    pub const fn new(count: u32, per: Duration) -> Rate {
        Rate { count, per }
    }

    /// So many a second.
    #[must_use]
    pub const fn per_second(count: u32) -> Rate {
        Rate::new(count, Duration::from_secs(1))
    }

    /// So many a minute.
    #[must_use]
    pub const fn per_minute(count: u32) -> Rate {
        Rate::new(count, Duration::from_secs(60))
    }

    /// So many an hour.
    #[must_use]
    pub const fn per_hour(count: u32) -> Rate {
        Rate::new(count, Duration::from_secs(3600))
    }

    /// The time in whole microseconds.
    fn micros(self) -> Result<u64> {
        let micros = u64::try_from(self.per.as_micros()).unwrap_or(u64::MAX);
        if self.count == 0 || micros == 0 || micros > MOST {
            return Err(invalid(format!("a rate of {} in {:?} makes no sense", self.count, self.per)));
        }
        Ok(micros)
    }
}

impl std::str::FromStr for Rate {
    type Err = Error;

    /// `10/s`, `600/m`, `5/h`, or with a number before the unit: `3/250ms`, `1/30s`.
    fn from_str(text: &str) -> Result<Rate> {
        let wrong = || invalid(format!("{:?} is no rate: say 10/s, 600/m or 1/30s", printable(text)));
        let (count, per) = text.split_once('/').ok_or_else(wrong)?;
        let count: u32 = count.parse().map_err(|_| wrong())?;
        let per = if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_string() } else { format!("1{per}") };
        let rate = Rate::new(count, crate::duration::parse(&per).map_err(|_| wrong())?);
        rate.micros().map_err(|_| wrong())?;
        Ok(rate)
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", self.count, spoken(self.per))
    }
}

/// What is let through: a kind of bucket with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Limit {
    leaky: bool,
    rate: Rate,
    burst: u32,
    /// How many of the burst go without delay.
    undelayed: u32,
}

impl Limit {
    /// A token bucket with a burst of 1: see the [module](self).
    pub const fn token_bucket(rate: Rate) -> Limit {
        Limit { leaky: false, rate, burst: 1, undelayed: 0 }
    }

    /// nginx's leaky bucket with a burst of 0: see the [module](self).
    pub const fn leaky_bucket(rate: Rate) -> Limit {
        Limit { leaky: true, rate, burst: 0, undelayed: 0 }
    }

    /// How many may come at once: of a token bucket in all (so at least 1), of a leaky one beside the first.
    pub const fn burst(mut self, burst: u32) -> Limit {
        self.burst = burst;
        self
    }

    /// A leaky bucket's burst is not delayed: nginx's `nodelay`. A token bucket never delays what it can let through.
    pub const fn nodelay(self) -> Limit {
        self.delay_after(u32::MAX)
    }

    /// So many of a leaky bucket's burst are not delayed, the rest is: nginx's `delay=`.
    pub const fn delay_after(mut self, requests: u32) -> Limit {
        self.undelayed = requests;
        self
    }

    /// The same in the numbers of the arithmetic.
    fn rule(self) -> Result<Rule> {
        let per = self.rate.micros()?;
        if self.leaky {
            let give = u128::from(self.rate.count) * 1_000_000_000 / u128::from(per);
            let give = u64::try_from(give).unwrap_or(u64::MAX);
            if give == 0 || give > 1_000_000_000_000 {
                let message = format!("a leaky bucket counts from 1 in 1000 s to 10^9 in 1 s, not {}", self.rate);
                return Err(invalid(message));
            }
            let (room, free) = (u64::from(self.burst) * 1000, u64::from(self.undelayed) * 1000);
            return Ok(Rule { leaky: true, cost: 1000, give, room, free });
        }
        if self.burst == 0 {
            return Err(invalid("a token bucket has a burst of at least 1".into()));
        }
        let common = gcd(u64::from(self.rate.count), per);
        let (cost, give) = (per / common, u64::from(self.rate.count) / common);
        match cost.checked_mul(u64::from(self.burst)) {
            Some(room) if room <= MOST / 2 => Ok(Rule { leaky: false, cost, give, room, free: room }),
            _ => Err(invalid(format!("a burst of {} at {} is more than can be counted", self.burst, self.rate))),
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

/// What a limiter said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Let through, after this wait. It counts whether the caller waits or not.
    Granted {
        /// How long to wait first.
        wait: Duration,
    },
    /// Not let through, and not counted.
    Refused {
        /// When one that does not wait would be let through if nobody else came.
        retry_after: Duration,
    },
}

/// A bucket of its own, or one for each key; see the [module](self). Cheap to clone; clones share the buckets.
///
/// Made by [`local`](Limiter::local) for this process, or by [`Locks::limiter`](crate::Locks::limiter) for everybody who uses the store.
#[derive(Clone, Debug)]
pub struct Limiter {
    home: Home,
    clock: Clock,
    name: Arc<Result<Named>>,
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Home {
    Local(Arc<Buckets>),
    Shared(Arc<Core>),
}

/// What a bucket is called, by the store and by people.
#[derive(Debug)]
struct Named {
    bucket: String,
    shown: String,
}

impl Limiter {
    /// A limiter of this process, with up to [`USUAL_KEYS`] keys. It needs no store and no runtime.
    pub fn local(limit: Limit) -> Limiter {
        Limiter::local_with(limit, USUAL_KEYS, Clock::system())
    }

    /// The same with room for `most` keys, on another clock. Where more keys than that are in use, those that have the least to
    /// remember are forgotten: they begin anew.
    pub fn local_with(limit: Limit, most: usize, clock: Clock) -> Limiter {
        let named = Ok(Named { bucket: String::new(), shown: String::new() });
        Limiter::new(Home::Local(Arc::new(Buckets::new(most))), clock, named, limit)
    }

    pub(crate) fn shared(core: Arc<Core>, name: Result<Name>, limit: Limit) -> Limiter {
        let clock = core.info.clock.clone();
        let named = name.map(|name| Named { bucket: name.key().to_string(), shown: name.shown() });
        Limiter::new(Home::Shared(core), clock, named, limit)
    }

    fn new(home: Home, clock: Clock, named: Result<Named>, limit: Limit) -> Limiter {
        let nothing = Rule { leaky: false, cost: 1, give: 1, room: 1, free: 0 };
        let (rule, named) = match limit.rule() {
            Ok(rule) => (rule, named),
            Err(error) => (nothing, named.and_then(|named| Err(about(error, &named.shown)))),
        };
        Limiter { home, clock, name: Arc::new(named), rule }
    }

    /// The limiter of one key: an address, a user. No I/O.
    #[must_use]
    pub fn key(&self, key: &str) -> Limiter {
        let named = match &*self.name {
            Ok(named) => keyed(&named.bucket, &named.shown, key),
            Err(error) => Err(error.again()),
        };
        Limiter { name: Arc::new(named), ..self.clone() }
    }

    /// Asks for one request without waiting.
    ///
    /// # Errors
    /// `Limited`, with [`retry_after`](Error::retry_after); `InvalidInput`, `InvalidName`, `Unsupported`, or whatever keeps the
    /// store from answering.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready may or may not count as a request.
    pub async fn try_acquire(&self) -> Result<()> {
        self.acquire_many_within(1, Duration::ZERO).await
    }

    /// Asks for several requests at once without waiting: all or none.
    ///
    /// # Errors
    /// `InvalidInput` for more than could ever pass at once; and those of [`try_acquire`](Limiter::try_acquire).
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Limiter::try_acquire).
    pub async fn try_acquire_many(&self, count: u32) -> Result<()> {
        self.acquire_many_within(count, Duration::ZERO).await
    }

    /// Waits its turn, in the order of asking, for as long as it takes. A leaky bucket that is full refuses at once all the same.
    ///
    /// # Errors
    /// As [`try_acquire`](Limiter::try_acquire).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the turn. A local limiter takes it back for others if nobody has asked since; otherwise, and
    /// on a shared one, it counts as a request that was let through.
    pub async fn acquire(&self) -> Result<()> {
        self.acquire_many_within(1, Duration::MAX).await
    }

    /// Waits its turn if that comes within `wait`; else says so at once, without waiting in vain.
    ///
    /// # Errors
    /// As [`try_acquire`](Limiter::try_acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Limiter::acquire).
    pub async fn acquire_within(&self, wait: Duration) -> Result<()> {
        self.acquire_many_within(1, wait).await
    }

    /// The same for several requests, all or none.
    ///
    /// # Errors
    /// As [`try_acquire_many`](Limiter::try_acquire_many).
    ///
    /// # Cancel safety
    /// As [`acquire`](Limiter::acquire).
    pub async fn acquire_many_within(&self, count: u32, wait: Duration) -> Result<()> {
        let (verdict, turn) = self.ask(count, wait).await?;
        let until = Duration::from_micros(verdict.wait);
        if !verdict.granted {
            let message = format!("over the limit; again in {}", spoken(until));
            let error = Error::new(ErrorKind::Limited, message).retry_in(until);
            return Err(match &*self.name {
                Ok(named) => about(error, &named.shown),
                Err(_) => error,
            });
        }
        if verdict.wait > 0 {
            // From the answer on: a shared bucket's clock cannot have been further than that.
            self.clock.sleep_until(self.clock.now().after(until)).await;
        }
        if let Some(turn) = turn {
            turn.take();
        }
        Ok(())
    }

    /// Decides and leaves the waiting to the caller: who is granted a wait has its turn then, whatever it does.
    ///
    /// # Errors
    /// As [`try_acquire_many`](Limiter::try_acquire_many), but for `Limited`.
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Limiter::try_acquire).
    pub async fn reserve(&self, count: u32, wait: Duration) -> Result<Decision> {
        let (verdict, turn) = self.ask(count, wait).await?;
        if let Some(turn) = turn {
            turn.take();
        }
        let wait = Duration::from_micros(verdict.wait);
        Ok(if verdict.granted { Decision::Granted { wait } } else { Decision::Refused { retry_after: wait } })
    }

    /// No round trip for a local limiter, one for a shared one.
    async fn ask(&self, count: u32, wait: Duration) -> Result<(Verdict, Option<Turn<'_>>)> {
        let named = self.name.as_ref().as_ref().map_err(Error::again)?;
        let rule = self.rule;
        let count = u64::from(count);
        let most = rule.room / rule.cost + u64::from(rule.leaky);
        if count == 0 || count > most {
            return Err(about(
                invalid(format!("asked for {count} requests where 1 to {most} can pass at once")),
                &named.shown,
            ));
        }
        let farthest = (MOST - rule.room - count * rule.cost) / rule.give;
        let at_most = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX).min(farthest);
        let ask = Ask { rule, count, at_most };
        let (empty, _) = rule.decide(None, 0, count, u64::MAX);
        if empty.wait > at_most {
            let least = spoken(Duration::from_micros(empty.wait));
            let message =
                format!("asked for {count} requests without a wait of at least {least}, which they always have");
            return Err(about(invalid(message), &named.shown));
        }
        match &self.home {
            Home::Local(buckets) => {
                let (verdict, left) = buckets.decide(&named.bucket, &ask, micros(self.clock.now()));
                let turn = left.filter(|_| verdict.granted && verdict.wait > 0);
                Ok((verdict, turn.map(|left| Turn { buckets, bucket: &named.bucket, ask, left: Some(left) })))
            }
            Home::Shared(core) => {
                let limiters: &Arc<dyn Limiters> =
                    core.beside.need_limiters().map_err(|error| about(error, &named.shown))?;
                let verdict = limiters.decide(&named.bucket, &ask).await;
                Ok((verdict.map_err(|error| about(error, &named.shown))?, None))
            }
        }
    }
}

/// A turn that a local waiter has taken and gives back if it goes away before.
struct Turn<'a> {
    buckets: &'a Buckets,
    bucket: &'a str,
    ask: Ask,
    left: Option<Bucket>,
}

impl Turn<'_> {
    fn take(mut self) {
        self.left = None;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(left) = self.left {
            self.buckets.take_back(self.bucket, &self.ask, left);
        }
    }
}

fn about(error: Error, shown: &str) -> Error {
    if shown.is_empty() { error } else { error.named(shown) }
}

/// A key's bucket: `|` is in no spelled name, so that no two ever meet.
fn keyed(bucket: &str, shown: &str, key: &str) -> Result<Named> {
    let limiter = bucket.split('|').next().unwrap_or(bucket);
    let spelled = if key.is_empty() { Name::from_key("", None) } else { Name::new("", key)? };
    let shown = if shown.is_empty() { key.to_string() } else { format!("{shown} ({key})") };
    Ok(Named { bucket: format!("{limiter}|{}", spelled.key()), shown })
}

/// A moment in whole microseconds.
pub(crate) fn micros(moment: Moment) -> u64 {
    moment.as_nanos() / 1000
}
