//! What happens on the library thread: sessions are opened and kept there, their ends are noticed, and each line in which
//! somebody of ours waits has an attendant.

use super::carry::in_one_packet;
use super::lines::{Reading, Todo};
use super::live::Live;
use super::node::{self, Seats};
use super::{Shared, fault};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::BoxFuture;
use futures_util::future::{Either, join_all, select};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use zookeeper_client::{OneshotWatcher, SessionState, StateWatcher};

/// A line in which somebody of ours waits is read at the latest after this long, told or not.
const TICK: Duration = Duration::from_secs(15);
/// How often a session's nodes are compared with what we know: whoever was put out is told so.
const COMPARE: Duration = Duration::from_millis(700);
/// So many tickets are compared each time; with more of them it happens less often.
const COMPARED: usize = 2000;
/// After a failed reading.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the servers have to say that a session has ended.
const CLOSE_WITHIN: Duration = Duration::from_millis(800);

/// What a node says.
pub(super) struct Facts {
    pub(super) data: Vec<u8>,
    pub(super) czxid: i64,
    /// The session that it belongs to.
    pub(super) owner: i64,
}

/// The place of one session: the session may be replaced.
#[derive(Default)]
pub(super) struct Slot {
    live: Mutex<Option<Arc<Live>>>,
    /// One at a time opens it, and tells those who waited if that failed: how often it has, and why.
    opening: tokio::sync::Mutex<(u64, Option<Error>)>,
}

impl Slot {
    pub(super) fn get(&self) -> Option<Arc<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, live: Option<Arc<Live>>) -> Option<Arc<Live>> {
        std::mem::replace(&mut *self.live.lock().unwrap_or_else(PoisonError::into_inner), live)
    }
}

impl Shared {
    /// Opens the session of a slot, on the library thread. Two round trips.
    pub(super) async fn open(self: &Arc<Self>, slot: &Arc<Slot>, timeout: Duration) -> Result<Arc<Live>> {
        let Some(host) = self.host.get() else {
            return Err(Error::new(ErrorKind::Unsupported, "this store has not been attached to a library thread"));
        };
        let (this, slot) = (self.clone(), slot.clone());
        let opened = host.runtime().spawn(async move {
            let failures = slot.opening.try_lock().map(|opening| opening.0).ok();
            let mut opening = slot.opening.lock().await;
            if let Some(live) = slot.get().filter(|live| !live.is_stale(this.clock.now())) {
                return Ok(live);
            }
            // Whoever waited while another tried in vain need not try as well.
            if let (None, Some(error)) = (failures, &opening.1) {
                return Err(error.again());
            }
            opening.1 = None;
            let sent = this.clock.now();
            match this.servers.connect(timeout).await {
                Ok(client) => {
                    let states = client.state_watcher();
                    let live = Arc::new(Live::new(client, this.clock.clone(), sent));
                    this.note_session(live.id);
                    slot.set(Some(live.clone()));
                    this.host(|host| {
                        host.spawn(watch_state(Arc::downgrade(&this), Arc::downgrade(&live), states));
                        host.spawn(keep_up(Arc::downgrade(&this), Arc::downgrade(&live)));
                    });
                    Ok(live)
                }
                Err(error) => {
                    opening.0 += 1;
                    opening.1 = Some(error.again());
                    Err(error)
                }
            }
        });
        opened.await.unwrap_or_else(|_| Err(Error::unknown("the library thread has ended")))
    }

    /// Reads a line by this session's connection and tells it to whom it concerns. One round trip.
    pub(super) async fn read(&self, live: &Arc<Live>, name: &Name) -> Result<Arc<Seats>> {
        let path = node::line_path(name)?;
        let asked = self.lines.ask();
        let children = match live.client.list_children(&path).await {
            Ok(children) => children,
            Err(zookeeper_client::Error::NoNode) => Vec::new(),
            Err(error) => return Err(fault::asking(error, &self.servers.address)),
        };
        let seats = Arc::new(Seats::read(children));
        self.tell(name, Reading { seats: seats.clone(), asked, by: live.id });
        Ok(seats)
    }

    /// A line was read.
    pub(super) fn tell(&self, name: &Name, reading: Reading) {
        for missing in self.lines.saw(name, &reading) {
            self.host(|host| host.doubt(Some(missing)));
        }
    }
}

impl Shared {
    /// Ends all sessions, and waits until the servers have said so, for a while.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let slots: Vec<Arc<Slot>> = {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.iter().map(|(_, slot)| slot.clone()).chain([self.watches.slot.clone()]).collect()
        };
        let mut ends = Vec::new();
        for live in slots.iter().filter_map(|slot| slot.set(None)) {
            let mut states = live.client.state_watcher();
            let open = live.is_connected() && !live.has_ended();
            self.lines.abandon(live.id);
            drop(live);
            if open {
                ends.push(async move { while !states.changed().await.is_terminated() {} });
            }
        }
        let limit = self.clock.sleep_until(self.clock.now().after(CLOSE_WITHIN));
        select(pin!(join_all(ends)), pin!(limit)).await;
    }
}

/// Follows what becomes of a session.
async fn watch_state(shared: Weak<Shared>, live: Weak<Live>, mut states: StateWatcher) {
    loop {
        let state = states.changed().await;
        let (Some(shared), Some(live)) = (shared.upgrade(), live.upgrade()) else { return };
        if state.is_terminated() {
            live.end();
            shared.lines.ended(live.id);
            // Whatever hung on it is asked about at once, and told that it is gone.
            shared.host(|host| host.doubt(None));
            return;
        }
        // Disconnected: the renewals that are sent now fail, and the guards are in jeopardy. Connected: they succeed.
        let connected = state == SessionState::SyncConnected;
        live.set_connected(connected);
        if connected {
            shared.servers.send_at_once();
            shared.lines.rouse(live.id);
        }
        if live.has_tickets() {
            shared.host(|host| host.doubt(None));
        }
    }
}

/// Keeps a session fresh while it is in use, and compares what it owns with what we know of.
async fn keep_up(shared: Weak<Shared>, live: Weak<Live>) {
    let Some(clock) = shared.upgrade().map(|shared| shared.clock.clone()) else { return };
    let mut compared = clock.now();
    loop {
        let next = {
            let (Some(shared), Some(live)) = (shared.upgrade(), live.upgrade()) else { return };
            if live.has_ended() {
                return;
            }
            let now = clock.now();
            let touch = live.next_touch(now);
            if touch.is_some_and(|touch| touch <= now) && live.is_connected() {
                live.touch().await;
            }
            if live.wants_comparing(compared) && live.is_connected() {
                let many = u32::try_from(shared.lines.count(live.id) / COMPARED).unwrap_or(u32::MAX);
                let due = compared.after(COMPARE.saturating_mul(many.saturating_add(1)));
                if due <= now {
                    shared.compare(&live).await;
                    compared = clock.now();
                }
            }
            let now = clock.now();
            // A session whose server does not answer must not be asked in a hot loop.
            let at_once = now.after(live.timeout / 60);
            match live.next_touch(now) {
                Some(touch) => Some(touch.max(at_once).min(now.after(COMPARE))),
                None => {
                    live.doze();
                    None
                }
            }
        };
        match next {
            Some(next) => clock.sleep_until(next).await,
            None => {
                // Without holding on to it: the session ends when nobody else does.
                let Some((woken, timeout)) = live.upgrade().map(|live| (live.woken.clone(), live.timeout)) else {
                    return;
                };
                let limit = clock.sleep_until(clock.now().after(timeout));
                select(pin!(woken.notified()), pin!(limit)).await;
            }
        }
    }
}

impl Shared {
    /// One round trip: what the session really owns. Nodes that nobody knows of are deleted, tickets that are missing are
    /// looked at.
    async fn compare(&self, live: &Arc<Live>) {
        let asked = self.lines.ask();
        let Ok(paths) = live.client.list_ephemerals("/").await else { return };
        let mut owned = Vec::new();
        for path in paths {
            let Some((line, child)) = path.rsplit_once('/') else { continue };
            let Some(key) = node::line_key(line) else { continue };
            let seats = Seats::read(vec![child.to_string()]);
            owned.extend(seats.head().map(|seat| (Name::from_key(key, None), seat.clone())));
        }
        let (ghosts, missing) = self.lines.compare(live.id, asked, &owned);
        for id in missing {
            self.host(|host| host.doubt(Some(id)));
        }
        let paths: Vec<String> = ghosts
            .iter()
            .filter_map(|(name, child)| Some(format!("{}/{child}", node::line_path(name).ok()?)))
            .collect();
        // If it fails, the next look finds them again.
        in_one_packet(|| join_all(paths.iter().map(|path| live.client.delete(path, None)))).await;
    }
}

/// What an attendant watches.
enum Watched {
    /// All of the line, since a reading that was asked for at this point.
    Line(u64),
    /// The node of this name.
    Node(String),
}

/// Sees to it that those of ours who wait in this line are let in when their turn comes. One watch at a time.
pub(super) async fn attend(shared: Weak<Shared>, name: Name) {
    let Some(clock) = shared.upgrade().map(|shared| shared.clock.clone()) else { return };
    let Ok(line) = node::line_path(&name) else { return };
    let mut watch: Option<(Watched, BoxFuture<'static, ()>)> = None;
    loop {
        let Some(this) = shared.upgrade() else { return };
        let watching = match &watch {
            Some((Watched::Line(asked), _)) => Some(*asked),
            _ => None,
        };
        let (todo, bell) = this.lines.todo(&name, watching);
        let mut limit = TICK;
        match todo {
            Todo::Nothing => return,
            Todo::Rest => {
                if watching.is_none() {
                    watch = None;
                }
            }
            Todo::Read(live) => {
                if this.read(&live, &name).await.is_ok() {
                    continue;
                }
                limit = AGAIN;
            }
            Todo::ReadAndWatch(live) => {
                let asked = this.lines.ask();
                match live.client.list_and_watch_children(&line).await {
                    Ok((children, watcher)) => {
                        let seats = Arc::new(Seats::read(children));
                        this.tell(&name, Reading { seats, asked, by: live.id });
                        watch = Some((Watched::Line(asked), told(watcher)));
                        continue;
                    }
                    Err(zookeeper_client::Error::NoNode) => {
                        this.tell(&name, Reading { seats: Arc::default(), asked, by: live.id });
                        limit = AGAIN;
                    }
                    Err(_) => limit = AGAIN,
                }
            }
            Todo::Watch(live, child) => {
                let same = matches!(&watch, Some((Watched::Node(watched), _)) if *watched == child);
                if !same {
                    let path = format!("{line}/{child}");
                    match live.client.get_and_watch_data(&path).await {
                        Ok((_, _, watcher)) => watch = Some((Watched::Node(child), told(watcher))),
                        Err(zookeeper_client::Error::NoNode) => {
                            this.lines.doubt(&name);
                            continue;
                        }
                        Err(_) => limit = AGAIN,
                    }
                }
            }
        }
        drop(this);
        let event = async {
            match &mut watch {
                Some((_, told)) => told.await,
                None => std::future::pending().await,
            }
        };
        let (event, rung) = (pin!(event), pin!(bell.notified()));
        let called = select(event, rung);
        let woken = match select(called, pin!(clock.sleep_until(clock.now().after(limit)))).await {
            Either::Left((Either::Right(_), _)) => continue,
            Either::Left((Either::Left(_), _)) => true,
            Either::Right(_) => false,
        };
        // The one ahead has gone, or it is time to look again.
        if woken {
            watch = None;
        }
        if let Some(shared) = shared.upgrade() {
            shared.lines.doubt(&name);
        }
    }
}

pub(super) fn told(watcher: OneshotWatcher) -> BoxFuture<'static, ()> {
    Box::pin(async move { drop(watcher.changed().await) })
}
