//! Programs that are not in this Debian but in another one: the package is fetched with lists of its own and unpacked beside
//! the build. Nothing is installed, and the machine's own lists stay as they are. Whatever goes wrong is only said.

use crate::Result;
use crate::run::{self, End, say};
use crate::tools::Tool;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Nobody waits longer for a step of this.
const LIMIT: Duration = Duration::from_secs(120);

/// The tools that are got in this way, and the suite that has their package.
const SUITES: &[(&str, &str)] = &[("Consul", "bullseye"), ("Valkey", "bookworm-backports")];

/// The suite that has this tool, if it is not in the machine's own.
pub(crate) fn suite(tool: &Tool) -> Option<&'static str> {
    SUITES.iter().find(|(name, _)| *name == tool.name).map(|(_, suite)| *suite)
}

/// Unpacks a tool's packages into `target/tmp/NAME`, the name in small letters.
pub(crate) fn unpack(tool: &Tool, suite: &str) -> Result<()> {
    let packages = tool.packages.join(", ");
    let folder = crate::root().join("target/tmp/side");
    let cannot = |error: std::io::Error| format!("cannot prepare {}: {error}", folder.display());
    for part in ["sources", "preferences", "lists/partial", "cache/archives/partial"] {
        std::fs::create_dir_all(folder.join(part)).map_err(cannot)?;
    }
    let (file, text) =
        source(Path::new("/etc/apt"), suite).ok_or("the machine's own package sources cannot be read")?;
    std::fs::write(folder.join("sources").join(file), text).map_err(cannot)?;
    let apt = |words: &[&str]| -> Result<bool> {
        let mut command = Command::new("apt-get");
        let at = |part: &str| folder.join(part).display().to_string();
        for option in [
            "Dir::Etc::sourcelist=/dev/null".to_string(),
            format!("Dir::Etc::sourceparts={}", at("sources")),
            format!("Dir::Etc::preferencesparts={}", at("preferences")),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Sandbox::User=root".to_string(),
            "Acquire::Retries=1".to_string(),
        ] {
            command.args(["-o", &option]);
        }
        command.args(["-q"]).args(words).current_dir(&folder);
        Ok(run::lines(&mut command, Some(LIMIT), |_| {})? == End::Well)
    };
    say(&format!("fetching {packages} from {suite}, which this machine does not have"));
    let wanted: Vec<String> = tool.packages.iter().map(|package| format!("{package}/{suite}")).collect();
    let download: Vec<&str> = std::iter::once("download").chain(wanted.iter().map(String::as_str)).collect();
    if !(apt(&["update"])? && apt(&download)?) {
        return Err(format!("{packages} could not be fetched from {suite}"));
    }
    for package in tool.packages {
        let archive = newest(&folder, package).ok_or(format!("no archive of {package} came"))?;
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(archive).arg(crate::root().join("target/tmp").join(tool.name.to_lowercase()));
        if run::lines(&mut unpack, Some(LIMIT), |_| {})? != End::Well {
            return Err(format!("{package} could not be unpacked"));
        }
    }
    Ok(())
}

/// A file for apt with the machine's first source, for another suite: its name and text.
fn source(etc: &Path, suite: &str) -> Option<(&'static str, String)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(etc.join("sources.list.d")).ok()?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "sources")) {
        let text = std::fs::read_to_string(file).ok()?;
        let Some(first) = text.split("\n\n").find(|part| part.contains("URIs:")) else { continue };
        let line = |line: &str| match line.starts_with("Suites:") {
            true => format!("Suites: {suite}\n"),
            false => format!("{line}\n"),
        };
        return Some(("side.sources", first.lines().map(line).collect()));
    }
    let text = std::fs::read_to_string(etc.join("sources.list")).ok()?;
    let words: Vec<&str> = text.lines().find(|line| line.starts_with("deb "))?.split_whitespace().collect();
    // An option in brackets may stand before the address.
    let at = words.iter().position(|word| word.contains("://"))?;
    let before = words[..=at].join(" ");
    Some(("side.list", format!("{before} {suite} main\n")))
}

fn newest(folder: &Path, package: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let ours = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
    };
    files.filter(ours).max_by_key(|file| file.metadata().and_then(|file| file.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_first_source_is_used_for_another_suite() {
        let etc = std::env::temp_dir().join(format!("fencelock-xtask-{}", std::process::id()));
        std::fs::create_dir_all(etc.join("sources.list.d")).unwrap();
        assert_eq!(source(&etc, "old"), None);
        std::fs::write(etc.join("sources.list"), "# c\ndeb [signed-by=/k] http://h/debian new main\n").unwrap();
        assert_eq!(source(&etc, "old"), Some(("side.list", "deb [signed-by=/k] http://h/debian old main\n".into())));
        let text =
            "Types: deb\nURIs: http://h/debian\nSuites: new new-updates\nComponents: main\n\nTypes: deb\nURIs: x\n";
        std::fs::write(etc.join("sources.list.d/a.sources"), text).unwrap();
        let found = source(&etc, "old");
        std::fs::remove_dir_all(&etc).unwrap();
        let expected = "Types: deb\nURIs: http://h/debian\nSuites: old\nComponents: main\n";
        assert_eq!(found, Some(("side.sources", expected.into())));
    }
}
