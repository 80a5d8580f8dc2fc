//! `run`: ours, the floors and the peers against real servers, in turns (A B A B), and the report.

mod chart;
mod consul;
mod contest;
mod machine;
mod peers;
mod plan;
mod process;
mod report;
mod results;
mod servers;

use crate::worker::Failure;
use contest::Take;
use peers::Peers;
use plan::{ROWS, Row};
use results::{Entry, Proof, Results};
use serde_json::json;
use servers::{Kind, Server};
use std::path::{Path, PathBuf};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Redis, three workloads, one round, four peers.
    #[arg(long)]
    quick: bool,
    /// Only rows whose name contains one of these words (redis-hot, etcd, pingpong), separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How often each lock has its turn in a row.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long a measured window is, in seconds.
    #[arg(long, default_value_t = 2.0)]
    secs: f64,
    /// Also the peers that fewer people use.
    #[arg(long)]
    all_peers: bool,
    /// Only the proof that everybody does the work.
    #[arg(long)]
    proof: bool,
    /// Leaves the proof out.
    #[arg(long, conflicts_with = "proof")]
    no_proof: bool,
    /// Where to write: rows that are there already are replaced, all others stay. A new folder under bench/runs by default.
    #[arg(long)]
    into: Option<PathBuf>,
}

impl Args {
    fn wants(&self, row: &Row) -> bool {
        let quick = !self.quick || plan::QUICK.contains(&row.id);
        // The whole name of a row means that row.
        let named = |word: &String| ROWS.iter().any(|row| row.id == word);
        let matches = |word: &String| if named(word) { row.id == word } else { row.id.contains(word.as_str()) };
        quick && (self.only.is_empty() || self.only.iter().any(matches))
    }

    fn locks(&self, row: &Row) -> Vec<&'static str> {
        if self.quick {
            let hot = |lock: &&str| plan::QUICK_PEERS.contains(lock);
            return row.locks.iter().copied().filter(hot).collect();
        }
        let more = if self.all_peers { row.more } else { &[] };
        row.locks.iter().chain(more).copied().collect()
    }
}

/// Measures, writes and prints.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let rounds = if args.quick { 1 } else { args.rounds };
    let folder = match &args.into {
        Some(folder) => folder.clone(),
        None => {
            let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("runs");
            runs.join(format!("{}-{}", machine::first_line("date", &["+%Y-%m-%d"]), machine::short_name()))
        }
    };
    std::fs::create_dir_all(&folder)?;
    let mut results = Results::read(&folder)?;
    results.machine = machine::describe();
    results.settings = json!({"rounds": rounds, "secs": args.secs});
    let mut peers = Peers::new();
    let wanted: Vec<&Row> = ROWS.iter().filter(|row| args.wants(row)).collect();
    for kind in Kind::ALL {
        let rows: Vec<&&Row> = wanted.iter().filter(|row| row.kind == kind).collect();
        if rows.is_empty() {
            continue;
        }
        if !args.no_proof {
            prove(kind, &rows, args, &mut peers, &mut results);
        }
        for row in rows.iter().filter(|_| !args.proof) {
            measure(row, args, rounds, &mut peers, &mut results);
            results.write(&folder)?;
        }
    }
    results.write(&folder)?;
    self::report(&folder)
}

/// Writes the report from what is there, and prints its tables.
#[allow(clippy::print_stdout, reason = "this is what the program is for")]
pub(crate) fn report(folder: &Path) -> Result<(), Failure> {
    let results = Results::read(folder)?;
    for (name, picture) in chart::all(&results) {
        std::fs::write(folder.join(name), picture)?;
    }
    // What a person has to say about the run.
    let notes = std::fs::read_to_string(folder.join("NOTES.md")).unwrap_or_default();
    let text = report::markdown(&results, &notes);
    std::fs::write(folder.join("README.md"), &text)?;
    std::fs::write(folder.join("summary.tsv"), report::summary(&results))?;
    println!("{text}");
    Ok(())
}

/// One tag for each sample: nobody meets what another has left.
fn tag() -> String {
    format!("t{:08x}", fastrand::u32(..))
}

fn measure(row: &Row, args: &Args, rounds: usize, peers: &mut Peers, results: &mut Results) {
    let secs = if args.quick { args.secs.min(1.0) } else { args.secs } * row.work.stretch();
    let mut entries: Vec<Entry> = args.locks(row).into_iter().map(|lock| Entry::new(row.id, lock)).collect();
    results.entries.retain(|old| !entries.iter().any(|new| new.row == old.row && new.lock == old.lock));
    let server = match Server::start(row.kind) {
        Ok(server) => server,
        Err(error) => {
            entries.iter_mut().for_each(|entry| entry.not_run = Some(error.to_string()));
            results.entries.extend(entries);
            return;
        }
    };
    results.versions.insert(row.kind.name().into(), server.version());
    for entry in &mut entries {
        if let Err(why) = peers.command(&entry.lock) {
            entry.not_run = Some(why);
        }
    }
    for round in 0..rounds {
        for entry in entries.iter_mut().filter(|entry| entry.not_run.is_none()) {
            let take = Take { lock: &entry.lock, work: row.work, secs, tag: tag(), counting: false };
            take_one(&take, &server, peers, round)
                .map_or_else(|why| entry.not_run = Some(why), |one| entry.rounds.push(one));
        }
    }
    // Redis tells what clients send only to those who watch, which slows it down: once more, for this figure alone.
    if row.kind == Kind::Redis && !matches!(row.work, plan::Work::Pingpong | plan::Work::Start | plan::Work::Command) {
        for entry in entries.iter_mut().filter(|entry| entry.not_run.is_none()) {
            let secs = if row.work.stands_still() { plan::STANDING_SECS } else { (secs / 2.0).max(1.0) };
            let take = Take { lock: &entry.lock, work: row.work, secs, tag: tag(), counting: true };
            if let Ok(one) = take_one(&take, &server, peers, rounds) {
                entry.counted = one.into_iter().filter(|(name, _)| name.starts_with("requests")).collect();
            }
        }
    }
    if row.id.ends_with("-one") {
        for entry in entries.iter_mut().filter(|entry| entry.not_run.is_none() && peers::speaks(&entry.lock)) {
            if let Ok(calls) = contest::system_calls(&entry.lock, &server, peers, &tag()) {
                entry.counted.insert("system_calls".into(), calls);
            }
        }
    }
    results.entries.extend(entries);
}

fn take_one(take: &Take<'_>, server: &Server, peers: &mut Peers, round: usize) -> Result<contest::Figures, String> {
    let done = contest::sample(take, server, peers);
    match &done {
        Ok(figures) => {
            let main = ["cycles_s", "p50_us", "p99_us", "requests", "client_mb", "requests_s", "start_ms"];
            let shown: Vec<String> =
                main.iter().filter_map(|name| Some(format!("{name} {:.2}", figures.get(*name)?))).collect();
            eprintln!("{:?} {} round {round}: {}", take.work, take.lock, shown.join(", "));
        }
        Err(error) => eprintln!("{:?} {}: {error}", take.work, take.lock),
    }
    done.map_err(|error| error.to_string())
}

/// Everybody who takes part in the rows adds to a plain number under the lock, four processes at once. Floors that only write exclude
/// nobody and are left out.
fn prove(kind: Kind, rows: &[&&Row], args: &Args, peers: &mut Peers, results: &mut Results) {
    let mut locks: Vec<&str> = Vec::new();
    let rows = rows.iter().filter(|row| !matches!(row.work, plan::Work::Command));
    for lock in rows.flat_map(|row| args.locks(row)) {
        let writes_only = matches!(lock, "wire-redis" | "floor-sqlite" | "floor-postgres" | "floor-mysql");
        if !writes_only && !locks.contains(&lock) {
            locks.push(lock);
        }
    }
    for lock in locks {
        results.proofs.retain(|proof| proof.lock != lock);
        let done = Server::start(kind)
            .and_then(|server| peers.command(lock).map_err(Failure::from).map(|_| server))
            .and_then(|server| contest::proof(lock, &server, peers, &tag()));
        let proof = match done {
            Ok((found, wanted)) => Proof { lock: lock.into(), found, wanted, not_run: None },
            Err(error) => Proof { lock: lock.into(), found: 0, wanted: 0, not_run: Some(error.to_string()) },
        };
        eprintln!("proof {lock}: {} of {} {}", proof.found, proof.wanted, proof.not_run.as_deref().unwrap_or(""));
        results.proofs.push(proof);
    }
}
