//! The sums in a line's row: they are those of its tickets, whatever was done and whatever was killed; and they spare a long line's
//! verbs the walk along it.

use crate::server::Server;
use crate::{alone, deadlocks, disturb, fresh, open, soon, ticket};
use fencelock::line::WHOLE;
use fencelock::store::{Enter, Entered, Place, Presence, Renew, Store, TicketId};
use fencelock::{ErrorKind, Locks, Options};
use mysql_async::prelude::Queryable;
use std::time::{Duration, Instant};

/// Lines whose row says something else than their tickets. Sums of a line count while `many` is 1 and `earliest` is known.
const WRONG: &str =
    "SELECT CONCAT(l.name, ': ', l.many, ' ', l.total, ' ', l.inside, ' ', l.frontier, ' ', l.head, ' ', l.earliest, ' ', l.capacity,
  ' but ', COALESCE(t.told, '')) FROM fencelock_line l LEFT JOIN (SELECT name, SUM(weight) AS total, SUM(IF(admitted IS NULL, 0, weight)) AS inside,
  MAX(IF(admitted IS NULL, 0, number)) AS frontier, MIN(IF(admitted IS NULL, number, NULL)) AS next, MIN(number) AS head,
  MAX(number) AS last, MIN(expiry) AS earliest, MIN(capacity) AS least, MAX(capacity) AS most,
  GROUP_CONCAT(CONCAT(number, '/', weight, '/', capacity, '/', admitted IS NOT NULL, '/', expiry)) AS told
  FROM fencelock_ticket GROUP BY name) t ON t.name = l.name
  WHERE IF(l.many = 0, t.name IS NOT NULL, l.earliest > 0 AND (l.total <> COALESCE(t.total, 0) OR l.inside <> COALESCE(t.inside, 0)
  OR l.frontier < t.frontier OR l.frontier >= t.next OR l.head > t.head OR l.last < t.last OR l.earliest > t.earliest
  OR l.capacity <> t.least OR l.capacity <> t.most))";

async fn wrong(server: &Server, url: &str) -> Vec<String> {
    let database = url.rsplit('/').next().expect("the URL names a database");
    let mut sql = server.sql(database).await;
    sql.query(WRONG).await.unwrap()
}

fn pick<T: Clone>(all: &[T]) -> T {
    all[fastrand::usize(..all.len())].clone()
}

/// A ticket for one of few names; some lapse soon.
fn any() -> Enter {
    let (name, capacity) = pick(&[("sums/lock", WHOLE), ("sums/other", WHOLE), ("sums/permits", 5)]);
    let weight = if capacity == WHOLE { pick(&[1, WHOLE]) } else { fastrand::u32(1..=5) };
    // Rarely with another capacity, which is refused unless nobody is there.
    let capacity = if capacity != WHOLE && fastrand::u32(..10) == 0 { 6 } else { capacity };
    let mut one = ticket(name, weight, capacity, fastrand::u32(..3) > 0);
    one.lease = pick(&[Duration::from_millis(100), Duration::from_secs(60)]);
    one
}

#[tokio::test]
async fn they_are_those_of_the_tickets_after_every_step() {
    let (server, url) = fresh().await;
    let stores = [open(&url).await, open(&url).await];
    let mut places: Vec<Place> = Vec::new();
    let (mut short, mut seed) = (0, fastrand::u64(..));
    if let Some(said) = std::env::var("FENCELOCK_SEED").ok().and_then(|said| said.parse().ok()) {
        seed = said;
    }
    fastrand::seed(seed);
    for step in 0..250 {
        let store = pick(&stores);
        let mut done = String::new();
        match fastrand::u32(..12) {
            0..=3 => {
                let one = any();
                done = format!("enter {} {}", one.weight, one.queue);
                match store.enter(std::slice::from_ref(&one)).await {
                    Ok(answers) => {
                        let joined = matches!(answers[..], [Entered::Admitted { .. } | Entered::Queued { .. }]);
                        places.extend(joined.then(|| one.place.clone()));
                        if joined && fastrand::u32(..4) == 0 {
                            pick(&stores).enter(&[one]).await.unwrap();
                        }
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}"),
                }
            }
            4 => {
                // All or none: some of these are refused.
                let batch = [any(), any()];
                if batch[0].place.name != batch[1].place.name && store.enter(&batch).await.is_ok() {
                    places.extend(batch.map(|one| one.place));
                }
                done = "enter two".into();
            }
            _ if places.is_empty() => continue,
            5..=7 => {
                let place = pick(&places);
                let left = store.leave(std::slice::from_ref(&place)).await.unwrap();
                short += usize::from(left == [Presence::There]);
                places.retain(|one| one.id != place.id);
                done = "leave".into();
            }
            8 => drop(store.change(&pick(&places), Some(1), None).await.unwrap()),
            9 => drop(store.upgrade(&pick(&places), TicketId::new()).await.unwrap()),
            10 => {
                let renew = Renew { place: pick(&places), lease: Duration::from_secs(60), at_least: None };
                store.renew(&[renew]).await.unwrap();
            }
            _ => {
                let name = pick(&places).name;
                let line = store.inspect(&name).await.unwrap();
                let tokens: Vec<_> = line.inside.iter().chain(&line.waiting).filter_map(|one| one.token).collect();
                if !tokens.is_empty() {
                    store.expel(&name, pick(&tokens)).await.unwrap();
                }
                done = "expel".into();
            }
        }
        let wrong = wrong(&server, &url).await;
        assert!(wrong.is_empty(), "FENCELOCK_SEED={seed}, step {step}, {done}: {wrong:?}");
    }
    assert!(short > 5, "somebody has left");
}

/// Statements and connections are ended at any moment, in the middle of scripts.
#[tokio::test]
async fn they_are_those_of_the_tickets_whatever_is_killed() {
    // Others' statements would be ended as well.
    let (server, url) = alone().await;
    let before = deadlocks(&server).await;
    let end = Instant::now() + Duration::from_secs(4);
    let mut crowd = Vec::new();
    for _ in 0..3 {
        let locks = Locks::connect(&url).await.unwrap();
        for _ in 0..6 {
            let locks = locks.clone();
            crowd.push(tokio::spawn(async move {
                let mut rounds = 0;
                while Instant::now() < end {
                    let options = Options::new().lease(Duration::from_secs(2)).wait(Duration::from_secs(1));
                    let done = match fastrand::u32(..4) {
                        0 => locks.rwlock("sums/lock").read_with(options).await.map(drop),
                        1 => locks
                            .semaphore("sums/permits", 3)
                            .acquire_many_with(fastrand::u32(1..=2), options)
                            .await
                            .map(drop),
                        _ => locks.mutex("sums/lock").lock_with(options).await.map(drop),
                    };
                    match done {
                        Ok(()) => rounds += 1,
                        Err(error) => assert!(
                            matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::Lost),
                            "{error}"
                        ),
                    }
                }
                rounds
            }));
        }
    }
    while Instant::now() < end {
        disturb(&server).await;
        let wrong = wrong(&server, &url).await;
        assert!(wrong.is_empty(), "{wrong:?}");
    }
    let mut rounds = 0;
    for one in crowd {
        rounds += soon("its end", one).await.unwrap();
    }
    assert!(rounds > 0, "somebody got in");
    assert_eq!(wrong(&server, &url).await, Vec::<String>::new());
    assert_eq!(deadlocks(&server).await, before);
}

/// Counted by the rows that the server goes along in an index.
#[tokio::test]
async fn a_long_line_is_not_walked_along() {
    let (server, url) = alone().await;
    let store = open(&url).await;
    let mut line = std::collections::VecDeque::new();
    for _ in 0..100 {
        let one = ticket("long", WHOLE, WHOLE, true);
        store.enter(std::slice::from_ref(&one)).await.unwrap();
        line.push_back(one.place);
    }
    let mut sql = server.sql("mysql").await;
    let mut walked = async || {
        let row: Option<(String, i64)> = sql.query_first("SHOW GLOBAL STATUS LIKE 'Handler_read_next'").await.unwrap();
        row.unwrap().1
    };
    let before = walked().await;
    for _ in 0..100 {
        let one = ticket("long", WHOLE, WHOLE, true);
        assert!(matches!(store.enter(std::slice::from_ref(&one)).await.unwrap()[..], [Entered::Queued { .. }]));
        line.push_back(one.place);
        let first = line.pop_front().unwrap();
        assert_eq!(store.leave(&[first]).await.unwrap(), [Presence::There]);
    }
    let walked = walked().await - before;
    assert!(walked < 100 * 100, "{walked} rows for 100 turns of a line of 100");
    let inside = store.inspect(&line[0].name).await.unwrap().inside;
    assert_eq!(inside.len(), 1, "the next one was let in each time");
}
