//! `show`: who is inside a lock, who waits, since when, until when, and why.

use crate::args::Show;
use crate::failure::Failure;
use crate::json::Shown;
use crate::output::{self, Output, to_json};
use crate::store_url::Choice;
use crate::table::Table;
use fencelock::error::spoken;
use fencelock::name::printable;
use fencelock::{Line, Mode, Seen};

pub(crate) async fn run(show: Show, choice: &Choice, output: Output) -> Result<u8, Failure> {
    choice.check_name(&show.name)?;
    let locks = choice.open().await?;
    let line = locks.inspect(&show.name).await?;
    if output.json {
        output::data(&(to_json(&Shown::new(&show.name, &line)) + "\n"));
    } else {
        output::data(&text(&show.name, &line));
    }
    Ok(0)
}

fn text(name: &str, line: &Line) -> String {
    let name = printable(name);
    if line.inside.is_empty() && line.waiting.is_empty() {
        return format!("{name}: free\n");
    }
    let permits = line.inside.iter().chain(&line.waiting).any(|seen| seen.mode == Mode::Permits);
    let kind = if permits {
        let taken: u64 = line.inside.iter().map(|seen| u64::from(seen.weight)).sum();
        format!("semaphore, {taken} of {} permits taken", line.capacity)
    } else {
        "lock".to_string()
    };
    let mut table = Table::new(["", "TOKEN", "MODE", "WHO", "SINCE", "LEASE ENDS IN", "REASON"]);
    for (state, seen) in
        line.inside.iter().map(|seen| ("inside", seen)).chain(line.waiting.iter().map(|seen| ("waiting", seen)))
    {
        table.row([
            state.to_string(),
            seen.token.map(|token| token.to_string()).unwrap_or_default(),
            if permits { format!("{} permits", seen.weight) } else { seen.mode.to_string() },
            who(seen),
            seen.admitted.or(seen.entered).map(spoken).unwrap_or_default(),
            seen.expires_in.map(spoken).unwrap_or_default(),
            seen.reason.as_deref().map(printable).unwrap_or_default(),
        ]);
    }
    format!("{name}: {kind}\n{table}")
}

fn who(seen: &Seen) -> String {
    let identity = printable(&seen.identity);
    if seen.host == seen.identity {
        format!("{identity} pid {}", seen.pid)
    } else {
        format!("{identity} pid {} on {}", seen.pid, printable(&seen.host))
    }
}
