//! The connection's task: the tickets of this client, in their lines, and when the server is asked for them.

use super::driver::{Ask, Driver, Left, Taken, is_shared};
use super::entering::{Entering, apart};
use super::telling::{Look, Looking, Row};
use super::turns::{FRESH, Turn};
use super::{Job, Part, Shared};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::store::sql::lock;
use crate::store::{Enter, Note, Place, Presence, Renew, Renewed, Scope, Waited};
use futures_util::future::{Either, select};
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Whoever waits is tried this often at most,
const FASTEST: Duration = Duration::from_millis(5);
/// and this often at least.
const SLOWEST: Duration = Duration::from_millis(100);
/// What is watched is compared this often.
const WATCHING: Duration = Duration::from_millis(400);
/// As many are tried in one call.
const AT_ONCE: usize = 128;

/// A ticket of this client.
pub(super) struct Ticket {
    pub(super) enter: Enter,
    /// Its number, once it is inside.
    pub(super) number: Option<u64>,
    pub(super) entered: Moment,
    pub(super) admitted: Option<Moment>,
    pub(super) row: Row,
    /// When something changed that the table is to show.
    pub(super) changed: Moment,
    /// Since when its lock has been with this client; while it waits, nothing.
    pub(super) turn: Turn,
}

/// A leave, and who asked for it.
type Leaving = (Vec<Place>, oneshot::Sender<Result<Vec<Presence>>>);

/// The jobs before the one that closes the store, and whether there is one.
fn until_closed(jobs: impl Iterator<Item = Job>) -> (Vec<Job>, bool) {
    let mut all = Vec::new();
    for job in jobs {
        if matches!(job, Job::Close) {
            return (all, true);
        }
        all.push(job);
    }
    (all, false)
}

/// The connection's task.
pub(super) struct Actor<D> {
    pub(super) driver: D,
    part: Part,
    /// Whether the server knows shared locks.
    readers: bool,
    pub(super) shared: Arc<Shared>,
    pub(super) clock: Clock,
    pub(super) lines: BTreeMap<String, Vec<Ticket>>,
    /// When to see what the table does not show yet; never, if it shows everything.
    pub(super) show_at: Moment,
    /// Since when it has not shown everything, and since when that has not become more.
    pub(super) behind: Moment,
    pub(super) calm: Moment,
    /// The lines that we do not try for, and until when.
    pub(super) resting: HashMap<String, Moment>,
    /// Those whose row says that they wait, and who are gone.
    pub(super) gone: Vec<Place>,
    /// Looks that wait for other clients to catch up.
    pub(super) looking: Vec<Looking>,
    pub(super) tried_at: Moment,
    /// Since when nothing has happened to those who wait.
    pub(super) stirred: Moment,
    watched_at: Moment,
    marks: HashMap<Scope, String>,
    /// How long the server waits for us, by what it was last told.
    told: Duration,
}

impl<D: Driver> Actor<D> {
    pub(super) fn new(driver: D, readers: bool, part: Part, shared: Arc<Shared>, clock: Clock) -> Actor<D> {
        Actor {
            driver,
            part,
            readers,
            shared,
            lines: BTreeMap::new(),
            show_at: Moment::FAR,
            behind: Moment::default(),
            calm: Moment::default(),
            resting: HashMap::new(),
            gone: Vec::new(),
            looking: Vec::new(),
            tried_at: Moment::default(),
            stirred: clock.now(),
            watched_at: Moment::default(),
            marks: HashMap::new(),
            told: Duration::ZERO,
            clock,
        }
    }

    pub(super) async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        if self.part.which == 0 {
            // So that the first call need not wait for it. If it fails, that call says why.
            let _ = self.driver.open().await;
        }
        loop {
            let mut wake_at = self.wake_at();
            if wake_at <= self.clock.now() {
                // Whatever else is asked for: else a busy client would never come to it.
                self.tick().await;
                wake_at = self.wake_at();
            }
            let next = {
                let timer = self.clock.sleep_until(wake_at);
                let ended = self.driver.ended();
                match select(pin!(jobs.recv()), select(pin!(ended), timer)).await {
                    Either::Left((Some(Job::Close) | None, _)) => break,
                    Either::Left((Some(job), _)) => Some(Some(job)),
                    Either::Right((Either::Left(_), _)) => Some(None),
                    Either::Right((Either::Right(_), _)) => None,
                }
            };
            match next {
                Some(Some(job)) => {
                    let more = std::iter::from_fn(|| jobs.try_recv().ok()).take(AT_ONCE - 1);
                    let (all, closed) = until_closed(std::iter::once(job).chain(more));
                    self.act_on_all(all).await;
                    if closed {
                        break;
                    }
                }
                Some(None) => self.lose(),
                None => {}
            }
        }
        self.driver.close();
        self.lose();
    }

    fn waits(&self) -> bool {
        self.lines.values().flatten().any(|ticket| ticket.number.is_none())
    }

    fn pause(&self) -> Duration {
        (self.clock.now().since(self.stirred) / 32).clamp(FASTEST, SLOWEST)
    }

    fn wake_at(&self) -> Moment {
        let mut at = self.looking.iter().map(|looking| looking.again).fold(self.show_at, Moment::min);
        if self.waits() {
            at = at.min(self.tried_at.after(self.pause()));
        }
        if !self.watched().is_empty() {
            at = at.min(self.watched_at.after(WATCHING));
        }
        at
    }

    /// The connection is gone, and with it everything that hung on it.
    fn lose(&mut self) {
        self.driver.close();
        self.told = Duration::ZERO;
        self.show_at = Moment::FAR;
        self.gone.clear();
        for ticket in std::mem::take(&mut self.lines).into_values().flatten() {
            self.shared.tickets.fetch_sub(1, Ordering::Relaxed);
            let place = &ticket.enter.place;
            self.shared.ears.tell(place.id, &Waited::Gone);
            self.shared.hints.tell(&place.name);
            if let Some(host) = self.shared.host.get() {
                host.doubt(Some(place.id));
            }
        }
    }

    /// Opens the connection, if it is not open.
    pub(super) async fn connected(&mut self) -> Result<()> {
        if !self.driver.is_open() {
            self.lose();
            self.driver.open().await?;
        }
        Ok(())
    }

    /// An error of the driver: with the connection goes everything.
    pub(super) fn failed(&mut self, error: Error) -> Error {
        if !self.driver.is_open() {
            self.lose();
        }
        error
    }

    /// The server is to wait for us as long as the longest of our leases, and as long as we may go on without asking it.
    fn longest(&self, besides: Duration) -> Duration {
        self.lines.values().flatten().map(|ticket| ticket.enter.lease).fold(besides, Duration::max) + FRESH
    }

    /// The same, for a call that tells it.
    pub(super) fn ttl(&mut self, besides: Duration) -> Duration {
        self.told = self.longest(besides);
        self.told
    }

    /// Whether it was told so.
    pub(super) fn is_told(&self) -> bool {
        self.driver.is_open() && self.told >= self.longest(Duration::ZERO)
    }

    /// What was asked for at the same time, none of which can depend on another's answer: one call for all who leave and all who
    /// enter, in this order, then the rest. Only the leave of a ticket that comes after its enter, which was given up, stays behind.
    async fn act_on_all(&mut self, jobs: Vec<Job>) {
        let (mut enters, mut leaves, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Enter(enter, answer) => enters.push((*enter, answer)),
                Job::Leave(batch, answer)
                    if !enters.iter().any(|(enter, _): &Entering| batch.contains(&enter.place)) =>
                {
                    leaves.push((batch, answer));
                }
                other => rest.push(other),
            }
        }
        let all: Vec<Place> = leaves.iter().flat_map(|(batch, _)| batch.iter().cloned()).collect();
        let parted = self.part(&all).await;
        let mut rounds = apart(enters).into_iter();
        if let Some(first) = rounds.next() {
            self.enter_all(first).await;
        }
        self.say_left(leaves, parted).await;
        for round in rounds {
            self.enter_all(round).await;
        }
        for job in rest {
            self.act(job).await;
        }
    }

    /// Tells those who leave what became of it.
    async fn say_left(&mut self, leaves: Vec<Leaving>, parted: Result<Vec<Presence>>) {
        let mut found = self.settled(parted).await.map(Vec::into_iter);
        for (batch, answer) in leaves {
            let own = match &mut found {
                Ok(found) => Ok(found.by_ref().take(batch.len()).collect()),
                Err(error) => Err(error.again()),
            };
            drop(answer.send(own));
        }
    }

    /// Makes sure that what has parted is given back.
    async fn settled(&mut self, parted: Result<Vec<Presence>>) -> Result<Vec<Presence>> {
        let settled = self.driver.settle().await.map_err(|error| self.failed(error));
        parted.and_then(|found| settled.map(|()| found))
    }

    async fn act(&mut self, job: Job) {
        // Whoever asked may have gone: then nobody hears the answer.
        match job {
            Job::Enter(enter, answer) => self.enter_all(vec![(*enter, answer)]).await,
            Job::Leave(batch, answer) => {
                let parted = self.part(&batch).await;
                self.say_left(vec![(batch, answer)], parted).await;
            }
            Job::Renew(batch, answer) => drop(answer.send(self.renew(&batch).await)),
            Job::Look(place, answer) => {
                self.stirred = self.clock.now();
                drop(answer.send(Ok(self.look(&place))));
            }
            Job::Change(place, weight, note, answer) => drop(answer.send(self.change(&place, weight, note).await)),
            Job::CatchUp(answer) => drop(answer.send(self.show(true).await)),
            Job::Inspect(name, answer) => self.see(Look::Line(name, answer), self.clock.now()).await,
            Job::List(prefix, after, limit, answer) => {
                self.see(Look::Names { prefix, after, limit, answer }, self.clock.now()).await;
            }
            Job::Watch => {
                // Whoever begins to watch is told to look once: what it has seen may be older than our last look.
                self.marks.clear();
                self.watched_at = Moment::default();
            }
            Job::Close => {}
        }
    }

    pub(super) fn ticket(&mut self, place: &Place) -> Option<&mut Ticket> {
        self.lines.get_mut(place.name.key())?.iter_mut().find(|ticket| ticket.enter.place.id == place.id)
    }

    fn look(&mut self, place: &Place) -> Waited {
        match self.ticket(place).map(|ticket| ticket.number) {
            None => Waited::Gone,
            Some(None) => Waited::Waiting,
            Some(Some(token)) => Waited::Admitted { token },
        }
    }

    pub(super) async fn leave(&mut self, batch: &[Place]) -> Result<Vec<Presence>> {
        let parted = self.part(batch).await;
        self.settled(parted).await
    }

    /// Takes tickets out. Their locks are given back by the next call to the server, or by [`Actor::settled`].
    async fn part(&mut self, batch: &[Place]) -> Result<Vec<Presence>> {
        let mut left = Vec::new();
        let mut found = Vec::with_capacity(batch.len());
        let behind = self.driver.is_behind();
        for (i, place) in batch.iter().enumerate() {
            let again = batch[..i].contains(place);
            let there = self.ticket(place).filter(|_| !again);
            found.push(if there.is_some() { Presence::There } else { Presence::Gone });
            if let Some(ticket) = there {
                let (shared, inside) = (is_shared(&ticket.enter), ticket.number.is_some());
                // That somebody is inside must never be told wrong. Of who waited it may be told until the flag comes down.
                let row = ticket.row.is_there() && (ticket.row.says_inside() || !behind);
                if ticket.row.is_there() && !row {
                    self.gone.push(place.clone());
                }
                left.push(Left { place, shared, inside, row });
            }
        }
        if left.is_empty() {
            return Ok(found);
        }
        let next = self.turns(&mut left).await?;
        // Of who waits and has no row the server knows nothing.
        if left.iter().any(|left| left.inside || left.row) {
            self.driver.put_back(&left).await.map_err(|error| self.failed(error))?;
        }
        for Left { place, .. } in &left {
            if let Some(line) = self.lines.get_mut(place.name.key()) {
                let before = line.len();
                line.retain(|ticket| ticket.enter.place.id != place.id);
                self.shared.tickets.fetch_sub(before - line.len(), Ordering::Relaxed);
                if line.is_empty() {
                    self.lines.remove(place.name.key());
                }
            }
            self.shared.ears.tell(place.id, &Waited::Gone);
            self.shared.hints.tell(&place.name);
        }
        self.pass_on(next).await?;
        // Each line once: tried twice, the server would count the lock twice.
        let mut keys: Vec<String> = left.iter().map(|left| left.place.name.key().to_string()).collect();
        keys.sort();
        keys.dedup();
        self.try_lines(&keys).await;
        Ok(found)
    }

    async fn renew(&mut self, batch: &[Renew]) -> Result<Vec<Renewed>> {
        let mut any = false;
        for ticket in batch {
            if let Some(there) = self.ticket(&ticket.place) {
                there.enter.lease = there.enter.lease.max(ticket.lease);
                any = true;
            }
        }
        if any {
            let ttl = self.ttl(Duration::ZERO);
            self.driver.touch(ttl).await.map_err(|error| self.failed(error))?;
        }
        let renewed = batch.iter().map(|ticket| match self.ticket(&ticket.place) {
            Some(_) => Renewed::There { lease: ticket.lease },
            None => Renewed::Gone,
        });
        Ok(renewed.collect())
    }

    async fn change(&mut self, place: &Place, weight: Option<u32>, note: Option<Note>) -> Result<Presence> {
        let readers = self.readers;
        let Some(ticket) = self.ticket(place) else { return Ok(Presence::Gone) };
        let lower = weight.is_some_and(|weight| weight < ticket.enter.weight);
        if weight.is_some() && !readers {
            return Err(Error::new(ErrorKind::Unsupported, "this store keeps no readers and no permits"));
        }
        if lower && ticket.number.is_some() {
            self.driver.lower(&place.name).await.map_err(|error| self.failed(error))?;
        }
        let now = self.clock.now();
        if let Some(ticket) = self.ticket(place) {
            if lower {
                ticket.enter.weight = 1;
                ticket.enter.kind = crate::store::Kind::Read;
            }
            if let Some(note) = note {
                ticket.enter.note = note;
            }
            ticket.changes(now);
        }
        // At once: a reader who comes now must not be told of a writer.
        self.show(true).await?;
        self.shared.hints.tell(&place.name);
        if lower {
            self.try_lines(&[place.name.key().to_string()]).await;
        }
        Ok(Presence::There)
    }

    async fn tick(&mut self) {
        if self.waits() && self.clock.now() >= self.tried_at.after(self.pause()) {
            let keys: Vec<String> = self.lines.keys().cloned().collect();
            self.try_lines(&keys).await;
            self.tried_at = self.clock.now();
        }
        let scopes = self.watched();
        if !scopes.is_empty() && self.clock.now() >= self.watched_at.after(WATCHING) {
            self.compare(&scopes).await;
            self.watched_at = self.clock.now();
        }
        self.marks.retain(|scope, _| scopes.contains(scope));
        if self.show_at <= self.clock.now()
            && let Err(error) = self.show(false).await
        {
            tracing::debug!(%error, "cannot say who has what");
        }
        self.look_again().await;
    }

    /// What is watched by us.
    fn watched(&self) -> Vec<Scope> {
        lock(&self.shared.watched).keys().filter(|scope| self.part.watches(scope)).cloned().collect()
    }

    async fn compare(&mut self, scopes: &[Scope]) {
        if !self.driver.is_open() && self.driver.open().await.is_err() {
            return;
        }
        let Ok(marks) = self.driver.marks(scopes).await.map_err(|error| self.failed(error)) else { return };
        for (scope, mark) in scopes.iter().zip(marks) {
            let before = self.marks.insert(scope.clone(), mark.clone());
            if before.is_none_or(|before| before != mark) {
                match scope {
                    Scope::Name(name) => self.shared.hints.tell(name),
                    Scope::Prefix(_) => self.shared.hints.somewhere(),
                }
            }
        }
    }

    /// Those who wait in these lines and who nobody of ours stands before, in order.
    fn next(&self, keys: &[String]) -> Vec<&Enter> {
        let mut all = Vec::new();
        for line in keys.iter().filter(|key| !self.resting.contains_key(*key)).filter_map(|key| self.lines.get(key)) {
            let mut inside = line.iter().any(|ticket| ticket.number.is_some());
            let mut alone = line.iter().any(|ticket| ticket.number.is_some() && !is_shared(&ticket.enter));
            for ticket in line.iter().filter(|ticket| ticket.number.is_none()) {
                let shared = is_shared(&ticket.enter);
                if alone || (inside && !shared) {
                    break;
                }
                all.push(&ticket.enter);
                (inside, alone) = (true, !shared);
            }
        }
        all
    }

    /// Tries for all who wait in these lines. One round trip for each hundred of them.
    async fn try_lines(&mut self, keys: &[String]) {
        let now = self.clock.now();
        self.resting.retain(|_, until| *until > now);
        let next: Vec<Enter> = self.next(keys).into_iter().cloned().collect();
        for some in next.chunks(AT_ONCE) {
            let asks: Vec<Ask<'_>> = some.iter().map(|enter| Ask { enter, attempt: true, stay: false }).collect();
            let ttl = self.ttl(Duration::ZERO);
            let taken = match self.driver.take(ttl, &asks).await {
                Ok(taken) => taken,
                Err(error) => {
                    tracing::debug!(%error, "cannot try for those who wait");
                    self.failed(error);
                    return;
                }
            };
            for (enter, taken) in some.iter().zip(taken) {
                let Taken::Got(number) = taken else { continue };
                self.admit(&enter.place, number, Turn::begun(self.clock.now()));
            }
        }
    }

    /// Whoever waited is inside.
    pub(super) fn admit(&mut self, place: &Place, number: u64, turn: Turn) {
        let now = self.clock.now();
        if let Some(ticket) = self.ticket(place) {
            ticket.number = Some(number);
            ticket.admitted = Some(now);
            ticket.turn = turn;
            ticket.changes(now);
        }
        self.falls_behind();
        self.stirred = now;
        self.got(place, number);
        self.shared.ears.tell(place.id, &Waited::Admitted { token: number });
        self.shared.hints.tell(&place.name);
    }
}
