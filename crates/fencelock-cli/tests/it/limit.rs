//! `limit`: a command that runs when its turn comes.

use crate::support::{Home, wait_until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

#[test]
fn the_command_runs_when_it_may() {
    let home = Home::new();
    for code in [0, 7] {
        let done = home.run([
            "limit",
            "api",
            "--rate",
            "2/h",
            "--burst",
            "2",
            "--",
            "sh",
            "-c",
            &format!("echo hi; exit {code}"),
        ]);
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (code, "hi\n", ""));
    }
    for wait in ["0", "5s"] {
        let done = home.say(&format!("limit api --rate 2/h --burst 2 --wait {wait} -- true"));
        assert_eq!((done.code, done.stdout.as_str()), (75, ""));
        assert!(done.stderr.starts_with("fencelock: api is over its limit; our turn would be in "), "{}", done.stderr);
    }
    let done = home.say("limit api --rate 2/h --burst 2 --wait 0 --json -- true");
    assert!(done.stderr.starts_with("{\"event\":\"error\",\"kind\":\"limited\""), "{}", done.stderr);
    // Another limiter, a lock of the same name, another namespace.
    assert_eq!(home.say("limit other --rate 2/h -- true").code, 0);
    assert_eq!(home.say("run api --wait 0 -- true").code, 0);
    assert_eq!(home.say("limit api --rate 2/h --namespace shop --wait 0 -- true").code, 0);
    home.assert_nothing_left();
}

#[test]
fn it_waits_for_its_turn_by_default() {
    let home = Home::new();
    let started = Instant::now();
    for _ in 0..4 {
        assert_eq!(home.say("limit api --rate 10/s -- true").code, 0);
    }
    assert!(started.elapsed() >= Duration::from_millis(299), "{:?}", started.elapsed());
    let done = home.say("limit api --rate 10/s --json -- true");
    assert!(done.stderr.starts_with("{\"event\":\"granted\",\"name\":\"api\",\"waited_ms\":"), "{}", done.stderr);
    // In time: a wait that is long enough.
    assert_eq!(home.say("limit api --rate 10/s --wait 60s -- true").code, 0);
}

#[test]
fn a_signal_ends_the_wait() {
    let home = Home::new();
    assert_eq!(home.say("limit api --rate 1/h -- true").code, 0);
    let waiting = home.start(["limit", "api", "--rate", "1/h", "--", "echo", "ran"]);
    let pid = waiting.pid();
    wait_until("it sleeps", || crate::support::state(pid) == Some('S'));
    waiting.signal(Signal::TERM);
    let done = waiting.finish();
    assert_eq!((done.code, done.stdout.as_str()), (-15, ""));
}

#[test]
fn what_cannot_be_is_said_before_anything_is_done() {
    let home = Home::new();
    for (line, part) in [
        ("limit api -- true", "--rate"),
        ("limit api --rate 10 -- true", "say 10/s"),
        ("limit api --rate 0/s -- true", "say 10/s"),
        ("limit api --rate 1/s --burst 0 -- true", "--burst"),
        ("limit api --rate 1/s", "<CMD>"),
        ("limit api --rate 1/s --wait 5 -- true", "write 250ms"),
    ] {
        let done = home.say(line);
        assert_eq!(done.code, 64, "{line}: {done:?}");
        assert!(done.stderr.contains(part) && done.stderr.matches('\n').count() == 1, "{line}: {done:?}");
    }
    assert!(!home.store().exists());
    assert_eq!(home.say("limit api --rate 1/s -- /no/such/command").code, 127);
}
