//! What is there: who waits and who came in, who is inside, which names, what has changed, and what was left behind.

use super::client::Client;
use super::crowd::{self, Standing};
use super::script::{FAR, Script, Words, broken, bytes, int, listed, next, number, raw, seen, sql, string};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::sql::{duration, micros};
use crate::store::{Line, Listed, Place, Scope, Waited};
use mysql_async::Row;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// One round trip for all who wait, at their lines' rows; one more for those whose tickets have to be looked at, two where somebody may
/// have lapsed, and two more where somebody has.
pub(super) async fn look(client: &Client, places: &[Place]) -> Result<Vec<Waited>> {
    let mut places: Vec<(usize, &Place)> = places.iter().enumerate().collect();
    places.sort_by(|(_, a), (_, b)| a.name.key().cmp(b.name.key()));
    let (order, places): (Vec<usize>, Vec<Place>) = places.into_iter().map(|(at, place)| (at, place.clone())).unzip();
    let mut glanced = crowd::glance(client, &places).await?;
    if !glanced.lapsed.is_empty() {
        // Of all lines at once, so that this comes once in a lease and not once for each of them.
        crowd::reckon(client, &places).await?;
        glanced = crowd::glance(client, &places).await?;
    }
    if !glanced.lapsed.is_empty() {
        settle(client, &glanced.lapsed.iter().collect::<Vec<_>>()).await?;
        glanced = crowd::glance(client, &places).await?;
    }
    expect_lapses(client, glanced.rest.into_iter());
    let unsaid = |(found, _): &(&Option<Waited>, &Place)| found.is_none();
    let unsaid: Vec<Place> = glanced.found.iter().zip(&places).filter(unsaid).map(|(_, place)| place.clone()).collect();
    let mut said = if unsaid.is_empty() { Vec::new() } else { look_closer(client, &unsaid).await? }.into_iter();
    let mut all = vec![Waited::Gone; places.len()];
    for ((at, place), found) in order.into_iter().zip(&places).zip(glanced.found) {
        let found = found.or_else(|| said.next()).unwrap_or(Waited::Gone);
        if found != Waited::Waiting {
            client.stir();
            client.stand.forget(place.id);
            client.ears.tell(place.id, &found);
        }
        all[at] = found;
    }
    // Of one whose line's row said nothing we know only that it waits: it may be the next.
    let nearest = if unsaid.is_empty() { glanced.nearest } else { Some(1) };
    nearest.into_iter().for_each(|distance| client.stand.near(distance));
    Ok(all)
}

/// The same by the tickets themselves, in the order of their names: one round trip; two more where somebody has lapsed.
async fn look_closer(client: &Client, places: &[Place]) -> Result<Vec<Waited>> {
    let names: BTreeSet<&str> = places.iter().map(|place| place.name.key()).collect();
    let (mut found, mut rests) = peek(client, places, &names).await?;
    let lapsed = |name: &&Name| rests.get(name.key()).is_some_and(|rest| *rest <= 0);
    let mut lapsed: Vec<&Name> = places.iter().map(|place| &place.name).filter(lapsed).collect();
    lapsed.dedup_by(|a, b| a.key() == b.key());
    if !lapsed.is_empty() {
        settle(client, &lapsed).await?;
        (found, rests) = peek(client, places, &names).await?;
    }
    expect_lapses(client, rests.into_values());
    Ok(found)
}

fn expect_lapses(client: &Client, rests: impl Iterator<Item = i64>) {
    if let Some(rest) = rests.min() {
        client.expect_lapse(duration(rest));
    }
}

/// What is there, without a lock. Where those who wait stand is remembered.
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
            let ours = raw(row, 7)? == Some(client.me.as_bytes());
            let changes = int(row, 6)?.filter(|_| ours);
            there.insert((id, name), (int(row, 3)?.unwrap_or(0), int(row, 4)?, changes));
        }
    }
    let found = |place: &Place| match there.get(&(place.id.to_string(), place.name.key().to_string())) {
        None => Waited::Gone,
        Some((number, None, changes)) => {
            // What others do with tickets of their own is not seen at the line's row.
            if let Some(changes) = *changes {
                client.stand.learn(place, Standing { number: *number, changes });
            }
            Waited::Waiting
        }
        Some((token, Some(_), _)) => Waited::Admitted { token: number(Some(*token)) },
    };
    Ok((places.iter().map(found).collect(), rests))
}

/// Takes out the lapsed tickets of these lines, which are sorted, and lets in whoever fits then. One round trip.
async fn settle(client: &Client, names: &[&Name]) -> Result<()> {
    let mut script = Script::transaction();
    script.lock(names.iter().enumerate().map(|(i, name)| (i, *name)));
    for (i, name) in names.iter().enumerate() {
        let words: &Words<'_> = &[("i", &i.to_string()), ("name", &bytes(name.key().as_bytes())), ("soonest", FAR)];
        script.add(sql!("sweep"), words).add(sql!("admit"), words);
    }
    script.commit(client).await?;
    names.iter().for_each(|name| client.hints.tell(name));
    Ok(())
}

/// One round trip; two more where somebody has lapsed.
pub(super) async fn inspect(client: &Client, name: &Name) -> Result<Line> {
    let mut script = Script::default();
    script.add(sql!("picture"), &[("name", &bytes(name.key().as_bytes()))]);
    let mut settled = false;
    loop {
        let rows = client.run_alone(&script.0).await?;
        let (mut line, mut lapsed) = (Line::default(), false);
        for row in &rows {
            if int(row, 11)?.is_some_and(|rest| rest <= 0) {
                lapsed = true;
                continue;
            }
            let (capacity, seen) = seen(row)?;
            if line.capacity == 0 {
                line.capacity = capacity;
            }
            if seen.admitted.is_some() { line.inside.push(seen) } else { line.waiting.push(seen) }
        }
        if !lapsed || std::mem::replace(&mut settled, true) {
            return Ok(line);
        }
        settle(client, &[name]).await?;
    }
}

/// One round trip; two more where somebody has lapsed.
pub(super) async fn list(client: &Client, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
    let from = match after {
        Some(after) if after >= prefix => format!("l.name > {}", bytes(after.as_bytes())),
        _ => format!("l.name >= {}", bytes(prefix.as_bytes())),
    };
    let words: &Words<'_> = &[
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
    let words: &Words<'_> =
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
    let names = listed(names.iter().map(|key| bytes(key.as_bytes())));
    let mut script = Script::transaction();
    script.add(sql!("reap"), &[("names", &names), ("idle", &idle)]);
    let reaped = script.commit(client).await?.pop().ok_or_else(broken)?;
    Ok((last, number(int(reaped.first().ok_or_else(broken)?, 0)?)))
}
