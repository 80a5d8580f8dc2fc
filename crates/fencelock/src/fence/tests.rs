//! The fence and the line together: every grant of a history may come to the resource at any time, late ones included.
//!
//! Over all histories of up to four tickets, and over long random ones: no access is accepted after a conflicting access of
//! a grant later *in time* was (safety), and no rightful holder is refused (liveness). Then the same with rules that are
//! broken on purpose, so that one sees the checker find what it looks for.

use super::*;
use crate::line::{Entry, Line, Raise, WHOLE};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use std::collections::HashSet;

type Id = u8;

/// How the resource judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    /// As [`Marks`] does.
    TwoMarks,
    /// Broken: one mark, and the highest number wins.
    OneMark,
    /// Broken: one mark, to which shared accesses are only compared. This is a fence without the shared mark.
    NoSharedMark,
    /// Broken: shared accesses leave their mark, but are not compared themselves.
    SharedUnjudged,
}

/// How the line is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    /// As [`Line`] does.
    Sound,
    /// Broken: an upgrade keeps its token.
    UpgradeKeepsToken,
    /// Broken: an upgrade is possible while others wait.
    UpgradeBeforeWaiters,
    /// Broken: an enter that does not queue overtakes those who wait.
    Overtaking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rules {
    fence: Fence,
    keeper: Keeper,
}

const SOUND: Rules = Rules { fence: Fence::TwoMarks, keeper: Keeper::Sound };

/// What can happen. A lapse is a leave that its client does not know of; since a request can be delayed without bound, an
/// access may come from whoever was ever admitted, and nothing more is needed to tell the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Enter {
        mode: Mode,
        queue: bool,
    },
    Leave(Id),
    Downgrade(Id),
    Upgrade(Id),
    /// By the n-th grant, in a mode that it has or had.
    Access(usize, Mode),
}

/// One admission. Their order is that of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    id: Id,
    token: u64,
    was_exclusive: bool,
    was_shared: bool,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// An access was accepted after a conflicting one of a later grant.
    Overtaken,
    /// A rightful holder was refused.
    Refused,
}

#[derive(Clone)]
struct World {
    rules: Rules,
    line: Line<Id, ()>,
    /// The last number given to a ticket. Broken keepers renumber the line, so a ticket's token is kept beside it.
    number: u64,
    tokens: Vec<u64>,
    grants: Vec<Grant>,
    marks: Marks,
    /// The latest grant of which an exclusive access was accepted, and the latest with a shared one, counted from 1. Of all
    /// accepted accesses these two decide: what conflicts with an earlier grant's conflicts with theirs.
    latest_exclusive: usize,
    latest_shared: usize,
}

/// All on which the future depends: the line as ids, weights and admissions, and everything but the rules.
type Key = (Vec<(Id, u32, bool)>, u64, Vec<u64>, Vec<Grant>, Marks, [usize; 2]);

impl World {
    fn new(rules: Rules) -> World {
        World {
            rules,
            line: Line::default(),
            number: 0,
            tokens: Vec::new(),
            grants: Vec::new(),
            marks: Marks::default(),
            latest_exclusive: 0,
            latest_shared: 0,
        }
    }

    fn key(&self) -> Key {
        let line = self.line.iter().map(|(_, ticket)| (ticket.id, ticket.weight, ticket.admitted)).collect();
        let latest = [self.latest_exclusive, self.latest_shared];
        (line, self.number, self.tokens.clone(), self.grants.clone(), self.marks, latest)
    }

    /// A ticket's mode now, if it is in the line.
    fn mode(&self, id: Id) -> Option<Mode> {
        let (_, ticket) = self.line.get(id)?;
        Some(if ticket.weight == WHOLE { Mode::Exclusive } else { Mode::Shared })
    }

    /// The next ticket.
    fn next(&self) -> Id {
        self.tokens.len() as Id
    }

    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Lets one thing happen.
    fn step(&mut self, event: Event) -> Result<(), Wrong> {
        match event {
            Event::Enter { mode, queue } => self.enter(if mode == Mode::Exclusive { WHOLE } else { 1 }, queue),
            Event::Leave(id) => {
                let newly = self.line.leave(id).map_or(Vec::new(), |(_, newly)| newly);
                self.grant(newly);
            }
            Event::Downgrade(id) => {
                let newly = self.line.change(id, 1).unwrap_or_default();
                if let Some(grant) = self.grants.iter_mut().find(|grant| grant.id == id) {
                    grant.was_shared |= self.line.get(id).is_some();
                }
                self.grant(newly);
            }
            Event::Upgrade(id) => self.upgrade(id),
            Event::Access(by, mode) => return self.access(by, mode),
        }
        Ok(())
    }

    /// Writes down who came in.
    fn grant(&mut self, newly: Vec<Id>) {
        for id in newly {
            let exclusive = self.mode(id) == Some(Mode::Exclusive);
            let token = self.tokens[usize::from(id)];
            let number = self.line.get(id).map(|(number, _)| number);
            assert!(self.rules.keeper != Keeper::Sound || number == Some(token), "the token is the ticket's number");
            self.grants.push(Grant { id, token, was_exclusive: exclusive, was_shared: !exclusive });
        }
    }

    fn enter(&mut self, weight: u32, queue: bool) {
        let (id, number) = (self.next(), self.number());
        match self.line.enter(id, number, weight, WHOLE, queue, ()) {
            Entry::Admitted => {
                self.tokens.push(number);
                self.grant(vec![id]);
            }
            Entry::Queued => self.tokens.push(number),
            Entry::Full if self.rules.keeper == Keeper::Overtaking => self.overtake(id, number, weight),
            Entry::Full => self.number -= 1,
            Entry::Mismatch { there } => unreachable!("all have the same capacity, and there is {there}"),
        }
    }

    fn upgrade(&mut self, id: Id) {
        let (new, number) = (self.next(), self.number());
        match self.line.upgrade(id, new, number) {
            Raise::Admitted if self.rules.keeper == Keeper::UpgradeKeepsToken => {
                self.tokens.push(self.tokens[usize::from(id)]);
                self.grant(vec![new]);
            }
            Raise::Admitted => {
                self.tokens.push(number);
                self.grant(vec![new]);
            }
            Raise::Held if self.rules.keeper == Keeper::UpgradeBeforeWaiters => self.upgrade_first(id, new, number),
            Raise::Held | Raise::Gone => self.number -= 1,
        }
    }

    /// Broken: squeezes a ticket in behind those who are inside, if they leave room, before those who wait.
    fn overtake(&mut self, id: Id, token: u64, weight: u32) {
        let (mut order, waiting): (Vec<_>, Vec<_>) = self.order().into_iter().partition(|(id, _)| self.is_inside(*id));
        if order.iter().map(|(_, weight)| weight).sum::<u32>() + weight <= WHOLE {
            order.push((id, weight));
            order.extend(waiting);
            self.rebuild(&order);
            self.tokens.push(token);
            self.grant(vec![id]);
        } else {
            self.number -= 1;
        }
    }

    /// Broken: upgrades the only one inside, before those who wait.
    fn upgrade_first(&mut self, id: Id, new: Id, token: u64) {
        let mut order = self.order();
        if order[0].0 == id && order[1..].iter().all(|(id, _)| !self.is_inside(*id)) {
            order[0] = (new, WHOLE);
            self.rebuild(&order);
            self.tokens.push(token);
            self.grant(vec![new]);
        } else {
            self.number -= 1;
        }
    }

    fn order(&self) -> Vec<(Id, u32)> {
        self.line.iter().map(|(_, ticket)| (ticket.id, ticket.weight)).collect()
    }

    fn is_inside(&self, id: Id) -> bool {
        self.line.get(id).is_some_and(|(_, ticket)| ticket.admitted)
    }

    fn rebuild(&mut self, order: &[(Id, u32)]) {
        self.line = Line::default();
        for (id, weight) in order {
            let number = self.number();
            self.line.enter(*id, number, *weight, WHOLE, true, ());
        }
    }

    /// An access comes to the resource.
    fn access(&mut self, by: usize, mode: Mode) -> Result<(), Wrong> {
        let grant = self.grants[by];
        let exclusive = mode == Mode::Exclusive;
        let before = self.marks;
        if let Err(overtaken) = self.judge(grant.token, mode) {
            assert_eq!(self.marks, before, "a refusal leaves no mark");
            assert!(overtaken.token == grant.token && overtaken.by > grant.token, "{overtaken:?}");
            let rightful = self.is_inside(grant.id) && self.mode(grant.id) == Some(mode);
            return if rightful { Err(Wrong::Refused) } else { Ok(()) };
        }
        let later = if exclusive { self.latest_exclusive.max(self.latest_shared) } else { self.latest_exclusive };
        let latest = if exclusive { &mut self.latest_exclusive } else { &mut self.latest_shared };
        *latest = (by + 1).max(*latest);
        if later > by + 1 { Err(Wrong::Overtaken) } else { Ok(()) }
    }

    fn judge(&mut self, number: u64, mode: Mode) -> Result<(), Overtaken> {
        let exclusive = mode == Mode::Exclusive;
        let marks = &mut self.marks;
        let by = match self.rules.fence {
            Fence::TwoMarks => {
                let token = Token::from_parts(number, mode, "stock/42", "memory").expect("no permit");
                return marks.accept(&token);
            }
            Fence::SharedUnjudged if !exclusive => 0,
            _ => marks.exclusive,
        };
        if number < by {
            return Err(Overtaken { token: number, by });
        }
        if exclusive || self.rules.fence != Fence::NoSharedMark {
            marks.exclusive = number.max(marks.exclusive);
        }
        Ok(())
    }

    /// All that can happen next, with at most so many tickets.
    fn events(&self, tickets: Id) -> Vec<Event> {
        let mut events = Vec::new();
        let more = self.next() < tickets;
        for mode in [Mode::Shared, Mode::Exclusive] {
            events.extend([true, false].map(|queue| Event::Enter { mode, queue }).into_iter().filter(|_| more));
        }
        for (_, ticket) in self.line.iter() {
            events.extend([Event::Leave(ticket.id), Event::Downgrade(ticket.id)]);
            events.extend(more.then_some(Event::Upgrade(ticket.id)));
        }
        for (by, grant) in self.grants.iter().enumerate() {
            events.extend(grant.was_shared.then_some(Event::Access(by, Mode::Shared)));
            events.extend(grant.was_exclusive.then_some(Event::Access(by, Mode::Exclusive)));
        }
        events
    }
}

/// What a walk through all histories has found: the first of each kind of wrong, and how much was seen.
#[derive(Debug, Default)]
struct Found {
    worlds: usize,
    steps: usize,
    overtaken: Option<Vec<Event>>,
    refused: Option<Vec<Event>>,
}

fn explore(rules: Rules, tickets: Id) -> Found {
    let (mut known, mut found) = (HashSet::from([World::new(rules).key()]), Found::default());
    deeper(&World::new(rules), tickets, &mut known, &mut found, &mut Vec::new());
    Found { worlds: known.len(), ..found }
}

fn deeper(world: &World, tickets: Id, known: &mut HashSet<Key>, found: &mut Found, path: &mut Vec<Event>) {
    for event in world.events(tickets) {
        let mut next = world.clone();
        path.push(event);
        found.steps += 1;
        match next.step(event) {
            Ok(()) => {}
            Err(Wrong::Overtaken) => drop(found.overtaken.get_or_insert_with(|| path.clone())),
            Err(Wrong::Refused) => drop(found.refused.get_or_insert_with(|| path.clone())),
        }
        if known.insert(next.key()) {
            assert!(known.len() < 20_000 && path.len() < 50, "a sound line has fewer worlds: {path:?}");
            deeper(&next, tickets, known, found, path);
        }
        path.pop();
    }
}

#[test]
fn two_marks_over_all_histories_of_four_tickets() {
    let found = explore(SOUND, 4);
    assert_eq!(found.overtaken, None, "safety");
    assert_eq!(found.refused, None, "liveness");
    // Exact, so that a history more or less is noticed.
    assert_eq!((found.worlds, found.steps), (7169, 51970));
}

/// The checker has teeth: each broken rule does what is said of it within three tickets, and nothing else.
#[test]
fn broken_rules_are_found_out() {
    let with_fence = |fence| Rules { fence, ..SOUND };
    let with_keeper = |keeper| Rules { keeper, ..SOUND };
    for (rules, overtaken, refused) in [
        // Readers 1 and 2 are inside: 2 reads, and 1 may not.
        (with_fence(Fence::OneMark), false, true),
        // Writer 1 lapses, reader 2 reads, and then 1 writes under it.
        (with_fence(Fence::NoSharedMark), true, false),
        // Reader 1 lapses, writer 2 writes, and then 1 reads.
        (with_fence(Fence::SharedUnjudged), true, false),
        // Readers 1 and 2, 2 lapses, 1 is upgraded and writes with 1: then 2 still reads; or 2 has read, and 1 may not write.
        (with_keeper(Keeper::UpgradeKeepsToken), true, true),
        // Reader 1 is upgraded to 3 before the waiting writer 2: then 3 has written, and 2 may not; or 2 has, and 3 still does.
        (with_keeper(Keeper::UpgradeBeforeWaiters), true, true),
        // Reader 3 comes in beside reader 1, before the waiting writer 2: then 3 has read, and 2 may not write; or 2 has,
        // and 3 still reads.
        (with_keeper(Keeper::Overtaking), true, true),
    ] {
        let found = explore(rules, 3);
        assert_eq!((found.overtaken.is_some(), found.refused.is_some()), (overtaken, refused), "{rules:?} {found:#?}");
        assert!(found.worlds > 100 && found.steps > 1000, "{rules:?} {found:#?}");
    }
}

/// Twelve tickets and up to a hundred events, of which half are accesses.
fn at_random(rules: Rules) -> Result<(), String> {
    const TICKETS: Id = 12;
    let kinds: [fn(&Event) -> bool; 5] = [
        |event| matches!(event, Event::Enter { .. }),
        |event| matches!(event, Event::Leave(_)),
        |event| matches!(event, Event::Downgrade(_)),
        |event| matches!(event, Event::Upgrade(_)),
        |event| matches!(event, Event::Access(..)),
    ];
    let kind =
        prop_oneof![4 => Just(0usize), 3 => Just(1usize), 1 => Just(2usize), 2 => Just(3usize), 10 => Just(4usize)];
    let draws = prop::collection::vec((kind, any::<prop::sample::Index>()), 1..100);
    let (rightful, stale, upgraded) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let count = |of: &Cell<usize>, when| of.set(of.get() + usize::from(when));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(256) });
    let outcome = runner.run(&draws, |draws| {
        let (mut world, mut history) = (World::new(rules), Vec::new());
        for (kind, pick) in draws {
            let events: Vec<Event> = world.events(TICKETS).into_iter().filter(kinds[kind]).collect();
            if events.is_empty() {
                continue;
            }
            let (event, grants) = (*pick.get(&events), world.grants.len());
            if let Event::Access(by, _) = event {
                let inside = world.is_inside(world.grants[by].id);
                count(&rightful, inside);
                count(&stale, !inside);
            }
            history.push(event);
            world.step(event).map_err(|wrong| TestCaseError::fail(format!("{wrong:?} by the last of {history:#?}")))?;
            count(&upgraded, matches!(event, Event::Upgrade(_)) && world.grants.len() > grants);
        }
        Ok(())
    });
    let tried = rightful.get() > 500 && stale.get() > 500 && upgraded.get() > 20;
    assert!(tried || outcome.is_err(), "{rightful:?} {stale:?} {upgraded:?}");
    outcome.map_err(|error| error.to_string())
}

#[test]
fn two_marks_over_random_histories() {
    assert_eq!(at_random(SOUND), Ok(()));
}

#[test]
fn broken_fences_are_found_out_at_random() {
    for fence in [Fence::OneMark, Fence::NoSharedMark, Fence::SharedUnjudged] {
        assert!(at_random(Rules { fence, ..SOUND }).is_err(), "{fence:?}");
    }
}

/// The same token passes as often as it comes, and a refusal says by whom it was overtaken.
#[test]
fn a_refusal_says_why() {
    let token = |number, mode| Token::from_parts(number, mode, "stock/42", "memory").unwrap();
    let mut marks = Marks::default();
    for mode in [Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Exclusive] {
        assert_eq!(marks.accept(&token(5, mode)), Ok(()));
    }
    assert_eq!(marks, Marks { exclusive: 5, shared: 5 });
    assert_eq!(marks.accept(&token(8, Mode::Shared)), Ok(()));
    let refused = marks.accept(&token(7, Mode::Exclusive)).unwrap_err();
    assert_eq!(refused, Overtaken { token: 7, by: 8 });
    assert_eq!(refused.to_string(), "token 7 was overtaken by token 8: the lock was lost before this access");
    assert_eq!(marks.accept(&token(4, Mode::Shared)), Err(Overtaken { token: 4, by: 5 }));
}

/// The text of the statements says the same as the rule, access by access.
#[cfg(feature = "sqlite")]
#[test]
fn the_statements_judge_as_the_marks_do() {
    let database = rusqlite::Connection::open_in_memory().unwrap();
    sqlite::migrate(&database).unwrap();
    let mut marks = std::collections::HashMap::<(String, String), Marks>::new();
    for _ in 0..20_000 {
        let mode = if fastrand::bool() { Mode::Exclusive } else { Mode::Shared };
        let (name, label) = (["a", "A", "b"][fastrand::usize(..3)], ["redis", "etcd"][fastrand::usize(..2)]);
        let number = 1 + fastrand::u64(..40);
        let token = Token::from_parts(number, mode, &format!("{name}{}", fastrand::u8(..50)), label).unwrap();
        let told = marks.entry((token.name().into(), label.into())).or_default().accept(&token);
        match sqlite::accept(&database, &token) {
            Ok(()) => assert_eq!(told, Ok(()), "{token:?}"),
            Err(error) => assert_eq!(error.message(), told.unwrap_err().to_string()),
        }
    }
}
