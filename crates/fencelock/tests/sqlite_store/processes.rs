//! Several processes on one file: counted exactly, killed, first at once.

use super::*;
use std::collections::BTreeSet;

/// What another process does.
pub(super) async fn play(part: &str, file: &Path, argument: &str) {
    match part {
        "count" => {
            let store = SqliteStore::open(file).unwrap();
            for _ in 0..argument.parse().unwrap() {
                count_once(&store, file, LEASE).await;
            }
        }
        "count until killed" => {
            let store = SqliteStore::open(file).unwrap();
            say("ready");
            loop {
                count_once(&store, file, Duration::from_millis(argument.parse().unwrap())).await;
            }
        }
        "first" => {
            say("ready");
            listen();
            let store = SqliteStore::open(file).unwrap();
            say(lock(&store, &place(argument)).await);
            listen();
        }
        "hold" => {
            let store = SqliteStore::open(file).unwrap();
            say(lock(&store, &place(argument)).await);
            listen();
        }
        "wait" => {
            let store = SqliteStore::open(file).unwrap();
            let place = place(argument);
            let mut ticket = mutex(&place);
            ticket.lease = Duration::from_secs(1);
            assert!(matches!(enter(&store, ticket).await, Entered::Queued { .. }));
            say("queued");
            let waited = wait(&store, &place, PATIENCE).await;
            say(format!("{waited:?}"));
            listen();
        }
        "hand over" => {
            let store = SqliteStore::open(file).unwrap();
            say("ready");
            let place = place(argument);
            wait_in_line(&store, mutex(&place)).await;
            say(Clock::system().now().as_nanos());
            leave(&store, &place).await;
            listen();
        }
        "fill" => {
            let store = SqliteStore::open(file).unwrap();
            let (inside, error) = faults::fill(&store).await;
            say(inside.len());
            say(format!("{:?} {error}", error.kind()));
            listen();
        }
        other => panic!("no such part: {other}"),
    }
}

/// An unprotected read-modify-write, protected; and a line in the book for the token.
async fn count_once(store: &SqliteStore, file: &Path, lease: Duration) {
    let place = place("counter");
    let ticket = Enter { lease, ..mutex(&place) };
    let token = match enter(store, ticket).await {
        Entered::Admitted { token, .. } => token,
        _ => loop {
            // A waiter that lapsed (the machine is busy) would be gone: it is renewed while it waits.
            let look = Clock::system().now().after(lease / 3);
            match store.wait(&place, look).await.unwrap() {
                Waited::Admitted { token } => break token,
                Waited::Waiting => {
                    store.renew(&[Renew { place: place.clone(), lease, at_least: None }]).await.unwrap();
                }
                Waited::Gone => return,
            }
        },
    };
    // What was waited for may have taken most of the lease.
    if store.renew(&[Renew { place: place.clone(), lease, at_least: None }]).await.unwrap() == [Renewed::Gone] {
        return;
    }
    let counter = file.with_extension("counter");
    let read: u64 = std::fs::read_to_string(&counter).map_or(0, |text| text.parse().unwrap());
    // A kill in the middle must not leave half a number behind.
    let draft = file.with_extension(format!("counter-{}", std::process::id()));
    std::fs::write(&draft, (read + 1).to_string()).unwrap();
    std::fs::rename(&draft, &counter).unwrap();
    let book = std::fs::OpenOptions::new().append(true).create(true).open(file.with_extension("book"));
    book.unwrap().write_all(format!("{token}\n").as_bytes()).unwrap();
    leave(store, &place).await;
}

fn signed(file: &Path) -> usize {
    std::fs::read_to_string(file.with_extension("book")).map_or(0, |book| book.lines().count())
}

fn tokens(file: &Path) -> Vec<u64> {
    let book = std::fs::read_to_string(file.with_extension("book")).unwrap();
    book.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn eight_processes_count_exactly() {
    let (_folder, file) = folder();
    let processes: Vec<_> = (0..8).map(|_| Process::start("count", &file, "250")).collect();
    processes.into_iter().for_each(Process::ends);
    assert_eq!(std::fs::read_to_string(file.with_extension("counter")).unwrap(), "2000");
    let tokens = tokens(&file);
    assert_eq!(tokens.len(), 2000);
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens grow in the order of the grants");
    assert_eq!(sockets(&file), Vec::<PathBuf>::new(), "no socket is left behind");
    assert_eq!(rows(&file), 1);
}

#[test]
fn killed_processes_hold_up_nobody_for_longer_than_a_lease() {
    block_on(async {
        let (_folder, file) = folder();
        let lease = Duration::from_millis(500);
        let store = SqliteStore::open(&file).unwrap();
        let start = || Process::start("count until killed", &file, "500");
        let mut processes: Vec<_> = (0..4).map(|_| start()).collect();
        processes.iter_mut().for_each(|process| assert_eq!(process.says(), "ready"));
        for round in 0..12 {
            // Somewhere in the middle of what they do; and they get on with it after each kill.
            let so_far = signed(&file);
            let waiting = Instant::now();
            eventually("they go on", async || signed(&file) > so_far + round).await;
            let stalled = waiting.elapsed();
            assert!(stalled < 4 * lease + Duration::from_secs(2), "round {round} stalled for {stalled:?}");
            processes[round % 4].kill();
            processes[round % 4] = start();
        }
        processes.iter_mut().for_each(Process::kill);
        let killed = Instant::now();
        let mine = place("counter");
        wait_in_line(&store, mutex(&mine)).await;
        let took = killed.elapsed();
        assert!(took < lease + Duration::from_secs(1), "stuck for {took:?}");
        leave(&store, &mine).await;
        let tokens = tokens(&file);
        assert!(tokens.len() > 66, "{}", tokens.len());
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens grow in the order of the grants: {tokens:?}");
        let counted: usize = std::fs::read_to_string(file.with_extension("counter")).unwrap().parse().unwrap();
        // Whoever was killed between the two has counted and not signed.
        assert!((tokens.len()..=tokens.len() + 16).contains(&counted), "{counted} counted, {} signed", tokens.len());
        drop(store);
        assert_eq!(sockets(&file), Vec::<PathBuf>::new(), "those of the killed are swept");
    });
}

#[test]
fn many_processes_may_be_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new/locks.db");
    let mut processes: Vec<_> = (0..8).map(|n| Process::start("first", &file, &format!("line-{n}"))).collect();
    processes.iter_mut().for_each(|process| assert_eq!(process.says(), "ready"));
    processes.iter_mut().for_each(Process::nod);
    let tokens: BTreeSet<u64> = processes.iter_mut().map(|process| process.says().parse().unwrap()).collect();
    assert_eq!(tokens.len(), 8, "one counter for all: {tokens:?}");
    processes.into_iter().for_each(Process::ends);
}

#[test]
fn an_empty_file_is_filled_by_whoever_is_first() {
    let (_folder, file) = folder();
    std::fs::write(&file, "").unwrap();
    let mut processes: Vec<_> = (0..4).map(|n| Process::start("first", &file, &format!("line-{n}"))).collect();
    processes.iter_mut().for_each(|process| assert_eq!(process.says(), "ready"));
    processes.iter_mut().for_each(Process::nod);
    let tokens: BTreeSet<u64> = processes.iter_mut().map(|process| process.says().parse().unwrap()).collect();
    assert_eq!(tokens.len(), 4);
    processes.into_iter().for_each(Process::ends);
}

#[test]
fn a_killed_holder_blocks_until_its_lease_ends_and_no_longer() {
    block_on(async {
        let (_folder, file) = folder();
        let store = SqliteStore::open(&file).unwrap();
        let mut waiter = {
            let holder = place("x");
            lock(&store, &holder).await;
            let mut waiter = Process::start("wait", &file, "x");
            assert_eq!(waiter.says(), "queued");
            assert_eq!(sockets(&file).len(), 1);
            leave(&store, &holder).await;
            assert!(waiter.says().starts_with("Admitted"));
            waiter
        };
        // It is inside, with what is left of its lease of a second, and dies.
        waiter.kill();
        let killed = Instant::now();
        wait_in_line(&store, mutex(&place("x"))).await;
        assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
        eventually("the socket of the killed is swept", async || sockets(&file).len() == 1).await;
    });
}

#[test]
fn another_process_is_woken_at_once() {
    block_on(async {
        let (_folder, file) = folder();
        let store = SqliteStore::open(&file).unwrap();
        let mut took = Vec::new();
        for _ in 0..9 {
            let holder = place("x");
            lock(&store, &holder).await;
            let mut other = Process::start("hand over", &file, "x");
            assert_eq!(other.says(), "ready");
            eventually("it waits", async || store.inspect(&holder.name).await.unwrap().waiting.len() == 1).await;
            // It may be between its enter and the opening of its socket.
            eventually("it has a socket", async || sockets(&file).len() == 1).await;
            let left = Clock::system().now().as_nanos();
            leave(&store, &holder).await;
            took.push(Duration::from_nanos(other.says().parse::<u64>().unwrap() - left));
            other.ends();
        }
        took.sort();
        assert!(took[4] < Duration::from_millis(200), "woken by datagram, not by the tick: {took:?}");
    });
}
