//! One test for each row of the exit-code table.

use crate::support::{Done, Home, finish};
use rustix::process::Signal;

#[test]
fn the_childs_own_code() {
    let home = Home::new();
    for code in [0, 1, 7, 64, 75, 255] {
        let done = home.run(["run", "x", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((done.code, done.stderr.as_str()), (code, ""));
    }
    for signal in [2, 9, 15] {
        let done = home.run(["run", "x", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!((done.code, done.stderr.as_str()), (128 + signal, ""));
    }
    home.assert_nothing_left();
}

#[test]
fn a_command_that_cannot_be_started() {
    let home = Home::new();
    let done = home.say("run x -- /no/such/command");
    assert_eq!(
        (done.code, done.stderr.as_str()),
        (127, "fencelock: /no/such/command cannot be started: no such command\n")
    );
    let file = home.path().join("not-a-program");
    std::fs::write(&file, "x").unwrap();
    let done = home.run(["run", "x", "--", file.to_str().unwrap()]);
    assert_eq!(done.code, 126);
    assert!(done.stderr.ends_with("cannot be started: Permission denied (os error 13)\n"), "{}", done.stderr);
    let done = home.say("run x --json -- /no/such/command");
    assert!(done.stderr.contains("{\"event\":\"error\",\"kind\":\"start\""), "{}", done.stderr);
    home.assert_nothing_left();
}

/// One clear line, code 64, nothing created.
fn wrong(done: &Done, part: &str) {
    assert_eq!(done.code, 64, "{done:?}");
    assert_eq!(done.stdout, "");
    assert!(done.stderr.starts_with("fencelock: ") && done.stderr.contains(part), "{part}: {done:?}");
    assert_eq!(done.stderr.matches('\n').count(), 1, "one line: {done:?}");
}

#[test]
fn wrong_usage() {
    let home = Home::new();
    for (line, part) in [
        ("", "say what to do"),
        ("frobnicate", "unrecognized subcommand 'frobnicate'"),
        ("shwo x", "did you mean show"),
        ("run", "required arguments were not provided"),
        ("run x", "<CMD>"),
        ("run x y x -- true", "x is named twice"),
        ("elect x --shared -- true", "one leader"),
        ("elect x", "<CMD>"),
        ("run x --frobnicate -- true", "unexpected argument '--frobnicate'"),
        ("run x --weight 3 -- true", "see `fencelock run --help`"),
        ("run x --wait 5 -- true", "write 250ms, 30s, 5m or 1h"),
        ("run x --wait -5s -- true", "-5"),
        ("run x --lease 0s -- true", "too short"),
        ("run x --lease 1000000h -- true", "too long"),
        ("run x --lease 99999999999999999999s -- true", "too long"),
        ("run x --max-hold 0 -- true", "must not be zero"),
        ("run x --min-hold 5s --max-hold 4s -- true", "--min-hold is longer than --max-hold"),
        ("run x --permits 2 -- true", "--of"),
        ("run x --of 2 -- true", "--permits"),
        ("run x --permits 3 --of 2 -- true", "more than --of"),
        ("run x --permits 0 --of 2 -- true", "0"),
        ("run x --permits 1 --of 1048576 -- true", "1048576"),
        ("run x --shared --permits 1 --of 2 -- true", "cannot be used with"),
        ("run x --held-code 256 -- true", "256"),
        ("run x --namespace a//b -- true", "namespace"),
        ("ls --namespace a//b", "namespace"),
        ("hold", "<NAME>"),
        ("show", "<NAME>"),
        ("show x y", "unexpected argument 'y'"),
        ("break x", "--token"),
        ("break x --token many", "many"),
        ("break x --token 1", "say --yes"),
        ("completions tcsh", "tcsh"),
        ("--store mongodb://h show x", "no store is called \"mongodb\""),
        ("--store locks.db show x", "sqlite:PATH"),
        ("--store sqlite:new/locks.db?colour=red show x", "known are namespace, label"),
        ("--store sqlite: show x", "sqlite:PATH"),
    ] {
        wrong(&home.say(line), part);
    }
    wrong(&home.run(["run", "", "--", "true"]), "must not be empty");
    let created: Vec<_> = std::fs::read_dir(home.path()).unwrap().collect();
    assert!(created.is_empty(), "nothing is created: {created:?}");
    let mut homeless = home.fencelock(["ls"]);
    homeless.env_remove("HOME").env_remove("XDG_STATE_HOME");
    wrong(&finish(homeless), "set HOME");
}

#[test]
fn the_store_cannot_be_used() {
    let home = Home::new();
    let damaged = home.path().join("damaged.db");
    std::fs::write(&damaged, "this is no database, however long one looks at it".repeat(100)).unwrap();
    for command in ["run x -- true", "show x", "ls", "hold x"] {
        let done = home.say(&format!("--store sqlite:{} {command}", damaged.display()));
        assert_eq!((done.code, done.stdout.as_str()), (69, ""), "{done:?}");
        assert_eq!(done.stderr.matches('\n').count(), 1, "one line: {done:?}");
    }
    // In use as something else.
    let mut holder = home.start(["hold", "x", "--permits", "1", "--of", "2"]);
    holder.line();
    let done = home.say("run x -- true");
    assert_eq!(done.code, 69, "{done:?}");
    assert!(done.stderr.contains("semaphore of 2"), "{}", done.stderr);
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().code, 0);
    // Nobody to put out.
    let done = home.say("break x --token 1 --yes");
    assert_eq!((done.code, done.stderr.as_str()), (69, "fencelock: x has no ticket with token 1\n"));
}

#[test]
fn held_by_another() {
    let home = Home::new();
    let mut holder = home.start(["hold", "x", "--reason", "deploy 88"]);
    let token = holder.line();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let begin = format!("fencelock: x is held by {host} pid {} (\"deploy 88\") for ", holder.pid());
    for (options, end) in [("--wait 0", "29 s\n"), ("--wait 50ms", ", 1st of 1\n"), ("--wait 50ms --unfair", " ms\n")] {
        let done = home.say(&format!("run x {options} -- true"));
        assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
        assert!(done.stderr.starts_with(&begin) && done.stderr.ends_with(end), "{options}: {}", done.stderr);
        assert!(done.stderr.contains(&format!(", token {token}, lease ends in ")), "{}", done.stderr);
    }
    assert_eq!(home.say("run x --wait 0 --held-code 0 -- true").code, 0);
    assert_eq!(home.say("hold x --wait 0 --held-code 9").code, 9);
    let done = home.say("run x --wait 0 --held-code 0 -q -- true");
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "a skip that was asked for is no failure");
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().code, 0);
    home.assert_nothing_left();
}

#[test]
fn inside_of_itself() {
    let home = Home::new();
    let nested = |outer: &str, inner: &str| home.say(&format!("run x {outer} -- fencelock run {inner} -- echo in"));
    for (outer, inner) in
        [("", "x"), ("--shared", "x"), ("", "x --shared"), ("--permits 2 --of 3", "x --permits 2 --of 3")]
    {
        let done = nested(outer, inner);
        assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{outer} {inner}: {done:?}");
        assert!(done.stderr.contains("would wait for itself"), "{}", done.stderr);
    }
    for (outer, inner) in [
        ("", "y"),
        ("", "x --namespace other"),
        ("", "x --store sqlite:other.db"),
        ("--shared", "x --shared"),
        ("--permits 1 --of 2", "x --permits 1 --of 2"),
    ] {
        let done = nested(outer, inner);
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "in\n", ""), "{outer} {inner}");
    }
    // Two levels down, and by another way of writing the same store.
    let same = format!("--store sqlite:{}", home.store().display());
    let done = home.say(&format!("run x -- fencelock run y -- fencelock run x {same} -- true"));
    assert_eq!(done.code, 75, "{done:?}");
    home.assert_nothing_left();
}

#[test]
fn lost_while_it_ran() {
    let home = Home::new();
    let (running, pid) = home.start_script(&["--max-hold", "300ms"], "exec sleep 1000");
    let done = running.finish();
    assert_eq!(done.code, 76, "{done:?}");
    assert_eq!(done.stderr.matches('\n').count(), 1, "{done:?}");
    assert!(!crate::support::is_alive(pid));
    home.assert_nothing_left();
}

#[test]
fn a_bug_of_ours() {
    let done = Home::new().say("__bug");
    assert_eq!(done.code, 70);
    assert!(done.stderr.starts_with("fencelock: this is a bug of fencelock, please report it: asked for"), "{done:?}");
}
