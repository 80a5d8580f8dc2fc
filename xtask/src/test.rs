//! `cargo xtask test`: every test of the workspace, doc tests and interleavings included, and at the end a table of what
//! ran where. A suite that did not run is never shown as passed, and a step that ran no test at all has failed. What failed
//! gets a second chance, alone ([`again`]), unless the caller is strict.

use crate::Result;
use crate::again::again;
use crate::report::{Report, Suite};
use crate::run::{self, End, say};
use crate::table::table;
use crate::tools::{self, Found, TOOLS};
use std::process::Command;
use std::time::{Duration, Instant};

/// No step of a healthy run takes this long; a hung one must not hold a machine for ever.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// What became of a suite.
#[derive(Clone, Debug, PartialEq)]
enum Status {
    Passed,
    Failed,
    /// Not run, which is a failure by itself if it is required.
    NotRun {
        required: bool,
    },
}

/// One line of the closing table.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    suite: Suite,
    status: Status,
    why: String,
}

impl Row {
    fn failed(name: &str, why: impl Into<String>) -> Row {
        Row { suite: Suite::named(name), status: Status::Failed, why: why.into() }
    }

    fn not_run(name: &str, required: bool, why: impl Into<String>) -> Row {
        Row { suite: Suite::named(name), status: Status::NotRun { required }, why: why.into() }
    }
}

/// One `cargo test` of the run.
struct Step {
    name: &'static str,
    command: Command,
    /// How its suites are called, if not as they call themselves.
    rename: Option<fn(&str) -> String>,
    /// What it needs first, and may go without: if this fails, the step is not run, and the table says so.
    first: Option<Command>,
}

/// Runs everything. `Ok(true)` if all that is required ran and passed.
pub(crate) fn test(install: bool, strict: bool, filter: Option<&str>) -> Result<bool> {
    let mut rows = tool_rows(&tools::provide(TOOLS, install));
    let (mut without_tests, mut shaky) = (Vec::new(), Vec::new());
    for step in steps(filter) {
        let Some(mut step) = step.map_err(|row| rows.push(row)).ok() else { continue };
        say(&format!("\n== {} ==", step.name));
        let started = Instant::now();
        if let Some(first) = &mut step.first
            && let Some(why) = run::shown_lines(first, Some(LIMIT))?.complaint()
        {
            rows.push(Row::not_run(step.name, false, format!("{}: {why}", run::shown(first))));
            continue;
        }
        let mut report = Report::default();
        say(&format!("$ {}", run::shown(&step.command)));
        let end = run::lines(&mut step.command, Some(LIMIT), |line| {
            report.read(line);
            say(line);
        })?;
        let mut suites = report.suites();
        if let Some(rename) = step.rename {
            suites.iter_mut().for_each(|suite| suite.name = rename(&suite.name));
        }
        let mut end = end;
        if !strict && end.complaint().is_some() {
            shaky.extend(again(&mut suites)?);
            if !shaky.is_empty() && suites.iter().all(|suite| suite.failed == 0) {
                end = End::Well;
            }
        }
        let (judged, empty) = judge(step.name, suites, &end, filter.is_some());
        without_tests.extend(empty);
        rows.extend(judged);
        say(&format!("== {}: {:.1} s ==", step.name, started.elapsed().as_secs_f64()));
    }
    if filter.is_some() && rows.iter().all(|row| row.suite.ran() == 0) {
        rows.push(Row::failed("all", "no test has the filter in its name"));
    }
    say(&closing(&rows, &without_tests, &shaky));
    Ok(rows.iter().all(|row| !matches!(row.status, Status::Failed | Status::NotRun { required: true })))
}

/// The steps, in order; a step that is left out is an `Err` with the line that says so.
fn steps(filter: Option<&str>) -> Vec<std::result::Result<Step, Row>> {
    let whole = |kind: &str| {
        let mut cargo = run::cargo();
        cargo.args(["test", "--workspace", "--all-features", kind, "--no-fail-fast"]);
        if let Some(filter) = filter {
            cargo.args(["--", filter]);
        }
        cargo
    };
    let mut steps = vec![
        Ok(Step { name: "tests", command: whole("--all-targets"), rename: None, first: None }),
        Ok(Step { name: "doc tests", command: whole("--doc"), rename: None, first: None }),
    ];
    steps.push(match filter {
        Some(filter) if !filter.contains("sqlx") => Err(Row::not_run(SQLX, false, "left out by the filter")),
        _ => Ok(sqlx()),
    });
    // Its own flags would rebuild everything in the common folder, so it has one of its own.
    let mut cargo = run::cargo();
    cargo.env("RUSTFLAGS", with_cfg("fencelock_shuttle"));
    cargo.args(["test", "-p", "fencelock", "--no-default-features", "--features", "memory", "--lib"]);
    cargo.args(["--target-dir", "target/shuttle", "--", filter.unwrap_or("shuttle")]);
    let rename: fn(&str) -> String = |name| name.replace("unit: fencelock src/lib.rs", "interleavings: shuttle");
    steps.push(match filter {
        Some(filter) if !filter.contains("shuttle") => {
            Err(Row::not_run("interleavings: shuttle", false, "left out by the filter"))
        }
        _ => Ok(Step { name: "interleavings", command: cargo, rename: Some(rename), first: None }),
    });
    steps
}

const SQLX: &str = "example: sqlx";

/// The example with a driver that is not ours: a workspace of its own, whose crates may be out of reach.
fn sqlx() -> Step {
    let cargo = |word: &str| {
        let mut cargo = run::cargo();
        cargo.args([word, "--locked", "--manifest-path", "examples/sqlx/Cargo.toml"]);
        cargo
    };
    let mut command = cargo("test");
    command.args(["--target-dir", "target/sqlx", "--test", "shop"]);
    Step { name: SQLX, command, rename: Some(|_| SQLX.to_string()), first: Some(cargo("fetch")) }
}

/// The caller's flags for rustc, with one more `--cfg`.
pub(crate) fn with_cfg(cfg: &str) -> String {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    format!("{flags} --cfg {cfg}").trim().to_string()
}

/// Turns what a step reported into lines of the table, and names the suites that have no tests (which is no failure of
/// theirs, unless it is a conformance suite or the whole step).
fn judge(step: &str, suites: Vec<Suite>, end: &End, filtered: bool) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut without_tests) = (Vec::new(), Vec::new());
    let total: usize = suites.iter().map(Suite::ran).sum();
    for suite in suites {
        let conformance = suite.name.starts_with("conformance: ");
        let (status, why) = if let (Some(why), 0) = (&suite.not_run, suite.results) {
            (Status::NotRun { required: false }, why.clone())
        } else if suite.results == 0 {
            let mut why = format!("ended without a result: {}", end.complaint().unwrap_or_default());
            if !suite.failed_so_far.is_empty() {
                why += &format!("; failed until then: {}", suite.failed_so_far.join(", "));
            }
            (Status::Failed, why)
        } else if suite.failed > 0 {
            (Status::Failed, suite.failures.join(", "))
        } else if suite.ran() == 0 && suite.ignored == 0 && (filtered || !conformance) {
            if !filtered {
                without_tests.push(suite.name);
            }
            continue;
        } else if suite.ran() == 0 && conformance {
            (Status::Failed, "ran no test".to_string())
        } else {
            (Status::Passed, String::new())
        };
        rows.push(Row { suite, status, why });
    }
    let failed = rows.iter().any(|row| row.status == Status::Failed);
    if let Some(how) = end.complaint().filter(|_| !failed) {
        // Nothing to show for it: it did not build, or something outside of the tests went wrong.
        rows.push(Row::failed(step, how));
    } else if total == 0 && !filtered && !failed {
        rows.push(Row::failed(step, "ran no test"));
    }
    (rows, without_tests)
}

/// Says where each tool is, and gives a line of the table for each that is not.
fn tool_rows(found: &[(&'static tools::Tool, Found)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (tool, found) in found {
        match found {
            Found::At(path) => say(&format!("{} (for {}): {}", tool.name, tool.used_by, path.display())),
            Found::Installed(path) => {
                say(&format!("{} (for {}): installed, {}", tool.name, tool.used_by, path.display()));
            }
            Found::Missing(why) => {
                let why = format!("{why} (packages: {}; for {})", tool.packages.join(" "), tool.used_by);
                say(&format!("{}: missing: {why}", tool.name));
                rows.push(Row::not_run(tool.name, tool.required, why));
            }
        }
    }
    rows
}

/// The table and the line that end the run.
fn closing(rows: &[Row], without_tests: &[String], shaky: &[String]) -> String {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut cells = Vec::new();
    for Row { suite, status, why } in rows {
        passed += suite.passed;
        skipped += suite.ignored;
        failed += suite.failed;
        let status = match status {
            Status::Passed => "passed",
            Status::Failed => {
                failed += usize::from(suite.failed == 0);
                "FAILED"
            }
            Status::NotRun { required: true } => {
                failed += 1;
                "NOT RUN, required"
            }
            Status::NotRun { required: false } => {
                skipped += 1;
                "not run"
            }
        };
        let count = |n: usize| n.to_string();
        let seconds = if suite.results > 0 { format!("{:.2}", suite.seconds) } else { String::new() };
        let numbers = [count(suite.passed), count(suite.failed), count(suite.ignored)];
        let [p, f, i] = if suite.results > 0 { numbers } else { Default::default() };
        cells.push([suite.name.clone(), status.to_string(), p, f, i, seconds, why.clone()]);
    }
    let head = ["what ran", "status", "passed", "failed", "ignored", "seconds", "why"];
    let mut out = format!("\n{}\n", table(head, &cells));
    if !without_tests.is_empty() {
        out += &format!("no tests in: {}\n", without_tests.join(", "));
    }
    for test in shaky {
        out += &format!("SHAKY: {test}: failed among the others and passed alone each time; what it said is above\n");
    }
    out + &format!("\n{passed} passed, {failed} failed, {skipped} skipped")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(name: &str, passed: usize, failed: usize, results: usize) -> Suite {
        let failures = (0..failed).map(|n| format!("t{n}")).collect();
        Suite { passed, failed, results, failures, ..Suite::named(name) }
    }

    fn badly() -> End {
        End::Badly("exit status: 101".into())
    }

    #[test]
    fn a_good_run_is_good() {
        let suites = vec![suite("unit: a src/lib.rs", 3, 0, 1), suite("unit: b src/main.rs", 0, 0, 1)];
        let (rows, empty) = judge("tests", suites, &End::Well, false);
        assert_eq!((rows.len(), &rows[0].status), (1, &Status::Passed));
        assert_eq!(empty, ["unit: b src/main.rs"]);
        let closing = closing(&rows, &empty, &[]);
        assert!(closing.contains("no tests in: unit: b src/main.rs"), "{closing}");
        assert!(closing.ends_with("\n3 passed, 0 failed, 0 skipped"), "{closing}");
    }

    #[test]
    fn whatever_goes_wrong_is_a_failure() {
        let failing = |suites, end: &End| {
            let (rows, _) = judge("tests", suites, end, false);
            let bad: Vec<String> = rows.iter().filter(|r| r.status == Status::Failed).map(|r| r.why.clone()).collect();
            assert!(!closing(&rows, &[], &[]).contains(" 0 failed"), "{rows:?}");
            bad.join("; ")
        };
        assert_eq!(failing(vec![suite("x", 1, 2, 1)], &badly()), "t0, t1");
        assert_eq!(failing(vec![suite("x", 0, 0, 0)], &badly()), "ended without a result: exit status: 101");
        assert_eq!(failing(vec![], &badly()), "exit status: 101", "it did not build");
        assert_eq!(failing(vec![suite("x", 1, 0, 1)], &badly()), "exit status: 101");
        assert_eq!(failing(vec![], &End::Well), "ran no test");
        assert_eq!(failing(vec![suite("x", 0, 0, 1)], &End::Well), "ran no test");
        let conformance = vec![suite("x", 1, 0, 1), suite("conformance: memory", 0, 0, 1)];
        assert_eq!(failing(conformance, &End::Well), "ran no test");
        let mut crashed = suite("x", 0, 0, 0);
        crashed.failed_so_far = vec!["t7".into()];
        assert!(failing(vec![crashed], &badly()).ends_with("failed until then: t7"));
        let time_up = End::TimeUp(Duration::from_secs(9));
        assert_eq!(failing(vec![suite("x", 0, 0, 0)], &time_up), "ended without a result: still running after 9 s");
    }

    #[test]
    fn a_filter_may_leave_suites_empty() {
        let suites = vec![suite("conformance: memory", 0, 0, 1), suite("x", 1, 0, 1)];
        let (rows, empty) = judge("tests", suites, &End::Well, true);
        assert_eq!((rows.len(), empty.len()), (1, 0));
        assert!(steps(Some("fair")).last().unwrap().is_err(), "interleavings are left out, and said so");
        assert!(steps(Some("shuttle")).last().unwrap().is_ok());
    }

    #[test]
    fn a_suite_that_has_nothing_to_run_here_says_so_itself() {
        let mut without = suite("conformance: valkey", 0, 0, 0);
        without.not_run = Some("no server".into());
        let (rows, _) = judge("tests", vec![suite("x", 1, 0, 1), without.clone()], &End::Well, false);
        assert_eq!((&rows[1].status, rows[1].why.as_str()), (&Status::NotRun { required: false }, "no server"));
        without.results = 1;
        let (rows, _) = judge("tests", vec![suite("x", 1, 0, 1), without], &End::Well, false);
        assert_eq!(rows[1].status, Status::Failed, "one that runs has to run something");
    }

    #[test]
    fn what_did_not_run_is_told_and_counted() {
        let optional = Row::not_run("Valkey", false, "missing");
        let required = Row::not_run("Redis", true, "missing");
        assert!(closing(std::slice::from_ref(&optional), &[], &[]).ends_with("\n0 passed, 0 failed, 1 skipped"));
        let both = closing(&[optional, required], &[], &["x: t1".into()]);
        assert!(both.contains("SHAKY: x: t1: failed"), "{both}");
        assert!(both.contains("NOT RUN, required") && both.ends_with("\n0 passed, 1 failed, 1 skipped"), "{both}");
    }
}
