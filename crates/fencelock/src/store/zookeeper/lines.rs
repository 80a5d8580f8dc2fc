//! The tickets of this client, line by line, and what is known of each: no I/O. Whoever reads a line tells it here; whoever
//! waits for a ticket is woken from here.
//!
//! In each line only the first of our waiting tickets matters: nobody of ours comes in before it. So there is one watch per
//! line and process, however many of us wait, and what is read for one is told to all.

use super::live::Live;
use super::node::{Seat, Seats};
use crate::name::Name;
use crate::store::note::{Record, Standing};
use crate::store::{Place, TicketId, Waited};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// What is known of one of our tickets.
pub(super) struct Own {
    pub(super) live: Arc<Live>,
    pub(super) phase: Phase,
    /// Its node, once the server has named it.
    pub(super) node: Option<Node>,
    /// A create under this id was never answered, or its node is being replaced: there may be another node of it.
    pub(super) uncertain: bool,
    wakers: Vec<Waker>,
}

/// A ticket's node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its name within the line.
    pub(super) child: String,
    pub(super) order: u64,
    pub(super) token: u64,
    /// The token is in the data: the node was replaced.
    pub(super) moved: bool,
    pub(super) weight: u32,
    pub(super) capacity: u32,
    pub(super) record: Arc<Record>,
    /// Reads that were asked for after this have the node in them, unless it is gone.
    pub(super) known: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its create is under way, or was given up.
    Unanswered,
    Waiting,
    Inside,
    Gone,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.live.ticket_went();
    }
}

struct Line {
    name: Name,
    own: HashMap<TicketId, Own>,
    /// The latest reading, and when it was asked for.
    seats: Arc<Seats>,
    asked: u64,
    /// Readings that were asked for before this are out of date.
    wanted: u64,
    /// Somebody sees to it that those who wait are let in.
    attended: bool,
    bell: Arc<Notify>,
}

/// What the attendant of a line has to do next.
pub(super) enum Todo {
    /// Nobody waits any more: it goes home.
    Nothing,
    /// Read the line.
    Read(Arc<Live>),
    /// Read the line and watch all of it: permits.
    ReadAndWatch(Arc<Live>),
    /// Watch this node.
    Watch(Arc<Live>, String),
    /// Wait for one of our own to go.
    Rest,
}

#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<HashMap<Arc<str>, Line>>,
    settled: Mutex<VecDeque<(Arc<str>, TicketId)>>,
    clock: AtomicU64,
}

/// So many tickets that are known to be gone for good are remembered.
const MOST_SETTLED: usize = 1000;

impl Lines {
    fn lines(&self) -> MutexGuard<'_, HashMap<Arc<str>, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a reading that is about to be asked for, larger than all before.
    pub(super) fn ask(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Looks at one of our tickets.
    pub(super) fn with<T>(&self, place: &Place, look: impl FnOnce(&mut Own) -> T) -> Option<T> {
        self.lines().get_mut(place.name.key())?.own.get_mut(&place.id).map(look)
    }

    /// Nothing that was sent under this id can have an effect any more, as far as its own connection can tell; what another
    /// connection of the same session left behind is found by comparing. It will be left again and again: no need to ask.
    pub(super) fn settle(&self, place: &Place) {
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        settled.push_back((place.name.shared_key(), place.id));
        if settled.len() > MOST_SETTLED {
            settled.pop_front();
        }
    }

    pub(super) fn is_settled(&self, place: &Place) -> bool {
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        settled.iter().any(|(key, id)| *id == place.id && **key == *place.name.key())
    }

    /// A create of this ticket is about to be sent.
    pub(super) fn expect(&self, place: &Place, live: &Arc<Live>) {
        {
            let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
            if !settled.is_empty() {
                settled.retain(|(key, id)| *id != place.id || **key != *place.name.key());
            }
        }
        let mut lines = self.lines();
        let line = lines.entry(place.name.shared_key()).or_insert_with(|| Line {
            name: place.name.clone(),
            own: HashMap::new(),
            seats: Arc::default(),
            asked: 0,
            wanted: 0,
            attended: false,
            bell: Arc::default(),
        });
        live.ticket_came();
        let own =
            Own { live: live.clone(), phase: Phase::Unanswered, node: None, uncertain: false, wakers: Vec::new() };
        line.own.insert(place.id, own);
    }

    /// The server has answered. Says whether the line needs an attendant from now on.
    pub(super) fn entered(&self, place: &Place, node: Node, phase: Phase) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(place.name.key()) else { return false };
        let Some(own) = line.own.get_mut(&place.id) else { return false };
        (own.node, own.phase) = (Some(node), phase);
        if phase != Phase::Waiting {
            return false;
        }
        // If somebody of ours waits already, there is nothing to do before that one is in.
        let first = line.own.values().filter(|own| own.phase == Phase::Waiting).count() == 1;
        if first {
            line.bell.notify_one();
        }
        !std::mem::replace(&mut line.attended, true)
    }

    /// It is no more.
    pub(super) fn forget(&self, place: &Place) {
        self.left(place, None);
    }

    /// It was left, and the line perhaps read behind it: see [`saw`](Lines::saw).
    pub(super) fn left(&self, place: &Place, reading: Option<&Reading>) {
        let mut wakers = Vec::new();
        {
            let now = self.clock.load(Ordering::Acquire);
            let mut lines = self.lines();
            let Some(line) = lines.get_mut(place.name.key()) else { return };
            let blocked = line
                .first()
                .is_some_and(|first| line.seats.blocker(&first.child).is_some_and(|seat| seat.id == place.id));
            if let Some(mut own) = line.own.remove(&place.id) {
                wakers.append(&mut own.wakers);
            }
            match reading {
                Some(reading) => drop(line.saw(reading, &mut wakers)),
                None if blocked => line.wanted = now,
                None => {}
            }
            if line.own.is_empty() && !line.attended {
                lines.remove(place.name.key());
            } else {
                line.bell.notify_one();
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether one of ours waits in this line, with this capacity: whoever comes now has to wait too.
    pub(super) fn has_waiting(&self, name: &Name, capacity: u32) -> bool {
        let lines = self.lines();
        let waits =
            |own: &Own| own.phase == Phase::Waiting && own.node.as_ref().is_some_and(|node| node.capacity == capacity);
        lines.get(name.key()).is_some_and(|line| line.own.values().any(waits))
    }

    /// Whether somebody of ours waits for this one of ours to go.
    pub(super) fn is_awaited(&self, place: &Place) -> bool {
        let lines = self.lines();
        let Some(line) = lines.get(place.name.key()) else { return false };
        let Some(first) = line.first() else { return false };
        line.seats.blocker(&first.child).is_some_and(|seat| seat.id == place.id)
    }

    /// The line was read. Says which of ours that were inside are missing in it.
    pub(super) fn saw(&self, name: &Name, reading: &Reading) -> Vec<TicketId> {
        let mut wakers = Vec::new();
        let missing = {
            let mut lines = self.lines();
            let Some(line) = lines.get_mut(name.key()) else { return Vec::new() };
            line.saw(reading, &mut wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        missing
    }

    /// What became of a ticket that waits; `None` if nothing is known of it here.
    pub(super) fn poll(&self, place: &Place, cx: &mut Context<'_>) -> Poll<Option<Waited>> {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(place.name.key()) else { return Poll::Ready(None) };
        let Some(own) = line.own.get_mut(&place.id) else { return Poll::Ready(None) };
        match (own.phase, &own.node) {
            (Phase::Inside, Some(node)) => Poll::Ready(Some(Waited::Admitted { token: node.token })),
            (Phase::Gone, _) => {
                line.own.remove(&place.id);
                Poll::Ready(Some(Waited::Gone))
            }
            (Phase::Unanswered, _) | (Phase::Inside, None) => Poll::Ready(None),
            (Phase::Waiting, _) => {
                if !own.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    own.wakers.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// What the attendant of this line has to do next, and the bell that calls it. `watching` is when the reading was asked
    /// for with which it watches all of the line, if it does.
    pub(super) fn todo(&self, name: &Name, watching: Option<u64>) -> (Todo, Arc<Notify>) {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(name.key()) else { return (Todo::Nothing, Arc::default()) };
        let bell = line.bell.clone();
        let Some(first) = line.first() else {
            line.attended = false;
            if line.own.is_empty() {
                lines.remove(name.key());
            }
            return (Todo::Nothing, bell);
        };
        let current = |asked: u64| asked > line.wanted;
        let live = first.live.clone();
        let todo = match line.seats.is_inside(&first.child) {
            _ if first.capacity != crate::line::WHOLE => {
                if watching.is_some_and(current) {
                    Todo::Rest
                } else {
                    Todo::ReadAndWatch(live)
                }
            }
            Some(false) if current(line.asked) => match line.seats.blocker(&first.child) {
                Some(seat) if line.is_ours(seat) => Todo::Rest,
                Some(seat) => Todo::Watch(live, seat.child.clone()),
                None if watching.is_some_and(current) => Todo::Rest,
                None => Todo::ReadAndWatch(live),
            },
            // It entered without a look, or the reading is from before it came.
            _ => Todo::Read(live),
        };
        (todo, bell)
    }

    /// What was read of this line is not to be relied on any more.
    pub(super) fn doubt(&self, name: &Name) {
        let now = self.clock.load(Ordering::Acquire);
        if let Some(line) = self.lines().get_mut(name.key()) {
            line.doubt(now);
        }
    }

    /// The same for every line with somebody of this session in it: its tickets may be gone, or messages were lost.
    pub(super) fn rouse(&self, session: i64) {
        let now = self.clock.load(Ordering::Acquire);
        for line in self.lines().values_mut().filter(|line| line.own.values().any(|own| own.live.id == session)) {
            line.doubt(now);
        }
    }

    /// This session has ended, and its tickets with it. Says which of them were inside.
    pub(super) fn ended(&self, session: i64) -> Vec<TicketId> {
        let (mut wakers, mut inside) = (Vec::new(), Vec::new());
        for line in self.lines().values_mut() {
            for (id, own) in line.own.iter_mut().filter(|(_, own)| own.live.id == session) {
                if own.phase == Phase::Inside {
                    inside.push(*id);
                }
                own.phase = Phase::Gone;
                wakers.append(&mut own.wakers);
            }
            line.bell.notify_one();
        }
        wakers.into_iter().for_each(Waker::wake);
        inside
    }

    /// Compares what the server says that this session owns with what we know of. Says which nodes are nobody's, and which of
    /// our tickets that are inside are missing; lines with somebody missing are looked at.
    pub(super) fn compare(
        &self,
        session: i64,
        asked: u64,
        owned: &[(Name, Seat)],
    ) -> (Vec<(Name, String)>, Vec<TicketId>) {
        let now = self.clock.load(Ordering::Acquire);
        let mut lines = self.lines();
        let ghosts = owned.iter().filter(|(name, seat)| {
            let own = lines.get(name.key()).and_then(|line| line.own.get(&seat.id));
            own.is_none_or(|own| {
                // A create that is under way, or a node that is being replaced, is left alone.
                let node = own.node.as_ref().filter(|node| asked > node.known && !own.uncertain);
                node.is_some_and(|node| node.child != seat.child)
            })
        });
        let ghosts = ghosts.map(|(name, seat)| (name.clone(), seat.child.clone())).collect();
        let mut missing = Vec::new();
        let there: std::collections::HashSet<(&str, &str)> =
            owned.iter().map(|(name, seat)| (name.key(), seat.child.as_str())).collect();
        for (key, line) in lines.iter_mut() {
            let mut look = false;
            for (id, own) in line.own.iter().filter(|(_, own)| own.live.id == session) {
                let known = own.node.as_ref().filter(|node| asked > node.known && !own.uncertain);
                let Some(node) = known else { continue };
                if !there.contains(&(&**key, &*node.child)) {
                    match own.phase {
                        Phase::Inside => missing.push(*id),
                        Phase::Waiting => {}
                        Phase::Unanswered | Phase::Gone => continue,
                    }
                    look = true;
                }
            }
            if look {
                line.doubt(now);
            }
        }
        (ghosts, missing)
    }

    /// Lets go of all tickets of this session, and so of the session.
    pub(super) fn abandon(&self, session: i64) {
        let mut gone = Vec::new();
        for line in self.lines().values_mut() {
            gone.extend(line.own.extract_if(|_, own| own.live.id == session));
            line.bell.notify_one();
        }
        gone.iter_mut().flat_map(|(_, own)| own.wakers.drain(..)).for_each(Waker::wake);
    }

    /// How many tickets of this session there are.
    pub(super) fn count(&self, session: i64) -> usize {
        self.lines().values().flat_map(|line| line.own.values()).filter(|own| own.live.id == session).count()
    }
}

/// The first of our tickets that wait in a line.
struct First {
    live: Arc<Live>,
    child: String,
    capacity: u32,
}

/// A line as it was read.
pub(super) struct Reading {
    pub(super) seats: Arc<Seats>,
    /// When it was asked for: see [`Lines::ask`].
    pub(super) asked: u64,
    /// By the connection of which session.
    pub(super) by: i64,
}

impl Line {
    fn doubt(&mut self, now: u64) {
        self.wanted = now;
        self.bell.notify_one();
    }

    fn saw(&mut self, reading: &Reading, wakers: &mut Vec<Waker>) -> Vec<TicketId> {
        let mut missing = Vec::new();
        let Reading { seats, asked, by } = reading;
        if *asked > self.asked {
            (self.seats, self.asked) = (seats.clone(), *asked);
        }
        for (id, own) in &mut self.own {
            let Some(node) = &own.node else { continue };
            // Another session's server may be behind; its own is not, once it has answered the create.
            let knows = own.live.id == *by && *asked > node.known && !own.uncertain;
            match (own.phase, seats.is_inside(&node.child)) {
                (Phase::Waiting, Some(true)) => {
                    own.phase = Phase::Inside;
                    wakers.append(&mut own.wakers);
                }
                (Phase::Waiting, None) if knows => {
                    own.phase = Phase::Gone;
                    wakers.append(&mut own.wakers);
                }
                (Phase::Inside, None) if knows => missing.push(*id),
                _ => {}
            }
        }
        missing
    }

    fn first(&self) -> Option<First> {
        let waiting = self.own.values().filter(|own| own.phase == Phase::Waiting);
        let nodes = waiting.filter_map(|own| own.node.as_ref().map(|node| (node, &own.live)));
        let (node, live) = nodes.min_by_key(|(node, _)| node.order)?;
        Some(First { live: live.clone(), child: node.child.clone(), capacity: node.capacity })
    }

    /// Whether this is a ticket of ours that is inside: we know when it goes.
    fn is_ours(&self, seat: &Seat) -> bool {
        let own = self.own.get(&seat.id);
        own.is_some_and(|own| {
            own.phase == Phase::Inside && own.node.as_ref().is_some_and(|node| node.child == seat.child)
        })
    }
}

/// Whether a ticket stands where a newcomer may stay.
pub(super) fn phase(standing: Standing) -> Option<Phase> {
    match standing {
        Standing::Inside => Some(Phase::Inside),
        Standing::Waiting => Some(Phase::Waiting),
        Standing::Gone | Standing::Mismatch { .. } => None,
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line({:?}, {} of ours)", self.name, self.own.len())
    }
}
