//! Telling of changes: a session of its own, opened with the first need, with one persistent recursive watch for each scope
//! that somebody watches. It has no tickets, so that nothing that it does touches theirs; and such watches and the one-shot
//! ones of waiters get in each other's way on servers before 3.9.

use super::attend::Slot;
use super::node::{self, Seats};
use super::{BoxStream, Hint, Name, Result, Scope, Shared};
use crate::store::hints::Hints;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::oneshot::{self, error::TryRecvError};
use zookeeper_client::{AddWatchMode, EventType, PersistentWatcher, SessionState};

/// The timeout of the session that watches.
const TIMEOUT: Duration = Duration::from_secs(20);
/// After a watch could not be set again.
const AGAIN: Duration = Duration::from_millis(200);

/// The watches of one client.
#[derive(Default)]
pub(super) struct Watches {
    pub(super) slot: Arc<Slot>,
    hints: Hints,
    /// How many streams there are of each folder.
    folders: Mutex<HashMap<String, usize>>,
}

impl Watches {
    /// Whether somebody of ours watches this very line: most likely an unfair waiter.
    pub(super) fn is_watched(&self, line: &str) -> bool {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner).contains_key(line)
    }
}

/// One stream of hints.
struct Watching {
    shared: Weak<Shared>,
    folder: String,
    /// Dropped with the stream: whoever follows for it ends.
    _listening: oneshot::Sender<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut folders = shared.watches.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = folders.get_mut(&self.folder) {
            *count -= 1;
            if *count == 0 {
                folders.remove(&self.folder);
            }
        }
    }
}

impl Shared {
    /// See [`Store::watch`](super::Store::watch).
    pub(super) async fn watch(self: &Arc<Self>, scope: Scope) -> Result<BoxStream<'static, Hint>> {
        let folder = match &scope {
            Scope::Name(name) => node::line_path(name)?,
            Scope::Prefix(prefix) => match prefix.rsplit_once('/') {
                Some((folder, _)) => node::line_path(&Name::from_key(folder, None))?,
                None => "/".into(),
            },
        };
        let hints = self.watches.hints.subscribe(scope);
        // A second watch of the same folder is cheap, and its answer says that from now on everything is told.
        let watcher = self.set_watch(&folder).await?;
        let (listening, ended) = oneshot::channel();
        *self.watches.folders.lock().unwrap_or_else(PoisonError::into_inner).entry(folder.clone()).or_default() += 1;
        let watching = Watching { shared: Arc::downgrade(self), folder: folder.clone(), _listening: listening };
        self.host(|host| host.spawn(follow(Arc::downgrade(self), folder, watcher, ended)));
        let keeps = move |hint| {
            let _ = &watching;
            hint
        };
        Ok(hints.map(keeps).boxed())
    }

    /// One round trip, once the session is there.
    async fn set_watch(self: &Arc<Self>, folder: &str) -> Result<PersistentWatcher> {
        let now = self.clock.now();
        let live = match self.watches.slot.get().filter(|live| !live.has_ended()) {
            Some(live) => live,
            None => self.open(&self.watches.slot, TIMEOUT.min(self.longest)).await?,
        };
        live.used(now);
        live.client.watch(folder, AddWatchMode::PersistentRecursive).await.map_err(|error| self.asking(error))
    }
}

/// Tells what happens below a folder, until nobody listens.
async fn follow(shared: Weak<Shared>, folder: String, watcher: PersistentWatcher, mut ended: oneshot::Receiver<()>) {
    let Some(clock) = shared.upgrade().map(|shared| shared.clock.clone()) else { return };
    let mut watcher = Some(watcher);
    loop {
        let Some(current) = &mut watcher else {
            let Some(this) = shared.upgrade() else { return };
            if this.closed.load(Ordering::Acquire) || ended.try_recv() == Err(TryRecvError::Closed) {
                return;
            }
            watcher = this.set_watch(&folder).await.ok();
            // What happened in between was not told.
            this.watches.hints.somewhere();
            drop(this);
            if watcher.is_none() {
                clock.sleep_until(clock.now().after(AGAIN)).await;
            }
            continue;
        };
        let event = match select(pin!(current.changed()), &mut ended).await {
            Either::Left((event, _)) => event,
            Either::Right(_) => return,
        };
        let Some(this) = shared.upgrade() else { return };
        if event.event_type == EventType::Session {
            if event.session_state.is_terminated() {
                watcher = None;
            } else if event.session_state == SessionState::SyncConnected {
                this.watches.hints.somewhere();
            }
            continue;
        }
        let Some((line, child)) = event.path.rsplit_once('/') else { continue };
        if Seats::read(vec![child.to_string()]).head().is_some()
            && let Some(key) = node::line_key(line)
        {
            let name = Name::from_key(key, None);
            match event.event_type {
                EventType::NodeCreated => this.watches.hints.entered(&name),
                _ => this.watches.hints.tell(&name),
            }
        }
    }
}
