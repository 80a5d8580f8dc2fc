//! Renewing and leaving.

use super::attend;
use super::carry::in_one_packet;
use super::lines::{Phase, Reading};
use super::live::{Live, in_turn};
use super::node::{self, Seats};
use super::{Error, ErrorKind, Place, Presence, Renew, Renewed, Result, Shared};
use futures_util::future::{OptionFuture, join, join_all};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::{Error as ZkError, MultiWriteError};

/// So many checks go into one transaction.
const CHECKS: usize = 500;

/// The session's sign of life is enough for this ticket; or it has to be looked for.
enum Known {
    Node(Arc<Live>, String),
    Ended,
    No,
}

/// Of one session: which of a batch, and their paths.
type Group = (Arc<Live>, Vec<(usize, String)>);

impl Shared {
    fn known(&self, place: &Place) -> Result<Known> {
        let line = node::line_path(&place.name)?;
        let known = self.lines.with(place, |own| match &own.node {
            _ if own.live.has_ended() => Known::Ended,
            Some(node) if own.phase != Phase::Gone => Known::Node(own.live.clone(), format!("{line}/{}", node.child)),
            _ => Known::No,
        });
        Ok(known.unwrap_or(Known::No))
    }

    /// See [`Store::renew`](super::Store::renew).
    pub(super) async fn renew(self: &Arc<Self>, batch: &[Renew]) -> Result<Vec<Renewed>> {
        let called = self.clock.now();
        if batch.iter().any(|renew| renew.at_least.is_some()) {
            let message = "a token cannot be raised: the servers count them";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut answers = vec![Renewed::Gone; batch.len()];
        let mut groups: HashMap<i64, Group> = HashMap::new();
        let mut strangers = Vec::new();
        for (i, renew) in batch.iter().enumerate() {
            match self.known(&renew.place)? {
                Known::Node(live, path) => groups.entry(live.id).or_insert((live, Vec::new())).1.push((i, path)),
                Known::Ended => {}
                Known::No => strangers.push(i),
            }
        }
        let checked = join_all(groups.into_values().map(|(live, paths)| async move {
            let asked: Vec<usize> = paths.iter().map(|(i, _)| *i).collect();
            let mut there = self.check(&live, paths).await?;
            for i in asked {
                // Its node may be being replaced by a lighter one.
                if !there.contains(&i) && self.is_replaced(&live, &batch[i].place).await? {
                    there.push(i);
                }
            }
            Ok::<_, Error>((live.remaining(called), there))
        }));
        let found = join_all(strangers.into_iter().map(|i| async move {
            let there = self.is_there(&batch[i].place).await?;
            Ok::<_, Error>(there.then_some(i))
        }));
        let (checked, found) = join(checked, found).await;
        for session in checked {
            let (lease, there) = session?;
            there.into_iter().for_each(|i| answers[i] = Renewed::There { lease });
        }
        for stranger in found {
            // Somebody else's: it is there, but nothing is known of for how long.
            if let Some(i) = stranger? {
                answers[i] = Renewed::There { lease: Duration::ZERO };
            }
        }
        for (renew, answer) in batch.iter().zip(&answers) {
            if *answer == Renewed::Gone && self.lines.with(&renew.place, |own| own.node.is_some()) == Some(true) {
                self.lines.forget(&renew.place);
            }
        }
        Ok(answers)
    }

    /// Which of these nodes are there, told by the leader: one round trip, or one more for each time that some are gone.
    async fn check(&self, live: &Arc<Live>, mut paths: Vec<(usize, String)>) -> Result<Vec<usize>> {
        if !live.is_connected() {
            // Nothing was sent: the guards are in jeopardy at once, and tried again soon.
            return Err(Error::new(ErrorKind::Unavailable, "not connected to any server"));
        }
        let mut there = Vec::new();
        while !paths.is_empty() {
            let some = paths.split_off(paths.len().saturating_sub(CHECKS));
            let sent = self.clock.now();
            let mut writer = live.client.new_multi_writer();
            for (_, path) in &some {
                writer.add_check_version(path, -1).map_err(|error| self.asking(error))?;
            }
            let answer = writer.commit().await;
            live.wrote_multi(sent, &answer);
            match answer {
                Ok(_) => there.extend(some.into_iter().map(|(i, _)| i)),
                Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                    // The server has heard of that transaction, and so of all that is gone by it.
                    let look = || join_all(some.iter().map(|(_, path)| live.client.check_stat(path)));
                    let stats = in_one_packet(look).await;
                    for (one, stat) in some.into_iter().zip(stats) {
                        if stat.map_err(|error| self.asking(error))?.is_some() {
                            paths.push(one);
                        }
                    }
                }
                Err(error) => return Err(self.asking(error.into())),
            }
        }
        Ok(there)
    }

    /// Whether a ticket whose node was not there has another one. No round trip where that cannot be.
    async fn is_replaced(&self, live: &Arc<Live>, place: &Place) -> Result<bool> {
        let may_be = self.lines.with(place, |own| own.uncertain || own.node.as_ref().is_some_and(|node| node.moved));
        if may_be != Some(true) {
            return Ok(false);
        }
        let (seats, _) = self.read_after_sync(live, &place.name).await?;
        Ok(seats.of(place.id).next().is_some())
    }

    /// Whether a ticket that is not known here is in its line. Two round trips.
    async fn is_there(self: &Arc<Self>, place: &Place) -> Result<bool> {
        let live = self.any_session().await?;
        let (seats, _) = self.read_after_sync(&live, &place.name).await?;
        Ok(seats.of(place.id).next().is_some())
    }

    /// See [`Store::leave`](super::Store::leave).
    pub(super) async fn leave(self: &Arc<Self>, batch: &[Place]) -> Result<Vec<Presence>> {
        if let [place] = batch {
            return Ok(vec![self.leave_one(place).await?]);
        }
        // Several of one session at once: one transaction, unless some are gone.
        let mut live: Option<Arc<Live>> = None;
        let mut paths = Vec::new();
        for (i, place) in batch.iter().enumerate() {
            if batch[..i].contains(place) {
                live = None;
                break;
            }
            let plain = self.lines.with(place, |own| !own.uncertain).unwrap_or(false);
            match self.known(place)? {
                Known::Node(its, path) if plain && live.as_ref().is_none_or(|live| live.id == its.id) => {
                    live = Some(its);
                    paths.push(path);
                }
                _ => {
                    live = None;
                    break;
                }
            }
        }
        if let Some(live) = live {
            let sent = self.clock.now();
            let mut writer = live.client.new_multi_writer();
            for path in &paths {
                writer.add_delete(path, None).map_err(|error| self.asking(error))?;
            }
            let answer = writer.commit().await;
            live.wrote_multi(sent, &answer);
            match answer {
                Ok(_) => {
                    batch.iter().for_each(|place| self.lines.forget(place));
                    return Ok(vec![Presence::There; batch.len()]);
                }
                Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {}
                Err(error) => return Err(self.asking(error.into())),
            }
        }
        // One after the other where a ticket is named twice, else together: their order is that of the calls.
        let mut left = Vec::new();
        if batch.iter().enumerate().any(|(i, place)| batch[..i].contains(place)) {
            for place in batch {
                left.push(self.leave_one(place).await?);
            }
            return Ok(left);
        }
        for one in join_all(batch.iter().map(|place| self.leave_one(place))).await {
            left.push(one?);
        }
        Ok(left)
    }

    /// One round trip; once, for a name that only we use, with a watch of its line; one more, after a `sync`, for a ticket that is
    /// not known here or may have a second node.
    async fn leave_one(self: &Arc<Self>, place: &Place) -> Result<Presence> {
        let uncertain = self.lines.with(place, |own| own.uncertain).unwrap_or(true);
        match self.known(place)? {
            Known::Ended => {
                self.lines.forget(place);
                Ok(Presence::Gone)
            }
            Known::Node(live, path) if !uncertain => {
                // Where one of ours waits for it, the line is read behind it in the same round trip.
                let line = node::line_path(&place.name)?;
                let awaited = self.lines.is_awaited(place);
                let order = self.lines.with(place, |own| own.node.as_ref().map(|node| node.order)).flatten();
                let watches = order.filter(|order| self.alone.wants_watch(&place.name, live.id, *order)).is_some();
                let sent = self.clock.now();
                let (watch, delete, asked, list) = in_one_packet(|| {
                    let watch = watches.then(|| live.client.check_and_watch_stat(&line));
                    let (delete, asked) = (live.client.delete(&path, None), self.lines.ask());
                    (watch, delete, asked, awaited.then(|| live.client.list_children(&line)))
                });
                let (deleted, listed) = in_turn(delete, list).await;
                live.wrote(sent, &deleted);
                let presence = match deleted {
                    Ok(()) => {
                        let watch = OptionFuture::from(watch).await.and_then(Result::ok);
                        let watch = watch.map(|(_, watcher)| attend::told(watcher));
                        if let Some(order) = order {
                            self.alone.left(&place.name, live.id, order, watch);
                        }
                        Presence::There
                    }
                    Err(ZkError::NoNode) => Presence::Gone,
                    Err(error) => return Err(self.asking(error)),
                };
                let reading = listed.and_then(Result::ok).map(|children| {
                    let seats = Arc::new(Seats::read(children));
                    Reading { seats, asked, by: live.id }
                });
                self.lines.left(place, reading.as_ref());
                Ok(presence)
            }
            Known::No if self.lines.is_settled(place) => Ok(Presence::Gone),
            Known::Node(..) | Known::No => self.leave_by_id(place).await,
        }
    }

    /// Looks for every node with this id, after everything that was sent before has had its effect, and deletes it.
    async fn leave_by_id(self: &Arc<Self>, place: &Place) -> Result<Presence> {
        let own = self.lines.with(place, |own| own.live.clone());
        let ours = own.is_some();
        let own = own.filter(|live| !live.has_ended());
        let live = match own {
            Some(live) => live,
            None => self.any_session().await?,
        };
        let line = node::line_path(&place.name)?;
        let (seats, _) = self.read_after_sync(&live, &place.name).await?;
        let mut presence = Presence::Gone;
        for seat in seats.of(place.id) {
            self.delete(&live, &format!("{line}/{}", seat.child)).await?;
            presence = Presence::There;
        }
        self.lines.forget(place);
        if ours {
            self.lines.settle(place);
        }
        Ok(presence)
    }
}
