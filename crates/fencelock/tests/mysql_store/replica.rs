//! A primary and a replica: which of them is used, and what is left when the replica is promoted.

use crate::server::Server;
use crate::soon;
use fencelock::{ErrorKind, Locks, Options, State};
use mysql_async::prelude::Queryable;
use std::time::Duration;

/// Two servers, the second of which follows the first and is read-only; a URL that names the second one first, for a user
/// whom that binds; and the database.
async fn pair() -> (Server, Server, String, String) {
    let start = |id: &'static str, more: &'static str| {
        let options = ["--log-bin=log", "--binlog-format=ROW", id, more];
        tokio::task::spawn_blocking(move || Server::start(&options))
    };
    let primary = start("--server-id=1", "--skip-slave-start").await.unwrap();
    let replica = start("--server-id=2", "--read-only=1").await.unwrap();
    let mut follow = replica.sql("mysql").await;
    follow
        .query_drop(format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='root', MASTER_CONNECT_RETRY=1, MASTER_USE_GTID=slave_pos",
            primary.port
        ))
        .await
        .unwrap();
    // What the installation itself wrote is in both.
    let mut sql = primary.sql("mysql").await;
    let at: Option<String> = sql.query_first("SELECT @@GLOBAL.gtid_binlog_pos").await.unwrap();
    follow.query_drop(format!("SET GLOBAL gtid_slave_pos = '{}'", at.unwrap_or_default())).await.unwrap();
    follow.query_drop("START SLAVE").await.unwrap();
    let database = primary.database().await;
    sql.query_drop("CREATE USER app@'%' IDENTIFIED BY 'right'").await.unwrap();
    sql.query_drop(format!("GRANT ALL ON {database}.* TO app@'%'")).await.unwrap();
    caught_up(&primary, &replica).await;
    let url = format!("mysql://app:right@127.0.0.1:{},127.0.0.1:{}/{database}", replica.port, primary.port);
    (primary, replica, url, database)
}

/// The replica has all that the primary has written.
async fn caught_up(primary: &Server, replica: &Server) {
    let at: Option<String> = primary.sql("mysql").await.query_first("SELECT @@GLOBAL.gtid_binlog_pos").await.unwrap();
    let wait = format!("SELECT MASTER_GTID_WAIT('{}', 30)", at.unwrap_or_default());
    assert_eq!(replica.sql("mysql").await.query_first::<i64, _>(wait).await.unwrap(), Some(0), "it follows");
}

async fn promote(replica: &Server) {
    let mut sql = replica.sql("mysql").await;
    sql.query_drop("STOP SLAVE").await.unwrap();
    sql.query_drop("SET GLOBAL read_only = 0").await.unwrap();
}

#[tokio::test]
async fn the_writable_host_is_followed() {
    let (primary, replica, url, database) = pair().await;
    let locks = Locks::connect(&url).await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(locks.mutex("again").lock().await.unwrap().token());
    }
    let guard = locks.mutex("kept").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    // The replica alone is of no use.
    caught_up(&primary, &replica).await;
    let alone = Locks::connect(&format!("mysql://app:right@127.0.0.1:{}/{database}", replica.port)).await.unwrap();
    let error = alone.mutex("again").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");

    // In an orderly way: the old one stays where it is, and can no longer be written to.
    primary.sql("mysql").await.query_drop("SET GLOBAL read_only = 1").await.unwrap();
    caught_up(&primary, &replica).await;
    promote(&replica).await;
    let next = soon("a lock", locks.mutex("again").lock()).await.unwrap();
    assert!(tokens.iter().all(|token| next.token() > *token), "{} after {tokens:?}", next.token());
    assert_ne!(guard.state(), State::Lost);
    primary.stop("KILL");
    assert_eq!(locks.inspect("kept").await.unwrap().inside[0].token, Some(guard.token().number()));
    soon("the release", guard.release()).await.unwrap();
    let session = Locks::connect(&format!("{url}?mode=session")).await.unwrap();
    session.mutex("kept").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_holder_whose_grant_the_replica_never_had_is_told() {
    let (primary, replica, url, _) = pair().await;
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("early").lock().await.unwrap().release().await.unwrap();
    caught_up(&primary, &replica).await;
    replica.sql("mysql").await.query_drop("STOP SLAVE").await.unwrap();
    let guard = locks.mutex("late").lock_with(Options::new().lease(Duration::from_secs(9))).await.unwrap();
    primary.stop("KILL");
    // Neither of the two can be written to: no grant.
    let error = locks.mutex("other").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    promote(&replica).await;
    soon("being told", guard.lost()).await;
    assert_eq!(guard.state(), State::Lost);
    let next = soon("a lock", locks.mutex("late").lock()).await.unwrap();
    assert_eq!(next.state(), State::Safe);
}
