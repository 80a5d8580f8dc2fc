//! What the kernel says about a process and all that it started: processor time and memory.

use std::fs;

/// Processor time in seconds, and memory in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: f64,
    pub(crate) memory: f64,
}

impl Usage {
    /// Of a process with its children, those that have ended included.
    pub(crate) fn of(pid: u32) -> Usage {
        let family = family(pid);
        let memory: f64 = family.iter().map(|pid| resident(*pid)).sum();
        let ended = stat(pid).map_or(0.0, |fields| ticks(&fields, 13) + ticks(&fields, 14));
        Usage { cpu: family.iter().map(|pid| running(*pid)).sum::<f64>() + ended, memory }
    }
}

/// The process and all below it.
fn family(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| Some((pid, stat(pid)?.get(1)?.parse().ok()?)))
        .collect();
    let mut at = 0;
    while let Some(&above) = all.get(at) {
        all.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        at += 1;
    }
    all
}

/// The fields behind the name: the state is the first, the parent the second.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(String::from).collect())
}

fn ticks(fields: &[String], at: usize) -> f64 {
    // A hundred ticks a second, wherever Linux runs today.
    fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0) / 100.0
}

/// What the scheduler has counted for its threads, in nanoseconds, or the coarser clock if threads have ended meanwhile.
fn running(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let fine: f64 = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .sum::<f64>()
        / 1e9;
    let coarse = stat(pid).map_or(0.0, |fields| ticks(&fields, 11) + ticks(&fields, 12));
    if coarse > fine + 0.02 { coarse } else { fine }
}

fn resident(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::Usage;

    #[test]
    fn a_process_has_used_something_and_a_child_counts() {
        let mine = Usage::of(std::process::id());
        assert!(mine.memory > 0.1, "{mine:?}");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let both = super::family(std::process::id());
        assert!(both.contains(&child.id()), "{both:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
