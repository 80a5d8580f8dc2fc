//! The verbs as scripts: how they are put together from the `.sql` files, and what the answers mean.
//!
//! A template's `{words}` are replaced by numbers and by hexadecimal literals, so that no text of a user is ever read as SQL.

use super::client::{Answers, Client};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::{duration, micros, text, ticket_id};
use crate::store::{
    Enter, Entered, Line, Listed, Mode, Note, Place, Presence, Renew, Renewed, Scope, Seen, TicketId, Upgraded, Waited,
    waiting_lease,
};
use mysql_async::{Row, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

macro_rules! sql {
    ($file:literal) => {
        include_str!(concat!($file, ".sql"))
    };
}

/// A script in the making.
#[derive(Default)]
struct Script(String);

impl Script {
    fn transaction() -> Script {
        let mut script = Script::default();
        script.add(sql!("begin"), &[]);
        script
    }

    fn add(&mut self, template: &str, words: &[(&str, &str)]) -> &mut Script {
        // Comments are for readers.
        for line in template.lines().filter(|line| !line.starts_with("--")) {
            let mut line = line.to_string();
            for (word, value) in words {
                line = line.replace(&format!("{{{word}}}"), value);
            }
            self.0.push_str(&line);
            self.0.push('\n');
        }
        self
    }

    /// Locks these lines, in their order, and asks for the time.
    fn lock<'a>(&mut self, names: impl Iterator<Item = (usize, &'a Name)>) -> &mut Script {
        for (i, name) in names {
            self.add(sql!("lock"), &[("i", &i.to_string()), ("name", &bytes(name.key().as_bytes()))]);
        }
        self.add(sql!("now"), &[])
    }

    async fn commit(&mut self, client: &Client) -> Result<Answers> {
        self.0.push_str("COMMIT;\n");
        client.run(&self.0).await
    }
}

/// Bytes as SQL writes them.
pub(super) fn bytes(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(2 * bytes.len() + 3);
    out.push_str("x'");
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out.push('\'');
    out
}

fn listed(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

pub(super) fn maybe(said: Option<&str>) -> String {
    said.map_or("NULL".into(), |said| bytes(text(said).as_bytes()))
}

pub(super) fn broken() -> Error {
    let message = "the database answered something that this version does not understand";
    Error::new(ErrorKind::Broken, message).effect_unknown()
}

/// The next answer of a script.
fn next(answers: &mut std::vec::IntoIter<Vec<Row>>) -> Result<Vec<Row>> {
    answers.next().ok_or_else(broken)
}

pub(super) fn int(row: &Row, at: usize) -> Result<Option<i64>> {
    match row.as_ref(at) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Int(n)) => Ok(Some(*n)),
        Some(Value::UInt(n)) => i64::try_from(*n).map(Some).map_err(|_| broken()),
        Some(Value::Bytes(text)) => {
            let text = std::str::from_utf8(text).map_err(|_| broken())?;
            let whole = text.split('.').next().unwrap_or(text);
            whole.parse().map(Some).map_err(|_| broken())
        }
        _ => Err(broken()),
    }
}

pub(super) fn raw(row: &Row, at: usize) -> Result<Option<&[u8]>> {
    match row.as_ref(at) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
        _ => Err(broken()),
    }
}

pub(super) fn string(row: &Row, at: usize) -> Result<Option<String>> {
    Ok(raw(row, at)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

pub(super) fn number(number: Option<i64>) -> u64 {
    number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

fn small(number: Option<i64>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// A row of `seen.sql`, with the ticket's capacity.
pub(crate) fn seen(row: &Row) -> Result<(u32, Seen)> {
    let seen = Seen {
        token: Some(number(int(row, 0)?)),
        mode: match int(row, 1)? {
            Some(0) => Mode::Exclusive,
            Some(1) => Mode::Shared,
            _ => Mode::Permits,
        },
        weight: small(int(row, 2)?),
        owner: string(row, 4)?.unwrap_or_default(),
        host: string(row, 5)?.unwrap_or_default(),
        pid: small(int(row, 6)?),
        identity: string(row, 7)?.unwrap_or_default(),
        reason: string(row, 8)?,
        entered: int(row, 9)?.map(duration),
        admitted: int(row, 10)?.map(duration),
        expires_in: int(row, 11)?.map(duration),
        value: string(row, 12)?,
    };
    Ok((small(int(row, 3)?), seen))
}

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

/// One round trip; two more the first time that a name is used.
pub(super) async fn enter(client: &Client, batch: &[Enter]) -> Result<Vec<Entered>> {
    let order = sorted(batch, |ticket| &ticket.place.name);
    let me = bytes(client.me.as_bytes());
    let mut script = Script::transaction();
    script.lock(order.iter().map(|at| (*at, &batch[*at].place.name)));
    // Everybody is checked before anybody joins.
    let mut steps: [Script; 3] = Default::default();
    for at in &order {
        let ticket = &batch[*at];
        let note = &ticket.note;
        let held = ticket.held.iter().map(Name::key).collect::<Vec<_>>().join(" ");
        let words: &[(&str, &str)] = &[
            ("i", &at.to_string()),
            ("name", &bytes(ticket.place.name.key().as_bytes())),
            ("id", &bytes(ticket.place.id.as_bytes())),
            ("weight", &ticket.weight.to_string()),
            ("capacity", &ticket.capacity.to_string()),
            ("queue", if ticket.queue { "TRUE" } else { "FALSE" }),
            ("mode", mode(ticket.kind.mode())),
            ("client", &me),
            ("owner", &bytes(ticket.owner.as_bytes())),
            ("held", &bytes(held.as_bytes())),
            ("host", &maybe(Some(&note.host))),
            ("pid", &note.pid.to_string()),
            ("identity", &maybe(Some(&note.identity))),
            ("reason", &maybe(note.reason.as_deref())),
            ("value", &maybe(note.value.as_deref())),
            ("lease", &micros(ticket.lease).to_string()),
            ("waiting", &micros(waiting_lease(ticket.lease)).to_string()),
            ("where", ""),
            ("limit", "1"),
        ];
        steps[0].add(sql!("sweep"), words).add(sql!("check"), words);
        steps[1].add(sql!("join"), words).add(sql!("admit"), words);
        steps[2].add(sql!("joined"), words).add(sql!("seen"), words);
    }
    steps.iter().for_each(|step| script.0.push_str(&step.0));
    script.0.push_str("COMMIT;\n");
    let tickets: Vec<TicketId> = batch.iter().map(|ticket| ticket.place.id).collect();
    let mut answers = client.run_entering(tickets.clone(), script.0.clone()).await?.into_iter();
    let mut found = read_entered(client, batch, &order, &mut answers)?;
    if found.is_none() {
        // A line is missing: made by a transaction of its own, then the same again. It is there now, unless it was taken out
        // once more in between.
        for _ in 0..3 {
            let mut make = Script::default();
            for at in &order {
                let name = &batch[*at].place.name;
                make.add(sql!("make"), &[("name", &bytes(name.key().as_bytes())), ("said", &maybe(name.long()))]);
            }
            client.run(&make.0).await?;
            let mut answers = client.run_entering(tickets.clone(), script.0.clone()).await?.into_iter();
            found = read_entered(client, batch, &order, &mut answers)?;
            if found.is_some() {
                break;
            }
        }
    }
    found.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the line is taken out again and again"))
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
        super::attend::start(&client.arc());
        let made = client.made.load(Ordering::Relaxed);
        if made == 1 || made >= super::attend::MADE {
            client.bell.ring();
        }
    }
    failed.map_or(Ok(Some(all)), Err)
}

/// The tail of every script that may let somebody in: whose ticket it was about, if it was there.
fn read_news(client: &Client, name: &Name, answers: &mut std::vec::IntoIter<Vec<Row>>) -> Result<Option<TicketId>> {
    let (told, admitted) = (next(answers)?, next(answers)?);
    let row = told.first().ok_or_else(broken)?;
    for row in &admitted {
        let id = string(row, 0)?.as_deref().and_then(ticket_id).ok_or_else(broken)?;
        client.stir();
        client.ears.tell(id, &Waited::Admitted { token: number(int(row, 1)?) });
    }
    if int(row, 1)?.is_some_and(|changes| changes > 0) {
        client.hints.tell(name);
    }
    Ok(string(row, 0)?.as_deref().and_then(ticket_id))
}

fn presence(there: bool) -> Presence {
    if there { Presence::There } else { Presence::Gone }
}

/// One round trip for the batch, behind every enter of these tickets that is still under way.
pub(super) async fn leave(client: &Client, batch: &[Place]) -> Result<Vec<Presence>> {
    for place in batch {
        client.answered(place.id).await?;
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
        let words: &[(&str, &str)] = &[
            ("i", &at.to_string()),
            ("name", &bytes(names[*at].key().as_bytes())),
            ("which", &which(*at)),
            ("client", &me),
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

/// One round trip for the batch: few statements, however many tickets.
pub(super) async fn renew(client: &Client, batch: &[Renew]) -> Result<Vec<Renewed>> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let names: BTreeSet<&str> = batch.iter().map(|ticket| ticket.place.name.key()).collect();
    let mut script = Script::transaction();
    script.add(sql!("lock_all"), &[("names", &listed(names.iter().map(|name| bytes(name.as_bytes()))))]);
    script.add(sql!("now"), &[]);
    let mut leases: BTreeMap<i64, Vec<&Place>> = BTreeMap::new();
    for ticket in batch {
        leases.entry(micros(ticket.lease)).or_default().push(&ticket.place);
    }
    let id = |place: &Place| bytes(place.id.as_bytes());
    for (lease, places) in leases {
        let both = |place: &&Place| format!("({}, {})", id(place), bytes(place.name.key().as_bytes()));
        let words: &[(&str, &str)] = &[
            ("lease", &lease.to_string()),
            ("ids", &listed(places.iter().map(|place| id(place)))),
            ("places", &listed(places.iter().map(both))),
        ];
        script.add(sql!("renew_all"), words);
    }
    for ticket in batch {
        let Some(at_least) = ticket.at_least.map(|n| i64::try_from(n).unwrap_or(i64::MAX)) else { continue };
        let words: &[(&str, &str)] = &[
            ("name", &bytes(ticket.place.name.key().as_bytes())),
            ("id", &id(&ticket.place)),
            ("at_least", &at_least.to_string()),
        ];
        script.add(sql!("raise"), words);
    }
    script.add(sql!("renewed"), &[("ids", &listed(batch.iter().map(|ticket| id(&ticket.place))))]);
    let mut answers = script.commit(client).await?.into_iter();
    next(&mut answers)?;
    let mut there = HashMap::new();
    for row in &next(&mut answers)? {
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
    let words: &[(&str, &str)] = &[
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
    let words: &[(&str, &str)] = &[
        ("i", "0"),
        ("name", &bytes(place.name.key().as_bytes())),
        ("id", &id),
        ("new", &bytes(new.as_bytes())),
        ("where", &format!("AND id <> {id}")),
        ("limit", "1"),
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

/// One round trip for all who wait; one more where somebody has lapsed.
pub(super) async fn look(client: &Client, places: &[Place]) -> Result<Vec<Waited>> {
    let names: BTreeSet<&str> = places.iter().map(|place| place.name.key()).collect();
    let (mut found, rests) = peek(client, places, &names).await?;
    let lapsed: Vec<&Name> = {
        let lapsed = |name: &&Name| rests.get(name.key()).is_some_and(|rest| *rest <= 0);
        let mut names: Vec<&Name> = places.iter().map(|place| &place.name).filter(lapsed).collect();
        names.sort_by(|a, b| a.key().cmp(b.key()));
        names.dedup_by(|a, b| a.key() == b.key());
        names
    };
    if !lapsed.is_empty() {
        settle(client, &lapsed).await?;
        let (again, rests) = peek(client, places, &names).await?;
        found = again;
        expect_lapses(client, rests.into_values());
    } else {
        expect_lapses(client, rests.into_values());
    }
    for (place, found) in places.iter().zip(&found) {
        if *found != Waited::Waiting {
            client.stir();
            client.ears.tell(place.id, found);
        }
    }
    Ok(found)
}

fn expect_lapses(client: &Client, rests: impl Iterator<Item = i64>) {
    if let Some(rest) = rests.min() {
        client.expect_lapse(duration(rest));
    }
}

/// What is there, without a lock.
async fn peek(
    client: &Client,
    places: &[Place],
    names: &BTreeSet<&str>,
) -> Result<(Vec<Waited>, HashMap<String, i64>)> {
    let ids = places.iter().map(|place| bytes(place.id.as_bytes())).collect::<Vec<_>>().join(", ");
    let spelled = names.iter().map(|name| bytes(name.as_bytes())).collect::<Vec<_>>().join(", ");
    let mut script = Script::default();
    script.add(sql!("look"), &[("ids", &ids), ("names", &spelled)]);
    let rows = client.run_alone(&script.0).await?;
    let (mut there, mut rests) = (HashMap::new(), HashMap::new());
    for row in &rows {
        let (id, name) = (string(row, 1)?.unwrap_or_default(), string(row, 2)?.unwrap_or_default());
        let rest = int(row, 5)?.unwrap_or(0);
        if int(row, 0)? == Some(1) {
            rests.insert(name, rest);
        } else if rest > 0 {
            there.insert((id, name), (int(row, 3)?, int(row, 4)?));
        }
    }
    let found = |place: &Place| match there.get(&(place.id.to_string(), place.name.key().to_string())) {
        None => Waited::Gone,
        Some((_, None)) => Waited::Waiting,
        Some((token, Some(_))) => Waited::Admitted { token: number(*token) },
    };
    Ok((places.iter().map(found).collect(), rests))
}

/// Takes out the lapsed tickets of these lines, which are sorted, and lets in whoever fits then. One round trip.
async fn settle(client: &Client, names: &[&Name]) -> Result<()> {
    let mut script = Script::transaction();
    script.lock(names.iter().enumerate().map(|(i, name)| (i, *name)));
    for (i, name) in names.iter().enumerate() {
        let words: &[(&str, &str)] = &[("i", &i.to_string()), ("name", &bytes(name.key().as_bytes()))];
        script.add(sql!("sweep"), words).add(sql!("admit"), words);
    }
    script.commit(client).await?;
    names.iter().for_each(|name| client.hints.tell(name));
    Ok(())
}

/// One round trip.
pub(super) async fn inspect(client: &Client, name: &Name) -> Result<Line> {
    let words: &[(&str, &str)] =
        &[("i", "0"), ("name", &bytes(name.key().as_bytes())), ("where", ""), ("limit", "1000000")];
    let mut script = Script::transaction();
    script.lock([(0, name)].into_iter());
    script.add(sql!("sweep"), words).add(sql!("admit"), words).add(sql!("seen"), words);
    let mut answers = script.commit(client).await?.into_iter();
    let mut line = Line::default();
    for (i, row) in next(&mut answers)?.iter().enumerate() {
        let (capacity, seen) = seen(row)?;
        if i == 0 {
            line.capacity = capacity;
        }
        if seen.admitted.is_some() { line.inside.push(seen) } else { line.waiting.push(seen) }
    }
    Ok(line)
}

/// One round trip; two more where somebody has lapsed.
pub(super) async fn list(client: &Client, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
    let from = match after {
        Some(after) if after >= prefix => format!("l.name > {}", bytes(after.as_bytes())),
        _ => format!("l.name >= {}", bytes(prefix.as_bytes())),
    };
    let words: &[(&str, &str)] = &[
        ("prefix", &bytes(prefix.as_bytes())),
        ("length", &prefix.len().to_string()),
        ("from", &from),
        ("limit", &limit.to_string()),
    ];
    let mut script = Script::default();
    script.add(sql!("now"), &[]).add(sql!("list"), words);
    let mut settled = false;
    loop {
        let mut answers = client.run(&script.0).await?.into_iter();
        let rows = next(&mut answers)?;
        let mut listed = Vec::with_capacity(rows.len());
        let mut lapsed = Vec::new();
        for row in &rows {
            let key = string(row, 0)?.ok_or_else(broken)?;
            let name = Name::from_key(&key, string(row, 1)?.as_deref());
            if int(row, 5)? == Some(1) {
                lapsed.push(name.clone());
            }
            let count = |at| Ok::<_, Error>(usize::try_from(number(int(row, at)?)).unwrap_or(usize::MAX));
            listed.push(Listed { name, inside: count(2)?, waiting: count(3)?, held: int(row, 4)?.map(duration) });
        }
        if lapsed.is_empty() || std::mem::replace(&mut settled, true) {
            return Ok(listed);
        }
        settle(client, &lapsed.iter().collect::<Vec<_>>()).await?;
    }
}

/// One round trip: what changes whenever something within a scope does.
pub(super) async fn mark(client: &Client, scopes: &[Scope]) -> Result<Vec<String>> {
    let mut script = Script::default();
    for scope in scopes {
        let within = match scope {
            Scope::Name(name) => format!("name = {}", bytes(name.key().as_bytes())),
            Scope::Prefix(prefix) => {
                let (spelled, length) = (bytes(prefix.as_bytes()), prefix.len());
                format!("name >= {spelled} AND LEFT(name, {length}) = {spelled}")
            }
        };
        script.add(sql!("mark"), &[("where", &within)]);
    }
    let answers = client.run(&script.0).await?;
    let mark = |rows: &Vec<Row>| string(rows.first().ok_or_else(broken)?, 0)?.ok_or_else(broken);
    answers.iter().map(mark).collect()
}

/// Two round trips: says where to go on, and how many lines were taken out.
pub(super) async fn reap(
    client: &Client,
    after: Option<&[u8]>,
    most: u64,
    idle: Duration,
) -> Result<(Option<Vec<u8>>, u64)> {
    let idle = micros(idle).to_string();
    let words: &[(&str, &str)] =
        &[("after", &bytes(after.unwrap_or_default())), ("limit", &most.to_string()), ("idle", &idle)];
    let mut script = Script::default();
    script.add(sql!("now"), &[]).add(sql!("abandoned"), words);
    let mut answers = client.run(&script.0).await?.into_iter();
    let (all, abandoned) = (next(&mut answers)?, next(&mut answers)?);
    let last = match all.last() {
        Some(row) if all.len() as u64 == most => raw(row, 0)?.map(<[u8]>::to_vec),
        _ => None,
    };
    let mut names = abandoned.iter().map(|row| string(row, 0)?.ok_or_else(broken)).collect::<Result<Vec<_>>>()?;
    names.sort();
    if names.is_empty() {
        return Ok((last, 0));
    }
    let names: Vec<Name> = names.iter().map(|key| Name::from_key(key, None)).collect();
    let mut script = Script::transaction();
    script.lock(names.iter().enumerate());
    script.0.push_str("SET @reaped = 0;\n");
    // Every line is locked before the floor is.
    for (i, name) in names.iter().enumerate() {
        let words: &[(&str, &str)] = &[("i", &i.to_string()), ("name", &bytes(name.key().as_bytes())), ("idle", &idle)];
        script.add(sql!("sweep"), words).add(sql!("reap"), words);
    }
    script.0.push_str("SELECT @reaped;\n");
    let mut answers = script.commit(client).await?.into_iter();
    Ok((last, number(int(next(&mut answers)?.first().ok_or_else(broken)?, 0)?)))
}
