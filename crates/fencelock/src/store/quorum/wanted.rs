//! The tickets of this client. On the nodes a ticket has an id of its own for every attempt to enter it, so that whatever an
//! earlier attempt left under way, a late enter or its withdrawal, never touches a later one.

use crate::store::{Enter, Note, Place, TicketId};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct Wanted(Mutex<HashMap<Place, Ticket>>);

struct Ticket {
    /// As it is entered on the nodes.
    enter: Enter,
    /// Its token, once a majority has it.
    token: Option<u64>,
    /// The number that each node gave it last.
    numbers: Vec<Option<u64>>,
    /// Nodes that have missed it get it no more.
    leaving: bool,
}

/// One attempt to enter a ticket.
pub(super) struct Begun {
    /// As the nodes are to enter it.
    pub(super) enter: Enter,
    /// What an attempt that was given up has left.
    pub(super) stale: Option<Place>,
}

impl Wanted {
    fn tickets(&self) -> MutexGuard<'_, HashMap<Place, Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on the ticket is wanted. One that is inside already keeps its id on the nodes.
    pub(super) fn begin(&self, ticket: &Enter, nodes: usize) -> Begun {
        let mut tickets = self.tickets();
        let mut enter = Enter { queue: false, ..ticket.clone() };
        let old = tickets.remove(&ticket.place);
        let (again, stale) = match old {
            Some(old) if old.token.is_some() && !old.leaving => (Some(old), None),
            Some(old) => (None, Some(old.enter.place)),
            None => (None, None),
        };
        enter.place.id = again.as_ref().map_or_else(TicketId::new, |old| old.enter.place.id);
        let (token, numbers) = again.map_or_else(|| (None, vec![None; nodes]), |old| (old.token, old.numbers));
        tickets.insert(ticket.place.clone(), Ticket { enter: enter.clone(), token, numbers, leaving: false });
        Begun { enter, stale }
    }

    /// Whether what was entered under this id on the nodes is still wanted there.
    pub(super) fn wants(&self, place: &Place, on_nodes: TicketId) -> bool {
        self.tickets().get(place).is_some_and(|ticket| ticket.enter.place.id == on_nodes && !ticket.leaving)
    }

    /// A node has it, with this number. Whether it had it before, too.
    pub(super) fn has(&self, place: &Place, on_nodes: TicketId, node: usize, number: u64) -> bool {
        let mut tickets = self.tickets();
        let ticket = tickets.get_mut(place).filter(|ticket| ticket.enter.place.id == on_nodes);
        ticket.is_some_and(|ticket| ticket.numbers[node].replace(number) == Some(number))
    }

    /// The token that was given to a ticket.
    pub(super) fn token(&self, place: &Place) -> Option<u64> {
        self.tickets().get(place)?.token
    }

    /// It is inside. `false` if it is not wanted any more.
    pub(super) fn grant(&self, place: &Place, on_nodes: TicketId, token: u64) -> bool {
        match self.tickets().get_mut(place) {
            Some(ticket) if ticket.enter.place.id == on_nodes && !ticket.leaving => {
                ticket.token = Some(token);
                true
            }
            _ => false,
        }
    }

    /// What it is called on the nodes.
    pub(super) fn on_nodes(&self, place: &Place) -> Place {
        self.tickets().get(place).map_or_else(|| place.clone(), |ticket| ticket.enter.place.clone())
    }

    /// How to enter it on a node that has missed it; `None` unless it is inside and to stay.
    pub(super) fn to_fill(&self, place: &Place) -> Option<Enter> {
        let tickets = self.tickets();
        let ticket = tickets.get(place).filter(|ticket| ticket.token.is_some() && !ticket.leaving)?;
        Some(ticket.enter.clone())
    }

    /// Its weight and what is said of it have changed. What it is called on the nodes.
    pub(super) fn changed(&self, place: &Place, weight: Option<u32>, note: Option<&Note>) -> Place {
        let mut tickets = self.tickets();
        let Some(ticket) = tickets.get_mut(place) else { return place.clone() };
        if let Some(weight) = weight {
            ticket.enter.weight = ticket.enter.weight.min(weight);
        }
        if let Some(note) = note {
            ticket.enter.note = note.clone();
        }
        ticket.enter.place.clone()
    }

    /// It is to go, from all nodes. What it is called there.
    pub(super) fn leaving(&self, place: &Place) -> Place {
        let mut tickets = self.tickets();
        let Some(ticket) = tickets.get_mut(place) else { return place.clone() };
        ticket.leaving = true;
        ticket.enter.place.clone()
    }

    /// It is gone. One that was entered again in the meantime stays.
    pub(super) fn left(&self, place: &Place) {
        let mut tickets = self.tickets();
        if tickets.get(place).is_some_and(|ticket| ticket.leaving) {
            tickets.remove(place);
        }
    }

    /// This attempt is given up.
    pub(super) fn withdraw(&self, place: &Place, on_nodes: TicketId) {
        let mut tickets = self.tickets();
        if tickets.get(place).is_some_and(|ticket| ticket.enter.place.id == on_nodes) {
            tickets.remove(place);
        }
    }
}
