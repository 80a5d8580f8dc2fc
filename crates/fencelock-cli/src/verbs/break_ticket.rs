//! `break`: put one ticket out.

use crate::args::Break;
use crate::failure::{Failure, STORE, describe};
use crate::output::{self, Event, Output};
use crate::store_url::Choice;
use fencelock::name::printable;
use std::io::IsTerminal;

pub(crate) async fn run(command: Break, choice: &Choice, output: Output) -> Result<u8, Failure> {
    choice.check_name(&command.name)?;
    let asks = !command.yes;
    if asks && !std::io::stdin().is_terminal() {
        return Err(Failure::usage("break asks before it acts, and there is no terminal to ask on: say --yes"));
    }
    let locks = choice.open().await?;
    let name = printable(&command.name);
    let none = || Failure::new(STORE, "gone", format!("{name} has no ticket with token {}", command.token));
    if asks {
        let line = locks.inspect(&command.name).await?;
        let seen =
            line.inside.iter().chain(&line.waiting).find(|seen| seen.token == Some(command.token)).ok_or_else(none)?;
        let state = if line.inside.contains(seen) { "held by" } else { "waited for by" };
        output::words(&format!("{name} is {state} {}\nput it out? [y/N] ", describe(seen)));
        let mut answer = String::new();
        let _ = std::io::stdin().read_line(&mut answer);
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::new(STORE, "declined", format!("{name} was left as it is")));
        }
    }
    if !locks.break_ticket(&command.name, command.token).await? {
        return Err(none());
    }
    if output.json {
        output.event_on_stdout(&Event::Broken { name: &command.name, token: command.token.to_string() });
    }
    Ok(0)
}
