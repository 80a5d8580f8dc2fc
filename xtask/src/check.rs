//! `cargo xtask check`: everything that is judged without running a test. It changes nothing.

use crate::Result;
use crate::run::{self, say};
use crate::table::table;
use std::process::Command;
use std::time::Instant;

/// The library must build, and be clean, with each of these alone.
const FEATURES: &[&str] = &[
    "",
    "memory",
    "sqlite",
    "test-util",
    "redis",
    "postgres",
    "mysql",
    "zookeeper",
    "etcd",
    "consul",
    "tower",
    "memory,sqlite",
];

/// Runs every check, whatever the others say. `Ok(true)` if all are satisfied.
pub(crate) fn check() -> Result<bool> {
    let mut rows = Vec::new();
    let mut all_well = true;
    for (name, mut command) in checks() {
        let started = Instant::now();
        let complaint = run::shown_lines(&mut command, None)?.complaint();
        all_well &= complaint.is_none();
        let status = if complaint.is_none() { "passed" } else { "FAILED" };
        let seconds = format!("{:.1}", started.elapsed().as_secs_f64());
        rows.push([name, status.to_string(), seconds, complaint.unwrap_or_default()]);
    }
    let started = Instant::now();
    let (status, why) = oldest_rust()?;
    all_well &= status != "FAILED";
    rows.push(["oldest Rust".into(), status.into(), format!("{:.1}", started.elapsed().as_secs_f64()), why]);
    say(&format!("\n{}", table(["check", "status", "seconds", "why"], &rows)));
    Ok(all_well)
}

fn checks() -> Vec<(String, Command)> {
    let cargo = |line: &str| {
        let mut command = run::cargo();
        command.args(line.split_whitespace());
        command
    };
    let mut docs = cargo("doc --workspace --all-features --no-deps");
    docs.env("RUSTDOCFLAGS", "-D warnings");
    let mut checks = vec![
        ("lock file".to_string(), cargo("tree --locked --quiet --workspace --depth 0")),
        ("format".to_string(), cargo("fmt --all --check")),
        ("format: sqlx".to_string(), cargo("fmt --manifest-path examples/sqlx/Cargo.toml --check")),
        ("clippy".to_string(), cargo("clippy --workspace --all-features --all-targets -- -D warnings")),
        ("docs".to_string(), docs),
    ];
    // Clippy rather than check: it compiles the same, and only ours must be free of warnings.
    checks.extend(FEATURES.iter().map(|features| {
        let mut command = cargo("clippy -p fencelock --no-default-features");
        command.args(["--features", features, "--", "-D", "warnings"]);
        let shown = if features.is_empty() { "none" } else { features };
        (format!("features: {shown}"), command)
    }));
    checks
}

/// Builds with the oldest Rust that `Cargo.toml` names, if it can be had.
fn oldest_rust() -> Result<(&'static str, String)> {
    let manifest = std::fs::read_to_string(crate::root().join("Cargo.toml")).map_err(|e| e.to_string())?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let version = version.ok_or("Cargo.toml names no rust-version")?;
    let rustup = |args: &[&str]| {
        let mut command = Command::new("rustup");
        // A toolchain that cargo has chosen for us would win over the one that is asked for.
        command.current_dir(crate::root()).args(args).env_remove("RUSTUP_TOOLCHAIN").env("CARGO_TERM_COLOR", "never");
        command
    };
    let there = |version| rustup(&["run", version, "rustc", "--version"]).output().is_ok_and(|o| o.status.success());
    if !there(version) {
        // Without rustup, or out of reach of where toolchains come from, this one check is not run, and the table says so.
        let _ = rustup(&["toolchain", "install", version, "--profile", "minimal"]).output();
        if !there(version) {
            return Ok(("not run", format!("there is no Rust {version} here, and rustup could not bring it")));
        }
    }
    let mut check = rustup(&["run", version, "cargo", "check", "--workspace", "--all-features"]);
    check.env_remove("CARGO").args(["--target-dir", "target/oldest"]);
    let complaint = run::shown_lines(&mut check, None)?.complaint();
    Ok((if complaint.is_none() { "passed" } else { "FAILED" }, complaint.unwrap_or_default()))
}
