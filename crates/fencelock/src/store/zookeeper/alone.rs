//! Lines that nobody else uses, and how that is known without reading them.
//!
//! The servers number the children of a node one by one, whoever makes them. So where one of ours was alone in a line and has left,
//! and the next node that we make has the very next number, nobody else has come in between: the new one is alone as well. That
//! holds as long as the line's own node is the same one, since a node that was removed and made again counts anew. Therefore it is
//! watched: what the servers tell of it comes before the answer to whatever was done after it.
//!
//! A watch costs a packet, and a line that turns out not to be empty has to be read after all, which is another round trip.
//! So a line is relied on only from the third time on that nobody else came.

use crate::clock::Moment;
use crate::name::Name;
use crate::store::BoxFuture;
use futures_util::FutureExt;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many lines are known at most.
const MOST: usize = 1000;
/// One that was not used for this long makes room for others.
const IDLE: Duration = Duration::from_secs(10);

/// Ready when the line's own node may have been removed.
type Watch = BoxFuture<'static, ()>;

/// The lines in which one of ours was alone, each for one session.
#[derive(Default)]
pub(super) struct Alone {
    lines: Mutex<HashMap<Arc<str>, Known>>,
}

struct Known {
    session: i64,
    /// The number of our node.
    order: u64,
    /// It has left.
    left: bool,
    /// Nobody came between the one before and it.
    again: bool,
    watch: Option<Watch>,
    used: Moment,
}

/// A line that is empty unless somebody came; for one newcomer.
pub(super) struct Claim {
    next: u64,
    watch: Option<Watch>,
}

impl Claim {
    /// Whether it will tell all: the line need not be read.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// The newcomer has got this number: whether nobody else came before it, as far as can be told. What cannot be told has to be
    /// read.
    pub(super) fn holds(&mut self, order: u64) -> bool {
        if self.watch.as_mut().is_some_and(|watch| watch.now_or_never().is_some()) {
            self.watch = None;
        }
        if self.next != order {
            self.watch = None;
        }
        self.watch.is_some()
    }
}

impl Alone {
    fn lines(&self) -> MutexGuard<'_, HashMap<Arc<str>, Known>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A newcomer of this session is about to be sent. Nobody else is given the same.
    pub(super) fn claim(&self, name: &Name, session: i64) -> Option<Claim> {
        let known = self.lines().remove(name.key())?;
        (known.left && known.session == session).then_some(Claim { next: known.order + 1, watch: known.watch })
    }

    /// The newcomer with this number is alone in its line.
    pub(super) fn is_alone(&self, name: &Name, session: i64, order: u64, claim: Option<Claim>, now: Moment) {
        let claim = claim.filter(|claim| claim.next == order);
        let again = claim.is_some();
        let known = Known { session, order, left: false, again, watch: claim.and_then(|claim| claim.watch), used: now };
        let mut lines = self.lines();
        if lines.len() >= MOST {
            lines.retain(|_, known| known.used.after(IDLE) > now);
        }
        if lines.len() < MOST {
            lines.insert(name.shared_key(), known);
        }
    }

    /// Whether the line's own node should be watched from now on. It is asked for before this one leaves: it is in the very node
    /// that is then watched.
    pub(super) fn wants_watch(&self, name: &Name, session: i64, order: u64) -> bool {
        let lines = self.lines();
        let known = lines.get(name.key()).filter(|known| known.session == session && known.order == order);
        known.is_some_and(|known| known.again && known.watch.is_none())
    }

    /// The one with this number has left, for sure.
    pub(super) fn left(&self, name: &Name, session: i64, order: u64, watch: Option<Watch>) {
        let mut lines = self.lines();
        if let Some(known) = lines.get_mut(name.key())
            && known.session == session
            && known.order == order
        {
            known.left = true;
            known.watch = known.watch.take().or(watch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn name(key: &str) -> Name {
        Name::new("", key).unwrap()
    }

    fn watch() -> (oneshot::Sender<()>, Option<Watch>) {
        let (told, watch) = oneshot::channel();
        (told, Some(Box::pin(async move { drop(watch.await) })))
    }

    /// Alone twice, and gone: from now on it is watched.
    fn watched(alone: &Alone) -> oneshot::Sender<()> {
        let (name, now) = (name("a"), Moment::default());
        let (told, watch) = watch();
        alone.is_alone(&name, 7, 4, None, now);
        assert!(!alone.wants_watch(&name, 7, 4), "a name that is used once costs nothing");
        alone.left(&name, 7, 4, None);
        let claim = alone.claim(&name, 7);
        assert!(!claim.as_ref().unwrap().is_watched());
        alone.is_alone(&name, 7, 5, claim, now);
        assert!(alone.wants_watch(&name, 7, 5));
        alone.left(&name, 7, 5, watch);
        told
    }

    #[test]
    fn whoever_gets_the_next_number_is_alone() {
        let alone = Alone::default();
        let _told = watched(&alone);
        for order in 6..10 {
            let mut claim = alone.claim(&name("a"), 7).unwrap();
            assert!(alone.claim(&name("a"), 7).is_none(), "it is given to one");
            assert!(claim.is_watched() && claim.holds(order));
            alone.is_alone(&name("a"), 7, order, Some(claim), Moment::default());
            assert!(!alone.wants_watch(&name("a"), 7, order), "one watch is enough");
            alone.left(&name("a"), 7, order, None);
        }
    }

    #[test]
    fn nobody_is_who_was_overtaken() {
        let alone = Alone::default();
        let _told = watched(&alone);
        let mut claim = alone.claim(&name("a"), 7).unwrap();
        assert!(!claim.holds(7));
        alone.is_alone(&name("a"), 7, 7, Some(claim), Moment::default());
        assert!(!alone.wants_watch(&name("a"), 7, 7), "it begins anew");
    }

    #[test]
    fn nothing_is_known_of_a_node_that_was_made_again() {
        let alone = Alone::default();
        watched(&alone).send(()).unwrap();
        let mut claim = alone.claim(&name("a"), 7).unwrap();
        assert!(!claim.holds(6));
        assert!(!claim.holds(6), "nor if it is asked once more");
    }

    #[test]
    fn nothing_is_known_before_the_last_one_left_nor_by_another_session() {
        let alone = Alone::default();
        alone.is_alone(&name("a"), 7, 4, None, Moment::default());
        assert!(alone.claim(&name("a"), 7).is_none());
        alone.is_alone(&name("a"), 7, 4, None, Moment::default());
        alone.left(&name("a"), 7, 3, None);
        assert!(alone.claim(&name("a"), 7).is_none(), "another one has left");
        let _told = watched(&alone);
        assert!(alone.claim(&name("a"), 8).is_none());
    }

    #[test]
    fn only_so_many_are_known() {
        let alone = Alone::default();
        let later = Moment::default().after(IDLE);
        for i in 0..MOST + 10 {
            alone.is_alone(&name(&i.to_string()), 7, 4, None, Moment::default());
        }
        assert_eq!(alone.lines().len(), MOST);
        alone.is_alone(&name("a"), 7, 4, None, later);
        assert_eq!(alone.lines().len(), 1, "those of long ago make room");
    }
}
