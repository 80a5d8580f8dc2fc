//! A test that failed in the crowd is run again, alone, several times. One that then never fails is *shaky*: still a bug, of
//! the test or of the code, and told loudly at the end, but it does not hold up everybody else's work. `--strict` forgives
//! nothing, and neither does `cargo xtask soak`.

use crate::Result;
use crate::build::{Binary, binaries};
use crate::report::Suite;
use crate::run::{self, say};
use std::time::Duration;

/// More failures than this are no bad luck.
const AT_MOST: usize = 3;

/// How often it must pass alone.
const TIMES: usize = 3;

/// No single test takes this long.
const LIMIT: Duration = Duration::from_secs(5 * 60);

/// Runs what failed again, and counts what passed every time as passed. Says which those were.
pub(crate) fn again(suites: &mut [Suite]) -> Result<Vec<String>> {
    let failed: usize = suites.iter().map(|suite| suite.failed).sum();
    if failed == 0 || !worth_it(suites) {
        return Ok(Vec::new());
    }
    say(&format!("\n== {failed} failed: once more, each alone, {TIMES} times =="));
    let mut cargo = run::cargo();
    cargo.args(["test", "--workspace", "--all-features", "--all-targets"]);
    let binaries = binaries(&mut cargo)?;
    let mut shaky = Vec::new();
    for suite in suites.iter_mut().filter(|suite| suite.failed > 0) {
        let Some(binary) = binaries.iter().find(|binary| binary.suite == suite.name) else { continue };
        let mut still = Vec::new();
        for test in std::mem::take(&mut suite.failures) {
            if (0..TIMES).all(|_| passes(binary, &test)) {
                shaky.push(format!("{}: {test}", suite.name));
            } else {
                still.push(test);
            }
        }
        suite.passed += suite.failed - still.len();
        suite.failed = still.len();
        suite.failures = still;
    }
    Ok(shaky)
}

/// Few failed, each with a name, and no binary ended without a result.
fn worth_it(suites: &[Suite]) -> bool {
    let named = |suite: &Suite| suite.failures.len() == suite.failed;
    let ended = |suite: &Suite| suite.results > 0 || suite.not_run.is_some();
    suites.iter().map(|suite| suite.failed).sum::<usize>() <= AT_MOST && suites.iter().all(|s| named(s) && ended(s))
}

fn passes(binary: &Binary, test: &str) -> bool {
    let mut command = binary.command(Some(test));
    command.arg("--exact");
    let ran = binary.run(&mut command, LIMIT, say);
    matches!(ran, Ok((end, suite)) if end.complaint().is_none() && (suite.passed, suite.failed) == (1, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(failed: usize, named: usize, results: usize) -> Suite {
        let failures = (0..named).map(|n| format!("t{n}")).collect();
        Suite { passed: 9, failed, results, failures, ..Suite::named("x") }
    }

    #[test]
    fn a_crowd_of_failures_and_a_crash_are_not_forgiven() {
        assert!(worth_it(&[suite(2, 2, 1), suite(1, 1, 1)]));
        assert!(!worth_it(&[suite(2, 2, 1), suite(2, 2, 1)]), "too many");
        assert!(!worth_it(&[suite(1, 0, 1)]), "no name");
        assert!(!worth_it(&[suite(1, 1, 1), suite(0, 0, 0)]), "a crash beside it");
        assert_eq!(again(&mut [suite(0, 0, 1)]), Ok(Vec::new()));
    }

    #[test]
    fn only_what_runs_and_passes_has_passed() {
        let program = |path: &str| Binary { suite: "x".into(), path: path.into(), folder: "/".into() };
        assert!(!passes(&program("/bin/true"), "t"), "it ran nothing");
        assert!(!passes(&program("/bin/false"), "t"));
    }
}
