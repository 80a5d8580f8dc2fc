//! `elect`: run a command whenever we are the leader; again when that was lost and won back.

use crate::args::Elect;
use crate::failure::Failure;
use crate::held::Want;
use crate::output::Output;
use crate::signals::Signals;
use crate::store_url::Choice;
use crate::verbs::run::{self, Outcome};

pub(crate) async fn run(elect: Elect, choice: &Choice, mut signals: Signals, output: Output) -> Result<u8, Failure> {
    let lock = &elect.lock;
    if lock.shared || lock.permits.is_some() {
        return Err(Failure::usage("an election has one leader: --shared and --permits make no sense here"));
    }
    let host = rustix::system::uname();
    let value = elect.value.unwrap_or_else(|| format!("{} {}", host.nodename().to_string_lossy(), std::process::id()));
    let grace = run::grace(lock, output);
    let want = Want::ToLead(&elect.name, &value);
    loop {
        match run::once(want, lock, grace, &elect.command, choice, &mut signals, output).await? {
            // The command ended by itself, or by a signal that we handed on: so do we.
            Outcome::Ended(code) => return Ok(code),
            Outcome::Lost(why) => output.note(&format!("{why}; standing for election again")),
        }
    }
}
