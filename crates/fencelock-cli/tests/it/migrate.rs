//! `migrate`: the tables of a real PostgreSQL and a real MariaDB.

use crate::support::{Done, Home};

#[path = "../../../fencelock/tests/mysql_store/server.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod mariadb;
#[path = "../../../fencelock/tests/postgres_store/server.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod postgres;

fn migrate(url: &str, more: &[&str]) -> Done {
    Home::new().run([&["migrate", "--store", url], more].concat())
}

/// No tables; then tables, once; and a store that can be used.
fn made_once(url: &str, layout: u32) {
    let home = Home::new();
    let off = format!("{url}{}migrate=off", if url.contains('?') { '&' } else { '?' });
    let done = home.run(["run", "x", "--store", &off, "--", "true"]);
    assert_eq!(done.code, 69, "{done:?}");
    assert!(done.stderr.contains("fencelock migrate") && done.stderr.matches('\n').count() == 1, "{done:?}");
    let done = migrate(&off, &[]);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    assert_eq!(done.stderr, format!("fencelock: the tables of layout {layout} have been made\n"));
    let done = migrate(url, &[]);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""));
    let done = migrate(url, &["--json"]);
    assert_eq!(done.stdout, format!("{{\"event\":\"migrated\",\"from\":{layout},\"to\":{layout}}}\n"), "{done:?}");
    assert_eq!(home.run(["run", "x", "--store", &off, "--", "true"]).code, 0);
}

#[test]
fn tables_are_made_in_postgres() {
    let server = postgres::Server::start(&[]);
    made_once(&server.url("locks"), 1);
}

#[test]
fn tables_are_made_in_mariadb() {
    let server = mariadb::Server::start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(server.database());
    made_once(&server.url(&database), 3);
}

#[test]
fn the_sql_is_printed_without_a_server() {
    let home = Home::new();
    for (url, part) in [
        ("postgres://user:hunter2@nowhere.invalid/db?schema=shop", "CREATE TABLE IF NOT EXISTS shop.line ("),
        ("postgres://user:hunter2@nowhere.invalid/db?schema=shop", "-- GRANT USAGE ON SCHEMA shop TO app;"),
        ("mysql://user:hunter2@nowhere.invalid/db", "CREATE TABLE IF NOT EXISTS fencelock_line ("),
        ("mysql://user:hunter2@nowhere.invalid/db", "-- GRANT SELECT, UPDATE ON app.fencelock_layout TO"),
    ] {
        let done = home.run(["migrate", "--print", "--store", url]);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        assert!(done.stdout.contains(part) && !done.stdout.contains("hunter2"), "{url}: {}", done.stdout);
    }
    for (url, code) in [("memory:", 69), ("sqlite:x.db", 69), ("postgres://h/d?schema=A-B", 64), ("nothing", 64)] {
        for print in [&["migrate", "--store", url][..], &["migrate", "--print", "--store", url]] {
            let done = home.run(print);
            assert_eq!((done.code, done.stdout.as_str()), (code, ""), "{url}: {done:?}");
            assert_eq!(done.stderr.matches('\n').count(), 1, "{done:?}");
        }
    }
    assert!(!home.path().join("x.db").exists());
}
