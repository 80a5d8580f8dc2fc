//! The SQLite store on real files: held to the memory store over random histories, shared by several clients and several
//! processes, killed, restarted, moved away, damaged, filled up.
//!
//! A test that needs other processes starts this very binary again, for the one test [`process`], with its part in the
//! environment.
#![cfg(target_os = "linux")]

use fencelock::name::Name;
use fencelock::store::sqlite::SqliteStore;
use fencelock::store::{Enter, Entered, Kind, Note, OwnerId, Place, Presence, Renew, Renewed, Store, TicketId, Waited};
use fencelock::{ErrorKind, clock::Clock, line::WHOLE};
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "sqlite_store/faults.rs"]
mod faults;
#[path = "sqlite_store/oracle.rs"]
mod oracle;
#[path = "sqlite_store/processes.rs"]
mod processes;
#[path = "sqlite_store/wake.rs"]
mod wake;

const LEASE: Duration = Duration::from_secs(30);
/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(30);

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Waits for what must become true.
async fn eventually(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is().await {
        assert!(start.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    (folder, file)
}

fn name(name: &str) -> Name {
    Name::new("", name).unwrap()
}

fn place(on: &str) -> Place {
    Place { name: name(on), id: TicketId::new() }
}

fn ticket(place: &Place, weight: u32, capacity: u32, queue: bool) -> Enter {
    let kind = match (capacity, weight) {
        (WHOLE, WHOLE) => Kind::Mutex,
        (WHOLE, _) => Kind::Read,
        _ => Kind::Permits,
    };
    let note =
        Note { host: "here".into(), pid: std::process::id(), identity: "test".into(), reason: None, value: None };
    let (place, lease, owner) = (place.clone(), LEASE, OwnerId::new());
    Enter { place, kind, weight, capacity, lease, queue, owner, held: Vec::new(), note }
}

fn mutex(place: &Place) -> Enter {
    ticket(place, WHOLE, WHOLE, true)
}

fn renew(place: &Place) -> Renew {
    Renew { place: place.clone(), lease: LEASE, at_least: None }
}

async fn enter(store: &SqliteStore, ticket: Enter) -> Entered {
    store.enter(&[ticket]).await.unwrap().remove(0)
}

/// Enters a mutex's line that must be free.
async fn lock(store: &SqliteStore, place: &Place) -> u64 {
    match enter(store, mutex(place)).await {
        Entered::Admitted { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

async fn leave(store: &SqliteStore, place: &Place) -> Presence {
    store.leave(std::slice::from_ref(place)).await.unwrap().remove(0)
}

async fn wait(store: &SqliteStore, place: &Place, at_most: Duration) -> Waited {
    store.wait(place, Clock::system().now().after(at_most)).await.unwrap()
}

/// Enters a line and waits until inside. Says the token.
async fn wait_in_line(store: &SqliteStore, ticket: Enter) -> u64 {
    let place = ticket.place.clone();
    match enter(store, ticket).await {
        Entered::Admitted { token, .. } => token,
        Entered::Queued { .. } => match wait(store, &place, PATIENCE).await {
            Waited::Admitted { token } => token,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// The sockets beside a store file.
fn sockets(file: &Path) -> Vec<PathBuf> {
    let mut folder = file.as_os_str().to_owned();
    folder.push(".wake");
    std::fs::read_dir(folder).map_or(Vec::new(), |files| files.map(|file| file.unwrap().path()).collect())
}

/// How many rows the file has, its own included.
fn rows(file: &Path) -> i64 {
    let conn = rusqlite::Connection::open(file).unwrap();
    conn.query_row("SELECT count(*) FROM kept", [], |row| row.get(0)).unwrap()
}

/// Another process with a part to play; killed in the end.
struct Process {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(part: &str, file: &Path, argument: &str) -> Process {
        Process::start_by(Command::new(std::env::current_exe().unwrap()), part, file, argument)
    }

    /// The same, where `command` runs this binary in some way of its own.
    fn start_by(mut command: Command, part: &str, file: &Path, argument: &str) -> Process {
        let mut child = command
            .args(["--ignored", "--exact", "process", "--nocapture", "--test-threads=1"])
            .env("FENCELOCK_TEST_PART", part)
            .env("FENCELOCK_TEST_FILE", file)
            .env("FENCELOCK_TEST_ARGUMENT", argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }

    /// What it says next: the rest of its next line with a `> ` in it.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the process ended without a word");
            if let Some((_, said)) = line.split_once("> ") {
                return said.trim().to_string();
            }
        }
    }

    /// Lets it go on.
    fn nod(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn ends(mut self) {
        drop(self.child.stdin.take());
        std::io::copy(&mut self.lines, &mut std::io::sink()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says something to the process that started this one.
fn say(what: impl std::fmt::Display) {
    println!("> {what}");
    std::io::stdout().flush().unwrap();
}

/// Waits for a nod.
fn listen() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
#[ignore = "the part of another process: started by the tests that need one"]
fn process() {
    let var = |name: &str| std::env::var(format!("FENCELOCK_TEST_{name}")).unwrap();
    let file = PathBuf::from(var("FILE"));
    block_on(processes::play(&var("PART"), &file, &var("ARGUMENT")));
}

#[test]
fn a_lock_is_taken_and_left_and_leaves_nothing() {
    block_on(async {
        let (_folder, file) = folder();
        let store = SqliteStore::open(&file).unwrap();
        let (a, b) = (place("nightly"), place("nightly"));
        let first = lock(&store, &a).await;
        let full = enter(&store, ticket(&b, WHOLE, WHOLE, false)).await;
        assert!(matches!(&full, Entered::Full { holder: Some(holder) } if holder.token == Some(first)), "{full:?}");
        assert_eq!(leave(&store, &a).await, Presence::There);
        assert_eq!(leave(&store, &a).await, Presence::Gone);
        let second = lock(&store, &b).await;
        assert!(second > first);
        assert_eq!(store.renew(&[renew(&a), renew(&b)]).await.unwrap()[0], Renewed::Gone);
        leave(&store, &b).await;
        assert_eq!(store.list("", None, 10).await.unwrap(), vec![]);
        assert_eq!(rows(&file), 1, "empty lines leave no rows");
        assert!(sockets(&file).is_empty(), "nobody waited");
    });
}

#[test]
fn the_file_is_for_this_user_only() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a/b/locks.db");
    let _store = SqliteStore::open(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(folder.path().join("a")).unwrap().mode() & 0o777, 0o700);
    let beside: Vec<_> =
        std::fs::read_dir(folder.path().join("a/b")).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(beside.iter().all(|name| !name.to_string_lossy().contains(".new-")), "{beside:?}");
}

#[test]
fn tokens_grow_over_restarts_blocks_and_boots() {
    block_on(async {
        let (_folder, file) = folder();
        let mut last = 0;
        for boot in ["one", "one", "two", "two", "three"] {
            let store = SqliteStore::open_in_boot(&file, boot, Clock::system()).unwrap();
            let start = last;
            for _ in 0..700 {
                let place = place("x");
                let token = lock(&store, &place).await;
                assert!(token > last);
                last = token;
                leave(&store, &place).await;
            }
            assert!(last <= start + 700 + 2048, "a new boot skips what was reserved and what was announced");
        }
        assert!(last > 3500);
    });
}

#[test]
fn another_boot_finds_the_lines_empty_and_numbers_unused() {
    block_on(async {
        let (_folder, file) = folder();
        let before = SqliteStore::open_in_boot(&file, "one", Clock::system()).unwrap();
        let old = place("x");
        let token = lock(&before, &old).await;
        let after = SqliteStore::open_in_boot(&file, "two", Clock::system()).unwrap();
        assert_eq!(after.inspect(&old.name).await.unwrap().inside, vec![]);
        let new = lock(&after, &place("x")).await;
        assert!(new > token + 1000, "{token}, {new}: the rest of the block may have been given away");
        // Whoever is still about from the other boot (or another machine) gets no number and finds its ticket gone.
        assert_eq!(before.renew(&[renew(&old)]).await.unwrap(), [Renewed::Gone]);
        let error = before.enter(&[mutex(&place("y"))]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    });
}

#[test]
fn at_least_raises_the_counter_only_for_who_is_there() {
    block_on(async {
        let (_folder, file) = folder();
        let store = SqliteStore::open(&file).unwrap();
        let (there, gone) = (place("x"), place("y"));
        let token = lock(&store, &there).await;
        let raise = |place: &Place, to| Renew { at_least: Some(to), ..renew(place) };
        assert_eq!(store.renew(&[raise(&gone, 1_000_000)]).await.unwrap(), [Renewed::Gone]);
        assert_eq!(lock(&store, &place("z")).await, token + 1);
        store.renew(&[raise(&there, 5_000_000)]).await.unwrap();
        assert_eq!(lock(&store, &place("w")).await, 5_000_001);
        let error = store.renew(&[raise(&there, u64::MAX)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        drop(store);
        let store = SqliteStore::open_in_boot(&file, "another", Clock::system()).unwrap();
        assert!(lock(&store, &place("x")).await > 5_000_001);
    });
}

#[test]
fn a_batch_is_all_or_nothing() {
    block_on(async {
        let (_folder, file) = folder();
        let (one, other) = (SqliteStore::open(&file).unwrap(), SqliteStore::open(&file).unwrap());
        let taken = place("b");
        let holder = lock(&one, &taken).await;
        let batch: Vec<_> = ["a", "b", "c"].map(|name| ticket(&place(name), WHOLE, WHOLE, false)).into();
        let answers = other.enter(&batch).await.unwrap();
        for (answer, of) in answers.iter().zip([None, Some(holder), None]) {
            let full = matches!(answer, Entered::Full { holder } if holder.as_ref().and_then(|seen| seen.token) == of);
            assert!(full, "{answer:?}");
        }
        assert_eq!(other.list("", None, 10).await.unwrap().len(), 1);
        leave(&one, &taken).await;
        let answers = other.enter(&batch).await.unwrap();
        let token = |answer: &Entered| match answer {
            Entered::Admitted { token, .. } => *token,
            other => panic!("{other:?}"),
        };
        let tokens: Vec<u64> = answers.iter().map(token).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b) && tokens[0] > holder);
        assert_eq!(other.enter(&batch).await.unwrap().iter().map(token).collect::<Vec<_>>(), tokens, "the same again");
        assert_eq!(other.list("", None, 10).await.unwrap().len(), 3);
        let semaphore = ticket(&place("c"), 1, 3, true);
        let error = one.enter(&[mutex(&place("d")), semaphore]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert_eq!(one.inspect(&name("d")).await.unwrap().inside, vec![], "nobody is in the first line either");
    });
}

#[test]
fn processes_that_live_for_a_moment_do_not_let_the_log_grow() {
    block_on(async {
        let (_folder, file) = folder();
        let mut longest = 0;
        for _ in 0..300 {
            let store = SqliteStore::open(&file).unwrap();
            let place = place("x");
            lock(&store, &place).await;
            leave(&store, &place).await;
            drop(store);
            longest = longest.max(std::fs::metadata(file.with_extension("db-wal")).unwrap().len());
        }
        assert!(longest < 512 << 10, "{longest}");
    });
}
