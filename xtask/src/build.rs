//! Building test binaries once, to run them by ourselves: again and again (soak), or one test of them under a time limit
//! (mutants).

use crate::report::{Report, Suite, suite_name};
use crate::run::{self, End, say};
use crate::{Result, report};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// One test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The suite in it, as [`report::suite_name`] calls it.
    pub(crate) suite: String,
    /// The file.
    pub(crate) path: PathBuf,
    /// The folder of its package, in which cargo would start it.
    pub(crate) folder: PathBuf,
}

impl Binary {
    /// The command that runs it as cargo would.
    pub(crate) fn command(&self, filter: Option<&str>) -> Command {
        let mut command = Command::new(&self.path);
        command.args(filter).current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Runs it and reads the result, handing on every line.
    pub(crate) fn run(
        &self,
        command: &mut Command,
        limit: Duration,
        mut line: impl FnMut(&str),
    ) -> Result<(End, Suite)> {
        let mut report = Report::of(&self.suite);
        let end = run::lines(command, Some(limit), |text| {
            report.read(text);
            line(text);
        })?;
        let suite = report.suites().pop().unwrap_or_else(|| report::Suite::named(&self.suite));
        Ok((end, suite))
    }
}

/// Builds what a `cargo test` command (without its flags for building only) would run. What the compiler says is shown if
/// it fails.
pub(crate) fn binaries(cargo_test: &mut Command) -> Result<Vec<Binary>> {
    cargo_test.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let (mut found, mut said) = (Vec::new(), Vec::new());
    let end = run::lines(cargo_test, None, |line| {
        if line.starts_with('{') {
            found.extend(binary_in(line));
        } else {
            said.push(line.to_string());
        }
    })?;
    match end.complaint() {
        None => Ok(found),
        Some(how) => {
            said.iter().for_each(|line| say(line));
            Err(format!("`{}` failed: {how}", run::shown(cargo_test)))
        }
    }
}

/// The test binary that one line of cargo's messages tells of.
fn binary_in(message: &str) -> Option<Binary> {
    let (_, profile) = message.split_once("\"profile\":{")?;
    let (profile, _) = profile.split_once('}')?;
    if !profile.contains("\"test\":true") {
        return None;
    }
    let path = text_field(message, "executable")?;
    let manifest = text_field(message, "manifest_path")?;
    let (_, target) = message.split_once("\"target\":{")?;
    let (name, source) = (text_field(target, "name")?, text_field(target, "src_path")?);
    let folder = Path::new(&manifest).parent()?.to_path_buf();
    let source = Path::new(&source).strip_prefix(&folder).map_or(source.clone(), |path| path.display().to_string());
    Some(Binary { suite: suite_name(&name, &source), path: path.into(), folder })
}

/// The text of the first field of that name. Enough of JSON for paths and names.
fn text_field(json: &str, name: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{name}\":\""))?;
    let mut text = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => text.push(chars.next()?),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/kit#0.1.0","manifest_path":"/w/crates/kit/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"conformance_memory","src_path":"/w/crates/kit/tests/conformance_memory.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"0","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":true},"features":["default"],"filenames":["/w/t/x"],"executable":"/w/t/conformance_memory-01","fresh":true}"#;

    #[test]
    fn test_binaries_are_found_in_cargos_messages() {
        let binary = binary_in(MESSAGE).unwrap();
        assert_eq!(binary.suite, "conformance: memory");
        assert_eq!(binary.path, PathBuf::from("/w/t/conformance_memory-01"));
        assert_eq!(binary.folder, PathBuf::from("/w/crates/kit"));
    }

    #[test]
    fn other_artifacts_are_left_out() {
        let plain =
            MESSAGE.replace("\"overflow_checks\":true,\"test\":true}", "\"overflow_checks\":true,\"test\":false}");
        assert_ne!(plain, MESSAGE);
        assert_eq!(binary_in(&plain), None, "a helper program is no test");
        assert_eq!(
            binary_in(&MESSAGE.replace("\"executable\":\"/w/t/conformance_memory-01\"", "\"executable\":null")),
            None
        );
        assert_eq!(binary_in(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn escaped_text_is_read() {
        assert_eq!(text_field(r#"{"name":"a\\b\"c"}"#, "name").as_deref(), Some("a\\b\"c"));
    }
}
