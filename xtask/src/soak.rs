//! `cargo xtask soak`: the test binaries, built once, run again and again, each round with another seed, until one fails.
//!
//! Tests find `FENCELOCK_SOAK=1` (they may do more than usual) and `FENCELOCK_SEED` (whatever is random in them comes from
//! it) in their environment. A line of theirs that begins with `counted: ` is shown although they passed.

use crate::Result;
use crate::build::{Binary, binaries};
use crate::run::{self, say};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// No suite takes this long; one that does hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// When to stop if nothing fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Rounds(u64),
    Time(Duration),
}

impl Until {
    fn reached(self, rounds: u64, elapsed: Duration) -> bool {
        match self {
            Until::Rounds(n) => rounds >= n,
            Until::Time(time) => elapsed >= time,
        }
    }
}

/// Runs the rounds. `Ok(true)` if none failed.
pub(crate) fn soak(until: Until, filter: Option<&str>) -> Result<bool> {
    say("building the test binaries");
    let mut cargo = run::cargo();
    cargo.args(["test", "--workspace", "--all-features", "--all-targets"]);
    let (chosen, filter) = choose(binaries(&mut cargo)?, filter);
    let logs = crate::root().join("target/soak");
    std::fs::create_dir_all(&logs).map_err(|e| format!("cannot make {}: {e}", logs.display()))?;

    let started = Instant::now();
    let (mut rounds, mut tests) = (0, 0);
    while !until.reached(rounds, started.elapsed()) {
        let seed = random();
        let round_started = Instant::now();
        let mut in_round = 0;
        for binary in &chosen {
            match run_once(binary, filter, seed, &logs)? {
                Ok(ran) => in_round += ran,
                Err(why) => {
                    say(&format!("round {}: {why}", rounds + 1));
                    say(&format!("{rounds} rounds passed, {} tests in them, 1 round failed", tests));
                    return Ok(false);
                }
            }
        }
        if in_round == 0 {
            say("no test was run: nothing has that name");
            return Ok(false);
        }
        rounds += 1;
        tests += in_round;
        say(&format!(
            "round {rounds}: {in_round} passed in {:.1} s (seed {seed})",
            round_started.elapsed().as_secs_f64()
        ));
    }
    say(&format!("{rounds} rounds passed, {tests} tests in them, in {:.0} s", started.elapsed().as_secs_f64()));
    Ok(true)
}

/// A filter that is part of a suite's name chooses whole suites; any other is left to the tests' names.
fn choose(all: Vec<Binary>, filter: Option<&str>) -> (Vec<Binary>, Option<&str>) {
    let Some(word) = filter else { return (all, None) };
    let (named, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|binary| {
        binary.suite.contains(word) || binary.suite.replace("conformance: ", "conformance_").contains(word)
    });
    if named.is_empty() { (rest, filter) } else { (named, None) }
}

/// Runs one binary: how many tests passed, or what to say of the failure. What it said is kept only then.
fn run_once(binary: &Binary, filter: Option<&str>, seed: u64, logs: &std::path::Path) -> Result<Result<usize>> {
    let word: String = binary.suite.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let log: PathBuf = logs.join(format!("{word}-{seed}.log"));
    let mut file = std::fs::File::create(&log).map_err(|e| format!("cannot write {}: {e}", log.display()))?;
    let mut command = binary.command(filter);
    command.env("FENCELOCK_SOAK", "1").env("FENCELOCK_SEED", seed.to_string());
    let mut unwritten = None;
    let (end, suite) = binary.run(&mut command, LIMIT, |line| {
        if line.starts_with("counted: ") {
            say(line);
        }
        unwritten = unwritten.take().or(writeln!(file, "{line}").err());
    })?;
    if let Some(error) = unwritten {
        return Err(format!("cannot write {}: {error}", log.display()));
    }
    let complaint = match end.complaint() {
        None if (suite.results > 0 || suite.not_run.is_some()) && suite.failed == 0 => {
            std::fs::remove_file(&log).map_err(|e| format!("cannot remove {}: {e}", log.display()))?;
            return Ok(Ok(suite.passed));
        }
        None => "it ended without a result".to_string(),
        Some(how) => how,
    };
    let tests = if suite.failures.is_empty() { "no test is named".into() } else { suite.failures.join(", ") };
    Ok(Err(format!(
        "{} FAILED ({complaint}): {tests}\n  seed {seed}, log {}\n  again: FENCELOCK_SOAK=1 FENCELOCK_SEED={seed} {}",
        binary.suite,
        log.display(),
        binary.path.display()
    )))
}

/// A random number from the standard library's own source of them.
fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(suite: &str, path: &str) -> Binary {
        Binary { suite: suite.into(), path: path.into(), folder: "/".into() }
    }

    #[test]
    fn a_filter_names_suites_or_tests() {
        let all = || vec![binary("conformance: memory", "a"), binary("unit: fencelock src/lib.rs", "b")];
        let chosen = |filter| {
            let (chosen, filter) = choose(all(), filter);
            (chosen.len(), filter)
        };
        assert_eq!(chosen(None), (2, None));
        assert_eq!(chosen(Some("conformance_memory")), (1, None));
        assert_eq!(chosen(Some("memory")), (1, None));
        assert_eq!(chosen(Some("fair")), (2, Some("fair")));
    }

    #[test]
    fn rounds_and_time_end() {
        assert!(!Until::Rounds(2).reached(1, Duration::MAX) && Until::Rounds(2).reached(2, Duration::ZERO));
        let minute = Duration::from_secs(60);
        assert!(!Until::Time(minute).reached(9, Duration::ZERO) && Until::Time(minute).reached(0, minute));
    }

    #[test]
    fn a_failure_keeps_its_log_and_tells_how_to_repeat_it() {
        let logs = std::env::temp_dir().join(format!("xtask-soak-{}", std::process::id()));
        std::fs::create_dir_all(&logs).unwrap();
        let failed = run_once(&binary("broken", "/bin/false"), None, 7, &logs).unwrap().unwrap_err();
        assert!(failed.contains("exit status: 1") && failed.contains("FENCELOCK_SEED=7 /bin/false"), "{failed}");
        assert!(logs.join("broken-7.log").is_file());
        let silent = run_once(&binary("silent", "/bin/true"), None, 7, &logs).unwrap().unwrap_err();
        assert!(silent.contains("without a result"), "{silent}");
        std::fs::remove_dir_all(&logs).unwrap();
    }
}
