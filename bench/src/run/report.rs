//! The report of a run, in Markdown: the rows that we lose stand first.

use super::peers;
use super::plan::{ROWS, Row, Target, Wanted};
use super::results::Results;
use std::fmt::Write;

/// Ours against another in one figure.
struct Duel {
    row: &'static Row,
    figure: &'static str,
    other: &'static str,
    ours: f64,
    theirs: f64,
    /// Above one: ours is better.
    ratio: f64,
}

fn duels(results: &Results) -> Vec<Duel> {
    let mut all = Vec::new();
    for row in ROWS {
        let ours = row.locks[0];
        for other in row.locks[1..].iter().chain(row.more) {
            for (figure, more) in row.work.compared() {
                let (Some(mine), Some(theirs)) =
                    (results.median(row.id, ours, figure), results.median(row.id, other, figure))
                else {
                    continue;
                };
                let (better, worse) = if *more { (mine, theirs) } else { (theirs, mine) };
                // Both nothing is even.
                let ratio = if better == worse { 1.0 } else { better / worse };
                all.push(Duel { row, figure, other, ours: mine, theirs, ratio });
            }
        }
    }
    all.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    all
}

/// Everything.
pub(crate) fn markdown(results: &Results, notes: &str) -> String {
    let mut text = String::from("# Ours against the others, one run\n\n");
    text += "Times are comparable only inside this run: locks took turns (A B A B) in every row, each figure is the median of the rounds, and \
             the range behind it is the least and the most. Requests and bytes per cycle are what noise cannot touch; processor time suffers less from it than time does. \
             Client and server share the cores. A ratio above one is better for ours. Every lock has its own defaults; `-fast` is the best \
             setting that its documentation allows, where the default waits long between two looks.\n\n";
    let _ = writeln!(
        text,
        "Machine: {}. Settings: {}. Servers: {}.\n",
        plain(&results.machine),
        plain(&results.settings),
        versions(results)
    );
    if !notes.trim().is_empty() {
        let _ = writeln!(text, "{}\n", notes.trim());
    }
    let duels = duels(results);
    // Others of ours are told in the tables of the rows.
    let peers = || duels.iter().filter(|duel| !peers::is_ours(duel.other));
    text += "## Where we lose\n\n";
    table(&mut text, peers().filter(|duel| duel.ratio < 1.0));
    text += "\n## Where we do not\n\nThe first figure of each row only; the others are in the tables below.\n\n";
    table(&mut text, peers().filter(|duel| duel.ratio >= 1.0 && duel.figure == duel.row.work.compared()[0].0));
    text += "\n## Above the floor\n\nThe barest correct calls on the same connection: no queue, no token, no record of the holder.\n\n";
    table(&mut text, duels.iter().filter(|duel| duel.other.starts_with("floor-") && duel.figure == "cycles_s"));
    wanted(&mut text, results);
    rows(&mut text, results);
    proofs(&mut text, results);
    text
}

fn plain(value: &serde_json::Value) -> String {
    let fields = value.as_object().into_iter().flatten();
    let words: Vec<String> = fields
        .map(|(name, value)| format!("{} {}", name.replace('_', " "), value.to_string().trim_matches('"')))
        .collect();
    words.join(", ")
}

fn versions(results: &Results) -> String {
    let all: Vec<String> = results.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    all.join(", ")
}

fn table<'a>(text: &mut String, duels: impl Iterator<Item = &'a Duel>) {
    *text += "| row | figure | ours | other | theirs | ratio |\n|---|---|---|---|---|---|\n";
    for duel in duels {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | **{}** |",
            duel.row.id,
            name(duel.figure),
            number(duel.ours),
            duel.other,
            number(duel.theirs),
            number(duel.ratio),
        );
    }
}

fn name(figure: &str) -> &str {
    match figure {
        "cycles_s" => "cycles/s",
        "p50_us" => "p50, us",
        "p99_us" => "p99, us",
        "max_us" => "max, us",
        "requests" => "requests per cycle",
        "requests_s" => "requests/s",
        "server_cpu_us" => "server CPU per cycle, us",
        "client_cpu_us" => "client CPU per cycle, us",
        "client_cpu_share" => "client CPU, cores",
        "server_cpu_share" => "server CPU, cores",
        "client_mb" => "client memory, MiB",
        "server_mb" => "server memory, MiB",
        "bytes_in" => "bytes to the server per cycle",
        "bytes_out" => "bytes from the server per cycle",
        "bytes_in_s" => "bytes/s to the server",
        "bytes_out_s" => "bytes/s from the server",
        "p99_turns" => "p99, in turns of everybody",
        "most_to_least" => "most to least of a worker",
        "drain_secs" => "all let through in, s",
        "acquire_secs" => "all taken in, s",
        "start_ms" => "ms",
        "system_calls" => "system calls per cycle",
        other => other,
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        big if big >= 10_000.0 => format!("{:.1} k", value / 1000.0),
        big if big >= 100.0 => format!("{value:.0}"),
        big if big >= 10.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        small if small < 0.01 => format!("{value:.5}"),
        _ => format!("{value:.2}"),
    }
}

/// What was wanted: what was missed stands first.
fn wanted(text: &mut String, results: &Results) {
    let (mut missed, mut met, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for row in ROWS {
        for target in row.targets {
            let sentence = words(target);
            match judge(results, row, target) {
                None => open.push(format!("| {} | {sentence} | *not run* | |", row.id)),
                Some((share, ours, bound)) if share >= 1.0 => {
                    met.push(format!("| {} | {sentence} | {} against {} | met |", row.id, number(ours), number(bound)));
                }
                Some((share, ours, bound)) => {
                    let by = format!("**missed**, at {:.0} % of it", share * 100.0);
                    missed.push(format!(
                        "| {} | {sentence} | {} against {} | {by} |",
                        row.id,
                        number(ours),
                        number(bound)
                    ));
                }
            }
        }
    }
    *text += "\n## What was wanted\n\n| row | wanted | found | |\n|---|---|---|---|\n";
    for line in missed.iter().chain(&met).chain(&open) {
        *text += line;
        text.push('\n');
    }
}

fn words(target: &Target) -> String {
    let sign = if target.wanted == Wanted::AtLeast { ">=" } else { "<=" };
    match target.of {
        [] => format!("{} {sign} {}", name(target.figure), number(target.factor)),
        [one] => format!("{} {sign} {} x {one}", name(target.figure), number(target.factor)),
        several => {
            format!("{} {sign} {} x the best of {}", name(target.figure), number(target.factor), several.join(", "))
        }
    }
}

/// How much of what was wanted there is (1 is enough), what we have, and what it is measured by.
fn judge(results: &Results, row: &Row, target: &Target) -> Option<(f64, f64, f64)> {
    let ours = results.median(row.id, row.locks[0], target.figure)?;
    let median = |lock: &str, figure: &str| {
        let (row, lock) = lock.split_once('/').unwrap_or((row.id, lock));
        results.median(row, lock, figure)
    };
    let at_least = target.wanted == Wanted::AtLeast;
    let bound = if target.of.is_empty() {
        target.factor
    } else {
        // For a latency the bar is the one with the most cycles, not one that serves few quickly.
        let best = if target.figure == "p99_us" {
            let busiest = target.of.iter().max_by(|a, b| {
                let of = |lock: &&&str| median(lock, "cycles_s").unwrap_or(0.0);
                of(a).total_cmp(&of(b))
            })?;
            median(busiest, target.figure)?
        } else {
            let all = target.of.iter().filter_map(|lock| median(lock, target.figure));
            all.reduce(if at_least { f64::max } else { f64::min })?
        };
        best * target.factor
    };
    // What is counted has a little of opening and closing in it.
    let slack = if target.figure.starts_with("requests") { 1.005 } else { 1.0 };
    let share = if at_least {
        ours / bound
    } else if ours == 0.0 {
        1.0
    } else {
        bound * slack / ours
    };
    Some((share, ours, bound))
}

const PAIR: &[&str] = &[
    "cycles_s",
    "p50_us",
    "p99_us",
    "max_us",
    "p99_turns",
    "most_to_least",
    "requests",
    "bytes_in",
    "bytes_out",
    "server_cpu_us",
    "client_cpu_us",
    "system_calls",
    "client_mb",
    "server_mb",
    "errors",
];
const STANDING: &[&str] = &[
    "requests_s",
    "bytes_in_s",
    "bytes_out_s",
    "client_cpu_share",
    "server_cpu_share",
    "client_mb",
    "server_mb",
    "drain_secs",
    "acquire_secs",
    "held",
    "acquired",
    "errors",
];
const OTHERS: &[&str] = &["p50_us", "p99_us", "max_us", "start_ms", "cycles"];

fn rows(text: &mut String, results: &Results) {
    *text += "\n## All rows\n";
    for row in ROWS {
        let entries: Vec<_> = row.locks.iter().chain(row.more).filter_map(|lock| results.entry(row.id, lock)).collect();
        if entries.is_empty() {
            continue;
        }
        let all = match row.work {
            super::plan::Work::Pair { .. } => PAIR,
            super::plan::Work::Idle { .. } | super::plan::Work::Hold { .. } => STANDING,
            _ => OTHERS,
        };
        let figures: Vec<&str> =
            all.iter().copied().filter(|figure| entries.iter().any(|entry| entry.median(figure).is_some())).collect();
        let heads: Vec<&str> = figures.iter().map(|figure| name(figure)).collect();
        let _ =
            writeln!(text, "\n### {}\n\n{}.\n\n| lock | {} |", row.id, capital(&row.work.words()), heads.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(figures.len()));
        for entry in entries {
            let _ = write!(text, "| {} |", entry.lock);
            if let Some(why) = &entry.not_run {
                let _ = writeln!(text, " *not run*: {}{}", why.replace('|', "/"), " |".repeat(figures.len()));
                continue;
            }
            for (at, figure) in figures.iter().enumerate() {
                let value = entry.median(figure).map_or(String::new(), number);
                let range = entry.spread(figure).filter(|(least, most)| at == 0 && least < most);
                let range =
                    range.map_or(String::new(), |(least, most)| format!(" ({} to {})", number(least), number(most)));
                let _ = write!(text, " {value}{range} |");
            }
            text.push('\n');
        }
    }
}

fn capital(words: &str) -> String {
    words[..1].to_uppercase() + &words[1..]
}

fn proofs(text: &mut String, results: &Results) {
    *text += "\n## Proof of equal work\n\nFour processes of four workers each added one to a plain number in a file under the lock, twelve times each.\n\n";
    *text += "| lock | found | wanted |\n|---|---|---|\n";
    for proof in &results.proofs {
        let _ = match &proof.not_run {
            None if proof.found == proof.wanted => {
                writeln!(text, "| {} | {} | {} |", proof.lock, proof.found, proof.wanted)
            }
            None => writeln!(text, "| {} | **{}** | {} |", proof.lock, proof.found, proof.wanted),
            Some(why) => writeln!(text, "| {} | *not run*: {} | |", proof.lock, why.replace('|', "/")),
        };
    }
}

/// For the program's comparison of stores: cycles/s of one worker, of 64 with a name each, of 4 x 16 on one name, and the hand-over in us.
pub(crate) fn summary(results: &Results) -> String {
    let mut text = String::from("store\tone\town\thot\thand_over_us\n");
    for store in ["sqlite", "redis", "zookeeper", "etcd", "consul", "postgres", "mysql"] {
        let of = |row: &str, figure: &str| {
            let value = results.median(&format!("{store}-{row}"), store, figure);
            value.map_or("-".into(), |value| format!("{value:.0}"))
        };
        let (one, own) = (of("one", "cycles_s"), of("own-64", "cycles_s"));
        let _ = writeln!(text, "{store}\t{one}\t{own}\t{}\t{}", of("hot-4x16", "cycles_s"), of("pingpong", "p50_us"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::Entry;

    fn results(ours: f64, theirs: f64) -> Results {
        let mut results = Results::default();
        for (lock, value) in [("redis", ours), ("redisson-lock", theirs)] {
            let mut entry = Entry::new("redis-one", lock);
            for part in [0.5, 1.0, 3.0] {
                entry.rounds.push([("cycles_s".to_string(), value * part)].into());
            }
            results.entries.push(entry);
        }
        results
    }

    #[test]
    fn what_we_lose_stands_before_what_we_win() {
        let text = markdown(&results(100.0, 200.0), "");
        let (lost, won) = (text.find("## Where we lose").unwrap(), text.find("## Where we do not").unwrap());
        let row = text.find("| redis-one | cycles/s | 100 | redisson-lock | 200 | **0.50** |").unwrap();
        assert!(lost < row && row < won, "{text}");
        assert!(text.contains("**missed**, at 33 % of it"), "{text}");
        assert!(text.contains("100 (50.0 to 300)"), "{text}");
    }

    #[test]
    fn what_did_not_run_is_not_met() {
        let text = markdown(&results(400.0, 200.0), "");
        assert!(text.contains("| redis-one | cycles/s >= 1.50 x redisson-lock | 400 against 300 | met |"), "{text}");
        assert!(text.contains("| redis-own-64 | cycles/s >= 10.0 x redisson-lock | *not run* | |"), "{text}");
    }
}
