//! Reading what `cargo test` says: which suites ran, and how many tests passed, failed and were left out in each.
//!
//! libtest, libtest-mimic and rustdoc all end a suite with the same line (`test result: ok. 13 passed; ...`); cargo says
//! before it what it is about to run.

/// One test binary, or the doc tests of one crate.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Suite {
    /// For people: `unit: fencelock src/lib.rs`, `conformance: memory`, `doc: fencelock`.
    pub(crate) name: String,
    /// How many tests passed.
    pub(crate) passed: usize,
    /// How many failed.
    pub(crate) failed: usize,
    /// How many were there and not run.
    pub(crate) ignored: usize,
    /// How long they took, by their own account.
    pub(crate) seconds: f64,
    /// How many `test result` lines there were: none means that the binary crashed or was killed, doc tests may have several.
    pub(crate) results: usize,
    /// The names of the tests that failed.
    pub(crate) failures: Vec<String>,
    /// The same as it is told test by test: all there is of a binary that never came to its result.
    pub(crate) failed_so_far: Vec<String>,
    /// Why it has nothing to run here, by its own account: `not run: ...`.
    pub(crate) not_run: Option<String>,
}

impl Suite {
    /// A suite that nothing is known of yet but its name.
    pub(crate) fn named(name: &str) -> Suite {
        Suite { name: name.to_string(), ..Suite::default() }
    }

    /// How many tests really ran.
    pub(crate) fn ran(&self) -> usize {
        self.passed + self.failed
    }

    /// Reads one line of the suite's own output.
    fn read(&mut self, line: &str, listed: &mut Option<Vec<String>>) {
        if line == "failures:" {
            // There are two such lines: what the tests said, then the list of names. The last one counts.
            *listed = Some(Vec::new());
        } else if let Some(result) = Counts::parse(line) {
            self.passed += result.passed;
            self.failed += result.failed;
            self.ignored += result.ignored;
            self.seconds += result.seconds;
            self.results += 1;
            self.failures.extend(listed.take().unwrap_or_default());
        } else if let (Some(listed), Some(name)) = (&mut *listed, line.strip_prefix("    ")) {
            listed.push(name.trim().to_string());
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed_so_far.push(name.trim().to_string());
        } else if let Some(why) = line.strip_prefix("not run: ") {
            self.not_run = Some(why.to_string());
        }
    }
}

/// The numbers of one `test result` line.
#[derive(Debug, PartialEq)]
struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
    seconds: f64,
}

impl Counts {
    fn parse(line: &str) -> Option<Counts> {
        let rest = line.strip_prefix("test result: ")?;
        let (_, rest) = rest.split_once(". ")?;
        let number = |word: &str| -> Option<usize> {
            let part = rest.split("; ").map(str::trim).find_map(|part| part.strip_suffix(word));
            part?.trim().parse().ok()
        };
        let seconds = rest.split_once("finished in ").and_then(|(_, time)| time.trim().strip_suffix('s')?.parse().ok());
        Some(Counts {
            passed: number("passed")?,
            failed: number("failed")?,
            ignored: number("ignored")?,
            seconds: seconds.unwrap_or(0.0),
        })
    }
}

/// What a whole `cargo test` said, suite by suite.
#[derive(Debug, Default)]
pub(crate) struct Report {
    suites: Vec<Suite>,
    listed: Option<Vec<String>>,
}

impl Report {
    /// Reads the output of one test binary.
    pub(crate) fn of(name: &str) -> Report {
        Report { suites: vec![Suite::named(name)], listed: None }
    }

    /// Reads one more line.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(name) = announced(line) {
            self.listed = None;
            self.suites.push(Suite::named(&name));
        } else if let Some(suite) = self.suites.last_mut() {
            suite.read(line, &mut self.listed);
        }
    }

    /// Every suite that was announced, in order.
    pub(crate) fn suites(self) -> Vec<Suite> {
        self.suites
    }
}

/// The suite that cargo says it will run next, if that is what the line says.
fn announced(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("doc: {}", name.trim()));
    }
    let (source, binary) = line.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let file = binary.rsplit('/').next().unwrap_or(binary);
    let stem = file.rsplit_once('-').map_or(file, |(stem, _)| stem);
    Some(suite_name(stem, source.strip_prefix("unittests ").unwrap_or(source)))
}

/// What a suite is called, by its binary's name and its source file.
pub(crate) fn suite_name(binary: &str, source: &str) -> String {
    match binary.strip_prefix("conformance_") {
        Some(store) => format!("conformance: {store}"),
        None if source.starts_with("src/") => format!("unit: {binary} {source}"),
        None => format!("test: {binary}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"
    Finished `test` profile [unoptimized] target(s) in 0.05s
     Running unittests src/lib.rs (target/debug/deps/fencelock-0123456789abcdef)

running 3 tests
test line::tests::fits ... ok
test name::tests::odd ... FAILED
test slow ... ignored

failures:

---- name::tests::odd stdout ----
thread panicked:
    left: 1

failures:
    name::tests::odd

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.25s

error: test failed, to rerun pass `-p fencelock --lib`
     Running tests/conformance_memory.rs (target/debug/deps/conformance_memory-0123456789abcdef)

running 2 tests
test fair        ... ok
test exclusive   ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s

     Running unittests src/main.rs (target/debug/deps/fencelock-fedcba9876543210)

running 1 test
   Doc-tests fencelock

running 2 tests
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.50s

running 1 test
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.25s

all doctests ran in 0.90s; merged doctests compilation took 0.40s
"#;

    #[test]
    fn a_whole_run_is_read_suite_by_suite() {
        let mut report = Report::default();
        SAID.lines().for_each(|line| report.read(line));
        let [unit, conformance, crashed, doc] = report.suites().try_into().unwrap();
        assert_eq!(unit.name, "unit: fencelock src/lib.rs");
        assert_eq!((unit.passed, unit.failed, unit.ignored, unit.seconds), (1, 1, 1, 0.25));
        assert_eq!(unit.failures, ["name::tests::odd"], "not the indented words of the test itself");
        assert_eq!((conformance.name.as_str(), conformance.passed), ("conformance: memory", 2));
        assert_eq!((crashed.name.as_str(), crashed.results), ("unit: fencelock src/main.rs", 0));
        assert_eq!((doc.name.as_str(), doc.passed, doc.results, doc.seconds), ("doc: fencelock", 3, 2, 0.75));
    }

    #[test]
    fn a_binary_that_never_ends_has_told_what_failed_until_then() {
        let mut report = Report::of("x");
        for line in ["running 2 tests", "test a::b    ... FAILED", "test c ... "] {
            report.read(line);
        }
        let suite = report.suites().pop().unwrap();
        assert_eq!((suite.results, suite.failures.len(), suite.failed_so_far), (0, 0, vec!["a::b".to_string()]));
    }

    #[test]
    fn lines_that_only_look_alike_are_left_alone() {
        for line in
            ["     Running `target/debug/xtask test`", "Running late", "test result: soon", "test result: ok. many"]
        {
            assert_eq!(announced(line), None, "{line}");
            assert_eq!(Counts::parse(line), None, "{line}");
        }
    }

    #[test]
    fn suites_are_called_by_what_they_are() {
        assert_eq!(suite_name("conformance_sqlite", "tests/conformance_sqlite.rs"), "conformance: sqlite");
        assert_eq!(suite_name("exit_codes", "tests/exit_codes.rs"), "test: exit_codes");
        assert_eq!(suite_name("fencelock", "src/main.rs"), "unit: fencelock src/main.rs");
    }
}
