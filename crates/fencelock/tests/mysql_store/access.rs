//! TLS with a private authority.

use crate::server::{Server, give_away};
use crate::soon;
use fencelock::{ErrorKind, Locks};
use fencelock_testkit::certificates;
use mysql_async::prelude::Queryable;
use std::os::unix::fs::PermissionsExt;

#[tokio::test]
async fn tls_with_a_private_authority() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    ["server.key", "server.crt", "ca.crt"].iter().for_each(|name| give_away(dir.path().join(name).as_path()));
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = [("ca", "ca.crt"), ("cert", "server.crt"), ("key", "server.key")];
    let options: Vec<String> = options.iter().map(|(key, name)| format!("--ssl-{key}={}", file(name))).collect();
    let server =
        tokio::task::spawn_blocking(move || Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>()))
            .await
            .unwrap();
    let database = server.database().await;
    let mut sql = server.sql("mysql").await;
    sql.query_drop("CREATE USER ann@'%' IDENTIFIED BY 'right' REQUIRE SSL").await.unwrap();
    sql.query_drop(format!("GRANT ALL ON {database}.* TO ann@'%'")).await.unwrap();
    let url = |password: &str, options: &str| {
        format!("mysql://ann:{password}@127.0.0.1:{}/{database}?{options}", server.port)
    };
    let trusting = format!("tls=on&ca={}", file("ca.crt"));
    for mode in ["rows", "session"] {
        let good = url("right", &format!("{trusting}&mode={mode}"));
        let (locks, other) = (Locks::connect(&good).await.unwrap(), Locks::connect(&good).await.unwrap());
        let guard = locks.mutex("a").lock().await.unwrap();
        let mutex = other.mutex("a");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        guard.release().await.unwrap();
        soon("the hand-over", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    for denied in [url("right", "tls=off"), url("wrong", &trusting)] {
        let error = Locks::connect(&denied).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
    }
    for distrusting in [format!("tls=on&ca={}", file("other.crt")), "tls=on".into()] {
        let error = Locks::connect(&url("right", &distrusting)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}
