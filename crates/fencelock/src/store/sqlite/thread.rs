//! The store's own thread: it does what the caller's thread must not wait for, reads the inbox, times lapses, and makes up
//! for messages that were lost. It starts when there is first something for it to do.

use super::book::{self, News, Txn};
use super::client::{Client, Looked, Tried, closed};
use super::fault::Stop;
use super::job::{Again, Job};
use super::socket::{Bell, Message};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::TicketId;
use rusqlite::{Connection, params};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an act waits for others to let go of the file.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before the next try: at first, at most while it may still be a matter of other transactions, each of
/// which takes a moment only, and at most once somebody seems to sit on the file.
const PAUSES: [Duration; 3] = [Duration::from_micros(30), Duration::from_micros(200), Duration::from_millis(5)];
/// When that is.
const A_MOMENT: Duration = Duration::from_millis(200);
/// How often a client that can be told by others looks whether a message was lost.
const SLOW_TICK: Duration = Duration::from_secs(2);
/// How often one looks that cannot be told: it holds tickets and never waited. So it learns within a second that it was put
/// out.
#[cfg(target_os = "linux")]
const TICK: Duration = Duration::from_millis(900);
/// Without sockets it is the tick that wakes waiters.
#[cfg(not(target_os = "linux"))]
const TICK: Duration = Duration::from_millis(50);
/// How many lines one round of housekeeping sweeps.
const SWEPT_AT_ONCE: i64 = 200;

/// The thread, as others see it.
#[derive(Debug)]
pub(super) struct Attendant {
    bell: Mutex<Option<Arc<Bell>>>,
    jobs: Mutex<VecDeque<Job>>,
    started: AtomicBool,
    /// Nothing is to be looked after: it sleeps until the bell rings.
    asleep: AtomicBool,
    closed: AtomicBool,
    look: AtomicBool,
    clean: AtomicBool,
    reserve: AtomicBool,
    /// The moment of the file at which something may lapse in a line where we wait.
    lapse: AtomicI64,
}

impl Default for Attendant {
    fn default() -> Self {
        Attendant {
            bell: Mutex::default(),
            jobs: Mutex::default(),
            started: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            look: AtomicBool::new(false),
            clean: AtomicBool::new(false),
            reserve: AtomicBool::new(false),
            lapse: AtomicI64::new(i64::MAX),
        }
    }
}

impl Attendant {
    /// Hands over something to be done.
    pub(super) fn give(&self, client: &Arc<Client>, job: Job) -> Result<()> {
        if self.closed.load(SeqCst) {
            return Err(closed());
        }
        self.jobs().push_back(job);
        self.ring(client)
    }

    /// There may be something new to look after.
    pub(super) fn wake_up(&self, client: &Arc<Client>) {
        if !self.started.load(SeqCst) || self.asleep.swap(false, SeqCst) {
            self.ring_quietly(client);
        }
    }

    /// Somebody waits in a line where something may lapse at this moment of the file.
    pub(super) fn expect_lapse(&self, client: &Arc<Client>, earliest: i64) {
        if self.lapse.fetch_min(earliest, SeqCst) > earliest {
            self.ring_quietly(client);
        }
    }

    /// All our tickets are to be looked at.
    pub(super) fn look_soon(&self, client: &Arc<Client>) {
        self.look.store(true, SeqCst);
        self.ring_quietly(client);
    }

    /// The log has grown, and lapsed tickets may lie about.
    pub(super) fn clean_up(&self, client: &Arc<Client>) {
        self.clean.store(true, SeqCst);
        self.ring_quietly(client);
    }

    /// Few reserved numbers are left.
    pub(super) fn reserve(&self, client: &Arc<Client>) {
        if !self.reserve.swap(true, SeqCst) {
            self.ring_quietly(client);
        }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
        if let Some(bell) = &*self.bell() {
            bell.ring();
        }
        let jobs = std::mem::take(&mut *self.jobs());
        jobs.into_iter().for_each(|mut job| job.fail(closed()));
    }

    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bell(&self) -> MutexGuard<'_, Option<Arc<Bell>>> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread that cannot be started will be tried again with the next thing to do.
    fn ring_quietly(&self, client: &Arc<Client>) {
        if let Err(error) = self.ring(client) {
            tracing::warn!(%error, "the store file's thread cannot be started");
        }
    }

    fn ring(&self, client: &Arc<Client>) -> Result<()> {
        let mut bell = self.bell();
        if let Some(bell) = &*bell {
            bell.ring();
            return Ok(());
        }
        let cannot = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "the system cannot start one more thread").caused_by(error)
        };
        let new = Arc::new(Bell::new().map_err(cannot)?);
        // What it was started for is there already.
        new.ring();
        let (client, theirs) = (client.clone(), new.clone());
        std::thread::Builder::new()
            .name("fencelock-sqlite".into())
            .stack_size(512 * 1024)
            .spawn(move || Shift::new(client, theirs).attend())
            .map_err(cannot)?;
        *bell = Some(new);
        self.started.store(true, SeqCst);
        Ok(())
    }
}

/// The thread, as it sees itself.
struct Shift {
    client: Arc<Client>,
    bell: Arc<Bell>,
    /// Opened when numbers are first to be reserved: its commits are synced to the disk.
    durable: Option<Connection>,
    jobs: VecDeque<Job>,
    pause: Duration,
    retry: Option<Instant>,
    last_tick: Instant,
    /// What the file said of itself at the last tick.
    version: Option<i64>,
    expelled: Option<i64>,
}

impl Shift {
    fn new(client: Arc<Client>, bell: Arc<Bell>) -> Shift {
        Shift {
            client,
            bell,
            durable: None,
            jobs: VecDeque::new(),
            pause: PAUSES[0],
            retry: None,
            last_tick: Instant::now(),
            version: None,
            expelled: None,
        }
    }

    fn attend(mut self) {
        while !self.client.attendant.closed.load(SeqCst) {
            let at_most = self.how_long();
            self.bell.wait(&self.client.post, at_most);
            self.client.attendant.asleep.store(false, SeqCst);
            self.do_jobs();
            self.read_inbox();
            self.look_after_lapses();
            if self.tick().is_some_and(|tick| self.last_tick + tick <= Instant::now()) {
                self.on_tick();
            }
            if self.client.attendant.reserve.load(SeqCst) {
                self.reserve_ahead();
                self.client.attendant.reserve.store(false, SeqCst);
            }
            if self.client.attendant.clean.swap(false, SeqCst) {
                self.clean_up();
            }
        }
        self.jobs.into_iter().for_each(|mut job| job.fail(closed()));
    }

    /// How often to look, if there is anything to look after.
    fn tick(&self) -> Option<Duration> {
        let mine = self.client.mine();
        let tick = if self.client.post.is_open() { SLOW_TICK } else { TICK };
        (!mine.tickets.is_empty() || !mine.watched.is_empty()).then_some(tick)
    }

    fn how_long(&mut self) -> Option<Duration> {
        let mut tick = self.tick();
        if tick.is_none() {
            self.client.attendant.asleep.store(true, SeqCst);
            // Somebody may have come before it was seen that we are about to fall asleep.
            tick = self.tick();
            if tick.is_some() {
                self.last_tick = Instant::now();
            }
        }
        let now = Instant::now();
        let tick = tick.map(|tick| (self.last_tick + tick).saturating_duration_since(now));
        let retry = self.retry.map(|at| at.saturating_duration_since(now));
        let lapse = match self.client.attendant.lapse.load(SeqCst) {
            i64::MAX => None,
            lapse => Some(self.client.moment(lapse).since(self.client.clock.now())),
        };
        [tick, retry, lapse].into_iter().flatten().min()
    }

    fn do_jobs(&mut self) {
        self.jobs.extend(std::mem::take(&mut *self.client.attendant.jobs()));
        let mut busy = false;
        for mut job in std::mem::take(&mut self.jobs) {
            if job.is_pointless() {
                continue;
            }
            // Who reads need not wait for who writes.
            if busy && job.writes() {
                self.jobs.push_back(job);
                continue;
            }
            if self.do_job(&mut job) == Some(Again::Busy) {
                busy = true;
                if job.since().elapsed() < PATIENCE {
                    self.jobs.push_back(job);
                } else {
                    let path = self.client.file.path.display();
                    let waited = crate::error::spoken(PATIENCE);
                    let message = format!("another process keeps the store file {path} locked, for {waited} already");
                    job.fail(Error::new(ErrorKind::Unavailable, message));
                }
            }
        }
        if busy {
            self.retry = Some(Instant::now() + self.pause.mul_f64(0.5 + fastrand::f64()));
            let sat_on = self.jobs.iter().any(|job| job.since().elapsed() > A_MOMENT);
            self.pause = (self.pause * 2).min(if sat_on { PAUSES[2] } else { PAUSES[1] });
        } else {
            self.retry = None;
            self.pause = PAUSES[0];
        }
    }

    /// Tries a job once; twice if it turns out that it needs numbers.
    fn do_job(&mut self, job: &mut Job) -> Option<Again> {
        loop {
            let client = self.client.clone();
            let mut news = News::default();
            let again = if job.durable() {
                match self.durable() {
                    Ok(conn) => job.run(&client, conn, &mut news),
                    Err(error) => {
                        job.fail(error);
                        None
                    }
                }
            } else {
                match client.with_main(|conn| job.run(&client, conn, &mut news)) {
                    Ok(again) => again,
                    Err(error) => {
                        job.fail(error);
                        None
                    }
                }
            };
            client.tell(news);
            if again != Some(Again::Durable) {
                return again;
            }
            job.make_durable();
        }
    }

    fn durable(&mut self) -> Result<&Connection> {
        if self.durable.is_none() {
            self.durable = Some(self.client.file.connect(true)?);
        }
        self.durable.as_ref().ok_or_else(closed)
    }

    /// Reserves the next block of numbers, so that nobody has to wait for the disk when the last one is used up. If it does
    /// not work out, whoever needs a number first will do it.
    fn reserve_ahead(&self) {
        let Some(Some(promised)) = self.insist(|txn| txn.promise()) else { return };
        if self.client.file.sync_log().is_ok() {
            self.insist(|txn| txn.keep_promise(promised));
        }
    }

    /// A short act, tried again a few times if others are at the file.
    fn insist<T>(&self, mut act: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> Option<T> {
        for _ in 0..20 {
            let mut news = News::default();
            match self.client.with_main(|conn| self.client.attempt(conn, false, &mut act, &mut news)) {
                Ok(Tried::Done(done)) => return done.ok(),
                Ok(_) => std::thread::sleep(PAUSES[0]),
                Err(_) => return None,
            }
        }
        None
    }

    fn read_inbox(&mut self) {
        let (messages, lost) = self.client.post.receive();
        for message in messages {
            match message {
                Message::Changed(name) => self.client.hints.tell(&name),
                Message::Inside(id) => self.look_at(id),
                Message::Gone(id) => {
                    let inside = self.client.mine().tickets.get(&id).map(|mark| mark.inside);
                    match inside {
                        Some(true) => self.client.doubt(id),
                        Some(false) => self.look_at(id),
                        None => {}
                    }
                }
            }
        }
        if lost {
            self.client.hints.somewhere();
            self.client.attendant.look.store(true, SeqCst);
        }
    }

    /// One ticket, of which somebody says that something became of it.
    fn look_at(&self, id: TicketId) {
        let name =
            self.client.mine().tickets.get(&id).filter(|mark| !mark.ears.is_empty()).map(|mark| mark.name.clone());
        if let Some(name) = name {
            self.look(&[(name, id)]);
        }
    }

    /// Looks at all our tickets that wait, if something may have lapsed or somebody asked for it.
    fn look_after_lapses(&self) {
        let attendant = &self.client.attendant;
        if attendant.lapse.load(SeqCst) <= self.client.now() {
            attendant.look.store(true, SeqCst);
        }
        if !attendant.look.swap(false, SeqCst) {
            return;
        }
        attendant.lapse.store(i64::MAX, SeqCst);
        let waiting: Vec<(Name, TicketId)> = {
            let mine = self.client.mine();
            let waiting = mine.tickets.iter().filter(|(_, mark)| !mark.ears.is_empty());
            waiting.map(|(id, mark)| (mark.name.clone(), *id)).collect()
        };
        self.look(&waiting);
    }

    /// One picture of the file for all of them; lines with lapsed tickets are swept, each in its own transaction.
    fn look(&self, waiting: &[(Name, TicketId)]) {
        if waiting.is_empty() {
            return;
        }
        let client = &self.client;
        let read = |conn: &Connection, now: i64| {
            let looked = waiting.iter().map(|(name, id)| Client::look(conn, now, name, *id));
            Ok((now, looked.collect::<Result<Vec<_>, Stop>>()?))
        };
        let (now, looked) = match client.with_main(|conn| client.attempt_read(conn, &read)) {
            Ok(Tried::Done(Ok(looked))) => looked,
            Ok(Tried::Done(Err(error))) | Err(error) => return client.failed(&error),
            Ok(_) => return self.look_again_soon(),
        };
        let mut due = BTreeSet::new();
        for ((name, id), looked) in waiting.iter().zip(looked) {
            match looked {
                Looked::Found(found) => drop(client.found(*id, found)),
                Looked::Waiting(earliest) if earliest <= now => drop(due.insert(name.clone())),
                Looked::Waiting(earliest) => drop(client.attendant.lapse.fetch_min(earliest, SeqCst)),
            }
        }
        for name in due {
            match self.sweep(&name) {
                // Whoever came in was told; the others are looked at once more, for the next lapse.
                Tried::Done(Ok(earliest)) => drop(client.attendant.lapse.fetch_min(earliest, SeqCst)),
                Tried::Done(Err(error)) => client.failed(&error),
                _ => self.look_again_soon(),
            }
        }
    }

    /// Takes the lapsed tickets out of a line. Says when the next one may lapse.
    fn sweep(&self, name: &Name) -> Tried<i64> {
        let mut news = News::default();
        let mut sweep = |txn: &mut Txn<'_>| Ok(txn.line(name)?.earliest);
        let tried = self.client.with_main(|conn| self.client.attempt(conn, false, &mut sweep, &mut news));
        self.client.tell(news);
        tried.unwrap_or_else(|error| Tried::Done(Err(error)))
    }

    /// Somebody is at the file.
    fn look_again_soon(&self) {
        let soon = self.client.now().saturating_add(2_000_000);
        self.client.attendant.lapse.fetch_min(soon, SeqCst);
    }

    /// Two statements if nobody else wrote anything since the last one, whatever the number of tickets.
    fn on_tick(&mut self) {
        self.last_tick = Instant::now();
        let client = self.client.clone();
        if client.post.is_open() {
            // Its file may have been removed.
            if let Err(error) = client.post.open() {
                tracing::warn!(%error, "the store's socket cannot be opened again");
            }
        }
        let version = |conn: &Connection| -> rusqlite::Result<i64> {
            conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
        };
        let Ok(Ok(version)) = client.with_main(version) else {
            return;
        };
        if self.version.replace(version) == Some(version) {
            return;
        }
        client.attendant.look.store(true, SeqCst);
        self.look_after_lapses();
        if !client.post.is_open() {
            client.hints.somewhere();
        }
        self.look_for_expelled();
    }

    /// If tickets were put out since the last look, were ours?
    fn look_for_expelled(&mut self) {
        let client = self.client.clone();
        let count = |conn: &Connection| -> rusqlite::Result<i64> {
            let sql = "SELECT expelled FROM kept WHERE name = '' AND id = x''";
            conn.prepare_cached(sql)?.query_row([], |row| row.get(0))
        };
        let Ok(Ok(expelled)) = client.with_main(count) else { return };
        if self.expelled.replace(expelled) == Some(expelled) || client.mine().host.is_none() {
            return;
        }
        let held: Vec<(Name, TicketId)> = {
            let mine = client.mine();
            let held = mine.tickets.iter().filter(|(_, mark)| mark.inside);
            held.map(|(id, mark)| (mark.name.clone(), *id)).collect()
        };
        let missing = |conn: &Connection| -> rusqlite::Result<Vec<TicketId>> {
            let mut statement = conn.prepare_cached("SELECT 1 FROM kept WHERE name = ?1 AND id = ?2")?;
            let mut missing = Vec::new();
            for (name, id) in &held {
                if !statement.exists(params![name.key(), id.as_bytes()])? {
                    missing.push(*id);
                }
            }
            Ok(missing)
        };
        if let Ok(Ok(missing)) = client.with_main(missing) {
            missing.into_iter().for_each(|id| client.doubt(id));
        }
    }

    /// Brings the log into the file, and takes lapsed tickets out of lines that nobody looks at.
    fn clean_up(&mut self) {
        if let Ok(conn) = self.durable() {
            // If others are at it, one of them will do.
            let _ = checkpoint(conn);
        }
        let client = self.client.clone();
        let lapsed = |conn: &Connection, now: i64| book::lapsed_lines(conn, now, SWEPT_AT_ONCE);
        if let Ok(Tried::Done(Ok(lines))) = client.with_main(|conn| client.attempt_read(conn, &lapsed)) {
            for name in lines {
                if matches!(self.sweep(&name), Tried::Busy) {
                    return;
                }
            }
        }
    }
}

/// Brings the log into the file, without holding up anybody: the next commit then begins the log anew.
fn checkpoint(conn: &Connection) -> rusqlite::Result<()> {
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Ends a log of more than so many pages, for who comes or goes: if nobody has the file open afterwards, nobody remembers how
/// much of the log is in the file already. It is cut off only if nobody wrote meanwhile, since all others would have to wait
/// for the disk otherwise; and then there is no need, since they are here to remember.
pub(super) fn end_log(conn: &Connection, more_than: i64) -> rusqlite::Result<()> {
    let left = || {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
        conn.query_row("PRAGMA wal_checkpoint(NOOP)", [], read)
    };
    if left()?.0 <= more_than {
        return Ok(());
    }
    checkpoint(conn)?;
    let (all, done) = left()?;
    if all == done {
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    Ok(())
}
