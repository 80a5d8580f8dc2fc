//! A line that others are in: to join it at its end, to leave it and to let in the next one costs a few statements that touch a few
//! rows, however many stand in it, because the line's row keeps the sums. What they do not cover is done by the scripts of `verbs`, one round trip
//! later. And where those who wait here stand, so that a look at the lines' rows says whose turn it is.

use super::alone::Known;
use super::client::Client;
use super::script::{Script, Words, broken, bytes, int, listed, number, seen, sql, string};
use super::verbs;
use crate::error::Result;
use crate::name::Name;
use crate::store::sql::{duration, lock, ticket_id};
use crate::store::{Enter, Entered, Place, Presence, TicketId, Waited};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// So many tickets are remembered; then all are forgotten, and looked for by their ids.
const REMEMBERED: usize = 10_000;

/// Where a ticket that waits stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) number: i64,
    /// How many changes there had been in its line when it was there.
    pub(super) changes: i64,
}

/// Where those stand that wait here, by what we were told when they joined or were last looked for.
#[derive(Debug)]
pub(super) struct Stand {
    tickets: Mutex<HashMap<TicketId, (String, Standing)>>,
    /// How many numbers the first of them is away from its turn, as far as we know.
    nearest: AtomicI64,
}

impl Default for Stand {
    fn default() -> Stand {
        Stand { tickets: Mutex::default(), nearest: AtomicI64::new(1) }
    }
}

impl Stand {
    pub(super) fn learn(&self, place: &Place, standing: Standing) {
        let mut tickets = lock(&self.tickets);
        if tickets.len() >= REMEMBERED {
            tickets.clear();
        }
        tickets.insert(place.id, (place.name.key().to_string(), standing));
    }

    pub(super) fn forget(&self, id: TicketId) {
        lock(&self.tickets).remove(&id);
    }

    pub(super) fn of(&self, place: &Place) -> Option<Standing> {
        lock(&self.tickets).get(&place.id).filter(|(name, _)| name == place.name.key()).map(|(_, standing)| *standing)
    }

    pub(super) fn nearest(&self) -> u32 {
        u32::try_from(self.nearest.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Somebody who waits here is this far from its turn.
    pub(super) fn near(&self, distance: i64) {
        self.nearest.fetch_min(distance.max(1), Ordering::Relaxed);
    }

    /// All who wait here are about to be looked for: whoever is found waiting says how far it is.
    pub(super) fn look_anew(&self) {
        self.nearest.store(i64::MAX, Ordering::Relaxed);
    }
}

/// Joins a line that others are in: one round trip, eight statements. `None` if that cannot be told from the line's row; nothing was done
/// then.
pub(super) async fn enter(client: &Client, ticket: &Enter, words: &Words<'_>) -> Result<Option<Entered>> {
    let place = &ticket.place;
    let mut script = Script::default();
    script.add(sql!("follow"), words);
    let mut answers = client.run_following(place.id, script.as_one()).await?;
    let (told, head) = (answers.pop().ok_or_else(broken)?, answers.pop().ok_or_else(broken)?);
    let row = told.first().ok_or_else(broken)?;
    let head = || head.first().map(seen).transpose().map(|seen| seen.map(|(_, seen)| seen));
    let Some(what) = int(row, 0)? else {
        if int(row, 5)? == Some(0) {
            client.lines.learn(&place.name, Known::Alone);
        }
        return Ok(None);
    };
    if what == 2 {
        return Ok(Some(Entered::Full { holder: head()? }));
    }
    let token = int(row, 1)?.ok_or_else(broken)?;
    let lease = int(row, 2)?.map_or(Duration::ZERO, duration);
    client.hints.tell(&place.name);
    verbs::attend(client);
    if what == 0 {
        return Ok(Some(Entered::Admitted { token: number(Some(token)), lease }));
    }
    let (changes, frontier) = (int(row, 3)?.ok_or_else(broken)?, int(row, 4)?.ok_or_else(broken)?);
    client.stand.learn(place, Standing { number: token, changes });
    client.stand.near(token - frontier);
    Ok(Some(Entered::Queued { token: Some(number(Some(token))), lease, ahead: head()? }))
}

/// Leaves a line that others are in, and lets in the next one: one round trip, nine statements. `None` if that cannot be told from the
/// line's row and the next two tickets; nothing was done then.
pub(super) async fn leave(client: &Client, place: &Place) -> Result<Option<Presence>> {
    let mut script = Script::default();
    let words: &Words<'_> = &[
        ("name", &bytes(place.name.key().as_bytes())),
        ("id", &bytes(place.id.as_bytes())),
        ("client", &bytes(client.me.as_bytes())),
    ];
    script.add(sql!("pass"), words);
    let told = client.run_ending(&script.as_one()).await?;
    let row = told.first().ok_or_else(broken)?;
    match int(row, 0)? {
        None => return Ok(None),
        Some(1) => {}
        Some(_) => return Ok(Some(Presence::Gone)),
    }
    if let Some(next) = string(row, 1)?.as_deref().and_then(ticket_id) {
        came_in(client, next, int(row, 2)?);
    }
    client.hints.tell(&place.name);
    client.lines.learn(&place.name, if int(row, 3)? == Some(0) { Known::Alone } else { Known::Crowded });
    Ok(Some(Presence::There))
}

/// A ticket of ours was let in.
pub(super) fn came_in(client: &Client, id: TicketId, token: Option<i64>) {
    client.stir();
    client.stand.forget(id);
    client.ears.tell(id, &Waited::Admitted { token: number(token) });
}

/// How far a line has come.
struct Glance {
    many: bool,
    frontier: i64,
    head: i64,
    changes: i64,
    rest: i64,
}

/// What the lines' rows say of those who wait.
pub(super) struct Glanced {
    /// What became of each place; `None` where the row does not say it.
    pub(super) found: Vec<Option<Waited>>,
    /// The lines in which somebody may have lapsed.
    pub(super) lapsed: Vec<Name>,
    /// For how long nobody can lapse in any other.
    pub(super) rest: Option<i64>,
    /// How many numbers the first one is away from its turn.
    pub(super) nearest: Option<i64>,
}

/// Looks at the lines' rows for all who wait and whose place we know: one round trip, or none if there are none. Places come sorted by name.
pub(super) async fn glance(client: &Client, places: &[Place]) -> Result<Glanced> {
    let standing: Vec<Option<Standing>> = places.iter().map(|place| client.stand.of(place)).collect();
    let known = places.iter().zip(&standing).filter(|(_, standing)| standing.is_some());
    let mut names: Vec<&str> = known.map(|(place, _)| place.name.key()).collect();
    names.dedup();
    let mut lines = HashMap::new();
    if !names.is_empty() {
        let mut script = Script::default();
        let names = listed(names.into_iter().map(|name| bytes(name.as_bytes())));
        script.add(sql!("glance"), &[("names", &names)]);
        for row in &client.run_alone(&script.0).await? {
            let at = |column| Ok::<_, crate::Error>(int(row, column)?.unwrap_or(0));
            let line = Glance { many: at(1)? == 1, frontier: at(2)?, head: at(3)?, changes: at(4)?, rest: at(5)? };
            lines.insert(string(row, 0)?.unwrap_or_default(), line);
        }
    }
    let mut all = Glanced { found: Vec::with_capacity(places.len()), lapsed: Vec::new(), rest: None, nearest: None };
    for (place, standing) in places.iter().zip(standing) {
        let line = standing.and_then(|standing| Some((standing, lines.get(place.name.key())?)));
        let found = line.and_then(|(standing, line)| all.judge(place, standing, line));
        all.found.push(found);
    }
    all.rest = lines.values().map(|line| line.rest).filter(|rest| *rest > 0).min();
    Ok(all)
}

/// Puts off when somebody in these lines may lapse, as renewals have: one round trip and five statements, however many lines. They
/// come sorted by name.
pub(super) async fn reckon(client: &Client, places: &[Place]) -> Result<()> {
    let mut names: Vec<&str> = places.iter().map(|place| place.name.key()).collect();
    names.dedup();
    let names = listed(names.into_iter().map(|name| bytes(name.as_bytes())));
    let words: &Words<'_> = &[("names", &names)];
    let mut script = Script::transaction();
    script.add(sql!("lock_all"), words).add(sql!("reckon"), words).add("COMMIT;\nSELECT 'done'", &[]);
    client.run_ending(&script.as_one()).await.map(drop)
}

impl Glanced {
    /// What became of a ticket, if its line's row says it: that holds as long as nobody there can have lapsed, and nobody has left
    /// otherwise than from inside. A line that was made anew has only larger numbers.
    fn judge(&mut self, place: &Place, standing: Standing, line: &Glance) -> Option<Waited> {
        if !line.many || line.head > standing.number {
            return None;
        }
        if line.rest <= 0 {
            if self.lapsed.last().is_none_or(|last| last.key() != place.name.key()) {
                self.lapsed.push(place.name.clone());
            }
            return None;
        }
        if line.changes != standing.changes {
            return None;
        }
        if line.frontier >= standing.number {
            return Some(Waited::Admitted { token: number(Some(standing.number)) });
        }
        let distance = standing.number - line.frontier;
        self.nearest = Some(self.nearest.map_or(distance, |nearest| nearest.min(distance)));
        Some(Waited::Waiting)
    }
}
