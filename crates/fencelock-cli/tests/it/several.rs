//! `run` with several names, and `elect`.

use crate::support::{Home, is_alive, wait_until};
use rustix::process::Signal;

const SAY: &str = "echo $FENCELOCK_NAME / $FENCELOCK_TOKEN / $FENCELOCK_MODE / $FENCELOCK_LABEL";

#[test]
fn the_command_is_told_of_each_name_in_the_order_given() {
    let home = Home::new();
    let done = home.run(["run", "c", "a b", "shop/a", "--", "sh", "-c", SAY]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let parts: Vec<&str> = done.stdout.trim().split(" / ").collect();
    assert_eq!(
        (parts[0], parts[2], parts[3]),
        ("c %a%20b shop/a", "exclusive exclusive exclusive", "sqlite sqlite sqlite")
    );
    let tokens: Vec<u64> = parts[1].split(' ').map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 3, "a token for each");
    let done = home.run(["run", "c", "a", "--shared", "--json", "--", "sh", "-c", SAY]);
    assert!(done.stdout.contains("/ shared shared /"), "{}", done.stdout);
    assert!(done.stderr.starts_with("{\"event\":\"acquired\",\"name\":\"c a\",\"token\":\""), "{}", done.stderr);
    let done = home.run(["run", "p", "q", "--permits", "1", "--of", "2", "--", "sh", "-c", SAY]);
    assert!(done.stdout.contains("/ permits permits /"), "{}", done.stdout);
    home.assert_nothing_left();
}

#[test]
fn all_of_them_or_none() {
    let home = Home::new();
    let mut holder = home.start(["hold", "b", "--reason", "deploy 88"]);
    holder.line();
    let done = home.say("run c b a --wait 0 -- true");
    assert_eq!(done.code, 75);
    assert!(
        done.stderr.starts_with("fencelock: b is held by ") && done.stderr.contains("deploy 88"),
        "{}",
        done.stderr
    );
    let done = home.say("run c b a --wait 50ms -- true");
    assert_eq!(done.code, 75);
    assert!(done.stderr.contains("b is held by") && done.stderr.contains("waited"), "{}", done.stderr);
    let waiter = home.start(["run", "c", "b", "a", "--", "echo", "in"]);
    wait_until("it waits", || home.ls().contains("\"waiting\":1"));
    assert!(!home.ls().contains("\"name\":\"c\""), "what comes later is not taken yet: {}", home.ls());
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.finish().code, 143);
    assert_eq!(home.ls().matches("\"name\"").count(), 1, "a signal leaves nothing: {}", home.ls());
    let waiter = home.start(["run", "c", "b", "a", "--", "echo", "in"]);
    wait_until("it waits", || home.ls().contains("\"waiting\":1"));
    holder.signal(Signal::TERM);
    holder.finish();
    let done = waiter.finish();
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "in\n", ""));
    home.assert_nothing_left();
}

#[test]
fn one_inside_of_several_would_wait_for_itself() {
    let home = Home::new();
    let done = home.run(["run", "a", "b", "--", "fencelock", "run", "c", "b", "--", "true"]);
    assert_eq!(done.code, 75);
    assert!(done.stderr.contains("b is held (exclusive) by the `fencelock run`"), "{}", done.stderr);
    let done = home.run(["run", "a", "b", "--", "fencelock", "run", "c", "d", "--", "true"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    home.assert_nothing_left();
}

#[test]
fn losing_one_of_several_stops_the_command() {
    let home = Home::new();
    let mut running = home.start(["run", "a", "b", "--", "sh", "-c", "echo $FENCELOCK_TOKEN; exec sleep 1000"]);
    let tokens = running.line();
    let second = tokens.split(' ').nth(1).unwrap();
    assert_eq!(home.run(["break", "b", "--token", second, "--yes"]).code, 0);
    let done = running.finish();
    assert_eq!(done.code, 76, "{done:?}");
    assert!(done.stderr.contains("b: lost:") && done.stderr.ends_with("the command was stopped\n"), "{}", done.stderr);
    home.assert_nothing_left();
}

/// Starts a candidate whose command says its term and waits.
fn candidate(home: &Home) -> crate::support::Running {
    home.start([
        "elect",
        "x",
        "--lease",
        "1s",
        "--value",
        "v",
        "--",
        "sh",
        "-c",
        "echo $$ $FENCELOCK_TOKEN; exec sleep 1000",
    ])
}

/// The process and the term that a candidate's command says.
fn leading(running: &mut crate::support::Running) -> (u32, u64) {
    let line = running.line();
    let (pid, term) = line.split_once(' ').unwrap();
    (pid.parse().unwrap(), term.parse().unwrap())
}

#[test]
fn the_next_leads_when_the_leader_is_killed() {
    let home = Home::new();
    let mut one = candidate(&home);
    let (pid, term) = leading(&mut one);
    let mut two = candidate(&home);
    wait_until("it stands for election", || home.ls().contains("\"waiting\":1"));
    one.signal(Signal::KILL);
    let (_, next) = leading(&mut two);
    assert!(next > term, "{next} after {term}");
    assert!(!is_alive(pid), "the old leader's command went with it");
    two.signal(Signal::TERM);
    assert_eq!(two.finish().code, 143, "the command's own end");
    home.assert_nothing_left();
}

#[test]
fn a_leader_that_lost_stands_again() {
    let home = Home::new();
    let mut running = candidate(&home);
    let (pid, term) = leading(&mut running);
    assert_eq!(home.run(["break", "x", "--token", &term.to_string(), "--yes"]).code, 0);
    let (_, next) = leading(&mut running);
    assert!(next > term && !is_alive(pid), "started again, in a new term");
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!(done.code, 130);
    assert!(done.stderr.contains("the command was stopped; standing for election again\n"), "{}", done.stderr);
    home.assert_nothing_left();
}

#[test]
fn the_commands_end_is_ours() {
    let home = Home::new();
    let done = home.run(["elect", "x", "--", "sh", "-c", "exit 7"]);
    assert_eq!((done.code, done.stderr.as_str()), (7, ""));
    let mut holder = home.start(["hold", "x"]);
    holder.line();
    assert_eq!(home.say("elect x --wait 0 -- true").code, 75);
    let waiter = home.start(["elect", "x", "--", "true"]);
    wait_until("it stands for election", || home.ls().contains("\"waiting\":1"));
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.finish().code, 143);
    holder.signal(Signal::TERM);
    holder.finish();
    home.assert_nothing_left();
}
