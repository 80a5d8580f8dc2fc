//! `?replicas=K`: a grant and a renewal count when K replicas have them.

use crate::server::Server;
use crate::support::{client, enter, inside, stands, ticket, within};
use crate::trio::Trio;
use fencelock::store::{Renew, Renewed};
use fencelock::{Effect, ErrorKind, Locks, Options, State};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn with_replicas() -> (Server, [Server; 2]) {
    let master = Server::start();
    let replicas = Server::replicas_of(&master);
    (master, replicas)
}

fn wanting(server: &Server, count: u32) -> String {
    format!("{}?replicas={count}", server.url())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_too_few_replicas_confirm_is_not_given_and_left_again() {
    let (master, replicas) = with_replicas();
    let (locks, _) = client(&wanting(&master, 2)).await;
    let (_plain, direct) = client(&master.url()).await;
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    replicas[1].signal("STOP");
    let error = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(2))).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    assert!(error.to_string().contains("1 of 2 replicas"), "{error}");
    stands(&direct, "a", 0, 0).await;
    // Whoever is content with one is not in its way.
    let one = Locks::connect(&wanting(&master, 1)).await.unwrap();
    let guard = one.mutex("a").lock().await.unwrap();
    // Held by somebody else: nothing was given, so nothing has to be confirmed.
    let error = locks.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    guard.release().await.unwrap();
    replicas[1].signal("CONT");
    within(SOON, "a lock that both confirm", async { while locks.mutex("a").lock().await.is_err() {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_too_few_replicas_confirm_is_lost_at_its_deadline() {
    let (master, replicas) = with_replicas();
    let (locks, store) = client(&wanting(&master, 2)).await;
    let lease = Duration::from_millis(1500);
    let guard = locks.mutex("a").lock_with(Options::new().lease(lease)).await.unwrap();
    replicas[0].signal("STOP");
    let last = guard.remaining();
    within(SOON, "the deadline", guard.lost()).await;
    assert!(last <= lease);
    assert_eq!(guard.state(), State::Lost);
    let other = ticket("b");
    let error = enter(&store, &other).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    replicas[0].signal("CONT");
    // Its effect was unknown, and known when it is asked for again.
    within(SOON, "an answer that both confirm", async { while enter(&store, &other).await.is_err() {} }).await;
    let renewal = [Renew { place: other.place.clone(), lease: Duration::from_secs(30), at_least: None }];
    assert!(matches!(store.renew(&renewal).await.unwrap()[0], Renewed::There { .. }));
    store.leave(&[other.place]).await.unwrap();
}

/// The grant was written by whoever left, on a connection that waits for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_by_somebody_else_counts_when_the_replicas_have_it() {
    let (master, replicas) = with_replicas();
    let (locks, _) = client(&wanting(&master, 2)).await;
    let (_plain, direct) = client(&master.url()).await;
    let holder = ticket("a");
    let token = inside(&enter(&direct, &holder).await.unwrap());
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    stands(&direct, "a", 1, 1).await;
    replicas[0].signal("STOP");
    direct.leave(&[holder.place]).await.unwrap();
    stands(&direct, "a", 1, 0).await;
    // It has been let in and told so; there is no event to wait for that must not come.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "one replica has not got it");
    replicas[0].signal("CONT");
    let guard = within(SOON, "the other replica", waiting).await.unwrap().unwrap();
    assert!(guard.token().number() > token);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_all_replicas_have_confirmed_outlives_the_master() {
    let mut trio = Trio::start().await;
    let url = format!("{}?replicas=2", trio.url());
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    trio.master.kill();
    // One replica is left to confirm.
    let other = Locks::connect(&trio.url()).await;
    let other = match other {
        Ok(other) => other,
        Err(_) => within(Duration::from_secs(30), "a new master", connect(&trio)).await,
    };
    let line = within(Duration::from_secs(30), "an answer", async {
        loop {
            match other.inspect("a").await {
                Ok(line) => return line,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    assert_eq!(line.inside.len(), 1, "{line:?}");
    assert_eq!(line.inside[0].token, Some(guard.token().number()));
    assert_ne!(guard.state(), State::Lost);
}

async fn connect(trio: &Trio) -> Locks {
    loop {
        if let Ok(locks) = Locks::connect(&trio.url()).await {
            return locks;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_number_that_makes_no_sense_is_told() {
    for odd in ["0", "-1", "all", "1000", ""] {
        let error = Locks::connect(&format!("redis://127.0.0.1:1?replicas={odd}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{odd}: {error}");
    }
}
