//! Waiting: who wakes whom, by what, and what is left of it.

use super::*;
use fencelock::store::{Hint, Scope};
use futures_util::StreamExt;

#[test]
fn waiters_are_admitted_in_order_across_clients() {
    block_on(async {
        let (_folder, file) = folder();
        let (one, other) = (SqliteStore::open(&file).unwrap(), SqliteStore::open(&file).unwrap());
        let (a, b, c) = (place("x"), place("x"), place("x"));
        let first = lock(&one, &a).await;
        for (store, place) in [(&other, &b), (&one, &c)] {
            let answer = enter(store, mutex(place)).await;
            assert!(
                matches!(&answer, Entered::Queued { ahead: Some(ahead), .. } if ahead.token == Some(first)),
                "{answer:?}"
            );
        }
        let (second, third) = (wait(&other, &b, PATIENCE), wait(&one, &c, PATIENCE));
        let start = Instant::now();
        let hand_over = async {
            leave(&one, &a).await;
            let Waited::Admitted { token } = second.await else { panic!() };
            assert!(token > first);
            leave(&other, &b).await;
            token
        };
        let (second, third) = tokio::join!(hand_over, third);
        assert!(matches!(third, Waited::Admitted { token } if token > second), "{third:?}");
        assert!(start.elapsed() < Duration::from_millis(500), "by datagram, not by the tick: {:?}", start.elapsed());
        drop((one, other));
        assert_eq!(sockets(&file), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_lapse_ahead_lets_the_next_one_in_in_time() {
    block_on(async {
        let (_folder, file) = folder();
        let (one, other) = (SqliteStore::open(&file).unwrap(), SqliteStore::open(&file).unwrap());
        let (a, b) = (place("x"), place("x"));
        let start = Instant::now();
        enter(&one, Enter { lease: Duration::from_millis(400), ..mutex(&a) }).await;
        enter(&other, mutex(&b)).await;
        assert!(matches!(wait(&other, &b, PATIENCE).await, Waited::Admitted { .. }));
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(400) && took < Duration::from_millis(900), "{took:?}");
        assert_eq!(one.renew(&[renew(&a)]).await.unwrap(), [Renewed::Gone]);
    });
}

#[test]
fn a_wait_ends_when_its_time_is_up_or_its_ticket_gone() {
    block_on(async {
        let (_folder, file) = folder();
        let (one, other) = (SqliteStore::open(&file).unwrap(), SqliteStore::open(&file).unwrap());
        let (a, b, c) = (place("x"), place("x"), place("x"));
        lock(&one, &a).await;
        let Entered::Queued { token: Some(token), .. } = enter(&other, mutex(&b)).await else { panic!() };
        assert_eq!(wait(&other, &b, Duration::from_millis(30)).await, Waited::Waiting);
        assert_eq!(wait(&other, &c, PATIENCE).await, Waited::Gone, "it was never there");
        let start = Instant::now();
        let (waited, expelled) = tokio::join!(wait(&other, &b, PATIENCE), async {
            assert_eq!(other.inspect(&b.name).await.unwrap().waiting.len(), 1);
            one.expel(&b.name, token).await.unwrap()
        });
        assert_eq!((waited, expelled), (Waited::Gone, Presence::There));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(one.expel(&b.name, token).await.unwrap(), Presence::Gone);
        // A leave by its own client, while another task waits for it.
        enter(&other, mutex(&c)).await;
        let (waited, _) = tokio::join!(wait(&other, &c, PATIENCE), leave(&other, &c));
        assert_eq!(waited, Waited::Gone);
    });
}

#[test]
fn a_lost_socket_file_is_made_up_for() {
    block_on(async {
        let (_folder, file) = folder();
        let (one, other) = (SqliteStore::open(&file).unwrap(), SqliteStore::open(&file).unwrap());
        let (a, b) = (place("x"), place("x"));
        lock(&one, &a).await;
        enter(&other, mutex(&b)).await;
        let waiting = wait(&other, &b, PATIENCE);
        std::fs::remove_dir_all(file.with_extension("db.wake")).unwrap();
        let (waited, _) = tokio::join!(waiting, leave(&one, &a));
        assert!(matches!(waited, Waited::Admitted { .. }), "the tick finds it: {waited:?}");
        leave(&other, &b).await;
        // And the socket is there again for the next time.
        lock(&one, &a).await;
        let b = place("x");
        enter(&other, mutex(&b)).await;
        eventually("the socket is opened again", async || sockets(&file).len() == 1).await;
    });
}

#[test]
fn paths_of_any_length_work() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a-folder-with-a-long-name/".repeat(8)).join("locks with blanks and ümlauts?.db");
        assert!(file.as_os_str().len() > 200);
        let (one, other) = (SqliteStore::open(&file).unwrap(), SqliteStore::open(&file).unwrap());
        let (a, b) = (place("x"), place("x"));
        lock(&one, &a).await;
        enter(&other, mutex(&b)).await;
        assert_eq!(sockets(&file).len(), 1);
        let start = Instant::now();
        let (waited, _) = tokio::join!(wait(&other, &b, PATIENCE), leave(&one, &a));
        assert!(matches!(waited, Waited::Admitted { .. }));
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    });
}

#[test]
fn watchers_of_other_clients_are_told_and_dead_ones_forgotten() {
    block_on(async {
        let (_folder, file) = folder();
        let (one, other) = (SqliteStore::open(&file).unwrap(), SqliteStore::open(&file).unwrap());
        let mut exact = other.watch(Scope::Name(name("a/x"))).await.unwrap();
        let mut folder = other.watch(Scope::Prefix("a/".into())).await.unwrap();
        let mut own = one.watch(Scope::Prefix(String::new())).await.unwrap();
        let (x, y) = (place("a/x"), place("b/y"));
        lock(&one, &y).await;
        lock(&one, &x).await;
        let changed = |name: &str| Some(Hint::Changed(super::name(name)));
        let next = async |stream: &mut fencelock::store::BoxStream<'static, Hint>| {
            tokio::time::timeout(Duration::from_millis(900), stream.next()).await.expect("told")
        };
        assert_eq!(next(&mut exact).await, changed("a/x"));
        assert_eq!(next(&mut folder).await, changed("a/x"));
        assert_eq!(next(&mut own).await, changed("b/y"));
        assert_eq!(next(&mut own).await, changed("a/x"));
        leave(&one, &x).await;
        assert_eq!(next(&mut folder).await, changed("a/x"));
        assert_eq!(watchers(&file), 3);
        drop((exact, folder));
        eventually("forgotten", async || watchers(&file) == 1).await;
        drop((own, one, other));
        eventually("forgotten", async || watchers(&file) == 0).await;
        // A watcher that was killed left its row; whoever has news for it takes it out.
        let conn = rusqlite::Connection::open(&file).unwrap();
        conn.execute_batch(
            "INSERT INTO watcher VALUES ('0123456789abcdef', '', 0); UPDATE kept SET watched = 1 WHERE name = ''",
        )
        .unwrap();
        let store = SqliteStore::open(&file).unwrap();
        lock(&store, &place("z")).await;
        eventually("taken out", async || watchers(&file) == 0).await;
    });
}

fn watchers(file: &Path) -> i64 {
    let conn = rusqlite::Connection::open(file).unwrap();
    conn.busy_timeout(PATIENCE).unwrap();
    conn.query_row("SELECT count(*) FROM watcher", [], |row| row.get(0)).unwrap()
}

#[test]
fn more_hints_than_a_socket_holds_are_told_or_made_up_for() {
    block_on(async {
        let (_folder, file) = folder();
        let (one, other) = (SqliteStore::open(&file).unwrap(), SqliteStore::open(&file).unwrap());
        let mut hints = other.watch(Scope::Prefix(String::new())).await.unwrap();
        // Many more than a socket holds, before anybody reads.
        let places: Vec<Place> = (0..600).map(|n| place(&format!("line-{n}"))).collect();
        for place in &places {
            lock(&one, place).await;
        }
        let mut missing: std::collections::BTreeSet<String> =
            places.iter().map(|place| place.name.to_string()).collect();
        while !missing.is_empty() {
            match tokio::time::timeout(PATIENCE, hints.next()).await.expect("told").unwrap() {
                Hint::Changed(name) | Hint::Entered(name) => drop(missing.remove(&name.to_string())),
                Hint::Somewhere => missing.clear(),
            }
        }
    });
}
