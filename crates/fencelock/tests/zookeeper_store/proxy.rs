//! A proxy in front of a server that can hold everything back, cut connections and refuse new ones.

use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the proxy does with what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes it on.
    Open,
    /// Keeps it, and the connections: as a network that loses everything.
    Silent,
    /// Closes all connections and lets no new ones in.
    Closed,
}

/// A proxy on a port of its own.
#[derive(Clone)]
pub(crate) struct Proxy {
    port: u16,
    mode: Arc<watch::Sender<Mode>>,
}

impl Proxy {
    pub(crate) async fn before(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Proxy {
            port: listener.local_addr().expect("it is bound").port(),
            mode: Arc::new(watch::Sender::new(Mode::Open)),
        };
        let mode = proxy.mode.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *mode.borrow() == Mode::Open {
                    tokio::spawn(pass(client, port, mode.subscribe()));
                } else if *mode.borrow() == Mode::Silent {
                    let mut mode = mode.subscribe();
                    tokio::spawn(async move {
                        let _client = client;
                        let _ = mode.wait_for(|mode| *mode != Mode::Silent).await;
                    });
                }
            }
        });
        proxy
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn pass(client: TcpStream, port: u16, mode: watch::Receiver<Mode>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut closed = mode.clone();
    // What was held back once is lost: a connection that was silent never speaks again.
    let held = async {
        let _ = closed.wait_for(|mode| *mode == Mode::Silent).await;
        let _ = closed.wait_for(|mode| *mode != Mode::Silent).await;
    };
    let mut cut = mode.clone();
    let cut = async move { drop(cut.wait_for(|mode| *mode == Mode::Closed).await) };
    tokio::select! {
        () = copy(from_client, to_server, mode.clone()) => {}
        () = copy(from_server, to_client, mode.clone()) => {}
        () = held => {}
        () = cut => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut mode: watch::Receiver<Mode>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let _ = mode.wait_for(|mode| *mode == Mode::Open).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
