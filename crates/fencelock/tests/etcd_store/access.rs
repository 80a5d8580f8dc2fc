//! Users, rights, and TLS with a private authority and client certificates.

use crate::server::Cluster;
use crate::within;
use fencelock::{ErrorKind, Locks};
use fencelock_testkit::certificates;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_rights() {
    let cluster = Cluster::with(1, &["--bcrypt-cost", "4"]);
    for line in [
        "user add root:top",
        "user add locks:p@ss",
        "user add poor:p",
        "role add locks",
        "role add poor",
        "role grant-permission locks --prefix=true readwrite ok/",
        "role grant-permission locks --prefix=true readwrite %fencelock/",
        "role grant-permission poor --prefix=true readwrite ok/",
        "user grant-role root root",
        "user grant-role locks locks",
        "user grant-role poor poor",
        "auth enable",
    ] {
        cluster.ctl(&line.split(' ').collect::<Vec<_>>());
    }
    let hosts = cluster.hosts();
    let locks = Locks::connect(&format!("etcd://locks:p%40ss@{hosts}")).await.unwrap();
    let guard = locks.mutex("ok/a").lock().await.unwrap();
    let other = Locks::connect(&format!("etcd://poor:p@{hosts}")).await.unwrap();
    let mutex = other.mutex("ok/a");
    assert_eq!(mutex.try_lock().await.unwrap_err().kind(), ErrorKind::Held);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    guard.release().await.unwrap();
    let guard = within(Duration::from_secs(30), "the hand-over", waiting).await.unwrap().unwrap();

    // Without rights on the marker, the end of the session is noticed all the same.
    let lease = crate::faults::lease_of(&cluster, "ok/a", &["--user", "root:top"]);
    cluster.ctl(&["--user", "root:top", "lease", "revoke", &lease]);
    within(Duration::from_secs(8), "being told of the loss", guard.lost()).await;

    for (url, part) in [
        (format!("etcd://locks:wrong@{hosts}"), "user name or password"),
        (format!("etcd://nobody:x@{hosts}"), "user name or password"),
        (format!("etcd://{hosts}"), "wants a user name"),
    ] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    for locks in [&locks, &other] {
        let error = locks.mutex("elsewhere/a").lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("no rights"), "{error}");
        let error = locks.inspect("elsewhere/a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_authority_and_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let cluster = Cluster::with(
        1,
        &[
            "--cert-file",
            &file("server.crt"),
            "--key-file",
            &file("server.key"),
            "--trusted-ca-file",
            &file("ca.crt"),
            "--client-cert-auth",
        ],
    );
    let url = format!("etcds://localhost:{}", cluster.members[0].port);
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
        url.replace("etcds", "etcd"),
    ] {
        let error = Locks::connect(&bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{bad}: {error}");
    }
    for odd in [with(&[("ca", "ca.crt"), ("cert", "client.crt")]), with(&[("ca", "missing.crt")])] {
        let error = Locks::connect(&odd).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{odd}: {error}");
    }
}
