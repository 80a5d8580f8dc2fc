//! The tables: how they come to be, who may use them, and that they stay small.

use crate::rights::use_all;
use crate::soak::{counted, soaking};
use crate::{fresh, open, soon, ticket, try_open};
use fencelock::line::WHOLE;
use fencelock::sql::mysql::prepare;
use fencelock::sql::{Wait, lock_in};
use fencelock::store::mysql::MysqlStore;
use fencelock::store::{Entered, Place, Store};
use fencelock::{Effect, ErrorKind, Locks, Migrated, Migration};
use mysql_async::prelude::Queryable;
use std::time::Duration;

fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("the URL names a database")
}

#[tokio::test]
async fn first_uses_at_the_same_moment_are_safe() {
    let (_server, url) = fresh().await;
    let opening = (0..8).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { try_open(&url, &[]).await.map(drop) })
    });
    for one in opening.collect::<Vec<_>>() {
        soon("a store", one).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn nothing_is_made_where_that_is_not_wanted() {
    let (server, url) = fresh().await;
    let error = try_open(&url, &[("migrate", "off")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    server.sql(database(&url)).await.query_drop(MysqlStore::layout()).await.unwrap();
    let store = try_open(&url, &[("migrate", "off")]).await.unwrap();
    assert!(matches!(
        store.enter(&[ticket("x", 1, WHOLE, true)]).await.unwrap()[..],
        [Entered::Admitted { token: 1, .. }]
    ));
}

#[tokio::test]
async fn another_layout_is_one_clear_error_and_an_older_one_is_brought_up_to_date() {
    let (server, url) = fresh().await;
    let migration = Migration::of(&url).unwrap().unwrap();
    assert_eq!(migration.run().await.unwrap(), Migrated { from: None, to: 3 });
    let token = Locks::connect(&url).await.unwrap().mutex("x").lock().await.unwrap().token();
    let mut sql = server.sql(database(&url)).await;
    for (there, said) in [(99, "layout 99, which is newer"), (0, "layout 0, which is older")] {
        sql.query_drop(format!("UPDATE fencelock_layout SET version = {there}")).await.unwrap();
        for mode in ["rows", "session"] {
            let error = Locks::connect(&format!("{url}?mode={mode}")).await.unwrap_err();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Broken, Effect::None), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }
    sql.query_drop("DROP TABLE fencelock_register").await.unwrap();
    assert_eq!(migration.run().await.unwrap(), Migrated { from: Some(0), to: 3 });
    assert_eq!(migration.run().await.unwrap(), Migrated { from: Some(3), to: 3 });
    let locks = Locks::connect(&url).await.unwrap();
    locks.register("x").set("1").await.unwrap();
    assert!(locks.mutex("x").lock().await.unwrap().token() > token, "what was there is still there");
    sql.query_drop("UPDATE fencelock_layout SET version = 4").await.unwrap();
    let error = migration.run().await.unwrap_err();
    assert!(error.to_string().contains("newer"), "{error}");
    let version: Option<i64> = sql.query_first("SELECT version FROM fencelock_layout").await.unwrap();
    assert_eq!(version, Some(4), "a newer one is left alone");
}

/// Layout 1 had no room for a ticket in a line's own row.
#[tokio::test]
async fn what_was_held_in_layout_1_is_held_after_its_migration() {
    let (server, url) = fresh().await;
    let mut sql = server.sql(database(&url)).await;
    sql.query_drop(MysqlStore::layout()).await.unwrap();
    let new = "earliest frontier inside total head changes many expiry number id weight capacity mode client entered owner pid held host identity reason value";
    let drops = new.split(' ').map(|column| format!("DROP {column}")).collect::<Vec<_>>().join(", ");
    sql.query_drop(format!("ALTER TABLE fencelock_line {drops}")).await.unwrap();
    let far = i64::MAX / 2;
    sql.query_drop(format!(
        "UPDATE fencelock_layout SET version = 1;
         INSERT INTO fencelock_line VALUES ('held', NULL, 7, 1, 0), ('free', NULL, 9, 1, 0);
         INSERT INTO fencelock_ticket VALUES ('held', 7, '0123456789abcdef', {WHOLE}, {WHOLE}, 0, 'c', 1, 1, {far}, '0123456789abcdef', '', 'h', 1, 'i', NULL, NULL)"
    ))
    .await
    .unwrap();
    let error = Locks::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("layout 1, which is older"), "{error}");
    let migration = Migration::of(&url).unwrap().unwrap();
    assert_eq!(migration.run().await.unwrap(), Migrated { from: Some(1), to: 3 });
    assert_eq!(migration.run().await.unwrap(), Migrated { from: Some(3), to: 3 });
    let locks = Locks::connect(&url).await.unwrap();
    let error = locks.mutex("held").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    for token in 10..13 {
        let guard = locks.mutex("free").try_lock().await.unwrap();
        assert_eq!(guard.token().number(), token);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_user_needs_no_more_than_the_printed_rights() {
    let (server, url) = fresh().await;
    let database = database(&url);
    let mut sql = server.sql("mysql").await;
    sql.query_drop(format!("CREATE USER '{database}'@'%' IDENTIFIED BY 'right'")).await.unwrap();
    // Without any right in it nobody is let into a database.
    sql.query_drop(format!("CREATE TABLE {database}.theirs (id INT)")).await.unwrap();
    sql.query_drop(format!("GRANT SELECT ON {database}.theirs TO '{database}'@'%'")).await.unwrap();
    let theirs = format!("mysql://{database}:right@127.0.0.1:{}/{database}", server.port);
    let migration = Migration::of(&theirs).unwrap().unwrap();
    for error in [Locks::connect(&theirs).await.unwrap_err(), migration.run().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("fencelock migrate"), "{error}");
    }
    Migration::of(&url).unwrap().unwrap().run().await.unwrap();
    let grants = migration.sql();
    let grants = grants.lines().filter_map(|line| line.strip_prefix("-- GRANT "));
    let mariadb: Option<bool> = sql.query_first("SELECT VERSION() LIKE '%MariaDB%'").await.unwrap();
    let mut count = 0;
    for grant in grants.filter(|grant| mariadb == Some(true) || !grant.contains("fencelock_number")) {
        let grant = grant.replace(" app.", &format!(" {database}.")).replace("'app'", &format!("'{database}'"));
        sql.query_drop(format!("GRANT {grant}")).await.unwrap();
        count += 1;
    }
    assert_eq!(count, if mariadb == Some(true) { 8 } else { 7 });
    soon("everything", use_all(&theirs)).await;
    let store = open(&theirs).await;
    soon("a sweep", async {
        while store.reap(Duration::ZERO).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let mut own = mysql_async::Conn::from_url(&theirs).await.unwrap();
    prepare(&mut own, "stock/42").await.unwrap();
    let mut transaction = own.start_transaction(mysql_async::TxOpts::default()).await.unwrap();
    lock_in(&mut transaction, "stock/42", Wait::No).await.unwrap();
    transaction.commit().await.unwrap();
    let error = try_open(&theirs.replace("right", "wrong"), &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
}

/// With `FENCELOCK_SOAK=1` ten times as many, and then a million that others have left behind.
#[tokio::test]
async fn names_used_once_leave_nothing_and_numbers_go_on() {
    let (server, url) = fresh().await;
    let store = open(&url).await;
    let mut sql = server.sql(database(&url)).await;
    let (mut highest, mut most) = (0, Some(0));
    for round in 0..if soaking() { 1000 } else { 100 } {
        let batch: Vec<_> = (0..64).map(|i| ticket(&format!("once/{round}/{i}"), WHOLE, WHOLE, true)).collect();
        // All in one call now and then, which takes the server longer; else one by one.
        let size = if round % 10 == 0 { batch.len() } else { 1 };
        let calls = batch.chunks(size).map(|some| async {
            let entered = store.enter(some).await.unwrap();
            let places: Vec<Place> = some.iter().map(|ticket| ticket.place.clone()).collect();
            store.leave(&places).await.unwrap();
            entered
        });
        for answer in futures_util::future::join_all(calls).await.into_iter().flatten() {
            let Entered::Admitted { token, .. } = answer else { panic!("{answer:?}") };
            highest = highest.max(token);
        }
        if round % 50 == 49 {
            most = most.max(sql.query_first::<i64, _>("SELECT COUNT(*) FROM fencelock_line").await.unwrap());
        }
    }
    counted(&format!("at most {} lines in the table at a time on MariaDB", most.unwrap_or(0)));
    assert!(most <= Some(50_000), "{most:?} lines at a time");
    if soaking() {
        let left = "INSERT INTO fencelock_line (name, last, touched, kept) SELECT CONCAT('left/', seq), seq, 0, 0 FROM seq_1_to_1000000";
        sql.query_drop(left).await.unwrap();
        highest = highest.max(1_000_000);
        // Whoever makes a line takes out what was left behind.
        let ticket = ticket("new", WHOLE, WHOLE, true);
        store.enter(std::slice::from_ref(&ticket)).await.unwrap();
        store.leave(&[ticket.place]).await.unwrap();
    }
    let empty = async {
        while sql.query_first::<i64, _>("SELECT COUNT(*) FROM fencelock_line").await.unwrap() != Some(0) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (limit, began) = (Duration::from_secs(if soaking() { 900 } else { 60 }), std::time::Instant::now());
    tokio::time::timeout(limit, empty).await.expect("a small table");
    if soaking() {
        counted(&format!("a million lines taken out in {:.0} s on MariaDB", began.elapsed().as_secs_f64()));
    }
    let Entered::Admitted { token, .. } = store.enter(&[ticket("once/0/0", WHOLE, WHOLE, true)]).await.unwrap()[0]
    else {
        panic!("nobody else is there")
    };
    assert!(token > highest, "{token} after {highest}");
}

/// A line may be made anew and be left without a number: it still begins above what was given before.
#[tokio::test]
async fn numbers_go_on_in_a_line_that_was_taken_out_and_made_by_somebody_who_was_refused() {
    let (server, url) = fresh().await;
    let store = open(&url).await;
    let enter = async |name: &str| {
        let one = ticket(name, WHOLE, WHOLE, true);
        let Entered::Admitted { token, .. } = store.enter(std::slice::from_ref(&one)).await.unwrap()[0] else {
            panic!("nobody else is there")
        };
        (one.place, token)
    };
    let mut last = 0;
    for _ in 0..5 {
        let (place, token) = enter("again").await;
        store.leave(&[place]).await.unwrap();
        last = token;
    }
    enter("held").await;
    let mut sql = server.sql(database(&url)).await;
    soon("it is taken out", async {
        // By us, or by the client that made it.
        while sql.query_first::<i64, _>("SELECT COUNT(*) FROM fencelock_line").await.unwrap() != Some(1) {
            store.reap(Duration::ZERO).await.unwrap();
        }
    })
    .await;
    let both = [ticket("again", WHOLE, WHOLE, false), ticket("held", WHOLE, WHOLE, false)];
    let refused = store.enter(&both).await.unwrap();
    assert!(refused.iter().all(|one| matches!(one, Entered::Full { .. })), "{refused:?}");
    // As another client, which has not seen the line.
    let other = open(&url).await;
    let one = ticket("again", WHOLE, WHOLE, false);
    let answer = other.enter(&[one]).await.unwrap();
    assert!(matches!(answer[..], [Entered::Admitted { token, .. }] if token > last), "{answer:?} after {last}");
}

#[tokio::test]
async fn lapsed_tickets_of_forgotten_lines_are_taken_out() {
    let (server, url) = fresh().await;
    let store = open(&url).await;
    let mut short = ticket("forgotten", WHOLE, WHOLE, true);
    short.lease = Duration::from_millis(100);
    store.enter(&[short]).await.unwrap();
    let mut sql = server.sql(database(&url)).await;
    soon("its end", async {
        loop {
            let count = "SELECT (SELECT COUNT(*) FROM fencelock_line) + (SELECT COUNT(*) FROM fencelock_ticket)";
            let rows: Option<i64> = sql.query_first(count).await.unwrap();
            if rows == Some(0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}
