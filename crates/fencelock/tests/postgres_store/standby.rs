//! A primary and a streaming standby: which of them is used, and what is left when the standby is promoted.

use crate::server::Server;
use crate::{soon, ticket, try_open};
use fencelock::line::WHOLE;
use fencelock::store::Store;
use fencelock::{Effect, ErrorKind, Locks, Options, State};
use std::time::Duration;

/// Both, and their URL, the standby first.
async fn pair() -> (Server, Server, String) {
    let (primary, standby) = tokio::task::spawn_blocking(|| {
        let primary = Server::start(&["-c", "synchronous_commit=remote_apply"]);
        let standby = Server::standby(&primary);
        (primary, standby)
    })
    .await
    .unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", standby.port, primary.port);
    let sql = primary.sql().await;
    soon("a standby that streams", async {
        let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        while sql.query_one(streaming, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    (primary, standby, url)
}

async fn promote(standby: &Server) {
    assert!(standby.sql().await.query_one("SELECT pg_promote()", &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_synchronous_standby_nothing_that_was_granted_is_lost() {
    let (primary, standby, url) = pair().await;
    let sql = primary.sql().await;
    sql.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await.unwrap();
    sql.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    soon("a synchronous standby", async {
        let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while sql.query_one(synchronous, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    // The standby alone is of no use.
    let alone = try_open(&standby, "fencelock", &[]).await.unwrap();
    let error = alone.enter(&[ticket("x", 1, WHOLE, true)]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");

    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(locks.mutex("again").lock().await.unwrap().token());
    }
    let guard = locks.mutex("kept").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    let waiting = tokio::spawn({
        let mutex = other.mutex("kept");
        async move { mutex.lock().await }
    });
    soon("a place in the line", async {
        while locks.inspect("kept").await.unwrap().waiting.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    primary.stop("KILL");
    promote(&standby).await;

    let next = soon("a lock", async {
        loop {
            match locks.mutex("again").lock().await {
                Ok(guard) => break guard,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
    .await;
    assert!(tokens.iter().all(|token| next.token() > *token), "{} after {tokens:?}", next.token());
    assert_ne!(guard.state(), State::Lost);
    let line = locks.inspect("kept").await.unwrap();
    assert_eq!(line.inside[0].token, Some(guard.token().number()), "the holder's ticket is there");
    let token = guard.token();
    soon("the release", guard.release()).await.unwrap();
    assert!(soon("the next one", waiting).await.unwrap().unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_asynchronous_standby_a_holder_whose_grant_was_lost_is_told() {
    let (primary, standby, url) = pair().await;
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("early").lock().await.unwrap().release().await.unwrap();
    let sql = primary.sql().await;
    let caught_up = "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication";
    soon("the standby has it", async {
        while !sql.query_one(caught_up, &[]).await.unwrap().get::<_, Option<bool>>(0).unwrap_or(false) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // What the primary grants from now on nobody else will know.
    standby.stop("INT");
    let guard = locks.mutex("late").lock_with(Options::new().lease(Duration::from_secs(9))).await.unwrap();
    primary.stop("KILL");
    tokio::task::block_in_place(|| standby.run(&[]));
    promote(&standby).await;
    soon("being told", guard.lost()).await;
    assert_eq!(guard.state(), State::Lost);
    // This is what the documentation warns of: the number is given again, so not even the fence can tell the two apart.
    let again = soon("a lock", locks.mutex("late").lock()).await.unwrap();
    assert_eq!(again.token().number(), guard.token().number());
}
