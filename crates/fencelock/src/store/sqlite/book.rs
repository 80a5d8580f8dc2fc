//! The lines as rows of the file: what is read and written within one transaction. [The rule](crate::line) decides; the sums
//! that it needs are kept in the line's own row, so that no act walks the queue, except to take out lapsed tickets.

use super::fault::Stop;
use crate::error::{Error, ErrorKind};
use crate::line::fits;
use crate::name::Name;
use crate::store::{Enter, Mode, OwnerId, Place, Seen, TicketId};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;

/// Numbers are reserved in blocks: a sync to the disk for each, and what a power cut may skip.
pub(super) const BLOCK: i64 = 1024;

/// A result within a transaction.
pub(super) type Act<T> = Result<T, Stop>;

/// What was done, for whom it concerns, to be told once it is committed.
#[derive(Default, Debug)]
pub(super) struct News {
    /// Tickets that came in or went out without their client's doing.
    pub(super) tickets: Vec<Told>,
    /// Lines in which something changed, and the clients that watch them.
    pub(super) lines: Vec<(Name, Vec<String>)>,
    /// Few reserved numbers are left.
    pub(super) few_numbers: bool,
}

/// A ticket's client is to be told.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) client: String,
    pub(super) id: TicketId,
    /// Its number if it is inside now, `None` if it is gone.
    pub(super) inside: Option<u64>,
}

/// One transaction: the time at which it happens, and what it does.
pub(super) struct Txn<'a> {
    pub(super) conn: &'a Connection,
    pub(super) now: i64,
    boot: &'a str,
    /// Whether its commit is synced to the disk: only then may numbers be reserved.
    durable: bool,
    /// Whether there is anything to commit.
    pub(super) wrote: bool,
    pub(super) news: News,
    watched: bool,
}

/// With fewer reserved numbers left than this, more are reserved ahead of time.
const FEW: i64 = BLOCK / 2;

/// The line's own row.
#[derive(Debug)]
pub(super) struct LineRow {
    pub(super) capacity: u32,
    pub(super) total: i64,
    pub(super) inside: i64,
    pub(super) tickets: i64,
    pub(super) earliest: i64,
    pub(super) head: Option<[u8; 16]>,
    there: bool,
}

/// What is known of a ticket without reading what it says of itself.
#[derive(Debug)]
pub(super) struct TicketRow {
    pub(super) id: TicketId,
    pub(super) number: i64,
    pub(super) weight: u32,
    pub(super) waiting: bool,
    pub(super) expiry: i64,
    pub(super) client: String,
}

/// A select of what [`TicketRow`] reads.
macro_rules! select_ticket {
    ($rest:literal) => {
        concat!("SELECT id, number, weight, waiting, expiry, client FROM kept WHERE name = ?1 ", $rest)
    };
}

/// A select of what [`read_seen`] reads.
macro_rules! select_seen {
    ($rest:literal) => {
        concat!(
            "SELECT number, weight, waiting, expiry, entered, admitted, mode, owner, host, pid, identity, reason, value, id ",
            "FROM kept WHERE name = ?1 ",
            $rest
        )
    };
}

impl TicketRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<TicketRow> {
        Ok(TicketRow {
            id: TicketId::from_bytes(row.get(0)?),
            number: row.get(1)?,
            weight: row.get(2)?,
            waiting: row.get::<_, Option<i64>>(3)?.is_some(),
            expiry: row.get(4)?,
            client: row.get(5)?,
        })
    }

    pub(super) fn token(&self) -> u64 {
        self.number.unsigned_abs()
    }
}

impl<'a> Txn<'a> {
    pub(super) fn new(conn: &'a Connection, now: i64, boot: &'a str, durable: bool) -> Txn<'a> {
        Txn { conn, now, boot, durable, wrote: false, news: News::default(), watched: false }
    }

    /// Runs a statement that changes something.
    pub(super) fn write(&mut self, sql: &str, params: impl rusqlite::Params) -> Act<usize> {
        self.wrote = true;
        Ok(self.conn.prepare_cached(sql)?.execute(params)?)
    }

    /// The line as it is now, lapsed tickets taken out; one without tickets if nobody is in it.
    pub(super) fn line(&mut self, name: &Name) -> Act<LineRow> {
        let found = self
            .conn
            .prepare_cached(
                "SELECT l.capacity, l.total, l.inside, l.tickets, l.earliest, l.head, f.watched \
                 FROM kept AS l CROSS JOIN kept AS f \
                 WHERE l.name = ?1 AND l.id = x'' AND f.name = '' AND f.id = x''",
            )?
            .query_row([name.key()], |row| {
                let line = LineRow {
                    capacity: row.get(0)?,
                    total: row.get(1)?,
                    inside: row.get(2)?,
                    tickets: row.get(3)?,
                    earliest: row.get(4)?,
                    head: row.get(5)?,
                    there: true,
                };
                Ok((line, row.get::<_, i64>(6)?))
            })
            .optional()?;
        let Some((mut line, watched)) = found else {
            let (total, inside, tickets, earliest) = (0, 0, 0, i64::MAX);
            return Ok(LineRow { capacity: 0, total, inside, tickets, earliest, head: None, there: false });
        };
        self.watched = watched > 0;
        if self.now >= line.earliest {
            self.sweep(name, &mut line)?;
        }
        Ok(line)
    }

    /// Takes out every ticket whose lease has ended: the one act that walks the line, at most once in the shortest lease.
    fn sweep(&mut self, name: &Name, line: &mut LineRow) -> Act<()> {
        let (mut lapsed, mut earliest) = (Vec::new(), i64::MAX);
        for ticket in self.tickets(name)? {
            if ticket.expiry <= self.now {
                lapsed.push(ticket);
            } else {
                earliest = earliest.min(ticket.expiry);
            }
        }
        line.earliest = earliest;
        for ticket in &lapsed {
            self.remove(name, line, ticket)?;
            self.news.tickets.push(Told { client: ticket.client.clone(), id: ticket.id, inside: None });
        }
        if !lapsed.is_empty() {
            self.admit(name, line)?;
            self.changed(name)?;
        }
        self.save(name, line, None)
    }

    /// Every ticket of a line, in no order.
    fn tickets(&self, name: &Name) -> Act<Vec<TicketRow>> {
        let mut statement = self.conn.prepare_cached(select_ticket!("AND id > x''"))?;
        let tickets = statement.query_map([name.key()], TicketRow::read)?.collect::<Result<_, _>>()?;
        Ok(tickets)
    }

    /// A ticket by its id.
    pub(super) fn ticket(&self, name: &Name, id: TicketId) -> Act<Option<TicketRow>> {
        let sql = select_ticket!("AND id = ?2");
        Ok(self.conn.prepare_cached(sql)?.query_row(params![name.key(), id.as_bytes()], TicketRow::read).optional()?)
    }

    /// A ticket by its number: a walk, for `break` only.
    pub(super) fn numbered(&self, name: &Name, number: u64) -> Act<Option<TicketRow>> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        let sql = select_ticket!("AND id > x'' AND number = ?2");
        Ok(self.conn.prepare_cached(sql)?.query_row(params![name.key(), number], TicketRow::read).optional()?)
    }

    /// Takes a ticket's row out and its weight off the sums. The line is to be saved afterwards.
    pub(super) fn remove(&mut self, name: &Name, line: &mut LineRow, ticket: &TicketRow) -> Act<()> {
        self.write("DELETE FROM kept WHERE name = ?1 AND id = ?2", params![name.key(), ticket.id.as_bytes()])?;
        line.tickets -= 1;
        line.total -= i64::from(ticket.weight);
        if !ticket.waiting {
            line.inside -= i64::from(ticket.weight);
        }
        if line.head == Some(*ticket.id.as_bytes()) {
            line.head = None;
        }
        Ok(())
    }

    /// Lets in whoever fits by now. One look for each, and one for the first that does not fit.
    pub(super) fn admit(&mut self, name: &Name, line: &mut LineRow) -> Act<()> {
        while line.total > line.inside {
            let next = self
                .conn
                .prepare_cached(select_ticket!("AND waiting = 1 ORDER BY number LIMIT 1"))?
                .query_row([name.key()], TicketRow::read)
                .optional()?;
            let Some(next) = next else {
                return Err(damaged("a line's sums do not fit its tickets"));
            };
            let inside = u64::try_from(line.inside).map_err(|_| damaged("a line's sums are negative"))?;
            if !fits(inside, next.weight, line.capacity) {
                return Ok(());
            }
            let now = self.now;
            self.write(
                "UPDATE kept SET waiting = NULL, admitted = ?3 WHERE name = ?1 AND id = ?2",
                params![name.key(), next.id.as_bytes(), now],
            )?;
            if line.inside == 0 {
                line.head = Some(*next.id.as_bytes());
            }
            line.inside += i64::from(next.weight);
            let token = next.token();
            self.news.tickets.push(Told { client: next.client, id: next.id, inside: Some(token) });
        }
        Ok(())
    }

    /// Writes the line's row back, or takes it out with the last ticket. `long` is needed for a new line only.
    pub(super) fn save(&mut self, name: &Name, line: &mut LineRow, long: Option<&str>) -> Act<()> {
        if line.tickets == 0 {
            if std::mem::take(&mut line.there) {
                self.write("DELETE FROM kept WHERE name = ?1 AND id = x''", [name.key()])?;
            }
            return Ok(());
        }
        let head = line.head.as_ref();
        if line.there {
            self.write(
                "UPDATE kept SET total = ?2, inside = ?3, tickets = ?4, earliest = ?5, head = ?6 \
                 WHERE name = ?1 AND id = x''",
                params![name.key(), line.total, line.inside, line.tickets, line.earliest, head],
            )?;
        } else {
            self.write(
                "INSERT INTO kept (name, id, capacity, total, inside, tickets, earliest, head, long) \
                 VALUES (?1, x'', ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![name.key(), line.capacity, line.total, line.inside, line.tickets, line.earliest, head, long],
            )?;
            line.there = true;
        }
        Ok(())
    }

    /// Gives away `count` numbers and answers the last of them.
    pub(super) fn numbers(&mut self, count: i64) -> Act<i64> {
        let taken = self
            .conn
            .prepare_cached(
                "UPDATE kept SET last = last + ?2 \
                 WHERE name = '' AND id = x'' AND boot = ?1 AND last + ?2 <= reserved \
                 RETURNING last, watched, reserved - last",
            )?
            .query_row(params![self.boot, count], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            })
            .optional()?;
        if let Some((last, watched, left)) = taken {
            self.wrote = true;
            self.watched = watched > 0;
            self.news.few_numbers = left < FEW;
            return Ok(last);
        }
        self.reserve(count)?;
        self.numbers(count)
    }

    /// Makes sure that `count` more numbers may be given away, where that can be done.
    fn reserve(&mut self, count: i64) -> Act<()> {
        let boot: String = self
            .conn
            .prepare_cached("SELECT boot FROM kept WHERE name = '' AND id = x''")?
            .query_row([], |row| row.get(0))
            .optional()?
            .ok_or_else(|| damaged("it has no counter"))?;
        if boot != self.boot {
            let message = "the store file was taken over by another machine, or by another boot of this one";
            return Err(Error::new(ErrorKind::Broken, message).into());
        }
        if !self.durable {
            return Err(Stop::NeedsBlock);
        }
        let changed = self.write(
            "UPDATE kept SET reserved = max(reserved, last + ?1) + ?2 \
             WHERE name = '' AND id = x'' AND last < ?3",
            params![count, BLOCK, i64::MAX - count - BLOCK],
        )?;
        if changed == 0 {
            return Err(Error::new(ErrorKind::Broken, "the store file has no numbers left").into());
        }
        Ok(())
    }

    /// Announces the next block, if few numbers are left. It is reserved by [`keep_promise`](Txn::keep_promise) as soon as
    /// the announcement has reached the disk, which needs no transaction: nobody is held up by it.
    pub(super) fn promise(&mut self) -> Act<Option<i64>> {
        let promised = self
            .conn
            .prepare_cached(
                "UPDATE kept SET promised = reserved + ?2 \
                 WHERE name = '' AND id = x'' AND boot = ?1 AND reserved - last < ?3 RETURNING promised",
            )?
            .query_row(params![self.boot, BLOCK, FEW], |row| row.get(0))
            .optional()?;
        self.wrote |= promised.is_some();
        Ok(promised)
    }

    /// Reserves what was announced.
    pub(super) fn keep_promise(&mut self, promised: i64) -> Act<()> {
        let boot = self.boot;
        self.write(
            "UPDATE kept SET reserved = ?2 \
             WHERE name = '' AND id = x'' AND boot = ?1 AND reserved < ?2 AND promised >= ?2",
            params![boot, promised],
        )?;
        Ok(())
    }

    /// Raises the counter to at least `number`.
    pub(super) fn raise(&mut self, number: u64) -> Act<()> {
        let number = i64::try_from(number)
            .ok()
            .filter(|number| *number < i64::MAX - 2 * BLOCK)
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, format!("{number} is too large for a token")))?;
        let (last, reserved): (i64, i64) = self
            .conn
            .prepare_cached("SELECT last, reserved FROM kept WHERE name = '' AND id = x''")?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if last >= number {
            return Ok(());
        }
        if number > reserved {
            self.reserve(number - last)?;
        }
        self.write("UPDATE kept SET last = ?1 WHERE name = '' AND id = x''", [number])?;
        Ok(())
    }

    /// Writes a new ticket's row.
    pub(super) fn insert(&mut self, ticket: &Enter, number: i64, inside: bool, expiry: i64, client: &str) -> Act<()> {
        let held = ticket.held.iter().map(Name::key).collect::<Vec<_>>().join(" ");
        let (note, now) = (&ticket.note, self.now);
        self.write(
            "INSERT INTO kept (name, id, number, weight, waiting, expiry, entered, admitted, mode, client, owner, \
             host, pid, identity, reason, value, held) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
            params![
                ticket.place.name.key(),
                ticket.place.id.as_bytes(),
                number,
                ticket.weight,
                (!inside).then_some(1),
                expiry,
                now,
                inside.then_some(now),
                mode_number(ticket.kind.mode()),
                client,
                ticket.owner.as_bytes(),
                &*note.host,
                note.pid,
                &*note.identity,
                note.reason.as_deref(),
                note.value.as_deref(),
                (!held.is_empty()).then_some(held),
            ],
        )?;
        Ok(())
    }

    /// Sets a ticket's expiry to the later of what it is and `until`; `None` if it is not there or has lapsed.
    pub(super) fn extend(&mut self, place: &Place, until: i64) -> Act<Option<i64>> {
        let expiry = self
            .conn
            .prepare_cached(
                "UPDATE kept SET expiry = max(expiry, ?3) WHERE name = ?1 AND id = ?2 AND expiry > ?4 RETURNING expiry",
            )?
            .query_row(params![place.name.key(), place.id.as_bytes(), until, self.now], |row| row.get(0))
            .optional()?;
        self.wrote |= expiry.is_some();
        Ok(expiry)
    }

    /// The first ticket of the line. A walk only after the head of several holders left.
    pub(super) fn head(&mut self, name: &Name, line: &mut LineRow) -> Act<Option<Seen>> {
        if let Some(head) = line.head
            && let Some(seen) = self.seen(name, TicketId::from_bytes(head))?
        {
            return Ok(Some(seen));
        }
        let first = self.other(name, TicketId::from_bytes([0; 16]))?;
        line.head = first.as_ref().map(|(id, _)| *id.as_bytes());
        Ok(first.map(|(_, seen)| seen))
    }

    /// A ticket as others see it.
    fn seen(&self, name: &Name, id: TicketId) -> Act<Option<Seen>> {
        let sql = select_seen!("AND id = ?2");
        let read = |row: &Row<'_>| read_seen(row, self.now);
        let found = self.conn.prepare_cached(sql)?.query_row(params![name.key(), id.as_bytes()], read).optional()?;
        Ok(found.map(|(_, _, seen)| seen))
    }

    /// The first ticket of the line that is not this one.
    pub(super) fn other(&self, name: &Name, not: TicketId) -> Act<Option<(TicketId, Seen)>> {
        let sql = select_seen!("AND id > x'' AND id <> ?2 ORDER BY number LIMIT 1");
        let read = |row: &Row<'_>| read_seen(row, self.now);
        let found = self.conn.prepare_cached(sql)?.query_row(params![name.key(), not.as_bytes()], read).optional()?;
        Ok(found.map(|(id, _, seen)| (id, seen)))
    }

    /// Notes that something changed in this line, and who watches it. Costs nothing while nobody watches anything.
    pub(super) fn changed(&mut self, name: &Name) -> Act<()> {
        let mut clients = Vec::new();
        if self.watched {
            let mut statement = self.conn.prepare_cached(
                "SELECT DISTINCT client FROM watcher \
                 WHERE (exact = 1 AND scope = ?1) OR (exact = 0 AND substr(?1, 1, length(scope)) = scope)",
            )?;
            clients = statement.query_map([name.key()], |row| row.get(0))?.collect::<Result<_, _>>()?;
        }
        self.news.lines.push((name.clone(), clients));
        Ok(())
    }
}

/// A lapsed ticket is gone, and who stands behind it may be inside: the line as it is now, read without writing.
pub(super) fn read_line(conn: &Connection, key: &str, now: i64) -> Act<Option<(Name, crate::store::Line)>> {
    let sql = "SELECT capacity, long FROM kept WHERE name = ?1 AND id = x''";
    let line = conn
        .prepare_cached(sql)?
        .query_row([key], |row| Ok((row.get::<_, u32>(0)?, row.get::<_, Option<String>>(1)?)))
        .optional()?;
    let Some((capacity, long)) = line else { return Ok(None) };
    let sql = select_seen!("AND id > x'' AND expiry > ?2 ORDER BY number");
    let mut statement = conn.prepare_cached(sql)?;
    let mut seen = crate::store::Line { capacity, ..Default::default() };
    let mut ahead = 0;
    for row in statement.query_map(params![key, now], |row| read_seen(row, now))? {
        let (_, waiting, mut ticket) = row?;
        if seen.waiting.is_empty() && (!waiting || fits(ahead, ticket.weight, capacity)) {
            ahead += u64::from(ticket.weight);
            ticket.admitted = ticket.admitted.or(Some(Duration::ZERO));
            seen.inside.push(ticket);
        } else {
            seen.waiting.push(ticket);
        }
    }
    if seen.inside.is_empty() {
        return Ok(None);
    }
    Ok(Some((Name::from_key(key, long.as_deref()), seen)))
}

/// The first line whose name comes after `after` (or is it, if `from` says so).
pub(super) fn next_line(conn: &Connection, after: &str, itself: bool) -> Act<Option<String>> {
    let sql = if itself {
        "SELECT name FROM kept WHERE name >= ?1 AND name > '' ORDER BY name LIMIT 1"
    } else {
        "SELECT name FROM kept WHERE name > ?1 AND name > '' ORDER BY name LIMIT 1"
    };
    Ok(conn.prepare_cached(sql)?.query_row([after], |row| row.get(0)).optional()?)
}

/// Lines in which a lease has ended: a walk over everything.
pub(super) fn lapsed_lines(conn: &Connection, now: i64, most: i64) -> Act<Vec<Name>> {
    let mut statement =
        conn.prepare_cached("SELECT name, long FROM kept WHERE id = x'' AND name > '' AND earliest <= ?1 LIMIT ?2")?;
    let lines = statement.query_map([now, most], |row| {
        Ok(Name::from_key(&row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?.as_deref()))
    })?;
    Ok(lines.collect::<Result<_, _>>()?)
}

pub(super) fn damaged(what: &str) -> Stop {
    Stop::Refused(Error::new(ErrorKind::Broken, format!("the store file is damaged: {what}")))
}

pub(super) fn mode_number(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Permits => 2,
    }
}

/// A ticket's id, whether it waits by what is written, and what others see of it.
fn read_seen(row: &Row<'_>, now: i64) -> rusqlite::Result<(TicketId, bool, Seen)> {
    let since = |at: i64| Duration::from_nanos(u64::try_from(now.saturating_sub(at)).unwrap_or(0));
    let seen = Seen {
        token: Some(row.get::<_, i64>(0)?.unsigned_abs()),
        mode: match row.get::<_, i64>(6)? {
            0 => Mode::Exclusive,
            1 => Mode::Shared,
            _ => Mode::Permits,
        },
        weight: row.get(1)?,
        host: row.get(8)?,
        pid: row.get(9)?,
        identity: row.get(10)?,
        owner: OwnerId::from_bytes(row.get(7)?).to_string(),
        reason: row.get(11)?,
        value: row.get(12)?,
        entered: Some(since(row.get(4)?)),
        admitted: row.get::<_, Option<i64>>(5)?.map(since),
        expires_in: Some(Duration::from_nanos(u64::try_from(row.get::<_, i64>(3)?.saturating_sub(now)).unwrap_or(0))),
    };
    Ok((TicketId::from_bytes(row.get(13)?), row.get::<_, Option<i64>>(2)?.is_some(), seen))
}
