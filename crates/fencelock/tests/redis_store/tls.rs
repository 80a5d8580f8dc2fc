//! TLS with a private authority and client certificates, and a server behind a socket file.

use crate::server::{Server, free_port};
use crate::support::soon;
use fencelock::{ErrorKind, Locks};
use fencelock_testkit::certificates;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_authority_and_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let port = free_port();
    let _server = Server::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-ca-cert-file",
        &file("ca.crt"),
        "--tls-cert-file",
        &file("server.crt"),
        "--tls-key-file",
        &file("server.key"),
    ]);
    let url = format!("rediss://localhost:{port}");
    let with = |options: &[(&str, &str)]| {
        let options: Vec<String> = options.iter().map(|(key, name)| format!("{key}={}", file(name))).collect();
        format!("{url}?{}", options.join("&"))
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
    }
    for odd in [with(&[("ca", "ca.crt"), ("cert", "client.crt")]), with(&[("ca", "missing.crt")])] {
        let error = Locks::connect(&odd).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{odd}: {error}");
    }
}

/// A server or sentinel that speaks nothing but TLS: what a command line needs for that.
fn tls_arguments(port: u16, file: impl Fn(&str) -> String) -> Vec<String> {
    let files = [("ca-cert-file", "ca.crt"), ("cert-file", "server.crt"), ("key-file", "server.key")];
    let mut arguments = vec!["--tls-port".into(), port.to_string(), "--tls-replication".into(), "yes".into()];
    arguments.extend(files.iter().flat_map(|(option, name)| [format!("--tls-{option}"), file(name)]));
    arguments
}

/// Sentinel and master over TLS, with a private authority; a switch to a replica included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_their_master_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (master_port, replica_port, sentinel_port) = (free_port(), free_port(), free_port());
    let start = |port: u16, more: &[&str]| {
        let arguments = tls_arguments(port, file);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Server::with(&arguments)
    };
    let mut master = start(master_port, &[]);
    let replica = start(replica_port, &["--replicaof", "127.0.0.1", &master_port.to_string()]);
    let sentinel = Server::sentinel(master_port, &tls_arguments(sentinel_port, file));
    soon("a replica that the sentinel knows", || {
        let facts: Vec<String> = sentinel.command(&["SENTINEL", "MASTER", "locks"]);
        facts.chunks(2).any(|pair| pair[0] == "num-slaves" && pair[1] == "1")
    })
    .await;

    let secrets = format!("ca={}&cert={}&key={}", file("ca.crt"), file("client.crt"), file("client.key"));
    let url = format!("rediss+sentinel://127.0.0.1:{sentinel_port}/locks?{secrets}");
    // A busy machine may take longer for a handshake than one sentinel is given.
    let limit = Instant::now() + Duration::from_secs(30);
    let locks = loop {
        match Locks::connect(&url).await {
            Ok(locks) => break locks,
            Err(error) => assert!(Instant::now() < limit, "{error}"),
        }
    };
    assert_eq!(locks.info().address, format!("rediss+sentinel://127.0.0.1:{sentinel_port}/locks"));
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    // In the clear nothing is said.
    let error = Locks::connect(&format!("redis+sentinel://127.0.0.1:{sentinel_port}/locks")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let wrong = url.replace("ca.crt", "other.crt");
    let error = Locks::connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    master.kill();
    let limit = Instant::now() + Duration::from_secs(30);
    let next = loop {
        match locks.mutex("a").lock().await {
            Ok(guard) => break guard,
            Err(error) => assert!(Instant::now() < limit, "no new master: {error}"),
        }
    };
    assert!(next.token() > token);
    drop((next, replica));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_behind_a_socket_file() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let server = Server::with(&["--unixsocket", &socket.to_string_lossy()]);
    let url = format!("redis+unix://{}?db=3", socket.display());
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(locks.info().address, format!("redis+unix://{}?db=3", socket.display()));
    assert_eq!(server.command::<Vec<String>>(&["KEYS", "*"]), Vec::<String>::new(), "another database");
    let other = Locks::connect(&format!("{}/3", server.url())).await.unwrap();
    assert_eq!(other.mutex("a").try_lock().await.unwrap_err().kind(), ErrorKind::Held);
    guard.release().await.unwrap();
}
