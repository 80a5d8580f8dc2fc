//! Losing the lock while the command runs: the command is stopped before another may start, and the code is 76.

use crate::support::{Home, Running, is_alive, signal, wait_until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Says when it gets SIGTERM, and takes no notice.
const STUBBORN: &str = "trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done";

fn lost(running: Running, part: &str) {
    let done = running.finish();
    assert_eq!(done.code, 76, "{done:?}");
    assert!(done.stderr.contains(part) && done.stderr.ends_with("; the command was stopped\n"), "{}", done.stderr);
    assert_eq!(done.stderr.matches('\n').count(), 1, "one line: {done:?}");
}

#[test]
fn stopped_past_its_lease() {
    let home = Home::new();
    let (mut running, pid) = home.start_script(&["--lease", "500ms"], "echo $FENCELOCK_TOKEN; exec sleep 1000");
    let first: u64 = running.line().parse().unwrap();
    running.signal(Signal::STOP);
    let done = home.run(["run", "x", "--wait", "20s", "--", "sh", "-c", "echo $FENCELOCK_TOKEN"]);
    assert_eq!(done.code, 0, "another gets in: {done:?}");
    assert!(done.stdout.trim().parse::<u64>().unwrap() > first);
    assert!(is_alive(pid), "nobody could stop it meanwhile: that is what the token is for");
    running.signal(Signal::CONT);
    lost(running, "x: lost: ");
    assert!(!is_alive(pid));
    home.assert_nothing_left();
}

#[test]
fn no_renewal_gets_through() {
    let home = Home::new();
    let options = ["--lease", "3s", "--grace", "1s"];
    let (mut running, pid) = home.start_script(&options, STUBBORN);
    assert_eq!(running.line(), "ready");
    // A second process sits in a transaction on the store's file.
    let store = rusqlite::Connection::open(home.store()).unwrap();
    store.busy_timeout(Duration::from_secs(5)).unwrap();
    store.execute_batch("BEGIN IMMEDIATE").unwrap();
    let blocked = Instant::now();
    let (term, line) = running.timed_line();
    assert_eq!(line, "term");
    // The last renewal was sent at most a third of the lease before; the margin is a fiftieth of it.
    let after = term - blocked;
    assert!(after > Duration::from_millis(850) && after < Duration::from_millis(2300), "SIGTERM after {after:?}");
    wait_until("the child is gone", || !is_alive(pid));
    let grace = term.elapsed();
    assert!(grace > Duration::from_millis(800) && grace < Duration::from_millis(1500), "SIGKILL {grace:?} later");
    lost(running, "x: ");
    drop(store);
    home.assert_nothing_left_after_a_lease();
}

#[test]
fn a_child_that_ends_in_its_grace_was_stopped_all_the_same() {
    let home = Home::new();
    let (mut running, _) =
        home.start_script(&["--lease", "1s"], "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    assert_eq!(running.line(), "ready");
    let store = rusqlite::Connection::open(home.store()).unwrap();
    store.busy_timeout(Duration::from_secs(5)).unwrap();
    store.execute_batch("BEGIN IMMEDIATE").unwrap();
    lost(running, "x: lost: no renewal got through in time");
    drop(store);
    home.assert_nothing_left_after_a_lease();
}

#[test]
fn the_file_is_renamed_away() {
    let home = Home::new();
    let (running, pid) = home.start_script(&["--lease", "1s"], "exec sleep 1000");
    let before = Instant::now();
    std::fs::rename(home.store(), home.path().join("elsewhere.db")).unwrap();
    lost(running, "x: ");
    assert!(before.elapsed() < Duration::from_secs(3));
    assert!(!is_alive(pid));
}

#[test]
fn broken_by_somebody() {
    let home = Home::new();
    let (mut running, pid) =
        home.start_script(&["--lease", "60s", "--grace", "1s"], &format!("echo $FENCELOCK_TOKEN; {STUBBORN}"));
    let token = running.line();
    assert_eq!(running.line(), "ready");
    let broken = Instant::now();
    let done = home.run(["break", "x", "--token", &token, "--yes", "--json"]);
    assert_eq!(
        (done.code, done.stdout),
        (0, format!("{{\"event\":\"broken\",\"name\":\"x\",\"token\":\"{token}\"}}\n"))
    );
    let (term, line) = running.timed_line();
    assert_eq!(line, "term");
    // Within a second on a machine that is not busy; the next renewal would have been 17 s away.
    assert!(term - broken < Duration::from_secs(5), "told after {:?}", term - broken);
    wait_until("the child is gone", || !is_alive(pid));
    let grace = term.elapsed();
    assert!(grace > Duration::from_millis(800) && grace < Duration::from_millis(1500), "SIGKILL {grace:?} later");
    lost(running, "gone");
    home.assert_nothing_left();
}

#[test]
fn without_grace_the_end_is_at_once() {
    let home = Home::new();
    let (mut running, pid) = home.start_script(&["--grace", "0"], &format!("echo $FENCELOCK_TOKEN; {STUBBORN}"));
    let token = running.line();
    assert_eq!(running.line(), "ready");
    assert_eq!(home.run(["break", "x", "--token", &token, "--yes"]).code, 0);
    let done = running.finish();
    assert_eq!((done.code, done.stdout.as_str()), (76, ""), "no SIGTERM: {done:?}");
    assert!(!is_alive(pid));
}

#[test]
fn its_longest_time_is_over() {
    let home = Home::new();
    let before = Instant::now();
    let (mut running, pid) = home.start_script(&["--max-hold", "1500ms", "--grace", "500ms"], STUBBORN);
    assert_eq!(running.line(), "ready");
    let (term, line) = running.timed_line();
    assert_eq!(line, "term");
    assert!(term - before >= Duration::from_secs(1));
    lost(running, "the longest that was allowed");
    assert!(before.elapsed() >= Duration::from_millis(1500) && before.elapsed() < Duration::from_secs(3));
    assert!(!is_alive(pid));
    home.assert_nothing_left();
}

#[test]
fn a_long_grace_is_cut_and_that_is_said() {
    let home = Home::new();
    let done = home.say("run x --lease 3s --grace 2s -- true");
    assert_eq!(
        (done.code, done.stderr.as_str()),
        (0, "fencelock: --grace 2 s is more than a third of the time to be held: cut to 1 s\n")
    );
    assert_eq!(home.say("run x --lease 3s --grace 2s -q -- true").stderr, "");
    assert_eq!(home.say("run x --lease 3s --grace 1s -- true").stderr, "");
    assert_eq!(home.say("run x --lease 3s -- true").stderr, "", "the default is cut without a word");
}

#[test]
fn the_rest_of_the_group_is_ended_too() {
    let home = Home::new();
    let script =
        "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.01; done' & echo $FENCELOCK_TOKEN; exec sleep 1000";
    let (mut running, _) = home.start_script(&["--grace", "300ms"], script);
    let mut lines = [running.line(), running.line()].map(|line| line.parse::<u32>().unwrap());
    lines.sort_unstable();
    let [token, stray] = lines;
    assert_eq!(home.run(["break", "x", "--token", &token.to_string(), "--yes"]).code, 0);
    assert_eq!(running.finish().code, 76);
    wait_until("the stray is gone", || !is_alive(stray));
}

#[test]
fn gone_before_the_child_ended_though_nobody_had_told_us() {
    let home = Home::new();
    for options in [&[][..], &["--min-hold", "1h"]] {
        let (mut running, pid) = home.start_script(options, "echo $FENCELOCK_TOKEN; read line; exit 0");
        let token = running.line();
        running.signal(Signal::STOP);
        assert_eq!(home.run(["break", "x", "--token", &token, "--yes"]).code, 0);
        running.say("go\n");
        wait_until("the child has ended", || !is_alive(pid));
        running.signal(Signal::CONT);
        let done = running.finish();
        assert_eq!(done.code, 76, "{done:?}");
        assert!(done.stderr.starts_with("fencelock: x: lost: the store says"), "{done:?}");
    }
    home.assert_nothing_left();
}

#[test]
fn hold_tells_a_loss() {
    let home = Home::new();
    let mut hold = home.start(["hold", "x", "--json"]);
    let acquired: serde_json::Value = serde_json::from_str(&hold.line()).unwrap();
    let token = acquired["token"].as_str().unwrap();
    assert_eq!(home.run(["break", "x", "--token", token, "--yes"]).code, 0);
    let done = hold.finish();
    assert_eq!((done.code, done.stdout.as_str()), (76, "{\"event\":\"lost\"}\n"));
    assert!(done.stderr.starts_with("{\"event\":\"error\",\"kind\":\"lost\""), "{}", done.stderr);
}

#[test]
fn a_waiter_that_is_put_out_queues_again() {
    let home = Home::new();
    let mut holder = home.start(["hold", "x"]);
    holder.line();
    let mut waiter = home.start(["hold", "x"]);
    let waiting = || -> serde_json::Value {
        let line: serde_json::Value = serde_json::from_str(&home.say("show x --json").stdout).unwrap();
        line["waiting"][0]["token"].clone()
    };
    wait_until("it waits", || waiting().is_string());
    let token = waiting();
    let token = token.as_str().unwrap();
    assert_eq!(home.run(["break", "x", "--token", token, "--yes"]).code, 0);
    wait_until("it waits again", || waiting().is_string() && waiting().as_str() != Some(token));
    signal(holder.pid(), Signal::TERM);
    assert!(waiter.line().parse::<u64>().unwrap() > token.parse().unwrap());
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.finish().code, 0);
    assert_eq!(holder.finish().code, 0);
    home.assert_nothing_left();
}

impl Home {
    /// After a store that did not answer, the lease has to end by itself.
    fn assert_nothing_left_after_a_lease(&self) {
        wait_until("the lease has ended", || self.ls() == "[]");
        self.assert_nothing_left();
    }
}
