//! What goes on in the library thread for a cluster: the map is kept right, each master is listened to, what is due is looked
//! at, and watched lines stay marked.
//!
//! The connections that listen do nothing else. When a slot moves, its node unsubscribes us without being asked, and the
//! redis crate takes such a message for the answer to whatever was asked last: on a connection that carries questions, every
//! later answer would go to the wrong one. Here each answer says which channel it is about, and a connection that is out of
//! step is thrown away.

use super::route::Sent;
use super::slots::slot;
use super::{Cluster, Node};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::backoff;
use crate::name::Name;
use crate::store::redis::answer::standings;
use crate::store::redis::connection::{ANSWER_WITHIN, Live};
use crate::store::redis::script::{changes, watch_key};
use crate::store::redis::{Shared, inbox};
use crate::store::{BoxStream, Hint, Place, Scope};
use futures_util::StreamExt;
use futures_util::future::{join_all, select, select_all};
use redis::{PushInfo, PushKind, ServerErrorKind, Value};
use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The map is looked at this often although nothing went wrong: a paused master says nothing.
const LOOK: Duration = Duration::from_secs(10);
/// A new map is asked for at most this often.
const PAUSE: Duration = Duration::from_millis(100);
/// Idle channels are looked for this often.
const SWEEP: Duration = Duration::from_secs(2);
/// Where changes cannot be told, whoever watches is made to look this often.
const POLL: Duration = Duration::from_secs(1);
/// The most subscriptions that are under way at once.
const TOGETHER: usize = 256;

/// Starts what runs for as long as the store is open.
pub(in crate::store::redis) fn start(shared: &Arc<Shared>) {
    shared.host(|host| {
        host.spawn(follow(Arc::downgrade(shared)));
        host.spawn(tend(Arc::downgrade(shared)));
    });
}

/// Keeps the map right, and has every master listened to.
async fn follow(shared: Weak<Shared>) {
    let mut attended: Vec<Arc<Node>> = Vec::new();
    let (mut first, mut tries) = (true, 0);
    loop {
        let Some(this) = shared.upgrade() else { return };
        let Some(cluster) = this.connections.cluster() else { return };
        let masters = cluster.masters();
        for node in &masters {
            if !attended.iter().any(|known| Arc::ptr_eq(known, node)) {
                if !first {
                    tracing::warn!(node = node.connections.address, "the cluster has another master");
                }
                this.host(|host| host.spawn(attend(shared.clone(), node.clone(), first)));
            }
        }
        attended = masters;
        first = false;
        let tick = pin!(this.clock.sleep_until(this.clock.now().after(LOOK)));
        select(select(pin!(cluster.stale.notified()), tick), pin!(this.closing())).await;
        if this.is_closed() {
            return;
        }
        tries = match cluster.refresh().await {
            Ok(()) => 0,
            Err(error) => {
                tracing::debug!(%error, "no node of the cluster tells who owns what");
                tries + 1
            }
        };
        let pause = if tries == 0 { PAUSE } else { backoff(tries).max(PAUSE) };
        let pause = pin!(this.clock.sleep_until(this.clock.now().after(pause)));
        select(pause, pin!(this.closing())).await;
    }
}

/// Listens to one master for as long as it is one. `known` if it was one from the beginning.
async fn attend(shared: Weak<Shared>, node: Arc<Node>, known: bool) {
    let (mut tries, mut doubtful) = (0, !known);
    loop {
        let Some(this) = shared.upgrade() else { return };
        let Some(cluster) = this.connections.cluster() else { return };
        if this.is_closed() || !cluster.masters().iter().any(|other| Arc::ptr_eq(other, &node)) {
            return;
        }
        match this.listen_to(cluster, &node).await {
            Ok(live) => {
                tries = 0;
                if doubtful {
                    // Whatever was published in between is lost, and what the node has may not be all that the one before it had.
                    this.hints.somewhere();
                    this.host(|host| host.doubt(None));
                }
                drop(this);
                serve(&shared, &node, &live).await;
                let Some(this) = shared.upgrade() else { return };
                if let Some(cluster) = this.connections.cluster() {
                    cluster.channels.node_lost(&node);
                    cluster.stale.notify_one();
                }
            }
            Err(error) => {
                tracing::debug!(%error, node = node.connections.address, "a master cannot be listened to");
                tries += 1;
                cluster.stale.notify_one();
                let pause = pin!(this.clock.sleep_until(this.clock.now().after(backoff(tries))));
                select(pause, pin!(this.closing())).await;
            }
        }
        doubtful = true;
    }
}

/// Subscribes and unsubscribes what has to be, until the connection is lost or the node is no master any more.
async fn serve(shared: &Weak<Shared>, node: &Arc<Node>, live: &Live) {
    let mut tries = 0;
    loop {
        let Some(this) = shared.upgrade() else { return };
        let Some(cluster) = this.connections.cluster() else { return };
        let master = cluster.masters().iter().any(|other| Arc::ptr_eq(other, node));
        if this.is_closed() || !live.is_open() || !master {
            return;
        }
        join_all(node.take_leaving().iter().map(|channel| unsubscribe(live, channel))).await;
        let mut missing = cluster.channels.missing_on(node, |slot| cluster.owns(node, slot));
        missing.truncate(TOGETHER);
        if !missing.is_empty() {
            let subscribed = join_all(missing.iter().map(|channel| this.subscribe(cluster, node, live, channel))).await;
            if subscribed.iter().all(|subscribed| *subscribed) {
                tries = 0;
                continue;
            }
            // Whatever the reason: not at once again, and the map may be wrong.
            tries += 1;
            cluster.stale.notify_one();
            let pause = pin!(this.clock.sleep_until(this.clock.now().after(backoff(tries))));
            select(select(pause, pin!(live.ended())), pin!(this.closing())).await;
            continue;
        }
        select(select(pin!(node.bell.notified()), pin!(live.ended())), pin!(this.closing())).await;
    }
}

async fn unsubscribe(live: &Live, channel: &str) {
    let mut cmd = redis::cmd("SUNSUBSCRIBE");
    cmd.arg(channel);
    match live.try_send(&cmd).await {
        Ok(Value::Push { kind: PushKind::SUnsubscribe, data }) if about(&data, channel) => {}
        // The slot has moved, and the subscription with it.
        Err(error) if error.redirect_node().is_some_and(|(_, moved)| moved == slot(channel)) => {}
        _ => live.end(),
    }
}

fn about(data: &[Value], channel: &str) -> bool {
    matches!(data.first(), Some(Value::BulkString(said)) if said == channel.as_bytes())
}

impl Shared {
    /// Opens a connection that listens, with this client's own inbox on it: whoever is put out is told on that, by all nodes.
    async fn listen_to(self: &Arc<Self>, cluster: &Cluster, node: &Arc<Node>) -> Result<Live> {
        let (this, at) = (Arc::downgrade(self), Arc::downgrade(node));
        let connection = cluster.channels.listening(node);
        // What the node says is taken down in the order in which it says it: it may take back at once what it has just confirmed.
        let push = move |push: PushInfo| {
            let (Some(this), Some(node)) = (this.upgrade(), at.upgrade()) else { return };
            let mut data = push.data.into_iter();
            let (Some(Value::BulkString(channel)), said) = (data.next(), data.next()) else { return };
            match (push.kind, said) {
                (PushKind::Message | PushKind::SMessage, Some(Value::BulkString(said))) => this.heard((channel, said)),
                (kind @ (PushKind::SSubscribe | PushKind::SUnsubscribe), _) => {
                    let up = kind == PushKind::SSubscribe;
                    this.channel_is(up, &String::from_utf8_lossy(&channel), &node, connection);
                }
                _ => {}
            }
        };
        node.take_leaving();
        let live = node.connections.open_with(push).await?;
        live.subscribe(&self.inbox, &node.connections.address).await?;
        Ok(live)
    }

    /// A node says that this channel is subscribed there, or no longer is. What may have been missed before is looked at. Called
    /// by the connection's own task.
    fn channel_is(&self, up: bool, channel: &str, node: &Arc<Node>, connection: u64) {
        let Some(cluster) = self.connections.cluster() else { return };
        if !up {
            if cluster.channels.lost(channel, node, connection) {
                cluster.stale.notify_one();
                // Whoever subscribes to it again is told where it is by now, maybe before the map tells.
                node.bell.notify_one();
            }
            return;
        }
        match cluster.channels.confirmed(channel, node, connection) {
            Some((name, true)) => self.hints.tell(&name),
            Some((name, false)) => self.waiters.doubt_line(&name),
            None => {}
        }
    }

    /// One round trip, two for a line that is watched. Says whether it worked.
    async fn subscribe(&self, cluster: &Cluster, node: &Arc<Node>, live: &Live, channel: &str) -> bool {
        let mut cmd = redis::cmd("SSUBSCRIBE");
        cmd.arg(channel);
        match live.try_send(&cmd).await {
            Ok(Value::Push { kind: PushKind::SSubscribe, data }) if about(&data, channel) => {
                if let Some(name) = cluster.channels.watched_line(channel) {
                    // If it fails, the next round of marks will do it; until then changes are not told.
                    let _ = self.mark(cluster, &name).await;
                }
                true
            }
            Err(error) if error.redirect_node().is_some_and(|(_, moved)| moved == slot(channel)) => {
                cluster.after(&error, slot(channel), node);
                false
            }
            Err(error) if matches!(error.kind(), redis::ErrorKind::Server(kind) if kind != ServerErrorKind::Moved) => {
                tracing::debug!(%error, "could not listen to a line");
                false
            }
            _ => {
                live.end();
                false
            }
        }
    }

    /// Marks a line as watched, so that its changes are published. One round trip.
    async fn mark(&self, cluster: &Cluster, name: &Name) -> Result<()> {
        let key = watch_key(name.key());
        let mut cmd = redis::cmd("SET");
        cmd.arg(&key).arg("1").arg("PX").arg(inbox::WATCHED_FOR.as_millis().to_string());
        cluster.send(self, slot(&key), Sent::Cmd(&cmd)).await.map(drop)
    }

    /// Two round trips for one line. Of all lines nobody is told: whoever watches them looks once a second.
    pub(in crate::store::redis) async fn watch_in(
        self: &Arc<Self>,
        cluster: &Cluster,
        scope: Scope,
    ) -> Result<BoxStream<'static, Hint>> {
        let name = match &scope {
            Scope::Name(name) => name.clone(),
            Scope::Prefix(_) => return Ok(self.poll_everywhere(scope)),
        };
        let hints = self.hints.subscribe(scope);
        let channel = changes(name.key());
        let watch = Watch { shared: self.clone(), channel: channel.clone() };
        let mut confirmations = cluster.channels.confirmations();
        let mut heard = cluster.channels.want(&channel, &name, 1, self.clock.now());
        cluster.owner(slot(&channel))?.bell.notify_one();
        let limit = self.clock.now().after(ANSWER_WITHIN);
        while heard.is_none() {
            let late = pin!(self.clock.sleep_until(limit));
            select(pin!(confirmations.changed()), late).await;
            heard = cluster.channels.heard_since(&channel, self.clock.now());
            if heard.is_none() && self.clock.now() >= limit {
                return Err(Error::new(ErrorKind::Unavailable, "the node that has this lock cannot be listened to"));
            }
        }
        self.mark(cluster, &name).await?;
        Ok(Box::pin(inbox::Watching { hints, _watch: watch }))
    }

    fn poll_everywhere(self: &Arc<Self>, scope: Scope) -> BoxStream<'static, Hint> {
        let clock = self.clock.clone();
        let tick = futures_util::stream::unfold((), move |()| {
            let clock = clock.clone();
            async move {
                clock.sleep_until(clock.now().after(POLL)).await;
                Some((Hint::Somewhere, ()))
            }
        });
        Box::pin(futures_util::stream::select(self.hints.subscribe(scope), tick.boxed()))
    }

    /// One round trip: what became of these, all of one line?
    async fn look_at(self: Arc<Self>, places: Vec<Place>) {
        let answer = async { standings(self.reach(Shared::look_call(&places)).await?, places.len()) }.await;
        self.looked(&places, answer);
    }
}

/// Looks at what is due, keeps watched lines marked, and drops the channels in which nobody waits any more.
async fn tend(shared: Weak<Shared>) {
    let now = |shared: &Weak<Shared>| shared.upgrade().map(|this| this.clock.now());
    let Some(start) = now(&shared) else { return };
    let (mut rearm, mut sweep) = (start.after(inbox::WATCHED_FOR / 3), start.after(SWEEP));
    loop {
        let Some(this) = shared.upgrade() else { return };
        let Some(cluster) = this.connections.cluster() else { return };
        if this.is_closed() {
            return;
        }
        let now: Moment = this.clock.now();
        if this.waiters.due() <= now {
            let mut lines: HashMap<Name, Vec<Place>> = HashMap::new();
            for place in this.waiters.take_due(now) {
                lines.entry(place.name.clone()).or_default().push(place);
            }
            // Each by itself: a node that is down must not keep the others waiting.
            for places in lines.into_values() {
                this.host(|host| host.spawn(this.clone().look_at(places)));
            }
        }
        if rearm <= now {
            rearm = now.after(inbox::WATCHED_FOR / 3);
            for name in cluster.channels.watched() {
                let this = this.clone();
                this.clone().host(|host| {
                    host.spawn(async move {
                        if let Some(cluster) = this.connections.cluster() {
                            let _ = this.mark(cluster, &name).await;
                        }
                    });
                });
            }
        }
        if sweep <= now {
            sweep = now.after(SWEEP);
            cluster.channels.sweep(&this.waiters.lines(), now);
        }
        let sleep = this.clock.sleep_until(this.waiters.due().min(rearm).min(sweep));
        let waits: [Pin<Box<dyn Future<Output = ()> + Send + '_>>; 3] =
            [Box::pin(sleep), Box::pin(this.waiters.bell.notified()), Box::pin(this.closing())];
        select_all(waits).await;
    }
}

/// One watcher's share in a channel.
struct Watch {
    shared: Arc<Shared>,
    channel: String,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(cluster) = self.shared.connections.cluster() {
            cluster.channels.unwatch(&self.channel, self.shared.clock.now());
        }
    }
}
