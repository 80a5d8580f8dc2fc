//! `fencelock-bench worker` measures one of our locks in one process; `fencelock-bench run` measures ours, the floors below them and
//! other people's locks against real servers, in turns, and reports. `bench/README.md` has the words that all of them speak.

mod floors;
mod impls;
mod run;
mod worker;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

const WORKER: &str = "\
  IMPL   memory, sqlite, redis, redis-cluster, quorum, zookeeper, etcd, consul, postgres, postgres-session, mysql, mysql-session
         (or each with -unfair), and floor- before sqlite, redis, zookeeper, etcd, consul, postgres, postgres-session, mysql, mysql-session
  ADDR   a file (sqlite), a name (memory), host:port (redis, redis-cluster, zookeeper, etcd, consul, postgres, mysql), or a store URL";

/// Measures fencelock, the floors below it, and its peers.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// One measured process: IMPL ADDR WORKLOAD key=value...
    #[command(after_help = format!("{WORKER}\n{}", worker::WORKLOADS))]
    Worker {
        /// The words.
        words: Vec<String>,
    },
    /// Starts servers, measures everything in turns, and reports.
    Run(run::Args),
    /// Writes the report of a run anew from its raw results.
    Report {
        /// The folder of the run.
        folder: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().verb {
        Verb::Worker { words } => worker::work(&words),
        Verb::Run(args) => run::run(&args),
        Verb::Report { folder } => run::report(&folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fencelock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
