//! The quorum store (Redlock): the same ticket on a majority of independent stores, Redis masters as a rule.
//!
//! # How it decides
//!
//! Every verb asks all nodes at once and gives each the same short time ([`Settings::node_timeout`]). A node that fails, does
//! not answer in time, or has not been up for long enough has **no vote**. A ticket counts as long as a majority of all nodes
//! has it. Its token is the largest number that a node of the majority gave; before the grant counts, a majority has raised
//! its counter to that token, and only where the ticket still was. So a later ticket, whose majority shares a node with that
//! one, gets a larger token. The nodes' leases count from the moment of the call, and 1 % and 2 ms come off for clocks that
//! drift apart. Nodes that missed a ticket get it with the next renewal. A ticket that a renewal does not find on a majority
//! is lost. A release goes to all nodes, those that did not vote included.
//!
//! There is no queue: whoever finds no majority withdraws everywhere and tries again after a random pause, when a node tells
//! of a change. Nobody is served in order. Semaphores are refused: two permits on different majorities can be three.
//!
//! # What it survives, and what not
//!
//! It goes on while a majority of the nodes is there. It does **not** survive:
//!
//! - a node that comes back without its data while a ticket is on a bare majority: that node could vote for somebody else.
//!   Hence the delayed restart: a node that has been up for less than [`Settings::longest_lease`] has no vote. That covers
//!   a restart, with or without an append-only file, whatever its `appendfsync`; it does not cover data that vanishes without
//!   a restart (`FLUSHALL`, an eviction policy, a failover inside of one node);
//! - a clock of a node that jumps ahead by more than what is left of a lease: the ticket lapses there early;
//! - more than a minority of the nodes failing together.
//!
//! After each of these two holders are possible for a while. Their tokens still differ and grow, as long as the nodes' clocks
//! are sane, so a resource that checks tokens refuses the earlier one. If correctness hangs on the lock, use a store that
//! replicates by consensus, and check tokens in any case.

use super::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use asking::Answers;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wanted::Wanted;

mod asking;
mod entering;
mod open;
mod seeing;
mod wanted;

/// Fewer nodes than this cannot lose one and still have a majority.
const FEWEST: usize = 3;

/// How a quorum deals with its nodes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a node may take to vote. Far below the lease, so that a node that hangs costs little.
    pub node_timeout: Duration,
    /// The longest lease that is taken here; a node that has been up for less than this does not vote.
    pub longest_lease: Duration,
}

impl Default for Settings {
    /// 50 ms and 30 s.
    fn default() -> Settings {
        Settings { node_timeout: Duration::from_millis(50), longest_lease: crate::DEFAULT_LEASE }
    }
}

/// A majority of independent stores.
pub struct QuorumStore {
    shared: Arc<Shared>,
    label: Arc<str>,
}

struct Shared {
    nodes: Vec<Arc<dyn Store>>,
    settings: Settings,
    clock: Clock,
    /// The tickets of this client, and what they are called on the nodes.
    wanted: Wanted,
    host: OnceLock<Host>,
}

impl QuorumStore {
    /// A quorum of these stores, which must not share anything: neither a server nor its replica. Each must give tickets a
    /// lease of their own and numbers that can be raised.
    ///
    /// # Errors
    /// `InvalidInput` for fewer than three stores, one that is named twice, or one that cannot be a node.
    pub fn over(nodes: Vec<Arc<dyn Store>>, settings: Settings) -> Result<QuorumStore> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        if nodes.len() < FEWEST {
            let message = format!("a quorum needs {FEWEST} stores at least, {} given", nodes.len());
            return invalid(message);
        }
        let addresses: Vec<String> = nodes.iter().map(|node| node.info().address).collect();
        for (i, (node, address)) in nodes.iter().zip(&addresses).enumerate() {
            if addresses[..i].contains(address) && node.capability().reach == Reach::Network {
                return invalid(format!("{address} is named twice in one quorum"));
            }
            let capability = node.capability();
            if !capability.settable_token || capability.lifetime != Lifetime::Ticket {
                return invalid(format!("{address} cannot be a node of a quorum: a {} store", node.info().kind));
            }
        }
        let clock = nodes[0].info().clock;
        let shared = Shared { nodes, settings, clock, wanted: Wanted::default(), host: OnceLock::new() };
        Ok(QuorumStore { shared: Arc::new(shared), label: "quorum".into() })
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> QuorumStore {
        self.label = label.into();
        self
    }
}

impl Shared {
    /// More than half.
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// How many may fail while a majority is left.
    fn spare(&self) -> usize {
        self.nodes.len() - self.majority()
    }

    fn address(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.info().address).collect();
        format!("quorum:{}", nodes.join("|"))
    }

    /// What of a lease can be counted on: that of the weakest node of the best majority, less what clocks may drift apart.
    fn validity(&self, leases: &mut [Duration]) -> Duration {
        leases.sort_unstable_by(|a, b| b.cmp(a));
        let lease = leases.get(self.majority() - 1).copied().unwrap_or_default();
        lease.saturating_sub(lease / 100 + Duration::from_millis(2))
    }

    /// What to say when too few nodes have answered.
    fn too_few(&self, answered: usize, errors: &[(usize, Error)]) -> Error {
        let mut message =
            format!("{} of {} nodes have no vote, {} may miss", errors.len(), self.nodes.len(), self.spare());
        for (node, error) in errors {
            message.push_str(&format!("; {}: {error}", self.nodes[*node].info().address));
        }
        // Where every failure is of one kind, that is what is wrong; whatever may pass by itself is `Unavailable`.
        let kind = errors.first().map_or(ErrorKind::Unavailable, |(_, first)| first.kind());
        let alike = errors.len() + answered == self.nodes.len() && errors.iter().all(|(_, error)| error.kind() == kind);
        Error::new(if alike { kind } else { ErrorKind::Unavailable }, message).effect_unknown()
    }

    /// How many votes there are for either side of a question with two answers, once one of them has a majority.
    async fn presence(&self, mut answers: Answers<Presence>) -> Result<Presence> {
        let (mut there, mut gone, mut errors) = (0, 0, Vec::new());
        // All of them are heard: whoever comes next finds the ticket gone everywhere.
        while let Some((node, answer)) = answers.next().await {
            match answer {
                Ok(Presence::There) => there += 1,
                Ok(Presence::Gone) => gone += 1,
                Err(error) => errors.push((node, error)),
            }
        }
        if there >= self.majority() {
            Ok(Presence::There)
        } else if gone > self.spare() {
            Ok(Presence::Gone)
        } else {
            Err(self.too_few(there + gone, &errors))
        }
    }

    /// Takes a ticket off one node, and goes on trying for a while where that fails: its lease ends it otherwise.
    async fn leave_node(self: Arc<Self>, node: usize, place: Place) -> Result<Presence> {
        match self.nodes[node].leave(std::slice::from_ref(&place)).await {
            Ok(mut left) => left.pop().ok_or_else(short_answer),
            Err(error) => {
                let this = self.clone();
                self.spawn(async move {
                    for tries in 1..=5 {
                        this.clock.sleep_until(this.clock.now().after(crate::keeper::backoff(tries))).await;
                        if this.nodes[node].leave(std::slice::from_ref(&place)).await.is_ok() {
                            return;
                        }
                    }
                });
                Err(error)
            }
        }
    }
}

/// What the nodes are asked for, so that enough is left of it when the drift has come off.
fn longer(lease: Duration) -> Duration {
    lease + lease / 99 + Duration::from_millis(3)
}

fn short_answer() -> Error {
    Error::new(ErrorKind::Broken, "a node answered fewer questions than it was asked").effect_unknown()
}

impl Store for QuorumStore {
    fn info(&self) -> Info {
        Info {
            kind: "quorum",
            label: self.label.clone(),
            address: self.shared.address(),
            clock: self.shared.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        let nodes = self.shared.nodes.iter().map(|node| node.capability());
        Capability {
            fencing: Fencing::Replicated,
            queue: Queue::Absent,
            wake: Wake::Push,
            lifetime: Lifetime::Ticket,
            reach: nodes.clone().map(|node| node.reach).min().unwrap_or(Reach::Network),
            weights: Weights::ReadWrite,
            atomic_batch: 1,
            settable_token: false,
            upgrade: false,
            expel: false,
            shortest_lease: nodes.map(|node| node.shortest_lease).max().unwrap_or_default(),
            longest_lease: self.shared.settings.longest_lease,
        }
    }

    fn attach(&self, host: Host) {
        if self.shared.host.set(host.clone()).is_ok() {
            self.shared.nodes.iter().for_each(|node| node.attach(host.clone()));
        }
    }

    /// Two round trips to all nodes at once; one more where it withdraws.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            let Some(ticket) = batch.first() else { return Ok(Vec::new()) };
            Ok(vec![self.shared.enter(ticket).await?])
        })
    }

    /// One round trip to all nodes at once: nobody waits in line here.
    fn wait<'a>(&'a self, place: &'a Place, _until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(async move { self.shared.look(place).await })
    }

    /// One round trip to all nodes at once.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(async move {
            if batch.iter().any(|ticket| ticket.at_least.is_some()) {
                return Err(Error::new(ErrorKind::Unsupported, "a quorum's tokens cannot be raised from outside"));
            }
            if batch.is_empty() { Ok(Vec::new()) } else { self.shared.renew(batch).await }
        })
    }

    /// One round trip to all nodes at once for each ticket.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(async move {
            let leaving = batch.iter().enumerate().map(|(at, place)| async move {
                // Who is named twice is left once: which of the two a node hears of first is not the same everywhere.
                if batch[..at].iter().any(|other| other.id == place.id) {
                    return Ok(Presence::Gone);
                }
                let shared = &self.shared;
                let on_nodes = shared.wanted.leaving(place);
                let answers = shared.ask(move |shared, node| shared.leave_node(node, on_nodes.clone()));
                let left = shared.presence(answers).await?;
                shared.wanted.left(place);
                Ok(left)
            });
            futures_util::future::join_all(leaving).await.into_iter().collect()
        })
    }

    /// One round trip to all nodes at once.
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(async move {
            let on_nodes = self.shared.wanted.changed(place, weight, note.as_ref());
            let answers = self.shared.ask(move |shared, node| {
                let (place, note) = (on_nodes.clone(), note.clone());
                async move { shared.nodes[node].change(&place, weight, note).await }
            });
            self.shared.presence(answers).await
        })
    }

    /// Not here: a ticket that is alone on one majority may have company on another.
    fn upgrade<'a>(&'a self, _place: &'a Place, _new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        let message = "a quorum cannot upgrade: release, and lock for writing";
        Box::pin(async move { Err(Error::new(ErrorKind::Unsupported, message)) })
    }

    /// Not here: a ticket has another number on every node.
    fn expel<'a>(&'a self, _name: &'a Name, _token: u64) -> BoxFuture<'a, Result<Presence>> {
        let message = "a quorum cannot put anybody out: the ticket goes when its lease ends";
        Box::pin(async move { Err(Error::new(ErrorKind::Unsupported, message)) })
    }

    /// Two round trips to all nodes at once.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move { self.shared.watch(scope).await })
    }

    /// One round trip to all nodes at once. Shown is who is inside on a majority; the numbers differ from node to node, so
    /// none is told.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(async move { self.shared.inspect(name).await })
    }

    /// As much as the nodes need for it, all at once; more where only few of their names have a majority.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move { self.shared.list(prefix, after, limit).await })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            futures_util::future::join_all(self.shared.nodes.iter().map(|node| node.close())).await;
        })
    }
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuorumStore({})", self.shared.address())
    }
}
