//! How a call reaches the node that has its line, how a batch is taken apart, and which channel a ticket is told on.

use super::slots::{address, slot};
use super::{Cluster, Node};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::redis::connection::Live;
use crate::store::redis::script::{Call, inbox};
use crate::store::redis::{RedisStore, Shared, fault, renew_call};
use crate::store::{BoxFuture, Place, Presence, Renew, Renewed, Store};
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use std::borrow::Cow;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A call is sent on at most so often: nodes that disagree would send it round and round.
const REDIRECTIONS: usize = 8;
/// How long a call waits for its slot to have been moved.
const MOVED_WITHIN: Duration = Duration::from_secs(1);

/// What is sent.
#[derive(Clone, Copy)]
pub(super) enum Sent<'a> {
    Call(&'a Call),
    Cmd(&'a Cmd),
}

impl Sent<'_> {
    /// One round trip. A node that is just being given the slot has to be told that we know.
    async fn to(self, live: &Live, asking: bool) -> RedisResult<Value> {
        match self {
            Sent::Call(call) if asking => match live.try_ask(call.by_hash()).await {
                Err(error) if error.kind() == ServerErrorKind::NoScript.into() => live.try_ask(&call.in_full()).await,
                answer => answer,
            },
            Sent::Call(call) => live.try_call(call).await,
            Sent::Cmd(cmd) if asking => live.try_ask(cmd).await,
            Sent::Cmd(cmd) => live.try_send(cmd).await,
        }
    }
}

/// What to do about an error.
pub(super) enum Next {
    /// Ask the map again: it knows by now.
    Again,
    /// Ask there, once.
    Ask(Arc<Node>),
    /// Wait for a moment.
    Wait,
    /// It is one.
    Fail,
}

impl Cluster {
    /// What an error of `node` means for a call of this slot.
    pub(super) fn after(&self, error: &RedisError, slot: u16, node: &Node) -> Next {
        let redis::ErrorKind::Server(kind) = error.kind() else {
            self.stale.notify_one();
            return Next::Fail;
        };
        let elsewhere = || {
            let (to, _) = error.redirect_node()?;
            self.node(&address(to, &node.address)?).ok()
        };
        match kind {
            ServerErrorKind::Moved => match elsewhere() {
                Some(to) => {
                    self.moved(slot, &to);
                    Next::Again
                }
                None => Next::Fail,
            },
            ServerErrorKind::Ask => elsewhere().map_or(Next::Fail, Next::Ask),
            ServerErrorKind::TryAgain => Next::Wait,
            ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown | ServerErrorKind::ReadOnly => {
                self.stale.notify_one();
                Next::Fail
            }
            _ => Next::Fail,
        }
    }

    /// Sends something to whoever owns the slot: one round trip; one more for each node that sends it on.
    pub(super) async fn send(&self, shared: &Shared, slot: u16, sent: Sent<'_>) -> Result<Value> {
        let limit = shared.clock.now().after(MOVED_WITHIN);
        let (mut asked, mut waits, mut sent_on) = (None, 0, 0);
        loop {
            let asking = asked.is_some();
            let node = match asked.take() {
                Some(node) => node,
                None => self.owner(slot).inspect_err(|_| self.stale.notify_one())?,
            };
            let live = node.connections.of_this_runtime().await.inspect_err(|_| self.stale.notify_one())?;
            let error = match sent.to(&live, asking).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match self.after(&error, slot, &node) {
                Next::Again if sent_on < REDIRECTIONS => sent_on += 1,
                Next::Ask(to) if sent_on < REDIRECTIONS => {
                    sent_on += 1;
                    asked = Some(to);
                }
                Next::Wait if shared.clock.now() < limit => {
                    (waits, sent_on) = (waits + 1, 0);
                    let pause = Duration::from_millis(5 << u32::min(waits, 3));
                    shared.clock.sleep_until(shared.clock.now().after(pause)).await;
                }
                Next::Again | Next::Ask(_) => {
                    let message = "the nodes of the cluster do not agree who has the slot of this lock";
                    return Err(Error::new(ErrorKind::Unavailable, message).caused_by(error));
                }
                Next::Wait | Next::Fail => return Err(fault::asking(error, &node.connections.address)),
            }
        }
    }
}

/// Some of a batch: which, and what.
pub(in crate::store::redis) type Part<T> = (Vec<usize>, Vec<T>);

impl Shared {
    /// A call of one line, to wherever that line is.
    pub(in crate::store::redis) async fn reach(&self, call: Call) -> Result<Value> {
        match self.connections.cluster() {
            None => self.connection().await?.call(&call, &self.connections.address).await,
            Some(cluster) => {
                let call = call.sharded();
                Box::pin(cluster.send(self, slot(call.key()), Sent::Call(&call))).await
            }
        }
    }

    /// A connection to each server that has lines.
    pub(in crate::store::redis) async fn everywhere(&self) -> Result<Vec<Live>> {
        match self.connections.cluster() {
            None => Ok(vec![self.connection().await?]),
            Some(cluster) => {
                let masters = cluster.masters();
                let open = |node: &Arc<Node>| {
                    let node = node.clone();
                    async move { node.connections.of_this_runtime().await }
                };
                join_all(masters.iter().map(open)).await.into_iter().collect()
            }
        }
    }

    /// Which of a batch belong to the same line, where lines are on different nodes. `None` if the batch can be sent as it is.
    pub(in crate::store::redis) fn apart<T: Clone>(
        &self,
        batch: &[T],
        name: impl Fn(&T) -> &Name,
    ) -> Option<Vec<Part<T>>> {
        self.connections.cluster()?;
        if batch.windows(2).all(|two| name(&two[0]) == name(&two[1])) {
            return None;
        }
        let mut parts: Vec<Part<T>> = Vec::new();
        let mut known = HashMap::new();
        for (at, item) in batch.iter().enumerate() {
            let which = *known.entry(name(item).key()).or_insert(parts.len());
            if which == parts.len() {
                parts.push(Part::default());
            }
            parts[which].0.push(at);
            parts[which].1.push(item.clone());
        }
        Some(parts)
    }

    /// The channel on which a ticket of this line is told that it was let in. In a cluster it has to be where the line is.
    pub(in crate::store::redis) fn inbox_of(&self, name: &Name) -> Cow<'_, str> {
        match self.connections.cluster() {
            None => Cow::Borrowed(&self.inbox),
            Some(_) => Cow::Owned(inbox(name.key(), &self.inbox)),
        }
    }

    /// Called before something is asked of a ticket that may wait: since when its line is listened to, if it is.
    pub(in crate::store::redis) fn hears(&self, name: &Name) -> Option<u64> {
        let cluster = self.connections.cluster()?;
        cluster.channels.heard_since(&self.inbox_of(name), self.clock.now())
    }

    /// Called when that ticket does wait: its line is listened to from now on. If that was not so all the time since
    /// [`hears`](Shared::hears), its grant may have been missed, and it is looked at (at once, or after the subscription).
    pub(in crate::store::redis) fn must_hear(&self, place: &Place, heard: Option<u64>) {
        let Some(cluster) = self.connections.cluster() else { return };
        let inbox = self.inbox_of(&place.name);
        match cluster.channels.want(&inbox, &place.name, 0, self.clock.now()) {
            Some(since) if Some(since) == heard => {}
            Some(_) => self.waiters.doubt(place.id),
            None => {
                if let Ok(node) = cluster.owner(slot(&inbox)) {
                    node.bell.notify_one();
                }
            }
        }
    }
}

/// What became of some parts of a renewal: which part, and the answer; `None` if it has to be asked for by itself.
type Outcome = Vec<(usize, Option<Result<Vec<Renewed>>>)>;

/// One request to each node, with a call for each part: one round trip. A part that fails, or is late, is answered with a
/// lease of nothing, which moves no deadline: a node that is down must not cost the locks on all others. An error only if
/// nothing at all was renewed.
pub(in crate::store::redis) async fn renew_apart(
    store: &RedisStore,
    parts: &[Part<Renew>],
    count: usize,
) -> Result<Vec<Renewed>> {
    let Some(cluster) = store.shared.connections.cluster() else { return Ok(Vec::new()) };
    // The caller waits for a third of the shortest lease (a renewal near a ticket's end asks for less than its lease).
    let leases = || parts.iter().flat_map(|(_, part)| part).map(|renew| renew.lease);
    let (shortest, longest) = (leases().min().unwrap_or_default(), leases().max().unwrap_or_default());
    let patience = (shortest / 4).max(Duration::from_millis(100).min(longest / 4));
    let clock = &store.shared.clock;
    let mut late = pin!(clock.sleep_until(clock.now().after(patience)));
    let mut asked: FuturesUnordered<BoxFuture<'_, Outcome>> = FuturesUnordered::new();
    for request in by_node(cluster, parts)? {
        asked.push(Box::pin(renew_on(store, cluster, request, parts)));
    }
    let mut answers = vec![Renewed::There { lease: Duration::ZERO }; count];
    let (mut any, mut failed) = (false, None);
    loop {
        let outcome = match select(asked.next(), late.as_mut()).await {
            Either::Left((Some(outcome), _)) => outcome,
            Either::Left((None, _)) | Either::Right(_) => break,
        };
        for (which, answer) in outcome {
            match answer {
                Some(Ok(renewed)) => {
                    any = true;
                    parts[which].0.iter().zip(renewed).for_each(|(at, renewed)| answers[*at] = renewed);
                }
                Some(Err(error)) => failed = Some(error),
                None => asked.push(Box::pin(async move { vec![(which, Some(store.renew(&parts[which].1).await))] })),
            }
        }
    }
    let silent = || Error::unknown("no node of the cluster answered in time");
    if any { Ok(answers) } else { Err(failed.unwrap_or_else(silent)) }
}

/// What one node is asked: the calls, and which parts they are.
struct Request {
    node: Arc<Node>,
    calls: redis::Pipeline,
    which: Vec<usize>,
}

fn by_node(cluster: &Cluster, parts: &[Part<Renew>]) -> Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    for (which, (_, part)) in parts.iter().enumerate() {
        let call = renew_call(part)?.sharded();
        // A slot without an owner: its part stays unanswered.
        let Ok(owner) = cluster.owner(slot(call.key())) else {
            cluster.stale.notify_one();
            continue;
        };
        let at = requests.iter().position(|request| Arc::ptr_eq(&request.node, &owner)).unwrap_or_else(|| {
            requests.push(Request { node: owner, calls: redis::pipe(), which: Vec::new() });
            requests.len() - 1
        });
        requests[at].calls.add_command(call.by_hash().clone());
        requests[at].which.push(which);
    }
    Ok(requests)
}

/// One round trip.
async fn renew_on(store: &RedisStore, cluster: &Cluster, request: Request, parts: &[Part<Renew>]) -> Outcome {
    let Request { node, calls, which: there } = request;
    let answers = async {
        let live = node.connections.of_this_runtime().await?;
        live.send_all(&calls, there.len()).await.map_err(|error| fault::asking(error, &node.connections.address))
    };
    let answers = match answers.await {
        Ok(answers) => answers,
        Err(error) => {
            cluster.stale.notify_one();
            return there.into_iter().map(|which| (which, Some(Err(error.again())))).collect();
        }
    };
    // A part that was sent to the wrong node, or that needs its script in full, is sent again by itself.
    let outcome = |(which, answer): (usize, Value)| match answer.extract_error() {
        Ok(answer) => (which, Some(store.renewed(&parts[which].1, answer))),
        Err(_) => (which, None),
    };
    there.into_iter().zip(answers).map(outcome).collect()
}

/// Each part is its own call, all of them sent together: one round trip.
pub(in crate::store::redis) async fn leave_apart(
    store: &RedisStore,
    parts: &[Part<Place>],
    count: usize,
) -> Result<Vec<Presence>> {
    let mut answers = vec![Presence::Gone; count];
    let left = join_all(parts.iter().map(|(_, part)| store.leave(part))).await;
    for ((which, _), left) in parts.iter().zip(left) {
        which.iter().zip(left?).for_each(|(at, presence)| answers[*at] = presence);
    }
    Ok(answers)
}
