//! `watch`: what `ls` tells, live.

use crate::args::Watch;
use crate::failure::Failure;
use crate::json::Row;
use crate::output::{self, Output, to_json};
use crate::store_url::Choice;
use crate::verbs::ls;
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

/// A lapse is told by nobody, and a table's times grow by themselves: so often we look without having been told.
const TICK: Duration = Duration::from_secs(1);
/// Changes that come in a bunch are looked at together.
const BUNCH: Duration = Duration::from_millis(50);

pub(crate) async fn run(watch: Watch, choice: &Choice, output: Output) -> Result<u8, Failure> {
    choice.check_name("x")?;
    let locks = choice.open().await?;
    // Watched before the first look: whatever changes after it is told.
    let mut hints = locks.watch(&watch.prefix).await?;
    let live = !output.json && std::io::stdout().is_terminal();
    let mut before = BTreeMap::new();
    loop {
        let rows = ls::rows(&locks, choice, &watch.prefix).await?;
        if live {
            output::data(&screen(&rows));
        } else {
            let (now, changes) = changes(before, rows);
            before = now;
            output::data(&changes.iter().map(|row| to_json(row) + "\n").collect::<String>());
        }
        let told = tokio::time::timeout(TICK, hints.next()).await;
        match told {
            Ok(None) => return Err(Failure::store("the store has ended the watch")),
            Ok(Some(_)) => tokio::time::sleep(BUNCH).await,
            Err(_) => {}
        }
    }
}

/// From the top of the screen, each line cleared behind itself, and then whatever is left below.
fn screen(rows: &[Row]) -> String {
    let table = if rows.is_empty() { "nobody holds anything\n".to_string() } else { ls::table(rows) };
    format!("\x1b[H{}\x1b[J", table.replace('\n', "\x1b[K\n"))
}

/// What has changed: also the same numbers with a shorter time, since somebody else is inside then. A name that is free
/// again is told once, with nobody in it.
fn changes(before: BTreeMap<String, Row>, rows: Vec<Row>) -> (BTreeMap<String, Row>, Vec<Row>) {
    let now: BTreeMap<String, Row> = rows.into_iter().map(|row| (row.name.clone(), row)).collect();
    let differs = |row: &&Row| match before.get(&row.name) {
        None => true,
        Some(old) => (old.inside, old.waiting) != (row.inside, row.waiting) || row.held_ms < old.held_ms,
    };
    let mut changes: Vec<Row> = now.values().filter(differs).cloned().collect();
    let gone = before.into_values().filter(|old| !now.contains_key(&old.name));
    changes.extend(gone.map(|old| Row { inside: 0, waiting: 0, held_ms: Some(0), ..old }));
    (now, changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_told() {
        let row = |name: &str, inside, held_ms| Row { name: name.into(), inside, waiting: 0, held_ms: Some(held_ms) };
        let (state, told) = changes(BTreeMap::new(), vec![row("a", 1, 10), row("b", 1, 10)]);
        assert_eq!(told, [row("a", 1, 10), row("b", 1, 10)]);
        let (state, told) = changes(state, vec![row("a", 1, 20), row("b", 1, 5)]);
        assert_eq!(told, [row("b", 1, 5)], "somebody else is inside");
        let (state, told) = changes(state, vec![row("b", 2, 15)]);
        assert_eq!(told, [row("b", 2, 15), row("a", 0, 0)]);
        assert_eq!(changes(state, vec![row("b", 2, 16)]).1, []);
    }
}
