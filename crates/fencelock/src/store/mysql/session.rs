//! Locks that belong to a connection: `GET_LOCK` of MySQL and MariaDB.

use super::client::{self, Answers};
use super::fault;
use super::hosts::Hosts;
use super::script::{broken, bytes, int, maybe, number, seen, string};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::client_name;
use crate::store::sql::duration;
use crate::store::sql::session::{Ask, Driver, Left, Session, Taken};
use crate::store::{Listed, Note, Place, Scope, Seen};
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
/// Whether a row's connection lives.
const LIVE: &str = "IS_USED_LOCK(CAST(s.marker AS CHAR CHARACTER SET ascii)) IS NOT NULL";

struct Open {
    conn: Conn,
    marker: String,
    /// The server's number of our connection: if it changes, something shares connections, and nothing can be held.
    id: i64,
    ttl: Option<u64>,
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

    /// With which capacity somebody else uses a name. Whoever it was may have gone since.
    async fn other_capacity(&mut self, ask: &Ask<'_>) -> Result<u32> {
        let (name, own) = (bytes(ask.enter.place.name.key().as_bytes()), ask.enter.capacity);
        let other =
            format!("SELECT MAX(s.capacity) FROM fencelock_session s WHERE s.name = {name} AND s.capacity <> {own}");
        let row = self.run_ending(&format!("SELECT CONNECTION_ID(), ({other} AND {LIVE})\n")).await?;
        Ok(u32::try_from(int(&row, 1)?.unwrap_or(0)).unwrap_or(0))
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
                "SELECT GET_LOCK('{marker}', 0), CONNECTION_ID();\n\
                 DELETE FROM fencelock_session WHERE IS_USED_LOCK(CAST(marker AS CHAR CHARACTER SET ascii)) IS NULL;\n"
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
        self.open = Some(Open { conn, marker, id, ttl: None });
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

    /// One round trip of four statements, however many are asked for; one more where a name is in use with another capacity.
    async fn take(&mut self, ttl: Duration, asked: &[Ask<'_>]) -> Result<Vec<Taken>> {
        let marker = self.open.as_ref().map(|open| open.marker.clone()).unwrap_or_default();
        let (mut tries, mut rows, mut got) = (Vec::new(), Vec::new(), Vec::new());
        for (i, ask) in asked.iter().enumerate() {
            let (t, key) = (ask.enter, self.key(&ask.enter.place.name));
            let (name, id) = (bytes(t.place.name.key().as_bytes()), bytes(t.place.id.as_bytes()));
            let attempt = if ask.attempt { format!("GET_LOCK({key}, 0)") } else { "0".into() };
            tries.push(format!(
                "@g{i} = IF(EXISTS (SELECT 1 FROM fencelock_session s WHERE s.name = {name} AND s.capacity <> {} AND {LIVE}), NULL, {attempt})",
                t.capacity,
            ));
            // Numbers are given for all at once, behind the locks; who got none leaves a gap.
            rows.push(format!(
                "SELECT {name}, {id}, {long}, '{marker}', {weight}, {capacity}, IF(@g{i} = 1, LAST_INSERT_ID() - {i}, NULL), {MICROS}, IF(@g{i} = 1, {MICROS}, NULL), {owner}, {host}, {pid}, {identity}, {reason}, {value} FROM DUAL WHERE @g{i} >= {least}",
                long = maybe(t.place.name.long()),
                weight = t.weight,
                capacity = t.capacity,
                owner = bytes(t.owner.as_bytes()),
                host = said(Some(&t.note.host)),
                pid = t.note.pid,
                identity = said(Some(&t.note.identity)),
                reason = said(t.note.reason.as_deref()),
                value = said(t.note.value.as_deref()),
                least = if ask.stay { 0 } else { 1 },
            ));
            got.push(format!("@g{i}"));
        }
        let script = format!(
            "{ttl}SET {tries};\n\
             UPDATE fencelock_token SET last = LAST_INSERT_ID(last + {count}) WHERE one = 1 AND 1 IN ({got});\n\
             INSERT INTO fencelock_session {rows} ON DUPLICATE KEY UPDATE number = VALUES(number), admitted = VALUES(admitted);\n\
             SELECT CONNECTION_ID(), LAST_INSERT_ID(), {got}\n",
            ttl = self.ttl(ttl),
            tries = tries.join(", "),
            count = asked.len(),
            got = got.join(", "),
            rows = rows.join(" UNION ALL "),
        );
        let row = self.run_ending(&script).await?;
        let last = number(int(&row, 1)?);
        let mut taken = Vec::with_capacity(asked.len());
        for (i, ask) in asked.iter().enumerate() {
            taken.push(match int(&row, 2 + i)? {
                Some(1) => Taken::Got(last - i as u64),
                Some(0) => Taken::Not,
                _ => Taken::Mismatch(self.other_capacity(ask).await?),
            });
        }
        Ok(taken)
    }

    /// One round trip of two statements.
    async fn put_back(&mut self, left: &[Left<'_>]) -> Result<()> {
        let (mut rows, mut script) = (Vec::new(), String::from("SELECT CONNECTION_ID()"));
        for left in left {
            let (name, id) = (bytes(left.place.name.key().as_bytes()), bytes(left.place.id.as_bytes()));
            rows.push(format!("(name = {name} AND id = {id})"));
            if left.inside {
                let _ = write!(script, ", RELEASE_LOCK({})", self.key(&left.place.name));
            }
        }
        let script = format!("DELETE FROM fencelock_session WHERE {};\n{script}\n", rows.join(" OR "));
        self.run_ending(&script).await.map(drop)
    }

    async fn touch(&mut self, ttl: Duration) -> Result<()> {
        let script = self.ttl(ttl);
        self.run(&script).await.map(drop)
    }

    async fn say(&mut self, place: &Place, to_shared: bool, note: Option<&Note>) -> Result<()> {
        if to_shared {
            return Err(Error::new(ErrorKind::Unsupported, "this store keeps no readers and no permits"));
        }
        let Some(note) = note else { return self.run("").await.map(drop) };
        let script = format!(
            "UPDATE fencelock_session SET host = {}, pid = {}, identity = {}, reason = {}, value = {} WHERE name = {} AND id = {};\n",
            said(Some(&note.host)),
            note.pid,
            said(Some(&note.identity)),
            said(note.reason.as_deref()),
            said(note.value.as_deref()),
            bytes(place.name.key().as_bytes()),
            bytes(place.id.as_bytes()),
        );
        self.run(&script).await.map(drop)
    }

    async fn inspect(&mut self, name: &Name) -> Result<(u32, Vec<Seen>)> {
        let script = format!(
            "{NOW}SELECT s.number, IF(s.capacity = 1048576, 0, 2), s.weight, s.capacity, LOWER(HEX(s.owner)), s.host, s.pid, s.identity, s.reason, @now - s.entered, @now - s.admitted, NULL, s.value FROM fencelock_session s WHERE s.name = {} AND {LIVE} ORDER BY s.entered;\n",
            bytes(name.key().as_bytes())
        );
        let answers = self.run(&script).await?;
        let mut all = Vec::new();
        let mut first = 0;
        for row in answers.first().ok_or_else(broken)? {
            let (capacity, mut seen) = seen(row)?;
            if int(row, 0)?.is_none() {
                seen.token = None;
            }
            first = if all.is_empty() { capacity } else { first };
            all.push(seen);
        }
        Ok((first, all))
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        let from = match after {
            Some(after) if after >= prefix => format!("s.name > {}", bytes(after.as_bytes())),
            _ => format!("s.name >= {}", bytes(prefix.as_bytes())),
        };
        let script = format!(
            "{NOW}SELECT s.name, MIN(s.said), COUNT(s.admitted), COUNT(*) - COUNT(s.admitted), @now - MIN(COALESCE(s.admitted, s.entered)) FROM fencelock_session s WHERE {from} AND LEFT(s.name, {}) = {} AND {LIVE} GROUP BY s.name ORDER BY s.name LIMIT {limit};\n",
            prefix.len(),
            bytes(prefix.as_bytes()),
        );
        let answers = self.run(&script).await?;
        let listed = |row: &Row| {
            let count = |at| Ok::<_, Error>(usize::try_from(number(int(row, at)?)).unwrap_or(usize::MAX));
            Ok(Listed {
                name: Name::from_key(&string(row, 0)?.ok_or_else(broken)?, string(row, 1)?.as_deref()),
                inside: count(2)?,
                waiting: count(3)?,
                held: int(row, 4)?.map(duration),
            })
        };
        answers.first().ok_or_else(broken)?.iter().map(listed).collect()
    }

    async fn marks(&mut self, scopes: &[Scope]) -> Result<Vec<String>> {
        let mut script = String::new();
        for scope in scopes {
            let (within, length) = match scope {
                Scope::Name(name) => (bytes(name.key().as_bytes()), 1000),
                Scope::Prefix(prefix) => (bytes(prefix.as_bytes()), prefix.len()),
            };
            let _ = writeln!(
                script,
                "SELECT CONCAT((SELECT last FROM fencelock_token WHERE one = 1), ' ', COUNT(*), ' ', COUNT(s.number), ' ', COALESCE(MAX(s.number), 0), ' ', COALESCE(MAX(s.entered), 0), ' ', COALESCE(BIT_XOR(CRC32(CONCAT_WS('.', s.id, s.number, s.reason, s.value))), 0)) FROM fencelock_session s WHERE LEFT(s.name, {length}) = {within} AND {LIVE};"
            );
        }
        let answers = self.run(&script).await?;
        answers.iter().map(|rows| string(rows.first().ok_or_else(broken)?, 0)?.ok_or_else(broken)).collect()
    }
}
