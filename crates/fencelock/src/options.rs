//! How to take a lock: for how long to wait, with which lease, and what to say of it.

use crate::error::{Error, ErrorKind, Result, spoken};
use crate::hold::Terms;
use crate::store::Capability;
use std::sync::Arc;
use std::time::Duration;

/// The lease that a lock has unless something else is asked for. It is renewed every third of it.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// How to take one lock. Whatever is not set is as with the plain call: waits for ever, in the queue, with a lease of 30 s
/// that is renewed for as long as the guard lives.
///
/// ```
/// # use fencelock::Options;
/// # use std::time::Duration;
/// let options = Options::new().wait(Duration::from_secs(5)).lease(Duration::from_secs(10)).reason("deploy 88");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    pub(crate) wait: Option<Duration>,
    lease: Option<Duration>,
    fixed: bool,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    pub(crate) unfair: bool,
    pub(crate) reason: Option<Arc<str>>,
}

impl Options {
    /// Nothing special.
    pub fn new() -> Options {
        Options::default()
    }

    /// Waits at most this long. Zero: not at all.
    pub fn wait(mut self, wait: Duration) -> Options {
        self.wait = Some(wait);
        self
    }

    /// The lease: how long others wait at most if this process dies. Renewed every third of it.
    pub fn lease(mut self, lease: Duration) -> Options {
        self.lease = Some(lease);
        self.fixed = false;
        self
    }

    /// A lease that is never renewed and starts at the grant: the lock is given up when it ends, whatever the guard does.
    pub fn fixed_lease(mut self, lease: Duration) -> Options {
        self.lease = Some(lease);
        self.fixed = true;
        self
    }

    /// Renews no longer than this: the lock is given up then, whatever the guard does.
    pub fn max_hold(mut self, most: Duration) -> Options {
        self.max_hold = Some(most);
        self
    }

    /// Holds the release back until this long after the grant, so that a job of 100 ms does not run on three hosts in turn.
    /// It binds while this process lives.
    pub fn min_hold(mut self, least: Duration) -> Options {
        self.min_hold = Some(least);
        self
    }

    /// Waits beside the queue instead of in it: nobody is overtaken, but whoever comes first after a release gets in. Cheaper
    /// under heavy contention, and without any promise of ever getting in.
    pub fn unfair(mut self) -> Options {
        self.unfair = true;
        self
    }

    /// Why: shown to whoever finds it taken.
    pub fn reason(mut self, reason: impl AsRef<str>) -> Options {
        self.reason = Some(reason.as_ref().into());
        self
    }

    /// Checks everything against what the store can keep.
    pub(crate) fn terms(&self, capability: &Capability, default_lease: Duration) -> Result<Terms> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        let lease = self.lease.unwrap_or(default_lease);
        check_lease(lease, capability)?;
        let (min_hold, max_hold) = (self.min_hold.unwrap_or_default(), self.max_hold);
        if max_hold.is_some_and(|max| max.is_zero()) {
            return invalid("max_hold must not be zero".into());
        }
        if let Some(max) = max_hold.filter(|max| *max < min_hold) {
            return invalid(format!("min_hold ({}) is longer than max_hold ({})", spoken(min_hold), spoken(max)));
        }
        if self.fixed && min_hold > lease {
            return invalid(format!(
                "min_hold ({}) is longer than the fixed lease ({})",
                spoken(min_hold),
                spoken(lease)
            ));
        }
        Ok(Terms { lease, fixed: self.fixed, max_hold, min_hold })
    }
}

pub(crate) fn check_lease(lease: Duration, capability: &Capability) -> Result<()> {
    let (shortest, longest) = (capability.shortest_lease, capability.longest_lease);
    if lease < shortest || lease > longest {
        let message = format!(
            "a lease of {} is not possible: this store keeps leases of {} to {}",
            spoken(lease),
            spoken(shortest),
            spoken(longest)
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}
