//! The store held to the rule: random histories on real scripts and on [`line::Line`], which must agree on every answer.

use crate::server::Server;
use crate::support::{client, ticket};
use fencelock::ErrorKind;
use fencelock::clock::Moment;
use fencelock::line::{Entry, Line, Raise, WHOLE};
use fencelock::store::{Enter, Entered, Kind, Place, Presence, Store, TicketId, Upgraded, Waited};
use std::sync::Arc;

struct Pair {
    store: Arc<dyn Store>,
    name: String,
    line: Line<TicketId, ()>,
    tickets: Vec<Enter>,
    /// The model numbers tickets itself; only the order must agree.
    number: u64,
    tokens: Vec<(u64, u64)>,
}

impl Pair {
    async fn enter(&mut self, ticket: Enter) {
        self.number += 1;
        let known = self.line.get(ticket.place.id).map(|(number, there)| (number, there.admitted));
        let expected = match known {
            Some((_, true)) => Entry::Admitted,
            Some((_, false)) => Entry::Queued,
            None => self.line.enter(ticket.place.id, self.number, ticket.weight, ticket.capacity, ticket.queue, ()),
        };
        let answer = self.store.enter(std::slice::from_ref(&ticket)).await;
        let token = match (&expected, answer) {
            (Entry::Mismatch { .. }, Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Mismatch);
                None
            }
            (_, Err(error)) => panic!("{error}"),
            (expected, Ok(answers)) => match (expected, &answers[0]) {
                (Entry::Admitted, Entered::Admitted { token, .. }) => Some(*token),
                (Entry::Queued, Entered::Queued { token: Some(token), .. }) => Some(*token),
                (Entry::Full, Entered::Full { .. }) => None,
                (expected, got) => panic!("{expected:?} was expected of {ticket:?}, not {got:?}"),
            },
        };
        if let Some(token) = token {
            let number = known.map_or(self.number, |(number, _)| number);
            self.tokens.push((number, token));
        }
        self.tickets.push(ticket);
    }

    async fn standing(&self, place: &Place) -> &'static str {
        match self.store.wait(place, Moment::default()).await.unwrap() {
            Waited::Admitted { .. } => "inside",
            Waited::Waiting => "waiting",
            Waited::Gone => "gone",
        }
    }

    async fn check(&mut self) {
        let seen = self.store.inspect(&self.tickets[0].place.name).await.unwrap();
        let model: Vec<(u32, bool)> = self.line.iter().map(|(_, there)| (there.weight, there.admitted)).collect();
        let real: Vec<(u32, bool)> = seen
            .inside
            .iter()
            .map(|seen| (seen.weight, true))
            .chain(seen.waiting.iter().map(|seen| (seen.weight, false)))
            .collect();
        assert_eq!(real, model, "{}", self.name);
        assert_eq!(seen.capacity, self.line.capacity().unwrap_or(0));
        self.tokens.sort_unstable();
        self.tokens.dedup();
        for pair in self.tokens.windows(2) {
            assert!(pair[0].0 == pair[1].0 && pair[0].1 == pair[1].1 || pair[0].1 < pair[1].1, "{pair:?}");
        }
        for ticket in &self.tickets {
            let expected = match self.line.get(ticket.place.id) {
                Some((_, there)) if there.admitted => "inside",
                Some(_) => "waiting",
                None => "gone",
            };
            let mut found = self.standing(&ticket.place).await;
            if found == "inside" && expected == "gone" {
                // A grant that was told before it was put out: the next question is put to the server.
                found = self.standing(&ticket.place).await;
            }
            // A wait whose time is up need not ask the server again.
            assert!(found == expected || found == "waiting", "{found} but {expected}");
        }
    }
}

async fn history(store: Arc<dyn Store>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let capacity = [WHOLE, WHOLE, 1, 3, 5][random.usize(..5)];
    let name = format!("history/{seed}");
    let mut pair =
        Pair { store, name: name.clone(), line: Line::default(), tickets: Vec::new(), number: 0, tokens: Vec::new() };
    for _ in 0..random.usize(5..40) {
        match random.u8(..12) {
            0..5 => {
                let mut new = ticket(&name);
                new.capacity = if random.u8(..20) == 0 { 7 } else { capacity };
                new.weight = match random.u8(..3) {
                    0 => new.capacity,
                    1 => 1,
                    _ => random.u32(1..=new.capacity.min(4)),
                };
                new.kind = match (new.capacity == WHOLE, new.weight == WHOLE) {
                    (true, true) => Kind::Write,
                    (true, false) => Kind::Read,
                    _ => Kind::Permits,
                };
                new.queue = random.u8(..4) > 0;
                pair.enter(new).await;
            }
            5 if !pair.tickets.is_empty() => {
                let again = pair.tickets[random.usize(..pair.tickets.len())].clone();
                if pair.line.get(again.place.id).is_some() {
                    pair.enter(again).await;
                }
            }
            6..9 if !pair.tickets.is_empty() => {
                let place = pair.tickets[random.usize(..pair.tickets.len())].place.clone();
                let there = if pair.line.leave(place.id).is_some() { Presence::There } else { Presence::Gone };
                assert_eq!(pair.store.leave(&[place]).await.unwrap(), [there]);
            }
            9 if !pair.tickets.is_empty() => {
                let place = pair.tickets[random.usize(..pair.tickets.len())].place.clone();
                let weight = random.u32(1..4);
                let there = if pair.line.change(place.id, weight).is_some() { Presence::There } else { Presence::Gone };
                assert_eq!(pair.store.change(&place, Some(weight), None).await.unwrap(), there);
            }
            10 if !pair.tickets.is_empty() => {
                let mut old = pair.tickets[random.usize(..pair.tickets.len())].clone();
                let new = TicketId::new();
                pair.number += 1;
                let answer = pair.store.upgrade(&old.place, new).await.unwrap();
                match (pair.line.upgrade(old.place.id, new, pair.number), answer) {
                    (Raise::Admitted, Upgraded::Admitted { token }) => {
                        pair.tokens.push((pair.number, token));
                        old.place = Place { name: old.place.name, id: new };
                        pair.tickets.push(old);
                    }
                    (Raise::Held, Upgraded::Held { .. }) | (Raise::Gone, Upgraded::Gone) => {}
                    (expected, got) => panic!("{expected:?} was expected, not {got:?}"),
                }
            }
            11 if !pair.tokens.is_empty() => {
                let (number, token) = pair.tokens[random.usize(..pair.tokens.len())];
                let id = pair.line.iter().find(|(other, _)| *other == number).map(|(_, ticket)| ticket.id);
                let there = id.and_then(|id| pair.line.leave(id)).is_some();
                let name = &pair.tickets[0].place.name;
                let told = pair.store.expel(name, token).await.unwrap() == Presence::There;
                assert_eq!(told, there);
            }
            _ => {}
        }
        if !pair.tickets.is_empty() {
            pair.check().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_histories_agree_with_the_rule() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    let from = fastrand::u64(..1 << 40);
    for seed in from..from + 150 {
        let history = tokio::spawn(history(store.clone(), seed));
        assert!(history.await.is_ok(), "seed {seed}");
    }
}
