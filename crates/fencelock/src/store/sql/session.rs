//! Locks that belong to a connection: what PostgreSQL's advisory locks and MySQL's `GET_LOCK` share.
//!
//! One connection carries everything of a name, on the library thread: callers hand their calls to it, one after the other, so
//! that a leave never overtakes an enter that was given up. A client has one for all names, or a few, among which they are divided:
//! then it works on the calls of one while the server works on those of another. The server's locks are re-entrant within a connection, so the
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
use futures_util::future::{Either, join_all, select};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{mpsc, oneshot};

#[cfg(feature = "postgres")]
pub(crate) use driver::is_shared;
pub(crate) use driver::{Ask, Driver, Left, Look, Picture, Shown, Taken};

mod actor;
mod driver;
mod entering;
mod telling;
mod turns;

/// What the callers and the connection's task share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) ears: Ears,
    pub(crate) hints: Hints,
    pub(crate) watched: Mutex<HashMap<Scope, usize>>,
    /// How many tickets there are on all its connections.
    tickets: AtomicUsize,
    host: OnceLock<Host>,
}

enum Job {
    Enter(Box<Enter>, oneshot::Sender<Result<Entered>>),
    Leave(Vec<Place>, oneshot::Sender<Result<Vec<Presence>>>),
    Renew(Vec<Renew>, oneshot::Sender<Result<Vec<Renewed>>>),
    Look(Place, oneshot::Sender<Result<Waited>>),
    Change(Place, Option<u32>, Option<Note>, oneshot::Sender<Result<Presence>>),
    /// Everything of ours is to be in the table.
    CatchUp(oneshot::Sender<Result<()>>),
    Inspect(Name, oneshot::Sender<Result<Line>>),
    List(String, Option<String>, usize, oneshot::Sender<Result<Vec<Listed>>>),
    Watch,
    Close,
}

/// Which of a client's connections one is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    which: usize,
    of: usize,
}

impl Part {
    /// Where a name belongs.
    fn of(name: &Name, of: usize) -> usize {
        let mut hasher = DefaultHasher::new();
        name.key().hash(&mut hasher);
        (hasher.finish() % of as u64) as usize
    }

    /// Whether it is asked about that; about many names, one for all.
    fn watches(self, scope: &Scope) -> bool {
        match scope {
            Scope::Name(name) => Part::of(name, self.of) == self.which,
            Scope::Prefix(_) => self.which == 0,
        }
    }
}

/// The callers' end.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: Clock,
    /// To each connection's task.
    jobs: Vec<mpsc::UnboundedSender<Job>>,
    tasks: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    /// For a client with these connections.
    pub(crate) fn new<D: Driver>(drivers: Vec<D>, readers: bool, clock: Clock) -> Session {
        let shared = Arc::new(Shared::default());
        let (mut jobs, mut tasks): (Vec<_>, Vec<BoxFuture<'static, ()>>) = (Vec::new(), Vec::new());
        let of = drivers.len();
        for (which, driver) in drivers.into_iter().enumerate() {
            let (sender, receiver) = mpsc::unbounded_channel();
            let actor = Actor::new(driver, readers, Part { which, of }, shared.clone(), clock.clone());
            jobs.push(sender);
            tasks.push(Box::pin(actor.run(receiver)));
        }
        Session { shared, clock, jobs, tasks: Mutex::new(tasks) }
    }

    pub(crate) fn attach(&self, host: Host) {
        for task in std::mem::take(&mut *lock(&self.tasks)) {
            host.spawn(task);
        }
        let _ = self.shared.host.set(host);
    }

    /// Hands a call to a connection's task. A caller who gives up gives up the answer only.
    async fn ask<T>(&self, part: usize, job: impl FnOnce(oneshot::Sender<Result<T>>) -> Job) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let gone = || Error::unknown("the store was closed");
        self.jobs[part].send(job(sender)).map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())?
    }

    fn part(&self, name: &Name) -> usize {
        Part::of(name, self.jobs.len())
    }

    /// The same for many: each goes where it belongs, and the answers are in the order of what was asked for.
    async fn ask_all<A: Clone, T>(
        &self,
        batch: &[A],
        name: impl Fn(&A) -> &Name,
        job: impl Fn(Vec<A>, oneshot::Sender<Result<Vec<T>>>) -> Job,
    ) -> Result<Vec<T>> {
        let parts: Vec<usize> = batch.iter().map(|one| self.part(name(one))).collect();
        let own = |part| parts.iter().zip(batch).filter(move |(at, _)| **at == part).map(|(_, one)| one.clone());
        let asked = (0..self.jobs.len()).map(|part| {
            let own: Vec<A> = own(part).collect();
            let job = &job;
            async move {
                let found = if own.is_empty() { Vec::new() } else { self.ask(part, |answer| job(own, answer)).await? };
                Ok::<_, Error>(found.into_iter())
            }
        });
        let mut found = Vec::with_capacity(self.jobs.len());
        for answers in join_all(asked).await {
            found.push(answers?);
        }
        let none = || Error::unknown("the store was closed");
        parts.into_iter().map(|part| found[part].next().ok_or_else(none)).collect()
    }

    pub(crate) async fn enter(&self, batch: &[Enter]) -> Result<Vec<Entered>> {
        let mut all = Vec::with_capacity(batch.len());
        for enter in batch {
            let part = self.part(&enter.place.name);
            all.push(self.ask(part, |answer| Job::Enter(Box::new(enter.clone()), answer)).await?);
        }
        Ok(all)
    }

    pub(crate) async fn leave(&self, batch: &[Place]) -> Result<Vec<Presence>> {
        self.ask_all(batch, |place| &place.name, Job::Leave).await
    }

    pub(crate) async fn renew(&self, batch: &[Renew]) -> Result<Vec<Renewed>> {
        if batch.iter().any(|ticket| ticket.at_least.is_some()) {
            return Err(Error::new(ErrorKind::Unsupported, "the numbers of this store cannot be raised"));
        }
        self.ask_all(batch, |ticket| &ticket.place.name, Job::Renew).await
    }

    pub(crate) async fn wait(&self, place: &Place, until: Moment) -> Result<Waited> {
        let part = self.part(&place.name);
        let listening = self.shared.ears.listen(place);
        let found = self.ask(part, |answer| Job::Look(place.clone(), answer)).await?;
        if found != Waited::Waiting {
            return Ok(found);
        }
        match select(pin!(listening.hear()), self.clock.sleep_until(until)).await {
            Either::Left((found, _)) => Ok(found),
            Either::Right(_) => self.ask(part, |answer| Job::Look(place.clone(), answer)).await,
        }
    }

    pub(crate) async fn change(&self, place: &Place, weight: Option<u32>, note: Option<Note>) -> Result<Presence> {
        self.ask(self.part(&place.name), |answer| Job::Change(place.clone(), weight, note, answer)).await
    }

    pub(crate) async fn inspect(&self, name: &Name) -> Result<Line> {
        self.ask(self.part(name), |answer| Job::Inspect(name.clone(), answer)).await
    }

    pub(crate) async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        // One looks for all; the others need not be waited for, then.
        let others = (1..self.jobs.len()).map(|part| self.ask(part, Job::CatchUp));
        join_all(others).await;
        self.ask(0, |answer| Job::List(prefix.into(), after.map(Into::into), limit, answer)).await
    }

    /// Somebody has begun to watch.
    pub(crate) fn watch(&self) {
        for jobs in &self.jobs {
            let _ = jobs.send(Job::Watch);
        }
    }

    pub(crate) fn close(&self) {
        for jobs in &self.jobs {
            let _ = jobs.send(Job::Close);
        }
    }
}
