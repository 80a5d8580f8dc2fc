//! Lowering, raising and putting out.

use super::carry::in_one_packet;
use super::lines::{Node, Phase};
use super::live::Live;
use super::node;
use super::{Error, ErrorKind, Name, Note, Place, Presence, Record, Result, Shared, TicketId, Upgraded};
use crate::line::WHOLE;
use crate::store::Kind;
use futures_util::future::join;
use std::sync::Arc;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError};

impl Shared {
    /// See [`Store::change`](super::Store::change). A new note is written into the node. A new weight is another name, so the
    /// node is replaced, in one transaction, by one with the same digits that keeps the old one's number in its data.
    pub(super) async fn change(
        self: &Arc<Self>,
        place: &Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> Result<Presence> {
        let known = self.lines.with(place, |own| Some((own.live.clone(), own.node.clone()?, own.phase))).flatten();
        let Some((live, node, phase)) = known.filter(|(live, ..)| !live.has_ended()) else {
            return Ok(Presence::Gone);
        };
        let line = node::line_path(&place.name)?;
        let path = format!("{line}/{}", node.child);
        let mut record = (*node.record).clone();
        if let Some(note) = &note {
            record.say(note)?;
        }
        record.lower(weight.unwrap_or(u32::MAX));
        let sent = self.clock.now();
        let prefix = node::prefix(&line, place.id, Kind::Read, record.weight, node.capacity);
        let lighter = format!("{prefix}{:010}", node.order);
        if record.weight == node.weight || lighter == path {
            if record == *node.record {
                // Nothing to say but whether it is there: the leader knows.
                let mut writer = live.client.new_multi_writer();
                writer.add_check_version(&path, -1).map_err(|error| self.asking(error))?;
                let answer = writer.commit().await;
                live.wrote_multi(sent, &answer);
                return self.presence(place, answer.map(drop));
            }
            let data = node::data(&record, node.moved.then_some(node.token));
            let answer = live.client.set_data(&path, &data, None).await;
            live.wrote(sent, &answer);
            if answer.is_ok() {
                self.lines.with(place, |own| {
                    if let Some(node) = &mut own.node {
                        node.weight = record.weight;
                        node.record = Arc::new(record);
                    }
                });
            }
            return self.presence(place, answer.map(drop).map_err(|source| MultiWriteError::RequestFailed { source }));
        }
        let child = lighter[line.len() + 1..].to_string();
        let data = node::data(&record, Some(node.token));
        let mut writer = live.client.new_multi_writer();
        let options = CreateMode::Ephemeral.with_acls(self.servers.acls());
        writer.add_delete(&path, None).map_err(|error| self.asking(error))?;
        writer.add_create(&lighter, &data, &options).map_err(|error| self.asking(error))?;
        // Whoever stops waiting here does not know under which name its node is.
        let was = self.lines.with(place, |own| std::mem::replace(&mut own.uncertain, true)).unwrap_or(true);
        let answer = writer.commit().await;
        live.wrote_multi(sent, &answer);
        match answer {
            Ok(_) => {}
            // Done before, by a call whose answer was lost; or it is gone.
            Err(MultiWriteError::OperationFailed { index: 0, source: ZkError::NoNode }) => {
                if self.facts(&live, &line, &child).await?.is_none() {
                    self.lines.forget(place);
                    return Ok(Presence::Gone);
                }
            }
            Err(error) => return self.presence(place, Err(error)),
        }
        let weight = record.weight;
        let known = self.lines.ask();
        let token = node.token;
        let (order, capacity) = (node.order, node.capacity);
        let node = Node { child, order, token, moved: true, weight, capacity, record: Arc::new(record), known };
        self.lines.with(place, |own| (own.node, own.uncertain) = (Some(node), was));
        self.lines.doubt(&place.name);
        if phase == Phase::Waiting {
            // Lighter than before: it may fit now.
            drop(self.read(&live, &place.name).await);
        }
        Ok(Presence::There)
    }

    fn presence(&self, place: &Place, answer: Result<(), MultiWriteError>) -> Result<Presence> {
        match answer.map_err(ZkError::from) {
            Ok(()) => Ok(Presence::There),
            Err(ZkError::NoNode) => {
                self.lines.forget(place);
                Ok(Presence::Gone)
            }
            Err(error) => Err(self.asking(error)),
        }
    }

    /// See [`Store::upgrade`](super::Store::upgrade). A second, exclusive ticket is entered; it is admitted if all that is
    /// ahead of it is the first one, which then goes. Otherwise the second goes.
    pub(super) async fn upgrade(self: &Arc<Self>, place: &Place, new: TicketId) -> Result<Upgraded> {
        let new = Place { name: place.name.clone(), id: new };
        let line = node::line_path(&place.name)?;
        let old = self.lines.with(place, |own| Some((own.live.clone(), own.node.clone()?))).flatten();
        let again = self.lines.with(&new, |own| own.live.clone());
        let (live, old) = match (old, again) {
            (Some((live, node)), _) => (live, Some(node)),
            (None, Some(live)) => (live, None),
            (None, None) => return Ok(Upgraded::Gone),
        };
        if live.has_ended() {
            self.lines.forget(place);
            self.lines.forget(&new);
            return Ok(Upgraded::Gone);
        }
        let (seats, _) = match self.lines.with(&new, |_| ()) {
            Some(()) => self.read_after_sync(&live, &place.name).await?,
            None => {
                let Some(old) = &old else { return Ok(Upgraded::Gone) };
                let mut record = (*old.record).clone();
                record.raise();
                record.kind = if old.capacity == WHOLE { Kind::Write } else { record.kind };
                let prefix = node::prefix(&line, new.id, record.kind, old.capacity, old.capacity);
                self.lines.expect(&new, &live);
                let (asked, sent) = (self.lines.ask(), self.clock.now());
                let options = CreateMode::EphemeralSequential.with_acls(self.servers.acls());
                let data = record.to_bytes();
                let ask = || (live.client.create(&prefix, &data, &options), live.client.list_children(&line));
                let (create, list) = in_one_packet(ask);
                let (created, listed) = join(create, list).await;
                live.wrote(sent, &created);
                match created {
                    Ok(_) => {}
                    Err(ZkError::NoNode) => {
                        self.lines.forget(&new);
                        self.lines.forget(place);
                        return Ok(Upgraded::Gone);
                    }
                    Err(error) => {
                        self.lines.with(&new, |own| own.uncertain = true);
                        return Err(self.asking(error).effect_unknown());
                    }
                }
                let children = listed.map_err(|error| self.asking(error).effect_unknown())?;
                (Arc::new(node::Seats::read(children)), asked)
            }
        };
        self.finish_upgrade(place, &new, &live, &line, &seats, old).await
    }

    async fn finish_upgrade(
        self: &Arc<Self>,
        place: &Place,
        new: &Place,
        live: &Arc<Live>,
        line: &str,
        seats: &node::Seats,
        old: Option<Node>,
    ) -> Result<Upgraded> {
        let was_there = seats.of(place.id).next().is_some();
        let Some(seat) = seats.of(new.id).next().cloned() else {
            // The second ticket never came to be; the first is as it was.
            if !was_there {
                self.lines.forget(place);
            }
            self.lines.forget(new);
            return match old.filter(|_| was_there) {
                Some(_) => Err(Error::new(ErrorKind::Unavailable, "the upgrade was lost on its way")),
                None => Ok(Upgraded::Gone),
            };
        };
        let path = format!("{line}/{}", seat.child);
        let inside = self.lines.with(new, |own| own.phase == Phase::Inside).unwrap_or(false);
        if !was_there && !inside && old.is_some() {
            // The first ticket was gone already: there was nothing to upgrade.
            self.delete(live, &path).await.map_err(Error::effect_unknown)?;
            self.lines.forget(new);
            self.lines.forget(place);
            return Ok(Upgraded::Gone);
        }
        let ahead: Vec<_> = seats.all().iter().take_while(|other| other.child != seat.child).collect();
        let other = ahead.iter().find(|other| other.id != place.id && other.id != new.id);
        if let Some(other) = other.filter(|_| !inside) {
            let (deleted, by) = join(self.delete(live, &path), self.seen(live, line, &other.child)).await;
            deleted.map_err(Error::effect_unknown)?;
            self.lines.forget(new);
            return Ok(Upgraded::Held { by: by.ok().flatten() });
        }
        let Some(facts) = self.facts(live, line, &seat.child).await? else {
            self.lines.forget(new);
            return Ok(Upgraded::Gone);
        };
        self.drop_first(place, live, line, seats).await?;
        let token = u64::try_from(facts.czxid).unwrap_or(0);
        let record = Arc::new(Record::parse(&facts.data, "ourselves")?);
        let node = Node {
            child: seat.child,
            order: seat.order,
            token,
            moved: false,
            weight: seat.weight,
            capacity: seat.capacity,
            record,
            known: self.lines.ask(),
        };
        self.lines.entered(new, node, Phase::Inside);
        self.lines.forget(place);
        Ok(Upgraded::Admitted { token })
    }

    /// Deletes the first ticket of an upgrade, under whatever name it is: a downgrade that is under way may replace its node at
    /// this very moment. One that comes later finds nothing to replace.
    async fn drop_first(&self, place: &Place, live: &Arc<Live>, line: &str, seats: &node::Seats) -> Result<()> {
        let mut children: Vec<String> = seats.of(place.id).map(|seat| seat.child.clone()).collect();
        while let Some(child) = children.pop() {
            let sent = self.clock.now();
            let deleted = live.client.delete(&format!("{line}/{child}"), None).await;
            live.wrote(sent, &deleted);
            match deleted {
                Ok(()) => {}
                Err(ZkError::NoNode) => {
                    let (seats, _) = self.read_after_sync(live, &place.name).await.map_err(Error::effect_unknown)?;
                    children = seats.of(place.id).map(|seat| seat.child.clone()).collect();
                }
                Err(error) => return Err(self.asking(error).effect_unknown()),
            }
        }
        Ok(())
    }

    /// See [`Store::expel`](super::Store::expel).
    pub(super) async fn expel(self: &Arc<Self>, name: &Name, token: u64) -> Result<Presence> {
        let live = self.any_session().await?;
        let line = node::line_path(name)?;
        for ticket in self.tickets(&live, name).await? {
            if ticket.1.token == Some(token) {
                let deleted = live.client.delete(&format!("{line}/{}", ticket.0.child), None).await;
                self.lines.doubt(name);
                if let Some(id) = ticket.1.id {
                    self.host(|host| host.doubt(Some(id)));
                }
                return match deleted {
                    Ok(()) => Ok(Presence::There),
                    Err(ZkError::NoNode) => Ok(Presence::Gone),
                    Err(error) => Err(self.asking(error)),
                };
            }
        }
        Ok(Presence::Gone)
    }
}
