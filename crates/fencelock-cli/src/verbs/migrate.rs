//! `migrate`: make the tables of a SQL store, bring them up to date, or print how.

use crate::args::Migrate;
use crate::failure::{Failure, STORE};
use crate::output::{self, Event, Output};
use crate::store_url::Choice;
use fencelock::Migration;

pub(crate) async fn run(migrate: Migrate, choice: &Choice, output: Output) -> Result<u8, Failure> {
    let Some(migration) = Migration::of(&choice.url).map_err(Failure::connecting)? else {
        let message = "this store has no tables to make: name a PostgreSQL or MySQL store with --store";
        return Err(Failure::new(STORE, "unsupported", message));
    };
    if migrate.print {
        output::data(&migration.sql());
        return Ok(0);
    }
    let done = migration.run().await?;
    if output.json {
        output.event_on_stdout(&Event::Migrated { from: done.from, to: done.to });
        return Ok(0);
    }
    match done.from {
        None => output.note(&format!("the tables of layout {} have been made", done.to)),
        Some(from) if from < done.to => {
            output.note(&format!("the tables had layout {from}, they have {} now", done.to))
        }
        Some(_) => {}
    }
    Ok(0)
}
