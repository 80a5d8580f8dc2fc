//! Random histories: the same acts on the store and on the rule (`fencelock::line::Line`), compared after each one.

use crate::ctx::{Client, Ctx, SOON, leased, unqueued};
use crate::suite::tests;
use fencelock::ErrorKind;
use fencelock::line::{Entry, Line, Raise, WHOLE};
use fencelock::name::Name;
use fencelock::store::{Enter, Entered, Lifetime, Presence, Renewed, TicketId, Upgraded, Waited};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

tests!("histories":
    mutexes_follow_the_rule [Fair],
    readers_and_writers_follow_the_rule [Fair Readers],
    permits_follow_the_rule [Fair Permits],
    everything_at_once_follows_the_rule [Fair Permits],
);

/// What tickets a history is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flavour {
    Mutexes,
    ReadersAndWriters,
    Permits,
    Everything,
}

async fn mutexes_follow_the_rule(ctx: Arc<Ctx>) {
    histories(&ctx, Flavour::Mutexes).await;
}

async fn readers_and_writers_follow_the_rule(ctx: Arc<Ctx>) {
    histories(&ctx, Flavour::ReadersAndWriters).await;
}

async fn permits_follow_the_rule(ctx: Arc<Ctx>) {
    histories(&ctx, Flavour::Permits).await;
}

async fn everything_at_once_follows_the_rule(ctx: Arc<Ctx>) {
    histories(&ctx, Flavour::Everything).await;
}

async fn histories(ctx: &Ctx, flavour: Flavour) {
    let mut rng = ctx.rng();
    let clients = [ctx.client().await, ctx.client().await, ctx.client().await];
    let started = std::time::Instant::now();
    for round in 0..ctx.rounds(12) {
        // A slow store gets fewer of them.
        if round >= 3 && started.elapsed() > Duration::from_secs(15) * ctx.rounds(1) as u32 {
            break;
        }
        let name = ctx.name(&format!("h{round}"));
        let mut history = History {
            ctx,
            clients: &clients,
            name,
            model: Line::default(),
            next: 0,
            tickets: Vec::new(),
            homes: HashMap::new(),
        };
        let acts = 40 + rng.usize(..40);
        let mut told = Vec::new();
        for _ in 0..acts {
            told.push(history.act(&mut rng, flavour).await);
            history.compare(&mut rng, &told).await;
        }
        history.end().await;
    }
}

/// One line, on the store and on the rule.
struct History<'a> {
    ctx: &'a Ctx,
    clients: &'a [Client],
    name: Name,
    /// The facts are the owner, by which the store's tickets are known.
    model: Line<TicketId, String>,
    next: u64,
    /// Every ticket there ever was.
    tickets: Vec<Enter>,
    /// Who entered which, where a ticket hangs on its client's session or connection: only that one can change it.
    homes: HashMap<TicketId, usize>,
}

impl History<'_> {
    fn some_ticket(&self, rng: &mut fastrand::Rng) -> Option<Enter> {
        // Mostly one of the latest: those are more likely to be there.
        let recent = self.tickets.len().saturating_sub(6);
        let from = if rng.u8(..4) == 0 { 0 } else { recent };
        (!self.tickets.is_empty()).then(|| self.tickets[rng.usize(from..self.tickets.len())].clone())
    }

    fn new_ticket(&self, rng: &mut fastrand::Rng, flavour: Flavour) -> Enter {
        let semaphore = match flavour {
            Flavour::Permits => rng.u8(..12) != 0,
            Flavour::Everything => {
                self.model.capacity().map_or(rng.bool(), |there| (there != WHOLE) != (rng.u8(..8) == 0))
            }
            _ => false,
        };
        let ticket = if semaphore {
            let of = if rng.u8(..10) == 0 { 4 } else { self.model.capacity().filter(|c| *c != WHOLE).unwrap_or(3) };
            self.ctx.permits(&self.name, rng.u32(1..=of), of)
        } else if flavour == Flavour::Mutexes {
            self.ctx.mutex(&self.name)
        } else {
            match rng.u8(..5) {
                0 => self.ctx.writer(&self.name),
                1 => self.ctx.mutex(&self.name),
                _ => self.ctx.reader(&self.name),
            }
        };
        if rng.u8(..4) == 0 { unqueued(ticket) } else { ticket }
    }

    /// One random act on both; says what it was.
    async fn act(&mut self, rng: &mut fastrand::Rng, flavour: Flavour) -> String {
        let any = rng.usize(..self.clients.len());
        let known = self.some_ticket(rng);
        let home = known.as_ref().and_then(|ticket| self.homes.get(&ticket.place.id)).copied();
        let client = &self.clients[home.unwrap_or(any)];
        match (rng.u8(..20), known) {
            (0..8, _) | (_, None) => {
                let client = &self.clients[any];
                let ticket = self.new_ticket(rng, flavour);
                if client.store.capability().lifetime != Lifetime::Ticket {
                    self.homes.insert(ticket.place.id, any);
                }
                self.enter(client, &ticket).await;
                format!("enter {:?} {} of {} queue {}", ticket.place.id, ticket.weight, ticket.capacity, ticket.queue)
            }
            (8, Some(ticket)) => {
                self.enter(client, &ticket).await;
                format!("enter again {:?}", ticket.place.id)
            }
            (9..14, Some(ticket)) => {
                let there = client.leave(&ticket).await == Presence::There;
                let expected = self.model.leave(ticket.place.id).is_some();
                assert_eq!(there, expected, "leave {:?}", ticket.place.id);
                format!("leave {:?}", ticket.place.id)
            }
            (14..16, Some(ticket)) if flavour != Flavour::Mutexes => {
                let weight = rng.u32(1..=3);
                let there = client.lower(&ticket, weight).await == Presence::There;
                assert_eq!(there, self.model.change(ticket.place.id, weight).is_some(), "change {:?}", ticket.place.id);
                format!("change {:?} to {weight}", ticket.place.id)
            }
            (16..18, Some(ticket))
                if ticket.kind == fencelock::store::Kind::Read && client.store.capability().upgrade =>
            {
                self.upgrade(client, &ticket).await;
                format!("upgrade {:?}", ticket.place.id)
            }
            (18, Some(ticket)) => {
                let line = client.inspect(&self.name).await;
                let owner = ticket.owner.to_string();
                let seen = line.inside.iter().chain(&line.waiting).find(|seen| seen.owner == owner);
                let number = seen.and_then(|seen| seen.token).filter(|_| client.store.capability().expel);
                if let Some(number) = number {
                    let expelled = client.store.expel(&self.name, number).await.expect("expel");
                    assert_eq!(expelled, Presence::There);
                    let id = self.model.iter().find(|(_, known)| known.facts == owner).map(|(_, known)| known.id);
                    assert!(id.and_then(|id| self.model.leave(id)).is_some(), "expelled whom the rule does not know");
                }
                format!("expel {:?}", ticket.place.id)
            }
            (_, Some(ticket)) => {
                let there = client.renew(&ticket, self.ctx.long()).await != Renewed::Gone;
                assert_eq!(there, self.model.get(ticket.place.id).is_some(), "renew {:?}", ticket.place.id);
                let expected = self.model.get(ticket.place.id).map(|(_, known)| known.admitted);
                // A grant may still be on its way to who waits for it.
                let at_most = if expected == Some(true) { SOON } else { Duration::ZERO };
                let inside = client.wait(&ticket, at_most).await;
                let found = match inside {
                    Waited::Admitted { .. } => Some(true),
                    Waited::Waiting => Some(false),
                    Waited::Gone => None,
                };
                assert_eq!(found, expected, "wait {:?}", ticket.place.id);
                format!("renew {:?}", ticket.place.id)
            }
        }
    }

    async fn enter(&mut self, client: &Client, ticket: &Enter) {
        let id = ticket.place.id;
        let expected = match self.model.get(id) {
            Some((_, known)) if known.admitted => Entry::Admitted,
            Some(_) => Entry::Queued,
            None => {
                self.next += 1;
                let owner = ticket.owner.to_string();
                self.model.enter(id, self.next, ticket.weight, ticket.capacity, ticket.queue, owner)
            }
        };
        let ticket = leased(ticket.clone(), self.ctx.long());
        let found = match client.store.enter(std::slice::from_ref(&ticket)).await {
            Ok(answers) => match &answers[..] {
                [Entered::Admitted { .. }] => Entry::Admitted,
                [Entered::Queued { .. }] => Entry::Queued,
                [Entered::Full { .. }] => Entry::Full,
                other => panic!("one ticket, but {other:?}"),
            },
            Err(error) if error.kind() == ErrorKind::Mismatch => match expected {
                // Only the text names the numbers.
                Entry::Mismatch { there } => Entry::Mismatch { there },
                _ => panic!("{error}, but the rule says {expected:?}"),
            },
            Err(error) => panic!("enter: {error}"),
        };
        assert_eq!(found, expected, "enter {id:?} {} of {}", ticket.weight, ticket.capacity);
        if !self.tickets.iter().any(|known| known.place.id == id) {
            self.tickets.push(ticket);
        }
    }

    async fn upgrade(&mut self, client: &Client, ticket: &Enter) {
        let mut new = ticket.clone();
        new.place.id = TicketId::new();
        new.weight = new.capacity;
        self.next += 1;
        let expected = self.model.upgrade(ticket.place.id, new.place.id, self.next);
        let found = match client.store.upgrade(&ticket.place, new.place.id).await.expect("upgrade") {
            Upgraded::Admitted { .. } => Raise::Admitted,
            Upgraded::Held { .. } => Raise::Held,
            Upgraded::Gone => Raise::Gone,
        };
        assert_eq!(found, expected, "upgrade {:?}", ticket.place.id);
        if found == Raise::Admitted {
            if let Some(home) = self.homes.get(&ticket.place.id).copied() {
                self.homes.insert(new.place.id, home);
            }
            self.tickets.push(new);
        }
    }

    /// Who is inside and who waits, in order, with their weights; and numbers that grow.
    async fn compare(&self, rng: &mut fastrand::Rng, told: &[String]) {
        let client = &self.clients[rng.usize(..self.clients.len())];
        let line = client.inspect(&self.name).await;
        let seen = |list: &[fencelock::Seen]| -> Vec<(String, u32)> {
            list.iter().map(|seen| (seen.owner.clone(), seen.weight)).collect()
        };
        let expected = |admitted: bool| -> Vec<(String, u32)> {
            let tickets = self.model.iter().filter(|(_, ticket)| ticket.admitted == admitted);
            tickets.map(|(_, ticket)| (ticket.facts.clone(), ticket.weight)).collect()
        };
        // Where tickets hang on sessions, a server that is a little behind the others may be the one that was asked.
        let lags = client.store.capability().lifetime == Lifetime::Session;
        let limit = std::time::Instant::now() + if lags { SOON } else { Duration::ZERO };
        let mut line = line;
        while (seen(&line.inside), seen(&line.waiting)) != (expected(true), expected(false))
            && std::time::Instant::now() < limit
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
            line = client.inspect(&self.name).await;
        }
        assert_eq!(seen(&line.inside), expected(true), "who is inside, after {told:#?}");
        assert_eq!(seen(&line.waiting), expected(false), "who waits, after {told:#?}");
        assert_eq!(line.capacity, self.model.capacity().unwrap_or(0), "after {told:#?}");
        let numbers: Vec<u64> = line.inside.iter().chain(&line.waiting).filter_map(|seen| seen.token).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?} after {told:#?}");
    }

    async fn end(mut self) {
        for ticket in std::mem::take(&mut self.tickets) {
            self.clients[self.homes.get(&ticket.place.id).copied().unwrap_or(0)].leave(&ticket).await;
        }
        assert!(self.clients[0].is_empty(&self.name).await, "something is left at the end");
    }
}
