//! TLS with a private authority and client certificates, on a server that wants them.

use crate::server::{Server, free_port};
use crate::support::soon;
use fencelock::{ErrorKind, Locks};
use fencelock_testkit::certificates;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_authority_and_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let port = free_port();
    let (port_line, key, trust) = (
        format!("secureClientPort={port}"),
        format!("ssl.keyStore.location={}", file("server.pem")),
        format!("ssl.trustStore.location={}", file("ca.crt")),
    );
    let lines = [
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        &port_line,
        &key,
        "ssl.keyStore.type=PEM",
        &trust,
        "ssl.trustStore.type=PEM",
        "ssl.clientAuth=need",
    ];
    // The certificates are not in the address book of this machine; the server looks its clients up there otherwise.
    let _server = Server::with(&lines, &["-Dzookeeper.ssl.hostnameVerification=false"]);
    // The second port comes up behind the first.
    soon("the port is open", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
    let with = |options: &[(&str, &str)]| {
        let options: Vec<String> = options.iter().map(|(key, name)| format!("{key}={}", file(name))).collect();
        format!("zookeeper://localhost:{port}?{}", options.join("&"))
    };
    let good = with(&[("ca", "ca.crt"), ("cert", "client.crt"), ("key", "client.key")]);
    let locks = Locks::connect(&good).await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let other = Locks::connect(&good).await.unwrap();
    let mutex = other.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();

    for bad in [
        with(&[("ca", "ca.crt")]),
        with(&[("ca", "other.crt"), ("cert", "client.crt"), ("key", "client.key")]),
        with(&[("ca", "ca.crt"), ("cert", "other.crt"), ("key", "other.key")]),
    ] {
        let error = Locks::connect(&bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{bad}: {error}");
        assert!(error.to_string().contains("certificates"), "{error}");
    }
    for odd in [with(&[("ca", "ca.crt"), ("cert", "client.crt")]), with(&[("ca", "missing.crt")])] {
        let error = Locks::connect(&odd).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{odd}: {error}");
    }
}
