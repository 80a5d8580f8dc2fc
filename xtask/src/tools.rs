//! What the tests need from the machine beside Rust, as a table; and getting what is missing from Debian's packages.
//!
//! The table names only what a test uses today. A store that needs a server adds it here together with its tests.

use crate::Result;
use crate::run::{self, End, say};
use crate::side;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A program that tests need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    /// What people call it.
    pub(crate) name: &'static str,
    /// What uses it.
    pub(crate) used_by: &'static str,
    /// Where it may be: a name to look up, a path in which one `*` stands for any folder (the last one found counts), one below
    /// the workspace, or a variable of the environment that names it.
    pub(crate) found_at: &'static [&'static str],
    /// The packages that bring it.
    pub(crate) packages: &'static [&'static str],
    /// Whether its absence is a failure, or only said.
    pub(crate) required: bool,
}

/// Everything that is used today. Memory and SQLite need no server.
pub(crate) const TOOLS: &[Tool] = &[
    Tool {
        name: "C compiler",
        used_by: "SQLite, which is built in from its sources",
        found_at: &["cc"],
        packages: &["gcc", "libc6-dev"],
        required: true,
    },
    Tool {
        name: "Redis",
        used_by: "the Redis store: one server, sentinels, a cluster",
        found_at: &["redis-server"],
        packages: &["redis-server", "redis-tools", "redis-sentinel"],
        required: true,
    },
    Tool {
        name: "nginx",
        used_by: "the leaky bucket, which is compared with it; the flash sale",
        found_at: &["nginx"],
        packages: &["nginx-light"],
        required: true,
    },
    Tool {
        name: "PostgreSQL",
        used_by: "the PostgreSQL store",
        found_at: &["/usr/lib/postgresql/*/bin/postgres", "postgres"],
        packages: &["postgresql"],
        required: true,
    },
    Tool {
        name: "MariaDB",
        used_by: "the MySQL store",
        found_at: &["mariadbd"],
        packages: &["mariadb-server"],
        required: true,
    },
    Tool {
        name: "PgBouncer",
        used_by: "the PostgreSQL store behind a pooler",
        found_at: &["pgbouncer"],
        packages: &["pgbouncer"],
        required: true,
    },
    Tool {
        name: "ZooKeeper",
        used_by: "the ZooKeeper store, on one server and on an ensemble of three",
        found_at: &["/usr/share/java/zookeeper.jar"],
        packages: &["zookeeper"],
        required: true,
    },
    Tool {
        name: "Java",
        used_by: "ZooKeeper",
        found_at: &["java"],
        packages: &["default-jre-headless"],
        required: true,
    },
    Tool {
        name: "Maven",
        used_by: "the ZooKeeper store beside Apache Curator",
        found_at: &["mvn"],
        packages: &["maven", "default-jdk-headless"],
        required: false,
    },
    Tool {
        name: "etcd",
        used_by: "the etcd store, on one server and on three",
        found_at: &["etcd"],
        packages: &["etcd-server"],
        required: true,
    },
    Tool {
        name: "etcdctl",
        used_by: "the etcd store: users, leases, and locks of other clients",
        found_at: &["etcdctl"],
        packages: &["etcd-client"],
        required: true,
    },
    Tool {
        name: "Go",
        used_by: "the etcd store beside the mutex of etcd's Go client",
        found_at: &["go", "/usr/local/go/bin/go"],
        packages: &["golang-go"],
        required: false,
    },
    Tool {
        name: "strace",
        used_by: "the count of system calls that a lock takes",
        found_at: &["strace"],
        packages: &["strace"],
        required: false,
    },
    Tool {
        name: "Consul",
        used_by: "the Consul store, on one server and on three",
        found_at: &["$FENCELOCK_CONSUL", "consul", "target/tmp/consul/usr/bin/consul"],
        packages: &["consul"],
        required: false,
    },
    Tool {
        name: "Valkey",
        used_by: "the Redis store, which serves it as well",
        found_at: &["$FENCELOCK_VALKEY", "valkey-server", "target/tmp/valkey/usr/bin/valkey-server"],
        packages: &["valkey-tools", "valkey-server"],
        required: false,
    },
];

/// What became of a tool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There before.
    At(PathBuf),
    /// There now.
    Installed(PathBuf),
    /// Not there, and why not.
    Missing(String),
}

/// Looks for every tool, and installs what is missing if that is wanted and allowed.
pub(crate) fn provide(tools: &'static [Tool], install: bool) -> Vec<(&'static Tool, Found)> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| find(tool).is_none()).collect();
    // What is in another Debian only is got in another way, and does not keep the rest from being installed.
    let (elsewhere, here): (Vec<&Tool>, Vec<&Tool>) =
        missing.iter().copied().partition(|tool| side::suite(tool).is_some());
    let mut packages: Vec<&str> = here.iter().flat_map(|tool| tool.packages).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    let outcome = match (packages.is_empty(), install) {
        (true, _) => Ok(()),
        (_, false) => Err("not installed, as asked".to_string()),
        (_, true) => install_packages(&packages),
    };
    let outcomes: Vec<(&str, Result<()>)> = elsewhere.iter().map(|tool| (tool.name, fetch(tool, install))).collect();
    let judge = |tool: &'static Tool| {
        let was_missing = missing.iter().any(|other| other.name == tool.name);
        let own = outcomes.iter().find(|(name, _)| *name == tool.name).map(|(_, outcome)| outcome);
        let found = match (find(tool), was_missing, own.unwrap_or(&outcome)) {
            (Some(path), false, _) => Found::At(path),
            (Some(path), true, _) => Found::Installed(path),
            (None, _, Err(why)) => Found::Missing(why.clone()),
            (None, _, Ok(())) => Found::Missing(format!("not brought by {}", tool.packages.join(", "))),
        };
        (tool, found)
    };
    tools.iter().map(judge).collect()
}

/// Gets a tool that is in another Debian only.
fn fetch(tool: &Tool, install: bool) -> Result<()> {
    if !install {
        return Err("not fetched, as asked".to_string());
    }
    side::unpack(tool, side::suite(tool).unwrap_or_default())
}

fn find(tool: &Tool) -> Option<PathBuf> {
    tool.found_at.iter().find_map(|place| look(place))
}

fn look(place: &str) -> Option<PathBuf> {
    if let Some(variable) = place.strip_prefix('$') {
        return std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
    }
    if let Some((before, after)) = place.split_once("/*/") {
        let mut folders: Vec<PathBuf> = std::fs::read_dir(before).ok()?.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        return folders.into_iter().rev().map(|folder| folder.join(after)).find(|path| path.is_file());
    }
    if place.contains('/') {
        return Some(crate::root().join(place)).filter(|path| path.is_file());
    }
    // Servers live where only root's PATH leads.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(place)).find(|path| path.is_file())
}

/// What to put before a command that only root may run; an error says why there is no way.
fn as_root() -> Result<Vec<&'static str>> {
    let output = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    if output.is_ok_and(|output| output.stdout.trim_ascii() == b"0") {
        return Ok(Vec::new());
    }
    let sudo = Command::new("sudo").args(["-n", "true"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    if sudo.is_ok_and(|status| status.success()) {
        return Ok(vec!["sudo", "-n"]);
    }
    Err("installing needs root, or sudo without a password".into())
}

fn install_packages(packages: &[&str]) -> Result<()> {
    if !Path::new("/usr/bin/apt-get").is_file() {
        return Err(format!("there is no apt-get here; install what {} bring in your own way", packages.join(", ")));
    }
    let root = as_root()?;
    let apt = |words: &[&str]| -> Result<bool> {
        let mut line = root.clone();
        line.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300"]);
        line.extend(words);
        let mut command = Command::new(line[0]);
        command.args(&line[1..]);
        Ok(run::shown_lines(&mut command, Some(Duration::from_secs(900)))? == End::Well)
    };
    let mut words = vec!["install", "-y", "--no-install-recommends"];
    words.extend(packages);
    say(&format!("installing {}", packages.join(", ")));
    // The lists of a new machine are old or missing: only then is it worth fetching them.
    if apt(&words)? || (apt(&["update"])? && apt(&words)?) {
        return Ok(());
    }
    Err(format!("apt-get could not install {}", packages.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn tool(found_at: &'static [&'static str]) -> Tool {
        Tool { name: "t", used_by: "a test", found_at, packages: &["no-such-package"], required: true }
    }

    #[test]
    fn tools_are_found_by_name_by_path_and_by_pattern() {
        assert!(find(&tool(&["no-such-program", "sh"])).unwrap().ends_with("sh"));
        assert_eq!(find(&tool(&["/bin/sh"])), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find(&tool(&["/bin/no-such-program"])), None);
        let here = env!("CARGO_MANIFEST_DIR");
        let pattern: &'static str = Box::leak(format!("{here}/../*/src/tools.rs").into_boxed_str());
        assert!(look(pattern).unwrap().ends_with("xtask/src/tools.rs"));
    }

    #[test]
    fn what_is_missing_is_said_and_not_installed_against_the_callers_will() {
        static TABLE: [Tool; 2] = [tool(&["sh"]), tool(&["no-such-program"])];
        let found = provide(&TABLE[1..], false);
        assert_eq!(found[0].1, Found::Missing("not installed, as asked".into()));
        assert!(matches!(provide(&TABLE[..1], true)[0].1, Found::At(_)));
    }

    #[test]
    fn the_table_is_complete() {
        for tool in TOOLS {
            assert!(!tool.name.is_empty() && !tool.used_by.is_empty(), "{tool:?}");
            assert!(!tool.found_at.is_empty() && !tool.packages.is_empty(), "{tool:?}");
        }
    }
}
