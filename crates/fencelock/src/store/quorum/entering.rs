//! Getting a majority, keeping it, and looking whether it is still there.

use super::{Shared, longer, short_answer};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Enter, Entered, Mode, Place, Renew, Renewed, Seen, Waited};
use std::sync::Arc;
use std::time::Duration;

/// How often votes that were split between several are asked for again before the answer is that there is no room.
const SPLITS: u32 = 3;

/// What one node says to a ticket that is to be entered.
enum Vote {
    For {
        number: u64,
        lease: Duration,
        /// It had the ticket already, with the same number.
        before: bool,
    },
    Against {
        holder: Option<Seen>,
    },
}

/// One round of votes.
enum Round {
    Won {
        token: u64,
        lease: Duration,
    },
    /// Somebody else has, or may have, the majority; or nobody has it.
    Refused {
        holder: Option<Seen>,
        split: bool,
    },
}

impl Shared {
    pub(super) async fn enter(self: &Arc<Self>, ticket: &Enter) -> Result<Entered> {
        let mut tries = 0;
        loop {
            match self.round(ticket).await? {
                Round::Won { token, lease } => return Ok(Entered::Admitted { token, lease }),
                Round::Refused { split: true, .. } if tries < SPLITS => {
                    // Everybody has withdrawn: whoever is back first may win.
                    tries += 1;
                    let pause = Duration::from_micros(fastrand::u64(1_000..=10_000 << tries));
                    self.clock.sleep_until(self.clock.now().after(pause)).await;
                }
                Round::Refused { holder, .. } => return Ok(Entered::Full { holder }),
            }
        }
    }

    /// Two round trips where it wins, two where it withdraws.
    async fn round(self: &Arc<Self>, ticket: &Enter) -> Result<Round> {
        let asked = self.clock.now();
        let place = &ticket.place;
        let begun = self.wanted.begin(ticket, self.nodes.len());
        if let Some(stale) = begun.stale {
            drop(self.ask(move |shared, node| shared.leave_node(node, stale.clone())));
        }
        let on_nodes = begun.enter.place.clone();
        let mut enter = begun.enter;
        enter.lease = longer(ticket.lease);
        let mut answers = {
            let place = place.clone();
            self.ask(move |shared, node| shared.enter_node(node, place.clone(), enter.clone()))
        };
        let (mut votes, mut leases, mut kept) = (Vec::new(), Vec::new(), 0);
        let (mut refusals, mut holders, mut errors) = (0, Vec::new(), Vec::new());
        // Who asks again is told the same token if a majority had the ticket all the time; a node that it has only come to since may
        // be faster than one of these.
        let again = self.wanted.token(place).is_some();
        let enough = |votes: usize, kept: usize| votes >= self.majority() && (!again || kept >= self.majority());
        while !enough(votes.len(), kept) && refusals + errors.len() <= self.spare() {
            match answers.next().await {
                None => break,
                Some((node, Ok(Vote::For { number, lease, before }))) => {
                    votes.push((node, number));
                    leases.push(lease);
                    kept += usize::from(before);
                }
                Some((_, Ok(Vote::Against { holder }))) => {
                    refusals += 1;
                    holders.extend(holder);
                }
                Some((node, Err(error))) => errors.push((node, error)),
            }
        }
        if votes.len() < self.majority() {
            self.withdraw(place, &on_nodes).await;
            if let Some(at) = errors.iter().position(|(_, error)| error.kind() == ErrorKind::Mismatch) {
                return Err(errors.swap_remove(at).1);
            }
            if errors.len() > self.spare() {
                return Err(self.too_few(votes.len() + refusals, &errors));
            }
            // Who is met on one node only may be on the way in or out, as we were.
            let (first, shared) = (holders.first(), holders.iter().any(|holder| holder.mode == Mode::Shared));
            let one = holders.iter().all(|holder| first.is_some_and(|first| first.owner == holder.owner));
            let held = shared || (one && refusals > self.spare());
            return Ok(Round::Refused { holder: holders.into_iter().next().map(without_number), split: !held });
        }
        // A ticket that a majority has had all the time keeps its token.
        let token = match self.wanted.token(place) {
            Some(token) if kept >= self.majority() => token,
            _ => {
                let token = votes.iter().map(|(_, number)| *number).max().unwrap_or_default();
                if let Err(error) = self.raise(&on_nodes, ticket.lease, token, &votes).await {
                    self.withdraw(place, &on_nodes).await;
                    return Err(error);
                }
                token
            }
        };
        let lease = self.validity(&mut leases);
        if self.clock.now() >= asked.after(lease) {
            self.withdraw(place, &on_nodes).await;
            return Err(Error::unknown("the nodes took longer to vote than the lease lasts"));
        }
        if !self.wanted.grant(place, on_nodes.id, token) {
            self.withdraw(place, &on_nodes).await;
            return Err(Error::unknown("the ticket was left while the nodes voted"));
        }
        Ok(Round::Won { token, lease })
    }

    /// A majority has a counter of at least the token, and still has the ticket.
    async fn raise(self: &Arc<Self>, place: &Place, lease: Duration, token: u64, votes: &[(usize, u64)]) -> Result<()> {
        let (there, lower): (Vec<_>, Vec<_>) = votes.iter().partition(|(_, number)| *number == token);
        let renewal = Renew { place: place.clone(), lease, at_least: Some(token) };
        let lower = lower.into_iter().map(|(node, _)| node).collect();
        let mut answers = self.ask_these(lower, move |shared, node| {
            let renewal = renewal.clone();
            async move { shared.nodes[node].renew(std::slice::from_ref(&renewal)).await }
        });
        let (mut raised, mut errors) = (there.len(), Vec::new());
        while raised < self.majority() {
            match answers.next().await {
                Some((_, Ok(answer))) if matches!(answer[..], [Renewed::There { .. }]) => raised += 1,
                Some((node, Ok(_))) => errors.push((node, Error::unknown("the ticket is gone again"))),
                Some((node, Err(error))) => errors.push((node, error)),
                None => return Err(self.too_few(raised, &errors)),
            }
        }
        Ok(())
    }

    /// Enters a ticket on one node; one that nobody wants by then is taken back.
    async fn enter_node(self: Arc<Self>, node: usize, place: Place, enter: Enter) -> Result<Vote> {
        let on_nodes = enter.place.clone();
        let answer = self.nodes[node].enter(std::slice::from_ref(&enter)).await;
        let vote = match answer.map(|mut entered| entered.pop()) {
            Ok(Some(Entered::Admitted { token: number, lease })) => {
                let before = self.wanted.has(&place, on_nodes.id, node, number);
                Ok(Vote::For { number, lease, before })
            }
            Ok(Some(Entered::Full { holder })) => Ok(Vote::Against { holder }),
            Ok(_) => Err(short_answer()),
            Err(error) => Err(error),
        };
        let may_be_there = match &vote {
            Ok(vote) => matches!(vote, Vote::For { .. }),
            Err(error) => error.effect() == crate::Effect::Unknown,
        };
        if may_be_there && !self.wanted.wants(&place, on_nodes.id) {
            let _ = self.leave_node(node, on_nodes).await;
        }
        vote
    }

    /// Takes an attempt back, everywhere: also where no answer has come.
    async fn withdraw(self: &Arc<Self>, place: &Place, on_nodes: &Place) {
        self.wanted.withdraw(place, on_nodes.id);
        let place = on_nodes.clone();
        let mut answers = self.ask(move |shared, node| shared.leave_node(node, place.clone()));
        while answers.next().await.is_some() {}
    }

    pub(super) async fn renew(self: &Arc<Self>, batch: &[Renew]) -> Result<Vec<Renewed>> {
        let places: Arc<[Place]> = batch.iter().map(|ticket| ticket.place.clone()).collect();
        let on_nodes: Arc<[Renew]> = batch
            .iter()
            .map(|ticket| Renew {
                place: self.wanted.on_nodes(&ticket.place),
                lease: longer(ticket.lease),
                at_least: None,
            })
            .collect();
        let mut answers = {
            let (places, on_nodes) = (places.clone(), on_nodes.clone());
            self.ask(move |shared, node| shared.renew_node(node, places.clone(), on_nodes.clone()))
        };
        let mut leases: Vec<Vec<Duration>> = vec![Vec::new(); batch.len()];
        let mut gone = vec![0; batch.len()];
        let mut errors = Vec::new();
        while leases.iter().any(|there| there.len() < self.majority()) {
            match answers.next().await {
                None => break,
                Some((_, Ok(answer))) => {
                    for (at, answer) in answer.into_iter().enumerate() {
                        match answer {
                            Renewed::There { lease } => leases[at].push(lease),
                            Renewed::Gone => gone[at] += 1,
                        }
                    }
                }
                Some((node, Err(error))) => errors.push((node, error)),
            }
        }
        let mut renewed = Vec::with_capacity(batch.len());
        for (at, leases) in leases.iter_mut().enumerate() {
            if leases.len() >= self.majority() {
                renewed.push(Renewed::There { lease: self.validity(leases) });
            } else if gone[at] > self.spare() {
                // Below a majority: what is left of it is in everybody's way.
                self.wanted.withdraw(&places[at], on_nodes[at].place.id);
                let place = on_nodes[at].place.clone();
                drop(self.ask(move |shared, node| shared.leave_node(node, place.clone())));
                renewed.push(Renewed::Gone);
            } else {
                return Err(self.too_few(leases.len() + gone[at], &errors));
            }
        }
        Ok(renewed)
    }

    /// Renews on one node, and enters there what it has missed.
    async fn renew_node(
        self: Arc<Self>,
        node: usize,
        places: Arc<[Place]>,
        batch: Arc<[Renew]>,
    ) -> Result<Vec<Renewed>> {
        let renewed = self.nodes[node].renew(&batch).await?;
        if renewed.len() != batch.len() {
            return Err(short_answer());
        }
        let missed = renewed.iter().zip(places.iter()).filter(|(renewed, _)| matches!(renewed, Renewed::Gone));
        let missed: Vec<Place> = missed.map(|(_, place)| place.clone()).collect();
        if !missed.is_empty() {
            let this = self.clone();
            self.spawn(async move {
                for place in missed {
                    if let Some(mut enter) = this.wanted.to_fill(&place) {
                        enter.lease = longer(enter.lease);
                        let _ = this.clone().enter_node(node, place, enter).await;
                    }
                }
            });
        }
        Ok(renewed)
    }

    /// Whether a majority has it.
    pub(super) async fn look(self: &Arc<Self>, place: &Place) -> Result<Waited> {
        let (on_nodes, now) = (self.wanted.on_nodes(place), self.clock.now());
        let mut answers = self.ask(move |shared, node| {
            let place = on_nodes.clone();
            async move { shared.nodes[node].wait(&place, now).await }
        });
        let (mut numbers, mut gone, mut errors) = (Vec::new(), 0, Vec::new());
        while let Some((node, answer)) = answers.next().await {
            match answer {
                Ok(Waited::Admitted { token }) => numbers.push(token),
                Ok(Waited::Waiting | Waited::Gone) => gone += 1,
                Err(error) => errors.push((node, error)),
            }
        }
        if numbers.len() >= self.majority() {
            let token = self.wanted.token(place).or(numbers.into_iter().max()).unwrap_or_default();
            return Ok(Waited::Admitted { token });
        }
        if gone > self.spare() { Ok(Waited::Gone) } else { Err(self.too_few(numbers.len() + gone, &errors)) }
    }
}

/// A node's number is no token of the quorum.
pub(super) fn without_number(seen: Seen) -> Seen {
    Seen { token: None, ..seen }
}
