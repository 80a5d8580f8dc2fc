//! The verbs of the contract, each as one act within a transaction: what [`book`](super::book) keeps, put together.

use super::book::{Act, LineRow, Told, Txn, mode_number};
use crate::error::Error;
use crate::line::fits;
use crate::name::Name;
use crate::store::{
    Enter, Entered, Mode, Note, Place, Presence, Renew, Renewed, Scope, TicketId, Upgraded, waiting_lease,
};
use rusqlite::params;
use std::time::Duration;

/// A moment of the file, `lease` from now.
fn after(now: i64, lease: Duration) -> i64 {
    now.saturating_add(i64::try_from(lease.as_nanos()).unwrap_or(i64::MAX))
}

/// How long it is until a moment of the file.
fn until(now: i64, moment: i64) -> Duration {
    Duration::from_nanos(u64::try_from(moment.saturating_sub(now)).unwrap_or(0))
}

/// Six statements for a ticket that is alone, its `BEGIN` and `COMMIT` included.
pub(super) fn enter(txn: &mut Txn<'_>, batch: &[Enter], client: &str) -> Act<Vec<Entered>> {
    let mut lines = Vec::with_capacity(batch.len());
    let (mut full, mut new) = (false, 0);
    for ticket in batch {
        let name = &ticket.place.name;
        let line = txn.line(name)?;
        let there = if line.tickets > 0 { txn.ticket(name, ticket.place.id)? } else { None };
        let mut refused = false;
        if there.is_none() {
            if line.tickets > 0 && line.capacity != ticket.capacity {
                return Err(Error::mismatch(&name.shown(), ticket.capacity, line.capacity).into());
            }
            refused = !ticket.queue && !has_room(&line, ticket);
            new += 1;
        }
        full |= refused;
        lines.push((line, there, refused));
    }
    if full {
        let mut answers = Vec::with_capacity(batch.len());
        for (ticket, (line, _, refused)) in batch.iter().zip(&mut lines) {
            let holder = if *refused { txn.head(&ticket.place.name, line)? } else { None };
            answers.push(Entered::Full { holder });
        }
        return Ok(answers);
    }
    let mut number = if new > 0 { txn.numbers(new)? - new } else { 0 };
    let mut answers = Vec::with_capacity(batch.len());
    for (ticket, (mut line, there, _)) in batch.iter().zip(lines) {
        let name = &ticket.place.name;
        let lease = |inside: bool| if inside { ticket.lease } else { waiting_lease(ticket.lease) };
        let new = there.is_none();
        let (inside, token, expiry) = if let Some(there) = there {
            let expiry = txn.extend(&ticket.place, after(txn.now, lease(!there.waiting)))?.unwrap_or(there.expiry);
            (!there.waiting, there.token(), expiry)
        } else {
            number += 1;
            let inside = has_room(&line, ticket);
            let expiry = after(txn.now, lease(inside));
            txn.insert(ticket, number, inside, expiry, client)?;
            line.capacity = ticket.capacity;
            line.tickets += 1;
            line.total += i64::from(ticket.weight);
            if inside {
                line.inside += i64::from(ticket.weight);
            }
            if line.tickets == 1 {
                line.head = Some(*ticket.place.id.as_bytes());
            }
            line.earliest = line.earliest.min(expiry);
            (inside, number.unsigned_abs(), expiry)
        };
        let lease = until(txn.now, expiry);
        if inside {
            answers.push(Entered::Admitted { token, lease });
        } else {
            let ahead = txn.head(name, &mut line)?;
            answers.push(Entered::Queued { token: Some(token), lease, ahead });
        }
        if new {
            txn.save(name, &mut line, name.long())?;
            txn.changed(name)?;
        }
    }
    Ok(answers)
}

/// Whether a ticket fits behind *all* tickets of the line: then those are all inside, so it is as well; else it waits.
fn has_room(line: &LineRow, ticket: &Enter) -> bool {
    u64::try_from(line.total).is_ok_and(|total| fits(total, ticket.weight, ticket.capacity))
}

/// One statement for each, the transaction's own aside.
pub(super) fn renew(txn: &mut Txn<'_>, batch: &[Renew]) -> Act<Vec<Renewed>> {
    let mut answers = Vec::with_capacity(batch.len());
    for ticket in batch {
        let expiry = txn.extend(&ticket.place, after(txn.now, ticket.lease))?;
        answers.push(match expiry {
            Some(expiry) => {
                if let Some(at_least) = ticket.at_least {
                    txn.raise(at_least)?;
                }
                Renewed::There { lease: until(txn.now, expiry) }
            }
            None => {
                // If it has lapsed, this takes it out and lets the next one in.
                txn.line(&ticket.place.name)?;
                Renewed::Gone
            }
        });
    }
    Ok(answers)
}

/// Three statements for a ticket that is alone, the transaction's own aside.
pub(super) fn leave(txn: &mut Txn<'_>, batch: &[Place], client: &str) -> Act<Vec<Presence>> {
    let mut answers = Vec::with_capacity(batch.len());
    for place in batch {
        let mut line = txn.line(&place.name)?;
        let ticket = if line.tickets > 0 { txn.ticket(&place.name, place.id)? } else { None };
        let Some(ticket) = ticket else {
            answers.push(Presence::Gone);
            continue;
        };
        txn.remove(&place.name, &mut line, &ticket)?;
        txn.admit(&place.name, &mut line)?;
        txn.save(&place.name, &mut line, None)?;
        txn.changed(&place.name)?;
        if ticket.client != client {
            txn.news.tickets.push(Told { client: ticket.client, id: ticket.id, inside: None });
        }
        answers.push(Presence::There);
    }
    Ok(answers)
}

/// Lowers a weight, or says something new.
pub(super) fn change(txn: &mut Txn<'_>, place: &Place, weight: Option<u32>, note: Option<&Note>) -> Act<Presence> {
    let mut line = txn.line(&place.name)?;
    let Some(ticket) = txn.ticket(&place.name, place.id)? else { return Ok(Presence::Gone) };
    let (name, id) = (place.name.key(), place.id.as_bytes());
    if let Some(weight) = weight.filter(|weight| *weight < ticket.weight) {
        let mode = mode_number(Mode::of(weight, line.capacity));
        txn.write(
            "UPDATE kept SET weight = ?3, mode = ?4 WHERE name = ?1 AND id = ?2",
            params![name, id, weight, mode],
        )?;
        let less = i64::from(ticket.weight - weight);
        line.total -= less;
        if !ticket.waiting {
            line.inside -= less;
        }
        txn.admit(&place.name, &mut line)?;
        txn.save(&place.name, &mut line, None)?;
    }
    if let Some(note) = note {
        let (reason, value) = (note.reason.as_deref(), note.value.as_deref());
        txn.write(
            "UPDATE kept SET host = ?3, pid = ?4, identity = ?5, reason = ?6, value = ?7 WHERE name = ?1 AND id = ?2",
            params![name, id, &*note.host, note.pid, &*note.identity, reason, value],
        )?;
    }
    txn.wrote = true;
    txn.changed(&place.name)?;
    Ok(Presence::There)
}

/// A ticket that is alone gets a new id, a new number and all of the capacity.
pub(super) fn upgrade(txn: &mut Txn<'_>, place: &Place, new: TicketId) -> Act<Upgraded> {
    let mut line = txn.line(&place.name)?;
    if let Some(there) = txn.ticket(&place.name, new)? {
        return Ok(Upgraded::Admitted { token: there.token() });
    }
    if txn.ticket(&place.name, place.id)?.is_none() {
        return Ok(Upgraded::Gone);
    }
    if line.tickets > 1 {
        let by = txn.other(&place.name, place.id)?.map(|(_, seen)| seen);
        return Ok(Upgraded::Held { by });
    }
    let (number, now) = (txn.numbers(1)?, txn.now);
    txn.write(
        "UPDATE kept SET id = ?3, number = ?4, weight = ?5, mode = ?6, admitted = ?7 WHERE name = ?1 AND id = ?2",
        params![
            place.name.key(),
            place.id.as_bytes(),
            new.as_bytes(),
            number,
            line.capacity,
            mode_number(Mode::Exclusive),
            now
        ],
    )?;
    (line.total, line.inside) = (line.capacity.into(), line.capacity.into());
    line.head = Some(*new.as_bytes());
    txn.save(&place.name, &mut line, None)?;
    txn.changed(&place.name)?;
    Ok(Upgraded::Admitted { token: number.unsigned_abs() })
}

/// Puts a ticket out, whoever it belongs to. Clients that have no socket find out by the count of the expelled.
pub(super) fn expel(txn: &mut Txn<'_>, name: &Name, token: u64) -> Act<Presence> {
    let mut line = txn.line(name)?;
    let Some(ticket) = txn.numbered(name, token)? else { return Ok(Presence::Gone) };
    txn.remove(name, &mut line, &ticket)?;
    txn.admit(name, &mut line)?;
    txn.save(name, &mut line, None)?;
    txn.write("UPDATE kept SET expelled = expelled + 1 WHERE name = '' AND id = x''", [])?;
    txn.changed(name)?;
    txn.news.tickets.push(Told { client: ticket.client, id: ticket.id, inside: None });
    Ok(Presence::There)
}

/// Notes that a client wants to be told of changes.
pub(super) fn watch(txn: &mut Txn<'_>, client: &str, scope: &Scope) -> Act<()> {
    let (scope, exact) = spelled(scope);
    txn.write("INSERT OR IGNORE INTO watcher VALUES (?1, ?2, ?3)", params![client, scope, exact])?;
    count_watchers(txn)
}

/// Forgets that a client wanted to be told: of one scope, or of any.
pub(super) fn unwatch(txn: &mut Txn<'_>, client: &str, scope: Option<&Scope>) -> Act<()> {
    match scope.map(spelled) {
        Some((scope, exact)) => txn.write(
            "DELETE FROM watcher WHERE client = ?1 AND scope = ?2 AND exact = ?3",
            params![client, scope, exact],
        )?,
        None => txn.write("DELETE FROM watcher WHERE client = ?1", [client])?,
    };
    count_watchers(txn)
}

fn spelled(scope: &Scope) -> (&str, bool) {
    match scope {
        Scope::Name(name) => (name.key(), true),
        Scope::Prefix(prefix) => (prefix, false),
    }
}

fn count_watchers(txn: &mut Txn<'_>) -> Act<()> {
    txn.write("UPDATE kept SET watched = (SELECT count(*) FROM watcher) WHERE name = '' AND id = x''", [])?;
    Ok(())
}
