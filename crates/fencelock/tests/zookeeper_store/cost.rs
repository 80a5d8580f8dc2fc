//! What it costs: packets counted at the server, not timed.

use crate::server::Server;
use crate::support::soon;
use fencelock::Locks;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Barrier;

/// Packets that the server has received, without those that ask for it, and when.
fn packets(server: &Server) -> (u64, Instant) {
    (server.number("zk_packets_received"), Instant::now())
}

/// What `clients` sessions may send by themselves in this time: pings, signs of life, comparisons.
fn upkeep(since: Instant, clients: u32) -> f64 {
    f64::from(clients) * (2.0 + since.elapsed().as_secs_f64() * 2.5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_packets_for_a_cycle_where_nobody_else_is() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    // The line is read twice, and its node watched.
    for _ in 0..2 {
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    let (before, started) = packets(&server);
    for _ in 0..200 {
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    let sent = (packets(&server).0 - before) as f64;
    assert!(sent >= 400.0, "{sent}");
    assert!(sent <= 401.0 + upkeep(started, 1), "{sent} packets for 200 cycles in {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_packets_for_a_cycle_in_turns_with_others_or_of_a_name_used_once() {
    let server = Server::start();
    let (locks, other) = (Locks::connect(&server.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    for locks in [&locks, &other] {
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    let (before, started) = packets(&server);
    for _ in 0..100 {
        for locks in [&locks, &other] {
            locks.mutex("a").lock().await.unwrap().release().await.unwrap();
        }
    }
    let sent = (packets(&server).0 - before) as f64;
    assert!(sent >= 600.0, "{sent}");
    assert!(sent <= 601.0 + upkeep(started, 2), "{sent} packets for 200 cycles in {:?}", started.elapsed());
    // Its node has to be made: a create in vain, one more, and the list behind each.
    let (before, started) = packets(&server);
    for i in 0..50 {
        locks.mutex(&format!("once-{i}")).lock().await.unwrap().release().await.unwrap();
    }
    let sent = (packets(&server).0 - before) as f64;
    assert!(sent <= 50.0 * 6.0 + 1.0 + upkeep(started, 2), "{sent} packets for 50 names");
}

/// Packets for each cycle, with so many waiters in so many clients.
async fn cycle_with(clients: usize, waiters: usize, rounds: u32) -> f64 {
    let server = Server::start();
    let mut all = Vec::new();
    for _ in 0..clients {
        let locks = Locks::connect(&server.url()).await.unwrap();
        // Its session is open from now on, and the line's node there.
        locks.mutex("hot").lock().await.unwrap().release().await.unwrap();
        all.push(locks);
    }
    let start = Arc::new(Barrier::new(waiters + 1));
    let mut tasks = Vec::new();
    for i in 0..waiters {
        let (locks, start) = (all[i % clients].clone(), start.clone());
        tasks.push(tokio::spawn(async move {
            start.wait().await;
            for _ in 0..rounds {
                locks.mutex("hot").lock().await.unwrap().release().await.unwrap();
            }
        }));
    }
    let (before, started) = packets(&server);
    start.wait().await;
    for task in tasks {
        task.await.unwrap();
    }
    let sent = (packets(&server).0 - before) as f64 - upkeep(started, u32::try_from(clients).unwrap());
    sent / (waiters as f64 * f64::from(rounds))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_packets_for_a_cycle_however_many_wait() {
    let four = cycle_with(4, 64, 10).await;
    println!("64 waiters in 4 clients: {four:.2} packets a cycle");
    assert!(four <= 4.5, "{four} packets for each cycle of 64 in 4 clients");
    let many = cycle_with(16, 16, 20).await;
    println!("16 waiters in 16 clients: {many:.2} packets a cycle");
    assert!(many <= 6.0, "{many} packets for each cycle of 16 in 16 clients");
    let one = cycle_with(1, 200, 2).await;
    println!("200 waiters in 1 client: {one:.2} packets a cycle");
    assert!(one <= 4.0, "{one} packets for each cycle of 200 in one client");
    if crate::faults::rounds() == 1 {
        return;
    }
    // A long run: the packets stay the same, only the lists of children that some of them bring grow.
    for (waiters, rounds) in [(10, 40), (100, 8), (1000, 3)] {
        let cycle = cycle_with(4, waiters, rounds).await;
        println!("counted: {waiters} waiters in 4 clients: {cycle:.2} packets a cycle");
        assert!(cycle <= 5.0, "{cycle} packets for each cycle of {waiters} in 4 clients");
    }
}

/// The sessions that watch each path, as `wchp` tells them.
fn watchers(server: &Server) -> Vec<(String, usize)> {
    let mut paths: Vec<(String, usize)> = Vec::new();
    for line in server.ask("wchp").unwrap_or_default().lines() {
        match (line.starts_with('/'), paths.last_mut()) {
            (true, _) => paths.push((line.trim().to_string(), 0)),
            (false, Some(last)) if line.trim().starts_with("0x") => last.1 += 1,
            _ => {}
        }
    }
    paths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_is_watched_by_two_that_exclude_each_other() {
    let server = Server::start();
    let holder = Locks::connect(&server.url()).await.unwrap();
    let guard = holder.mutex("a").lock().await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let locks = Locks::connect(&server.url()).await.unwrap();
        tasks.push(tokio::spawn(async move {
            // Two in each client: they share one watch.
            let (mutex, other) = (locks.mutex("a"), locks.mutex("a"));
            let one = async { mutex.lock().await.unwrap().release().await.unwrap() };
            let two = async { other.lock().await.unwrap().release().await.unwrap() };
            tokio::join!(one, two);
        }));
    }
    soon("all of them watch", || watchers(&server).len() == 8).await;
    let inside = holder.inspect("a").await.unwrap();
    assert_eq!((inside.inside.len(), inside.waiting.len()), (1, 16));
    let watched = watchers(&server);
    assert!(watched.iter().all(|(path, by)| *by == 1 && path.contains("-lock-")), "{watched:?}");
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_watch_the_writer_and_nobody_watches_readers_but_a_writer() {
    let server = Server::start();
    let holder = Locks::connect(&server.url()).await.unwrap();
    let writer = holder.rwlock("a").write().await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let locks = Locks::connect(&server.url()).await.unwrap();
        tasks.push(tokio::spawn(async move { locks.rwlock("a").read().await.unwrap().release().await.unwrap() }));
    }
    soon("all of them watch", || watchers(&server).iter().map(|(_, by)| by).sum::<usize>() == 4).await;
    let watched = watchers(&server);
    assert!(watched.len() == 1 && watched[0].0.contains("-__WRIT__"), "{watched:?}");
    writer.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
}
