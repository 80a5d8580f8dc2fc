//! The connection's task: the tickets of this client, in their lines, and when the server is asked for them.

use super::driver::{Ask, Driver, Left, Taken, is_shared};
use super::{Job, Shared};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::lock;
use crate::store::{
    Enter, Entered, Line, Listed, Mode, Note, Place, Presence, Renew, Renewed, Scope, Seen, Waited, waiting_lease,
};
use futures_util::future::{Either, select};
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// As many tickets as one client keeps. The server's memory for locks is small and shared with everybody.
const MOST: usize = 2000;
/// Whoever waits is tried this often at most,
const FASTEST: Duration = Duration::from_millis(5);
/// and this often at least.
const SLOWEST: Duration = Duration::from_millis(100);
/// What is watched is compared this often.
const WATCHING: Duration = Duration::from_millis(400);
/// As many are tried in one call.
const AT_ONCE: usize = 128;

/// A ticket of this client.
struct Ticket {
    enter: Enter,
    /// Its number, once it is inside.
    number: Option<u64>,
    entered: Moment,
    admitted: Option<Moment>,
}

/// The connection's task.
pub(super) struct Actor<D> {
    driver: D,
    /// Whether the server knows shared locks.
    readers: bool,
    shared: Arc<Shared>,
    clock: Clock,
    lines: BTreeMap<String, Vec<Ticket>>,
    tried_at: Moment,
    /// Since when nothing has happened to those who wait.
    stirred: Moment,
    watched_at: Moment,
    marks: HashMap<Scope, String>,
}

impl<D: Driver> Actor<D> {
    pub(super) fn new(driver: D, readers: bool, shared: Arc<Shared>, clock: Clock) -> Actor<D> {
        Actor {
            driver,
            readers,
            shared,
            lines: BTreeMap::new(),
            tried_at: Moment::default(),
            stirred: clock.now(),
            watched_at: Moment::default(),
            marks: HashMap::new(),
            clock,
        }
    }

    pub(super) async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        // So that the first call need not wait for it. If it fails, that call says why.
        let _ = self.driver.open().await;
        loop {
            let wake_at = self.wake_at();
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
                Some(Some(job)) => self.act(job).await,
                Some(None) => self.lose(),
                None => self.tick().await,
            }
        }
        self.driver.close();
        self.lose();
    }

    fn waits(&self) -> bool {
        self.lines.values().flatten().any(|ticket| ticket.number.is_none())
    }

    fn pause(&self) -> Duration {
        (self.clock.now().since(self.stirred) / 8).clamp(FASTEST, SLOWEST)
    }

    fn wake_at(&self) -> Moment {
        let mut at = Moment::FAR;
        if self.waits() {
            at = self.tried_at.after(self.pause());
        }
        if !lock(&self.shared.watched).is_empty() {
            at = at.min(self.watched_at.after(WATCHING));
        }
        at
    }

    /// The connection is gone, and with it everything that hung on it.
    fn lose(&mut self) {
        self.driver.close();
        for ticket in std::mem::take(&mut self.lines).into_values().flatten() {
            let place = &ticket.enter.place;
            self.shared.ears.tell(place.id, &Waited::Gone);
            self.shared.hints.tell(&place.name);
            if let Some(host) = self.shared.host.get() {
                host.doubt(Some(place.id));
            }
        }
    }

    /// An error of the driver: with the connection goes everything.
    fn failed(&mut self, error: Error) -> Error {
        if !self.driver.is_open() {
            self.lose();
        }
        error
    }

    /// The server waits for us as long as the longest of our leases.
    fn ttl(&self, besides: Duration) -> Duration {
        self.lines.values().flatten().map(|ticket| ticket.enter.lease).fold(besides, Duration::max)
    }

    async fn act(&mut self, job: Job) {
        // Whoever asked may have gone: then nobody hears the answer.
        match job {
            Job::Enter(enter, answer) => drop(answer.send(self.enter(*enter).await)),
            Job::Leave(batch, answer) => drop(answer.send(self.leave(&batch).await)),
            Job::Renew(batch, answer) => drop(answer.send(self.renew(&batch).await)),
            Job::Look(place, answer) => {
                self.stirred = self.clock.now();
                drop(answer.send(Ok(self.look(&place))));
            }
            Job::Change(place, weight, note, answer) => drop(answer.send(self.change(&place, weight, note).await)),
            Job::Inspect(name, answer) => drop(answer.send(self.inspect(&name).await)),
            Job::List(prefix, after, limit, answer) => {
                let listed = self.list(&prefix, after.as_deref(), limit).await;
                drop(answer.send(listed));
            }
            Job::Watch => {
                // Whoever begins to watch is told to look once: what it has seen may be older than our last look.
                self.marks.clear();
                self.watched_at = Moment::default();
            }
            Job::Close => {}
        }
    }

    fn ticket(&mut self, place: &Place) -> Option<&mut Ticket> {
        self.lines.get_mut(place.name.key())?.iter_mut().find(|ticket| ticket.enter.place.id == place.id)
    }

    fn look(&mut self, place: &Place) -> Waited {
        match self.ticket(place).map(|ticket| ticket.number) {
            None => Waited::Gone,
            Some(None) => Waited::Waiting,
            Some(Some(token)) => Waited::Admitted { token },
        }
    }

    async fn enter(&mut self, enter: Enter) -> Result<Entered> {
        let waiting = waiting_lease(enter.lease);
        if let Some(ticket) = self.ticket(&enter.place) {
            ticket.enter.lease = ticket.enter.lease.max(enter.lease);
            let (number, lease) = (ticket.number, ticket.enter.lease);
            let ttl = self.ttl(lease);
            self.driver.touch(ttl).await.map_err(|error| self.failed(error))?;
            return Ok(match number {
                Some(token) => Entered::Admitted { token, lease: enter.lease },
                None => Entered::Queued { token: None, lease: waiting, ahead: None },
            });
        }
        if !self.driver.is_open() {
            self.lose();
            self.driver.open().await?;
        }
        if self.lines.values().map(Vec::len).sum::<usize>() >= MOST {
            let message = format!("a client keeps {MOST} locks of connections at most, and has them; use mode=rows");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let name = enter.place.name.clone();
        let here = self.lines.get(name.key()).map_or(&[][..], Vec::as_slice);
        if let Some(other) = here.iter().find(|other| other.enter.capacity != enter.capacity) {
            return Err(Error::mismatch(&name.shown(), enter.capacity, other.enter.capacity));
        }
        // Ours are kept apart here: the server would let us in twice.
        let excludes = |other: &Ticket| other.number.is_none() || !is_shared(&enter) || !is_shared(&other.enter);
        let blocked = here.iter().any(excludes);
        let ahead = here.iter().find(|other| other.number.is_some()).map(|other| self.seen(other));
        if blocked && !enter.queue {
            return Ok(Entered::Full { holder: ahead });
        }
        let ttl = self.ttl(enter.lease);
        let ask = [Ask { enter: &enter, attempt: !blocked, stay: enter.queue }];
        let taken = self.driver.take(ttl, &ask).await.map_err(|error| self.failed(error))?.pop();
        let (now, shown) = (self.clock.now(), name.shown());
        let number = match taken {
            Some(Taken::Got(number)) => Some(number),
            Some(Taken::Not) => None,
            Some(Taken::Mismatch(there)) => return Err(Error::mismatch(&shown, enter.capacity, there)),
            Some(Taken::Collision(other)) => {
                let message =
                    format!("its key is that of {}, which is in use: use mode=rows", crate::name::printable(&other));
                return Err(Error::new(ErrorKind::Unsupported, message).named(shown));
            }
            None => return Err(Error::new(ErrorKind::Broken, "the database gave no answer").effect_unknown()),
        };
        let ahead = match (number, ahead) {
            (None, None) => {
                let (_, all) = self.driver.inspect(&name).await.map_err(|error| self.failed(error))?;
                all.into_iter().find(|seen| seen.admitted.is_some())
            }
            (_, ahead) => ahead,
        };
        if number.is_none() && !enter.queue {
            return Ok(Entered::Full { holder: ahead });
        }
        let lease = enter.lease;
        let ticket = Ticket { enter, number, entered: now, admitted: number.map(|_| now) };
        self.lines.entry(name.key().to_string()).or_default().push(ticket);
        self.shared.hints.tell(&name);
        Ok(match number {
            Some(token) => Entered::Admitted { token, lease },
            None => {
                self.stirred = now;
                Entered::Queued { token: None, lease: waiting, ahead }
            }
        })
    }

    fn seen(&self, ticket: &Ticket) -> Seen {
        let (enter, now) = (&ticket.enter, self.clock.now());
        Seen {
            token: ticket.number,
            mode: Mode::of(enter.weight, enter.capacity),
            weight: enter.weight,
            host: enter.note.host.to_string(),
            pid: enter.note.pid,
            identity: enter.note.identity.to_string(),
            owner: enter.owner.to_string(),
            reason: enter.note.reason.as_deref().map(Into::into),
            entered: Some(now.since(ticket.entered)),
            admitted: ticket.admitted.map(|admitted| now.since(admitted)),
            expires_in: None,
            value: enter.note.value.as_deref().map(Into::into),
        }
    }

    async fn leave(&mut self, batch: &[Place]) -> Result<Vec<Presence>> {
        let mut left = Vec::new();
        let mut found = Vec::with_capacity(batch.len());
        for (i, place) in batch.iter().enumerate() {
            let again = batch[..i].contains(place);
            let there =
                self.ticket(place).filter(|_| !again).map(|ticket| (is_shared(&ticket.enter), ticket.number.is_some()));
            found.push(if there.is_some() { Presence::There } else { Presence::Gone });
            if let Some((shared, inside)) = there {
                left.push(Left { place, shared, inside });
            }
        }
        if left.is_empty() {
            return Ok(found);
        }
        self.driver.put_back(&left).await.map_err(|error| self.failed(error))?;
        for Left { place, .. } in &left {
            if let Some(line) = self.lines.get_mut(place.name.key()) {
                line.retain(|ticket| ticket.enter.place.id != place.id);
                if line.is_empty() {
                    self.lines.remove(place.name.key());
                }
            }
            self.shared.ears.tell(place.id, &Waited::Gone);
            self.shared.hints.tell(&place.name);
        }
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
        let inside = ticket.number.is_some();
        self.driver.say(place, lower && inside, note.as_ref()).await.map_err(|error| self.failed(error))?;
        if let Some(ticket) = self.ticket(place) {
            if lower {
                ticket.enter.weight = 1;
                ticket.enter.kind = crate::store::Kind::Read;
            }
            if let Some(note) = note {
                ticket.enter.note = note;
            }
        }
        self.shared.hints.tell(&place.name);
        if lower {
            self.try_lines(&[place.name.key().to_string()]).await;
        }
        Ok(Presence::There)
    }

    async fn inspect(&mut self, name: &Name) -> Result<Line> {
        if !self.driver.is_open() {
            self.lose();
            self.driver.open().await?;
        }
        let (capacity, all) = self.driver.inspect(name).await.map_err(|error| self.failed(error))?;
        let (mut inside, waiting): (Vec<Seen>, Vec<Seen>) = all.into_iter().partition(|seen| seen.admitted.is_some());
        inside.sort_by_key(|seen| seen.token);
        Ok(Line { capacity, inside, waiting })
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        if !self.driver.is_open() {
            self.lose();
            self.driver.open().await?;
        }
        self.driver.list(prefix, after, limit).await.map_err(|error| self.failed(error))
    }

    async fn tick(&mut self) {
        if self.waits() && self.clock.now() >= self.tried_at.after(self.pause()) {
            let keys: Vec<String> = self.lines.keys().cloned().collect();
            self.try_lines(&keys).await;
            self.tried_at = self.clock.now();
        }
        let scopes: Vec<Scope> = lock(&self.shared.watched).keys().cloned().collect();
        if !scopes.is_empty() && self.clock.now() >= self.watched_at.after(WATCHING) {
            self.compare(&scopes).await;
            self.watched_at = self.clock.now();
        }
        self.marks.retain(|scope, _| scopes.contains(scope));
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
        for line in keys.iter().filter_map(|key| self.lines.get(key)) {
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
        let next: Vec<Enter> = self.next(keys).into_iter().cloned().collect();
        for some in next.chunks(AT_ONCE) {
            let asks: Vec<Ask<'_>> = some.iter().map(|enter| Ask { enter, attempt: true, stay: true }).collect();
            let ttl = self.ttl(Duration::ZERO);
            let taken = match self.driver.take(ttl, &asks).await {
                Ok(taken) => taken,
                Err(error) => {
                    tracing::debug!(%error, "cannot try for those who wait");
                    self.failed(error);
                    return;
                }
            };
            let now = self.clock.now();
            for (enter, taken) in some.iter().zip(taken) {
                let Taken::Got(number) = taken else { continue };
                if let Some(ticket) = self.ticket(&enter.place) {
                    ticket.number = Some(number);
                    ticket.admitted = Some(now);
                }
                self.stirred = now;
                self.shared.ears.tell(enter.place.id, &Waited::Admitted { token: number });
                self.shared.hints.tell(&enter.place.name);
            }
        }
    }
}
