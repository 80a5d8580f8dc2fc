//! Tokens, rights, and TLS with a private authority and client certificates.

use crate::server::Server;
use crate::{LONG, within};
use fencelock::{ErrorKind, Locks};
use fencelock_testkit::certificates;

/// A token with these rules.
fn token(server: &Server, name: &str, rules: &str) -> String {
    let rules = rules.replace('"', "\\\"");
    let ask = |path: &str, body: &str| {
        let (status, answer) = server.request("PUT", path, body).expect("an answer");
        assert_eq!(status, 200, "{answer}");
        answer
    };
    ask("/v1/acl/policy", &format!(r#"{{"Name": "{name}", "Rules": "{rules}"}}"#));
    let made = ask("/v1/acl/token", &format!(r#"{{"Policies": [{{"Name": "{name}"}}]}}"#));
    let made: serde_json::Value = serde_json::from_str(&made).expect("an answer");
    made["SecretID"].as_str().expect("its secret").to_string()
}

pub(crate) async fn tokens_and_rights() {
    let root = "d9ab9c6e-6b62-4b0c-8a22-8d3f2f1f7a10";
    let server = Server::with_token(
        &[
            r#"session_ttl_min="1s""#,
            &format!(r#"acl {{ enabled = true default_policy = "deny" tokens {{ master = "{root}" }} }}"#),
        ],
        root,
    );
    let ours =
        token(&server, "ours", r#"key_prefix "ok/" { policy = "write" } session_prefix "" { policy = "write" }"#);
    let poor = token(&server, "poor", r#"key_prefix "ok/" { policy = "write" }"#);
    let host = format!("127.0.0.1:{}", server.port());
    let locks = Locks::connect(&format!("consul://{ours}@{host}")).await.unwrap();
    let guard = locks.mutex("ok/a").lock().await.unwrap();
    let other = Locks::connect(&format!("consul://{ours}@{host}")).await.unwrap();
    let mutex = other.mutex("ok/a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    fencelock_testkit::until_waiting(&locks, "ok/a", 1).await;
    guard.release().await.unwrap();
    within(LONG, "the hand-over", waiting).await.unwrap().unwrap().release().await.unwrap();

    let error = locks.mutex("elsewhere/a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("key:write"), "{error}");
    for url in [
        format!("consul://{poor}@{host}"),
        format!("consul://00000000-0000-0000-0000-000000000001@{host}"),
        format!("consul://{host}"),
    ] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("session:write"), "{error}");
        assert!(!error.to_string().contains(&poor) && !error.to_string().contains("0000-0000"), "{error}");
    }
}

pub(crate) async fn a_private_authority_and_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let server = Server::with(&[
        r#"session_ttl_min="1s""#,
        "ports { https = $HTTPS }",
        "verify_incoming_https = true",
        &format!(r#"ca_file = "{}""#, file("ca.crt")),
        &format!(r#"cert_file = "{}""#, file("server.crt")),
        &format!(r#"key_file = "{}""#, file("server.key")),
    ]);
    let url = format!("consuls://localhost:{}", server.https_port());
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
    fencelock_testkit::until_waiting(&locks, "a", 1).await;
    guard.release().await.unwrap();
    within(LONG, "the hand-over", waiting).await.unwrap().unwrap().release().await.unwrap();

    for bad in [
        with(&[("ca", "ca.crt")]),
        with(&[("ca", "other.crt"), ("cert", "client.crt"), ("key", "client.key")]),
        with(&[("ca", "ca.crt"), ("cert", "other.crt"), ("key", "other.key")]),
        url.clone(),
    ] {
        let error = Locks::connect(&bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{bad}: {error}");
    }
    for odd in [with(&[("ca", "ca.crt"), ("cert", "client.crt")]), with(&[("ca", "missing.crt")])] {
        let error = Locks::connect(&odd).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{odd}: {error}");
    }
}
