//! Looking: who is in a line, and which lines there are.

use super::attend::Facts;
use super::carry::in_one_packet;
use super::live::Live;
use super::node::{self, Seat, Seats};
use super::{Error, Line, Listed, Name, Result, Seen, Shared};
use crate::store::note::{Picture, Ticket};
use futures_util::future::{join, join_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use zookeeper_client::{Error as ZkError, MultiReadResult};

/// So many nodes are read by one request.
const READS: usize = 200;

impl Shared {
    /// Reads a line after everything that was sent before has had its effect. One round trip.
    pub(super) async fn read_after_sync(&self, live: &Arc<Live>, name: &Name) -> Result<(Arc<Seats>, u64)> {
        let line = node::line_path(name)?;
        let (synced, asked) = (live.client.sync(&line), self.lines.ask());
        let (synced, read) = join(synced, self.read(live, name)).await;
        synced.map_err(|error| self.asking(error))?;
        Ok((read?, asked))
    }

    /// What a node says; `None` if it is gone. One round trip.
    pub(super) async fn facts(&self, live: &Arc<Live>, line: &str, child: &str) -> Result<Option<Facts>> {
        match live.client.get_data(&format!("{line}/{child}")).await {
            Ok((data, stat)) => Ok(Some(Facts { data, czxid: stat.czxid, owner: stat.ephemeral_owner })),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(self.asking(error)),
        }
    }

    /// A ticket as others see it; `None` if it is gone. One round trip.
    pub(super) async fn seen(&self, live: &Arc<Live>, line: &str, child: &str) -> Result<Option<Seen>> {
        let Some(facts) = self.facts(live, line, child).await? else { return Ok(None) };
        let seats = Seats::read(vec![child.to_string()]);
        let seat = seats.head();
        seat.map(|seat| node::ticket(seat, facts.czxid, &facts.data).map(|ticket| ticket.seen())).transpose()
    }

    /// Deletes a node; that it is gone already is fine. One round trip.
    pub(super) async fn delete(&self, live: &Arc<Live>, path: &str) -> Result<()> {
        let sent = self.clock.now();
        let deleted = live.client.delete(path, None).await;
        live.wrote(sent, &deleted);
        match deleted {
            Ok(()) | Err(ZkError::NoNode) => Ok(()),
            Err(error) => Err(self.asking(error)),
        }
    }

    /// Everybody in a line, with what they say. Two round trips, after a `sync`: others' news count here.
    pub(super) async fn tickets(&self, live: &Arc<Live>, name: &Name) -> Result<Vec<(Seat, Ticket)>> {
        let line = &node::line_path(name)?;
        let (seats, _) = self.read_after_sync(live, name).await?;
        let reads = join_all(seats.all().chunks(READS).map(|some| async move {
            let mut reader = live.client.new_multi_reader();
            for seat in some {
                reader.add_get_data(&format!("{line}/{}", seat.child)).map_err(|error| self.asking(error))?;
            }
            reader.commit().await.map_err(|error| self.asking(error))
        }));
        let mut tickets = Vec::new();
        for (some, read) in seats.all().chunks(READS).zip(reads.await) {
            for (seat, read) in some.iter().zip(read?) {
                match read {
                    MultiReadResult::Data { data, stat } => {
                        tickets.push((seat.clone(), node::ticket(seat, stat.czxid, &data)?));
                    }
                    // Gone in between, or not for us to read: then it is there, and that is all.
                    MultiReadResult::Error { err: ZkError::NoAuth } => {
                        let mut ticket = node::ticket(seat, -1, b"")?;
                        ticket.token = None;
                        tickets.push((seat.clone(), ticket));
                    }
                    MultiReadResult::Error { err: ZkError::NoNode } => {}
                    MultiReadResult::Error { err } => return Err(self.asking(err)),
                    _ => return Err(Error::unknown("the server answered something else")),
                }
            }
        }
        Ok(tickets)
    }

    /// See [`Store::inspect`](super::Store::inspect).
    pub(super) async fn inspect(self: &Arc<Self>, name: &Name) -> Result<Line> {
        let live = self.any_session().await?;
        let tickets = self.tickets(&live, name).await?;
        Ok(Picture::new(tickets.into_iter().map(|(_, ticket)| ticket).collect()).line())
    }

    /// See [`Store::list`](super::Store::list).
    pub(super) async fn list(self: &Arc<Self>, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        let live = self.any_session().await?;
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let start = if folder.is_empty() { "/".into() } else { node::line_path(&Name::from_key(folder, None))? };
        live.client.sync(&start).await.map_err(|error| self.asking(error))?;
        let mut found: BTreeMap<String, Seats> = BTreeMap::new();
        let mut level = vec![start];
        while !level.is_empty() {
            let ask = || join_all(level.iter().map(|path| live.client.list_children(path)));
            let lists = in_one_packet(ask).await;
            let mut next = Vec::new();
            for (path, children) in level.iter().zip(lists) {
                let mut seats = match children {
                    Ok(children) => Seats::read(children),
                    Err(ZkError::NoNode | ZkError::NoAuth) => continue,
                    Err(error) => return Err(self.asking(error)),
                };
                for below in std::mem::take(&mut seats.below) {
                    let path = if path == "/" { format!("/{below}") } else { format!("{path}/{below}") };
                    // What begins otherwise has nothing of interest below it.
                    let wanted =
                        node::line_key(&path).is_some_and(|key| key.starts_with(prefix) || prefix.starts_with(key));
                    if wanted && path.len() <= node::LONGEST_PATH {
                        next.push(path);
                    }
                }
                let key = node::line_key(path).filter(|key| key.starts_with(prefix));
                if let Some(key) = key.filter(|key| !seats.all().is_empty() && after.is_none_or(|after| *key > after)) {
                    found.insert(key.to_string(), seats);
                }
            }
            level = next;
        }
        let mut listed = Vec::new();
        for (key, seats) in found.into_iter().take(limit) {
            // A hashed name is told by its tickets only.
            let hashed = key.rsplit('/').next().is_some_and(|last| last.starts_with("%~"));
            let name = match seats.head().filter(|_| hashed) {
                Some(head) => {
                    let line = node::line_path(&Name::from_key(&key, None))?;
                    let facts = self.facts(&live, &line, &head.child).await?;
                    let ticket = facts.map(|facts| node::ticket(head, facts.czxid, &facts.data)).transpose()?;
                    Name::from_key(&key, ticket.and_then(|ticket| ticket.record.name).as_deref())
                }
                None => Name::from_key(&key, None),
            };
            let inside = seats.inside();
            listed.push(Listed { name, inside, waiting: seats.all().len() - inside, held: None });
        }
        Ok(listed)
    }
}
