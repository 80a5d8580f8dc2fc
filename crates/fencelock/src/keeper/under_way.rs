//! What is under way: calls that an enter of the same name waits for, and releases that their callers send themselves.

use super::book::Leave;
use super::{BATCH, Keeper, PATIENCE, all_of, backoff};
use crate::error::{Effect, ErrorKind, Result};
use crate::store::{Place, Presence};
use std::sync::Arc;
use std::time::Duration;

/// Counts something that is under way out, when it ends or is dropped.
pub(super) struct Flight {
    pub(super) keeper: Arc<Keeper>,
    pub(super) names: Vec<Arc<str>>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.keeper.landed_one(&self.names);
    }
}

/// Leaves that a caller sends itself, in one call. If that is given up half-way, or fails, the keeper takes them over.
pub(crate) struct OwnLeaves {
    pub(super) keeper: Arc<Keeper>,
    pub(super) leaves: Vec<Leave>,
    pub(super) _flight: Option<Flight>,
}

impl OwnLeaves {
    /// Whether the same call can take these too.
    pub(crate) fn takes(&self, other: &OwnLeaves) -> bool {
        Arc::ptr_eq(&self.keeper, &other.keeper) && self.leaves.len() + other.leaves.len() <= BATCH
    }

    /// Takes over what another one was to send.
    pub(crate) fn add(&mut self, mut other: OwnLeaves) {
        self.leaves.append(&mut other.leaves);
    }

    /// One round trip, and no more.
    pub(crate) async fn send_once(&mut self) -> Result<Vec<Presence>> {
        let places: Vec<Place> = self.leaves.iter().map(|leave| leave.place.clone()).collect();
        let answers = self.keeper.ask("a release", PATIENCE, || self.keeper.store.leave(&places)).await?;
        all_of(&answers, places.len())?;
        self.leaves.drain(..).for_each(|leave| self.keeper.left(leave));
        Ok(answers)
    }

    /// One round trip; more only if a reply is lost: whoever finds one gone then has most likely left it himself. `There` if
    /// all were there.
    pub(crate) async fn send(mut self) -> Result<Presence> {
        let clock = self.keeper.clock.clone();
        let lease = self.leaves.first().map_or(Duration::ZERO, |leave| leave.lease);
        let give_up = clock.now().after((lease / 2).min(Duration::from_secs(2)));
        let mut lost_reply = false;
        for tries in 1.. {
            match self.send_once().await {
                Ok(found) if lost_reply || found.iter().all(|one| *one == Presence::There) => {
                    return Ok(Presence::There);
                }
                Ok(_) => return Ok(Presence::Gone),
                Err(error) => {
                    lost_reply |= error.effect() == Effect::Unknown;
                    let again = clock.now().after(backoff(tries));
                    if error.kind() != ErrorKind::Unavailable || again >= give_up {
                        return Err(error);
                    }
                    clock.sleep_until(again).await;
                }
            }
        }
        unreachable!("the loop above ends by itself")
    }
}

impl Drop for OwnLeaves {
    fn drop(&mut self) {
        self.leaves.drain(..).for_each(|leave| self.keeper.leave(leave));
    }
}
