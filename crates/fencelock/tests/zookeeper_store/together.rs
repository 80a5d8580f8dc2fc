//! What is asked together travels together: seen by a relay that keeps answers back.

use crate::server::Server;
use fencelock::Locks;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How long an answer is kept back for another question. Systems confirm what they got after 40 ms without having said anything.
const KEPT: Duration = Duration::from_millis(25);

/// What came by on one connection.
#[derive(Clone, Copy, Default)]
struct Seen {
    questions: u64,
    answers: u64,
}

/// Counts the messages in what comes by, each with its length before it.
#[derive(Default)]
struct Messages(Vec<u8>);

impl Messages {
    fn add(&mut self, some: &[u8]) -> u64 {
        self.0.extend_from_slice(some);
        let mut count = 0;
        while let Some(length) = self.0.first_chunk::<4>().map(|length| u32::from_be_bytes(*length) as usize + 4)
            && self.0.len() >= length
        {
            self.0.drain(..length);
            count += 1;
        }
        count
    }
}

async fn ask(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, seen: Arc<watch::Sender<Seen>>) {
    let (mut buffer, mut messages) = (vec![0; 64 * 1024], Messages::default());
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // As a server that confirms with its answer.
        let _ = rustix::net::sockopt::set_tcp_quickack(from.as_ref(), false);
        let count = messages.add(&buffer[..read]);
        seen.send_modify(|seen| seen.questions += count);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Counts in `together` the answers that were passed on when two questions were open.
async fn answer(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    seen: Arc<watch::Sender<Seen>>,
    together: Arc<AtomicU64>,
) {
    let (mut buffer, mut messages) = (vec![0; 64 * 1024], Messages::default());
    let mut asked = seen.subscribe();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let two = asked.wait_for(|seen| seen.questions >= seen.answers + 2);
        let two = tokio::time::timeout(KEPT, two).await.is_ok();
        together.fetch_add(u64::from(two), Ordering::SeqCst);
        let count = messages.add(&buffer[..read]);
        seen.send_modify(|seen| seen.answers += count);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_and_the_list_behind_it_are_one_round_trip() {
    let server = Server::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("zookeeper://{}", listener.local_addr().unwrap());
    let together = Arc::new(AtomicU64::new(0));
    let (port, counted) = (server.port(), together.clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let seen = Arc::new(watch::Sender::new(Seen::default()));
            tokio::spawn(ask(from_client, to_server, seen.clone()));
            tokio::spawn(answer(from_server, to_client, seen, counted.clone()));
        }
    });
    let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    let cycle = || async {
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
        // A line that nobody else uses would not be read.
        other.mutex("a").lock().await.unwrap().release().await.unwrap();
    };
    // The first packets of a connection are confirmed at once by every system.
    for _ in 0..30 {
        cycle().await;
    }
    let before = together.load(Ordering::SeqCst);
    for _ in 0..20 {
        cycle().await;
    }
    let together = together.load(Ordering::SeqCst) - before;
    assert!(together >= 15, "only {together} of 20 locks asked both before the first answer");
    locks.close().await;
}
