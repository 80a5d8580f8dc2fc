//! Locks that belong to a connection: what others see of them, whether they have a row yet or not, and who gets them when.

use crate::{alone, end_some, left_behind, session, soon, ticket};
use fencelock::clock::Moment;
use fencelock::line::WHOLE;
use fencelock::store::{Place, Presence, Store, Waited};
use fencelock::{ErrorKind, Locks, Options};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

async fn connect(url: &str) -> Locks {
    let url = format!("{url}{}mode=session", if url.contains('?') { '&' } else { '?' });
    Locks::connect(&url).await.unwrap()
}

#[tokio::test]
async fn what_was_answered_is_seen_by_everybody() {
    let (_server, url) = alone().await;
    let (holder, other, third) = (connect(&url).await, connect(&url).await, connect(&url).await);
    for round in 0..20 {
        let name = format!("seen/{round}");
        let guard = holder.mutex(&name).lock().await.unwrap();
        let token = guard.token().number();
        let line = soon("a look", other.inspect(&name)).await.unwrap();
        assert_eq!(line.inside.iter().map(|seen| seen.token).collect::<Vec<_>>(), [Some(token)], "round {round}");
        let error = soon("a try", third.mutex(&name).try_lock()).await.unwrap_err();
        assert_eq!((error.kind(), error.holder().and_then(|holder| holder.token)), (ErrorKind::Held, Some(token)));
        guard.release().await.unwrap();
        let line = soon("a look", other.inspect(&name)).await.unwrap();
        assert!(line.inside.is_empty(), "round {round}: {line:?}");

        // A name that nobody has looked at before, among all names.
        let name = format!("listed/{round}");
        let guard = holder.mutex(&name).lock().await.unwrap();
        let listed = soon("a list", other.list("listed")).await.unwrap();
        assert_eq!(listed.iter().map(|one| one.name.shown()).collect::<Vec<_>>(), [name], "round {round}");
        guard.release().await.unwrap();
        assert!(soon("a list", other.list("listed")).await.unwrap().is_empty(), "round {round}");
    }
}

#[tokio::test]
async fn who_waits_and_then_has_it_is_seen_as_such() {
    let (_server, url) = alone().await;
    let (one, two, other) = (connect(&url).await, connect(&url).await, connect(&url).await);
    let guard = one.mutex("x").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = two.mutex("x");
        async move { mutex.lock().await }
    });
    soon("who waits", async {
        while other.inspect("x").await.unwrap().waiting.len() != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    guard.release().await.unwrap();
    let guard = soon("its turn", waiting).await.unwrap().unwrap();
    let line = soon("a look", other.inspect("x")).await.unwrap();
    let inside: Vec<_> = line.inside.iter().map(|seen| seen.token).collect();
    assert_eq!((inside, line.waiting.len()), (vec![Some(guard.token().number())], 0));
    guard.release().await.unwrap();
    assert!(soon("a look", other.inspect("x")).await.unwrap().inside.is_empty());
}

/// Asked for one by one and many at a time, got and not got, left inside and while waiting.
#[tokio::test]
async fn nothing_is_left_behind_of_what_came_and_went() {
    let (server, url) = alone().await;
    let (locks, other) = (connect(&url).await, connect(&url).await);
    for round in 0..30 {
        let kept = other.mutex("kept").lock().await.unwrap();
        let cycle = |i: usize| {
            let mutex = locks.mutex(&format!("{}", i % 12));
            async move { mutex.lock().await.unwrap().release().await.unwrap() }
        };
        futures_util::future::join_all((0..16).map(cycle)).await;
        let refused = locks.mutex("kept").try_lock().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Held);
        let limit = Duration::from_millis(if round == 0 { 80 } else { 1 });
        let late = locks.mutex("kept").lock_within(limit).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        kept.release().await.unwrap();
    }
    // Before the server ends the connection, which is silent from now on: that would take down everything.
    let none = async {
        while left_behind(&server, &url).await != (0, 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), none).await.expect("no row, and no flag");
    let guard = other.mutex("0").try_lock().await.unwrap();
    guard.release().await.unwrap();
}

/// A crowd passes the lock on among its own, and stops for those of another client: who waits, and who only tries. Numbers grow all
/// the while, and nobody is inside beside another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_one_client_lets_others_in() {
    let (_server, url) = alone().await;
    let (crowd, other) = (connect(&url).await, connect(&url).await);
    let (stop, last, passed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let shared = Arc::new((stop, last, passed));
    let workers = (0..8).map(|_| {
        let (mutex, shared) = (crowd.mutex("crowded"), shared.clone());
        tokio::spawn(async move {
            while !shared.0.load(Ordering::SeqCst) {
                let guard = mutex.lock().await.unwrap();
                let before = shared.1.swap(guard.token().number(), Ordering::SeqCst);
                assert!(before < guard.token().number(), "{} after {before}", guard.token());
                tokio::task::yield_now().await;
                assert_eq!(shared.1.load(Ordering::SeqCst), guard.token().number(), "somebody else was inside");
                shared.2.fetch_add(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    for round in 0..4 {
        let until = shared.2.load(Ordering::SeqCst) + 40;
        soon("the crowd goes on", async {
            while shared.2.load(Ordering::SeqCst) < until {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        // Who only tries has a chance ten times a second, and no more than that.
        let options = if round < 3 { Options::new() } else { Options::new().unfair() };
        let guard = other.mutex("crowded").lock_with(options.wait(Duration::from_secs(120))).await.unwrap();
        let before = shared.1.swap(guard.token().number(), Ordering::SeqCst);
        assert!(before < guard.token().number(), "{} after {before}", guard.token());
        guard.release().await.unwrap();
    }
    shared.0.store(true, Ordering::SeqCst);
    for worker in workers {
        soon("its end", worker).await.unwrap();
    }
}

/// A client that takes a lock again as soon as it has let it go, whichever way, does not keep others out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_again_at_once_lets_others_in() {
    let (_server, url) = alone().await;
    let (greedy, other) = (connect(&url).await, connect(&url).await);
    for tasks in [1, 2, 3] {
        for dropped in [false, true] {
            let stop = Arc::new(AtomicBool::new(false));
            let workers = (0..tasks).map(|_| {
                let (mutex, stop) = (greedy.mutex("greedy"), stop.clone());
                tokio::spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = mutex.lock().await.unwrap();
                        if !dropped {
                            guard.release().await.unwrap();
                        }
                    }
                })
            });
            let workers: Vec<_> = workers.collect();
            let mut longest = Duration::ZERO;
            for _ in 0..10 {
                let began = Instant::now();
                soon("its turn", other.mutex("greedy").lock()).await.unwrap().release().await.unwrap();
                longest = longest.max(began.elapsed());
            }
            assert!(longest < Duration::from_secs(5), "{tasks} tasks, dropped {dropped}: {longest:?}");
            stop.store(true, Ordering::SeqCst);
            for worker in workers {
                soon("its end", worker).await.unwrap();
            }
        }
    }
}

/// A lock is passed on within a client without a call for a while. The server must know by then how long it has to wait for the one who
/// gets it so: here twelve times as long as for all before it.
#[tokio::test]
async fn who_gets_it_without_a_call_keeps_it_for_its_own_lease() {
    let (_server, url) = alone().await;
    let mut clients = Vec::new();
    soon("four who got it so", async {
        for round in 0.. {
            // On a machine that stands still for a second the first leases end: then that was no round.
            if let Some(passed) = pass_on(&url, &format!("passed/{round}")).await {
                clients.push(passed);
            }
            if clients.len() == 4 {
                break;
            }
        }
    })
    .await;
    // Longer than the server waits for who has one second.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    let other = connect(&url).await;
    for (_locks, store, place, token) in clients {
        let name = place.name.shown();
        let error = soon("a try", other.mutex(&name).try_lock()).await.unwrap_err();
        assert_eq!(error.holder().and_then(|holder| holder.token), Some(token), "{error}");
        assert_eq!(store.leave(&[place]).await.unwrap(), [Presence::There], "{name}");
    }
}

/// A client that passes a lock on to a ticket with a longer lease than it has told the server of, by a number that was for another one.
async fn pass_on(url: &str, name: &str) -> Option<(Locks, Arc<dyn Store>, Place, u64)> {
    let store = session(url).await;
    let locks = Locks::with_shared_store(store.clone());
    let enter = async |lease| {
        let mut ticket = ticket(name, WHOLE, WHOLE, true);
        ticket.lease = Duration::from_secs(lease);
        let place = ticket.place.clone();
        store.enter(&[ticket]).await.ok().map(|_| place)
    };
    let leave = async |place| store.leave(&[place]).await.ok().filter(|left| *left == [Presence::There]);
    let (first, second, third) = (enter(1).await?, enter(1).await?, enter(1).await?);
    // Numbers for both of them come at once. One is left over: for somebody who came later.
    leave(first).await?;
    let fourth = enter(12).await?;
    leave(third).await?;
    leave(second).await?;
    match store.wait(&fourth, Moment::default()).await {
        Ok(Waited::Admitted { token }) => Some((locks, store.clone(), fourth, token)),
        _ => None,
    }
}

/// Connections end while locks go round, with leaves under way and numbers at hand. No number is given twice, nobody waits for ever,
/// and nothing stays taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_end_keep_no_lock_and_no_number_comes_twice() {
    let (server, url) = alone().await;
    let clients = [connect(&url).await, connect(&url).await];
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(HashSet::new())));
    let workers = (0..24).map(|i| {
        let (name, stop, seen) = (i % 3, stop.clone(), seen.clone());
        let mutex = clients[i / 12].mutex(&format!("ends/{name}"));
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                // Some give up while they wait.
                let limit = Duration::from_millis(if i == 0 { 10 } else { 60_000 });
                match mutex.lock_within(limit).await {
                    Ok(guard) => {
                        let token = guard.token().number();
                        assert!(seen.lock().unwrap().insert((name, token)), "{token} of {name} a second time");
                        // What became of it may not be known.
                        let _ = guard.release().await;
                    }
                    Err(error) => assert_ne!((error.kind(), i > 0), (ErrorKind::TimedOut, true), "{error}"),
                }
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    for round in 0..40 {
        let until = seen.lock().unwrap().len() + 20;
        soon("they go on", async {
            while seen.lock().unwrap().len() < until {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        end_some(&server, 1 + round % 4).await;
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        soon("its end", worker).await.unwrap();
    }
    let third = connect(&url).await;
    for i in 0..3 {
        soon("a lock", third.mutex(&format!("ends/{i}")).lock()).await.unwrap().release().await.unwrap();
    }
    soon("no row, and no flag", async {
        while left_behind(&server, &url).await != (0, 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
