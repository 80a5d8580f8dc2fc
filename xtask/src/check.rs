//! `cargo xtask check`: everything that is judged without running a test. It changes nothing.

use crate::Result;
use crate::run::{self, say};
use crate::table::table;
use std::process::Command;
use std::time::Instant;

/// The library must build, and be clean, with each of these alone.
const FEATURES: &[&str] = &["", "memory", "sqlite", "test-util", "memory,sqlite"];

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
