//! A line that is followed: read once, then kept up to date by what the watch tells. Pure: no I/O.
//!
//! What it says may be old, and so it only says whose turn it *may* be: a grant counts when a transaction has seen the ticket.

use super::keys;
use super::rpc::event::EventType;
use super::rpc::{Event, KeyValue};
use crate::line;
use crate::store::TicketId;
use prost::bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::task::{Context, Poll, Waker};

/// How a ticket stands, as far as is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is inside: a transaction has seen it there, the one that took out the one ahead as a rule.
    Inside,
    /// Its turn may have come.
    Maybe,
    /// Not yet.
    NotYet,
    /// It is not in the line.
    Gone,
    /// The line is not known, or not yet far enough.
    Unknown,
}

/// What counts of a ticket.
struct Slim {
    key: Bytes,
    weight: u32,
    capacity: u32,
    /// Whether it is a ticket as we make them: its client knows what it means that it was written anew.
    native: bool,
}

#[derive(Default)]
pub(super) struct Followed {
    /// Whether the line has been read since the watch was opened.
    read: bool,
    /// The revision in which it was read, and the one up to which it is known.
    base: i64,
    revision: i64,
    /// By the revision in which they were made, which is their number.
    tickets: BTreeMap<i64, Slim>,
    made: HashMap<Bytes, i64>,
    /// What was told before the line was read.
    early: Vec<Event>,
    /// Waiting tickets, their numbers, and whom to wake.
    wakers: HashMap<TicketId, (i64, Waker)>,
    /// The numbers of those that wait here; of them, the ones that a leave under way looks for, and the ones that such a leave
    /// has seen inside.
    waiting: HashSet<i64>,
    soon: HashSet<i64>,
    inside: HashSet<i64>,
}

/// So many are looked for by one leave; readers that come in together may be more.
const MOST_NEXT: usize = 16;
/// So many are written anew: everybody who follows the line is told of each.
const MOST_ELSEWHERE: usize = 4;

impl Followed {
    /// Something may have been missed: the line has to be read again.
    pub(super) fn gap(&mut self) {
        self.read = false;
        self.early.clear();
    }

    /// The line was read, at `revision`.
    pub(super) fn read(&mut self, name: &str, kvs: &[KeyValue], revision: i64) {
        if self.read && revision < self.revision {
            return; // the watch was faster
        }
        self.tickets.clear();
        self.made.clear();
        kvs.iter().for_each(|kv| self.put(name, kv));
        self.read = true;
        (self.base, self.revision) = (revision, revision);
        for event in std::mem::take(&mut self.early) {
            self.apply(name, &event);
        }
        self.wake();
    }

    /// The watch told something.
    pub(super) fn told(&mut self, name: &str, events: Vec<Event>) {
        if !self.read {
            self.early.extend(events);
            return;
        }
        events.iter().for_each(|event| self.apply(name, event));
        self.seen_inside(&events);
        self.wake();
    }

    /// Whoever waits here and was written anew when, or after, the last one left: a transaction has seen it in its line, and
    /// what is told is told whole and in order, so that it was first then if it is now.
    fn seen_inside(&mut self, events: &[Event]) {
        let kvs = || events.iter().filter_map(|event| event.kv.as_ref().map(|kv| (event.r#type(), kv)));
        let left = kvs().filter(|(kind, _)| *kind == EventType::Delete).map(|(_, kv)| kv.mod_revision).max();
        let written = kvs().map(|(_, kv)| kv).filter(|kv| kv.create_revision < kv.mod_revision);
        let last = written.filter(|kv| Some(kv.mod_revision) >= left && kv.mod_revision > self.base);
        let ours: Vec<i64> = last.map(|kv| kv.create_revision).filter(|number| self.waiting.contains(number)).collect();
        if !ours.is_empty() {
            let frontier = self.frontier(0);
            self.inside
                .extend(ours.into_iter().filter(|number| *number <= frontier && self.tickets.contains_key(number)));
        }
    }

    fn apply(&mut self, name: &str, event: &Event) {
        let Some(kv) = &event.kv else { return };
        if kv.mod_revision <= self.base {
            return; // known from the reading already
        }
        match event.r#type() {
            EventType::Put => self.put(name, kv),
            EventType::Delete => {
                if let Some(made) = self.made.remove(&kv.key) {
                    self.tickets.remove(&made);
                    self.inside.remove(&made);
                }
            }
        }
        self.revision = self.revision.max(kv.mod_revision);
    }

    fn put(&mut self, name: &str, kv: &KeyValue) {
        // A ticket that cannot be read excludes: whoever waits for it is told by its own next reading.
        let (weight, capacity) = match keys::ticket(name, kv) {
            None => return,
            Some(Ok(ticket)) => (ticket.record.weight, ticket.record.capacity),
            Some(Err(_)) => (line::WHOLE, line::WHOLE),
        };
        let native = keys::split(&kv.key).is_some_and(|(_, shape)| shape.id.is_some());
        self.made.insert(kv.key.clone(), kv.create_revision);
        self.tickets.insert(kv.create_revision, Slim { key: kv.key.clone(), weight, capacity, native });
    }

    /// The number of the last ticket that is inside; without `gone`, if that is one of them.
    fn frontier(&self, gone: i64) -> i64 {
        let mut ahead = 0;
        let mut frontier = 0;
        for (number, ticket) in self.tickets.iter().filter(|(number, _)| **number != gone) {
            if !line::fits(ahead, ticket.weight, ticket.capacity) {
                break;
            }
            ahead += u64::from(ticket.weight);
            frontier = *number;
        }
        frontier
    }

    /// A ticket that keeps one out that came now, for as long as it is there: its key and its number. The last one, since it
    /// will stay the longest.
    pub(super) fn blocker(&self, weight: u32, capacity: u32) -> Option<(Bytes, i64)> {
        let blocks = |ticket: &Slim| ticket.capacity == capacity && !line::fits(ticket.weight.into(), weight, capacity);
        self.tickets.first_key_value().filter(|(_, head)| self.read && head.capacity == capacity)?;
        let (made, ticket) = self.tickets.iter().next_back().filter(|(_, last)| blocks(last))?;
        Some((ticket.key.clone(), *made))
    }

    /// How the ticket with this number stands.
    pub(super) fn turn(&self, number: i64) -> Turn {
        if self.inside.contains(&number) {
            Turn::Inside
        } else if !self.read || self.revision < number {
            Turn::Unknown
        } else if !self.tickets.contains_key(&number) {
            Turn::Gone
        } else if number <= self.frontier(0) {
            if self.soon.contains(&number) { Turn::NotYet } else { Turn::Maybe }
        } else {
            Turn::NotYet
        }
    }

    /// Ready when there is something to be asked of the server about this ticket.
    pub(super) fn poll(&mut self, id: TicketId, number: i64, cx: &mut Context<'_>) -> Poll<Turn> {
        match self.turn(number) {
            Turn::Unknown | Turn::NotYet => {
                self.wakers.insert(id, (number, cx.waker().clone()));
                Poll::Pending
            }
            turn => {
                self.wakers.remove(&id);
                Poll::Ready(turn)
            }
        }
    }

    /// Somebody waits for this ticket here.
    pub(super) fn wait(&mut self, number: i64) {
        self.waiting.insert(number);
    }

    /// Nobody waits for this ticket here any more.
    pub(super) fn forget(&mut self, id: TicketId, number: i64) {
        self.wakers.remove(&id);
        self.waiting.remove(&number);
        self.inside.remove(&number);
    }

    /// Whoever comes in when the ticket with this number leaves: all that is known up to their own revisions has everybody ahead of
    /// them.
    fn coming(&self, leaving: i64) -> impl Iterator<Item = (&i64, &Slim)> {
        let known = self.read && self.tickets.contains_key(&leaving);
        let (now, then) = if known { (self.frontier(0), self.frontier(leaving).min(self.revision)) } else { (0, 0) };
        let coming = self.tickets.range(now + 1..).take_while(move |(number, _)| **number <= then);
        coming.filter(move |(number, _)| **number != leaving)
    }

    /// Whoever waits in another client and comes in when that ticket leaves: key and number.
    pub(super) fn next_elsewhere(&self, leaving: i64) -> Vec<(Bytes, i64)> {
        let others = self.coming(leaving).filter(|(number, ticket)| ticket.native && !self.waiting.contains(number));
        others.take(MOST_ELSEWHERE).map(|(number, ticket)| (ticket.key.clone(), *number)).collect()
    }

    /// Whoever waits here and comes in when the ticket with this number leaves: key and number. They ask nothing themselves
    /// until [`handed`](Followed::handed) or [`give_up`](Followed::give_up) tells them.
    pub(super) fn next_after(&mut self, leaving: i64) -> Vec<(Bytes, i64)> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let ours =
            self.coming(leaving).filter(|(number, _)| self.waiting.contains(number) && !self.soon.contains(number));
        let next: Vec<(Bytes, i64)> =
            ours.take(MOST_NEXT).map(|(number, ticket)| (ticket.key.clone(), *number)).collect();
        self.soon.extend(next.iter().map(|(_, number)| *number));
        next
    }

    /// The leave that looked for `next` has ended. With `left`, it took that one out, and saw those of `next` that are said to
    /// be there.
    pub(super) fn handed(&mut self, left: Option<i64>, next: impl Iterator<Item = (i64, bool)>) {
        if let Some(ticket) = left.and_then(|left| self.tickets.remove(&left)) {
            self.made.remove(&ticket.key);
        }
        for (number, there) in next {
            self.soon.remove(&number);
            if there && self.waiting.contains(&number) {
                self.inside.insert(number);
            }
        }
        self.wake();
    }

    /// Whether somebody here has just been let in by a leave, and does not know it yet: the next leave may come at once.
    pub(super) fn hands_on(&self) -> bool {
        !self.inside.is_empty()
    }

    /// Whether the watch has told of the end of a leave before whoever sent it did.
    pub(super) fn is_ahead(&self) -> bool {
        let frontier = if self.soon.is_empty() { 0 } else { self.frontier(0) };
        self.soon.iter().any(|number| *number <= frontier)
    }

    /// Whoever sent the leave does not say how it ended: those that it looks for ask themselves.
    pub(super) fn give_up(&mut self) {
        self.soon.clear();
        self.wake();
    }

    /// Wakes whoever has something to ask.
    fn wake(&mut self) {
        if self.wakers.is_empty() {
            return;
        }
        let frontier = self.frontier(0);
        let Followed { wakers, tickets, revision, soon, inside, .. } = self;
        wakers.retain(|_, (number, waker)| {
            let turn = *number <= frontier && !soon.contains(number);
            let known = *number <= *revision && (turn || !tickets.contains_key(number));
            let waits = !known && !inside.contains(number);
            if !waits {
                waker.wake_by_ref();
            }
            waits
        });
    }

    /// Wakes everybody: the watch has failed.
    pub(super) fn wake_all(&mut self) {
        self.wakers.drain().for_each(|(_, (_, waker))| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Kind;
    use crate::store::note::Record;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn kv(lease: i64, made: i64) -> KeyValue {
        let key = format!("a/{lease:x}").into();
        KeyValue { key, lease, create_revision: made, mod_revision: made, ..KeyValue::default() }
    }

    fn put(lease: i64, made: i64) -> Event {
        Event { r#type: EventType::Put.into(), kv: Some(kv(lease, made)) }
    }

    fn delete(lease: i64, at: i64) -> Event {
        let gone = KeyValue { create_revision: 0, lease: 0, mod_revision: at, ..kv(lease, 0) };
        Event { r#type: EventType::Delete.into(), kv: Some(gone) }
    }

    fn turns(line: &Followed, numbers: &[i64]) -> Vec<Turn> {
        numbers.iter().map(|number| line.turn(*number)).collect()
    }

    #[test]
    fn what_is_told_before_the_reading_counts_after_it() {
        let mut line = Followed::default();
        assert_eq!(line.turn(5), Turn::Unknown);
        line.told("a", vec![delete(1, 7), put(4, 8)]);
        assert_eq!(line.turn(5), Turn::Unknown, "it has not been read");
        // The reading is older than one part of what was told, and newer than another.
        line.told("a", vec![delete(2, 10), put(5, 11)]);
        line.read("a", &[kv(2, 5), kv(3, 6), kv(4, 8)], 9);
        assert_eq!(
            turns(&line, &[5, 6, 8, 11, 12]),
            [Turn::Gone, Turn::Maybe, Turn::NotYet, Turn::NotYet, Turn::Unknown]
        );
    }

    #[test]
    fn an_older_reading_changes_nothing() {
        let mut line = Followed::default();
        line.read("a", &[kv(2, 5), kv(3, 6)], 6);
        line.told("a", vec![delete(2, 10)]);
        line.read("a", &[kv(2, 5), kv(3, 6)], 7);
        assert_eq!(turns(&line, &[5, 6]), [Turn::Gone, Turn::Maybe]);
        line.gap();
        assert_eq!(line.turn(6), Turn::Unknown);
        line.read("a", &[kv(3, 6)], 7);
        assert_eq!(turns(&line, &[5, 6]), [Turn::Gone, Turn::Maybe]);
    }

    #[test]
    fn both_halves_of_one_transaction_count() {
        let mut line = Followed::default();
        line.read("a", &[kv(2, 5)], 5);
        line.told("a", vec![delete(2, 9), put(3, 9)]);
        assert_eq!(turns(&line, &[5, 9]), [Turn::Gone, Turn::Maybe]);
    }

    #[test]
    fn a_blocker_is_of_the_same_capacity() {
        let mut line = Followed::default();
        assert_eq!(line.blocker(1, line::WHOLE), None, "it has not been read");
        line.read("a", &[], 4);
        assert_eq!(line.blocker(1, line::WHOLE), None, "nobody is there");
        line.told("a", vec![put(2, 5), put(3, 6)]);
        assert_eq!(line.blocker(1, line::WHOLE), Some(("a/3".into(), 6)));
        assert_eq!(line.blocker(1, 3), None);
    }

    #[test]
    fn a_leave_looks_for_the_next_one_that_waits_here() {
        let mut line = Followed::default();
        line.read("a", &[kv(2, 5), kv(3, 6), kv(4, 7), kv(5, 8)], 8);
        assert_eq!(line.next_after(5), [], "nobody waits here");
        line.wait(7);
        assert_eq!(line.next_after(5), [], "another client's comes first");
        line.wait(6);
        assert_eq!(line.next_after(4), [], "there is no such ticket");
        assert_eq!(line.next_after(6), [], "it leaves before its turn: nobody comes in");
        assert_eq!(line.next_after(5), [("a/3".into(), 6)]);
        // The watch is faster: whoever waits still asks nothing.
        assert!(!line.is_ahead());
        line.told("a", vec![delete(2, 9)]);
        assert!(line.is_ahead());
        assert_eq!(turns(&line, &[6, 7]), [Turn::NotYet, Turn::NotYet]);
        line.handed(Some(5), [(6, true)].into_iter());
        assert_eq!(turns(&line, &[6, 7]), [Turn::Inside, Turn::NotYet]);
        assert!(!line.is_ahead());
        // The leave is faster: what the watch tells then is nothing new.
        assert_eq!(line.next_after(6), [("a/4".into(), 7)]);
        line.handed(Some(6), [(7, true)].into_iter());
        assert_eq!(turns(&line, &[7, 8]), [Turn::Inside, Turn::NotYet]);
        line.told("a", vec![delete(3, 10)]);
        assert_eq!(turns(&line, &[7, 8]), [Turn::Inside, Turn::NotYet]);
        line.forget(TicketId::new(), 7);
        assert_eq!(line.turn(7), Turn::Maybe, "nobody waits for it any more: it asks as anybody else");
    }

    fn written(lease: i64, made: i64, at: i64) -> Event {
        Event { r#type: EventType::Put.into(), kv: Some(KeyValue { mod_revision: at, ..kv(lease, made) }) }
    }

    #[test]
    fn who_was_seen_by_a_leave_elsewhere_is_inside() {
        let line = || {
            let mut line = Followed::default();
            line.read("a", &[kv(2, 5), kv(3, 6), kv(4, 7)], 7);
            line.wait(6);
            line
        };
        let mut seen = line();
        seen.told("a", vec![delete(2, 9), written(3, 6, 9)]);
        assert_eq!(turns(&seen, &[6, 7]), [Turn::Inside, Turn::NotYet]);
        seen.forget(TicketId::new(), 6);
        assert_eq!(seen.turn(6), Turn::Maybe);
        let mut changed = line();
        changed.told("a", vec![written(3, 6, 8)]);
        assert_eq!(changed.turn(6), Turn::NotYet, "it said something else of itself, and is not first");
        changed.told("a", vec![written(3, 6, 9), delete(2, 10)]);
        assert_eq!(changed.turn(6), Turn::Maybe, "it was seen before it was first");
        let mut another = line();
        another.told("a", vec![delete(2, 9), written(4, 7, 9)]);
        assert_eq!(turns(&another, &[6, 7]), [Turn::Maybe, Turn::NotYet]);
        let mut put_out = line();
        put_out.told("a", vec![delete(2, 9), written(3, 6, 9), delete(3, 10)]);
        assert_eq!(put_out.turn(6), Turn::Gone);
        let mut put_out_later = line();
        put_out_later.told("a", vec![delete(2, 9), written(3, 6, 9)]);
        put_out_later.told("a", vec![delete(3, 10)]);
        assert_eq!(put_out_later.turn(6), Turn::Gone);
        let mut missed = line();
        missed.gap();
        missed.told("a", vec![delete(2, 9), written(3, 6, 9)]);
        missed.read("a", &[kv(3, 6), kv(4, 7)], 10);
        assert_eq!(missed.turn(6), Turn::Maybe, "what was told before it was read may not be all");
    }

    #[test]
    fn a_leave_writes_the_next_one_of_another_client_anew() {
        let native = |lease: i64, made: i64| {
            let key = format!("a/{lease:x}-{}", TicketId::new()).into();
            KeyValue { key, ..kv(lease, made) }
        };
        let (next, last) = (native(3, 6), native(4, 7));
        let mut line = Followed::default();
        assert_eq!(line.next_elsewhere(5), [], "it has not been read");
        line.read("a", &[kv(2, 5), next.clone(), last.clone()], 7);
        assert_eq!(line.next_elsewhere(5), [(next.key.clone(), 6)]);
        assert_eq!(line.next_elsewhere(6), [], "nobody comes in by it");
        // A reader that comes in because a writer ahead of it gives up is not that writer.
        let reader = |kv: KeyValue| {
            let record = Record { kind: Kind::Read, weight: 1, ..Record::foreign("somebody", b"") };
            KeyValue { value: record.to_bytes().into(), ..kv }
        };
        let mut readers = Followed::default();
        readers.read("a", &[reader(native(2, 5)), next.clone(), reader(last.clone())], 7);
        assert_eq!(readers.next_elsewhere(6), [(last.key.clone(), 7)]);
        line.wait(6);
        assert_eq!(line.next_elsewhere(5), [], "it waits here");
        line.told("a", vec![delete(2, 8)]);
        assert_eq!(line.next_elsewhere(6), [(last.key.clone(), 7)]);
        let gone = KeyValue { create_revision: 0, mod_revision: 10, ..last };
        line.told("a", vec![put(5, 9), Event { r#type: EventType::Delete.into(), kv: Some(gone) }]);
        assert_eq!(line.next_elsewhere(6), [], "another program's would not know what it means");
    }

    #[test]
    fn a_leave_that_failed_lets_the_next_one_ask() {
        let mut line = Followed::default();
        line.read("a", &[kv(2, 5), kv(3, 6), kv(4, 7)], 7);
        line.wait(6);
        assert_eq!(line.next_after(5).len(), 1);
        line.told("a", vec![delete(2, 8)]);
        line.handed(None, [(6, false)].into_iter());
        assert_eq!(line.turn(6), Turn::Maybe);
        // Nobody says how it ended.
        line.wait(7);
        assert_eq!(line.next_after(6).len(), 1);
        line.told("a", vec![delete(3, 9)]);
        assert_eq!(line.turn(7), Turn::NotYet);
        line.give_up();
        assert_eq!(line.turn(7), Turn::Maybe);
        // It was seen gone, and the watch does not know it yet.
        line.told("a", vec![put(5, 10)]);
        line.wait(10);
        assert_eq!(line.next_after(7).len(), 1);
        line.handed(Some(7), [(10, false)].into_iter());
        assert_eq!(line.turn(10), Turn::Maybe, "it asks, and is told");
    }

    #[test]
    fn only_whoever_has_something_to_ask_is_woken() {
        let mut line = Followed::default();
        let counts: Vec<Arc<Count>> = (0..3).map(|_| Arc::default()).collect();
        let ids: Vec<TicketId> = (0..3).map(|_| TicketId::new()).collect();
        let numbers = [6, 7, 8];
        let poll = |line: &mut Followed, i: usize| {
            let waker = Waker::from(counts[i].clone());
            line.poll(ids[i], numbers[i], &mut Context::from_waker(&waker))
        };
        line.read("a", &[kv(2, 5), kv(3, 6), kv(4, 7), kv(5, 8)], 8);
        (0..3).for_each(|i| assert_eq!(poll(&mut line, i), Poll::Pending));
        line.told("a", vec![put(6, 9)]);
        line.told("a", vec![delete(2, 10)]);
        line.told("a", vec![delete(5, 11)]);
        let woken: Vec<usize> = counts.iter().map(|count| count.0.load(Ordering::SeqCst)).collect();
        assert_eq!(woken, [1, 0, 1], "the first came in, the last is gone");
        assert_eq!(poll(&mut line, 0), Poll::Ready(Turn::Maybe));
        assert_eq!(poll(&mut line, 2), Poll::Ready(Turn::Gone));
        line.forget(ids[1], numbers[1]);
        line.told("a", vec![delete(3, 12)]);
        assert_eq!(counts[1].0.load(Ordering::SeqCst), 0);
    }
}
