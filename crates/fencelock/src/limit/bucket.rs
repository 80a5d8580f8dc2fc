//! The arithmetic of the buckets: pure, in whole numbers, in this one place. The local limiters, the memory store and the SQLite store
//! call it; the Redis store's script repeats it line by line, and both are held to the same simulation by tests.
//!
//! A bucket is a **level** that rises by `cost` with each request and falls as time passes. Moments and waits are microseconds
//! of whatever clock the bucket lives on.
//!
//! - **Token bucket** of `n` requests in `p` microseconds (in lowest terms): a request costs `p`, a microsecond gives `n`, so that
//!   nothing is ever rounded. Room is `burst * p`. A level above the room is a debt that waiters have taken on: the wait is
//!   the time until it is paid off.
//! - **Leaky bucket**, as nginx counts it: a request costs 1000, the bucket leaks `rate * ms / 1000` (rounded down, `rate` in
//!   thousandths of a request per second) in whole milliseconds, the very first request costs nothing. Above `burst * 1000` it is
//!   refused; above `free` it is delayed.
//!
//! No number here exceeds 2^53, since Redis computes with doubles.

/// The largest level, and the largest product that is made on the way.
pub(crate) const MOST: u64 = 1 << 52;
/// A clock that is set back by more than this is believed; by less, the bucket waits until it has come back.
pub(crate) const SET_BACK: u64 = 60_000_000;

/// What a bucket does, in the numbers of the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Whether it is nginx's leaky bucket; else a token bucket.
    pub leaky: bool,
    /// What a request costs.
    pub cost: u64,
    /// What a microsecond gives back; of a leaky bucket: thousandths of a request per second.
    pub give: u64,
    /// How high the level may be for a request to be let through.
    pub room: u64,
    /// How high it may be for a request to go without delay (leaky only).
    pub free: u64,
}

/// What is kept of a bucket between two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// How full it was.
    pub level: u64,
    /// What a request cost then: another rule may have been in force.
    pub cost: u64,
    /// At which microsecond.
    pub at: u64,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it was let through.
    pub granted: bool,
    /// Granted: how many microseconds to wait first. Refused: in how many a request that does not wait would pass if nobody
    /// else came.
    pub wait: u64,
}

impl Rule {
    /// Decides about `count` requests that come together at `now` and would wait `at_most` microseconds. The bucket changes only
    /// if they are let through.
    #[must_use]
    pub fn decide(&self, bucket: Option<Bucket>, now: u64, count: u64, at_most: u64) -> (Verdict, Option<Bucket>) {
        let now = if self.leaky { now - now % 1000 } else { now };
        let seen = bucket.map(|bucket| self.adopt(bucket, now));
        let (level, at) = seen.map_or((0, now), |bucket| (bucket.level, bucket.at));
        let passed = now.saturating_sub(at);
        let after = if !self.leaky {
            let given = if passed >= level.div_ceil(self.give) { level } else { passed * self.give };
            level - given + count * self.cost
        } else if seen.is_none() {
            (count - 1) * self.cost
        } else {
            let least = self.millis(level + self.cost);
            let leaked = if passed / 1000 >= least { level + self.cost } else { self.give * (passed / 1000) / 1000 };
            (level + self.cost).saturating_sub(leaked) + (count - 1) * self.cost
        };
        let (wait, granted) = if self.leaky {
            let delay = after.saturating_sub(self.free) * 1000 / self.give * 1000;
            (delay, after <= self.room && delay <= at_most)
        } else {
            let wait = after.saturating_sub(self.room).div_ceil(self.give);
            (wait, wait <= at_most)
        };
        if granted {
            let at = if self.leaky && passed == 0 { at } else { now.max(at) };
            return (Verdict { granted, wait }, Some(Bucket { level: after, cost: self.cost, at }));
        }
        let again = if self.leaky { self.again(level, at, now, count) } else { wait + at.saturating_sub(now) };
        (Verdict { granted, wait: again }, bucket)
    }

    /// When a bucket is as good as none: in how many microseconds from its moment.
    #[must_use]
    pub fn fresh_after(&self, bucket: &Bucket) -> u64 {
        if self.leaky { self.millis(bucket.level + self.cost) * 1000 } else { bucket.level.div_ceil(self.give) }
    }

    /// What is left of a bucket once requests that were let through, and for which it is exactly as they left it, are taken back.
    #[must_use]
    pub fn take_back(&self, bucket: Bucket, count: u64) -> Bucket {
        Bucket { level: bucket.level.saturating_sub(count * self.cost), ..bucket }
    }

    /// The bucket in the numbers of this rule, and not in a future that will not come.
    fn adopt(&self, bucket: Bucket, now: u64) -> Bucket {
        let level = if bucket.cost == self.cost {
            bucket.level
        } else {
            // Another rule was in force: as many requests as before, rounded up.
            let level = (u128::from(bucket.level) * u128::from(self.cost)).div_ceil(u128::from(bucket.cost.max(1)));
            u64::try_from(level).unwrap_or(MOST).min(if self.leaky { self.room } else { MOST })
        };
        Bucket { level, cost: self.cost, at: if bucket.at > now + SET_BACK { now } else { bucket.at } }
    }

    /// How many milliseconds it takes a leaky bucket to lose `level`.
    fn millis(&self, level: u64) -> u64 {
        (level * 1000).div_ceil(self.give)
    }

    /// When a leaky bucket would let `count` requests through without delay, or with no more than they always have: in how many
    /// microseconds.
    fn again(&self, level: u64, at: u64, now: u64, count: u64) -> u64 {
        let over = (level + count * self.cost).saturating_sub(self.room.min(self.free).max((count - 1) * self.cost));
        (at + self.millis(over) * 1000).saturating_sub(now)
    }
}
