//! The rule of the line: who is admitted, who waits. Pure: no I/O, no clock, no async.
//!
//! Every name has a **line**. A **ticket** joins at its end with a **weight**; the line has a **capacity**. The longest
//! prefix of the line whose weights fit the capacity is *admitted*, everyone behind it *waits*. Leaving the line, admitted
//! or not, by will or by lapse, is one and the same act. That is all there is to a mutex (weight = capacity), a read-write
//! lock (reader 1, writer all) and a semaphore (weight = permits).
//!
//! What must stay true, each with a test in `line/tests.rs`, checked over all histories of up to four tickets:
//!
//! 1. the admitted weight never exceeds the capacity;
//! 2. an admission is never revoked by somebody else's arrival, departure, downgrade or upgrade;
//! 3. admission is in ticket order, so nobody starves, a writer behind readers included;
//! 4. a ticket's number is larger than every earlier one of its line, so it serves as the fencing token;
//! 5. a decision made on a stale picture of the line is right as long as the decider's own ticket is still alive:
//!    staleness only hides departures;
//! 6. an enter that does not queue never overtakes a waiting ticket;
//! 7. weights only go down; an upgrade happens only when the ticket is alone in the line, and takes a new id and number.
//!
//! [`fits`] is the rule. [`Line`] keeps it up to date ticket by ticket; the memory store is a [`Line`] per name behind a
//! mutex, stores that decide in the client call [`admits`] on the line that they read, and the conformance suite holds
//! every other store to [`Line`].

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The capacity of a lock's line. A mutex and a writer weigh all of it, a reader weighs 1; a semaphore's capacity is below it.
pub const WHOLE: u32 = 1 << 20;

/// The rule: with `ahead` in front of it, may a ticket of this weight be admitted?
#[must_use]
pub fn fits(ahead: u64, weight: u32, capacity: u32) -> bool {
    ahead + u64::from(weight) <= u64::from(capacity)
}

/// The rule for a decider that has read the line: `ahead` are the weights of all tickets with smaller numbers, waiting
/// ones included. A foreign ticket of another capacity can only delay, since it is counted like any other.
#[must_use]
pub fn admits(ahead: impl IntoIterator<Item = u32>, weight: u32, capacity: u32) -> bool {
    fits(ahead.into_iter().map(u64::from).sum(), weight, capacity)
}

/// What became of an [`enter`](Line::enter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Inside at once.
    Admitted,
    /// In the line, behind others.
    Queued,
    /// Not in the line: there was no room and the caller did not want to queue.
    Full,
    /// Not in the line: the head of the line has another capacity.
    Mismatch {
        /// The capacity of the line as it stands.
        there: u32,
    },
}

/// What became of an [`upgrade`](Line::upgrade).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raise {
    /// The ticket was alone; its successor is inside with all of the capacity.
    Admitted,
    /// Somebody else is in the line; nothing has changed.
    Held,
    /// There is no such ticket.
    Gone,
}

/// One ticket of a [`Line`], with whatever its keeper wants to remember of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket<I, T> {
    /// Its id.
    pub id: I,
    /// Its weight now.
    pub weight: u32,
    /// The capacity it was entered with.
    pub capacity: u32,
    /// Whether it is inside.
    pub admitted: bool,
    /// The keeper's own facts.
    pub facts: T,
}

/// A line, kept up to date ticket by ticket: every act costs `O(log n)` and says who was admitted by it.
#[derive(Clone, Debug)]
pub struct Line<I, T> {
    tickets: BTreeMap<u64, Ticket<I, T>>,
    numbers: HashMap<I, u64>,
    /// The number of the last admitted ticket: everything up to it is inside, everything behind it waits.
    frontier: u64,
    inside: u64,
    total: u64,
}

impl<I, T> Default for Line<I, T> {
    fn default() -> Self {
        Line { tickets: BTreeMap::new(), numbers: HashMap::new(), frontier: 0, inside: 0, total: 0 }
    }
}

impl<I: Copy + Eq + Hash, T> Line<I, T> {
    /// Joins the line with `number`, which must be larger than every number in it and every one it has granted; numbers
    /// start at 1. The id must be new to the line.
    ///
    /// Without `queue` the ticket stays only if the weight of *all* tickets, waiting ones included, leaves room: overtaking
    /// a waiter would turn the order of the tokens around.
    pub fn enter(&mut self, id: I, number: u64, weight: u32, capacity: u32, queue: bool, facts: T) -> Entry {
        if let Some(there) = self.capacity().filter(|there| *there != capacity) {
            return Entry::Mismatch { there };
        }
        if !queue && !self.has_room(weight, capacity) {
            return Entry::Full;
        }
        debug_assert!(!self.numbers.contains_key(&id), "an id is entered once");
        debug_assert!(number > self.tickets.last_key_value().map_or(self.frontier, |(last, _)| *last), "numbers grow");
        self.tickets.insert(number, Ticket { id, weight, capacity, admitted: false, facts });
        self.numbers.insert(id, number);
        self.total += u64::from(weight);
        self.admit();
        if self.tickets[&number].admitted { Entry::Admitted } else { Entry::Queued }
    }

    /// Takes a ticket out of the line, whoever asks and for whatever reason. Returns it, and who came in by that.
    pub fn leave(&mut self, id: I) -> Option<(Ticket<I, T>, Vec<I>)> {
        let number = self.numbers.remove(&id)?;
        let ticket = self.tickets.remove(&number)?;
        self.total -= u64::from(ticket.weight);
        if ticket.admitted {
            self.inside -= u64::from(ticket.weight);
        }
        Some((ticket, self.admit()))
    }

    /// Lowers a ticket's weight; its number, and so its place, stays. A larger weight is ignored: weights only go down.
    /// Returns who came in by that, or `None` if there is no such ticket.
    pub fn change(&mut self, id: I, weight: u32) -> Option<Vec<I>> {
        let ticket = self.tickets.get_mut(self.numbers.get(&id)?)?;
        let less = u64::from(ticket.weight.saturating_sub(weight));
        ticket.weight = ticket.weight.min(weight);
        self.total -= less;
        if ticket.admitted {
            self.inside -= less;
        }
        Some(self.admit())
    }

    /// Replaces a ticket by one with a new id, a new, larger number and all of the capacity, if it is alone in the line.
    pub fn upgrade(&mut self, id: I, new_id: I, number: u64) -> Raise {
        if !self.numbers.contains_key(&id) {
            return Raise::Gone;
        }
        if self.tickets.len() > 1 {
            return Raise::Held;
        }
        let Some((old, _)) = self.leave(id) else { return Raise::Gone };
        match self.enter(new_id, number, old.capacity, old.capacity, true, old.facts) {
            Entry::Admitted => Raise::Admitted,
            other => unreachable!("an empty line admitted nobody: {other:?}"),
        }
    }

    /// Moves the frontier over every ticket that fits by now, and says whose.
    fn admit(&mut self) -> Vec<I> {
        let mut newly = Vec::new();
        for (number, ticket) in self.tickets.range_mut(self.frontier + 1..) {
            if !fits(self.inside, ticket.weight, ticket.capacity) {
                break;
            }
            ticket.admitted = true;
            self.inside += u64::from(ticket.weight);
            self.frontier = *number;
            newly.push(ticket.id);
        }
        newly
    }

    /// The capacity of the line: that of its head. `None` when nobody is in it.
    #[must_use]
    pub fn capacity(&self) -> Option<u32> {
        self.tickets.first_key_value().map(|(_, head)| head.capacity)
    }

    /// Whether a ticket of this weight may join without queueing: behind *all* tickets, waiting ones included.
    #[must_use]
    pub fn has_room(&self, weight: u32, capacity: u32) -> bool {
        fits(self.total, weight, capacity)
    }

    /// A ticket by its id, with its number.
    #[must_use]
    pub fn get(&self, id: I) -> Option<(u64, &Ticket<I, T>)> {
        let number = self.numbers.get(&id)?;
        Some((*number, self.tickets.get(number)?))
    }

    /// A ticket's facts, to be changed in place.
    pub fn facts_mut(&mut self, id: I) -> Option<&mut T> {
        self.tickets.get_mut(self.numbers.get(&id)?).map(|ticket| &mut ticket.facts)
    }

    /// Every ticket in order, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Ticket<I, T>)> {
        self.tickets.iter().map(|(number, ticket)| (*number, ticket))
    }

    /// How many tickets are in the line.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Whether nobody is in the line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
