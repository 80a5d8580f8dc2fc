//! Getting out of a line: alone, many at once, or with a hand-over to whoever waits here.

use super::rpc::{RangeResponse, ResponseOp, TxnRequest, response_op};
use super::{AT_ONCE, Ours, Shared, hub, mine, txn};
use crate::error::{Effect, Result};
use crate::store::{Place, Presence};
use futures_util::future::{join_all, select};
use prost::bytes::Bytes;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long a leave waits for an enter that was given up.
const LANDED_WITHIN: Duration = Duration::from_millis(800);

impl Shared {
    /// Until every enter of these tickets that was given up has been answered, at most so long: a leave that overtakes it finds
    /// nothing, and then it is there.
    async fn landed(&self, batch: &[Place]) {
        let under_way: Vec<_> = {
            let tickets = self.tickets();
            batch.iter().filter_map(|place| tickets.get(&mine(place))?.under_way.clone()).collect()
        };
        if !under_way.is_empty() {
            let all = join_all(under_way.iter().map(hub::closed));
            select(pin!(all), pin!(self.clock.sleep_until(self.clock.now().after(LANDED_WITHIN)))).await;
        }
    }

    /// Leaves, and looks in the same transaction for whoever comes in by it: that one need not ask. An enter of the same line that
    /// is about to be sent travels with it. Nothing where there is nobody to come in, or the ticket was not there. One round
    /// trip.
    async fn hand_over(self: &Arc<Self>, place: &Place) -> Result<bool> {
        let known = |ours: &Ours| Some((ours.key.clone(), ours.made.filter(|_| ours.under_way.is_none())?));
        let known = self.tickets().get(&mine(place)).and_then(known);
        let Some((key, made)) = known else { return Ok(false) };
        let Some(mut hand_over) = self.hub.hand_over(&place.name, made) else { return Ok(false) };
        let mut question = txn::take_out(&key, Some(made));
        question.success.extend(hand_over.next.iter().map(|(key, _)| txn::look_at(key)));
        // A key may be named only once among what is written, and the enter may name it.
        let named = |key: &Bytes| hand_over.parked.as_ref().is_some_and(|parked| txn::deletes(&parked.question, key));
        let elsewhere = hand_over.elsewhere.iter().filter(|(key, _)| !named(key));
        question.success.extend(elsewhere.map(|(key, made)| txn::touch(key, *made)));
        let answer = match hand_over.parked.take() {
            None => self.ask(question).await?,
            Some(parked) => match self.ask(txn::together(question, parked.question)).await {
                Ok(answer) => {
                    let (left, entered) = txn::apart(answer)?;
                    // If nobody listens any more, it is found as a stray.
                    drop(parked.answer.send(Ok(entered)));
                    left
                }
                Err(fault) => {
                    drop(parked.answer.send(Err(fault.again())));
                    // The enter may have been to blame: once more without it.
                    return if fault.error.effect() == Effect::None { Ok(false) } else { Err(fault.into()) };
                }
            },
        };
        let took = txn::took_out(&answer);
        if took {
            let found = txn::reads(answer).into_iter();
            let there = |((_, made), found): (&(Bytes, i64), RangeResponse)| {
                found.kvs.first().is_some_and(|kv| kv.create_revision == *made)
            };
            hand_over.seen = Some(hand_over.next.iter().zip(found).map(there).collect());
            self.tickets().remove(&mine(place));
        }
        Ok(took)
    }

    pub(super) async fn leave(self: &Arc<Self>, batch: &[Place]) -> Result<Vec<Presence>> {
        if let [place] = batch
            && self.hand_over(place).await?
        {
            return Ok(vec![Presence::There]);
        }
        self.landed(batch).await;
        let mut presences = vec![Presence::Gone; batch.len()];
        let mut left: Vec<usize> = (0..batch.len()).collect();
        // A second time only for those that are not where they were.
        while !left.is_empty() {
            let mut outs: Vec<(usize, Option<i64>, TxnRequest)> = Vec::with_capacity(left.len());
            for at in left.drain(..) {
                let known = self.tickets().get(&mine(&batch[at])).map(|ours| (ours.key.clone(), ours.made));
                let found = match known {
                    Some(known) => Some(known),
                    // Not ours, or left already; an enter that was given up may still have made it.
                    None => self.find(&batch[at]).await?.map(|(ours, made)| (ours.key, Some(made))),
                };
                outs.extend(found.map(|(key, made)| (at, made, txn::take_out(&key, made))));
            }
            let took = join_all(outs.chunks(AT_ONCE).map(|some| self.take_out(some))).await;
            let took = took.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten();
            for ((at, made, _), took) in outs.iter().zip(took) {
                let place = &batch[*at];
                if took {
                    presences[*at] = Presence::There;
                    self.tickets().remove(&mine(place));
                } else if made.is_some_and(|made| self.is_stale(place, made)) {
                    left.push(*at);
                } else {
                    self.tickets().remove(&mine(place));
                }
            }
        }
        Ok(presences)
    }

    /// Takes tickets out, each by its own condition. One round trip.
    async fn take_out(self: &Arc<Self>, some: &[(usize, Option<i64>, TxnRequest)]) -> Result<Vec<bool>> {
        if let [(_, _, one)] = some {
            return Ok(vec![txn::took_out(&self.ask(one.clone()).await?)]);
        }
        let success = some.iter().map(|(_, _, one)| txn::nested(one.clone())).collect();
        let answer = self.ask(TxnRequest { success, ..TxnRequest::default() }).await?;
        let took = |op: &ResponseOp| matches!(&op.response, Some(response_op::Response::ResponseTxn(txn)) if txn::took_out(txn));
        if answer.responses.len() != some.len() {
            return Err(txn::unreadable());
        }
        Ok(answer.responses.iter().map(took).collect())
    }
}
