//! The store that session locks are, whichever database they are in.

use super::lock;
use super::session::Session;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights, check_batch,
};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Locks that belong to a connection (`?mode=session`): advisory locks of PostgreSQL, `GET_LOCK` of MySQL and MariaDB.
///
/// A lock is held as long as the client's connection lives, which is on the library thread; on MySQL and MariaDB a client has two, among which
/// names are divided. The server frees it at once when the client's process dies, and when the connection was silent for the longest lease
/// that the client has asked for (and a little, up to a second). There are
/// no permits, no order among clients who wait (the client's own wait in order), and at most 2,000 locks per client, since the
/// server's memory for them is small. Waiting is asking again and again. Whoever looks at a lock that was taken a moment ago waits
/// some milliseconds until its holder has said who it is. A lock that others of the client wait for goes from one to the next without a
/// call for up to 10 ms: for so long it may have been lost with the connection before anybody here knows. A pooler that shares connections between transactions
/// is found out and refused. Nothing is shared with locks that are rows.
#[derive(Debug)]
pub struct SessionStore {
    session: Arc<Session>,
    kind: &'static str,
    readers: bool,
    address: String,
    label: Arc<str>,
}

impl SessionStore {
    pub(crate) fn new(session: Session, kind: &'static str, readers: bool, address: String) -> SessionStore {
        SessionStore { session: Arc::new(session), kind, readers, address, label: kind.into() }
    }

    /// The same store, with another label on its tokens.
    #[must_use]
    pub fn label(mut self, label: &str) -> SessionStore {
        self.label = label.into();
        self
    }
}

impl Drop for SessionStore {
    fn drop(&mut self) {
        self.session.close();
    }
}

impl Store for SessionStore {
    fn info(&self) -> Info {
        Info {
            kind: self.kind,
            label: self.label.clone(),
            address: self.address.clone(),
            clock: self.session.clock.clone(),
        }
    }

    fn capability(&self) -> Capability {
        Capability {
            fencing: Fencing::SingleNode,
            queue: Queue::Unordered,
            wake: Wake::Poll,
            lifetime: Lifetime::Connection,
            reach: Reach::Network,
            weights: if self.readers { Weights::ReadWrite } else { Weights::Whole },
            atomic_batch: 1,
            settable_token: false,
            upgrade: false,
            expel: false,
            shortest_lease: Duration::from_secs(1),
            longest_lease: Duration::from_secs(86_400),
        }
    }

    fn attach(&self, host: Host) {
        self.session.attach(host);
    }

    /// One round trip; at least one more to say who is inside where it was refused; none behind a waiter of one's own.
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            check_batch(batch, &self.capability())?;
            self.session.enter(batch).await
        })
    }

    /// None, but one for all who wait in this client, again and again.
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(self.session.wait(place, until))
    }

    /// One round trip for all: any statement renews the connection.
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(self.session.renew(batch))
    }

    /// One round trip for all.
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(self.session.leave(batch))
    }

    /// One round trip.
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(self.session.change(place, weight, note))
    }

    fn upgrade<'a>(&'a self, _place: &'a Place, _new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(std::future::ready(Err(unsupported("a reader cannot become a writer"))))
    }

    fn expel<'a>(&'a self, _name: &'a Name, _token: u64) -> BoxFuture<'a, Result<Presence>> {
        let what = "nobody can be put out: its connection would have to be ended, with all its other locks";
        Box::pin(std::future::ready(Err(unsupported(what))))
    }

    /// None; then one for all that is watched, several times a second.
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        Box::pin(async move {
            let shared = &self.session.shared;
            *lock(&shared.watched).entry(scope.clone()).or_default() += 1;
            let watching =
                Watching { hints: shared.hints.subscribe(scope.clone()), session: self.session.clone(), scope };
            self.session.watch();
            Ok(Box::pin(watching) as BoxStream<'static, Hint>)
        })
    }

    /// One round trip.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(self.session.inspect(name))
    }

    /// One round trip.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(self.session.list(prefix, after, limit))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.session.close() })
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{what} where locks belong to a connection; use mode=rows"))
}

/// A stream of hints; with the last one of a scope it is no longer looked at.
struct Watching {
    hints: BoxStream<'static, Hint>,
    session: Arc<Session>,
    scope: Scope,
}

impl futures_core::Stream for Watching {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.hints.as_mut().poll_next(cx)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watched = lock(&self.session.shared.watched);
        if let Some(count) = watched.get_mut(&self.scope) {
            *count -= 1;
            if *count == 0 {
                watched.remove(&self.scope);
            }
        }
    }
}
