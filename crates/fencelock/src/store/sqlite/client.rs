//! One client of the file: its connection, the tickets it has in lines, and how an act gets done: at once on the caller's
//! thread if nobody else is at the file, else by the store's [thread](super::thread).

use super::book::{News, Txn};
use super::fault::{Stop, explain, is_busy};
use super::file::StoreFile;
use super::job::Job;
use super::socket::{Message, Post, Sent};
use super::thread::Attendant;
use super::verbs;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::hints::Hints;
use crate::store::{Host, Place, Scope, TicketId, Waited};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// After so many commits of ours the log is brought into the file, and lapsed tickets are looked for everywhere.
const HOUSEKEEPING: u32 = 4000;

/// Another process is done with its transaction in less time than it takes to hand ours to the store's thread: so often and
/// after so long it is tried again on the caller's thread, which is held no longer by that than by the transaction itself.
const RETRIES: u32 = 2;
const RETRY_AFTER: Duration = Duration::from_micros(10);

/// What everything of one client shares.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) file: StoreFile,
    pub(super) clock: Clock,
    pub(super) boot: String,
    /// The name of its socket, whether it has one yet or not.
    pub(super) me: String,
    /// `None` once it is closed. Never held while waiting for anything but the disk.
    main: Mutex<Option<Connection>>,
    mine: Mutex<Mine>,
    pub(super) hints: Hints,
    pub(super) post: Post,
    pub(super) attendant: Attendant,
    commits: AtomicU32,
}

/// This client's tickets and who is to be told of them.
#[derive(Default)]
pub(super) struct Mine {
    pub(super) tickets: HashMap<TicketId, Mark>,
    pub(super) host: Option<Host>,
    /// What is watched, and by how many streams.
    pub(super) watched: HashMap<Scope, usize>,
    /// Whether rows for that may be in the file.
    pub(super) has_watched: bool,
}

/// What this client knows of a ticket.
pub(super) struct Mark {
    pub(super) name: Name,
    /// Whether it was seen inside.
    pub(super) inside: bool,
    pub(super) ears: Vec<Arc<Ear>>,
}

impl std::fmt::Debug for Mine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tickets, {} scopes watched", self.tickets.len(), self.watched.len())
    }
}

/// Somebody who waits for a ticket.
#[derive(Default)]
pub(super) struct Ear(Mutex<(Option<Result<Waited>>, Option<Waker>)>);

impl Ear {
    fn tell(&self, answer: Result<Waited>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.get_or_insert(answer);
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(super) async fn hear(&self) -> Result<Waited> {
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match state.0.take() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    state.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// How an attempt went.
pub(super) enum Tried<T> {
    Done(Result<T>),
    /// Somebody else is at the file, or at our connection.
    Busy,
    /// It needs a commit that is synced to the disk.
    NeedsBlock,
}

/// What a look at a waiting ticket found.
pub(super) enum Looked {
    Found(Waited),
    /// It waits, and nothing lapses in its line before this moment of the file.
    Waiting(i64),
}

impl Client {
    pub(super) fn new(file: StoreFile, conn: Connection, clock: Clock, boot: String) -> Client {
        let me = super::random_name();
        let post = Post::new(file.beside(".wake"), file.path.clone(), me.clone());
        Client {
            file,
            clock,
            boot,
            me,
            main: Mutex::new(Some(conn)),
            mine: Mutex::default(),
            hints: Hints::default(),
            post,
            attendant: Attendant::default(),
            commits: AtomicU32::new(0),
        }
    }

    /// The time of the file: the suspend-counting clock, the same for all processes.
    #[cfg(target_os = "linux")]
    pub(super) fn now(&self) -> i64 {
        i64::try_from(self.clock.now().as_nanos()).unwrap_or(i64::MAX)
    }

    /// The time of the file. Our own clock begins with the process here, so it is the wall clock.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn now(&self) -> i64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
    }

    pub(super) fn mine(&self) -> MutexGuard<'_, Mine> {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the connection, if nobody else does right now.
    fn with_free<T>(&self, act: impl FnOnce(&Connection) -> Tried<T>) -> Tried<T> {
        let main = match self.main.try_lock() {
            Ok(main) => main,
            Err(TryLockError::Poisoned(main)) => main.into_inner(),
            Err(TryLockError::WouldBlock) => return Tried::Busy,
        };
        match &*main {
            Some(conn) => act(conn),
            None => Tried::Done(Err(closed())),
        }
    }

    /// Does something with the connection, as soon as nobody else does: on the store's thread.
    pub(super) fn with_main<T>(&self, act: impl FnOnce(&Connection) -> T) -> Result<T> {
        match &*self.main.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(conn) => Ok(act(conn)),
            None => Err(closed()),
        }
    }

    /// An act on the file, done here and now if that needs no waiting, else on the store's thread. `again` makes the act anew
    /// from things of its own, for then.
    pub(super) async fn act<T, A>(
        self: &Arc<Self>,
        act: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
        again: impl FnOnce() -> A,
    ) -> Result<T>
    where
        T: Send + 'static,
        A: FnMut(&mut Txn<'_>) -> Result<T, Stop> + Send + 'static,
    {
        let mut act = act;
        let mut news = News::default();
        let mut tried = self.with_free(|conn| self.attempt(conn, false, &mut act, &mut news));
        for _ in 0..RETRIES {
            if !matches!(tried, Tried::Busy) {
                break;
            }
            let start = std::time::Instant::now();
            while start.elapsed() < RETRY_AFTER {
                std::hint::spin_loop();
            }
            tried = self.with_free(|conn| self.attempt(conn, false, &mut act, &mut news));
        }
        match tried {
            Tried::Done(answer) => {
                self.tell(news);
                answer
            }
            Tried::Busy => self.hand(again(), false).await,
            Tried::NeedsBlock => self.hand(again(), true).await,
        }
    }

    async fn hand<T, A>(self: &Arc<Self>, act: A, durable: bool) -> Result<T>
    where
        T: Send + 'static,
        A: FnMut(&mut Txn<'_>) -> Result<T, Stop> + Send + 'static,
    {
        let (job, answer) = Job::write(act, durable);
        self.attendant.give(self, job)?;
        answer.await.unwrap_or_else(|_| Err(closed().effect_unknown()))
    }

    /// Reads the file, here and now if the connection is free, else on the store's thread.
    pub(super) async fn read<T, A>(
        self: &Arc<Self>,
        read: impl Fn(&Connection, i64) -> Result<T, Stop>,
        again: impl FnOnce() -> A,
    ) -> Result<T>
    where
        T: Send + 'static,
        A: Fn(&Connection, i64) -> Result<T, Stop> + Send + 'static,
    {
        match self.with_free(|conn| self.attempt_read(conn, &read)) {
            Tried::Done(answer) => answer,
            _ => {
                let (job, answer) = Job::read(again());
                self.attendant.give(self, job)?;
                answer.await.unwrap_or_else(|_| Err(closed()))
            }
        }
    }

    /// One transaction, or none at all. Waits for nobody. What it did is to be told once the connection is given back.
    pub(super) fn attempt<T>(
        &self,
        conn: &Connection,
        durable: bool,
        act: &mut dyn FnMut(&mut Txn<'_>) -> Result<T, Stop>,
        news: &mut News,
    ) -> Tried<T> {
        if let Err(error) = statement(conn, "BEGIN IMMEDIATE") {
            return if is_busy(&error) { Tried::Busy } else { Tried::Done(Err(self.explain(error))) };
        }
        // The time is read after everybody else is out: what was written before has a smaller one.
        let mut txn = Txn::new(conn, self.now(), &self.boot, durable);
        let done = act(&mut txn);
        let (wrote, told) = (txn.wrote, std::mem::take(&mut txn.news));
        match done {
            Ok(answer) if wrote => match statement(conn, "COMMIT") {
                Ok(()) => {
                    *news = told;
                    Tried::Done(Ok(answer))
                }
                Err(error) => {
                    rollback(conn);
                    Tried::Done(Err(self.explain(error).effect_unknown()))
                }
            },
            Ok(answer) => {
                rollback(conn);
                Tried::Done(Ok(answer))
            }
            Err(stop) => {
                rollback(conn);
                match stop {
                    Stop::NeedsBlock => Tried::NeedsBlock,
                    Stop::Fault(error) if is_busy(&error) => Tried::Busy,
                    stop => Tried::Done(Err(self.refuse(stop))),
                }
            }
        }
    }

    /// One picture of the file.
    pub(super) fn attempt_read<T>(
        &self,
        conn: &Connection,
        read: &dyn Fn(&Connection, i64) -> Result<T, Stop>,
    ) -> Tried<T> {
        if let Err(error) = statement(conn, "BEGIN") {
            return Tried::Done(Err(self.explain(error)));
        }
        let answer = read(conn, self.now());
        rollback(conn);
        match answer {
            Err(Stop::Fault(error)) if is_busy(&error) => Tried::Busy,
            answer => Tried::Done(answer.map_err(|stop| self.refuse(stop))),
        }
    }

    pub(super) fn explain(&self, error: rusqlite::Error) -> Error {
        // Whatever SQLite makes of a file that was taken away, that it was is what people want to know.
        if self.file.is_in_place() { explain(error, &self.file.path) } else { self.file.moved().caused_by(error) }
    }

    fn refuse(&self, stop: Stop) -> Error {
        match stop {
            Stop::Fault(error) => self.explain(error),
            Stop::Refused(error) => error,
            Stop::NeedsBlock => Error::new(ErrorKind::Broken, "numbers were asked for where none can be reserved"),
        }
    }

    /// Tells whom it concerns what was committed.
    pub(super) fn tell(self: &Arc<Self>, news: News) {
        let mut dead = Vec::new();
        for told in news.tickets {
            if told.client == self.me {
                let found = told.inside.map_or(Waited::Gone, |token| Waited::Admitted { token });
                if self.found(told.id, found) && told.inside.is_none() {
                    self.doubt(told.id);
                }
                continue;
            }
            let message = match told.inside {
                Some(_) => Message::Inside(told.id),
                None => Message::Gone(told.id),
            };
            // A client without a socket waits for nothing; that it lost a ticket it learns by its tick.
            let _ = self.post.send(&told.client, &message);
        }
        for (name, clients) in news.lines {
            self.hints.tell(&name);
            for client in clients.into_iter().filter(|client| *client != self.me) {
                if self.post.send(&client, &Message::Changed(name.clone())) == Sent::Nobody {
                    dead.push(client);
                }
            }
        }
        if !dead.is_empty() {
            // Whether it works out is all the same: the next one to send will try again.
            let forget = move |txn: &mut Txn<'_>| dead.iter().try_for_each(|client| verbs::unwatch(txn, client, None));
            let _ = self.attendant.give(self, Job::errand(forget));
        }
        if news.few_numbers {
            self.attendant.reserve(self);
        }
        if self.commits.fetch_add(1, Ordering::Relaxed) >= HOUSEKEEPING {
            self.commits.store(0, Ordering::Relaxed);
            self.attendant.clean_up(self);
        }
    }

    /// Notes a ticket as this client's.
    pub(super) fn note(self: &Arc<Self>, name: &Name, id: TicketId, inside: bool) {
        let mut mine = self.mine();
        let mark = mine.tickets.entry(id).or_insert_with(|| Mark { name: name.clone(), inside, ears: Vec::new() });
        mark.inside = inside;
        // Nobody is there to be told of a loss, so nobody needs to look out for one.
        let idle = mine.host.is_none();
        drop(mine);
        if !(inside && idle) {
            self.attendant.wake_up(self);
        }
    }

    /// Forgets a ticket; whoever waits for it learns that it is gone.
    pub(super) fn forget(&self, id: TicketId) {
        let mark = self.mine().tickets.remove(&id);
        if let Some(mark) = mark {
            mark.ears.iter().for_each(|ear| ear.tell(Ok(Waited::Gone)));
        }
    }

    /// Tells those who wait for a ticket what became of it. Says whether it is one of ours.
    pub(super) fn found(&self, id: TicketId, found: Waited) -> bool {
        let mut mine = self.mine();
        let Some(mark) = mine.tickets.get_mut(&id) else { return false };
        mark.inside |= matches!(found, Waited::Admitted { .. });
        let ears = std::mem::take(&mut mark.ears);
        if found == Waited::Gone {
            mine.tickets.remove(&id);
        }
        drop(mine);
        ears.iter().for_each(|ear| ear.tell(Ok(found.clone())));
        true
    }

    /// Tells everybody who waits that the file cannot be read.
    pub(super) fn failed(&self, error: &Error) {
        let ears: Vec<_> = self.mine().tickets.values_mut().flat_map(|mark| std::mem::take(&mut mark.ears)).collect();
        ears.iter().for_each(|ear| ear.tell(Err(error.again())));
    }

    /// Has a ticket of ours renewed at once: it may be gone.
    pub(super) fn doubt(&self, id: TicketId) {
        let host = self.mine().host.clone();
        if let Some(host) = host {
            host.doubt(Some(id));
        }
    }

    /// Begins to wait for a ticket: from now on nothing that becomes of it is missed.
    pub(super) fn listen(&self, place: &Place) -> Listener<'_> {
        let ear = Arc::new(Ear::default());
        let mut mine = self.mine();
        let fresh = || Mark { name: place.name.clone(), inside: false, ears: Vec::new() };
        mine.tickets.entry(place.id).or_insert_with(fresh).ears.push(ear.clone());
        Listener { client: self, id: place.id, ear }
    }

    /// A look at a ticket that waits. One statement.
    pub(super) fn look(conn: &Connection, now: i64, name: &Name, id: TicketId) -> Result<Looked, Stop> {
        let sql = "SELECT t.number, t.waiting, t.expiry, l.earliest FROM kept AS t CROSS JOIN kept AS l \
                   WHERE t.name = ?1 AND t.id = ?2 AND l.name = ?1 AND l.id = x''";
        let read = |row: &rusqlite::Row<'_>| {
            let number: i64 = row.get(0)?;
            Ok((number, row.get::<_, Option<i64>>(1)?.is_some(), row.get::<_, i64>(2)?, row.get::<_, i64>(3)?))
        };
        let found = conn.prepare_cached(sql)?.query_row(params![name.key(), id.as_bytes()], read).optional()?;
        Ok(match found {
            None => Looked::Found(Waited::Gone),
            Some((_, _, expiry, _)) if expiry <= now => Looked::Found(Waited::Gone),
            Some((number, false, _, _)) => Looked::Found(Waited::Admitted { token: number.unsigned_abs() }),
            Some((_, true, _, earliest)) => Looked::Waiting(earliest),
        })
    }

    /// The same for a caller: `None` if the connection is not free.
    pub(super) fn look_now(&self, place: &Place) -> Option<Result<Looked>> {
        let look = |conn: &Connection, now: i64| Client::look(conn, now, &place.name, place.id);
        match self.with_free(|conn| self.attempt_read(conn, &look)) {
            Tried::Done(looked) => Some(looked),
            _ => None,
        }
    }

    /// A moment of the file on the clock that sleeps are measured on.
    pub(super) fn moment(&self, at: i64) -> Moment {
        let left = u64::try_from(at.saturating_sub(self.now())).unwrap_or(0);
        self.clock.now().after(Duration::from_nanos(left))
    }

    /// The end: nothing can be done any more.
    pub(super) fn close(&self) {
        self.attendant.close();
        let conn = self.main.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(conn) = conn {
            self.last_words(&conn);
        }
        self.post.close();
        self.failed(&closed());
    }

    /// Many processes that live for a moment must not let the log grow without end. Most of the time this is one
    /// look at its length.
    fn last_words(&self, conn: &Connection) {
        if self.mine().has_watched {
            let mut forget = |txn: &mut Txn<'_>| verbs::unwatch(txn, &self.me, None);
            // If others are at the file all the time, the next one with news for us will do it.
            for _ in 0..20 {
                if !matches!(self.attempt(conn, false, &mut forget, &mut News::default()), Tried::Busy) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let _ = super::thread::end_log(conn, super::LONG_LOG);
    }
}

/// Somebody who waits; stops when dropped.
pub(super) struct Listener<'a> {
    client: &'a Client,
    id: TicketId,
    pub(super) ear: Arc<Ear>,
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.client.mine().tickets.get_mut(&self.id) {
            mark.ears.retain(|ear| !Arc::ptr_eq(ear, &self.ear));
        }
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is closed")
}

fn statement(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(drop)
}

/// A failed commit may have ended the transaction already; then there is nothing to roll back.
fn rollback(conn: &Connection) {
    if !conn.is_autocommit() {
        let _ = statement(conn, "ROLLBACK");
    }
}
