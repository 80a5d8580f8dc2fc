//! Things that were handed to the store's [thread](super::thread), and who waits for their answers.

use super::book::{News, Txn};
use super::client::{Client, Tried};
use super::fault::Stop;
use crate::error::{Error, Result};
use rusqlite::Connection;
use std::time::Instant;
use tokio::sync::oneshot;

/// Why something has to be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// Somebody else is at the file.
    Busy,
    /// It needs a commit that is synced to the disk.
    Durable,
}

/// Something to be done at the file.
pub(super) struct Job {
    run: Box<dyn Run>,
    since: Instant,
    kind: Kind,
    /// Nobody waits for it, and yet it is to be done.
    detached: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    DurableWrite,
}

trait Run: Send {
    /// Tries once, and answers; or says why it has to be tried again.
    fn run(&mut self, client: &Client, conn: &Connection, durable: bool, news: &mut News) -> Option<Again>;
    fn fail(&mut self, error: Error);
    fn is_awaited(&self) -> bool;
}

impl Job {
    /// An act, in a transaction of its own.
    pub(super) fn write<T, A>(act: A, durable: bool) -> (Job, oneshot::Receiver<Result<T>>)
    where
        T: Send + 'static,
        A: FnMut(&mut Txn<'_>) -> Result<T, Stop> + Send + 'static,
    {
        let (answer, receiver) = oneshot::channel();
        let kind = if durable { Kind::DurableWrite } else { Kind::Write };
        let run = Box::new(Write(act, Some(answer)));
        (Job { run, since: Instant::now(), kind, detached: false }, receiver)
    }

    /// A look at one picture of the file.
    pub(super) fn read<T, A>(read: A) -> (Job, oneshot::Receiver<Result<T>>)
    where
        T: Send + 'static,
        A: Fn(&Connection, i64) -> Result<T, Stop> + Send + 'static,
    {
        let (answer, receiver) = oneshot::channel();
        let run = Box::new(Read(read, Some(answer)));
        (Job { run, since: Instant::now(), kind: Kind::Read, detached: false }, receiver)
    }

    /// An act that is to be done although nobody waits for it.
    pub(super) fn errand<A>(act: A) -> Job
    where
        A: FnMut(&mut Txn<'_>) -> Result<(), Stop> + Send + 'static,
    {
        Job { detached: true, ..Job::write(act, false).0 }
    }

    pub(super) fn run(&mut self, client: &Client, conn: &Connection, news: &mut News) -> Option<Again> {
        self.run.run(client, conn, self.durable(), news)
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.run.fail(error);
    }

    /// Whether whoever wanted it has gone away.
    pub(super) fn is_pointless(&self) -> bool {
        !self.detached && !self.run.is_awaited()
    }

    pub(super) fn writes(&self) -> bool {
        self.kind != Kind::Read
    }

    pub(super) fn durable(&self) -> bool {
        self.kind == Kind::DurableWrite
    }

    pub(super) fn make_durable(&mut self) {
        self.kind = Kind::DurableWrite;
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({:?})", self.kind)
    }
}

type Answer<T> = Option<oneshot::Sender<Result<T>>>;

fn reply<T>(answer: &mut Answer<T>, with: Result<T>) {
    if let Some(answer) = answer.take() {
        // Nobody may be listening any more: then the effect is unknown to them, as it should be.
        let _ = answer.send(with);
    }
}

fn settle<T>(tried: Tried<T>, answer: &mut Answer<T>) -> Option<Again> {
    match tried {
        Tried::Done(done) => {
            reply(answer, done);
            None
        }
        Tried::Busy => Some(Again::Busy),
        Tried::NeedsBlock => Some(Again::Durable),
    }
}

struct Write<T, A>(A, Answer<T>);

impl<T, A> Run for Write<T, A>
where
    T: Send,
    A: FnMut(&mut Txn<'_>) -> Result<T, Stop> + Send,
{
    fn run(&mut self, client: &Client, conn: &Connection, durable: bool, news: &mut News) -> Option<Again> {
        settle(client.attempt(conn, durable, &mut self.0, news), &mut self.1)
    }

    fn fail(&mut self, error: Error) {
        reply(&mut self.1, Err(error));
    }

    fn is_awaited(&self) -> bool {
        self.1.as_ref().is_some_and(|answer| !answer.is_closed())
    }
}

struct Read<T, A>(A, Answer<T>);

impl<T, A> Run for Read<T, A>
where
    T: Send,
    A: Fn(&Connection, i64) -> Result<T, Stop> + Send,
{
    fn run(&mut self, client: &Client, conn: &Connection, _: bool, _: &mut News) -> Option<Again> {
        settle(client.attempt_read(conn, &self.0), &mut self.1)
    }

    fn fail(&mut self, error: Error) {
        reply(&mut self.1, Err(error));
    }

    fn is_awaited(&self) -> bool {
        self.1.as_ref().is_some_and(|answer| !answer.is_closed())
    }
}
