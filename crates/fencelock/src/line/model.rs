//! A naive line to hold [`Line`] to, and a world in which both live through the same history. For the tests only.
//!
//! [`Naive`] is a list of tickets whose admission is worked out from nothing after every act: the longest prefix that fits.
//! [`World`] does each act on both lines and remembers what the properties need to know of the past. [`explore`] walks
//! through every history of a [`Scope`].

use super::{Entry, Line, Raise, Ticket, WHOLE, admits};
use std::collections::{BTreeMap, HashSet};

/// A ticket's id in these tests: the first ticket is 0, the next 1. An upgraded ticket takes the next one.
pub(super) type Id = u8;

/// What a ticket was entered for. The line does not care; a ticket has to keep it through every act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Reader,
    Writer,
    Mutex,
    Permits,
}

/// What a ticket asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wish {
    pub(super) kind: Kind,
    pub(super) weight: u32,
    pub(super) capacity: u32,
}

/// One act on the line. A lapse is a leave that its client does not know of: what that client still does afterwards is an
/// act on an id that is gone, and every id that ever was is acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    Enter { wish: Wish, queue: bool },
    Leave(Id),
    Change(Id, u32),
    Upgrade(Id),
}

/// What an act answered, with the ids in the order in which they were admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Entered(Entry),
    Left(Option<(Slip, Vec<Id>)>),
    Changed(Option<Vec<Id>>),
    Raised(Raise),
}

/// All that there is to see of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slip {
    pub(super) id: Id,
    pub(super) number: u64,
    pub(super) wish: Wish,
    pub(super) admitted: bool,
}

impl Slip {
    fn of(number: u64, ticket: &Ticket<Id, Kind>) -> Slip {
        let wish = Wish { kind: ticket.facts, weight: ticket.weight, capacity: ticket.capacity };
        Slip { id: ticket.id, number, wish, admitted: ticket.admitted }
    }
}

/// The line as one would write it down without a thought of its cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Naive {
    pub(super) slips: Vec<Slip>,
}

impl Naive {
    fn act(&mut self, act: Act, id: Id, number: u64) -> Answer {
        match act {
            Act::Enter { wish, queue } => {
                Answer::Entered(self.enter(Slip { id, number, wish, admitted: false }, queue))
            }
            Act::Leave(gone) => Answer::Left(self.position(gone).map(|at| {
                let slip = self.slips.remove(at);
                (slip, self.settle())
            })),
            Act::Change(changed, weight) => Answer::Changed(self.position(changed).map(|at| {
                if weight < self.slips[at].wish.weight {
                    self.slips[at].wish.weight = weight;
                }
                self.settle()
            })),
            Act::Upgrade(old) => Answer::Raised(match (self.position(old), self.slips.len()) {
                (None, _) => Raise::Gone,
                (Some(at), 1) => {
                    let Wish { kind, capacity, .. } = self.slips[at].wish;
                    self.slips =
                        vec![Slip { id, number, wish: Wish { kind, weight: capacity, capacity }, admitted: true }];
                    Raise::Admitted
                }
                _ => Raise::Held,
            }),
        }
    }

    /// Not to queue is to queue, look, and go again.
    fn enter(&mut self, slip: Slip, queue: bool) -> Entry {
        if let Some(head) = self.slips.first()
            && head.wish.capacity != slip.wish.capacity
        {
            return Entry::Mismatch { there: head.wish.capacity };
        }
        self.slips.push(slip);
        self.settle();
        if self.slips[self.slips.len() - 1].admitted {
            return Entry::Admitted;
        }
        if queue {
            return Entry::Queued;
        }
        self.slips.pop();
        self.settle();
        Entry::Full
    }

    /// Works out anew who is inside, and says who was not before.
    fn settle(&mut self) -> Vec<Id> {
        let capacity = self.slips.first().map_or(0, |head| u64::from(head.wish.capacity));
        let fitting = (0..=self.slips.len()).rev().find(|len| weight_of(&self.slips[..*len]) <= capacity);
        let inside = fitting.expect("the empty prefix fits");
        let newly = self.slips[..inside].iter().filter(|slip| !slip.admitted).map(|slip| slip.id).collect();
        for (at, slip) in self.slips.iter_mut().enumerate() {
            slip.admitted = at < inside;
        }
        newly
    }

    fn position(&self, id: Id) -> Option<usize> {
        self.slips.iter().position(|slip| slip.id == id)
    }
}

/// The weight of all these tickets.
pub(super) fn weight_of(slips: &[Slip]) -> u64 {
    slips.iter().map(|slip| u64::from(slip.wish.weight)).sum()
}

/// What the pictures of the line that a ticket was in could have made its client believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sight {
    /// The least weight ahead of it in any of them. A decision that goes wrong with another goes wrong with this one.
    pub(super) least_ahead: u64,
    /// Whether any of them said that it was inside.
    pub(super) believed: bool,
}

/// A line, its naive twin, and what the past has left behind.
#[derive(Clone, Default)]
pub(super) struct World {
    pub(super) line: Line<Id, Kind>,
    pub(super) naive: Naive,
    /// The next ticket's id: everything below it is or was in the line.
    pub(super) next: Id,
    /// The highest number that was ever admitted.
    pub(super) granted: u64,
    /// What each living ticket could have read of the line since it joined.
    pub(super) sights: BTreeMap<Id, Sight>,
}

/// One act, with the line before and after it.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) before: Vec<Slip>,
    pub(super) after: Vec<Slip>,
    pub(super) answer: Answer,
    /// What the naive line answered.
    pub(super) expected: Answer,
    /// The id and number a ticket gets if this act makes one.
    pub(super) offered: (Id, u64),
    /// The highest number admitted before this act.
    pub(super) granted: u64,
}

impl Step {
    /// Who is inside by this act, in the order of the line.
    pub(super) fn newly(&self) -> impl Iterator<Item = &Slip> {
        let inside = |id| self.before.iter().any(|slip| slip.id == id && slip.admitted);
        self.after.iter().filter(move |slip| slip.admitted && !inside(slip.id))
    }

    /// Both ends of every ticket that was in the line before and still is.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&Slip, &Slip)> {
        self.before.iter().filter_map(|was| Some((was, self.after.iter().find(|is| is.id == was.id)?)))
    }
}

/// All on which the future depends: two worlds with the same key live through the same.
type Key = (Vec<Slip>, [u64; 3], Naive, Id, u64, BTreeMap<Id, Sight>);

impl World {
    /// The number of a ticket. They need only grow, so there are gaps.
    pub(super) fn number(id: Id) -> u64 {
        u64::from(id) * 3 + 2
    }

    pub(super) fn slips(&self) -> Vec<Slip> {
        self.line.iter().map(|(number, ticket)| Slip::of(number, ticket)).collect()
    }

    /// Does one act on both lines.
    pub(super) fn step(&mut self, act: Act) -> Step {
        let (id, number) = (self.next, World::number(self.next));
        let (before, granted) = (self.slips(), self.granted);
        let expected = self.naive.act(act, id, number);
        let answer = match act {
            Act::Enter { wish, queue } => {
                Answer::Entered(self.line.enter(id, number, wish.weight, wish.capacity, queue, wish.kind))
            }
            Act::Leave(gone) => {
                let number = self.line.get(gone).map_or(0, |(number, _)| number);
                Answer::Left(self.line.leave(gone).map(|(ticket, newly)| (Slip::of(number, &ticket), newly)))
            }
            Act::Change(changed, weight) => Answer::Changed(self.line.change(changed, weight)),
            Act::Upgrade(old) => Answer::Raised(self.line.upgrade(old, id, number)),
        };
        if self.line.get(id).is_some() {
            self.next += 1;
        }
        let after = self.slips();
        self.granted = after.iter().filter(|slip| slip.admitted).map(|slip| slip.number).fold(granted, u64::max);
        self.sights.retain(|id, _| after.iter().any(|slip| slip.id == *id));
        for (at, slip) in after.iter().enumerate() {
            let sight = self.sights.entry(slip.id).or_insert(Sight { least_ahead: u64::MAX, believed: false });
            sight.least_ahead = sight.least_ahead.min(weight_of(&after[..at]));
            let ahead = after[..at].iter().map(|ahead| ahead.wish.weight);
            sight.believed |= admits(ahead, slip.wish.weight, slip.wish.capacity);
        }
        Step { act, before, after, answer, expected, offered: (id, number), granted }
    }

    fn key(&self) -> Key {
        let counters = [self.line.frontier, self.line.inside, self.line.total];
        (self.slips(), counters, self.naive.clone(), self.next, self.granted, self.sights.clone())
    }
}

/// Which histories to walk through.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    /// How many tickets there may be in a history, an upgraded one counting as two.
    pub(super) tickets: Id,
    /// What a ticket may ask for.
    pub(super) wishes: Vec<Wish>,
    /// What a weight may be changed to.
    pub(super) weights: Vec<u32>,
}

impl Scope {
    /// Readers, writers and mutexes, and now and then somebody who takes the line for a semaphore.
    pub(super) fn locks(tickets: Id) -> Scope {
        let lock = |kind, weight| Wish { kind, weight, capacity: WHOLE };
        let stray = Wish { kind: Kind::Permits, weight: 1, capacity: 2 };
        let wishes = vec![lock(Kind::Reader, 1), lock(Kind::Writer, WHOLE), lock(Kind::Mutex, WHOLE), stray];
        Scope { tickets, wishes, weights: vec![1, WHOLE] }
    }

    /// A semaphore of `capacity`, and now and then somebody who takes it for one of more.
    pub(super) fn semaphore(capacity: u32, tickets: Id) -> Scope {
        let weights: Vec<u32> = (1..=capacity).collect();
        let mut wishes: Vec<Wish> =
            weights.iter().map(|weight| Wish { kind: Kind::Permits, weight: *weight, capacity }).collect();
        wishes.push(Wish { kind: Kind::Permits, weight: 1, capacity: capacity + 1 });
        Scope { tickets, wishes, weights }
    }

    /// Every act that can be done next. Upgrades come to an end with the tickets; whoever is gone is acted on as well.
    fn acts(&self, world: &World) -> Vec<Act> {
        let more = world.next < self.tickets;
        let enters = self.wishes.iter().filter(|_| more).flat_map(|wish| {
            let wish = *wish;
            [true, false].map(|queue| Act::Enter { wish, queue })
        });
        let rest = (0..world.next).flat_map(|id| {
            let changes = self.weights.iter().map(move |weight| Act::Change(id, *weight));
            changes.chain([Act::Leave(id)]).chain(more.then_some(Act::Upgrade(id)))
        });
        enters.chain(rest).collect()
    }
}

/// A property: says what is wrong with this step, after which the world is as given.
pub(super) type Property = fn(&Step, &World) -> Result<(), String>;

/// How much of the world was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) worlds: usize,
    pub(super) steps: usize,
}

/// Walks through every history of the scope and holds each step to the property. Panics with the first bad history.
pub(super) fn explore(scope: &Scope, property: Property) -> Seen {
    let (mut known, mut seen) = (HashSet::from([World::default().key()]), Seen::default());
    deeper(&World::default(), scope, property, &mut known, &mut seen, &mut Vec::new());
    Seen { worlds: known.len(), ..seen }
}

fn deeper(
    world: &World,
    scope: &Scope,
    property: Property,
    known: &mut HashSet<Key>,
    seen: &mut Seen,
    path: &mut Vec<Act>,
) {
    for act in scope.acts(world) {
        let mut next = world.clone();
        let step = next.step(act);
        path.push(act);
        seen.steps += 1;
        if let Err(wrong) = property(&step, &next) {
            panic!("{wrong}\nby the last of {path:#?}\nin {step:#?}");
        }
        if known.insert(next.key()) {
            assert!(known.len() < 5000 && path.len() < 50, "a sound line has fewer worlds: {path:?}");
            deeper(&next, scope, property, known, seen, path);
        }
        path.pop();
    }
}
