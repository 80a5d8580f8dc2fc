//! Odd bytes as names, URLs and everything else: a clear line and a code of the contract, never a panic.

use crate::support::Home;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// A small generator: the same bytes at each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// An argument: no NUL, which the system cannot pass.
    fn bytes(&mut self) -> OsString {
        let length = self.next() % 24;
        OsString::from_vec((0..length).map(|_| (self.next() % 255 + 1) as u8).collect())
    }
}

#[test]
fn random_bytes_never_make_it_panic() {
    let home = Home::new();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for _ in 0..10 {
        let name = random.bytes();
        let mut prefixed = OsString::from("sqlite:sub/");
        prefixed.push(random.bytes());
        let calls: [Vec<OsString>; 4] = [
            vec!["show".into(), name.clone()],
            vec!["show".into(), "x".into(), "--store".into(), random.bytes()],
            vec!["show".into(), "x".into(), "--store".into(), prefixed],
            vec!["run".into(), name, "--wait".into(), random.bytes(), "--".into(), "true".into()],
        ];
        for call in calls {
            let output = home.fencelock(&call).output().unwrap();
            let code = output.status.code().unwrap();
            assert!([0, 64, 69].contains(&code), "{call:?}: {output:?}");
            let stderr = String::from_utf8(output.stderr).expect("what we say is UTF-8");
            assert_eq!(stderr.matches('\n').count(), usize::from(code != 0), "{call:?}: {stderr}");
            assert!(!stderr.trim_end().contains(char::is_control), "{call:?}: {stderr:?}");
        }
    }
}

#[test]
fn a_password_never_shows() {
    let home = Home::new();
    for line in [
        "--store redis://user:hunter2@host:x show x",
        "--store redis://user:hunter2@host?colour=red --json show x",
        "show x redis://user:hunter2@host",
        "redis://user:hunter2@host",
        "show x -vv --store mongodb://user:hunter2@host/?a=b",
        "run x --lease redis://user:hunter2@host -- true",
    ] {
        let done = home.say(line);
        assert_eq!(done.code, 64, "{done:?}");
        assert!(!done.stderr.contains("hunter2"), "{}", done.stderr);
    }
    // A port where nobody listens.
    let done = home.say("--store redis://user:hunter2@127.0.0.1:1 -vv show x");
    assert_eq!(done.code, 69, "{done:?}");
    assert!(!done.stderr.contains("hunter2"), "{}", done.stderr);
    let mut command = home.fencelock(["show", "x"]);
    command.env("FENCELOCK_STORE", "mongodb://user:hunter2@host");
    let done = crate::support::finish(command);
    assert_eq!(done.code, 64);
    assert!(!done.stderr.contains("hunter2"), "{}", done.stderr);
}

#[test]
fn the_store_is_chosen_by_flag_then_environment_then_default() {
    let home = Home::new();
    let at = |flag: &[&str], env: Option<&str>| {
        let mut command = home.fencelock(["run", "x"].iter().chain(flag).chain(&["--", "true"]));
        command.envs(env.map(|url| ("FENCELOCK_STORE", url)));
        assert_eq!(crate::support::finish(command).code, 0);
    };
    at(&["--store", "sqlite:flag.db"], Some("sqlite:env.db"));
    assert!(home.path().join("flag.db").exists() && !home.path().join("env.db").exists());
    at(&[], Some("sqlite:env.db"));
    assert!(home.path().join("env.db").exists() && !home.store().exists());
    at(&[], Some(""));
    assert!(home.store().exists(), "an empty one is none");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(home.store().parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
