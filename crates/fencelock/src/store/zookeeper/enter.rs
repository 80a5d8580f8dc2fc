//! Entering and waiting: a ticket's node is made and the line read in one go; whoever is refused takes its node back.

use super::alone::Claim;
use super::attend::Facts;
use super::carry::in_one_packet;
use super::lines::{Node, Phase, Reading, phase};
use super::live::{Live, in_turn};
use super::node::{self, Seats};
use super::{Enter, Entered, Error, ErrorKind, Moment, Place, Record, Result, Seen, Shared, Standing, Waited};
use crate::error::Effect;
use futures_util::future::{Either, OptionFuture, join, join_all, select};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError, MultiWriteResult};

/// So often the node of a line is made again, if the server reaps it in between.
const TRIES: usize = 10;
/// A ticket that is not known here, and waits, is looked at this often.
const SLOWLY: Duration = Duration::from_millis(250);

/// A ticket whose node was made.
struct Made {
    node: Node,
    seats: Arc<Seats>,
    asked: u64,
}

impl Shared {
    /// See [`Store::enter`](super::Store::enter).
    pub(super) async fn enter(self: &Arc<Self>, ticket: &Enter) -> Result<Entered> {
        let called = self.clock.now();
        let place = &ticket.place;
        let known = self.lines.with(place, |_| ()).is_some();
        if known && let Some(entered) = self.enter_again(ticket, called).await? {
            return Ok(entered);
        }
        let record = Arc::new(Record::of(ticket)?);
        let line = node::line_path(&place.name)?;
        let live = self.session(ticket.lease).await?;
        // Nobody comes in before those of ours who wait already: there is nothing to be read yet.
        let blind = ticket.queue && !known && self.lines.has_waiting(&place.name, ticket.capacity);
        // A refused node is a change of the line, and would call everybody who waits beside it, who would call us. So those who
        // have been refused before look first: one more round trip, and no node where there is no room.
        if !ticket.queue && !known && self.watches.is_watched(&line) {
            let seats = self.read(&live, &place.name).await?;
            if !crate::line::admits(seats.all().iter().map(|seat| seat.weight), ticket.weight, ticket.capacity)
                && seats.head().is_some_and(|head| head.capacity == ticket.capacity)
            {
                let head = seats.head().map(|seat| seat.child.as_str()).unwrap_or_default();
                return Ok(Entered::Full { holder: self.seen(&live, &line, head).await? });
            }
        }
        self.lines.expect(place, &live);
        let data = record.to_bytes();
        let prefix = node::prefix(&line, place.id, ticket.kind, ticket.weight, ticket.capacity);
        let options = CreateMode::EphemeralSequential.with_acls(self.servers.acls());
        let mut claim = self.alone.claim(&place.name, live.id).filter(|_| !blind);
        for _ in 0..TRIES {
            let (mut asked, sent) = (self.lines.ask(), self.clock.now());
            let unread = blind || claim.as_ref().is_some_and(Claim::is_watched);
            let (create, list) = in_one_packet(|| {
                let create = live.client.create(&prefix, &data, &options);
                (create, (!unread).then(|| live.client.list_children(&line)))
            });
            let (created, listed) = in_turn(create, list).await;
            live.wrote(sent, &created);
            let (stat, sequence) = match created {
                Ok(created) => created,
                Err(ZkError::NoNode) => {
                    claim = None;
                    self.make_line(&live, &line, place).await?;
                    continue;
                }
                Err(error) => return Err(self.not_entered(place, error)),
            };
            let child = format!("{}{sequence}", &prefix[line.len() + 1..]);
            let node = Node {
                child,
                order: u64::try_from(sequence.into_i64()).unwrap_or(u64::MAX),
                token: u64::try_from(stat.czxid).unwrap_or(0),
                moved: false,
                weight: ticket.weight,
                capacity: ticket.capacity,
                record,
                known: self.lines.ask(),
            };
            if node.order >= u64::from(i32::MAX.unsigned_abs()) {
                self.take_back(&live, &line, place, &node.child, None).await?;
                let message = "the counter of this node is used up: remove the node when nobody is in it";
                return Err(Error::new(ErrorKind::Broken, message).named(place.name.shown()));
            }
            if blind {
                return Ok(self.stay(place, node, Phase::Waiting, &live, called));
            }
            self.lines.with(place, |own| own.node = Some(node.clone()));
            let listed = match listed {
                Some(listed) => listed,
                None if claim.as_mut().is_some_and(|claim| claim.holds(node.order)) => Ok(vec![node.child.clone()]),
                None => {
                    asked = self.lines.ask();
                    live.client.list_children(&line).await
                }
            };
            let children = listed.map_err(|error| self.asking(error).effect_unknown())?;
            let made = Made { node, seats: Arc::new(Seats::read(children)), asked };
            return self.settle(ticket, &live, &line, made, claim, called).await;
        }
        self.lines.forget(place);
        Err(Error::new(ErrorKind::Unavailable, "the node of this line vanishes as soon as it is made"))
    }

    /// Decides what becomes of a ticket that was made just now; `claim` is what was known of the line before.
    async fn settle(
        self: &Arc<Self>,
        ticket: &Enter,
        live: &Arc<Live>,
        line: &str,
        made: Made,
        claim: Option<Claim>,
        called: Moment,
    ) -> Result<Entered> {
        let place = &ticket.place;
        let Made { node, mut seats, mut asked } = made;
        if let Some(older) = self.namesake(live, line, &seats, &node.child).await? {
            if let Some(entered) = older {
                self.take_back(live, line, place, &node.child, None).await?;
                return Ok(entered);
            }
            asked = self.lines.ask();
            seats = self.read(live, &place.name).await.map_err(Error::effect_unknown)?;
        }
        if let Some(foreign) = seats.foreign.first() {
            self.take_back(live, line, place, &node.child, None).await?;
            return Err(mismatch_with(place, foreign));
        }
        match seats.standing(&node.child) {
            Standing::Mismatch { there } => {
                self.take_back(live, line, place, &node.child, None).await?;
                Err(Error::mismatch(&place.name.shown(), ticket.capacity, there))
            }
            Standing::Gone => {
                self.lines.forget(place);
                Err(Error::new(ErrorKind::Unavailable, "its node was removed at once").named(place.name.shown()))
            }
            Standing::Waiting if !ticket.queue => {
                let head = seats.head().map(|seat| seat.child.as_str());
                let holder = self.take_back(live, line, place, &node.child, head).await?;
                Ok(Entered::Full { holder })
            }
            standing => {
                if seats.all().len() == 1 {
                    self.alone.is_alone(&place.name, live.id, node.order, claim, called);
                }
                let reading = Reading { seats, asked, by: live.id };
                let entered = self.stay(place, node, phase(standing).unwrap_or(Phase::Waiting), live, called);
                self.tell(&place.name, reading);
                Ok(entered)
            }
        }
    }

    /// It is in the line from now on.
    fn stay(self: &Arc<Self>, place: &Place, node: Node, phase: Phase, live: &Live, called: Moment) -> Entered {
        let (token, lease) = (node.token, live.remaining(called));
        if self.lines.entered(place, node, phase) {
            self.needs_attendant(&place.name);
        }
        match phase {
            Phase::Inside => Entered::Admitted { token, lease },
            _ => Entered::Queued { token: Some(token), lease, ahead: None },
        }
    }

    /// Other nodes with the same id. Those that were left behind by ourselves are deleted (`Some(None)`: read again); one that
    /// belongs to another client is that client's ticket, which is what was asked for.
    async fn namesake(
        &self,
        live: &Arc<Live>,
        line: &str,
        seats: &Seats,
        child: &str,
    ) -> Result<Option<Option<Entered>>> {
        let Some(mine) = seats.all().iter().find(|seat| seat.child == child) else { return Ok(None) };
        let mut found = None;
        for other in seats.of(mine.id).filter(|seat| seat.child != child) {
            let Some(facts) = self.facts(live, line, &other.child).await? else { continue };
            if facts.owner != live.id && !self.was_ours(facts.owner) {
                let token = node::ticket(other, facts.czxid, &facts.data)?.token;
                return Ok(Some(Some(match seats.is_inside(&other.child) {
                    Some(true) => Entered::Admitted { token: token.unwrap_or(0), lease: Duration::ZERO },
                    _ => Entered::Queued { token, lease: Duration::ZERO, ahead: None },
                })));
            }
            self.delete(live, &format!("{line}/{}", other.child)).await?;
            found = Some(None);
        }
        Ok(found)
    }

    /// Takes a node back, and says who was in the way.
    async fn take_back(
        &self,
        live: &Arc<Live>,
        line: &str,
        place: &Place,
        child: &str,
        head: Option<&str>,
    ) -> Result<Option<Seen>> {
        let path = format!("{line}/{child}");
        let facts = OptionFuture::from(head.map(|head| self.seen(live, line, head)));
        let (deleted, seen) = join(self.delete(live, &path), facts).await;
        // If that is not known, whoever asked leaves it again.
        deleted.map_err(Error::effect_unknown)?;
        self.lines.forget(place);
        Ok(seen.and_then(Result::ok).flatten())
    }

    fn not_entered(&self, place: &Place, error: ZkError) -> Error {
        let error = self.asking(error);
        if error.effect() == Effect::None {
            self.lines.forget(place);
        } else {
            self.lines.with(place, |own| own.uncertain = true);
        }
        error
    }

    /// Makes the node of a line, and those above it.
    async fn make_line(&self, live: &Live, line: &str, place: &Place) -> Result<()> {
        let options = CreateMode::Container.with_acls(self.servers.acls());
        live.client.mkdir(line, &options).await.map_err(|error| {
            // Whatever became of that, it made no ticket.
            self.lines.forget(place);
            let error = self.asking(error);
            let message = format!("its node cannot be made: {}", error.message());
            Error::new(error.kind(), message).named(place.name.shown())
        })
    }

    /// The same id once more: what is there is described. `None` if it is not there, or no more. Two round trips.
    async fn enter_again(self: &Arc<Self>, ticket: &Enter, called: Moment) -> Result<Option<Entered>> {
        let place = &ticket.place;
        let known = self.lines.with(place, |own| (own.live.clone(), own.node.clone(), own.phase));
        let Some((live, known, was)) = known else { return Ok(None) };
        if live.has_ended() {
            self.lines.forget(place);
            return Ok(None);
        }
        let line = node::line_path(&place.name)?;
        let (seats, asked) = self.read_after_sync(&live, &place.name).await?;
        let mut mine = None;
        for seat in seats.of(place.id) {
            let path = format!("{line}/{}", seat.child);
            let known = known.as_ref().filter(|node| node.child == seat.child);
            let node = match known {
                Some(node) => node.clone(),
                None => {
                    let Some(facts) = self.facts(&live, &line, &seat.child).await? else { continue };
                    if facts.owner != live.id {
                        // Of a session of ours that has ended, or is about to.
                        if self.was_ours(facts.owner) {
                            self.delete(&live, &path).await?;
                        }
                        continue;
                    }
                    Node {
                        child: seat.child.clone(),
                        order: seat.order,
                        token: u64::try_from(facts.czxid).unwrap_or(0),
                        moved: false,
                        weight: seat.weight,
                        capacity: seat.capacity,
                        record: Arc::new(Record::of(ticket)?),
                        known: self.lines.ask(),
                    }
                }
            };
            match mine {
                None => mine = Some(node),
                Some(_) => self.delete(&live, &path).await?,
            }
        }
        let Some(node) = mine else {
            if known.is_some() {
                self.lines.forget(place);
            }
            return Ok(None);
        };
        if was == Phase::Unanswered {
            let made = Made { node, seats, asked };
            return self.settle(ticket, &live, &line, made, None, called).await.map(Some);
        }
        let inside = was == Phase::Inside || seats.is_inside(&node.child) == Some(true);
        let phase = if inside { Phase::Inside } else { Phase::Waiting };
        Ok(Some(self.stay(place, node, phase, &live, called)))
    }

    /// Whether one that would not queue has no room now: then nothing is made, since nodes that are made and taken back would
    /// call everybody who waits beside those lines. No round trip where all queue, else one, all lines at once.
    async fn no_room(&self, live: &Arc<Live>, batch: &[Enter]) -> Result<Option<Vec<Entered>>> {
        let looks = batch.iter().map(|ticket| async move {
            if ticket.queue {
                return Ok(None);
            }
            let seats = self.read(live, &ticket.place.name).await?;
            let admits =
                crate::line::admits(seats.all().iter().map(|seat| seat.weight), ticket.weight, ticket.capacity);
            let head = seats.head().filter(|head| !admits && head.capacity == ticket.capacity);
            let Some(head) = head else { return Ok(None) };
            let line = node::line_path(&ticket.place.name)?;
            Ok(Some(Entered::Full { holder: self.seen(live, &line, &head.child).await? }))
        });
        let found = join_all(looks).await.into_iter().collect::<Result<Vec<_>>>()?;
        if found.iter().all(Option::is_none) {
            return Ok(None);
        }
        Ok(Some(found.into_iter().map(|one| one.unwrap_or(Entered::Full { holder: None })).collect()))
    }

    /// Several tickets, all or none: one transaction and a reading of each line, sent together.
    pub(super) async fn enter_all(self: &Arc<Self>, batch: &[Enter]) -> Result<Vec<Entered>> {
        let called = self.clock.now();
        if let Some(entered) = self.enter_all_again(batch, called).await? {
            return Ok(entered);
        }
        let lease = batch.iter().map(|ticket| ticket.lease).min().unwrap_or_default();
        let live = self.session(lease).await?;
        let mut tickets = Vec::new();
        for ticket in batch {
            let line = node::line_path(&ticket.place.name)?;
            let prefix = node::prefix(&line, ticket.place.id, ticket.kind, ticket.weight, ticket.capacity);
            tickets.push((line, prefix, Arc::new(Record::of(ticket)?)));
        }
        if let Some(refused) = self.no_room(&live, batch).await? {
            return Ok(refused);
        }
        batch.iter().for_each(|ticket| self.lines.expect(&ticket.place, &live));
        let forget = || batch.iter().for_each(|ticket| self.lines.forget(&ticket.place));
        let options = CreateMode::EphemeralSequential.with_acls(self.servers.acls());
        for _ in 0..TRIES {
            let (asked, sent) = (self.lines.ask(), self.clock.now());
            let mut writer = live.client.new_multi_writer();
            for (_, prefix, record) in &tickets {
                writer.add_create(prefix, &record.to_bytes(), &options).map_err(|error| self.asking(error))?;
            }
            let (commit, lists) = in_one_packet(|| {
                let commit = writer.commit();
                (commit, join_all(tickets.iter().map(|(line, ..)| live.client.list_children(line))))
            });
            let (created, listed) = join(commit, lists).await;
            live.wrote_multi(sent, &created);
            let created = match created {
                Ok(created) => created,
                Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                    for (ticket, (line, ..)) in batch.iter().zip(&tickets) {
                        if let Err(error) = self.make_line(&live, line, &ticket.place).await {
                            forget();
                            return Err(error);
                        }
                    }
                    continue;
                }
                Err(MultiWriteError::OperationFailed { source, .. }) => {
                    forget();
                    return Err(self.asking(source));
                }
                Err(MultiWriteError::RequestFailed { source }) => {
                    for ticket in batch {
                        self.lines.with(&ticket.place, |own| own.uncertain = true);
                    }
                    return Err(self.asking(source).effect_unknown());
                }
            };
            let mut made = Vec::new();
            for ((ticket, (line, prefix, record)), (created, listed)) in
                batch.iter().zip(&tickets).zip(created.into_iter().zip(listed))
            {
                let (MultiWriteResult::Create { path, stat }, Ok(children)) = (created, listed) else {
                    return Err(Error::unknown("the answer to a batch is incomplete"));
                };
                let child = path.get(line.len() + 1..).unwrap_or_default().to_string();
                let order = path.strip_prefix(prefix.as_str()).and_then(|digits| digits.parse().ok());
                let czxid = match stat.is_invalid() {
                    false => Some(stat.czxid),
                    // Servers before 3.7 forget to tell.
                    true => self.facts(&live, line, &child).await?.map(|facts| facts.czxid),
                };
                let node = Node {
                    child,
                    order: order.unwrap_or(u64::MAX),
                    token: czxid.and_then(|czxid| u64::try_from(czxid).ok()).unwrap_or(0),
                    moved: false,
                    weight: ticket.weight,
                    capacity: ticket.capacity,
                    record: record.clone(),
                    known: self.lines.ask(),
                };
                self.lines.with(&ticket.place, |own| own.node = Some(node.clone()));
                made.push(Made { node, seats: Arc::new(Seats::read(children)), asked });
            }
            return self.settle_all(batch, &live, made, called).await;
        }
        forget();
        Err(Error::new(ErrorKind::Unavailable, "the nodes of these lines vanish as soon as they are made"))
    }

    async fn settle_all(
        self: &Arc<Self>,
        batch: &[Enter],
        live: &Arc<Live>,
        made: Vec<Made>,
        called: Moment,
    ) -> Result<Vec<Entered>> {
        let mut failed = None;
        let mut full = vec![false; batch.len()];
        for ((ticket, made), full) in batch.iter().zip(&made).zip(&mut full) {
            let name = ticket.place.name.shown();
            if let Some(foreign) = made.seats.foreign.first() {
                failed = failed.or_else(|| Some(mismatch_with(&ticket.place, foreign)));
            }
            match made.seats.standing(&made.node.child) {
                Standing::Mismatch { there } => failed = Some(Error::mismatch(&name, ticket.capacity, there)),
                Standing::Gone => {
                    let error = Error::new(ErrorKind::Unavailable, "its node was removed at once").named(name);
                    failed = failed.or(Some(error));
                }
                Standing::Waiting => *full = !ticket.queue,
                Standing::Inside => {}
            }
        }
        if failed.is_none() && !full.contains(&true) {
            let stay = |(ticket, made): (&Enter, Made)| {
                let inside = made.seats.is_inside(&made.node.child) == Some(true);
                let phase = if inside { Phase::Inside } else { Phase::Waiting };
                let entered = self.stay(&ticket.place, made.node, phase, live, called);
                let reading = Reading { seats: made.seats, asked: made.asked, by: live.id };
                self.tell(&ticket.place.name, reading);
                entered
            };
            return Ok(batch.iter().zip(made).map(stay).collect());
        }
        let places: Vec<Place> = batch.iter().map(|ticket| ticket.place.clone()).collect();
        let heads = batch.iter().zip(&made).zip(&full).map(|((ticket, made), full)| async move {
            let head = made.seats.head().filter(|_| *full)?;
            let line = node::line_path(&ticket.place.name).ok()?;
            self.seen(live, &line, &head.child).await.ok().flatten()
        });
        let (left, holders) = join(self.leave(&places), join_all(heads)).await;
        left.map_err(Error::effect_unknown)?;
        match failed {
            Some(error) => Err(error),
            None => Ok(holders.into_iter().map(|holder| Entered::Full { holder }).collect()),
        }
    }

    /// The same batch once more, after a lost reply perhaps: all of it is there, or none.
    async fn enter_all_again(self: &Arc<Self>, batch: &[Enter], called: Moment) -> Result<Option<Vec<Entered>>> {
        if !batch.iter().any(|ticket| self.lines.with(&ticket.place, |_| ()).is_some()) {
            return Ok(None);
        }
        let mut entered = Vec::new();
        for ticket in batch {
            entered.extend(self.enter_again(ticket, called).await?);
        }
        if entered.len() == batch.len() && !entered.iter().any(|one| matches!(one, Entered::Full { .. })) {
            return Ok(Some(entered));
        }
        let places: Vec<Place> = batch.iter().map(|ticket| ticket.place.clone()).collect();
        self.leave(&places).await?;
        Ok(None)
    }

    /// See [`Store::wait`](super::Store::wait).
    pub(super) async fn wait(self: &Arc<Self>, place: &Place, until: Moment) -> Result<Waited> {
        let waits = self.lines.with(place, |own| own.phase == Phase::Waiting).unwrap_or(false);
        let mut look = !waits || self.clock.now() >= until;
        loop {
            if look {
                let found = self.bounded(self.look(place)).await?;
                if found != Waited::Waiting || self.clock.now() >= until {
                    return Ok(found);
                }
            }
            let told = pin!(poll_fn(|cx| self.lines.poll(place, cx)));
            match select(told, pin!(self.clock.sleep_until(until))).await {
                Either::Left((Some(found), _)) => return Ok(found),
                // It is nobody's here: there is nothing to be woken by.
                Either::Left((None, _)) => {
                    if look {
                        self.clock.sleep_until(self.clock.now().after(SLOWLY).min(until)).await;
                    }
                    look = true;
                }
                Either::Right(_) => return Ok(Waited::Waiting),
            }
        }
    }

    /// How a ticket stands now: one round trip, two for one that is not known here.
    async fn look(self: &Arc<Self>, place: &Place) -> Result<Waited> {
        let known = self.lines.with(place, |own| (own.live.clone(), own.node.clone(), own.phase));
        if let Some((live, Some(node), phase)) = known {
            if live.has_ended() {
                self.lines.forget(place);
                return Ok(Waited::Gone);
            }
            let seats = self.read(&live, &place.name).await?;
            // Its node may be being replaced by a lighter one.
            let child = seats.of(place.id).next().map_or(node.child.as_str(), |seat| seat.child.as_str());
            return Ok(match seats.is_inside(child) {
                Some(inside) if inside || phase == Phase::Inside => Waited::Admitted { token: node.token },
                Some(_) => Waited::Waiting,
                None => {
                    self.lines.forget(place);
                    Waited::Gone
                }
            });
        }
        let live = self.any_session().await?;
        let line = node::line_path(&place.name)?;
        let (seats, _) = self.read_after_sync(&live, &place.name).await?;
        let Some(seat) = seats.of(place.id).next() else { return Ok(Waited::Gone) };
        let Some(Facts { czxid, data, .. }) = self.facts(&live, &line, &seat.child).await? else {
            return Ok(Waited::Gone);
        };
        let token = node::ticket(seat, czxid, &data)?.token.unwrap_or(0);
        Ok(match seats.is_inside(&seat.child) {
            Some(true) => Waited::Admitted { token },
            _ => Waited::Waiting,
        })
    }
}

fn mismatch_with(place: &Place, foreign: &str) -> Error {
    let message = format!(
        "its node holds {:?}, a ticket of another recipe that would not see ours: use another name",
        crate::name::printable(foreign)
    );
    Error::new(ErrorKind::Mismatch, message).named(place.name.shown())
}
