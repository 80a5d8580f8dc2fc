//! `ls`: every name with someone in it.

use crate::args::Ls;
use crate::failure::Failure;
use crate::json::{Row, millis};
use crate::output::{self, Output, to_json};
use crate::store_url::Choice;
use crate::table::Table;
use fencelock::Locks;
use fencelock::error::spoken;
use fencelock::name::printable;
use std::time::Duration;

pub(crate) async fn run(ls: Ls, choice: &Choice, output: Output) -> Result<u8, Failure> {
    choice.check_name("x")?;
    let locks = choice.open().await?;
    let rows = rows(&locks, choice, &ls.prefix).await?;
    if output.json {
        output::data(&(to_json(&rows) + "\n"));
    } else if !rows.is_empty() {
        output::data(&table(&rows));
    }
    Ok(0)
}

/// What is there now. One round trip per thousand names.
pub(crate) async fn rows(locks: &Locks, choice: &Choice, prefix: &str) -> Result<Vec<Row>, Failure> {
    let listed = locks.list(prefix).await?;
    let row = |listed: &fencelock::Listed| Row {
        name: choice.typed(&listed.name.shown()),
        inside: listed.inside,
        waiting: listed.waiting,
        held_ms: listed.held.map(millis),
    };
    Ok(listed.iter().map(row).collect())
}

/// The same for people.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut table = Table::new(["NAME", "INSIDE", "WAITING", "HELD FOR"]);
    for row in rows {
        let held = row.held_ms.map(|ms| spoken(Duration::from_millis(ms))).unwrap_or_default();
        table.row([printable(&row.name), row.inside.to_string(), row.waiting.to_string(), held]);
    }
    table.to_string()
}
