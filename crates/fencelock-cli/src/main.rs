//! The program `fencelock`: hold a lock while a command runs, and see who holds what. This file only finds the way.

#[cfg(not(unix))]
compile_error!("the program needs the signals and process groups of Unix; elsewhere use the library");

mod args;
mod child;
mod duration;
mod failure;
mod held;
mod json;
mod nesting;
mod output;
mod signals;
mod store_url;
mod table;
mod terminal;
mod usage;
mod verbose;
mod verbs;
mod waiting;
mod watchdog;

use args::{Cli, Verb};
use failure::Failure;
use output::Output;
use signals::Signals;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == child::EXEC) {
        return child::exec(args).into();
    }
    usage::end_with_a_line_on_panic();
    #[cfg(debug_assertions)]
    if std::env::args_os().nth(1).is_some_and(|first| first == "__bug") {
        panic!("asked for");
    }
    let cli = match usage::parse() {
        Ok(cli) => cli,
        Err(code) => return code.into(),
    };
    let output = Output::new(&cli.global);
    match act(cli, output) {
        Ok(code) => code.into(),
        Err(failure) => {
            output.failure(&failure);
            failure.code.into()
        }
    }
}

/// Everything runs on the main thread: the child must be started by a thread that lives as long as we do, and a runtime of
/// several threads would answer more slowly.
fn act(cli: Cli, output: Output) -> Result<u8, Failure> {
    verbose::listen(cli.global.verbose, output);
    let choice = store_url::choose(&cli.global)?;
    // Before any other thread is started: threads inherit the mask.
    let signals = match &cli.verb {
        Verb::Run(_) | Verb::Elect(_) => Some(Signals::all()),
        Verb::Hold(_) => Some(Signals::ending()),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::bug(format!("no event loop could be made: {error}")))?;
    runtime.block_on(async {
        match (cli.verb, signals) {
            (Verb::Run(run), Some(signals)) => verbs::run::run(run, &choice, signals, output).await,
            (Verb::Hold(hold), Some(signals)) => verbs::hold::run(hold, &choice, signals, output).await,
            (Verb::Elect(elect), Some(signals)) => verbs::elect::run(elect, &choice, signals, output).await,
            (Verb::Limit(limit), _) => verbs::limit::run(limit, &choice, output).await,
            (Verb::Show(show), _) => verbs::show::run(show, &choice, output).await,
            (Verb::Ls(ls), _) => verbs::ls::run(ls, &choice, output).await,
            (Verb::Watch(watch), _) => verbs::watch::run(watch, &choice, output).await,
            (Verb::Break(command), _) => verbs::break_ticket::run(command, &choice, output).await,
            (Verb::Migrate(migrate), _) => verbs::migrate::run(migrate, &choice, output).await,
            (Verb::Stores(stores), _) if stores.compare => Ok(verbs::compare::run(output)),
            (Verb::Stores(_), _) => Ok(verbs::stores::run(output)),
            (Verb::Completions(completions), _) => Ok(verbs::completions::run(completions)),
            (Verb::Run(_) | Verb::Hold(_) | Verb::Elect(_), None) => Err(Failure::bug("no signals were taken")),
        }
    })
}
