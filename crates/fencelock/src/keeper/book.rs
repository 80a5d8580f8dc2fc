//! What the keeper knows: the tickets that are kept, when they are to be renewed, and the places that are to be left. Nothing
//! here talks to a store.

use super::{Flight, Keeper, retry_after};
use crate::clock::Moment;
use crate::hold::Hold;
use crate::store::{BoxFuture, Place, Presence, Renew, TicketId, Tickets};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use tokio::sync::oneshot;

#[derive(Default)]
pub(super) struct Book {
    pub(super) entries: Tickets<Entry>,
    pub(super) rounds: BTreeMap<Duration, Round>,
    /// Renewals out of turn: what failed and is tried again before the next round.
    pub(super) hasty: BTreeMap<(Moment, u64), Vec<TicketId>>,
    /// When to look whether a ticket is late. Renewals move the real deadline without touching this: whoever looks too early
    /// looks again.
    pub(super) deadlines: BTreeSet<(Moment, TicketId)>,
    /// To be sent at once.
    pub(super) leaves: VecDeque<Leave>,
    /// To be sent later: `min_hold`, orphans, what failed.
    pub(super) later: BTreeMap<(Moment, u64), Leave>,
    /// Releases and changes under way, by name.
    pub(super) flying: HashMap<Arc<str>, usize>,
    pub(super) tasks: Vec<BoxFuture<'static, ()>>,
    pub(super) running: usize,
    pub(super) doubts: Vec<TicketId>,
    pub(super) doubt_all: bool,
    /// Who waits until releases have been sent.
    pub(super) waiters: Vec<Waker>,
    pub(super) wake_at: Moment,
    pub(super) sequence: u64,
    pub(super) closing: bool,
}

pub(super) struct Entry {
    pub(super) hold: Arc<Hold>,
    pub(super) looked_at: Moment,
    pub(super) class: Option<Duration>,
}

pub(super) struct Round {
    pub(super) next: Moment,
    pub(super) ids: Tickets<()>,
}

/// A place to be left.
pub(crate) struct Leave {
    pub(crate) place: Place,
    pub(super) lease: Duration,
    /// An enter of this place may still have an effect until then.
    pub(super) unanswered: Moment,
    /// The ticket cannot be there any more from then on.
    pub(super) give_up: Moment,
    pub(super) tries: u32,
    /// It was confirmed at least once; what is left is to see to an orphan.
    pub(super) confirmed: bool,
    /// How often it was confirmed.
    pub(super) watched: u32,
    /// A guard's end that waits for `min_hold`: its ticket is renewed until then.
    pub(super) lingering: Option<Arc<Hold>>,
    pub(super) done: Option<oneshot::Sender<Presence>>,
}

impl Book {
    /// Counts something in that is under way; an enter of these names waits for it.
    pub(super) fn take_off(&mut self, keeper: &Arc<Keeper>, names: Vec<Arc<str>>) -> Flight {
        self.running += 1;
        for name in &names {
            *self.flying.entry(name.clone()).or_default() += 1;
        }
        Flight { keeper: keeper.clone(), names }
    }

    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn strike(&mut self, id: TicketId) -> bool {
        let Some(entry) = self.entries.remove(&id) else { return false };
        self.deadlines.remove(&(entry.looked_at, id));
        if let Some(round) = entry.class.and_then(|class| self.rounds.get_mut(&class)) {
            round.ids.remove(&id);
        }
        true
    }

    pub(super) fn take_late(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let mut late = Vec::new();
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let deadline = entry.hold.deadline();
            if deadline <= now || entry.hold.loss().is_some() {
                late.push(entry.hold.clone());
            } else {
                entry.looked_at = deadline;
                self.deadlines.insert((deadline, id));
            }
        }
        late
    }

    pub(super) fn take_renewals(&mut self, now: Moment) -> Vec<(Arc<Hold>, Renew)> {
        let mut due = Vec::new();
        for id in std::mem::take(&mut self.doubts) {
            let renewal =
                self.entries.get(&id).and_then(|entry| Some((entry.hold.clone(), entry.hold.renewal(now, true)?)));
            due.extend(renewal);
        }
        if std::mem::take(&mut self.doubt_all) {
            due = self.entries.values().filter_map(|e| Some((e.hold.clone(), e.hold.renewal(now, true)?))).collect();
        }
        let entries = &self.entries;
        let mut asked = |id: &TicketId, later: &mut Vec<(Moment, TicketId)>| {
            let Some(Entry { hold, .. }) = entries.get(id) else { return };
            let renewal = hold.renewal(now, false);
            if renewal.is_none() {
                // Renewed just now, out of turn: where the store grants less than was asked for, the next round may be too late.
                later.push((hold.renew_by().max(now.after(retry_after(hold.terms.lease))), *id));
            }
            due.extend(renewal.map(|renewal| (hold.clone(), renewal)));
        };
        let mut later = Vec::new();
        for id in due_of(&mut self.hasty, now).into_values().flatten() {
            asked(&id, &mut later);
        }
        self.rounds.retain(|lease, round| {
            if round.next > now {
                return true;
            }
            round.next = now.after(period(*lease));
            round.ids.keys().for_each(|id| asked(id, &mut later));
            !round.ids.is_empty()
        });
        for (at, id) in later {
            let round = self.entries.get(&id).and_then(|entry| self.rounds.get(&entry.class?));
            if round.is_some_and(|round| at < round.next) {
                let key = (at, self.next_sequence());
                self.hasty.insert(key, vec![id]);
            }
        }
        due
    }

    pub(super) fn take_leaves(&mut self, now: Moment) -> Vec<Leave> {
        let due = due_of(&mut self.later, now);
        self.leaves.drain(..).chain(due.into_values()).collect()
    }

    pub(super) fn next_due(&self) -> Moment {
        let round = self.rounds.values().map(|round| round.next).min();
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let hasty = self.hasty.first_key_value().map(|((at, _), _)| *at);
        let leave = self.later.first_key_value().map(|((at, _), _)| *at);
        [round, hasty, deadline, leave].into_iter().flatten().min().unwrap_or(Moment::FAR)
    }

    /// Whether every release has been sent; orphans that were left once and are only watched do not count.
    pub(super) fn is_quiet(&self) -> bool {
        self.leaves.is_empty()
            && self.flying.is_empty()
            && self.tasks.is_empty()
            && self.later.values().all(|leave| leave.confirmed)
    }

    /// What is left in the book when nobody has a guard any more was lost and is still to be taken out of the store.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.is_quiet() && self.running == 0 && self.entries.is_empty()
    }
}

/// Takes out what is due.
fn due_of<T>(all: &mut BTreeMap<(Moment, u64), T>, now: Moment) -> BTreeMap<(Moment, u64), T> {
    let later = all.split_off(&(now.after(Duration::from_nanos(1)), 0));
    std::mem::replace(all, later)
}

/// A third of the lease, less up to a seventh of that at random: many clients that started together drift apart.
pub(super) fn period(lease: Duration) -> Duration {
    (lease / 3).mul_f64(1.0 - fastrand::f64() / 7.0)
}
