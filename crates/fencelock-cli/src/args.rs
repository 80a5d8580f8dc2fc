//! What can be typed: the verbs, their options and their help. Nothing here does anything.

use crate::duration;
use clap::{ArgAction, Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use fencelock::limit::Rate;
use std::ffi::OsString;
use std::time::Duration;

/// Hold a lock while a command runs; see who holds what.
#[derive(Debug, Parser)]
#[command(
    name = "fencelock",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = EXAMPLES,
    after_long_help = CODES
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  fencelock run nightly -- ./backup.sh            one backup at a time on this host
  fencelock run deploy --wait 0 -- ./deploy.sh    give up at once if somebody deploys (code 75)
  fencelock show nightly                          who holds it, who waits, since when and why

Say `fencelock --help` for the exit codes.";

const CODES: &str = "\
Examples:
  fencelock run nightly -- ./backup.sh            one backup at a time on this host
  fencelock run deploy --wait 0 -- ./deploy.sh    give up at once if somebody deploys (code 75)
  fencelock show nightly                          who holds it, who waits, since when and why

Exit codes:
  the command's  it ran and ended by itself (128 + n when signal n ended it; 126 or 127 when it
                 could not be started)
  64             wrong usage: a bad name, duration, URL or option; a store not built in
  69             the store cannot be reached, refuses us, or cannot do what was asked
  75             not acquired: held by another when the wait ended (--held-code changes it)
  76             lost while the command ran; the command was stopped
  70             a bug of ours";

const GLOBAL: &str = "Options of every verb";

/// What every verb takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The store that keeps the locks (`fencelock stores` lists the forms)
    ///
    /// Without it the store is what FENCELOCK_STORE says, and without that a file for this user on this host:
    /// $XDG_STATE_HOME/fencelock/locks.db, or ~/.local/state/fencelock/locks.db.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) store: Option<OsString>,
    /// Put every name under NS/
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "NS")]
    pub(crate) namespace: Option<String>,
    /// Speak JSON: data on stdout, events and errors on stderr
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// Say nothing but data and failures
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub(crate) quiet: bool,
    /// Say more of what happens (-vv: everything)
    #[arg(short, long, global = true, help_heading = GLOBAL, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Hold NAME while a command runs
    ///
    /// Several names are held all together or not at all, whatever their order. The command gets FENCELOCK_NAME,
    /// FENCELOCK_TOKEN, FENCELOCK_MODE and FENCELOCK_LABEL (one word for each name), and a process group of its own.
    /// If the lock is about to be lost, the group gets SIGTERM, and SIGKILL before another may start. If fencelock itself
    /// is killed, the kernel kills the command (Linux only; not what the command has started in turn).
    Run(Run),
    /// Hold NAME until SIGINT or SIGTERM; prints the token
    #[command(
        mut_arg("grace", |arg| arg.help("Without effect: there is no command to stop")),
        mut_arg("max_hold", |arg| arg.help("Hold it no longer than this")),
        mut_arg("min_hold", |arg| arg.help("Hold it at least this long; a second signal ends that"))
    )]
    Hold(Hold),
    /// Run a command whenever we are the leader; again when that was lost and won back
    ///
    /// The command gets the term as FENCELOCK_TOKEN: later leaders have larger ones. It is stopped before another may lead, as
    /// with `run`. When it ends by itself we resign and end with its code.
    #[command(
        mut_arg("shared", |arg| arg.hide(true)),
        mut_arg("permits", |arg| arg.hide(true)),
        mut_arg("of", |arg| arg.hide(true)),
        mut_arg("max_hold", |arg| arg.help("Lead no longer than this at a time")),
        mut_arg("wait", |arg| arg.help("How long to stand for election each time; 0: do not wait [default: for ever]"))
    )]
    Elect(Elect),
    /// Run a command when the shared limiter NAME lets us
    ///
    /// Waits for its turn, in the order of asking, over all who use the store; gives up at once with code 75 if the turn would not
    /// come within --wait. Nothing is held: fencelock becomes the command, which gets no FENCELOCK variables.
    Limit(Limit),
    /// Who is inside, who waits, since when, until when, and why
    Show(Show),
    /// Every name with someone in it
    Ls(Ls),
    /// The same, live: a table on a terminal, JSON lines otherwise
    Watch(Watch),
    /// Put one ticket out
    ///
    /// Its holder is told within a second where the store can push, else at its next renewal. Until it has noticed, two may
    /// be at work: only a resource that checks the token is safe.
    Break(Break),
    /// Make the tables of a PostgreSQL or MySQL store, or bring them up to date
    ///
    /// They are made at the first use as well, by a user who may, unless the URL says ?migrate=off. Tables of an older version are only
    /// ever changed by this. It may be run again, and while others use the store.
    Migrate(Migrate),
    /// What this build speaks, the URL forms, and what each store promises
    Stores(Stores),
    /// Print a completion script for your shell
    Completions(Completions),
}

/// `stores`
#[derive(Debug, Args)]
pub(crate) struct Stores {
    /// Which store for what: what each survives, what it does not, and how fast it was in the last committed measurement
    #[arg(long)]
    pub(crate) compare: bool,
}

/// `run`
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The locks
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) lock: Lock,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// `hold`
#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) lock: Lock,
    /// Also let go at the end of stdin
    #[arg(long)]
    pub(crate) until_eof: bool,
}

/// `elect`
#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// The election
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) lock: Lock,
    /// What the others are told of the leader [default: the host and our process id]
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// `limit`
#[derive(Debug, Args)]
pub(crate) struct Limit {
    /// The limiter; it has nothing to do with a lock of that name
    pub(crate) name: String,
    /// How many in which time: 10/s, 600/m, 5/h, 1/30s
    #[arg(long, value_name = "N/TIME", value_parser = rate)]
    pub(crate) rate: Rate,
    /// How many may come at once after a calm
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) burst: u32,
    /// How long to wait for the turn; 0: do not wait [default: for ever]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

fn rate(text: &str) -> Result<Rate, String> {
    text.parse::<Rate>().map_err(|error| error.to_string())
}

/// How to take a lock: the options of `run`, `hold` and `elect`.
#[derive(Debug, Args)]
pub(crate) struct Lock {
    /// As a reader: beside other readers, not beside a writer
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Take K permits of a semaphore
    #[arg(long, value_name = "K", requires = "of", value_parser = clap::value_parser!(u32).range(1..=MOST_PERMITS))]
    pub(crate) permits: Option<u32>,
    /// The semaphore's size
    #[arg(long, value_name = "N", requires = "permits", value_parser = clap::value_parser!(u32).range(1..=MOST_PERMITS))]
    pub(crate) of: Option<u32>,
    /// How long to queue; 0: do not wait [default: for ever]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// How long others wait at most if this process dies; renewed every third of it
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration::parse_lease)]
    pub(crate) lease: Duration,
    /// Hold it no longer than this, whatever the command does
    #[arg(long, value_name = "D", value_parser = duration::parse_positive)]
    pub(crate) max_hold: Option<Duration>,
    /// Hold it at least this long, so that a short job does not run on three hosts in turn
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) min_hold: Option<Duration>,
    /// Time between SIGTERM and SIGKILL when the lock is about to be lost; at most a third of the lease [default: 5s]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// Why: shown to whoever finds it taken
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Wait beside the queue instead of in it: cheaper, and no promise of ever getting in
    #[arg(long)]
    pub(crate) unfair: bool,
    /// The exit code when it is held by another, instead of 75
    #[arg(long, value_name = "N")]
    pub(crate) held_code: Option<u8>,
}

/// The library's limit: 2^20 is the capacity of a mutex.
const MOST_PERMITS: i64 = (1 << 20) - 1;

/// `show`
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The lock
    pub(crate) name: String,
}

/// `ls`
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// `watch`
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// `break`
#[derive(Debug, Args)]
pub(crate) struct Break {
    /// The lock
    pub(crate) name: String,
    /// The ticket's token, as `fencelock show` tells it
    #[arg(long, value_name = "N")]
    pub(crate) token: u64,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `migrate`
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Only print the SQL, with the rights that a user of it needs
    #[arg(long)]
    pub(crate) print: bool,
}

/// `completions`
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// For which shell
    pub(crate) shell: Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }
}
