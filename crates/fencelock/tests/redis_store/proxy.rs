//! A proxy in front of a server that loses replies, holds them back, delays them, or cuts connections. A cut connection is
//! reset, as by a host that has crashed and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Default)]
struct Orders {
    /// The reply to the next script of a client without subscriptions is lost, and its connection with it.
    lose_next: AtomicBool,
    /// Replies to scripts of such clients that are asked from now on are held back until this ends.
    hold: watch::Sender<bool>,
    /// The same for whatever is sent to subscribers.
    hold_messages: watch::Sender<bool>,
    /// The next script is lost on its way to the server, and its connection with it.
    lose_request: AtomicBool,
    /// The next message to an inbox is lost, and nothing else.
    lose_message: AtomicBool,
    /// Nobody gets through.
    refuse: AtomicBool,
    /// Scripts that were passed on and whose reply was lost.
    lost: AtomicU64,
}

/// A proxy on a port of its own.
pub(crate) struct Proxy {
    port: u16,
    orders: Arc<Orders>,
    /// Bumped to cut connections: those of subscribers, and all others.
    cut_subscribers: watch::Sender<u64>,
    cut_others: watch::Sender<u64>,
}

impl Proxy {
    pub(crate) async fn before(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Proxy {
            port: listener.local_addr().expect("it is bound").port(),
            orders: Arc::default(),
            cut_subscribers: watch::Sender::new(0),
            cut_others: watch::Sender::new(0),
        };
        let (orders, subscribers, others) =
            (proxy.orders.clone(), proxy.cut_subscribers.clone(), proxy.cut_others.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !orders.refuse.load(Ordering::SeqCst) {
                    let cuts = (subscribers.subscribe(), others.subscribe());
                    tokio::spawn(pass(client, port, orders.clone(), cuts));
                }
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn lose_next_reply(&self) {
        self.orders.lose_next.store(true, Ordering::SeqCst);
    }

    pub(crate) fn lost_replies(&self) -> u64 {
        self.orders.lost.load(Ordering::SeqCst)
    }

    pub(crate) fn hold_replies(&self, hold: bool) {
        self.orders.hold.send_replace(hold);
    }

    /// Renewals and messages come over the same connection.
    pub(crate) fn hold_messages(&self, hold: bool) {
        self.orders.hold_messages.send_replace(hold);
    }

    pub(crate) fn lose_next_request(&self) {
        self.orders.lose_request.store(true, Ordering::SeqCst);
    }

    pub(crate) fn lose_next_message(&self) {
        self.orders.lose_message.store(true, Ordering::SeqCst);
    }

    /// Whether the message that was to be lost is.
    pub(crate) fn has_lost_a_message(&self) -> bool {
        !self.orders.lose_message.load(Ordering::SeqCst)
    }

    pub(crate) fn cut_subscribers(&self) {
        self.cut_subscribers.send_modify(|cuts| *cuts += 1);
    }

    pub(crate) fn cut_all(&self) {
        self.cut_subscribers();
        self.cut_others.send_modify(|cuts| *cuts += 1);
    }

    pub(crate) fn refuse(&self, refuse: bool) {
        self.orders.refuse.store(refuse, Ordering::SeqCst);
    }
}

async fn pass(
    client: TcpStream,
    port: u16,
    orders: Arc<Orders>,
    (mut subscribers, mut others): (watch::Receiver<u64>, watch::Receiver<u64>),
) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true), client.set_zero_linger());
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let subscriber = Arc::new(AtomicBool::new(false));
    let losing = Arc::new(AtomicBool::new(false));
    let held = Arc::new(AtomicBool::new(false));
    let up = {
        let (orders, subscriber, losing, held) = (orders.clone(), subscriber.clone(), losing.clone(), held.clone());
        async move {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                let said = &buffer[..read];
                let says = |word: &[u8]| said.windows(word.len()).any(|part| part == word);
                if says(b"SUBSCRIBE") {
                    subscriber.store(true, Ordering::SeqCst);
                }
                let script = says(b"EVALSHA") && !subscriber.load(Ordering::SeqCst);
                if script && orders.lose_request.swap(false, Ordering::SeqCst) {
                    return;
                }
                if script && orders.lose_next.swap(false, Ordering::SeqCst) {
                    losing.store(true, Ordering::SeqCst);
                }
                if script && *orders.hold.borrow() {
                    held.store(true, Ordering::SeqCst);
                }
                if to_server.write_all(said).await.is_err() {
                    return;
                }
            }
        }
    };
    let down = {
        let (subscriber, losing) = (subscriber.clone(), losing.clone());
        async move {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                if losing.load(Ordering::SeqCst) {
                    orders.lost.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if held.swap(false, Ordering::SeqCst) {
                    let _ = orders.hold.subscribe().wait_for(|hold| !hold).await;
                }
                if subscriber.load(Ordering::SeqCst) {
                    let _ = orders.hold_messages.subscribe().wait_for(|hold| !hold).await;
                    let said = &buffer[..read];
                    let says = |word: &[u8]| said.windows(word.len()).any(|part| part == word);
                    let message = says(b"\r\nmessage\r\n") && says(b"fencelock:inbox:");
                    if message && orders.lose_message.swap(false, Ordering::SeqCst) {
                        continue;
                    }
                }
                if to_client.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        }
    };
    let cut = async move {
        loop {
            tokio::select! {
                _ = subscribers.changed() => if subscriber.load(Ordering::SeqCst) { return },
                _ = others.changed() => if !subscriber.load(Ordering::SeqCst) { return },
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
        () = cut => {}
    }
}
