//! Locks that belong to a connection: what PostgreSQL's advisory locks and MySQL's `GET_LOCK` share.
//!
//! One connection per client carries everything, on the library thread: callers hand their calls to it, one after the other, so
//! that a leave never overtakes an enter that was given up. The server's locks are re-entrant within a connection, so the
//! tickets of this client are kept apart here, before the server is asked. Whoever has to wait is tried again and again, all of
//! the client in one call: a blocked statement would take a connection for each name, and cannot be given up safely. Beside
//! each lock a row says whose it is; it counts only while its connection lives. Who goes again at once never gets one: see
//! `telling.rs`. A lock that is given back here and waited for here stays with the connection for a while: see `turns.rs`.

use super::{Ears, lock};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::hints::Hints;
use crate::store::{
    BoxFuture, Enter, Entered, Host, Line, Listed, Note, Place, Presence, Renew, Renewed, Scope, Waited,
};
use actor::Actor;
use futures_util::future::{Either, select};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{mpsc, oneshot};

#[cfg(feature = "postgres")]
pub(crate) use driver::is_shared;
pub(crate) use driver::{Ask, Driver, Left, Look, Picture, Shown, Taken};

mod actor;
mod driver;
mod telling;
mod turns;

/// What the callers and the connection's task share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) ears: Ears,
    pub(crate) hints: Hints,
    pub(crate) watched: Mutex<HashMap<Scope, usize>>,
    host: OnceLock<Host>,
}

enum Job {
    Enter(Box<Enter>, oneshot::Sender<Result<Entered>>),
    Leave(Vec<Place>, oneshot::Sender<Result<Vec<Presence>>>),
    Renew(Vec<Renew>, oneshot::Sender<Result<Vec<Renewed>>>),
    Look(Place, oneshot::Sender<Result<Waited>>),
    Change(Place, Option<u32>, Option<Note>, oneshot::Sender<Result<Presence>>),
    Inspect(Name, oneshot::Sender<Result<Line>>),
    List(String, Option<String>, usize, oneshot::Sender<Result<Vec<Listed>>>),
    Watch,
    Close,
}

/// The callers' end.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: Clock,
    jobs: mpsc::UnboundedSender<Job>,
    task: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    pub(crate) fn new(driver: impl Driver, readers: bool, clock: Clock) -> Session {
        let (jobs, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        let actor = Actor::new(driver, readers, shared.clone(), clock.clone());
        Session { shared, clock, jobs, task: Mutex::new(Some(Box::pin(actor.run(receiver)))) }
    }

    pub(crate) fn attach(&self, host: Host) {
        if let Some(task) = lock(&self.task).take() {
            host.spawn(task);
            let _ = self.shared.host.set(host);
        }
    }

    /// Hands a call to the connection's task. A caller who gives up gives up the answer only.
    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T>>) -> Job) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let gone = || Error::unknown("the store was closed");
        self.jobs.send(job(sender)).map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())?
    }

    pub(crate) async fn enter(&self, batch: &[Enter]) -> Result<Vec<Entered>> {
        let mut all = Vec::with_capacity(batch.len());
        for enter in batch {
            all.push(self.ask(|answer| Job::Enter(Box::new(enter.clone()), answer)).await?);
        }
        Ok(all)
    }

    pub(crate) async fn leave(&self, batch: &[Place]) -> Result<Vec<Presence>> {
        self.ask(|answer| Job::Leave(batch.to_vec(), answer)).await
    }

    pub(crate) async fn renew(&self, batch: &[Renew]) -> Result<Vec<Renewed>> {
        if batch.iter().any(|ticket| ticket.at_least.is_some()) {
            return Err(Error::new(ErrorKind::Unsupported, "the numbers of this store cannot be raised"));
        }
        self.ask(|answer| Job::Renew(batch.to_vec(), answer)).await
    }

    pub(crate) async fn wait(&self, place: &Place, until: Moment) -> Result<Waited> {
        let listening = self.shared.ears.listen(place);
        let found = self.ask(|answer| Job::Look(place.clone(), answer)).await?;
        if found != Waited::Waiting {
            return Ok(found);
        }
        match select(pin!(listening.hear()), self.clock.sleep_until(until)).await {
            Either::Left((found, _)) => Ok(found),
            Either::Right(_) => self.ask(|answer| Job::Look(place.clone(), answer)).await,
        }
    }

    pub(crate) async fn change(&self, place: &Place, weight: Option<u32>, note: Option<Note>) -> Result<Presence> {
        self.ask(|answer| Job::Change(place.clone(), weight, note, answer)).await
    }

    pub(crate) async fn inspect(&self, name: &Name) -> Result<Line> {
        self.ask(|answer| Job::Inspect(name.clone(), answer)).await
    }

    pub(crate) async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        self.ask(|answer| Job::List(prefix.into(), after.map(Into::into), limit, answer)).await
    }

    /// Somebody has begun to watch.
    pub(crate) fn watch(&self) {
        let _ = self.jobs.send(Job::Watch);
    }

    pub(crate) fn close(&self) {
        let _ = self.jobs.send(Job::Close);
    }
}
