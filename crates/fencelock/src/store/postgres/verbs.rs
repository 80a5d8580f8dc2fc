//! The verbs as calls of the functions in `verbs.sql`: what goes in, and what the answers mean.

use super::client::Client;
use super::prepared::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::{duration, micros, text};
use crate::store::{
    Enter, Entered, Line, Listed, Mode, Note, Place, Presence, Renew, Renewed, Scope, Seen, TicketId, Upgraded, Waited,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

/// The columns of a ticket as others see it.
const SEEN: &str = "s_number, s_mode, s_weight, s_capacity, s_owner, s_host, s_pid, s_identity, s_reason, s_value, s_entered, \
                    s_admitted, s_left";

/// One column, by its name.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|error| {
        let message = format!("the database answered something that this version does not understand, in {column}");
        Error::new(ErrorKind::Broken, message).effect_unknown().caused_by(error)
    })
}

fn missing() -> Error {
    Error::new(ErrorKind::Broken, "the database gave no answer").effect_unknown()
}

pub(super) fn number(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The order in which lines are locked, and so the order in which a batch is sent.
fn sorted<T>(batch: &[T], name: impl Fn(&T) -> &Name) -> Vec<usize> {
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by(|a, b| name(&batch[*a]).key().cmp(name(&batch[*b]).key()));
    order
}

/// Answers that came in the order of sending, in the order of the batch.
fn restored<T>(order: &[usize], answers: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
    let mut all: Vec<Option<T>> = order.iter().map(|_| None).collect();
    for (at, answer) in order.iter().zip(answers) {
        all[*at] = Some(answer?);
    }
    all.into_iter().map(|answer| answer.ok_or_else(missing)).collect()
}

/// Somebody, if there is one.
pub(crate) fn seen(row: &Row) -> Result<Option<(u32, Seen)>> {
    if get::<Option<i64>>(row, "s_number")?.is_none() {
        return Ok(None);
    }
    seen_of(row).map(Some)
}

/// A ticket as others see it, with its capacity.
pub(super) fn seen_of(row: &Row) -> Result<(u32, Seen)> {
    let unsigned = |column| Ok::<_, Error>(u32::try_from(get::<i32>(row, column)?).unwrap_or(0));
    let span = |column| Ok::<_, Error>(get::<Option<i64>>(row, column)?.map(duration));
    let seen = Seen {
        token: get::<Option<i64>>(row, "s_number")?.map(number),
        mode: match get::<i32>(row, "s_mode")? {
            0 => Mode::Exclusive,
            1 => Mode::Shared,
            _ => Mode::Permits,
        },
        weight: unsigned("s_weight")?,
        host: get(row, "s_host")?,
        pid: u32::try_from(get::<i64>(row, "s_pid")?).unwrap_or(0),
        identity: get(row, "s_identity")?,
        owner: get(row, "s_owner")?,
        reason: get(row, "s_reason")?,
        value: get(row, "s_value")?,
        entered: span("s_entered")?,
        admitted: span("s_admitted")?,
        expires_in: span("s_left")?,
    };
    Ok((unsigned("s_capacity")?, seen))
}

fn hear(client: &Client, row: &Row) -> Result<()> {
    if let Some(news) = get::<Option<&str>>(row, "news")? {
        client.hear(news, false);
    }
    Ok(())
}

/// Says to those who watch in this process that we have changed a line. The others are told by the database.
fn changed(client: &Client, name: &Name) {
    client.hints.tell(name);
}

fn mode(mode: Mode) -> i32 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Permits => 2,
    }
}

/// What an enter says of a ticket's owner.
fn held(ticket: &Enter) -> String {
    ticket.held.iter().map(Name::key).collect::<Vec<_>>().join(" ")
}

/// Sends the enter of one ticket.
async fn send_one(client: &Client, ticket: &Enter) -> Result<Vec<Row>> {
    let Enter { place, note, .. } = ticket;
    let sql = "SELECT * FROM fencelock.enter_one($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16)";
    let params: super::client::Params<'_> = &[
        (&client.me, Type::TEXT),
        (&place.name.key(), Type::TEXT),
        (&place.name.long().map(text), Type::TEXT),
        (&&place.id.as_bytes()[..], Type::BYTEA),
        (&mode(ticket.kind.mode()), Type::INT4),
        (&ticket.weight.cast_signed(), Type::INT4),
        (&ticket.capacity.cast_signed(), Type::INT4),
        (&micros(ticket.lease), Type::INT8),
        (&ticket.queue, Type::BOOL),
        (&&ticket.owner.as_bytes()[..], Type::BYTEA),
        (&held(ticket), Type::TEXT),
        (&text(&note.host), Type::TEXT),
        (&i64::from(note.pid), Type::INT8),
        (&text(&note.identity), Type::TEXT),
        (&note.reason.as_deref().map(text), Type::TEXT),
        (&note.value.as_deref().map(text), Type::TEXT),
    ];
    client.call_entering(&[place.id], sql, params).await
}

/// Sends the enter of several, in the order in which their lines are locked.
async fn send(client: &Client, tickets: &[&Enter]) -> Result<Vec<Row>> {
    let each = || tickets.iter();
    let names: Vec<&str> = each().map(|t| t.place.name.key()).collect();
    let longs: Vec<Option<String>> = each().map(|t| t.place.name.long().map(text)).collect();
    let ids: Vec<&[u8]> = each().map(|t| &t.place.id.as_bytes()[..]).collect();
    let modes: Vec<i32> = each().map(|t| mode(t.kind.mode())).collect();
    let weights: Vec<i32> = each().map(|t| t.weight.cast_signed()).collect();
    let capacities: Vec<i32> = each().map(|t| t.capacity.cast_signed()).collect();
    let leases: Vec<i64> = each().map(|t| micros(t.lease)).collect();
    let queues: Vec<bool> = each().map(|t| t.queue).collect();
    let owners: Vec<&[u8]> = each().map(|t| &t.owner.as_bytes()[..]).collect();
    let helds: Vec<String> = each().map(|t| held(t)).collect();
    let hosts: Vec<String> = each().map(|t| text(&t.note.host)).collect();
    let pids: Vec<i64> = each().map(|t| i64::from(t.note.pid)).collect();
    let identities: Vec<String> = each().map(|t| text(&t.note.identity)).collect();
    let reasons: Vec<Option<String>> = each().map(|t| t.note.reason.as_deref().map(text)).collect();
    let values: Vec<Option<String>> = each().map(|t| t.note.value.as_deref().map(text)).collect();
    let ids_sent: Vec<TicketId> = each().map(|t| t.place.id).collect();
    let sql = "SELECT * FROM fencelock.enter($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16)";
    let params: super::client::Params<'_> = &[
        (&client.me, Type::TEXT),
        (&names, Type::TEXT_ARRAY),
        (&longs, Type::TEXT_ARRAY),
        (&ids, Type::BYTEA_ARRAY),
        (&modes, Type::INT4_ARRAY),
        (&weights, Type::INT4_ARRAY),
        (&capacities, Type::INT4_ARRAY),
        (&leases, Type::INT8_ARRAY),
        (&queues, Type::BOOL_ARRAY),
        (&owners, Type::BYTEA_ARRAY),
        (&helds, Type::TEXT_ARRAY),
        (&hosts, Type::TEXT_ARRAY),
        (&pids, Type::INT8_ARRAY),
        (&identities, Type::TEXT_ARRAY),
        (&reasons, Type::TEXT_ARRAY),
        (&values, Type::TEXT_ARRAY),
    ];
    client.call_entering(&ids_sent, sql, params).await
}

/// One round trip.
pub(super) async fn enter(client: &Client, batch: &[Enter]) -> Result<Vec<Entered>> {
    let order = sorted(batch, |ticket| &ticket.place.name);
    let each = || order.iter().map(|at| &batch[*at]);
    let rows = match batch {
        [one] => send_one(client, one).await?,
        _ => send(client, &each().collect::<Vec<_>>()).await?,
    };
    let mut entered = false;
    let answers = rows.iter().zip(each()).map(|(row, ticket)| {
        hear(client, row)?;
        let token = get::<Option<i64>>(row, "token")?.map_or(0, number);
        let lease = get::<Option<i64>>(row, "lease")?.map_or(Duration::ZERO, duration);
        let other = seen(row)?.map(|(_, seen)| seen);
        let answer = match get::<i32>(row, "what")? {
            0 => Entered::Admitted { token, lease },
            1 => Entered::Queued { token: Some(token), lease, ahead: other },
            2 => return Ok(Entered::Full { holder: other }),
            _ => {
                let there = u32::try_from(token).unwrap_or(0);
                return Err(Error::mismatch(&ticket.place.name.shown(), ticket.capacity, there));
            }
        };
        entered = true;
        changed(client, &ticket.place.name);
        if get::<bool>(row, "made")? {
            client.made.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    });
    let answers = restored(&order, answers)?;
    if entered {
        super::attend::start(&client.arc());
        client.look_for_abandoned();
    }
    Ok(answers)
}

/// One round trip for all.
pub(super) async fn look(client: &Client, places: &[Place]) -> Result<Vec<Waited>> {
    let order = sorted(places, |place| &place.name);
    let names: Vec<&str> = order.iter().map(|at| places[*at].name.key()).collect();
    let ids: Vec<&[u8]> = order.iter().map(|at| &places[*at].id.as_bytes()[..]).collect();
    let sql = "SELECT * FROM fencelock.look($1, $2, $3)";
    let params: super::client::Params<'_> =
        &[(&client.me, Type::TEXT), (&names, Type::TEXT_ARRAY), (&ids, Type::BYTEA_ARRAY)];
    let rows = client.call(sql, params).await?;
    let answers = rows.iter().zip(&order).map(|(row, at)| {
        hear(client, row)?;
        let token = get::<Option<i64>>(row, "token")?.map_or(0, number);
        let found = match get::<i32>(row, "what")? {
            0 => Waited::Admitted { token },
            1 => Waited::Waiting,
            _ => Waited::Gone,
        };
        if found == Waited::Waiting {
            client.expect_lapse(get::<Option<i64>>(row, "rest")?.map(duration));
        } else {
            client.stir();
            client.ears.tell(places[*at].id, &found);
        }
        Ok(found)
    });
    restored(&order, answers)
}

/// One round trip for the batch.
pub(super) async fn renew(client: &Client, batch: &[Renew]) -> Result<Vec<Renewed>> {
    let order = sorted(batch, |ticket| &ticket.place.name);
    let each = || order.iter().map(|at| &batch[*at]);
    let names: Vec<&str> = each().map(|t| t.place.name.key()).collect();
    let ids: Vec<&[u8]> = each().map(|t| &t.place.id.as_bytes()[..]).collect();
    let leases: Vec<i64> = each().map(|t| micros(t.lease)).collect();
    let at_leasts: Vec<Option<i64>> =
        each().map(|t| t.at_least.map(|n| i64::try_from(n).unwrap_or(i64::MAX))).collect();
    let sql = "SELECT * FROM fencelock.renew($1, $2, $3, $4)";
    let params: super::client::Params<'_> = &[
        (&names, Type::TEXT_ARRAY),
        (&ids, Type::BYTEA_ARRAY),
        (&leases, Type::INT8_ARRAY),
        (&at_leasts, Type::INT8_ARRAY),
    ];
    let rows = client.call(sql, params).await?;
    let answers = rows.iter().map(|row| {
        Ok(match get::<Option<i64>>(row, "lease")? {
            Some(lease) => Renewed::There { lease: duration(lease) },
            None => Renewed::Gone,
        })
    });
    restored(&order, answers)
}

fn presence(there: bool) -> Presence {
    if there { Presence::There } else { Presence::Gone }
}

/// One round trip for the batch; one more for each ticket whose enter is unanswered: its leave must not overtake that.
pub(super) async fn leave(client: &Client, batch: &[Place]) -> Result<Vec<Presence>> {
    for place in batch {
        if let Some(connection) = client.entering(place.id) {
            let found = leave_on(client, Some(&connection), std::slice::from_ref(place)).await?;
            client.answered(&[place.id]);
            if batch.len() == 1 {
                return Ok(found);
            }
        }
    }
    leave_on(client, None, batch).await
}

async fn leave_on(client: &Client, on: Option<&Arc<Connection>>, batch: &[Place]) -> Result<Vec<Presence>> {
    let order = sorted(batch, |place| &place.name);
    let rows = if let [one] = batch {
        let sql = "SELECT * FROM fencelock.leave_one($1, $2, $3)";
        let params: super::client::Params<'_> =
            &[(&client.me, Type::TEXT), (&one.name.key(), Type::TEXT), (&&one.id.as_bytes()[..], Type::BYTEA)];
        client.call_on(on, &[], sql, params).await?
    } else {
        let names: Vec<&str> = order.iter().map(|at| batch[*at].name.key()).collect();
        let ids: Vec<&[u8]> = order.iter().map(|at| &batch[*at].id.as_bytes()[..]).collect();
        let sql = "SELECT * FROM fencelock.leave($1, $2, $3)";
        let params: super::client::Params<'_> =
            &[(&client.me, Type::TEXT), (&names, Type::TEXT_ARRAY), (&ids, Type::BYTEA_ARRAY)];
        client.call_on(on, &[], sql, params).await?
    };
    let answers = rows.iter().zip(&order).map(|(row, at)| {
        hear(client, row)?;
        let there = get::<bool>(row, "there")?;
        if there {
            changed(client, &batch[*at].name);
            client.ears.tell(batch[*at].id, &Waited::Gone);
        }
        Ok(presence(there))
    });
    restored(&order, answers)
}

/// One round trip.
pub(super) async fn change(
    client: &Client,
    place: &Place,
    weight: Option<u32>,
    note: Option<Note>,
) -> Result<Presence> {
    let said = note.is_some();
    let note = note.unwrap_or_default();
    let weight = weight.map(|weight| i32::try_from(weight).unwrap_or(i32::MAX));
    let id = &place.id.as_bytes()[..];
    let rows = client
        .call(
            "SELECT * FROM fencelock.change($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)",
            &[
                (&client.me, Type::TEXT),
                (&place.name.key(), Type::TEXT),
                (&id, Type::BYTEA),
                (&weight, Type::INT4),
                (&said, Type::BOOL),
                (&text(&note.host), Type::TEXT),
                (&i64::from(note.pid), Type::INT8),
                (&text(&note.identity), Type::TEXT),
                (&note.reason.as_deref().map(text), Type::TEXT),
                (&note.value.as_deref().map(text), Type::TEXT),
            ],
        )
        .await?;
    there(client, &place.name, rows.first())
}

/// One round trip.
pub(super) async fn expel(client: &Client, name: &Name, token: u64) -> Result<Presence> {
    let token = i64::try_from(token).unwrap_or(-1);
    let params: super::client::Params<'_> =
        &[(&client.me, Type::TEXT), (&name.key(), Type::TEXT), (&token, Type::INT8)];
    let rows = client.call("SELECT * FROM fencelock.expel($1, $2, $3)", params).await?;
    there(client, name, rows.first())
}

fn there(client: &Client, name: &Name, row: Option<&Row>) -> Result<Presence> {
    let row = row.ok_or_else(missing)?;
    hear(client, row)?;
    let there = get::<bool>(row, "there")?;
    if there {
        changed(client, name);
    }
    Ok(presence(there))
}

/// One round trip.
pub(super) async fn upgrade(client: &Client, place: &Place, new: TicketId) -> Result<Upgraded> {
    let (old, new) = (&place.id.as_bytes()[..], &new.as_bytes()[..]);
    let params: super::client::Params<'_> =
        &[(&client.me, Type::TEXT), (&place.name.key(), Type::TEXT), (&old, Type::BYTEA), (&new, Type::BYTEA)];
    let rows = client.call("SELECT * FROM fencelock.upgrade($1, $2, $3, $4)", params).await?;
    let row = rows.first().ok_or_else(missing)?;
    hear(client, row)?;
    Ok(match get::<i32>(row, "what")? {
        0 => {
            changed(client, &place.name);
            Upgraded::Admitted { token: get::<Option<i64>>(row, "token")?.map_or(0, number) }
        }
        1 => Upgraded::Held { by: seen(row)?.map(|(_, seen)| seen) },
        _ => Upgraded::Gone,
    })
}

/// One round trip.
pub(super) async fn inspect(client: &Client, name: &Name) -> Result<Line> {
    let sql = format!("SELECT {SEEN}, news FROM fencelock.inspect($1, $2)");
    let rows = client.call(&sql, &[(&client.me, Type::TEXT), (&name.key(), Type::TEXT)]).await?;
    let mut line = Line::default();
    for (i, row) in rows.iter().enumerate() {
        if i == 0 {
            hear(client, row)?;
        }
        let Some((capacity, seen)) = seen(row)? else { continue };
        if i == 0 {
            line.capacity = capacity;
        }
        if seen.admitted.is_some() { line.inside.push(seen) } else { line.waiting.push(seen) }
    }
    Ok(line)
}

/// One round trip.
pub(super) async fn list(client: &Client, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let params: super::client::Params<'_> =
        &[(&client.me, Type::TEXT), (&prefix, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
    let rows = client.call("SELECT * FROM fencelock.list($1, $2, $3, $4)", params).await?;
    let listed = |row: &Row| {
        hear(client, row)?;
        let count = |column| Ok::<_, Error>(usize::try_from(get::<i64>(row, column)?).unwrap_or(0));
        Ok(Listed {
            name: Name::from_key(get(row, "name")?, get(row, "long")?),
            inside: count("inside")?,
            waiting: count("waiting")?,
            held: get::<Option<i64>>(row, "held")?.map(duration),
        })
    };
    rows.iter().map(listed).collect()
}

pub(super) fn spelled_scopes(scopes: &[Scope]) -> (Vec<&str>, Vec<bool>) {
    scopes.iter().map(spell).unzip()
}

fn spell(scope: &Scope) -> (&str, bool) {
    match scope {
        Scope::Name(name) => (name.key(), false),
        Scope::Prefix(prefix) => (prefix.as_str(), true),
    }
}

/// One round trip.
pub(super) async fn watch(client: &Client, scopes: &[Scope]) -> Result<()> {
    let (scopes, prefixes) = spelled_scopes(scopes);
    let lease = micros(super::attend::WATCH_LEASE);
    let params: super::client::Params<'_> =
        &[(&client.me, Type::TEXT), (&scopes, Type::TEXT_ARRAY), (&prefixes, Type::BOOL_ARRAY), (&lease, Type::INT8)];
    client.call("SELECT fencelock.watch($1, $2, $3, $4)", params).await.map(drop)
}

/// One round trip.
pub(super) async fn unwatch(client: &Client, scopes: &[Scope]) -> Result<()> {
    let (scopes, prefixes) = spelled_scopes(scopes);
    let params: super::client::Params<'_> =
        &[(&client.me, Type::TEXT), (&scopes, Type::TEXT_ARRAY), (&prefixes, Type::BOOL_ARRAY)];
    client.call("SELECT fencelock.unwatch($1, $2, $3)", params).await.map(drop)
}

/// One round trip: what changes whenever something within a scope does.
pub(super) async fn mark(client: &Client, scopes: &[Scope]) -> Result<Vec<String>> {
    let (scopes, prefixes) = spelled_scopes(scopes);
    let params: super::client::Params<'_> = &[(&scopes, Type::TEXT_ARRAY), (&prefixes, Type::BOOL_ARRAY)];
    let rows = client.call("SELECT mark FROM fencelock.mark($1, $2)", params).await?;
    rows.iter().map(|row| get(row, "mark")).collect()
}

/// One round trip: says where to go on, and how many lines were taken out.
pub(super) async fn reap(
    client: &Client,
    after: Option<&str>,
    most: i64,
    idle: Duration,
) -> Result<(Option<String>, i64)> {
    let idle = micros(idle);
    let params: super::client::Params<'_> =
        &[(&client.me, Type::TEXT), (&after, Type::TEXT), (&most, Type::INT8), (&idle, Type::INT8)];
    let rows = client.call("SELECT * FROM fencelock.reap($1, $2, $3, $4)", params).await?;
    let row = rows.first().ok_or_else(missing)?;
    hear(client, row)?;
    Ok((get(row, "upto")?, get(row, "reaped")?))
}
