//! `limit`: become a command when the shared limiter lets us.

use crate::args::Limit;
use crate::child;
use crate::failure::{Failure, HELD};
use crate::output::{Event, Output};
use crate::store_url::Choice;
use crate::waiting;
use fencelock::error::spoken;
use fencelock::limit::{Decision, Limit as Bucket};
use fencelock::name::printable;
use std::time::{Duration, Instant};

/// One round trip. A signal while we wait ends us as it ends every program: nothing is held, so nothing is to be cleaned up.
pub(crate) async fn run(limit: Limit, choice: &Choice, output: Output) -> Result<u8, Failure> {
    choice.check_name(&limit.name)?;
    let locks = choice.open().await?;
    let bucket = Bucket::token_bucket(limit.rate).burst(limit.burst);
    let longest = limit.wait.unwrap_or(Duration::MAX);
    let decision = locks.limiter(&limit.name, bucket).reserve(1, longest).await?;
    // Nothing of ours stays open in the command.
    drop(locks);
    let wait = match decision {
        Decision::Granted { wait } => wait,
        Decision::Refused { retry_after } => {
            let name = printable(&limit.name);
            let message = format!("{name} is over its limit; our turn would be in {}", spoken(retry_after));
            return Err(Failure::new(HELD, "limited", message));
        }
    };
    if !wait.is_zero() {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = waiting::show_turn(&limit.name, Instant::now() + wait, output) => unreachable!("it is shown for as long as we wait"),
        }
    }
    if output.json {
        let waited_ms = crate::json::millis(wait);
        output.event_on_stderr(&Event::Granted { name: &limit.name, waited_ms });
    }
    let mut words = limit.command.into_iter();
    let command = words.next().ok_or_else(|| Failure::usage("there is no command"))?;
    Err(child::become_command(&command, words))
}
