//! The whole help of each verb, compared with what is kept in `help/`. `BLESS=1` writes it anew.

use crate::support::Home;
use std::path::Path;

fn check(name: &str, args: &[&str]) {
    let home = Home::new();
    let done = home.run(args);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/help").join(format!("{name}.txt"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&kept, &done.stdout).unwrap();
    }
    assert_eq!(done.stdout, std::fs::read_to_string(&kept).unwrap(), "see {}", kept.display());
    assert!(!home.store().exists(), "help creates nothing");
}

#[test]
fn of_the_program() {
    check("fencelock", &["--help"]);
    check("short", &["-h"]);
}

#[test]
fn of_each_verb() {
    for verb in ["run", "hold", "elect", "limit", "show", "ls", "watch", "break", "migrate", "stores", "completions"] {
        check(verb, &[verb, "--help"]);
    }
}

#[test]
fn the_version() {
    let done = Home::new().say("--version");
    assert_eq!((done.code, done.stdout), (0, format!("fencelock {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = Home::new().run(["completions", shell]);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        assert!(done.stdout.contains("until-eof") && !done.stdout.contains("__exec"), "{shell}");
    }
}

#[test]
fn a_password_in_the_environment_does_not_show() {
    let home = Home::new();
    let mut command = home.fencelock(["run", "--help"]);
    command.env("FENCELOCK_STORE", "redis://user:hunter2@host");
    assert!(!crate::support::finish(command).stdout.contains("hunter2"));
}
