//! A lock that is given back and waited for in one client stays with its connection: the next ticket only needs a number of its own.
//! Those of all who wait are fetched at once, in one call, while the lock is ours: so they are above all that were given before, and
//! below those of whoever gets it from the server later. Others are let in between: see [`Turn`].

use super::actor::Actor;
use super::driver::{Driver, Left, is_shared};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Place;
use std::time::Duration;

/// So often it is asked whether another client is seen to wait; if so, it is given back,
const ASKED: Duration = Duration::from_millis(15);
/// and not tried for again for so long, in which each of the others tries more than once.
const WANTED: Duration = Duration::from_millis(20);
/// After so long it is given back in any case: who only tries is not seen to wait.
const LONGEST: Duration = Duration::from_millis(100);
/// And not tried for again for so long.
const PERHAPS: Duration = Duration::from_millis(5);

/// For so long after the server has last been asked, a lock is passed on without asking it: the connection may have ended in the
/// meantime, as it may under anybody who has a lock for that long.
pub(super) const FRESH: Duration = Duration::from_millis(10);
/// As many numbers are fetched at once for one lock.
const AHEAD: usize = 32;

/// How long a lock has been with this client, through several of its tickets.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    since: Moment,
    asked: Moment,
    /// Numbers for those who have it next, the lowest last,
    numbers: Vec<u64>,
    /// and when they were fetched.
    fetched: Moment,
}

impl Turn {
    pub(super) fn begun(now: Moment) -> Turn {
        Turn { since: now, asked: now, numbers: Vec::new(), fetched: now }
    }
}

/// Whose turn it is next, and what is passed on.
pub(super) struct Next {
    place: Place,
    turn: Turn,
    /// How many wait for it here.
    waiting: usize,
}

impl<D: Driver> Actor<D> {
    /// Of the tickets that leave, those whose lock is passed on within this client: they leave without it. Where it is not, nobody of ours
    /// tries for it at once, so that others can.
    pub(super) async fn turns(&mut self, left: &mut [Left<'_>]) -> Result<Vec<Next>> {
        let mut next = Vec::new();
        for i in 0..left.len() {
            let place = left[i].place;
            let Some(line) = self.lines.get_mut(place.name.key()).filter(|_| left[i].inside && !left[i].shared) else {
                continue;
            };
            let goes = |id| left.iter().any(|left| left.place.id == id);
            let mut waits = line.iter().filter(|ticket| ticket.number.is_none() && !goes(ticket.enter.place.id));
            let Some(first) = waits.next().filter(|ticket| !is_shared(&ticket.enter)) else { continue };
            let (first, waiting) = (first.enter.place.clone(), 1 + waits.count());
            let now = self.clock.now();
            let Some(had) = line.iter_mut().find(|ticket| ticket.enter.place.id == place.id) else { continue };
            let mut turn = std::mem::replace(&mut had.turn, Turn::begun(now));
            let mut rest = (now.since(turn.since) >= LONGEST).then_some(PERHAPS);
            if now.since(turn.asked) >= ASKED {
                turn.asked = now;
                let wanted = self.driver.is_wanted(&place.name).await.map_err(|error| self.failed(error))?;
                rest = if wanted { Some(WANTED) } else { rest };
            }
            if let Some(rest) = rest {
                self.resting.insert(place.name.key().to_string(), now.after(rest));
                self.stirred = now;
            } else {
                left[i].inside = false;
                next.push(Next { place: first, turn, waiting });
            }
        }
        Ok(next)
    }

    /// Lets those in whose turn it is. One round trip for all of them, or none.
    pub(super) async fn pass_on(&mut self, mut next: Vec<Next>) -> Result<()> {
        let now = self.clock.now();
        let known = self.is_told() && self.driver.is_behind();
        for Next { turn, .. } in &mut next {
            if !known || now.since(turn.fetched) >= FRESH {
                turn.numbers.clear();
            }
        }
        let wants = |next: &Next| if next.turn.numbers.is_empty() { next.waiting.min(AHEAD) } else { 0 };
        let count = next.iter().map(wants).sum();
        if count > 0 {
            let ttl = self.ttl(Duration::ZERO);
            let numbers = self.driver.pass_on(ttl, count).await.and_then(|numbers| {
                let all = numbers.len() == count && numbers.is_sorted_by(|one, next| one < next);
                all.then_some(numbers).ok_or_else(|| Error::new(ErrorKind::Broken, "the database gave no such numbers"))
            });
            let mut numbers = match numbers {
                Ok(numbers) => numbers.into_iter(),
                Err(error) => {
                    // The connection has locks that are nobody's by now.
                    self.driver.close();
                    return Err(self.failed(error));
                }
            };
            for one in &mut next {
                let own = wants(one);
                if own > 0 {
                    one.turn.numbers.extend(numbers.by_ref().take(own));
                    one.turn.numbers.reverse();
                    one.turn.fetched = now;
                }
            }
        }
        for Next { place, mut turn, .. } in next {
            if let Some(number) = turn.numbers.pop() {
                self.admit(&place, number, turn);
            }
        }
        Ok(())
    }
}
