//! Signals while we wait and while the child runs; the death of the parent; `--min-hold`.

use crate::support::{Home, is_alive, signal, wait_until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const ALL: [(Signal, i32, &str); 4] =
    [(Signal::INT, 2, "INT"), (Signal::TERM, 15, "TERM"), (Signal::HUP, 1, "HUP"), (Signal::QUIT, 3, "QUIT")];

#[test]
fn a_signal_while_we_wait_ends_us_and_leaves_no_ticket() {
    let home = Home::new();
    let mut holder = home.start(["hold", "x"]);
    holder.line();
    for (signal, number, _) in ALL {
        for verb in [&["run", "x", "--", "true"][..], &["hold", "x"], &["run", "x", "--unfair", "--", "true"]] {
            let waiter = home.start(verb);
            let fair = !verb.contains(&"--unfair");
            wait_until("it waits", || {
                let waits = home.ls().contains("\"waiting\":1");
                // An unfair one leaves no ticket: it is about to wait once its threads are there.
                waits || (!fair && std::fs::read_dir(format!("/proc/{}/task", waiter.pid())).unwrap().count() > 2)
            });
            waiter.signal(signal);
            let done = waiter.finish();
            assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (128 + number, "", ""), "{verb:?}");
            assert!(home.ls().contains("\"waiting\":0"), "{verb:?}");
        }
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().code, 0);
    home.assert_nothing_left();
}

#[test]
fn a_signal_while_the_child_runs_goes_to_its_group() {
    let home = Home::new();
    for (signal, number, name) in ALL {
        // It may handle it.
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.01; done");
        let (mut running, _) = home.start_script(&[], &script);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        let done = running.finish();
        assert_eq!((done.code, done.stdout, done.stderr.as_str()), (5, format!("got {name}\n"), ""));
        // Or not; a grandchild in the group gets it as well.
        let (mut running, pid) = home.start_script(&[], "sleep 1000 & echo $!; exec sleep 1000");
        let grandchild: u32 = running.line().parse().unwrap();
        running.signal(signal);
        // A shell's background job ignores INT and QUIT.
        if matches!(name, "TERM" | "HUP") {
            wait_until("the grandchild is gone", || !is_alive(grandchild));
        } else {
            crate::support::signal(grandchild, Signal::KILL);
        }
        assert_eq!(running.finish().code, 128 + number);
        assert!(!is_alive(pid));
    }
    home.assert_nothing_left();
}

#[test]
fn a_child_that_takes_its_time_keeps_the_lock() {
    let home = Home::new();
    let script = "trap 'echo got; read line; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let (mut running, _) = home.start_script(&[], script);
    assert_eq!(running.line(), "ready");
    running.signal(Signal::TERM);
    assert_eq!(running.line(), "got");
    assert_eq!(home.say("run x --wait 0 -- true").code, 75, "released only when the child is gone");
    running.say("go\n");
    assert_eq!(running.finish().code, 3);
    home.assert_nothing_left();
}

#[test]
fn a_hang_up_that_was_to_be_ignored_is() {
    let home = Home::new();
    let mut command = home.command("nohup");
    command.args(["fencelock", "run", "x", "--", "sh", "-c", "echo ready; read line; exit 4"]);
    let mut running = crate::support::Running::new(command);
    assert_eq!(running.line(), "ready");
    running.signal(Signal::HUP);
    running.say("go\n");
    assert_eq!(running.finish().code, 4);
}

#[test]
fn the_child_starts_with_the_mask_that_we_had() {
    let home = Home::new();
    // What is blocked, and what is ignored. The C library uses signals 32 and 33 for itself.
    let look = |prefix: &str| -> Vec<u64> {
        let mut command = home.command("bash");
        let status = "grep -hE 'SigBlk|SigIgn' /proc/self/status";
        command.args(["-c", &format!("trap '' USR1; exec {prefix} {status}")]);
        let done = crate::support::finish(command);
        let masks = done.stdout.lines().filter_map(|line| line.split_once('\t'));
        masks.map(|(_, mask)| u64::from_str_radix(mask, 16).unwrap() & !(3 << 31)).collect()
    };
    let plain = look("");
    assert!(plain.len() == 2 && plain[1] & 1 << 9 != 0, "{plain:?}");
    assert_eq!(look("fencelock run x --"), plain, "what was ignored stays ignored, and nothing else is");
}

#[test]
fn the_kernel_ends_the_child_when_we_are_killed() {
    let home = Home::new();
    let (running, pid) = home.start_script(&["--lease", "1s"], "trap '' TERM INT HUP; while :; do sleep 0.01; done");
    running.signal(Signal::KILL);
    wait_until("the child is gone", || !is_alive(pid));
    assert_eq!(running.finish().code, -9);
    // Nobody is stuck for longer than one lease.
    let before = Instant::now();
    assert_eq!(home.say("run x --wait 20s -- true").code, 0);
    assert!(before.elapsed() < Duration::from_secs(5));
    home.assert_nothing_left();
}

#[test]
fn a_short_job_holds_on_for_its_least_time() {
    let home = Home::new();
    let before = Instant::now();
    let done = home.say("run x --min-hold 400ms -- false");
    assert_eq!((done.code, done.stderr.as_str()), (1, ""));
    assert!(before.elapsed() >= Duration::from_millis(400));
    home.assert_nothing_left();
}

#[test]
fn a_signal_in_the_least_time_releases_at_once() {
    let home = Home::new();
    let (running, pid) = home.start_script(&["--min-hold", "1h"], "exit 6");
    wait_until("the child is gone", || !is_alive(pid));
    wait_until("it is reaped, and so the time has begun", || crate::support::state(pid).is_none());
    assert_eq!(home.say("run x --wait 0 -- true").code, 75);
    let before = Instant::now();
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, 6);
    assert!(before.elapsed() < Duration::from_secs(5));
    home.assert_nothing_left();
    let mut hold = home.start(["hold", "x", "--min-hold", "1h"]);
    hold.line();
    hold.signal(Signal::TERM);
    hold.signal(Signal::INT);
    assert_eq!(hold.finish().code, 0);
    home.assert_nothing_left();
}

#[test]
fn a_child_stopped_from_elsewhere_is_held_for() {
    let home = Home::new();
    let (mut running, pid) = home.start_script(&["--lease", "1500ms"], "read line; echo $line; exit 2");
    signal(pid, Signal::STOP);
    wait_until("it has stopped", || crate::support::state(pid) == Some('T'));
    let before = Instant::now();
    // Longer than the lease: we are not stopped, so it is renewed.
    assert_eq!(home.say("run x --wait 2s -- true").code, 75);
    assert!(before.elapsed() >= Duration::from_secs(2));
    signal(pid, Signal::CONT);
    running.say("hello\n");
    let done = running.finish();
    assert_eq!((done.code, done.stdout.as_str()), (2, "hello\n"));
}
