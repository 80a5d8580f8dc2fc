//! What it costs: requests counted at the server, not timed.

use crate::server::Server;
use crate::support::{client, enter, inside, queued, soon, ticket};
use fencelock::store::Place;
use fencelock::{Locks, Options};
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

const TASKS: usize = 16;
const ROUNDS: usize = 25;

/// Lock and release one name, all at once.
async fn contend(locks: &Locks, tasks: usize, rounds: usize) {
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let mutex = locks.mutex("hot");
        all.spawn(async move {
            for _ in 0..rounds {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
}

/// What each of the other processes does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "another test starts it, in a process of its own"]
async fn the_part_of_another_process() {
    let url = std::env::var("FENCELOCK_TEST_URL").expect("whoever starts this says where the server is");
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    contend(&locks, TASKS, ROUNDS).await;
}

#[test]
fn two_requests_for_a_cycle_with_64_waiters_in_4_processes() {
    let server = Server::start();
    let program = std::env::current_exe().unwrap();
    let start = || {
        Command::new(&program)
            .args(["--exact", "cost::the_part_of_another_process", "--ignored", "--nocapture"])
            .env("FENCELOCK_TEST_URL", server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut processes: Vec<_> = (0..4).map(|_| start()).collect();
    for process in &mut processes {
        let said = BufReader::new(process.stdout.as_mut().unwrap());
        assert!(said.lines().any(|line| line.unwrap() == "ready"), "it ended early");
    }
    let before = server.requests();
    for process in &mut processes {
        process.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
    let cycle = (server.requests() - before) as f64 / (4 * TASKS * ROUNDS) as f64;
    assert!((2.0..=2.05).contains(&cycle), "{cycle} requests for each cycle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requests_for_a_cycle_with_1000_waiters() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    let before = server.requests();
    contend(&locks, 1_000, 3).await;
    let cycle = (server.requests() - before) as f64 / 3_000.0;
    assert!((2.0..=2.05).contains(&cycle), "{cycle} requests for each cycle");
}

/// A release is told once to each process that waits beside the queue, and one of its waiters tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_beside_the_queue_tries_once_for_each_release() {
    let server = Server::start();
    let holding = Locks::connect(&server.url()).await.unwrap();
    for processes in [1, 2] {
        let mut guard = Some(holding.mutex("hot").lock().await.unwrap());
        let mut clients = Vec::new();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..processes {
            let locks = Locks::connect(&server.url()).await.unwrap();
            for _ in 0..16 {
                let mutex = locks.mutex("hot");
                waiting.spawn(async move {
                    let guard = mutex.lock_with(Options::new().unfair()).await.unwrap();
                    // Long enough for others to hear that somebody got in.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    guard.release().await.unwrap();
                });
            }
            clients.push(locks);
        }
        let listening = || {
            let told: (String, u64) = server.command(&["PUBSUB", "NUMSUB", "fencelock:{hot}:changes"]);
            told.1
        };
        soon("all of them listen", || listening() == processes).await;
        // Each has tried, and one of each process once more when it began to listen.
        let mut calm = (server.requests(), Instant::now());
        soon("all of them wait", || {
            let sent = server.requests();
            if sent != calm.0 {
                calm = (sent, Instant::now());
            }
            calm.1.elapsed() > Duration::from_millis(300)
        })
        .await;
        let before = server.requests();
        guard.take().unwrap().release().await.unwrap();
        while let Some(done) = waiting.join_next().await {
            done.unwrap();
        }
        let (sent, releases) = (server.requests() - before, 16 * processes + 1);
        let most = releases + releases * processes;
        assert!(sent <= most + most / 20, "{sent} requests for {releases} releases to {processes} processes");
    }
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

/// How many requests are sent in 12 s. Where a busy machine makes renewals fail and be sent again, the next 12 s count.
async fn sent_in_12s(server: &Server, expected: RangeInclusive<u64>) {
    let mut sent = Vec::new();
    for _ in 0..4 {
        let before = server.requests();
        tokio::time::sleep(Duration::from_secs(12)).await;
        sent.push(server.requests() - before);
        if expected.contains(&sent[sent.len() - 1]) {
            return;
        }
    }
    panic!("{sent:?} requests in 12 s each, {expected:?} would be right");
}

/// Those who wait cost their renewals and nothing else: in 12 s there are two rounds of them at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_waiters_send_a_request_in_two_seconds_at_most() {
    let server = Server::start();
    let (holding, locks) = (Locks::connect(&server.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    let hour = Options::new().lease(Duration::from_secs(3600));
    let _holder = holding.mutex("hot").lock_with(hour).await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let mutex = locks.mutex("hot");
        waiting.spawn(async move { mutex.lock().await });
    }
    soon("all of them wait", || server.command::<u64>(&["ZCARD", "fencelock:{hot}:q"]) == 1_000).await;
    sent_in_12s(&server, 2..=6).await;
    assert_eq!(server.command::<u64>(&["ZCARD", "fencelock:{hot}:q"]), 1_000);
}

/// Five hundred renewals a request: 10,000 holds (in `cargo xtask soak`) are 20 requests in about nine seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_holders_send_four_requests_a_second_at_most() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let each = if std::env::var_os("FENCELOCK_SOAK").is_some() { 200 } else { 40 };
    let mut holding = tokio::task::JoinSet::new();
    for task in 0..50 {
        let locks = locks.clone();
        holding.spawn(async move {
            let mut guards = Vec::new();
            for lock in 0..each {
                guards.push(locks.mutex(&format!("held/{task}/{lock}")).lock().await.unwrap());
            }
            guards
        });
    }
    let mut guards = Vec::new();
    while let Some(held) = holding.join_next().await {
        guards.extend(held.unwrap());
    }
    assert_eq!(guards.len(), 50 * each);
    let round = guards.len() as u64 / 500;
    sent_in_12s(&server, round..=round * 24 / 10).await;
    // Left behind: the server goes, and thousands of releases would only be waited for.
    guards.into_iter().for_each(std::mem::forget);
}
