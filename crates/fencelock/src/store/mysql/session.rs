//! Locks that belong to a connection: `GET_LOCK` of MySQL and MariaDB.

use super::hosts::Hosts;
use super::script::{broken, bytes, hex, int, listed, maybe, next, number, seen, string};
use super::{client, fault};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::session::{Ask, Driver, Left, Look, Picture, Session, Shown, Taken};
use crate::store::sql::{client_name, duration, micros};
use crate::store::{Listed, Place, Scope};
use calls::{Kept, SLOTS, numbered};
use mysql_async::{Conn, Row, Statement};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

mod calls;

/// What can be said of a ticket in one column of a table in memory, in bytes.
const LONGEST: usize = 250;

const NOW: &str = "SET @now = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED);\n";
const MICROS: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
/// What the name of a client's flag ends with.
const FLAG: &str = ":behind";
/// Whether a row's connection lives.
const LIVE: &str = "IS_USED_LOCK(CAST(s.marker AS CHAR CHARACTER SET ascii)) IS NOT NULL";

/// The statement that takes rows out, if there are any.
fn taken_out<'a>(places: impl Iterator<Item = &'a Place>) -> String {
    let row = |place: &Place| {
        format!("(name = {} AND id = {})", bytes(place.name.key().as_bytes()), bytes(place.id.as_bytes()))
    };
    let rows: Vec<String> = places.map(row).collect();
    if rows.is_empty() {
        String::new()
    } else {
        format!("DELETE FROM fencelock_session WHERE {};\n", rows.join(" OR "))
    }
}

/// What gives a lock back.
fn released(key: &str) -> String {
    format!("RELEASE_LOCK('{key}')")
}

/// Whether a count is above 0.
fn is_any(rows: &[Row]) -> Result<bool> {
    Ok(int(rows.first().ok_or_else(broken)?, 0)? > Some(0))
}

struct Open {
    conn: Conn,
    marker: String,
    /// The server's number of our connection: if it changes, something shares connections, and nothing can be held.
    id: i64,
    ttl: Option<u64>,
    /// How often our flag was put up: it comes down when it was taken down as often.
    flags: usize,
    /// How many locks this connection was given.
    grants: u64,
    /// Where numbers come from.
    numbers: Numbers,
    /// For each of [`SLOTS`], once it was needed.
    prepared: [Option<Statement>; SLOTS.len()],
    /// Whether the server prepares statements for us: it keeps so many for everybody, and no more.
    prepares: bool,
}

/// Where numbers come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    /// A sequence of MariaDB, which writes to disk once in a thousand.
    Sequence,
    /// A row, for MySQL, which has no sequences.
    Row,
}

/// Whether other clients are behind. Of the connections of one, each has names of its own.
fn behind(client: &str) -> String {
    format!(
        "SELECT COUNT(*) FROM fencelock_client c WHERE c.marker NOT LIKE '{client}%' AND IS_USED_LOCK(CONCAT(CAST(c.marker AS CHAR CHARACTER SET ascii), '{FLAG}')) IS NOT NULL;\n"
    )
}

/// What a connection is told first.
const BEGIN: &[&str] = &[
    // A server may cut what it joins after some characters: then the last number of many would be a smaller one.
    "SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', group_concat_max_len = 1048576",
];

/// One connection of a client.
pub(super) struct Mysql {
    /// Lock names are the whole server's, so the database is part of them.
    hosts: Arc<Hosts>,
    clock: Clock,
    /// What the markers of all connections of a client begin with.
    client: String,
    open: Option<Open>,
    kept: Kept,
}

/// As many connections as a client has: one alone would be idle while we read its answers and write what comes next.
const CONNECTIONS: usize = 2;

/// Connects once to see whether it works here, and leaves the rest to the library thread.
pub(super) async fn connect(hosts: Hosts, clock: Clock) -> Result<Session> {
    let hosts = Arc::new(hosts);
    let client = format!("fencelock-client:{}.", &client_name()[..10]);
    let driver = || {
        let (hosts, clock, client) = (hosts.clone(), clock.clone(), client.clone());
        Mysql { hosts, clock, client, open: None, kept: Kept::Nothing }
    };
    driver().open().await?;
    Ok(Session::new((0..CONNECTIONS).map(|_| driver()).collect(), false, clock.clone()))
}

/// What fits, cut between characters.
fn cut(said: &str) -> String {
    let said = crate::store::sql::text(said);
    let mut end = said.len().min(LONGEST);
    while !said.is_char_boundary(end) {
        end -= 1;
    }
    said[..end].to_string()
}

fn said(text: Option<&str>) -> String {
    maybe(text.map(cut).as_deref())
}

impl Mysql {
    /// The name of the server's lock: some servers tell case apart and some do not, and 64 characters are the most.
    fn key(&self, name: &Name) -> String {
        let mut hash = Sha256::new();
        hash.update(self.hosts.database.as_bytes());
        hash.update([0]);
        hash.update(name.key().as_bytes());
        let mut key = String::from("fencelock:");
        hex(&hash.finalize()[..24], &mut key);
        key
    }

    fn marker(&self) -> &str {
        self.open.as_ref().map_or("", |open| &open.marker)
    }

    /// The server ends the connection when it is silent for so long: whole seconds, begun ones as whole.
    fn ttl(&mut self, ttl: Duration) -> String {
        let secs = (ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).clamp(1, 31_536_000);
        match &mut self.open {
            Some(open) if open.ttl != Some(secs) => {
                open.ttl = Some(secs);
                format!("SET SESSION wait_timeout = {secs};\n")
            }
            _ => String::new(),
        }
    }
}

impl Driver for Mysql {
    async fn open(&mut self) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        let marker = format!("{}{}", self.client, &client_name()[..12]);
        let opening = async {
            let mut conn = self.hosts.open(BEGIN, &self.clock).await?;
            let script = format!(
                "SELECT GET_LOCK('{marker}', 0), CONNECTION_ID(), VERSION() LIKE '%MariaDB%';\n\
                 DELETE FROM fencelock_session WHERE IS_USED_LOCK(CAST(marker AS CHAR CHARACTER SET ascii)) IS NULL;\n\
                 DELETE FROM fencelock_client WHERE IS_USED_LOCK(CAST(marker AS CHAR CHARACTER SET ascii)) IS NULL;\n\
                 INSERT INTO fencelock_client VALUES ('{marker}', 0);\n"
            );
            let answers = client::answers(&mut conn, &script).await;
            Ok::<_, Error>((conn, answers.map_err(|error| fault::of_connecting(error, &self.hosts.address))?))
        };
        let (conn, answers) = Self::within(&self.clock, &self.hosts.address, opening)
            .await
            .map_err(|late| Error::new(ErrorKind::Unavailable, late.message()))??;
        let row = answers.first().and_then(|rows| rows.first()).ok_or_else(broken)?;
        if int(row, 0)? != Some(1) {
            return Err(Error::new(ErrorKind::Unavailable, format!("{} gives no locks", self.hosts.address)));
        }
        let id = int(row, 1)?.ok_or_else(broken)?;
        let numbers = if int(row, 2)? == Some(1) { Numbers::Sequence } else { Numbers::Row };
        let prepared = Default::default();
        self.open = Some(Open { conn, marker, id, ttl: None, flags: 0, grants: 0, numbers, prepared, prepares: true });
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.open.is_some()
    }

    async fn ended(&mut self) {
        // Only the next call tells.
        std::future::pending().await
    }

    fn close(&mut self) {
        self.open = None;
        if matches!(self.kept, Kept::Along { .. }) {
            self.kept = Kept::Lost;
        }
    }

    fn is_behind(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.flags > 0)
    }

    /// One round trip: one statement, however many are asked for; three on MySQL.
    async fn take(&mut self, ttl: Duration, asked: &[Ask<'_>]) -> Result<Vec<Taken>> {
        let first = self.ttl(ttl);
        let Some(open) = &self.open else { return Err(self.has_ended()) };
        let (up, numbers) = (open.flags > 0, open.numbers);
        let flag = format!("GET_LOCK('{}{FLAG}', 0)", open.marker);
        let keys: Vec<String> = asked.iter().map(|ask| self.key(&ask.enter.place.name)).collect();
        // Read from left to right, as far as it is true. The flag is up before anybody knows of the lock.
        let tried = |(ask, key): (&Ask<'_>, &String)| {
            let lock = format!("GET_LOCK('{key}', 0)");
            match (ask.attempt, up) {
                (true, true) => lock,
                (true, false) if ask.stay => format!("{flag} AND {lock}"),
                (true, false) => format!("{lock} AND {flag}"),
                (false, true) => "0".into(),
                (false, false) => format!("{flag} AND 0"),
            }
        };
        let usual = up && first.is_empty() && asked.iter().all(|ask| ask.attempt);
        let filled = if usual { self.fill(&keys).await? } else { None };
        let words = if let Some(words) = filled {
            words
        } else {
            let tries = format!("CONCAT({})", listed(asked.iter().zip(&keys).map(tried)));
            // All have the same number: they are of different names. It is given behind the locks.
            match numbers {
                Numbers::Sequence => self.tell(&first, &numbered(&tries)).await?,
                Numbers::Row => {
                    let first = format!(
                        "{first}SET @got = {tries};\nUPDATE fencelock_token SET last = LAST_INSERT_ID(last + 1) WHERE one = 1 AND INSTR(@got, '1');\n"
                    );
                    self.tell(&first, "@got, LAST_INSERT_ID()").await?
                }
            }
        };
        let (got, number) = match &words[..] {
            [got, number] if got.len() == asked.len() => (got.bytes().map(|got| got == b'1'), number.parse()),
            _ => return Err(self.broken()),
        };
        let number = number.map_err(|_| self.broken())?;
        if let Some(open) = &mut self.open {
            for (ask, got) in asked.iter().zip(got.clone()) {
                open.flags += usize::from(!up && (ask.stay || got));
                open.grants += u64::from(got);
            }
        }
        Ok(got.map(|got| if got { Taken::Got(number) } else { Taken::Not }).collect())
    }

    /// One round trip: one statement; two on MySQL.
    async fn pass_on(&mut self, ttl: Duration, count: usize) -> Result<Vec<u64>> {
        let Some(open) = &mut self.open else { return Err(self.has_ended()) };
        let flag = if open.flags > 0 { String::new() } else { format!(", GET_LOCK('{}{FLAG}', 0)", open.marker) };
        open.flags = open.flags.max(1);
        open.grants += count as u64;
        let (first, numbers) = match open.numbers {
            Numbers::Sequence => {
                let rows = vec!["SELECT 1"; count].join(" UNION ALL ");
                let all = format!("(SELECT GROUP_CONCAT(NEXTVAL(fencelock_number) SEPARATOR ' ') FROM ({rows}) n)");
                (String::new(), all)
            }
            Numbers::Row => (
                format!("UPDATE fencelock_token SET last = LAST_INSERT_ID(last + {count}) WHERE one = 1;\n"),
                listed((0..count).rev().map(|i| format!("LAST_INSERT_ID() - {i}"))),
            ),
        };
        let first = self.ttl(ttl) + &first;
        let words = self.tell(&first, &format!("{numbers}{flag}")).await?;
        let mut numbers: Vec<u64> = words.iter().take(count).filter_map(|word| word.parse().ok()).collect();
        numbers.sort_unstable();
        if numbers.len() == count { Ok(numbers) } else { Err(self.broken()) }
    }

    async fn is_wanted(&mut self, name: &Name) -> Result<bool> {
        let (name, marker) = (bytes(name.key().as_bytes()), self.marker());
        let wanted = format!(
            "EXISTS (SELECT 1 FROM fencelock_session s WHERE s.name = {name} AND s.number IS NULL AND s.marker <> '{marker}' AND {LIVE})"
        );
        Ok(self.tell("", &wanted).await?.first().is_some_and(|word| word == "1"))
    }

    /// None: it goes along with the next call.
    async fn put_back(&mut self, left: &[Left<'_>]) -> Result<()> {
        if !self.is_open() {
            return Err(self.has_ended());
        }
        let out = taken_out(left.iter().filter(|left| left.row).map(|left| left.place));
        let inside = left.iter().filter(|left| left.inside);
        let back: Vec<String> = inside.map(|left| self.key(&left.place.name)).collect();
        if let Kept::Along { rows, keys } = &mut self.kept {
            rows.push_str(&out);
            keys.extend(back);
        } else {
            self.kept = Kept::Along { rows: out, keys: back };
        }
        Ok(())
    }

    async fn settle(&mut self) -> Result<()> {
        match &self.kept {
            Kept::Nothing => Ok(()),
            Kept::Along { .. } => match self.fill(&[]).await? {
                Some(_) => Ok(()),
                None => self.run("").await.map(drop),
            },
            Kept::Lost => {
                self.kept = Kept::Nothing;
                Err(self.has_ended())
            }
        }
    }

    /// One round trip of four statements at most.
    async fn show(&mut self, gone: &[Place], shown: &[Shown<'_>], all: bool) -> Result<()> {
        let Some(open) = &mut self.open else { return Err(self.has_ended()) };
        let flags = if all { std::mem::take(&mut open.flags) } else { 0 };
        let (marker, grants) = (open.marker.clone(), open.grants);
        let row = |shown: &Shown<'_>| {
            let t = shown.enter;
            format!(
                "({name}, {id}, {long}, '{marker}', {weight}, {capacity}, {number}, {MICROS} - {entered}, {admitted}, {owner}, {host}, {pid}, {identity}, {reason}, {value})",
                name = bytes(t.place.name.key().as_bytes()),
                id = bytes(t.place.id.as_bytes()),
                long = maybe(t.place.name.long()),
                weight = t.weight,
                capacity = t.capacity,
                number = shown.number.map_or("NULL".into(), |number| number.to_string()),
                entered = micros(shown.entered),
                admitted = shown.admitted.map_or("NULL".into(), |ago| format!("{MICROS} - {}", micros(ago))),
                owner = bytes(t.owner.as_bytes()),
                host = said(Some(&t.note.host)),
                pid = t.note.pid,
                identity = said(Some(&t.note.identity)),
                reason = said(t.note.reason.as_deref()),
                value = said(t.note.value.as_deref()),
            )
        };
        let mut script = taken_out(gone.iter());
        if !shown.is_empty() {
            let rows: Vec<String> = shown.iter().map(row).collect();
            let _ = writeln!(script, "REPLACE INTO fencelock_session VALUES {};", rows.join(", "));
        }
        if flags > 0 {
            let _ = writeln!(script, "UPDATE fencelock_client SET grants = {grants} WHERE marker = '{marker}';");
        }
        if flags > 0 {
            let down = released(&format!("{marker}{FLAG}"));
            let _ = writeln!(script, "DO {};", vec![down; flags].join(", "));
        }
        self.run(&script).await.map(drop)
    }

    async fn lower(&mut self, _name: &Name) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "this store keeps no readers and no permits"))
    }

    async fn touch(&mut self, ttl: Duration) -> Result<()> {
        let script = self.ttl(ttl);
        self.run(&script).await.map(drop)
    }

    /// The flags first: a row that is written between the two is seen.
    async fn inspect(&mut self, name: &Name) -> Result<Look<Picture>> {
        let script = format!(
            "{}{NOW}SELECT s.number, IF(s.capacity = 1048576, 0, 2), s.weight, s.capacity, LOWER(HEX(s.owner)), s.host, s.pid, s.identity, s.reason, @now - s.entered, @now - s.admitted, NULL, s.value FROM fencelock_session s WHERE s.name = {} AND {LIVE} ORDER BY s.entered;\n",
            behind(&self.client),
            bytes(name.key().as_bytes())
        );
        let mut answers = self.run(&script).await?.into_iter();
        let behind = is_any(&next(&mut answers)?)?;
        let mut picture = Picture { capacity: 0, all: Vec::new(), other: None };
        for row in &next(&mut answers)? {
            let (capacity, mut seen) = seen(row)?;
            if int(row, 0)?.is_none() {
                seen.token = None;
            }
            picture.capacity = if picture.all.is_empty() { capacity } else { picture.capacity };
            picture.all.push(seen);
        }
        Ok(Look { found: picture, behind })
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Look<Vec<Listed>>> {
        let from = match after {
            Some(after) if after >= prefix => format!("s.name > {}", bytes(after.as_bytes())),
            _ => format!("s.name >= {}", bytes(prefix.as_bytes())),
        };
        let script = format!(
            "{}{NOW}SELECT s.name, MIN(s.said), COUNT(s.admitted), COUNT(*) - COUNT(s.admitted), @now - MIN(COALESCE(s.admitted, s.entered)) FROM fencelock_session s WHERE {from} AND LEFT(s.name, {}) = {} AND {LIVE} GROUP BY s.name ORDER BY s.name LIMIT {limit};\n",
            behind(&self.client),
            prefix.len(),
            bytes(prefix.as_bytes()),
        );
        let mut answers = self.run(&script).await?.into_iter();
        let behind = is_any(&next(&mut answers)?)?;
        let listed = |row: &Row| {
            let count = |at| Ok::<_, Error>(usize::try_from(number(int(row, at)?)).unwrap_or(usize::MAX));
            Ok(Listed {
                name: Name::from_key(&string(row, 0)?.ok_or_else(broken)?, string(row, 1)?.as_deref()),
                inside: count(2)?,
                waiting: count(3)?,
                held: int(row, 4)?.map(duration),
            })
        };
        let found = next(&mut answers)?.iter().map(listed).collect::<Result<_>>()?;
        Ok(Look { found, behind })
    }

    async fn marks(&mut self, scopes: &[Scope]) -> Result<Vec<String>> {
        let mut script = String::new();
        for scope in scopes {
            // Who has it, where that can be asked: one that comes and goes before it has a row leaves no other trace of its going.
            let (within, length, holder) = match scope {
                Scope::Name(name) => {
                    (bytes(name.key().as_bytes()), 1000, format!("COALESCE(IS_USED_LOCK('{}'), 0)", self.key(name)))
                }
                Scope::Prefix(prefix) => (bytes(prefix.as_bytes()), prefix.len(), "0".into()),
            };
            let _ = writeln!(
                script,
                "SELECT CONCAT((SELECT SUM(c.grants) FROM fencelock_client c), ' ', {holder}, ' ', COUNT(*), ' ', COUNT(s.number), ' ', COALESCE(MAX(s.number), 0), ' ', COALESCE(MAX(s.entered), 0), ' ', COALESCE(BIT_XOR(CRC32(CONCAT_WS('.', s.id, s.number, s.reason, s.value))), 0)) FROM fencelock_session s WHERE LEFT(s.name, {length}) = {within} AND {LIVE};"
            );
        }
        let answers = self.run(&script).await?;
        answers.iter().map(|rows| string(rows.first().ok_or_else(broken)?, 0)?.ok_or_else(broken)).collect()
    }
}
