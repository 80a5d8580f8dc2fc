//! What it costs: messages counted by the server, not timed.

use crate::server::Cluster;
use fencelock::Locks;
use std::sync::{Arc, Mutex};
use tokio::sync::Barrier;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_messages_for_a_cycle_that_nobody_contends() {
    let cluster = Cluster::one();
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    // The session's marker and its watch come a little later.
    crate::soon("the session is watched", || cluster.ctl(&["get", "--prefix", "%fencelock/"]).contains("session"))
        .await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let before = cluster.messages();
    for _ in 0..100 {
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    let spent = cluster.messages() - before;
    // A keep-alive every ten seconds may fall into it.
    assert!((200..=206).contains(&spent), "{spent} messages for 100 cycles");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_messages_at_most_for_a_cycle_however_many_wait() {
    // A thousand in a long run only: each of their enters may read a part of the line.
    let crowds: &[(usize, usize)] =
        if crate::rounds(2) == 2 { &[(10, 40), (64, 10), (100, 8), (1000, 3)] } else { &[(64, 10)] };
    for (waiters, rounds) in crowds {
        let cycle = cycle_with(4, *waiters, *rounds).await;
        println!("counted: {waiters} waiters in 4 clients: {cycle:.2} messages a cycle");
        assert!((1.0..=4.0).contains(&cycle), "{cycle} messages for each cycle of {waiters}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_for_a_hand_over_within_a_client() {
    let cycle = cycle_with(1, 64, 10).await;
    println!("counted: 64 waiters in 1 client: {cycle:.2} messages a cycle");
    // An enter and a leave each, and fewer where one takes the other along; three if the next one had to ask.
    assert!((1.0..=2.5).contains(&cycle), "{cycle} messages for each cycle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_for_a_hand_over_between_clients() {
    let cycle = cycle_with(4, 4, 60).await;
    println!("counted: 1 waiter in each of 4 clients: {cycle:.2} messages a cycle");
    assert!((2.0..=2.4).contains(&cycle), "{cycle} messages for each cycle: the next one had to ask");
}

/// Messages for each cycle, with so many waiters in so many clients.
async fn cycle_with(count: usize, waiters: usize, rounds: usize) -> f64 {
    let cluster = Cluster::one();
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(Locks::connect(&cluster.url()).await.unwrap());
    }
    for locks in &clients {
        locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    }
    let start = Arc::new(Barrier::new(waiters + 1));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..waiters {
        let (locks, start, tokens) = (clients[i % count].clone(), start.clone(), tokens.clone());
        tasks.push(tokio::spawn(async move {
            start.wait().await;
            for _ in 0..rounds {
                let guard = locks.mutex("hot").lock().await.unwrap();
                tokens.lock().unwrap().push(guard.token().number());
                guard.release().await.unwrap();
            }
        }));
    }
    let before = cluster.messages();
    start.wait().await;
    for task in tasks {
        task.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), waiters * rounds);
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens grow");
    (cluster.messages() - before) as f64 / (waiters * rounds) as f64
}
