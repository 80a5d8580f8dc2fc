//! Several processes: the test program starts itself again as workers, kills, stops and continues them.
//!
//! A worker is told what to do by the variable [`ROLE`]; `fencelock_testkit::main` hands over to [`worker`] where it is set.

use crate::ctx::{Ctx, SOON, eventually, unqueued, within};
use crate::suite::tests;
use fencelock::fence::Marks;
use fencelock::{Locks, MutexGuard, Options, State, Token};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

tests!("processes":
    another_process_sees_our_ticket [Processes],
    an_unprotected_counter_comes_out_exact [Processes],
    killed_at_random_nothing_is_stuck_and_tokens_grow [Processes Fencing],
    stopped_past_its_lease_it_finds_itself_lost [Processes Fencing],
    several_names_in_any_order_never_deadlock [Processes],
    a_leader_that_is_killed_is_replaced [Processes Fencing Queue],
    eight_processes_count_exactly_without_a_lock [Processes Registers],
);

/// What a worker is to do: `URL NAME LEASE_MS FOLDER ROLE`, one to a line.
pub(crate) const ROLE: &str = "FENCELOCK_TESTKIT_WORKER";

// What a test does.

/// One worker, killed at the latest when it is dropped.
struct Worker {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Worker {
    fn start(ctx: &Ctx, role: &str, name: &str, lease: Duration, folder: &Path) -> Worker {
        let url = ctx.url().expect("chosen only with a URL");
        let told = format!("{url}\n{name}\n{}\n{}\n{role}", lease.as_millis(), folder.display());
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .env(ROLE, told)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a worker starts");
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Worker { child, lines }
    }

    /// The next line that it prints, read without blocking the runtime.
    async fn line(&mut self, what: &str) -> String {
        self.line_within(SOON * 2, what).await
    }

    /// The same, for a worker that has to do something first.
    async fn line_within(&mut self, limit: Duration, what: &str) -> String {
        let started = Instant::now();
        loop {
            match self.lines.try_recv() {
                Ok(line) => return line,
                Err(mpsc::TryRecvError::Disconnected) => panic!("the worker ended without saying {what}"),
                Err(mpsc::TryRecvError::Empty) => {
                    assert!(started.elapsed() < limit, "the worker did not say {what}");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
    }

    fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).expect("the worker listens");
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("our own child");
    }

    async fn ends(&mut self) -> bool {
        let mut success = false;
        within(Duration::from_secs(60), "the worker ends", || {
            let ended = self.child.try_wait().expect("our own child");
            success = ended.is_some_and(|status| status.success());
            std::future::ready(ended.is_some())
        })
        .await;
        success
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn read_number(file: &Path) -> u64 {
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The lines `{"token":7,"pid":912}` of the log of grants, in the order of the grants.
fn grants(folder: &Path) -> Vec<u64> {
    let log = std::fs::read_to_string(folder.join("grants")).unwrap_or_default();
    let number = |line: &str| line.strip_prefix("{\"token\":")?.split(',').next()?.parse().ok();
    log.lines().filter_map(number).collect()
}

async fn another_process_sees_our_ticket(ctx: Arc<Ctx>) {
    let (client, name, folder) = (ctx.client().await, ctx.name("a"), folder());
    let ticket = ctx.mutex(&name);
    let token = client.admitted(&ticket).await;
    let mut worker = Worker::start(&ctx, "look", &ctx.text("a"), ctx.long(), folder.path());
    let seen = worker.line("what it sees").await;
    assert_eq!(seen, format!("inside {}", client.told(token)), "the store says that other processes share it");
    assert!(worker.ends().await);
    client.leave(&ticket).await;
}

async fn an_unprotected_counter_comes_out_exact(ctx: Arc<Ctx>) {
    let folder = folder();
    let rounds = ctx.rounds(25);
    let mut workers: Vec<Worker> = (0..4)
        .map(|_| Worker::start(&ctx, &format!("count {rounds}"), &ctx.text("a"), ctx.long(), folder.path()))
        .collect();
    for worker in &mut workers {
        assert!(worker.ends().await, "a worker failed");
    }
    assert_eq!(read_number(&folder.path().join("counter")), 4 * rounds as u64);
    let grants = grants(folder.path());
    assert_eq!(grants.len(), 4 * rounds);
    if ctx.open().await.capability().fencing != fencelock::store::Fencing::None {
        assert!(grants.is_sorted_by(|a, b| a < b), "tokens in the order of the grants: {grants:?}");
    }
    assert!(ctx.client().await.is_empty(&ctx.name("a")).await);
}

async fn killed_at_random_nothing_is_stuck_and_tokens_grow(ctx: Arc<Ctx>) {
    let (client, name, folder, mut rng) = (ctx.client().await, ctx.name("a"), folder(), ctx.rng());
    let lease = ctx.lease().max(Duration::from_millis(500));
    let start = || Worker::start(&ctx, "count 1000000", &ctx.text("a"), lease, folder.path());
    let mut workers = vec![start(), start(), start()];
    for _ in 0..ctx.rounds(4) {
        let before = grants(folder.path()).len();
        eventually("somebody gets in", || std::future::ready(grants(folder.path()).len() > before + 3)).await;
        let victim = rng.usize(..workers.len());
        workers[victim] = start(); // dropping the old one is kill -9
        // Nobody is stuck for longer than one lease, whether a holder or a waiter was killed.
        let before = grants(folder.path()).len();
        let limit = lease * 2 + Duration::from_secs(3);
        within(limit, "the next one gets in", || std::future::ready(grants(folder.path()).len() > before + 3)).await;
    }
    drop(workers);
    let grants = grants(folder.path());
    assert!(grants.is_sorted_by(|a, b| a < b), "tokens in the order of the grants: {grants:?}");
    within(lease * 4 + SOON, "all that the dead left behind has lapsed", || client.is_empty(&name)).await;
    let ticket = unqueued(ctx.mutex(&name));
    let token = client.admitted(&ticket).await;
    assert!(grants.last().is_none_or(|last| token > *last));
    client.leave(&ticket).await;
}

/// Six processes take random subsets of eight names in random order, and count in files that nothing else protects.
async fn several_names_in_any_order_never_deadlock(ctx: Arc<Ctx>) {
    let (client, folder) = (ctx.client().await, folder());
    let rounds = ctx.rounds(20);
    let role = format!("several {rounds}");
    let mut workers: Vec<Worker> =
        (0..6).map(|_| Worker::start(&ctx, &role, &ctx.text("x"), ctx.long(), folder.path())).collect();
    let mut counted = 0;
    for worker in &mut workers {
        let line = worker.line_within(Duration::from_secs(100), "how much it has counted").await;
        counted += line.strip_prefix("counted ").and_then(|n| n.parse::<u64>().ok()).expect("a number");
        assert!(worker.ends().await, "a worker failed");
    }
    let found: u64 = (0..8).map(|i| read_number(&folder.path().join(i.to_string()))).sum();
    assert_eq!(found, counted, "two were inside at the same time");
    assert!(client.locks.list(&ctx.text("x")).await.expect("list").is_empty(), "something is left");
}

/// Leaders are killed one after the other: the next one leads when the dead one's lease has ended, and by the terms there is
/// never more than one.
async fn a_leader_that_is_killed_is_replaced(ctx: Arc<Ctx>) {
    let (client, folder, name) = (ctx.client().await, folder(), ctx.text("a"));
    let lease = ctx.lease().max(Duration::from_secs(1));
    let election = client.locks.election(&name);
    let start = || Worker::start(&ctx, "lead", &name, lease, folder.path());
    let mut workers = vec![start(), start(), start()];
    let mut terms = Vec::new();
    // Only a machine that has nothing else to do can be held to the second.
    let soak = std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1");
    let limit = if soak { lease + Duration::from_secs(1) } else { lease * 2 + Duration::from_secs(5) };
    for round in 0..ctx.rounds(2) {
        // All of them must be in the queue: a process that is still starting cannot take over.
        let all_there = || async { client.inspect(&ctx.name("a")).await.waiting.len() == 2 };
        within(SOON * 2, "the others are candidates", all_there).await;
        let leader = election.leader().await.expect("leader").expect("somebody leads");
        assert!(terms.last().is_none_or(|last| leader.term > *last), "{} after {terms:?}", leader.term);
        terms.push(leader.term);
        let at = workers.iter().position(|worker| worker.child.id() == leader.pid).expect("one of ours");
        drop(workers.swap_remove(at)); // kill -9
        let killed = Instant::now();
        within(limit, "a new leader", || async {
            matches!(election.leader().await, Ok(Some(next)) if next.term > leader.term)
        })
        .await;
        eprintln!("round {round}: a new leader {:?} after the kill, lease {lease:?}", killed.elapsed());
        workers.push(start());
    }
    drop(workers);
    let grants = grants(folder.path());
    assert!(grants.is_sorted_by(|a, b| a < b), "terms in the order of the leaders: {grants:?}");
    let line = ctx.name("a");
    within(lease * 4 + SOON, "all that the dead left behind has lapsed", || client.is_empty(&line)).await;
}

/// With `FENCELOCK_SOAK=1` they count to exactly 4,000.
async fn eight_processes_count_exactly_without_a_lock(ctx: Arc<Ctx>) {
    let (folder, name, times) = (folder(), ctx.text("count"), ctx.rounds(50));
    let role = format!("register {times}");
    let mut workers: Vec<Worker> =
        (0..8).map(|_| Worker::start(&ctx, &role, &name, ctx.long(), folder.path())).collect();
    for worker in &mut workers {
        worker.line_within(Duration::from_secs(300), "that it has counted").await;
        assert!(worker.ends().await, "a worker failed");
    }
    let register = ctx.beside().await.register(&name);
    let seen = register.load().await.expect("load");
    let found = String::from_utf8_lossy(seen.value.as_deref().unwrap_or_default()).into_owned();
    assert_eq!(found, (8 * times).to_string());
    assert!(register.delete_if(seen.version).await.expect("delete_if"));
}

#[cfg(not(unix))]
async fn stopped_past_its_lease_it_finds_itself_lost(_: Arc<Ctx>) {
    unreachable!("processes are chosen on unix only")
}

#[cfg(unix)]
async fn stopped_past_its_lease_it_finds_itself_lost(ctx: Arc<Ctx>) {
    use rustix::process::Signal;
    let (client, folder) = (ctx.client().await, folder());
    let lease = ctx.lease().max(Duration::from_millis(500));
    let mut worker = Worker::start(&ctx, "hold", &ctx.text("a"), lease, folder.path());
    let held = worker.line("its token").await;
    let token: u64 = held.strip_prefix("held ").and_then(|token| token.parse().ok()).expect("a token");
    worker.tell("state");
    assert_eq!(worker.line("its state").await, "Safe");
    worker.signal(Signal::STOP);
    let limit = lease * 2 + SOON;
    let guard = client.locks.mutex(&ctx.text("a")).lock_within(limit).await.expect("the stopped one's lease ends");
    assert!(guard.token().number() > token, "{} after {token}", guard.token());
    write_fenced(folder.path(), guard.token()).expect("the rightful holder writes");
    worker.tell("state");
    worker.tell("write");
    worker.tell("run");
    worker.signal(Signal::CONT);
    assert_eq!(worker.line("its state").await, "Lost", "at its next line of code");
    let refused = worker.line("what became of its write").await;
    assert!(refused.starts_with("refused"), "{refused}");
    assert_eq!(worker.line("what became of its work").await, "not run");
    assert_eq!(guard.state(), State::Safe);
    worker.tell("end");
    assert!(worker.ends().await);
    guard.release().await.expect("release");
    eventually("empty", || async { client.is_empty(&ctx.name("a")).await }).await;
}

/// A write to a resource that keeps the marks of the fence in a file, one access at a time.
fn write_fenced(folder: &Path, token: Token) -> Result<(), String> {
    let path = folder.join("marks");
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = file.map_err(|error| error.to_string())?;
    file.lock().map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| error.to_string())?;
    let mut numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
    let mut marks = Marks { exclusive: numbers.next().unwrap_or(0), shared: numbers.next().unwrap_or(0) };
    marks.accept(&token).map_err(|overtaken| overtaken.to_string())?;
    let kept = file.set_len(0).and_then(|()| file.rewind());
    kept.and_then(|()| write!(file, "{} {}", marks.exclusive, marks.shared)).map_err(|error| error.to_string())
}

// What a worker does.

/// Works as told, if this process was started as a worker; never comes back then.
pub(crate) fn worker() {
    let Ok(told) = std::env::var(ROLE) else { return };
    let told: Vec<&str> = told.split('\n').collect();
    let [url, name, lease, folder, role] = told[..] else { panic!("a worker is told five things: {told:?}") };
    let lease = Duration::from_millis(lease.parse().expect("a lease in milliseconds"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = Locks::builder(url).lease(lease).connect().await.expect("the worker connects");
        let folder = PathBuf::from(folder);
        match role.split_once(' ').unwrap_or((role, "")) {
            ("look", _) => look(&locks, name).await,
            ("count", rounds) => count(&locks, name, &folder, rounds.parse().expect("a number of rounds")).await,
            ("several", rounds) => several(&locks, name, &folder, rounds.parse().expect("a number of rounds")).await,
            ("lead", _) => lead(&locks, name, &folder).await,
            ("register", times) => register(&locks, name, times.parse().expect("a number of times")).await,
            ("hold", _) => hold(&locks, name, &folder).await,
            (other, _) => panic!("no worker does {other:?}"),
        }
        locks.close().await;
    });
    std::process::exit(0);
}

async fn register(locks: &Locks, name: &str, times: usize) {
    let register = locks.register(name);
    for _ in 0..times {
        let more = |value: Option<&[u8]>| {
            let value = value.map_or("0", |value| std::str::from_utf8(value).expect("digits"));
            Some((value.parse::<u64>().expect("a number") + 1).to_string())
        };
        register.update(more).await.expect("update");
    }
    println!("counted");
}

async fn look(locks: &Locks, name: &str) {
    match locks.inspect(name).await.expect("inspect").inside.first() {
        Some(seen) => println!("inside {}", seen.token.unwrap_or(0)),
        None => println!("nobody"),
    }
}

/// A machine with too much to do does not answer within half of a short lease: then once more.
async fn lock_in_spite_of_load(locks: &Locks, name: &str) -> MutexGuard {
    loop {
        match locks.mutex(name).lock().await {
            Ok(guard) => return guard,
            Err(error) => assert!(error.is_temporary(), "{error:?}"),
        }
    }
}

fn log_grant(folder: &Path, token: u64) {
    let log = std::fs::OpenOptions::new().append(true).create(true).open(folder.join("grants"));
    let line = format!("{{\"token\":{token},\"pid\":{}}}\n", std::process::id());
    log.and_then(|mut log| log.write_all(line.as_bytes())).expect("the log of grants");
}

/// Reads a number, waits a little, writes it back plus one: only a lock makes that exact.
async fn count(locks: &Locks, name: &str, folder: &Path, rounds: usize) {
    let counter = folder.join("counter");
    for _ in 0..rounds {
        let guard = lock_in_spite_of_load(locks, name).await;
        log_grant(folder, guard.token().number());
        let number = read_number(&counter);
        tokio::time::sleep(Duration::from_micros(200)).await;
        std::fs::write(&counter, (number + 1).to_string()).expect("the counter");
        guard.release().await.expect("release");
    }
}

/// The same with some of eight names at once, each with its own counter.
async fn several(locks: &Locks, name: &str, folder: &Path, rounds: usize) {
    let mut counted = 0;
    for _ in 0..rounds {
        let mut subset: Vec<usize> = (0..8).collect();
        fastrand::shuffle(&mut subset);
        subset.truncate(fastrand::usize(1..=5));
        let guard = locks.all(subset.iter().map(|i| format!("{name}/{i}"))).lock().await.expect("lock");
        let counters: Vec<PathBuf> = subset.iter().map(|i| folder.join(i.to_string())).collect();
        let numbers: Vec<u64> = counters.iter().map(|counter| read_number(counter)).collect();
        tokio::time::sleep(Duration::from_micros(200)).await;
        for (counter, number) in counters.iter().zip(numbers) {
            std::fs::write(counter, (number + 1).to_string()).expect("the counter");
            counted += 1;
        }
        guard.release().await.expect("release");
    }
    println!("counted {counted}");
}

/// Leads whenever it can, and says so in the log.
async fn lead(locks: &Locks, name: &str, folder: &Path) {
    loop {
        match locks.election(name).campaign(&std::process::id().to_string()).await {
            Ok(leadership) => {
                log_grant(folder, leadership.term());
                leadership.lost().await;
            }
            // As above.
            Err(error) => assert!(error.is_temporary(), "{error:?}"),
        }
    }
}

/// Holds, and does as it is told line by line.
async fn hold(locks: &Locks, name: &str, folder: &Path) {
    let guard = locks.mutex(name).lock_with(Options::new().reason("to be stopped")).await.expect("lock");
    println!("held {}", guard.token());
    let token = guard.token();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "state" => println!("{:?}", guard.state()),
            "write" => match write_fenced(folder, token.clone()) {
                Ok(()) => println!("written"),
                Err(why) => println!("refused: {why}"),
            },
            "run" => match guard.run(async { "run" }).await {
                Ok(done) => println!("{done}"),
                Err(_) => println!("not run"),
            },
            _ => return,
        }
    }
}
