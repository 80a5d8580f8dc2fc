//! `cargo xtask mutants`: proof that the tests bite. Each known bug of [`planted`](mod@planted) is planted in a copy of the
//! workspace, and the tests named with it must go red there, having been green without it.

mod planted;

use crate::Result;
use crate::build::{Binary, binaries};
use crate::report::Suite;
use crate::run::{self, End, say};
use crate::table::table;
use planted::PLANTED;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A test that has not ended by then hangs, which is one way of catching a bug.
const LIMIT: Duration = Duration::from_secs(180);

/// A bug to plant, and the tests that must catch it.
#[derive(Debug)]
struct Mutant {
    /// What it is called on the command line.
    name: &'static str,
    /// What would happen to a user if it went unseen.
    why: &'static str,
    /// The file, from the workspace's folder.
    file: &'static str,
    /// The text to be replaced; must be there exactly once.
    find: &'static str,
    /// What it becomes.
    replace: &'static str,
    /// The package whose tests catch it.
    package: &'static str,
    /// More words for `cargo test`: features, `--lib`, `--test NAME`.
    args: &'static [&'static str],
    /// A `--cfg` to build with, such as `fencelock_shuttle`.
    cfg: Option<&'static str>,
    /// Parts of tests' names: for each of them at least one test must fail.
    tests: &'static [&'static str],
}

/// Shows what there is.
pub(crate) fn list() -> Result<bool> {
    let row = |m: &Mutant| [m.name.to_string(), m.tests.join(", "), m.why.to_string()];
    let rows: Vec<[String; 3]> = PLANTED.iter().map(row).collect();
    say(&table(["bug", "to be caught by", "otherwise"], &rows));
    Ok(true)
}

/// Plants the named bugs, or all. `Ok(true)` if each was caught.
pub(crate) fn mutants(names: &[String]) -> Result<bool> {
    if let Some(unknown) = names.iter().find(|name| PLANTED.iter().all(|mutant| mutant.name != **name)) {
        return Err(format!("there is no bug called {unknown:?}; `cargo xtask mutants --list` shows them"));
    }
    let chosen: Vec<&Mutant> =
        PLANTED.iter().filter(|m| names.is_empty() || names.iter().any(|name| name == m.name)).collect();
    let tree = crate::root().join("target/mutants/tree");
    sync(&crate::root(), &tree)?;

    // Without the bug first, for all of them: a test that is red anyway, or is not there, catches nothing.
    let mut sound: HashMap<Key, Result<()>> = HashMap::new();
    for mutant in &chosen {
        sound.entry(mutant.key()).or_insert_with(|| {
            say(&format!("{}: without the bug", mutant.name));
            green(mutant, &tree)
        });
    }
    let mut rows = Vec::new();
    let mut all_well = true;
    for mutant in &chosen {
        let started = Instant::now();
        let verdict = sound[&mutant.key()].clone().and_then(|()| {
            say(&format!("{}: with the bug", mutant.name));
            planted_in(mutant, &tree)
        });
        all_well &= matches!(verdict, Ok(Verdict::Caught(_)));
        let (verdict, by) = match verdict {
            Ok(Verdict::Caught(by)) => ("caught", by.join(", ")),
            Ok(Verdict::NotCaught(test)) => ("NOT CAUGHT", format!("{test} stays green")),
            Err(why) => ("ERROR", why),
        };
        say(&format!("{}: {verdict}: {by}", mutant.name));
        rows.push([
            mutant.name.to_string(),
            verdict.to_string(),
            format!("{:.0}", started.elapsed().as_secs_f64()),
            by,
        ]);
    }
    say(&format!("\n{}", table(["bug", "verdict", "seconds", "by"], &rows)));
    let caught = rows.iter().filter(|row| row[1] == "caught").count();
    say(&format!("\n{caught} of {} planted bugs caught", rows.len()));
    Ok(all_well)
}

/// What the same tests of the same build share.
type Key = (&'static str, &'static [&'static str], Option<&'static str>, &'static [&'static str]);

enum Verdict {
    Caught(Vec<String>),
    NotCaught(&'static str),
}

impl Mutant {
    fn key(&self) -> Key {
        (self.package, self.args, self.cfg, self.tests)
    }

    fn build(&self, tree: &Path) -> Result<Vec<Binary>> {
        let mut cargo = run::cargo();
        // Builds with other flags would undo each other's work in one folder.
        let folder = format!("../target{}", self.cfg.map(|cfg| format!("-{cfg}")).unwrap_or_default());
        cargo.current_dir(tree).args(["test", "-p", self.package, "--target-dir", &folder]).args(self.args);
        if let Some(cfg) = self.cfg {
            cargo.env("RUSTFLAGS", crate::test::with_cfg(cfg));
        }
        binaries(&mut cargo)
    }

    /// The file's text with the bug in it.
    fn applied(&self, text: &str) -> Result<String> {
        match text.matches(self.find).count() {
            1 => Ok(text.replacen(self.find, self.replace, 1)),
            0 => Err(format!("{}: the text to be replaced is no longer there", self.file)),
            n => Err(format!("{}: the text to be replaced is there {n} times", self.file)),
        }
    }
}

/// Whether the named tests exist and pass without the bug.
fn green(mutant: &Mutant, tree: &Path) -> Result<()> {
    let binaries = mutant.build(tree)?;
    for test in mutant.tests {
        let (mut ran, mut red) = (0, Vec::new());
        for binary in &binaries {
            let (end, suite) = run_test(binary, test)?;
            ran += suite.ran();
            red.extend(complaints(&end, &suite));
        }
        if !red.is_empty() {
            return Err(format!("red without the bug: {}", red.join(", ")));
        }
        if ran == 0 {
            return Err(format!("there is no test {test:?} in {}", mutant.package));
        }
    }
    Ok(())
}

/// Plants the bug, runs the tests, takes it out again.
fn planted_in(mutant: &Mutant, tree: &Path) -> Result<Verdict> {
    let file = tree.join(mutant.file);
    let text = std::fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", mutant.file))?;
    let write = |text: &str| std::fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", mutant.file));
    write(&mutant.applied(&text)?)?;
    let verdict = mutant.build(tree).map_err(|e| format!("with the bug in it: {e}")).and_then(|b| red(mutant, &b));
    write(&text)?;
    verdict
}

/// Runs the tests of one binary that have this in their name.
fn run_test(binary: &Binary, test: &str) -> Result<(End, Suite)> {
    // That it fails is all we want to know, not the smallest example.
    let mut command = binary.command(Some(test));
    command.env("PROPTEST_MAX_SHRINK_TIME", "2000");
    binary.run(&mut command, LIMIT, |_| {})
}

/// Whether each of the named tests fails.
fn red(mutant: &Mutant, binaries: &[Binary]) -> Result<Verdict> {
    let mut by = Vec::new();
    for test in mutant.tests {
        let mut red = Vec::new();
        for binary in binaries {
            let (end, suite) = run_test(binary, test)?;
            red.extend(complaints(&end, &suite));
        }
        if red.is_empty() {
            return Ok(Verdict::NotCaught(test));
        }
        by.extend(red.into_iter().map(|name| if name.starts_with('(') { format!("{test} {name}") } else { name }));
    }
    by.sort();
    by.dedup();
    Ok(Verdict::Caught(by))
}

/// The names of the tests that failed, and, in brackets, how the binary ended if it never came to its result.
fn complaints(end: &End, suite: &Suite) -> Vec<String> {
    let ending = match end {
        End::Well => return Vec::new(),
        End::Badly(_) if !suite.failures.is_empty() => return suite.failures.clone(),
        End::Badly(how) => format!("(crashes: {how})"),
        End::TimeUp(limit) => format!("(hangs: stopped after {} s)", limit.as_secs()),
    };
    suite.failed_so_far.iter().cloned().chain([ending]).collect()
}

/// Makes `to` a copy of the files of `from` that are, or could be, committed. Only files that differ are written, so that
/// the next build has little to do.
fn sync(from: &Path, to: &Path) -> Result<()> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(from);
    let listed = git.output().map_err(|e| format!("cannot run git: {e}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr).trim()));
    }
    let mut keep = HashSet::new();
    for path in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|path| !path.is_empty()) {
        let (source, target) = (from.join(path), to.join(path));
        // A file that was deleted and not yet committed so is still listed.
        let Ok(bytes) = std::fs::read(&source) else { continue };
        keep.insert(target.clone());
        if std::fs::read(&target).is_ok_and(|there| there == bytes) {
            continue;
        }
        let folder = target.parent().unwrap_or(to);
        std::fs::create_dir_all(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        std::fs::write(&target, bytes).map_err(|e| format!("cannot write {}: {e}", target.display()))?;
    }
    remove_others(to, &keep)
}

fn remove_others(folder: &Path, keep: &HashSet<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            remove_others(&path, keep)?;
        } else if !keep.contains(&path) {
            std::fs::remove_file(&path).map_err(|e| format!("cannot remove {}: {e}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_bug_fits_the_source_as_it_is() {
        let mut names = HashSet::new();
        for mutant in PLANTED {
            assert!(names.insert(mutant.name), "{} twice", mutant.name);
            assert!(!mutant.tests.is_empty() && !mutant.why.is_empty(), "{}", mutant.name);
            let text = std::fs::read_to_string(crate::root().join(mutant.file)).unwrap();
            assert_ne!(mutant.applied(&text).unwrap_or_else(|e| panic!("{}: {e}", mutant.name)), text);
        }
    }

    #[test]
    fn text_that_is_not_there_once_is_an_error() {
        let mutant = Mutant { find: "a", ..Mutant { replace: "b", ..bare() } };
        assert_eq!(mutant.applied("xay").unwrap(), "xby");
        assert!(mutant.applied("xy").unwrap_err().contains("no longer"));
        assert!(mutant.applied("aa").unwrap_err().contains("2 times"));
    }

    fn bare() -> Mutant {
        Mutant { name: "", why: "", file: "f", find: "", replace: "", package: "", args: &[], cfg: None, tests: &[] }
    }

    #[test]
    fn a_hang_and_a_crash_are_told_apart_from_a_failing_test() {
        let (green, mut red, mut half) = (Suite::named("x"), Suite::named("x"), Suite::named("x"));
        red.failures.push("t".into());
        half.failed_so_far.push("t".into());
        assert!(complaints(&End::Well, &green).is_empty());
        assert_eq!(complaints(&End::Badly("exit status: 101".into()), &red), ["t"]);
        assert_eq!(complaints(&End::Badly("signal: 6".into()), &green), ["(crashes: signal: 6)"]);
        assert_eq!(complaints(&End::TimeUp(LIMIT), &half), ["t", "(hangs: stopped after 180 s)"]);
    }

    #[test]
    fn a_copy_follows_its_original() {
        let base = std::env::temp_dir().join(format!("xtask-sync-{}", std::process::id()));
        let (from, to) = (base.join("from"), base.join("to"));
        std::fs::create_dir_all(from.join("d")).unwrap();
        let git =
            |args: &[&str]| assert!(Command::new("git").args(args).current_dir(&from).status().unwrap().success());
        git(&["init", "--quiet"]);
        for (file, text) in [(".gitignore", "junk"), ("d/a", "1"), ("b", "2"), ("junk", "3")] {
            std::fs::write(from.join(file), text).unwrap();
        }
        sync(&from, &to).unwrap();
        let read = |file: &str| std::fs::read_to_string(to.join(file)).ok();
        assert_eq!((read("d/a").as_deref(), read("b").as_deref(), read("junk")), (Some("1"), Some("2"), None));
        let written = || std::fs::metadata(to.join(".gitignore")).unwrap().modified().unwrap();
        let before = written();
        std::fs::write(from.join("d/a"), "4").unwrap();
        std::fs::remove_file(from.join("b")).unwrap();
        std::fs::write(from.join("c"), "2").unwrap();
        sync(&from, &to).unwrap();
        assert_eq!((read("d/a").as_deref(), read("b"), read("c").as_deref()), (Some("4"), None, Some("2")));
        assert_eq!(written(), before, "what is the same is not written again");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
