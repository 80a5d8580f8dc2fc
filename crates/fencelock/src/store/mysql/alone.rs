//! A ticket that finds nobody in its line: it is kept in the line's own row, so that to enter and to leave costs what one bare
//! update of one row costs. What a client knows of lines, so that it need not try in vain.

use super::client::Client;
use super::script::{Script, Words, bytes, int, maybe, next, number, sql};
use super::verbs;
use crate::error::Result;
use crate::name::Name;
use crate::store::sql::lock;
use crate::store::{Enter, Entered, Place};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// So many lines are remembered; then all are forgotten.
const REMEMBERED: usize = 10_000;

/// How a line was when we last had to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// There was nobody but us.
    Alone,
    /// Its tickets were rows of their own.
    Crowded,
}

/// What this client knows of lines. Only ever a guess: others have changed them since.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<String, Known>>);

impl Lines {
    pub(super) fn known(&self, name: &Name) -> Option<Known> {
        lock(&self.0).get(name.key()).copied()
    }

    pub(super) fn learn(&self, name: &Name, known: Known) {
        let mut lines = lock(&self.0);
        if let Some(old) = lines.get_mut(name.key()) {
            *old = known;
            return;
        }
        if lines.len() >= REMEMBERED {
            lines.clear();
        }
        lines.insert(name.key().to_string(), known);
    }
}

/// Enters a line that is empty: one round trip, one statement; one more for a name that we do not know. None where we know that
/// somebody is there. `None` if it is not empty, or there is no such line.
pub(super) async fn enter(client: &Client, ticket: &Enter, words: &Words<'_>) -> Result<Option<Entered>> {
    let known = client.lines.known(&ticket.place.name);
    if known == Some(Known::Crowded) {
        return Ok(None);
    }
    let mut script = Script::default();
    script.add(sql!("take"), words);
    let (changed, token) = client.run_taking(ticket.place.id, script.0).await?;
    match (changed, known) {
        (1, _) => Ok(Some(admitted(client, ticket, token))),
        (_, None) => open(client, ticket, words).await,
        _ => Ok(None),
    }
}

/// Makes a line, and enters it unless somebody else was faster. One round trip.
pub(super) async fn open(client: &Client, ticket: &Enter, words: &Words<'_>) -> Result<Option<Entered>> {
    let name = &ticket.place.name;
    let mut script = Script::default();
    // Transactions of their own, all three: whoever finds the line made by somebody else must not keep a lock on it, and the
    // floor is read behind the line's lock.
    script.add(sql!("make"), &[("name", &bytes(name.key().as_bytes())), ("said", &maybe(name.long()))]);
    script.add("SELECT ROW_COUNT();", &[]);
    script.add(sql!("begin"), &[]).lock([(0, name)].into_iter()).add(sql!("open"), words).add("COMMIT;", &[]);
    script.add(sql!("take"), words).add(";", &[]).add(sql!("taken"), &[]);
    let mut answers = client.run_entering(vec![ticket.place.id], script.0).await?.into_iter();
    let (made, taken) = (next(&mut answers)?, next(&mut answers)?);
    if made.first().map(|row| int(row, 0)).transpose()?.flatten() == Some(1) {
        client.made.fetch_add(1, Ordering::Relaxed);
        verbs::attend(client);
    }
    let told = taken.first().map(|row| Ok::<_, crate::Error>((int(row, 0)?, int(row, 1)?))).transpose()?;
    match told {
        Some((Some(1), token)) => Ok(Some(admitted(client, ticket, number(token)))),
        _ => Ok(None),
    }
}

fn admitted(client: &Client, ticket: &Enter, token: u64) -> Entered {
    let name = &ticket.place.name;
    client.lines.learn(name, Known::Alone);
    client.hints.tell(name);
    // It is not to be woken by everybody who enters: that would cost each a switch to its thread.
    super::attend::start(&client.arc());
    Entered::Admitted { token, lease: ticket.lease }
}

/// Leaves a line that nobody else is in: one round trip, one statement. `false` if it is not there, or not alone.
pub(super) async fn leave(client: &Client, place: &Place) -> Result<bool> {
    let mut script = Script::default();
    let words: &Words<'_> = &[("name", &bytes(place.name.key().as_bytes())), ("id", &bytes(place.id.as_bytes()))];
    script.add(sql!("drop"), words);
    let (changed, _) = client.run_update(&script.0).await?;
    if changed == 1 {
        client.lines.learn(&place.name, Known::Alone);
        client.hints.tell(&place.name);
    }
    Ok(changed == 1)
}
