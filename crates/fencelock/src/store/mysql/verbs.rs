//! The verbs that change something, as scripts, and what the answers mean.

use super::alone::{self, Known};
use super::client::Client;
use super::crowd;
use super::script::{FAR, Script, Words, broken, bytes, int, listed, maybe, next, number, seen, small, sql, string};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::{duration, micros, ticket_id};
use crate::store::{
    Enter, Entered, Mode, Note, Place, Presence, Renew, Renewed, TicketId, Upgraded, Waited, waiting_lease,
};
use mysql_async::Row;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The order in which lines are locked.
fn sorted<T>(batch: &[T], name: impl Fn(&T) -> &Name) -> Vec<usize> {
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by(|a, b| name(&batch[*a]).key().cmp(name(&batch[*b]).key()));
    order
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "0",
        Mode::Shared => "1",
        Mode::Permits => "2",
    }
}

/// What the templates want to know of a ticket.
fn spelled(client: &Client, at: usize, ticket: &Enter) -> Vec<(&'static str, String)> {
    let note = &ticket.note;
    let held = ticket.held.iter().map(Name::key).collect::<Vec<_>>().join(" ");
    vec![
        ("i", at.to_string()),
        ("name", bytes(ticket.place.name.key().as_bytes())),
        ("id", bytes(ticket.place.id.as_bytes())),
        ("weight", ticket.weight.to_string()),
        ("capacity", ticket.capacity.to_string()),
        ("queue", if ticket.queue { "TRUE".into() } else { "FALSE".into() }),
        ("mode", mode(ticket.kind.mode()).into()),
        ("client", bytes(client.me.as_bytes())),
        ("owner", bytes(ticket.owner.as_bytes())),
        ("held", bytes(held.as_bytes())),
        ("host", maybe(Some(&note.host))),
        ("pid", note.pid.to_string()),
        ("identity", maybe(Some(&note.identity))),
        ("reason", maybe(note.reason.as_deref())),
        ("value", maybe(note.value.as_deref())),
        ("lease", micros(ticket.lease).to_string()),
        ("waiting", micros(waiting_lease(ticket.lease)).to_string()),
        ("soonest", format!("@now + {}", micros(waiting_lease(ticket.lease)))),
        ("where", String::new()),
        ("limit", "1".into()),
    ]
}

/// One round trip: one statement where nobody is in the line, a short script where others are, a longer one for a batch. One more if we took
/// it for the other case, or somebody in the line may have lapsed, or for a name that is used for the first time; two more for a name that is new to us and
/// has somebody in it.
pub(super) async fn enter(client: &Client, batch: &[Enter]) -> Result<Vec<Entered>> {
    let order = sorted(batch, |ticket| &ticket.place.name);
    let spelled: Vec<_> = order.iter().map(|at| spelled(client, *at, &batch[*at])).collect();
    let words: Vec<Vec<(&str, &str)>> =
        spelled.iter().map(|all| all.iter().map(|(word, value)| (*word, value.as_str())).collect()).collect();
    if let ([ticket], [words]) = (batch, &words[..]) {
        if client.lines.known(&ticket.place.name) == Some(Known::Crowded)
            && let Some(entered) = crowd::enter(client, ticket, words).await?
        {
            return Ok(vec![entered]);
        }
        // It may be known to be empty by now.
        if let Some(entered) = alone::enter(client, ticket, words).await? {
            return Ok(vec![entered]);
        }
    }
    let mut script = Script::transaction();
    script.lock(order.iter().map(|at| (*at, &batch[*at].place.name)));
    // Everybody is checked before anybody joins.
    for words in &words {
        script.add(sql!("sweep"), words).add(sql!("check"), words);
    }
    for words in &words {
        script.add(sql!("join"), words).add(sql!("admit"), words);
    }
    for words in &words {
        script.add(sql!("joined"), words).add(sql!("seen"), words);
    }
    let mut script = script.0 + "COMMIT;\n";
    let tickets: Vec<TicketId> = batch.iter().map(|ticket| ticket.place.id).collect();
    for attempt in 0..4 {
        let mut answers = client.run_entering(tickets.clone(), script.clone()).await?.into_iter();
        if let Some(found) = read_entered(client, batch, &order, &mut answers)? {
            return Ok(found);
        }
        // A line is missing: made by a transaction of its own, then the same again. It is there now, unless it was taken out
        // once more in between.
        if let ([ticket], [words]) = (batch, &words[..])
            && let Some(entered) = alone::open(client, ticket, words).await?
        {
            return Ok(vec![entered]);
        }
        if attempt == 0 {
            let mut make = Script::default();
            for name in order.iter().map(|at| &batch[*at].place.name) {
                make.add(sql!("make"), &[("name", &bytes(name.key().as_bytes())), ("said", &maybe(name.long()))]);
            }
            script = make.0 + &script;
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "the line is taken out again and again"))
}

/// What an enter's script has said; `None` if a line is missing.
fn read_entered(
    client: &Client,
    batch: &[Enter],
    order: &[usize],
    answers: &mut std::vec::IntoIter<Vec<Row>>,
) -> Result<Option<Vec<Entered>>> {
    let mut all: Vec<Entered> = batch.iter().map(|_| Entered::Full { holder: None }).collect();
    let mut failed = None;
    let mut entered = false;
    let mut missing = false;
    for at in order {
        let (told, head) = (next(answers)?, next(answers)?);
        let row = told.first().ok_or_else(broken)?;
        let head = head.first().map(seen).transpose()?.map(|(_, seen)| seen);
        let ticket = &batch[*at];
        client.lines.learn(&ticket.place.name, Known::Crowded);
        match (int(row, 0)?, int(row, 3)?) {
            (Some(0), Some(token)) => {
                let lease = int(row, 5)?.map_or(Duration::ZERO, duration);
                let token = number(Some(token));
                all[*at] = match int(row, 4)? {
                    Some(_) => Entered::Admitted { token, lease },
                    None => Entered::Queued { token: Some(token), lease, ahead: head },
                };
                entered = true;
                client.hints.tell(&ticket.place.name);
                if int(row, 2)? == Some(1) {
                    client.made.fetch_add(1, Ordering::Relaxed);
                }
            }
            (Some(2), _) => all[*at] = Entered::Full { holder: head },
            (Some(3), _) => {
                failed = Some(Error::mismatch(&ticket.place.name.shown(), ticket.capacity, small(int(row, 1)?)));
            }
            (Some(4), _) => missing = true,
            _ => {}
        }
    }
    if missing {
        return Ok(None);
    }
    if entered {
        attend(client);
    }
    failed.map_or(Ok(Some(all)), Err)
}

/// What was made has to be taken out again one day.
pub(super) fn attend(client: &Client) {
    super::attend::start(&client.arc());
    let made = client.made.load(Ordering::Relaxed);
    if made == 1 || made >= super::attend::MADE {
        client.bell.ring();
    }
}

/// The tail of every script that may let somebody in: whose ticket it was about, if it was there.
fn read_news(client: &Client, name: &Name, answers: &mut std::vec::IntoIter<Vec<Row>>) -> Result<Option<TicketId>> {
    let (told, admitted) = (next(answers)?, next(answers)?);
    let row = told.first().ok_or_else(broken)?;
    for row in &admitted {
        let id = string(row, 0)?.as_deref().and_then(ticket_id).ok_or_else(broken)?;
        crowd::came_in(client, id, int(row, 1)?);
    }
    if int(row, 1)?.is_some_and(|changes| changes > 0) {
        client.hints.tell(name);
    }
    client.lines.learn(name, if int(row, 2)? == Some(0) { Known::Alone } else { Known::Crowded });
    Ok(string(row, 0)?.as_deref().and_then(ticket_id))
}

fn presence(there: bool) -> Presence {
    if there { Presence::There } else { Presence::Gone }
}

/// One round trip for the batch, behind every enter of these tickets that is still under way; one more for a ticket that was alone
/// in its line when we last had to do with it and is not now, and one more where somebody in the line may have lapsed or several come in.
pub(super) async fn leave(client: &Client, batch: &[Place]) -> Result<Vec<Presence>> {
    for place in batch {
        client.answered(place.id).await?;
        client.stand.forget(place.id);
    }
    if let [place] = batch {
        let alone = client.lines.known(&place.name) != Some(Known::Crowded) && alone::leave(client, place).await?;
        let left = if alone { Some(Presence::There) } else { crowd::leave(client, place).await? };
        if let Some(left) = left {
            if left == Presence::There {
                client.ears.tell(place.id, &Waited::Gone);
            }
            return Ok(vec![left]);
        }
    }
    let which = |at: usize| format!("id = {}", bytes(batch[at].id.as_bytes()));
    let found = take_out(client, &batch.iter().map(|place| &place.name).collect::<Vec<_>>(), which).await?;
    for (place, found) in batch.iter().zip(&found) {
        if found.is_some() {
            client.ears.tell(place.id, &Waited::Gone);
        }
    }
    Ok(found.into_iter().map(|found| presence(found.is_some())).collect())
}

/// One round trip.
pub(super) async fn expel(client: &Client, name: &Name, token: u64) -> Result<Presence> {
    let token = i64::try_from(token).unwrap_or(-1);
    let found = take_out(client, &[name], |_| format!("number = {token}")).await?.pop().flatten();
    if let Some(id) = found {
        client.ears.tell(id, &Waited::Gone);
        if let Some(host) = client.host.get() {
            host.doubt(Some(id));
        }
    }
    Ok(presence(found.is_some()))
}

async fn take_out(client: &Client, names: &[&Name], which: impl Fn(usize) -> String) -> Result<Vec<Option<TicketId>>> {
    let order = sorted(names, |name| name);
    let me = bytes(client.me.as_bytes());
    let mut script = Script::transaction();
    script.lock(order.iter().map(|at| (*at, names[*at])));
    for at in &order {
        let words: &Words<'_> = &[
            ("i", &at.to_string()),
            ("name", &bytes(names[*at].key().as_bytes())),
            ("which", &which(*at)),
            ("client", &me),
            ("soonest", FAR),
        ];
        script.add(sql!("sweep"), words).add(sql!("leave"), words).add(sql!("admit"), words).add(sql!("news"), words);
    }
    let mut answers = script.commit(client).await?.into_iter();
    let mut found = vec![None; names.len()];
    for at in &order {
        found[*at] = read_news(client, names[*at], &mut answers)?;
    }
    Ok(found)
}

/// One round trip for the batch: seven statements, however many tickets, if all have the same lease.
pub(super) async fn renew(client: &Client, batch: &[Renew]) -> Result<Vec<Renewed>> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let names: BTreeSet<&str> = batch.iter().map(|ticket| ticket.place.name.key()).collect();
    let mut script = Script::transaction();
    let names = listed(names.iter().map(|name| bytes(name.as_bytes())));
    script.add(sql!("lock_all"), &[("names", &names)]);
    script.add(sql!("now"), &[]);
    let mut leases: BTreeMap<i64, Vec<&Place>> = BTreeMap::new();
    for ticket in batch {
        leases.entry(micros(ticket.lease)).or_default().push(&ticket.place);
    }
    let id = |place: &Place| bytes(place.id.as_bytes());
    for (lease, places) in leases {
        let both = |place: &&Place| format!("({}, {})", id(place), bytes(place.name.key().as_bytes()));
        let words: &Words<'_> = &[
            ("lease", &lease.to_string()),
            ("ids", &listed(places.iter().map(|place| id(place)))),
            ("names", &listed(places.iter().map(|place| bytes(place.name.key().as_bytes())))),
            ("places", &listed(places.iter().map(both))),
        ];
        script.add(sql!("renew_all"), words);
    }
    for ticket in batch {
        let Some(at_least) = ticket.at_least.map(|n| i64::try_from(n).unwrap_or(i64::MAX)) else { continue };
        let words: &Words<'_> = &[
            ("name", &bytes(ticket.place.name.key().as_bytes())),
            ("id", &id(&ticket.place)),
            ("at_least", &at_least.to_string()),
        ];
        script.add(sql!("raise"), words);
    }
    let ids = listed(batch.iter().map(|ticket| id(&ticket.place)));
    script.add("COMMIT;", &[]).add(sql!("renewed"), &[("ids", &ids), ("names", &names)]);
    let mut there = HashMap::new();
    for row in &client.run_ending(&script.as_one()).await? {
        let place = (string(row, 0)?.unwrap_or_default(), string(row, 1)?.unwrap_or_default());
        there.insert(place, int(row, 2)?.map_or(Duration::ZERO, duration));
    }
    let renewed = |ticket: &Renew| {
        let place = (ticket.place.id.to_string(), ticket.place.name.key().to_string());
        there.get(&place).map_or(Renewed::Gone, |lease| Renewed::There { lease: *lease })
    };
    Ok(batch.iter().map(renewed).collect())
}

/// One round trip.
pub(super) async fn change(
    client: &Client,
    place: &Place,
    weight: Option<u32>,
    note: Option<Note>,
) -> Result<Presence> {
    let said = if note.is_some() { "TRUE" } else { "FALSE" };
    let note = note.unwrap_or_default();
    let words: &Words<'_> = &[
        ("i", "0"),
        ("name", &bytes(place.name.key().as_bytes())),
        ("id", &bytes(place.id.as_bytes())),
        ("weight", &weight.map_or("NULL".into(), |weight| weight.to_string())),
        ("said", said),
        ("host", &maybe(Some(&note.host))),
        ("pid", &note.pid.to_string()),
        ("identity", &maybe(Some(&note.identity))),
        ("reason", &maybe(note.reason.as_deref())),
        ("value", &maybe(note.value.as_deref())),
        ("client", &bytes(client.me.as_bytes())),
        ("soonest", FAR),
    ];
    let mut script = Script::transaction();
    script.lock([(0, &place.name)].into_iter());
    script.add(sql!("sweep"), words).add(sql!("change"), words).add(sql!("admit"), words).add(sql!("news"), words);
    let mut answers = script.commit(client).await?.into_iter();
    Ok(presence(read_news(client, &place.name, &mut answers)?.is_some()))
}

/// One round trip.
pub(super) async fn upgrade(client: &Client, place: &Place, new: TicketId) -> Result<Upgraded> {
    let id = bytes(place.id.as_bytes());
    let words: &Words<'_> = &[
        ("i", "0"),
        ("name", &bytes(place.name.key().as_bytes())),
        ("id", &id),
        ("new", &bytes(new.as_bytes())),
        ("where", &format!("AND id <> {id}")),
        ("limit", "1"),
        ("soonest", FAR),
    ];
    let mut script = Script::transaction();
    script.lock([(0, &place.name)].into_iter());
    script.add(sql!("sweep"), words).add(sql!("admit"), words).add(sql!("upgrade"), words).add(sql!("seen"), words);
    let mut answers = script.commit(client).await?.into_iter();
    let (told, other) = (next(&mut answers)?, next(&mut answers)?);
    let row = told.first().ok_or_else(broken)?;
    Ok(match int(row, 0)? {
        Some(0) => {
            client.hints.tell(&place.name);
            Upgraded::Admitted { token: number(int(row, 1)?) }
        }
        Some(1) => Upgraded::Held { by: other.first().map(seen).transpose()?.map(|(_, seen)| seen) },
        _ => Upgraded::Gone,
    })
}
