//! Locks that belong to a connection: `GET_LOCK` of MySQL and MariaDB.

use super::client::{self, Answers};
use super::fault;
use super::hosts::Hosts;
use super::script::{broken, bytes, int, maybe, next, number, seen, string};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::session::{Ask, Driver, Left, Look, Picture, Session, Shown, Taken};
use crate::store::sql::{client_name, duration, micros};
use crate::store::{Listed, Place, Scope};
use futures_util::future::{Either, select};
use mysql_async::{Conn, Row};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::pin::pin;
use std::time::Duration;

/// We give up a call after this long, and the connection with it.
const PATIENCE: Duration = Duration::from_secs(5);
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
}

/// Where numbers come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    /// A sequence of MariaDB, which writes to disk once in a thousand.
    Sequence,
    /// A row, for MySQL, which has no sequences.
    Row,
}

/// Whether clients other than `marker` are behind.
fn behind(marker: &str) -> String {
    format!(
        "SELECT COUNT(*) FROM fencelock_client c WHERE c.marker <> '{marker}' AND IS_USED_LOCK(CONCAT(CAST(c.marker AS CHAR CHARACTER SET ascii), '{FLAG}')) IS NOT NULL;\n"
    )
}

/// What a connection is told first.
const BEGIN: &[&str] = &["SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = 'STRICT_ALL_TABLES'"];

/// The one connection.
pub(super) struct Mysql {
    /// Lock names are the whole server's, so the database is part of them.
    hosts: Hosts,
    clock: Clock,
    open: Option<Open>,
}

/// Connects once to see whether it works here, and leaves the rest to the library thread.
pub(super) async fn connect(hosts: Hosts, clock: Clock) -> Result<Session> {
    let mut driver = Mysql { hosts, clock: clock.clone(), open: None };
    driver.open().await?;
    driver.close();
    Ok(Session::new(driver, false, clock))
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
        let mut key = String::from("'fencelock:");
        for byte in &hash.finalize()[..24] {
            let _ = write!(key, "{byte:02x}");
        }
        key.push('\'');
        key
    }

    async fn within<T>(clock: &Clock, address: &str, future: impl Future<Output = T>) -> Result<T> {
        let limit = clock.sleep_until(clock.now().after(PATIENCE));
        match select(pin!(future), limit).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => {
                Err(Error::unknown(format!("{address} did not answer within {} s", PATIENCE.as_secs())))
            }
        }
    }

    /// One round trip. Whatever goes wrong ends the connection: what of it was done cannot be known, and the end undoes it.
    async fn run(&mut self, script: &str) -> Result<Answers> {
        let mut answers = self.send(&format!("{script}SELECT CONNECTION_ID()\n")).await?;
        answers.pop();
        Ok(answers)
    }

    /// The same for a script with one answer of one row, which comes last and begins with the connection's number.
    async fn run_ending(&mut self, script: &str) -> Result<Row> {
        self.send(script).await?.pop().and_then(|mut rows| rows.pop()).ok_or_else(broken)
    }

    /// Sends a script whose last answer begins with the connection's number: so it was carried out to its end, and by whom we think.
    async fn send(&mut self, script: &str) -> Result<Answers> {
        let Some(mut open) = self.open.take() else {
            return Err(Error::unknown(format!("{}: the connection has ended", self.hosts.address)));
        };
        let answer = Self::within(&self.clock, &self.hosts.address, client::collect(&mut open.conn, script)).await?;
        let answers = answer.map_err(|error| fault::of_call(error, &self.hosts.address))?;
        let id = answers.last().and_then(|rows| rows.first()).map(|row| int(row, 0)).transpose()?.flatten();
        if id != Some(open.id) {
            let message = format!("{} does not keep to one connection: use mode=rows", self.hosts.address);
            return Err(Error::new(ErrorKind::Unsupported, message).effect_unknown());
        }
        self.open = Some(open);
        Ok(answers)
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
        let marker = format!("fencelock-client:{}", client_name());
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
        self.open = Some(Open { conn, marker, id, ttl: None, flags: 0, grants: 0, numbers });
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
    }

    fn is_behind(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.flags > 0)
    }

    /// One round trip: one statement, however many are asked for; three on MySQL.
    async fn take(&mut self, ttl: Duration, asked: &[Ask<'_>]) -> Result<Vec<Taken>> {
        let Some(open) = &self.open else { return Err(Error::unknown("the connection has ended")) };
        let (up, numbers) = (open.flags > 0, open.numbers);
        let flag = format!("GET_LOCK('{}{FLAG}', 0) = 1", open.marker);
        // Read from left to right, as far as it is true. The flag is up before anybody knows of the lock.
        let tried = |ask: &Ask<'_>| {
            let lock = format!("GET_LOCK({}, 0) = 1", self.key(&ask.enter.place.name));
            match (ask.attempt, up) {
                (true, true) => lock,
                (true, false) if ask.stay => format!("{flag} AND {lock}"),
                (true, false) => format!("{lock} AND {flag}"),
                (false, true) => "FALSE".into(),
                (false, false) => format!("{flag} AND FALSE"),
            }
        };
        let tries = asked.iter().map(tried);
        let script = match numbers {
            Numbers::Sequence => {
                let all: Vec<String> =
                    tries.map(|tried| format!("IF({tried}, NEXTVAL(fencelock_number), NULL)")).collect();
                format!("SELECT CONNECTION_ID(), {}\n", all.join(", "))
            }
            Numbers::Row => {
                let all: Vec<String> = tries.enumerate().map(|(i, tried)| format!("@g{i} = ({tried})")).collect();
                let got: Vec<String> = (0..all.len()).map(|i| format!("@g{i}")).collect();
                // Numbers are given for all at once, behind the locks; who got none leaves a gap.
                let given = |i| format!("IF(@g{i}, LAST_INSERT_ID() - {i}, NULL)");
                format!(
                    "SET {};\nUPDATE fencelock_token SET last = LAST_INSERT_ID(last + {}) WHERE one = 1 AND 1 IN ({});\nSELECT CONNECTION_ID(), {}\n",
                    all.join(", "),
                    all.len(),
                    got.join(", "),
                    (0..all.len()).map(given).collect::<Vec<_>>().join(", ")
                )
            }
        };
        let script = self.ttl(ttl) + &script;
        let row = self.run_ending(&script).await?;
        let mut taken = Vec::with_capacity(asked.len());
        for (i, ask) in asked.iter().enumerate() {
            let got = int(&row, 1 + i)?;
            if let Some(open) = &mut self.open {
                open.flags += usize::from(!up && (ask.stay || got.is_some()));
                open.grants += u64::from(got.is_some());
            }
            taken.push(got.map_or(Taken::Not, |got| Taken::Got(number(Some(got)))));
        }
        Ok(taken)
    }

    /// One round trip: one statement; two on MySQL.
    async fn pass_on(&mut self, ttl: Duration, count: usize) -> Result<Vec<u64>> {
        let Some(open) = &mut self.open else { return Err(Error::unknown("the connection has ended")) };
        let flag = if open.flags > 0 { String::new() } else { format!(", GET_LOCK('{}{FLAG}', 0)", open.marker) };
        open.flags = open.flags.max(1);
        open.grants += count as u64;
        let (first, numbers) = match open.numbers {
            Numbers::Sequence => (String::new(), vec![", NEXTVAL(fencelock_number)".to_string(); count]),
            Numbers::Row => (
                format!("UPDATE fencelock_token SET last = LAST_INSERT_ID(last + {count}) WHERE one = 1;\n"),
                (0..count).rev().map(|i| format!(", LAST_INSERT_ID() - {i}")).collect(),
            ),
        };
        let script = format!("{}{first}SELECT CONNECTION_ID(){}{flag}\n", self.ttl(ttl), numbers.concat());
        let row = self.run_ending(&script).await?;
        (0..count).map(|i| Ok(number(Some(int(&row, 1 + i)?.ok_or_else(broken)?)))).collect()
    }

    async fn is_wanted(&mut self, name: &Name) -> Result<bool> {
        let (name, marker) = (bytes(name.key().as_bytes()), self.marker());
        let script = format!(
            "SELECT CONNECTION_ID(), EXISTS (SELECT 1 FROM fencelock_session s WHERE s.name = {name} AND s.number IS NULL AND s.marker <> '{marker}' AND {LIVE})\n"
        );
        Ok(int(&self.run_ending(&script).await?, 1)? == Some(1))
    }

    /// One round trip of two statements; of one, if there are no rows.
    async fn put_back(&mut self, left: &[Left<'_>]) -> Result<()> {
        let mut script = taken_out(left.iter().filter(|left| left.row).map(|left| left.place));
        script.push_str("SELECT CONNECTION_ID()");
        for left in left.iter().filter(|left| left.inside) {
            let _ = write!(script, ", RELEASE_LOCK({})", self.key(&left.place.name));
        }
        script.push('\n');
        self.run_ending(&script).await.map(drop)
    }

    /// One round trip of four statements at most.
    async fn show(&mut self, gone: &[Place], shown: &[Shown<'_>], all: bool) -> Result<()> {
        let Some(open) = &mut self.open else { return Err(Error::unknown("the connection has ended")) };
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
        script.push_str("SELECT CONNECTION_ID()");
        for _ in 0..flags {
            let _ = write!(script, ", RELEASE_LOCK('{marker}{FLAG}')");
        }
        script.push('\n');
        self.run_ending(&script).await.map(drop)
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
            behind(self.marker()),
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
            behind(self.marker()),
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
                    (bytes(name.key().as_bytes()), 1000, format!("COALESCE(IS_USED_LOCK({}), 0)", self.key(name)))
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
