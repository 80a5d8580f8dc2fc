//! Telling many watchers that something has changed: shared by the stores that watch one source for all of them.

use super::{BoxStream, Hint, Name, Scope};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

/// Beyond this many names that nobody has read yet, a watcher is told to look everywhere instead.
const MOST_PENDING: usize = 256;

/// The watchers of one store client.
#[derive(Default)]
pub struct Hints(Mutex<Vec<Weak<Watcher>>>);

struct Watcher {
    scope: Scope,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    /// With whether there may be more room than before.
    names: VecDeque<(Name, bool)>,
    somewhere: bool,
    waker: Option<Waker>,
}

impl Hints {
    /// A stream of what is told from now on.
    pub fn subscribe(&self, scope: Scope) -> BoxStream<'static, Hint> {
        let watcher = Arc::new(Watcher { scope, pending: Mutex::default() });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&watcher));
        Box::pin(Stream(watcher))
    }

    /// Tells everybody who watches this line.
    pub fn tell(&self, name: &Name) {
        self.told(name, true);
    }

    /// The same, where nothing has made room.
    pub fn entered(&self, name: &Name) {
        self.told(name, false);
    }

    fn told(&self, name: &Name, room: bool) {
        self.each(|watcher, pending| {
            if !watcher.scope.covers(name) {
                return;
            }
            if let Some((_, known)) = pending.names.iter_mut().find(|(known, _)| known == name) {
                *known |= room;
                return;
            }
            if pending.names.len() >= MOST_PENDING {
                pending.names.clear();
                pending.somewhere = true;
            } else {
                pending.names.push_back((name.clone(), room));
            }
        });
    }

    /// Tells everybody to look everywhere: something may have been missed.
    pub fn somewhere(&self) {
        self.each(|_, pending| {
            pending.names.clear();
            pending.somewhere = true;
        });
    }

    fn each(&self, act: impl Fn(&Watcher, &mut Pending)) {
        let mut wakers = Vec::new();
        {
            let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.retain(|watcher| {
                let Some(watcher) = watcher.upgrade() else { return false };
                let mut pending = watcher.pending.lock().unwrap_or_else(PoisonError::into_inner);
                act(&watcher, &mut pending);
                if pending.somewhere || !pending.names.is_empty() {
                    wakers.extend(pending.waker.take());
                }
                true
            });
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl std::fmt::Debug for Hints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hints")
    }
}

struct Stream(Arc<Watcher>);

impl futures_core::Stream for Stream {
    type Item = Hint;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut pending.somewhere) {
            return Poll::Ready(Some(Hint::Somewhere));
        }
        match pending.names.pop_front() {
            Some((name, true)) => Poll::Ready(Some(Hint::Changed(name))),
            Some((name, false)) => Poll::Ready(Some(Hint::Entered(name))),
            None => {
                pending.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
