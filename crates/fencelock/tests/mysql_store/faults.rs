//! What goes wrong, and what becomes of locks then.

use crate::full::Small;
use crate::server::Server;
use crate::{fresh, open, soon, ticket, try_open};
use fencelock::line::WHOLE;
use fencelock::store::Store;
use fencelock::{Effect, ErrorKind, Locks, State};
use mysql_async::prelude::Queryable;
use std::time::Duration;

#[tokio::test]
async fn killed_connections_are_opened_again() {
    let server = tokio::task::spawn_blocking(|| Server::start(&[])).await.unwrap();
    let locks = Locks::connect(&server.url(&server.database().await)).await.unwrap();
    let guard = locks.mutex("kept").lock().await.unwrap();
    let token = guard.token();
    let mut sql = server.sql("mysql").await;
    for round in 0..5 {
        let others = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'";
        for id in sql.query::<u64, _>(others).await.unwrap() {
            // It may have ended by itself.
            let _ = sql.query_drop(format!("KILL {id}")).await;
        }
        let other = soon("another lock", locks.mutex("other").lock()).await.unwrap_or_else(|e| panic!("{round}: {e}"));
        soon("its release", other.release()).await.unwrap();
    }
    soon("a renewal", async {
        while guard.state() != State::Safe {
            assert_ne!(guard.state(), State::Lost);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(locks.inspect("kept").await.unwrap().inside[0].token, Some(token.into()));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_comes_back_still_has_its_tickets() {
    let server = tokio::task::spawn_blocking(|| Server::start(&[])).await.unwrap();
    let url = server.url(&server.database().await);
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("kept").lock().await.unwrap();
    let other = Locks::connect(&url).await.unwrap();
    let waiting = tokio::spawn({
        let mutex = other.mutex("kept");
        async move { mutex.lock().await }
    });
    soon("a place in the line", async {
        while locks.inspect("kept").await.unwrap().waiting.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    server.stop("TERM");
    let error = soon("an error", locks.mutex("new").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.run(&[]);
    let token = guard.token();
    soon("the release", guard.release()).await.unwrap();
    let next = soon("the next one", waiting).await.unwrap().unwrap();
    assert!(u64::from(next.token()) > u64::from(token));
}

#[tokio::test]
async fn a_read_only_server_is_an_error_without_effect() {
    let server = tokio::task::spawn_blocking(|| Server::start(&[])).await.unwrap();
    let url = server.url(&server.database().await);
    let mut sql = server.sql("mysql").await;
    open(&url).await;
    sql.query_drop("CREATE USER ann@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO ann@'%'").await.unwrap();
    sql.query_drop("SET GLOBAL read_only = 1").await.unwrap();
    let store = try_open(&url.replace("root", "ann"), &[]).await.unwrap();
    let error = store.enter(&[ticket("x", 1, WHOLE, true)]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
}

#[tokio::test]
async fn a_missing_table_or_database_is_told() {
    let (server, url) = fresh().await;
    let store = open(&url).await;
    let database = url.rsplit('/').next().unwrap();
    // Who is alone needs no other table than that of the lines.
    store.enter(&[ticket("x", 1, WHOLE, true)]).await.unwrap();
    for table in ["fencelock_ticket", "fencelock_line"] {
        server.sql(database).await.query_drop(format!("DROP TABLE {table}")).await.unwrap();
        let error = store.enter(&[ticket("x", 1, WHOLE, true)]).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Broken, Effect::None), "{error}");
    }
    let error = try_open(&server.url("nowhere"), &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// Enters lines with long reasons until the disk takes no more: one clear error, no grant without a ticket, and it goes on when
/// there is room again.
#[tokio::test]
async fn a_full_disk_is_told_and_grants_nothing() {
    let Some(small) = Small::mount("300m") else { return };
    let folder = small.folder();
    let server = tokio::task::spawn_blocking(move || Server::start_in(folder, &[])).await.unwrap();
    let url = server.url(&server.database().await);
    let locks = Locks::connect(&url).await.unwrap();
    let store = open(&url).await;
    let guard = locks.mutex("kept").lock().await.unwrap();
    small.fill();
    let mut entered = 0;
    let (refused, error) = soon("no room", async {
        loop {
            let mut batch: Vec<_> =
                (0..50).map(|i| ticket(&format!("line/{entered}/{i}"), WHOLE, WHOLE, true)).collect();
            batch.iter_mut().for_each(|one| one.note.reason = Some("x".repeat(400).into()));
            match store.enter(&batch).await {
                Ok(_) => entered += 1,
                Err(error) => break (batch, error),
            }
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    small.empty();
    soon("nothing of it is there", async {
        for one in &refused {
            // Of an error without an answer it is not known before the server has looked through what it has.
            while let Err(error) = store.inspect(&one.place.name).await {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let inside = store.inspect(&one.place.name).await.unwrap().inside;
            assert!(inside.is_empty() || error.effect() == Effect::Unknown, "{error}: {inside:?}");
        }
    })
    .await;
    for i in 0..entered {
        let name = ticket(&format!("line/{i}/0"), WHOLE, WHOLE, true).place.name;
        assert_eq!(store.inspect(&name).await.unwrap().inside.len(), 1, "what was granted is there");
    }
    soon("a grant", async { while store.enter(&[ticket("later", WHOLE, WHOLE, true)]).await.is_err() {} }).await;
    assert_ne!(guard.state(), State::Lost);
    assert_eq!(locks.inspect("kept").await.unwrap().inside[0].token, Some(guard.token().number()));
}
