//! The table: who oversells and who does not, on SQLite and on every server of this machine; the two comparisons.

use crate::{Running, alone, json, number, program, ran, rounds, together, whole};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const FIELDS: [&str; 15] = [
    "strategy",
    "store",
    "nodes",
    "stock",
    "stock_left",
    "sold",
    "oversold",
    "requests",
    "qps",
    "mean_ms",
    "p50_ms",
    "p99_ms",
    "fault",
    "stuck_ms",
    "verdict",
];

/// The rows of each database, and of each store of locks.
const OF_DATABASES: [&str; 5] = ["none", "process-lock", "for-update", "optimistic", "cas"];
const OF_STORES: [&str; 5] = ["lock", "lock-unfair", "lock-per-product", "fenced", "striped"];
const BY_HAND: [&str; 5] = ["setnx", "setnx-expire", "set-nx-px-del", "set-nx-px-check-del", "set-nx-px-script"];

/// What every table has to be like.
pub(crate) fn checked(table: &Value, told: &str) -> Vec<Value> {
    let rows = table.as_array().unwrap_or_else(|| panic!("{told}")).clone();
    let mut seen = BTreeSet::new();
    for row in &rows {
        let fields: Vec<&str> = row.as_object().expect("a row").keys().map(String::as_str).collect();
        assert_eq!(BTreeSet::from_iter(fields), BTreeSet::from(FIELDS), "{told}");
        let key = (row["strategy"].to_string(), row["store"].to_string(), whole(row, "nodes"));
        assert!(seen.insert(key), "twice: {row}");
        assert_eq!(whole(row, "sold") + whole(row, "stock_left"), whole(row, "stock"), "the books: {row}\n{told}");
        assert_eq!(whole(row, "oversold"), (whole(row, "sold") - whole(row, "stock")).max(0), "{row}");
    }
    rows
}

pub(crate) fn strategy(row: &Value) -> &str {
    row["strategy"].as_str().expect("a name")
}

/// Oversells in every run, or in none.
fn judged(row: &Value, told: &str) {
    let oversells = match (strategy(row), whole(row, "nodes")) {
        ("none", _) | ("process-lock", 2) | ("set-nx-px-del" | "set-nx-px-check-del", _) => true,
        ("setnx" | "setnx-expire", _) => {
            assert_eq!(row["verdict"], "stuck", "{row}\n{told}");
            assert!(whole(row, "stuck_ms") >= 3000, "{row}");
            return;
        }
        _ => false,
    };
    assert_eq!(row["verdict"], if oversells { "oversold" } else { "right" }, "{row}\n{told}");
    if !oversells {
        assert_eq!(whole(row, "sold"), whole(row, "stock"), "everything was wanted: {row}\n{told}");
    }
}

#[test]
fn the_quick_story_needs_nothing_installed() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    for _ in 0..rounds() {
        let started = Instant::now();
        let (table, told) = json(&["story", "--quick", "--json", "--out", out]);
        assert!(started.elapsed() < Duration::from_secs(45), "{:?}: {told}", started.elapsed());
        let rows = checked(&table, &told);
        let names: Vec<&str> = rows.iter().map(strategy).collect();
        assert_eq!(names, [&OF_DATABASES[..], &OF_STORES[..]].concat());
        for row in &rows {
            assert_eq!((&row["store"], whole(row, "nodes")), (&Value::from("sqlite"), 2));
            judged(row, &told);
            assert_eq!(whole(row, "requests"), 500);
            // Requests in flight over the mean response time, on its own numbers.
            let off = number(row, "qps") * number(row, "mean_ms") / 1000.0 / 50.0 - 1.0;
            assert!(off.abs() < 0.05, "{off}: {row}");
        }
    }
    for file in ["story.md", "story.json", "story.svg"] {
        let text = std::fs::read_to_string(folder.path().join(file)).expect("it is written");
        assert!(text.contains("process-lock") && text.contains("striped"), "{file}: {text}");
    }
}

#[test]
fn without_nginx_the_customers_alternate() {
    let _together = together();
    let (row, told) = json(&["sale", "--strategy", "for-update", "--no-nginx", "--json"]);
    assert_eq!((whole(&row, "sold"), whole(&row, "stock_left")), (100, 0), "{told}");
    let (output, told) = ran(&["sale", "--strategy", "lock", "--db", "oracle:shop"]);
    assert!(!output.status.success() && told.contains("is no database for the shop"), "{told}");
}

/// The numbers of the load generator by itself, on a shop that somebody else keeps open.
#[test]
fn customers_come_from_elsewhere() {
    let _together = together();
    let shop = Running::start(&["shop", "--strategy", "lock", "--front", "127.0.0.1:0"]);
    let address = shop.first.trim_start_matches("open: http://").trim_end_matches("/stock/1");
    let (numbers, told) = json(&["load", "--to", address, "--rounds", "20", "--json"]);
    assert_eq!((whole(&numbers, "requests"), whole(&numbers, "sold")), (1000, 100), "{told}");
    assert_eq!(numbers["failures"], serde_json::json!({}), "{told}");
    let off = number(&numbers, "qps") / number(&numbers, "by_littles_law") - 1.0;
    assert!(off.abs() < 0.05, "{off}: {told}");
}

/// Twenty times in a soak. Each test has a part of the table and starts only what it needs, so that they share the machine. The tests of
/// the stores see to it that no server is missing unnoticed; only Consul may be missing, and then that is said.
fn part(servers: &[&str], strategies: &[&str], stores: &[&str]) {
    let _together = together();
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    let only = strategies.iter().flat_map(|strategy| ["--only", strategy]);
    let words = ["story", "--json", "--out", out].into_iter().chain(servers.iter().copied()).chain(only);
    let words: Vec<&str> = words.collect();
    for round in 1..=rounds() {
        let (table, told) = json(&words);
        let rows = checked(&table, &told);
        let mut expected = BTreeSet::new();
        let there = |store: &str| !(store.starts_with("consul") && told.contains("Consul: not run"));
        for store in stores.iter().filter(|store| there(store)) {
            expected.extend(strategies.iter().map(|strategy| (strategy.to_string(), store.to_string(), 2)));
            if strategies.contains(&"process-lock") {
                expected.insert(("process-lock".to_string(), store.to_string(), 1));
            }
        }
        let store = |row: &Value| row["store"].as_str().expect("a name").to_string();
        let found = rows.iter().map(|row| (strategy(row).to_string(), store(row), whole(row, "nodes")));
        assert_eq!(found.collect::<BTreeSet<_>>(), expected, "{told}");
        rows.iter().for_each(|row| judged(row, &told));
        println!("counted: round {round}: {} sales of {}, as they should be", rows.len(), strategies.join(", "));
    }
}

const STORES: [&str; 7] = [
    "sqlite",
    "redis + postgres",
    "mariadb + postgres",
    "postgres",
    "zookeeper + postgres",
    "etcd + postgres",
    "consul + postgres",
];

#[test]
fn all_databases_by_themselves() {
    part(&["--start", "mariadb", "--start", "postgres"], &OF_DATABASES, &["mariadb", "postgres"]);
}

#[test]
fn all_stores_locked() {
    part(&["--all"], &["lock", "fenced"], &STORES);
}

#[test]
fn all_stores_unfair_and_finer() {
    part(&["--all"], &["lock-unfair", "lock-per-product", "striped"], &STORES);
}

#[test]
fn all_locks_by_hand() {
    part(&["--start", "redis", "--start", "postgres"], &BY_HAND, &["redis + postgres"]);
}

#[test]
fn one_process_needs_only_its_own_lock() {
    let _together = together();
    let (row, told) = json(&["sale", "--strategy", "process-lock", "--nodes", "1", "--json"]);
    judged(&row, &told);
    assert_eq!((row["verdict"].as_str(), whole(&row, "nodes")), (Some("right"), 1), "{told}");
}

#[test]
fn finer_locks_sell_exactly_as_much() {
    let _together = together();
    let (compared, told) = json(&["compare", "--start", "redis", "--start", "postgres", "--json"]);
    for compared in compared.as_array().expect("two of them") {
        for row in [&compared["coarse"], &compared["fine"]] {
            assert_eq!((whole(row, "sold"), whole(row, "stock_left")), (1000, 0), "{told}");
            assert_eq!(row["store"], "redis + postgres", "{told}");
        }
        println!("counted: {}: {} times faster", compared["what"], compared["faster"]);
    }
    // How much faster depends on the machine and on what else it does; the stripes' work alone allows twenty times.
    assert!(number(&compared[0], "faster") > 1.5, "{told}");
}

#[test]
fn what_is_not_there_has_a_row_that_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    let mut command = program(&["story", "--start", "consul", "--only", "for-update", "--json", "--out", out]);
    let output = command.env("FENCELOCK_CONSUL", "/no/such/consul").output().expect("the program can be run");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("Consul: not run: "), "{told}");
    let table = std::fs::read_to_string(folder.path().join("story.md")).expect("it is written");
    assert!(table.lines().any(|line| line.contains("| consul") && line.contains("*not run*")), "{table}");
}

#[test]
fn a_sale_that_cannot_be_held_is_told_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    let words =
        ["story", "--quick", "--db", "sqlite:/no/such/folder/shop.db", "--only", "cas", "--only", "lock", "--json"];
    let (output, told) = ran(&[&words[..], &["--out", out]].concat());
    assert!(!output.status.success(), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[]", "{told}");
    for strategy in ["cas", "lock"] {
        let line = format!("{strategy} on sqlite: it could not be held: ");
        assert!(told.contains(&line), "{told}");
    }
}
