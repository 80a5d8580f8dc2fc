//! The guard of several locks: held as long as all of them are.

use super::Wish;
use crate::error::{Error, Result};
use crate::guard::{Grip, Released};
use crate::hold::State;
use crate::store::Presence;
use crate::token::Token;
use futures_util::future::{join_all, select_all};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// Several locks, all held. Lost as soon as one of them is. Dropping it releases all of them in the background.
#[must_use = "dropping a guard releases the locks"]
pub struct MultiGuard(pub(crate) Grips);

/// In the order in which the caller named them.
pub(crate) struct Grips(Vec<Grip>);

impl Grips {
    /// Whether a release now would be held back by `min_hold`.
    pub(crate) fn is_held_back(&self) -> bool {
        self.0.iter().any(Grip::is_held_back)
    }
}

impl MultiGuard {
    /// `grips` are in the order of `wishes`.
    pub(super) fn new(grips: Vec<Grip>, wishes: &[Wish]) -> MultiGuard {
        let mut given: Vec<(usize, Grip)> = wishes.iter().map(|wish| wish.given).zip(grips).collect();
        given.sort_by_key(|(given, _)| *given);
        MultiGuard(Grips(given.into_iter().map(|(_, grip)| grip).collect()))
    }

    fn grips(&self) -> &[Grip] {
        &self.0.0
    }

    /// The names, with their namespaces, in the order in which they were given.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.grips().iter().map(|grip| grip.hold().name.shown()).collect()
    }

    /// The fencing tokens, in the order in which the names were given. Permits have none.
    #[must_use]
    pub fn tokens(&self) -> Vec<Token> {
        self.grips().iter().filter_map(Grip::fence).collect()
    }

    /// The fencing token of one of the names, as it was given (without the namespace); `None` for a name that is not among
    /// them, and for permits. If the name is there on several stores, the one that was given first.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<Token> {
        self.grips().iter().find(|grip| grip.is_called(name)).and_then(Grip::fence)
    }

    /// The tickets' numbers, in the order in which the names were given: those of the tokens, and of permits as `inspect`
    /// shows them.
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        self.grips().iter().map(|grip| grip.hold().number()).collect()
    }

    /// How sure we can be of all of them: as of the one that stands worst.
    #[must_use]
    pub fn state(&self) -> State {
        let worst = |a, b| match (a, b) {
            (State::Lost, _) | (_, State::Lost) => State::Lost,
            (State::Jeopardy, _) | (_, State::Jeopardy) => State::Jeopardy,
            _ => State::Safe,
        };
        self.grips().iter().map(|grip| grip.hold().state()).fold(State::Safe, worst)
    }

    /// How long until the first local deadline.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.grips().iter().map(|grip| grip.hold().remaining()).min().unwrap_or_default()
    }

    /// Resolves when one of them is lost, for whatever reason.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        select_all(self.grips().iter().map(|grip| grip.hold().lost())).await;
    }

    /// Runs `work` for as long as all of them are held: its output, or a `Lost` error as soon as one is lost. The work is
    /// never polled past the first deadline.
    ///
    /// # Errors
    /// `Lost`, with the name.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and keeps the guard.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        let mut work = pin!(work);
        let mut lost = select_all(self.grips().iter().map(|grip| grip.hold().lost()));
        poll_fn(|cx| {
            // First the clock, then the work.
            if let Poll::Ready(((), at, _)) = Pin::new(&mut lost).poll(cx) {
                return Poll::Ready(Err(self.grips()[at].hold().lost_error()));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Releases all of them, and says whether all were still held until then. One call for each store.
    ///
    /// # Errors
    /// Whatever keeps a store from answering; the release is then tried again in the background, and the others are released
    /// all the same.
    ///
    /// # Cancel safety
    /// Dropping the future releases in the background.
    pub async fn release(self) -> Result<Released> {
        let (mut calls, mut later, mut gone) = (Vec::new(), Vec::new(), false);
        for grip in self.0.0 {
            gone |= grip.end(&mut calls, &mut later) == Released::AlreadyGone;
        }
        let mut failed: Option<Error> = None;
        let sent = join_all(calls.into_iter().map(|leaves| leaves.send())).await;
        // With `min_hold` they are left later, by the library thread.
        let left = join_all(later)
            .await
            .into_iter()
            .map(|answer| answer.map_err(|_| Error::unknown("the release could not be confirmed")));
        for answer in sent.into_iter().chain(left) {
            match answer {
                Ok(presence) => gone |= presence == Presence::Gone,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None if gone => Ok(Released::AlreadyGone),
            None => Ok(Released::Held),
        }
    }
}

impl std::fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MultiGuard")?;
        f.debug_list().entries(self.grips().iter().map(Grip::hold)).finish()
    }
}
