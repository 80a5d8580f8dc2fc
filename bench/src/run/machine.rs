//! What a run was made on, without what would tell whose machine it is.

use serde_json::{Value, json};
use std::fs;
use std::process::Command;

/// The processor, the cores, the memory, the kernel, the compiler, and the toolchains of the peers.
pub(crate) fn describe() -> Value {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let gib =
        total.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok()).unwrap_or(0.0) / 1048576.0;
    json!({
        "processor": processor(),
        "cores": cores(),
        "memory_gib": gib.round(),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().split(['-', '+']).next().unwrap_or_default().trim(),
        "rustc": first_line("rustc", &["--version"]),
        "go": first_line("go", &["version"]),
        "java": first_line("java", &["--version"]),
        "node": first_line("node", &["--version"]),
        "python": first_line("python3", &["--version"]),
    })
}

/// A name for the folder of a run.
pub(crate) fn short_name() -> String {
    let words: String = processor()
        .to_lowercase()
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { ' ' })
        .collect();
    let vendor = words.split_whitespace().next().unwrap_or("unknown").to_string();
    format!("{vendor}-{}-core", cores())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.and_then(|rest| rest.split_once(':')).map_or("unknown".into(), |(_, name)| name.trim().to_string())
}

/// What a program says first; nothing where it is not there.
pub(crate) fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_string()
}
