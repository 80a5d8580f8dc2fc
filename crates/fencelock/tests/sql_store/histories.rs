//! The database against the rule: random histories, every answer and the whole line compared after each step.

use crate::{fresh, ticket};
use fencelock::line::{Entry, Line, Raise, WHOLE};
use fencelock::store::{Entered, Place, Presence, Renew, Renewed, Store, TicketId, Upgraded};
use fencelock::{ErrorKind, Locks};
use std::time::Duration;

/// A small generator of random numbers: histories can be told by their seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let at = self.roll(all.len() as u64);
        &all[usize::try_from(at).expect("small")]
    }
}

#[tokio::test]
async fn answers_are_those_of_the_rule() {
    let (_server, url) = fresh().await;
    let locks = Locks::connect(&url).await.unwrap();
    for seed in 1..=30 {
        history(&**locks.store(), seed).await;
    }
}

async fn history(store: &dyn Store, seed: u64) {
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15 ^ (seed << 32));
    let name = format!("history/{seed}");
    let mut line: Line<TicketId, ()> = Line::default();
    let mut last = 0;
    let mut places: Vec<Place> = Vec::new();
    let capacity = *dice.pick(&[WHOLE, 3, 5]);
    for step in 0..40 {
        let at = format!("seed {seed}, step {step}");
        match dice.roll(10) {
            0..=4 => {
                let capacity = if dice.roll(12) == 0 { 4 } else { capacity };
                let most =
                    if capacity == WHOLE { *dice.pick(&[1, 1, WHOLE]) } else { 1 + dice.roll(capacity.into()) as u32 };
                let enter = ticket(&name, most, capacity, dice.roll(3) > 0);
                let answer = store.enter(std::slice::from_ref(&enter)).await;
                let id = enter.place.id;
                // The model takes the number that the store gave.
                let token = match answer.as_deref() {
                    Ok([Entered::Admitted { token, .. } | Entered::Queued { token: Some(token), .. }]) => *token,
                    _ => last + 1,
                };
                assert!(token > last, "{at}: numbers grow");
                match line.enter(id, token, most, capacity, enter.queue, ()) {
                    Entry::Mismatch { there } => {
                        let error = answer.expect_err(&at);
                        assert_eq!(error.kind(), ErrorKind::Mismatch, "{at}");
                        assert!(error.to_string().contains(&spoken(there)), "{at}: {error}");
                        continue;
                    }
                    Entry::Full => {
                        assert!(matches!(answer.expect(&at)[..], [Entered::Full { holder: Some(_) }]), "{at}");
                    }
                    expected => {
                        let found = match &answer.expect(&at)[..] {
                            [Entered::Admitted { .. }] => Entry::Admitted,
                            [Entered::Queued { ahead: Some(_), .. }] => Entry::Queued,
                            other => panic!("{at}: {other:?} instead of {expected:?}"),
                        };
                        assert_eq!(found, expected, "{at}");
                        last = token;
                        places.push(enter.place.clone());
                        // Once more: nothing changes.
                        let again = store.enter(std::slice::from_ref(&enter)).await.expect(&at);
                        assert!(
                            matches!(again[..], [Entered::Admitted { token: t, .. } | Entered::Queued { token: Some(t), .. }] if t == token),
                            "{at}: {again:?}"
                        );
                    }
                }
            }
            _ if places.is_empty() => {}
            5 | 6 => {
                let place = dice.pick(&places).clone();
                let expected = if line.leave(place.id).is_some() { Presence::There } else { Presence::Gone };
                assert_eq!(store.leave(&[place]).await.expect(&at), [expected], "{at}");
            }
            7 => {
                let place = dice.pick(&places).clone();
                let weight = 1 + dice.roll(3) as u32;
                let expected = if line.change(place.id, weight).is_some() { Presence::There } else { Presence::Gone };
                assert_eq!(store.change(&place, Some(weight), None).await.expect(&at), expected, "{at}");
            }
            8 => {
                let place = dice.pick(&places).clone();
                let new = TicketId::new();
                let answer = store.upgrade(&place, new).await.expect(&at);
                match (line.upgrade(place.id, new, last + 1), answer) {
                    (Raise::Gone, Upgraded::Gone) | (Raise::Held, Upgraded::Held { by: Some(_) }) => {}
                    (Raise::Admitted, Upgraded::Admitted { token }) => {
                        assert_eq!(token, last + 1, "{at}");
                        last = token;
                        places.push(Place { name: place.name, id: new });
                    }
                    (expected, answer) => panic!("{at}: {answer:?} instead of {expected:?}"),
                }
            }
            _ => {
                let place = dice.pick(&places).clone();
                let there = line.get(place.id).map(|(number, _)| number);
                if dice.roll(2) == 0 {
                    let renew =
                        Renew { place: place.clone(), lease: Duration::from_secs(90), at_least: Some(last + 3) };
                    let answer = store.renew(&[renew]).await.expect(&at);
                    assert_eq!(matches!(answer[..], [Renewed::There { .. }]), there.is_some(), "{at}");
                    if there.is_some() {
                        last += 3;
                    }
                } else if let Some(number) = there {
                    line.leave(place.id);
                    assert_eq!(store.expel(&place.name, number).await.expect(&at), Presence::There, "{at}");
                    assert_eq!(store.expel(&place.name, number).await.expect(&at), Presence::Gone, "{at}");
                }
            }
        }
        let seen = store.inspect(&ticket(&name, 1, 1, true).place.name).await.expect(&at);
        let of = |inside: bool| {
            let all = line.iter().filter(move |(_, ticket)| ticket.admitted == inside);
            all.map(|(number, ticket)| (Some(number), ticket.weight)).collect::<Vec<_>>()
        };
        let inside: Vec<_> = seen.inside.iter().map(|seen| (seen.token, seen.weight)).collect();
        let waiting: Vec<_> = seen.waiting.iter().map(|seen| (seen.token, seen.weight)).collect();
        assert_eq!((inside, waiting), (of(true), of(false)), "{at}");
        assert_eq!(seen.capacity, line.capacity().unwrap_or(0), "{at}");
    }
}

/// How a capacity is spoken of in an error.
fn spoken(capacity: u32) -> String {
    if capacity == WHOLE { "in use as a mutex".into() } else { format!("in use as a semaphore of {capacity}") }
}
