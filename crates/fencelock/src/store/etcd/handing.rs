//! Handing a lock over: a leave looks for the next one that waits here, and takes an enter along that is about to be sent. The next
//! one that waits in another client is written anew, as it is: that client is told by its watch that the leave has seen it,
//! and need not ask.

use super::fault::Fault;
use super::hub::{Entry, Hub};
use super::rpc::{TxnRequest, TxnResponse};
use crate::error::Error;
use crate::name::Name;
use prost::bytes::Bytes;
use std::sync::Arc;
use tokio::sync::oneshot;

/// How often an enter that may travel with a leave lets others have their turn first.
const TURNS: usize = 8;

/// An enter that has to wait anyhow, and may travel with a leave of the same line.
pub(super) struct Parked {
    key: Bytes,
    pub(super) question: TxnRequest,
    pub(super) answer: oneshot::Sender<Result<TxnResponse, Fault>>,
}

/// The enter's own end of it.
pub(super) struct Parking {
    entry: Arc<Entry>,
    key: Bytes,
    told: oneshot::Receiver<Result<TxnResponse, Fault>>,
}

impl Parking {
    /// The answer, if a leave that comes at once has taken it along; else the question, to be sent alone. Those who were let in a
    /// moment ago have their turn meanwhile, and no more: nothing is waited for.
    pub(super) async fn answer(mut self) -> Result<Result<TxnResponse, Fault>, TxnRequest> {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
            if !self.entry.lock().parked.iter().any(|parked| parked.key == self.key) {
                break;
            }
        }
        match self.take_back() {
            Some(parked) => Err(parked.question),
            None => Ok((&mut self.told).await.unwrap_or_else(|_| Err(Error::unknown("the call was given up").into()))),
        }
    }

    fn take_back(&self) -> Option<Parked> {
        let mut state = self.entry.lock();
        let at = state.parked.iter().position(|parked| parked.key == self.key)?;
        state.parked.remove(at)
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        // Nobody sends what nobody waits for.
        drop(self.take_back());
    }
}

/// A leave that also looks for those who come in by it and wait here.
pub(super) struct HandOver {
    entry: Arc<Entry>,
    leaving: i64,
    pub(super) next: Vec<(Bytes, i64)>,
    /// Those who come in by it and wait elsewhere.
    pub(super) elsewhere: Vec<(Bytes, i64)>,
    /// An enter that it takes along. Only one: tickets of one revision would have the same number.
    pub(super) parked: Option<Parked>,
    /// It took the one out, and saw these, or did not.
    pub(super) seen: Option<Vec<bool>>,
}

impl Drop for HandOver {
    fn drop(&mut self) {
        let left = self.seen.is_some().then_some(self.leaving);
        let mut seen = self.seen.take().unwrap_or_default().into_iter();
        let mut state = self.entry.lock();
        state.line.handed(left, self.next.iter().map(|(_, number)| (*number, seen.next().unwrap_or(false))));
        state.ahead_since = state.ahead_since.filter(|_| state.line.is_ahead());
    }
}

impl Hub {
    /// Where a line is followed: who comes in when this ticket leaves. Those who wait here rely on the leave to look for them.
    pub(super) fn hand_over(&self, name: &Name, leaving: i64) -> Option<HandOver> {
        let entry = self.line(name)?;
        let mut state = entry.lock();
        let (elsewhere, next) = (state.line.next_elsewhere(leaving), state.line.next_after(leaving));
        if next.is_empty() && elsewhere.is_empty() {
            return None;
        }
        let parked = state.parked.pop_front();
        drop(state);
        Some(HandOver { entry, leaving, next, elsewhere, parked, seen: None })
    }

    /// Where somebody of this line was let in a moment ago: its leave may take this enter along. Otherwise it is given back.
    pub(super) fn park(&self, name: &Name, key: &Bytes, question: TxnRequest) -> Result<Parking, TxnRequest> {
        let Some(entry) = self.line(name) else { return Err(question) };
        let mut state = entry.lock();
        if !state.line.hands_on() {
            return Err(question);
        }
        let (answer, told) = oneshot::channel();
        state.parked.push_back(Parked { key: key.clone(), question, answer });
        drop(state);
        Ok(Parking { entry, key: key.clone(), told })
    }
}
