//! A proxy in front of a server that cuts connections.

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy on a port of its own.
pub(crate) struct Proxy {
    port: u16,
    cut: watch::Sender<u64>,
}

impl Proxy {
    pub(crate) async fn before(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Proxy { port: listener.local_addr().expect("it is bound").port(), cut: watch::Sender::new(0) };
        let cut = proxy.cut.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut cut = cut.subscribe();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// Cuts every connection; new ones get through.
    pub(crate) fn cut_all(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}
