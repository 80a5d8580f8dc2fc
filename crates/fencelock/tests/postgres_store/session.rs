//! Locks that belong to a connection.

use crate::server::Server;
use crate::soon;
use fencelock::{ErrorKind, Locks, State};
use std::time::Duration;

async fn connect(server: &Server, schema: &str) -> Locks {
    Locks::connect(&format!("{}&mode=session", server.url(schema))).await.unwrap()
}

#[tokio::test]
async fn who_loses_the_connection_is_told_and_the_next_one_gets_in() {
    let server = Server::start(&[]);
    let (holder, other) = (connect(&server, "ended").await, connect(&server, "ended").await);
    let guard = holder.mutex("x").lock().await.unwrap();
    let token = guard.token();
    let error = other.mutex("x").try_lock().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.holder().and_then(|h| h.token)),
        (ErrorKind::Held, Some(token.number())),
        "{error}"
    );
    let sql = server.sql().await;
    let end = "SELECT pg_terminate_backend(l.pid) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = 'fencelock')";
    sql.execute(end, &[]).await.unwrap();
    soon("the loss", guard.lost()).await;
    assert_eq!(guard.state(), State::Lost);
    let next = soon("the next one", other.mutex("x").lock()).await.unwrap();
    assert!(next.token() > token);
    let again = soon("another name", holder.mutex("y").lock()).await.unwrap();
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_restarts_has_forgotten_and_everybody_knows() {
    let server = Server::start(&[]);
    let locks = connect(&server, "restart").await;
    let guard = locks.mutex("x").lock().await.unwrap();
    let token = guard.token();
    server.stop("INT");
    soon("the loss", guard.lost()).await;
    server.run(&[]);
    let next = soon("the next one", locks.mutex("x").lock()).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

#[tokio::test]
async fn a_silent_client_is_let_go_after_its_lease() {
    let server = Server::start(&[]);
    let locks = connect(&server, "silent").await;
    let lease = Duration::from_secs(2);
    let options = fencelock::Options::new().lease(lease);
    let guard = locks.mutex("x").lock_with(options).await.unwrap();
    let sql = server.sql().await;
    let two = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' GROUP BY pid HAVING count(*) = 2";
    let backend: i32 = soon("the lock, and the marker of its connection; the flag comes down", async {
        loop {
            if let Some(row) = sql.query_opt(two, &[]).await.unwrap() {
                return row.get(0);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1";
    // Renewed, it outlives its lease.
    tokio::time::sleep(lease + lease / 2).await;
    assert_eq!(guard.state(), State::Safe);
    guard.release().await.unwrap();
    // Silent, the connection ends, and with it everything of it.
    soon("the end of the connection", async {
        while sql.query_one(count, &[&backend]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let guard = soon("a lock on a new one", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
}

/// Another name has the key: it is told, and not taken for the same lock.
#[tokio::test]
async fn two_names_with_one_key_are_told_apart() {
    let server = Server::start(&[]);
    let locks = connect(&server, "keys").await;
    let key =
        "('x' || substr(encode(sha256('keys'::bytea || '\\x00'::bytea || 'x'::bytea), 'hex'), 1, 16))::bit(64)::bigint";
    let sql = server.sql().await;
    // Somebody else has it under another name: the lock, the marker of a connection that lives, and the row.
    sql.batch_execute(&format!(
        "SELECT pg_advisory_lock({key}), pg_advisory_lock(77);
         INSERT INTO keys.session VALUES ('other', '\\x01', NULL, {key}, 77, false, 1, now(), now(), '\\x02', 'h', 1, 'i', NULL, NULL)"
    ))
    .await
    .unwrap();
    for error in [
        soon("a try", locks.mutex("x").try_lock()).await.unwrap_err(),
        soon("a wait", locks.mutex("x").lock()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("other"), "{error}");
    }
    sql.batch_execute(&format!("DELETE FROM keys.session; SELECT pg_advisory_unlock({key})")).await.unwrap();
    soon("the lock", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn there_is_an_end_to_what_one_client_may_hold() {
    let server = Server::shared();
    let locks = connect(&server, &Server::schema()).await;
    let mut guards = Vec::new();
    let error = loop {
        match locks.mutex(&format!("many/{}", guards.len())).try_lock().await {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
        assert!(guards.len() <= 2000);
    };
    assert_eq!((guards.len(), error.kind()), (2000, ErrorKind::Unavailable), "{error}");
    assert!(error.to_string().contains("2000"), "{error}");
    drop(guards.pop());
    let one_more = soon("one more", locks.mutex("one/more").lock()).await.unwrap();
    one_more.release().await.unwrap();
}
