//! A lock that is given back and waited for in one client stays with its connection: the next ticket only needs a number of its own,
//! which is one call for a whole cycle. Others are let in between: see [`Turn`].

use super::actor::Actor;
use super::driver::{Driver, Left, is_shared};
use crate::clock::Moment;
use crate::error::Result;
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

/// How long a lock has been with this client, through several of its tickets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    since: Moment,
    asked: Moment,
}

impl Turn {
    pub(super) fn begun(now: Moment) -> Turn {
        Turn { since: now, asked: now }
    }
}

/// Whose turn it is next, and what is passed on.
pub(super) type Next = Vec<(Place, Turn)>;

impl<D: Driver> Actor<D> {
    /// Of the tickets that leave, those whose lock is passed on within this client: they leave without it. Where it is not, nobody of ours
    /// tries for it at once, so that others can.
    pub(super) async fn turns(&mut self, left: &mut [Left<'_>]) -> Result<Next> {
        let mut next = Next::new();
        for i in 0..left.len() {
            let place = left[i].place;
            let Some(line) = self.lines.get(place.name.key()).filter(|_| left[i].inside && !left[i].shared) else {
                continue;
            };
            let stays = |id| !left.iter().any(|left| left.place.id == id);
            let mut turn = line.iter().find(|ticket| ticket.enter.place.id == place.id).map(|ticket| ticket.turn);
            let waits = line.iter().find(|ticket| ticket.number.is_none() && stays(ticket.enter.place.id));
            let waits = waits.filter(|ticket| !is_shared(&ticket.enter)).map(|ticket| ticket.enter.place.clone());
            let (Some(waits), Some(turn)) = (waits, &mut turn) else { continue };
            let now = self.clock.now();
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
                next.push((waits, *turn));
            }
        }
        Ok(next)
    }

    /// Lets those in whose turn it is. One round trip for all of them.
    pub(super) async fn pass_on(&mut self, next: Next) -> Result<()> {
        if next.is_empty() {
            return Ok(());
        }
        let ttl = self.ttl(Duration::ZERO);
        let numbers = self.driver.pass_on(ttl, next.len()).await.map_err(|error| {
            // The connection has locks that are nobody's by now.
            self.driver.close();
            self.failed(error)
        })?;
        for ((place, turn), number) in next.into_iter().zip(numbers) {
            self.admit(&place, number, turn);
        }
        Ok(())
    }
}
