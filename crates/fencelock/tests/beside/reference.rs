//! The buckets once more, written in another way than in the library: the token bucket by its theoretical arrival time, in fractions; the leaky
//! one as nginx's source does it, one request at a time.

use std::time::Duration;

/// What a bucket is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) leaky: bool,
    pub(crate) count: u32,
    pub(crate) per: Duration,
    pub(crate) burst: u32,
    /// Of a leaky bucket: how many are not delayed.
    pub(crate) undelayed: u32,
}

/// Granted with a wait in microseconds, or not.
pub(crate) type Answer = Option<u64>;

#[derive(Clone, Debug)]
pub(crate) struct Reference {
    shape: Shape,
    /// Token: when the bucket will be full again, in microseconds times `count`.
    full_at: i128,
    /// Leaky: nginx's node, excess in thousandths and the last time in milliseconds.
    node: Option<(i64, i64)>,
}

impl Reference {
    pub(crate) fn new(shape: Shape) -> Reference {
        Reference { shape, full_at: 0, node: None }
    }

    /// `requests` come together at `now` (microseconds) and would wait `at_most`.
    pub(crate) fn ask(&mut self, now: u64, requests: u32, at_most: u64) -> Answer {
        if self.shape.leaky { self.ask_nginx(now, requests, at_most) } else { self.ask_tokens(now, requests, at_most) }
    }

    fn ask_tokens(&mut self, now: u64, requests: u32, at_most: u64) -> Answer {
        let scale = i128::from(self.shape.count);
        let per = i128::try_from(self.shape.per.as_micros()).unwrap();
        let now = i128::from(now) * scale;
        let full_at = self.full_at.max(now) + i128::from(requests) * per;
        let early = full_at - i128::from(self.shape.burst) * per - now;
        // Rounded up to whole microseconds.
        let wait = if early <= 0 { 0 } else { (early + scale - 1) / scale };
        let wait = u64::try_from(wait).unwrap();
        if wait > at_most {
            return None;
        }
        self.full_at = full_at;
        Some(wait)
    }

    fn ask_nginx(&mut self, now: u64, requests: u32, at_most: u64) -> Answer {
        let now = i64::try_from(now / 1000).unwrap();
        let rate = i64::from(self.shape.count) * 1_000_000_000 / i64::try_from(self.shape.per.as_micros()).unwrap();
        let (burst, undelayed) = (i64::from(self.shape.burst) * 1000, i64::from(self.shape.undelayed) * 1000);
        let mut node = self.node;
        let mut delay = 0;
        for _ in 0..requests {
            let (excess, last) = match node {
                None => (0, now),
                Some((excess, last)) => {
                    let ms = (now - last).max(0);
                    let excess = (excess - rate * ms / 1000 + 1000).max(0);
                    (excess, if ms > 0 { now } else { last })
                }
            };
            if excess > burst {
                return None;
            }
            delay = if excess <= undelayed { 0 } else { (excess - undelayed) * 1000 / rate };
            node = Some((excess, last));
        }
        let delay = u64::try_from(delay).unwrap() * 1000;
        if delay > at_most {
            return None;
        }
        self.node = node;
        Some(delay)
    }
}
