//! What it costs: requests as the server itself counts them, not timed.

use crate::server::Server;
use crate::within;
use fencelock::Locks;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Barrier;

/// Where a server tells what it does.
struct Counters(UdpSocket);

impl Counters {
    fn new() -> (Counters, String) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let port = socket.local_addr().expect("it is bound").port();
        (Counters(socket), format!(r#"telemetry {{ statsd_address = "127.0.0.1:{port}" disable_hostname = true }}"#))
    }

    /// The requests that were told since the last call, by what they were; ends when none is told for a while. The server tells
    /// of other things all the time.
    fn requests(&self) -> Vec<String> {
        let (mut told, mut latest) = (Vec::new(), Instant::now());
        let mut packet = vec![0; 65_536];
        self.0.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        while latest.elapsed() < Duration::from_secs(1) {
            let Ok(length) = self.0.recv(&mut packet) else { continue };
            let text = String::from_utf8_lossy(&packet[..length]).into_owned();
            let requests = text.lines().filter_map(|line| line.split_once("http.")?.1.split_once(':'));
            let before = told.len();
            told.extend(requests.map(|(what, _)| what.to_string()));
            if told.len() > before {
                latest = Instant::now();
            }
        }
        told
    }
}

pub(crate) async fn two_requests_for_a_cycle_that_nobody_contends() {
    let (counters, setting) = Counters::new();
    let server = Server::with(&[r#"session_ttl_min="1s""#, &setting]);
    let locks = Locks::connect(&server.url()).await.unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    counters.requests();
    let cycles = 50;
    for _ in 0..cycles {
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    let told = counters.requests();
    let transactions = told.iter().filter(|what| *what == "PUT.v1.txn").count();
    assert_eq!(transactions, 2 * cycles, "{told:?}");
    // A renewal every ten seconds may fall into it.
    assert!(told.len() <= transactions + 3, "{told:?}");
}

pub(crate) async fn everybody_gets_on_at_a_hot_name() {
    let server = Server::start();
    let (clients, each, rounds) = (4, 16, 3);
    let start = Arc::new(Barrier::new(clients * each));
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for client in 0..clients {
        let locks = Locks::connect(&server.url()).await.unwrap();
        for worker in 0..each {
            let (locks, start, order) = (locks.clone(), start.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                start.wait().await;
                for _ in 0..rounds {
                    let guard = locks.mutex("hot").lock().await.unwrap();
                    order.lock().unwrap().push((client * each + worker, guard.token().number()));
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        within(crate::LONG * 2, "three turns of everybody", task).await.unwrap();
    }
    let order = order.lock().unwrap();
    assert!(order.is_sorted_by(|a, b| a.1 < b.1), "in the order of the line");
    // Nobody comes twice before the others that had been waiting: everybody is among the first twice as many.
    let mut early: Vec<usize> = order.iter().take(2 * clients * each).map(|(worker, _)| *worker).collect();
    early.sort_unstable();
    early.dedup();
    assert_eq!(early.len(), clients * each, "every worker gets on");
}
