//! The tickets of this client that wait, and what is known of each: no I/O. A grant arrives as a message that names the
//! ticket; whoever waits for it is woken with the answer in hand. Messages get lost, and a holder that dies sends none, so
//! each ticket also has a moment at which to look: when the next lease of its line ends, when its own does, and at the latest a
//! tick after the server last told of it. Renewals tell of it too, so as a rule that look never has to be sent.

use crate::clock::Moment;
use crate::name::Name;
use crate::store::{Place, TicketId, Tickets, Waited};
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;

/// A waiting ticket that nothing was heard of for this long is looked at.
pub(super) const TICK: Duration = Duration::from_secs(15);
/// An answer that nobody has fetched for this long is thrown away: a later question is put to the server.
const FORGET: Duration = Duration::from_secs(60);
/// A look that is not answered is sent again after this long.
const AGAIN: Duration = Duration::from_secs(1);
/// Leases end on the server's clock, which is read in whole ticks; a look that comes a moment too early would be wasted.
const SLACK: Duration = Duration::from_millis(2);

/// What the server said of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Inside { token: u64, lease: Duration },
    Waiting { token: u64, lease: Duration, next_lapse: Duration },
    Gone,
}

#[derive(Default)]
pub(super) struct Waiters {
    book: Mutex<Book>,
    /// Rung when something is due earlier than before.
    pub(super) bell: Notify,
}

struct Book {
    waiters: Tickets<Waiter>,
    /// Nothing is due before this.
    due: Moment,
}

impl Default for Book {
    fn default() -> Self {
        Book { waiters: Tickets::default(), due: Moment::FAR }
    }
}

struct Waiter {
    name: Name,
    found: Option<Waited>,
    wakers: Vec<Waker>,
    /// When to look although nothing is known to happen then; for an answer, when to throw it away.
    tick: Moment,
    /// When the next lease of the line ends.
    lapse: Moment,
    /// When its own lease ends, as far as is known.
    end: Moment,
    /// A message of it may have been lost, so it is looked at: at once, or, while its enter is under way, as soon as that is
    /// answered. What the server said before that look does not count.
    missed: bool,
}

impl Waiter {
    fn due(&self) -> Moment {
        if self.is_missed() { Moment::default() } else { self.tick.min(self.lapse).min(self.end) }
    }

    fn is_missed(&self) -> bool {
        self.missed && self.tick != Moment::FAR
    }

    fn find(&mut self, found: Waited, now: Moment) -> Vec<Waker> {
        self.found = Some(found);
        (self.tick, self.lapse, self.end) = (now.after(FORGET), Moment::FAR, Moment::FAR);
        std::mem::take(&mut self.wakers)
    }
}

impl Waiters {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A grant of this ticket may come from now on: called before its enter is sent.
    pub(super) fn expect(&self, place: &Place) {
        let new = || Waiter {
            name: place.name.clone(),
            found: None,
            wakers: Vec::new(),
            tick: Moment::FAR,
            lapse: Moment::FAR,
            end: Moment::FAR,
            missed: false,
        };
        // What is known of an earlier ticket with this id says nothing of this one.
        self.book().waiters.entry(place.id).or_insert_with(new).found = None;
    }

    /// Nobody waits for it any more. Whoever does nevertheless asks the server.
    pub(super) fn forget(&self, id: TicketId) {
        let waiter = self.book().waiters.remove(&id);
        waiter.into_iter().flat_map(|waiter| waiter.wakers).for_each(Waker::wake);
    }

    /// A message says that it was let in.
    pub(super) fn granted(&self, id: TicketId, token: u64, now: Moment) {
        self.find(id, Waited::Admitted { token }, now);
    }

    /// A message says that it may be gone: the server is asked.
    pub(super) fn doubt(&self, id: TicketId) {
        let mut book = self.book();
        let Some(waiter) = book.waiters.get_mut(&id).filter(|waiter| waiter.found.is_none()) else { return };
        waiter.missed = true;
        let due = waiter.due();
        self.due_at(book, due);
    }

    /// A message says that a lease ends in its line earlier than it knows of.
    pub(super) fn lapse_in(&self, id: TicketId, after: Duration, now: Moment) {
        let mut book = self.book();
        let Some(waiter) = book.waiters.get_mut(&id).filter(|waiter| waiter.found.is_none()) else { return };
        waiter.lapse = waiter.lapse.min(now.after(after).after(SLACK));
        let due = waiter.lapse;
        self.due_at(book, due);
    }

    /// Messages of this line may have been lost: its tickets are due.
    pub(super) fn doubt_line(&self, name: &Name) {
        let mut book = self.book();
        let waits = |waiter: &&mut Waiter| waiter.found.is_none() && waiter.name == *name;
        let mut due = Moment::FAR;
        for waiter in book.waiters.values_mut().filter(waits) {
            waiter.missed = true;
            due = due.min(waiter.due());
        }
        self.due_at(book, due);
    }

    /// The lines in which somebody waits.
    pub(super) fn lines(&self) -> HashSet<Name> {
        let book = self.book();
        book.waiters.values().filter(|waiter| waiter.found.is_none()).map(|waiter| waiter.name.clone()).collect()
    }

    /// What the server said of it, by whatever verb. Only of tickets that wait here.
    pub(super) fn told(&self, id: TicketId, standing: Standing, now: Moment) {
        match standing {
            Standing::Inside { token, .. } => self.find(id, Waited::Admitted { token }, now),
            Standing::Gone => self.find(id, Waited::Gone, now),
            Standing::Waiting { token, lease, next_lapse } => {
                let mut book = self.book();
                let Some(waiter) = book.waiters.get_mut(&id) else { return };
                match waiter.found.take() {
                    // Let in after that answer was given.
                    Some(found) if found == (Waited::Admitted { token }) => {
                        waiter.found = Some(found);
                        return;
                    }
                    // Something was said of an earlier ticket with this id, or the two crossed: the server knows.
                    Some(_) => waiter.tick = now,
                    None => waiter.tick = now.after(TICK),
                }
                waiter.lapse = now.after(next_lapse).after(SLACK);
                waiter.end = now.after(lease).after(SLACK);
                let due = waiter.due();
                self.due_at(book, due);
            }
        }
    }

    fn find(&self, id: TicketId, found: Waited, now: Moment) {
        let mut book = self.book();
        let wakers = book.waiters.get_mut(&id).map(|waiter| waiter.find(found, now)).unwrap_or_default();
        drop(book);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn due_at(&self, mut book: MutexGuard<'_, Book>, due: Moment) {
        if due < book.due {
            book.due = due;
            drop(book);
            self.bell.notify_one();
        }
    }

    /// What was found of it; `None` if nothing is known of this ticket here.
    pub(super) fn poll(&self, id: TicketId, cx: &mut Context<'_>) -> Poll<Option<Waited>> {
        let mut book = self.book();
        let Some(waiter) = book.waiters.get_mut(&id) else { return Poll::Ready(None) };
        if let Some(found) = waiter.found.clone() {
            book.waiters.remove(&id);
            return Poll::Ready(Some(found));
        }
        if !waiter.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiter.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// When to call [`take_due`](Waiters::take_due).
    pub(super) fn due(&self) -> Moment {
        self.book().due
    }

    /// The tickets to look at now: those whose tick has come or whose own lease has ended, and one of each line in which
    /// another lease has ended (the server tells whom that lets in).
    pub(super) fn take_due(&self, now: Moment) -> Vec<Place> {
        let mut book = self.book();
        let mut places = Vec::new();
        let mut lines: HashSet<Name> = HashSet::new();
        book.waiters.retain(|_, waiter| waiter.found.is_none() || waiter.tick > now);
        for (id, waiter) in &mut book.waiters {
            let own = waiter.is_missed() || waiter.tick.min(waiter.end) <= now;
            if own || (waiter.lapse <= now && !lines.contains(&waiter.name)) {
                lines.insert(waiter.name.clone());
                places.push(Place { name: waiter.name.clone(), id: *id });
                waiter.tick = now.after(TICK);
                waiter.missed = false;
            }
            for moment in [&mut waiter.lapse, &mut waiter.end] {
                if *moment <= now {
                    *moment = now.after(AGAIN);
                }
            }
        }
        book.due = book.waiters.values().map(Waiter::due).min().unwrap_or(Moment::FAR);
        places
    }

    /// Messages may have been lost until now: every ticket is due, those whose enter is under way as soon as it is answered.
    pub(super) fn doubt_all(&self) {
        let mut book = self.book();
        book.waiters.values_mut().filter(|waiter| waiter.found.is_none()).for_each(|waiter| waiter.missed = true);
        let due = book.waiters.values().map(Waiter::due).min().unwrap_or(Moment::FAR);
        self.due_at(book, due);
    }

    /// What a look at one ticket told of its whole line: when its next lease ends. The line's other tickets that were due for
    /// the same reason need not ask as well.
    pub(super) fn line_told(&self, name: &Name, next_lapse: Duration, now: Moment) {
        let mut book = self.book();
        let lapse = now.after(next_lapse).after(SLACK);
        for waiter in book.waiters.values_mut().filter(|waiter| waiter.found.is_none() && waiter.name == *name) {
            if waiter.lapse <= now.after(AGAIN) {
                waiter.lapse = lapse;
            }
        }
        self.due_at(book, lapse);
    }

    /// The look at these failed.
    pub(super) fn look_failed(&self, places: &[Place], now: Moment) {
        let mut book = self.book();
        for place in places {
            if let Some(waiter) = book.waiters.get_mut(&place.id).filter(|waiter| waiter.found.is_none()) {
                waiter.tick = waiter.tick.min(now.after(AGAIN));
            }
        }
        self.due_at(book, now.after(AGAIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    const SECOND: Duration = Duration::from_secs(1);

    fn waiting(lease: u32, next_lapse: u32) -> Standing {
        Standing::Waiting { token: 1, lease: SECOND * lease, next_lapse: SECOND * next_lapse }
    }

    fn place(name: &str) -> Place {
        Place { name: Name::new("", name).unwrap(), id: TicketId::new() }
    }

    fn at(seconds: u32) -> Moment {
        Moment::default().after(SECOND * seconds)
    }

    #[test]
    fn a_grant_may_come_before_the_answer() {
        let waiters = Waiters::default();
        let place = place("a");
        waiters.expect(&place);
        waiters.granted(place.id, 1, at(1));
        waiters.told(place.id, waiting(30, 30), at(1));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(waiters.poll(place.id, &mut cx), Poll::Ready(Some(Waited::Admitted { token: 1 })));
        assert_eq!(waiters.poll(place.id, &mut cx), Poll::Ready(None), "fetched once");
    }

    #[test]
    fn what_was_said_of_an_earlier_ticket_with_the_same_id_does_not_count() {
        let waiters = Waiters::default();
        let place = place("a");
        let mut cx = Context::from_waker(Waker::noop());
        for late in [false, true] {
            waiters.expect(&place);
            waiters.told(place.id, Standing::Gone, at(1));
            if !late {
                waiters.expect(&place);
            }
            waiters.told(place.id, waiting(30, 30), at(2));
            assert!(waiters.poll(place.id, &mut cx).is_pending());
            assert_eq!(waiters.take_due(at(2)).len(), usize::from(late), "asked where it is in doubt");
        }
    }

    #[test]
    fn one_of_a_line_looks_when_somebody_s_lease_ends() {
        let waiters = Waiters::default();
        let places = [place("a"), place("a"), place("b")];
        for place in &places {
            waiters.expect(place);
            waiters.told(place.id, waiting(30, 5), at(0));
        }
        assert!(waiters.due() > at(5) && waiters.due() < at(6));
        let due = waiters.take_due(at(6));
        assert_eq!(due.len(), 2, "one of each line: {due:?}");
        for place in &due {
            waiters.line_told(&place.name, SECOND * 20, at(6));
            waiters.told(place.id, waiting(24, 20), at(6));
        }
        assert!(waiters.take_due(at(8)).is_empty(), "then not before the tick");
        assert!(waiters.due() > at(14), "{:?}", waiters.due());
        assert_eq!(waiters.take_due(at(16)).len(), 1, "that of the one that has not looked itself");
    }

    #[test]
    fn a_lease_of_its_own_that_ends_is_looked_at() {
        let waiters = Waiters::default();
        let places = [place("a"), place("a")];
        for place in &places {
            waiters.expect(place);
            waiters.told(place.id, waiting(2, 1), at(0));
        }
        assert_eq!(waiters.take_due(at(3)).len(), 2);
        waiters.told(places[0].id, Standing::Gone, at(3));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(waiters.poll(places[0].id, &mut cx), Poll::Ready(Some(Waited::Gone)));
        assert!(waiters.poll(places[1].id, &mut cx).is_pending());
    }

    #[test]
    fn an_answer_from_before_a_message_may_have_been_lost_does_not_spare_the_look() {
        let waiters = Waiters::default();
        let (answered, under_way) = (place("a"), place("b"));
        waiters.expect(&answered);
        waiters.told(answered.id, waiting(30, 30), at(0));
        waiters.expect(&under_way);
        waiters.doubt_all();
        assert!(waiters.due() <= at(1));
        // Sent before and come after: a renewal of the one, the enter of the other.
        waiters.told(answered.id, waiting(30, 30), at(1));
        assert_eq!(waiters.take_due(at(1)), [answered], "an enter that is under way is not asked about");
        assert!(waiters.due() > at(10));
        waiters.told(under_way.id, waiting(30, 30), at(1));
        assert!(waiters.due() <= at(1));
        assert_eq!(waiters.take_due(at(1)), [under_way]);
        assert!(waiters.due() > at(10), "once");
    }

    #[test]
    fn an_answer_that_nobody_fetches_is_thrown_away() {
        let waiters = Waiters::default();
        let place = place("a");
        waiters.expect(&place);
        waiters.granted(place.id, 7, at(0));
        assert!(waiters.take_due(at(61)).is_empty());
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(waiters.poll(place.id, &mut cx), Poll::Ready(None));
    }
}
