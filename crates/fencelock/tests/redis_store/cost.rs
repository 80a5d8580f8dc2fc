//! What it costs: requests counted at the server, not timed.

use crate::server::Server;
use crate::support::{client, enter, inside, queued, soon, ticket};
use fencelock::Locks;
use fencelock::store::Place;
use std::sync::Arc;
use tokio::sync::Barrier;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requests_for_a_cycle_that_nobody_contends() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let before = server.requests();
    for _ in 0..100 {
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    assert_eq!(server.requests() - before, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requests_for_ten_names_at_once() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let ten = || locks.all((0..10).map(|i| format!("n{i}")));
    ten().lock().await.unwrap().release().await.unwrap();
    let before = server.requests();
    for _ in 0..20 {
        let guard = ten().lock().await.unwrap();
        assert_eq!(guard.tokens().len(), 10);
        guard.release().await.unwrap();
    }
    assert_eq!(server.requests() - before, 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requests_for_a_cycle_however_many_wait() {
    let server = Server::start();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Locks::connect(&server.url()).await.unwrap());
    }
    for locks in &clients {
        locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    }
    let rounds = 25;
    let start = Arc::new(Barrier::new(65));
    let mut tasks = Vec::new();
    for i in 0..64 {
        let (locks, start) = (clients[i % 4].clone(), start.clone());
        tasks.push(tokio::spawn(async move {
            start.wait().await;
            for _ in 0..rounds {
                locks.mutex("hot").lock().await.unwrap().release().await.unwrap();
            }
        }));
    }
    let before = server.requests();
    start.wait().await;
    for task in tasks {
        task.await.unwrap();
    }
    let cycle = (server.requests() - before) as f64 / (64.0 * f64::from(rounds));
    assert!((2.0..=2.05).contains(&cycle), "{cycle} requests for each cycle");
}

/// The commands that the server carries out for one more enter and one hand-off, by how many wait.
async fn commands_with(waiting: usize) -> (u64, u64) {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    let holder = ticket("a");
    inside(&enter(&store, &holder).await.unwrap());
    let mut first = None;
    for chunk in (0..waiting).collect::<Vec<_>>().chunks(50) {
        let tickets: Vec<_> = chunk.iter().map(|_| ticket("a")).collect();
        let entered = futures_util::future::try_join_all(tickets.iter().map(|ticket| enter(&store, ticket))).await;
        for entered in entered.unwrap() {
            queued(&entered);
        }
        first.get_or_insert(tickets[0].place.clone());
    }
    let before = server.commands();
    let asking = server.commands() - before;
    let before = server.commands();
    queued(&enter(&store, &ticket("a")).await.unwrap());
    let enter_cost = server.commands() - before - asking;
    let before = server.commands();
    store.leave(&[holder.place]).await.unwrap();
    let leave_cost = server.commands() - before - asking;
    let line = store.inspect(&place_of(&first)).await.unwrap();
    assert_eq!((line.inside.len(), line.waiting.len()), (1, waiting));
    (enter_cost, leave_cost)
}

fn place_of(place: &Option<Place>) -> fencelock::name::Name {
    place.as_ref().expect("somebody waits").name.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_queue_costs_no_more_than_a_short_one() {
    let short = commands_with(10).await;
    assert_eq!(commands_with(1_000).await, short);
    assert_eq!(commands_with(10_000).await, short);
    assert!(short.0 <= 12 && short.1 <= 16, "{short:?} commands for an enter and a hand-off");
}

/// Those who wait cost their renewals and nothing else; those who hold as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_and_holding_cost_next_to_nothing() {
    let server = Server::start();
    let locks = Locks::builder(&server.url()).lease(std::time::Duration::from_secs(6)).connect().await.unwrap();
    let mut guards = Vec::new();
    for i in 0..500 {
        guards.push(locks.mutex(&format!("held/{i}")).lock().await.unwrap());
    }
    let _holder = locks.mutex("hot").lock().await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..500 {
        let mutex = locks.mutex("hot");
        waiting.spawn(async move { mutex.lock().await });
    }
    soon("all of them wait", || server.command::<u64>(&["ZCARD", "fencelock:{hot}:q"]) == 501).await;
    let before = server.requests();
    // Two to three rounds of renewals.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let sent = server.requests() - before;
    assert!((3..=12).contains(&sent), "{sent} requests in 5 s for 501 holds and 500 waiters");
    assert!(guards.iter().all(|guard| guard.state() == fencelock::State::Safe));
}
