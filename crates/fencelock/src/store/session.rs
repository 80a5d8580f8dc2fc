//! Sessions, as far as the stores that have them share it: which session a ticket belongs to, and how long a session surely
//! lives. Pure: no I/O; the clock's moments are handed in.
//!
//! A ticket of a session store lives as long as its client's session, which many tickets share. So a lease is the session's
//! time to live, and there is one session per distinct lease, [at most four](MOST) per client.

use crate::clock::Moment;
use std::time::Duration;

/// A client keeps at most this many sessions.
pub const MOST: usize = 4;

/// The sessions of one client, by their time to live. A session that has ended is replaced in its slot: the slots stay.
#[derive(Debug)]
pub struct Sessions<S> {
    /// Ordered by time to live.
    slots: Vec<(Duration, S)>,
}

impl<S> Default for Sessions<S> {
    fn default() -> Self {
        Sessions { slots: Vec::with_capacity(MOST) }
    }
}

impl<S> Sessions<S> {
    /// The slot for tickets with this lease, made if there is none yet and room for it. `ttl` is the lease as the store can
    /// keep it (rounded, not below its shortest).
    ///
    /// Where there is no room, it is the slot with the longest time to live that is not above the lease; if all are above
    /// it, the shortest. So what is granted may be shorter than what was asked for, and is longer only where it must.
    pub fn slot(&mut self, ttl: Duration, make: impl FnOnce() -> S) -> (Duration, &mut S) {
        let at = match self.slots.binary_search_by_key(&ttl, |(ttl, _)| *ttl) {
            Ok(at) => at,
            Err(at) if self.slots.len() < MOST => {
                self.slots.insert(at, (ttl, make()));
                at
            }
            Err(at) => at.saturating_sub(1),
        };
        let (ttl, session) = &mut self.slots[at];
        (*ttl, session)
    }

    /// All of them, the shortest first.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, &S)> {
        self.slots.iter().map(|(ttl, session)| (*ttl, session))
    }
}

/// How long a session surely lives: from the *sending* of the latest confirmed keep-alive, or of its creation, for as long as
/// was granted then. Nothing else moves it: not the sending of anything unconfirmed, not an enter, not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    ends: Moment,
    ended: bool,
}

impl Life {
    /// A session whose creation was sent at `sent` and confirmed with this time to live.
    pub fn new(sent: Moment, granted: Duration) -> Life {
        Life { ends: sent.after(granted), ended: false }
    }

    /// A keep-alive that was sent at `sent` has been confirmed. Never shortens: answers may come out of order. A session that
    /// has ended stays so, whatever was under way then.
    pub fn confirm(&mut self, sent: Moment, granted: Duration) {
        self.ends = self.ends.max(sent.after(granted));
    }

    /// The store says that it has ended.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// How long it surely lives, from `now`; nothing where it has ended or may have.
    pub fn remaining(&self, now: Moment) -> Duration {
        if self.ended { Duration::ZERO } else { self.ends.since(now) }
    }

    /// Whether the store said that it has ended: its tickets are gone.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    fn seconds(sessions: &Sessions<u32>) -> Vec<u64> {
        sessions.iter().map(|(ttl, _)| ttl.as_secs()).collect()
    }

    #[test]
    fn one_session_per_lease_and_four_at_most() {
        let mut sessions = Sessions::default();
        let mut made = 0;
        let mut slot = |lease: u32| {
            let make = || {
                made += 1;
                made
            };
            let (ttl, session) = sessions.slot(S * lease, make);
            (ttl.as_secs(), *session)
        };
        assert_eq!([30, 10, 30, 60, 20].map(&mut slot), [(30, 1), (10, 2), (30, 1), (60, 3), (20, 4)]);
        // No room for more: the longest that is not above, else the shortest.
        assert_eq!([29, 31, 3600, 5, 10, 60].map(&mut slot), [(20, 4), (30, 1), (60, 3), (10, 2), (10, 2), (60, 3)]);
        assert_eq!(seconds(&sessions), [10, 20, 30, 60]);
    }

    #[test]
    fn a_session_lives_from_the_sending() {
        let at = |secs: u32| Moment::default().after(S * secs);
        let mut life = Life::new(at(10), S * 5);
        assert_eq!(life.remaining(at(12)), S * 3, "the answer took two of the five seconds");
        assert_eq!(life.remaining(at(15)), Duration::ZERO);
        assert_eq!(life.remaining(at(99)), Duration::ZERO);
        life.confirm(at(13), S * 5);
        assert_eq!(life.remaining(at(14)), S * 4);
        life.confirm(at(11), S * 5);
        assert_eq!(life.remaining(at(14)), S * 4, "an answer that comes late shortens nothing");
        assert!(!life.has_ended());
        life.end();
        assert_eq!((life.remaining(at(14)), life.has_ended()), (Duration::ZERO, true));
        life.confirm(at(14), S * 5);
        assert_eq!((life.remaining(at(14)), life.has_ended()), (Duration::ZERO, true), "it stays ended");
    }

    proptest! {
        #[test]
        fn what_is_given_is_never_too_long_where_it_can_be_helped(leases in prop::collection::vec(1u64..50, 1..20)) {
            let mut sessions = Sessions::default();
            for lease in leases {
                let before = seconds(&sessions);
                let (ttl, _) = sessions.slot(S * u32::try_from(lease).unwrap(), || 0);
                let ttl = ttl.as_secs();
                let after = seconds(&sessions);
                prop_assert!(after.len() <= MOST && after.is_sorted_by(|a, b| a < b));
                if before.len() < MOST || before.contains(&lease) {
                    prop_assert_eq!(ttl, lease);
                } else {
                    let fitting = before.iter().copied().filter(|other| *other <= lease).max();
                    prop_assert_eq!(ttl, fitting.unwrap_or(before[0]));
                }
            }
        }
    }
}
