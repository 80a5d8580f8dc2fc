//! TLS with a private authority, and passwords by SCRAM over it.

use crate::server::{Server, give_away};
use crate::soon;
use fencelock::{ErrorKind, Locks};
use fencelock_testkit::certificates;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

#[tokio::test]
async fn scram_over_tls_with_a_private_authority() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    // The server refuses a key that others may read, and may itself be another user than we are.
    std::fs::set_permissions(file("server.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    ["server.key", "server.crt"].iter().for_each(|name| give_away(dir.path().join(name).as_path()));
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (certificate, key) =
        (format!("ssl_cert_file={}", file("server.crt")), format!("ssl_key_file={}", file("server.key")));
    let server =
        Server::start(&["-c", "ssl=on", "-c", &certificate, "-c", &key, "-c", "password_encryption=scram-sha-256"]);
    let sql = server.sql().await;
    sql.batch_execute("CREATE ROLE ann LOGIN PASSWORD 'right'; GRANT CREATE ON DATABASE postgres TO ann")
        .await
        .unwrap();
    let rules = "hostssl all ann 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n";
    std::fs::write(server.folder().join("data/pg_hba.conf"), rules).unwrap();
    sql.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let url = |password: &str, options: &str| {
        format!("postgres://ann:{password}@127.0.0.1:{}/postgres?schema=tls&{options}", server.port)
    };
    let trusting = format!("sslmode=verify-full&sslrootcert={}", file("ca.crt"));
    soon("the rules", async {
        while Locks::connect(&url("right", "sslmode=disable")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;

    for mode in ["rows", "session"] {
        let good = url("right", &format!("{trusting}&mode={mode}"));
        let (locks, other) = (Locks::connect(&good).await.unwrap(), Locks::connect(&good).await.unwrap());
        let guard = locks.mutex("a").lock().await.unwrap();
        let mutex = other.mutex("a");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        guard.release().await.unwrap();
        soon("the hand-over", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    let encrypted = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_authid a ON a.rolname = 'ann' WHERE a.rolpassword LIKE 'SCRAM-SHA-256$%'";
    assert!(sql.query_one(encrypted, &[]).await.unwrap().get::<_, i64>(0) > 0, "the password is kept for SCRAM");

    let wrong = Locks::connect(&url("wrong", &trusting)).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    assert!(!format!("{wrong:?}").contains("wrong@"), "{wrong:?}");
    let plain = Locks::connect(&url("right", "sslmode=disable")).await.unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Denied, "{plain}");
    for distrusting in [format!("sslmode=verify-full&sslrootcert={}", file("other.crt")), "sslmode=verify-full".into()]
    {
        let error = Locks::connect(&url("right", &distrusting)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let missing = Locks::connect(&url("right", "sslmode=verify-full&sslrootcert=/no/such/file")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidInput, "{missing}");
}
