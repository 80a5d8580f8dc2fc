//! PostgreSQL on a disk that is full: one clear error, nothing is granted that is not kept, whoever holds a lock is told, and it
//! goes on when there is room again. Where no small file system can be mounted (that needs root), this program says so and runs
//! nothing.

#[path = "sql_store/full.rs"]
mod full;
#[path = "postgres_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod server;

use fencelock::line::WHOLE;
use fencelock::name::Name;
use fencelock::store::postgres::PostgresStore;
use fencelock::store::{Enter, Kind, Note, OwnerId, Place, Store, TicketId};
use fencelock::{Effect, Error, ErrorKind, Locks, Options, State};
use full::Small;
use libtest_mimic::{Arguments, Trial};
use server::{Server, give_away};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing here takes this long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

fn main() {
    let arguments = Arguments::from_args();
    if Small::mount("1m").is_none() {
        println!("not run: no file system can be mounted here (that needs root)");
        return;
    }
    let trial = |name, body: fn()| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    };
    let trials = vec![
        trial("tables_without_room_grant_nothing", || run(tables())),
        trial("a_log_without_room_ends_the_server_and_whoever_holds_is_told", || run(log())),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

/// A ticket that takes some room.
fn ticket(name: &str) -> Enter {
    Enter {
        place: Place { name: Name::new("", name).expect("a good name"), id: TicketId::new() },
        kind: Kind::Mutex,
        weight: WHOLE,
        capacity: WHOLE,
        lease: Duration::from_secs(600),
        queue: true,
        owner: OwnerId::new(),
        held: Vec::new(),
        note: Note { reason: Some("x".repeat(400).into()), ..Note::default() },
    }
}

/// Something that must happen soon.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| panic!("{what}: not within a minute"))
}

async fn open(server: &Server) -> PostgresStore {
    let url = server.url("fencelock");
    PostgresStore::connect(url.split('?').next().expect("a URL"), &Default::default()).await.expect("the store opens")
}

/// Enters lines until there is no room any more: what was entered, what was refused, and the refusal.
async fn fill(store: &PostgresStore) -> (Vec<Enter>, Vec<Enter>, Error) {
    let mut entered = Vec::new();
    soon("no room", async {
        for round in 0.. {
            let batch: Vec<Enter> = (0..50).map(|i| ticket(&format!("line/{round}/{i}"))).collect();
            match store.enter(&batch).await {
                Ok(_) => entered.extend(batch),
                Err(error) => return (std::mem::take(&mut entered), batch, error),
            }
        }
        unreachable!("a disk has an end")
    })
    .await
}

/// What was granted is there, and what was refused is not, unless it is not known.
async fn judge(store: &PostgresStore, entered: &[Enter], refused: &[Enter], error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for one in entered.iter().step_by(7) {
        let line = store.inspect(&one.place.name).await.expect("a look");
        assert_eq!(line.inside.len(), 1, "{} was granted", one.place.name.shown());
    }
    let mut there = 0;
    for one in refused {
        there += store.inspect(&one.place.name).await.expect("a look").inside.len();
    }
    let whole = there == 0 || (there == refused.len() && error.effect() == Effect::Unknown);
    assert!(whole, "{there} of {}: {error}", refused.len());
}

/// Only the tables are on the small disk: the statement fails, and the server lives on.
async fn tables() {
    let small = Small::mount("100m").expect("a small disk");
    let elsewhere = tempfile::tempdir().expect("a folder");
    give_away(elsewhere.path());
    let (folder, log) = (small.folder(), format!("--waldir={}", elsewhere.path().join("wal").display()));
    let start = move || Server::start_in(folder, &[&log], &[]);
    let server = tokio::task::spawn_blocking(start).await.expect("a server");
    let locks = Locks::connect(&server.url("fencelock")).await.expect("locks");
    let store = open(&server).await;
    let guard = locks.mutex("kept").lock().await.expect("free");
    small.fill();
    let (entered, refused, error) = fill(&store).await;
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert!(error.to_string().contains("53100"), "{error}");
    // Nobody is let in who could not be written down, by this way either.
    let held = locks.mutex("kept").try_lock().await.expect_err("it is held");
    assert!(matches!(held.kind(), ErrorKind::Held | ErrorKind::Unavailable), "{held}");
    assert_ne!(guard.state(), State::Lost);
    small.empty();
    judge(&store, &entered, &refused, &error).await;
    soon("a grant", async {
        while let Err(error) = store.enter(&[ticket("later")]).await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    })
    .await;
    assert_eq!(locks.inspect("kept").await.expect("a look").inside[0].token, Some(guard.token().number()));
    guard.release().await.expect("room");
}

/// The log is on the small disk: PostgreSQL stops. Whoever holds a lock is told when its lease ends; what was granted is still
/// there when the server comes back.
async fn log() {
    let small = Small::mount("24m").expect("a small disk");
    let other: TempDir = small.folder();
    give_away(other.path());
    let log = format!("--waldir={}", other.path().join("wal").display());
    let making = move || {
        let folder = tempfile::tempdir().expect("a folder for the server");
        Server::start_in(folder, &[&log, "--wal-segsize=1"], SMALL_LOG)
    };
    let server = tokio::task::spawn_blocking(making).await.expect("a server");
    let locks = Locks::connect(&server.url("fencelock")).await.expect("locks");
    let store = open(&server).await;
    let lease = Duration::from_secs(3);
    let guard = locks.mutex("kept").lock_with(Options::new().lease(lease)).await.expect("free");
    small.fill();
    let (entered, refused, error) = fill(&store).await;
    let began = Instant::now();
    soon("the end of the lease", guard.lost()).await;
    assert_eq!(guard.state(), State::Lost);
    assert!(began.elapsed() < LONG);
    let refusal = locks.mutex("kept").try_lock().await.expect_err("nobody is there");
    assert_eq!(refusal.kind(), ErrorKind::Unavailable, "{refusal}");
    small.empty();
    let server = tokio::task::spawn_blocking(move || {
        server.stop("KILL");
        server.run(SMALL_LOG);
        server
    })
    .await
    .expect("it comes back");
    let store = {
        drop(store);
        open(&server).await
    };
    judge(&store, &entered, &refused, &error).await;
    let next = soon("a grant", locks.mutex("kept").lock()).await.expect("it has lapsed");
    assert!(next.token() > guard.token());
}

/// So that the server comes to the end of its log soon, and no checkpoint frees some of it.
const SMALL_LOG: &[&str] = &["-c", "max_wal_size=1GB", "-c", "min_wal_size=2MB", "-c", "synchronous_commit=on"];
