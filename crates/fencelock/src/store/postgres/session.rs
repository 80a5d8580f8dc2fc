//! Locks that belong to a connection: PostgreSQL's advisory locks.

use super::prepared::Connection;
use super::settings::{self, Settings};
use super::verbs::{get, number, seen_of, spelled_scopes};
use super::{check_layout, client, fault};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::session::{Ask, Driver, Left, Look, Picture, Session, Shown, Taken, is_shared};
use crate::store::sql::{duration, micros, text};
use crate::store::{Listed, Place, Scope};
use futures_util::future::{Either, join, select};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// We give up a call after this long, and the connection with it.
const PATIENCE: Duration = Duration::from_secs(5);

struct Open {
    connection: Connection,
    notes: UnboundedReceiver<String>,
    marker: i64,
    /// The process that serves us: if another one answers, there is a pooler between, and nothing can be held.
    backend: i32,
    ttl: Option<Duration>,
    /// How often our flag was put up: it comes down when it was taken down as often.
    flags: usize,
    /// Who has which key, and how often. To the server all of ours are the same.
    keys: HashMap<i64, (String, usize)>,
}

/// One connection of a client.
pub(super) struct Postgres {
    settings: Settings,
    clock: Clock,
    /// The second key of its flag, which differs from those of the client's other connections in its last bit.
    flag: i32,
    open: Option<Open>,
}

/// Connects once to see whether it works here, and leaves the rest to the library thread.
pub(super) async fn connect(settings: Settings, clock: Clock) -> Result<Session> {
    let client = fastrand::i32(..);
    let driver = |flag| Postgres { settings: settings.clone(), clock: clock.clone(), flag, open: None };
    driver(client).open().await?;
    // One alone would be idle while we read its answers and write what comes next.
    Ok(Session::new(vec![driver(client), driver(client ^ 1)], true, clock.clone()))
}

/// 64 bits of a hash. The schema is part of it: keys are the whole database's.
fn hashed(schema: &str, name: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(schema.as_bytes());
    hash.update([0]);
    hash.update(name.as_bytes());
    let hash = hash.finalize();
    i64::from_be_bytes(hash[..8].try_into().expect("a hash is longer"))
}

fn key(schema: &str, name: &Name) -> i64 {
    hashed(schema, name.key())
}

/// The flags of a schema: a lock of two keys, of which the second is the client's. No name is empty.
fn flags(schema: &str) -> i32 {
    (hashed(schema, "") >> 32) as i32
}

/// The second key of a client's flag.
fn flag(marker: i64) -> i32 {
    (marker >> 32) as i32
}

fn pooler(address: &str) -> Error {
    let message = format!(
        "{address} does not keep to one connection, a pooler in transaction mode perhaps: locks of a connection cannot be held there; use mode=rows, or the database's own address"
    );
    Error::new(ErrorKind::Unsupported, message)
}

impl Postgres {
    /// Something that must not take for ever. What does not answer in time is no longer trusted.
    async fn within<T>(clock: &Clock, address: &str, future: impl Future<Output = T>) -> Result<T> {
        let limit = clock.sleep_until(clock.now().after(PATIENCE));
        match select(pin!(future), limit).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => {
                let secs = PATIENCE.as_secs();
                Err(Error::unknown(format!("{address} did not answer within {secs} s")))
            }
        }
    }

    /// One round trip. Whatever goes wrong ends the connection: what of it was done cannot be known, and the end undoes it.
    async fn call(&mut self, sql: &str, params: client::Params<'_>) -> Result<Vec<Row>> {
        let answer = self.ask(sql, params).await;
        self.trusted(answer)
    }

    /// Two calls in one round trip. The second one begins when the first one has been carried out.
    async fn both(
        &mut self,
        (one, ones): (&str, client::Params<'_>),
        (two, twos): (&str, client::Params<'_>),
    ) -> Result<(Vec<Row>, Vec<Row>)> {
        // What is prepared for the first time is sent behind the answer to that: then they would not be in order.
        if !self.open.as_ref().is_some_and(|open| {
            let known = |sql| open.connection.is_prepared(&client::spelled(sql, &self.settings.schema));
            known(one) && known(two)
        }) {
            return Ok((self.call(one, ones).await?, self.call(two, twos).await?));
        }
        let (one, two) = Box::pin(join(self.ask(one, ones), self.ask(two, twos))).await;
        Ok((self.trusted(one)?, self.trusted(two)?))
    }

    async fn ask(&self, sql: &str, params: client::Params<'_>) -> Result<Vec<Row>> {
        let address = &self.settings.address;
        let Some(open) = &self.open else { return Err(Error::unknown(format!("{address}: the connection has ended"))) };
        let sql = client::spelled(sql, &self.settings.schema);
        let answer = Self::within(&self.clock, address, open.connection.query(&sql, params)).await?;
        answer.map_err(|error| fault::of_call(error, address))
    }

    fn trusted<T>(&mut self, answer: Result<T>) -> Result<T> {
        if answer.is_err() {
            self.open = None;
        }
        answer
    }

    /// Whether clients other than us are behind: the first of two calls, the second of which reads the table.
    fn behind(&self) -> (&'static str, i32, i32) {
        let marker = self.open.as_ref().map_or(0, |open| open.marker);
        (include_str!("session_behind.sql"), flags(&self.settings.schema), flag(marker))
    }

    fn same(&mut self, backend: Option<i32>) -> Result<()> {
        if backend.is_some() && self.open.as_ref().map(|open| open.backend) == backend {
            return Ok(());
        }
        self.open = None;
        Err(pooler(&self.settings.address).effect_unknown())
    }

    /// Whether two clients are served by one process, or one client by two. Two connections, four round trips.
    async fn is_pooled(&self, one: &tokio_postgres::Client, backend: i32) -> Result<bool> {
        let of_call = |error| fault::of_call(error, &self.settings.address);
        let runtime = tokio::runtime::Handle::current();
        let (two, _) = settings::open(&self.settings, &runtime)
            .await
            .map_err(|error| fault::of_connecting(error, &self.settings.address))?;
        two.batch_execute("BEGIN").await.map_err(of_call)?;
        // While the second one's transaction lasts, its process serves nobody else.
        let which = "SELECT pg_backend_pid()";
        let other: i32 = two.query_typed(which, &[]).await.map_err(of_call)?[0].get(0);
        if other == backend {
            return Ok(true);
        }
        let patience = self.clock.sleep_until(self.clock.now().after(Duration::from_secs(2)));
        match select(pin!(one.query_typed(which, &[])), patience).await {
            Either::Left((rows, _)) => Ok(rows.map_err(of_call)?[0].get::<_, i32>(0) != backend),
            Either::Right(_) => Ok(true),
        }
    }
}

impl Driver for Postgres {
    async fn open(&mut self) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        let address = self.settings.address.clone();
        let opening = async {
            let runtime = tokio::runtime::Handle::current();
            let (connection, notes) = settings::open(&self.settings, &runtime)
                .await
                .map_err(|error| fault::of_connecting(error, &address))?;
            check_layout(&connection, &self.settings).await?;
            let backend: i32 = connection
                .query_typed("SELECT pg_backend_pid()", &[])
                .await
                .map_err(|error| fault::of_call(error, &address))?[0]
                .get(0);
            if self.is_pooled(&connection, backend).await? {
                return Err(pooler(&address));
            }
            let marker = i64::from(self.flag) << 32 | i64::from(fastrand::u32(..));
            let sql = client::spelled("SELECT fencelock.session_open($1)", &self.settings.schema);
            let rows = connection
                .query_typed(&sql, &[(&marker, Type::INT8)])
                .await
                .map_err(|error| fault::of_call(error, &address))?;
            if rows[0].get::<_, i32>(0) != backend {
                return Err(pooler(&address));
            }
            // Behind a pooler we would not have come here.
            let connection = Connection::new(connection, true);
            Ok(Open { connection, notes, marker, backend, ttl: None, flags: 0, keys: HashMap::new() })
        };
        // Rare, and large: it would make the future of every call as large.
        let opened = Self::within(&self.clock, &address, Box::pin(opening)).await;
        self.open = Some(opened.map_err(|_| {
            let secs = PATIENCE.as_secs();
            Error::new(ErrorKind::Unavailable, format!("{address} did not answer within {secs} s"))
        })??);
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.connection.is_closed())
    }

    async fn ended(&mut self) {
        match &mut self.open {
            // Nobody tells us anything: what comes is the end.
            Some(open) => while open.notes.recv().await.is_some() {},
            None => std::future::pending().await,
        }
    }

    fn close(&mut self) {
        self.open = None;
    }

    fn is_behind(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.flags > 0)
    }

    async fn take(&mut self, ttl: Duration, asked: &[Ask<'_>]) -> Result<Vec<Taken>> {
        if self.open.as_ref().is_some_and(|open| open.ttl != Some(ttl)) {
            self.touch(ttl).await?;
        }
        let Some(open) = &self.open else { return Err(Error::unknown("the connection has ended")) };
        let (marker, up) = (open.marker, open.flags > 0);
        let schema = &self.settings.schema;
        let keys: Vec<i64> = asked.iter().map(|ask| key(schema, &ask.enter.place.name)).collect();
        let other = |i: usize| {
            let own = asked[i].enter.place.name.key();
            open.keys.get(&keys[i]).map(|(name, _)| name).filter(|name| *name != own).cloned()
        };
        let others: Vec<Option<String>> = (0..asked.len()).map(other).collect();
        let attempts: Vec<bool> = (0..asked.len()).map(|i| asked[i].attempt && others[i].is_none()).collect();
        let stays: Vec<bool> = (0..asked.len()).map(|i| asked[i].stay && others[i].is_none()).collect();
        let rows = match (asked, up) {
            ([one], true) if attempts[0] && !is_shared(one.enter) => {
                self.call(include_str!("session_take.sql"), &[(&keys[0], Type::INT8)]).await?
            }
            _ => {
                let shareds: Vec<bool> = asked.iter().map(|ask| is_shared(ask.enter)).collect();
                let params: client::Params<'_> = &[
                    (&keys, Type::INT8_ARRAY),
                    (&shareds, Type::BOOL_ARRAY),
                    (&attempts, Type::BOOL_ARRAY),
                    (&stays, Type::BOOL_ARRAY),
                    (&!up, Type::BOOL),
                    (&flags(schema), Type::INT4),
                    (&flag(marker), Type::INT4),
                ];
                self.call(include_str!("session_take_all.sql"), params).await?
            }
        };
        let backend = rows.first().map(|row| get(row, "backend")).transpose()?;
        self.same(backend)?;
        let mut taken = Vec::with_capacity(asked.len());
        for (i, other) in others.into_iter().enumerate() {
            let row = rows.get(i).ok_or_else(|| Error::new(ErrorKind::Broken, "the database gave no answer"))?;
            let got = get::<Option<i64>>(row, "token")?;
            if let Some(open) = &mut self.open {
                open.flags += usize::from(!up && (stays[i] || got.is_some()));
                if got.is_some() {
                    let name = asked[i].enter.place.name.key();
                    open.keys.entry(keys[i]).or_insert_with(|| (name.to_string(), 0)).1 += 1;
                }
            }
            taken.push(match (other, got) {
                (Some(other), _) => Taken::Collision(other),
                (None, Some(got)) => Taken::Got(number(got)),
                (None, None) => Taken::Not,
            });
        }
        Ok(taken)
    }

    async fn pass_on(&mut self, ttl: Duration, count: usize) -> Result<Vec<u64>> {
        if self.open.as_ref().is_some_and(|open| open.ttl != Some(ttl)) {
            self.touch(ttl).await?;
        }
        let Some(open) = &mut self.open else { return Err(Error::unknown("the connection has ended")) };
        let (marker, up) = (open.marker, open.flags > 0);
        open.flags = open.flags.max(1);
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let numbers: (&str, client::Params<'_>) = (include_str!("session_pass_on.sql"), &[(&count, Type::INT4)]);
        let rows = if up {
            self.call(numbers.0, numbers.1).await?
        } else {
            let flag: client::Params<'_> = &[(&flags(&self.settings.schema), Type::INT4), (&flag(marker), Type::INT4)];
            self.both(("SELECT pg_advisory_lock($1, $2)::text", flag), numbers).await?.1
        };
        self.same(rows.first().map(|row| get(row, "backend")).transpose()?)?;
        rows.iter().map(|row| get(row, "token").map(number)).collect()
    }

    async fn is_wanted(&mut self, name: &Name) -> Result<bool> {
        let marker = self.open.as_ref().map_or(0, |open| open.marker);
        let params: client::Params<'_> = &[(&name.key(), Type::TEXT), (&marker, Type::INT8)];
        let rows = self.call(include_str!("session_wanted.sql"), params).await?;
        rows.first().map_or(Ok(false), |row| get(row, "wanted"))
    }

    async fn put_back(&mut self, left: &[Left<'_>]) -> Result<()> {
        let inside: Vec<&Left<'_>> = left.iter().filter(|left| left.inside).collect();
        let keys: Vec<i64> = inside.iter().map(|l| key(&self.settings.schema, &l.place.name)).collect();
        let shareds: Vec<bool> = inside.iter().map(|l| l.shared).collect();
        let all: client::Params<'_> = &[(&keys, Type::INT8_ARRAY), (&shareds, Type::BOOL_ARRAY)];
        let unlock_all = include_str!("session_leave_all.sql");
        let shown: Vec<&Left<'_>> = left.iter().filter(|left| left.row).collect();
        let rows = if shown.is_empty() {
            match &inside[..] {
                [Left { shared: false, .. }] => {
                    self.call(include_str!("session_leave.sql"), &[(&keys[0], Type::INT8)]).await?
                }
                _ => self.call(unlock_all, all).await?,
            }
        } else {
            let names: Vec<&str> = shown.iter().map(|l| l.place.name.key()).collect();
            let ids: Vec<&[u8]> = shown.iter().map(|l| &l.place.id.as_bytes()[..]).collect();
            let gone: client::Params<'_> = &[(&names, Type::TEXT_ARRAY), (&ids, Type::BYTEA_ARRAY)];
            self.both((include_str!("session_gone.sql"), gone), (unlock_all, all)).await?.1
        };
        self.same(rows.first().map(|row| get(row, "backend")).transpose()?)?;
        if let Some(open) = &mut self.open {
            for key in keys {
                if let Some((_, count)) = open.keys.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        open.keys.remove(&key);
                    }
                }
            }
        }
        Ok(())
    }

    async fn show(&mut self, gone: &[Place], shown: &[Shown<'_>], all: bool) -> Result<()> {
        if !gone.is_empty() {
            let names: Vec<&str> = gone.iter().map(|place| place.name.key()).collect();
            let ids: Vec<&[u8]> = gone.iter().map(|place| &place.id.as_bytes()[..]).collect();
            let params: client::Params<'_> = &[(&names, Type::TEXT_ARRAY), (&ids, Type::BYTEA_ARRAY)];
            self.call(include_str!("session_gone.sql"), params).await?;
        }
        let Some(open) = &mut self.open else { return Err(Error::unknown("the connection has ended")) };
        let marker = open.marker;
        let times = if all { std::mem::take(&mut open.flags) } else { 0 };
        let times = i32::try_from(times).unwrap_or(i32::MAX);
        let schema = self.settings.schema.clone();
        let down: client::Params<'_> =
            &[(&flags(&schema), Type::INT4), (&flag(marker), Type::INT4), (&times, Type::INT4)];
        let take_down = include_str!("session_shown.sql");
        let rows = if shown.is_empty() {
            self.call(take_down, down).await?
        } else {
            let each = || shown.iter().map(|shown| shown.enter);
            let names: Vec<&str> = each().map(|t| t.place.name.key()).collect();
            let longs: Vec<Option<String>> = each().map(|t| t.place.name.long().map(text)).collect();
            let ids: Vec<&[u8]> = each().map(|t| &t.place.id.as_bytes()[..]).collect();
            let keys: Vec<i64> = each().map(|t| key(&schema, &t.place.name)).collect();
            let shareds: Vec<bool> = each().map(is_shared).collect();
            let numbers: Vec<Option<i64>> =
                shown.iter().map(|s| s.number.map(|n| i64::try_from(n).unwrap_or(i64::MAX))).collect();
            let entered: Vec<i64> = shown.iter().map(|s| micros(s.entered)).collect();
            let admitted: Vec<Option<i64>> = shown.iter().map(|s| s.admitted.map(micros)).collect();
            let owners: Vec<&[u8]> = each().map(|t| &t.owner.as_bytes()[..]).collect();
            let hosts: Vec<String> = each().map(|t| text(&t.note.host)).collect();
            let pids: Vec<i64> = each().map(|t| i64::from(t.note.pid)).collect();
            let identities: Vec<String> = each().map(|t| text(&t.note.identity)).collect();
            let reasons: Vec<Option<String>> = each().map(|t| t.note.reason.as_deref().map(text)).collect();
            let values: Vec<Option<String>> = each().map(|t| t.note.value.as_deref().map(text)).collect();
            let params: client::Params<'_> = &[
                (&marker, Type::INT8),
                (&names, Type::TEXT_ARRAY),
                (&ids, Type::BYTEA_ARRAY),
                (&longs, Type::TEXT_ARRAY),
                (&keys, Type::INT8_ARRAY),
                (&shareds, Type::BOOL_ARRAY),
                (&numbers, Type::INT8_ARRAY),
                (&entered, Type::INT8_ARRAY),
                (&admitted, Type::INT8_ARRAY),
                (&owners, Type::BYTEA_ARRAY),
                (&hosts, Type::TEXT_ARRAY),
                (&pids, Type::INT8_ARRAY),
                (&identities, Type::TEXT_ARRAY),
                (&reasons, Type::TEXT_ARRAY),
                (&values, Type::TEXT_ARRAY),
            ];
            self.both((include_str!("session_show.sql"), params), (take_down, down)).await?.1
        };
        self.same(rows.first().map(|row| get(row, "backend")).transpose()?)
    }

    async fn lower(&mut self, name: &Name) -> Result<()> {
        // Beside one's own exclusive lock the shared one is always got.
        let sql = "SELECT pg_backend_pid(), pg_advisory_lock_shared($1)::text, pg_advisory_unlock($1)";
        let rows = self.call(sql, &[(&key(&self.settings.schema, name), Type::INT8)]).await?;
        self.same(rows.first().map(|row| row.get(0)))
    }

    async fn touch(&mut self, ttl: Duration) -> Result<()> {
        let changed = self.open.as_mut().and_then(|open| {
            let changed = open.ttl != Some(ttl);
            open.ttl = Some(ttl);
            changed.then(|| millis(ttl))
        });
        let rows = match changed {
            None => self.call("SELECT pg_backend_pid()", &[]).await?,
            Some(millis) => {
                let sql = "SELECT pg_backend_pid(), fencelock.session_ttl($1)::text";
                self.call(sql, &[(&millis, Type::INT8)]).await?
            }
        };
        self.same(rows.first().map(|row| row.get(0)))
    }

    async fn inspect(&mut self, name: &Name) -> Result<Look<Picture>> {
        let (sql, class, own) = self.behind();
        let behind: (&str, client::Params<'_>) = (sql, &[(&class, Type::INT4), (&own, Type::INT4)]);
        let key = key(&self.settings.schema, name);
        let params: client::Params<'_> = &[(&name.key(), Type::TEXT), (&key, Type::INT8)];
        let (behind, rows) = self.both(behind, (include_str!("session_inspect.sql"), params)).await?;
        let behind = behind.first().map(|row| get(row, "behind")).transpose()?.unwrap_or(false);
        let mut picture = Picture { capacity: 0, all: Vec::new(), other: None };
        for row in &rows {
            picture.other = get(row, "other")?;
            if picture.other.is_none() {
                let (capacity, seen) = seen_of(row)?;
                picture.capacity = if picture.all.is_empty() { capacity } else { picture.capacity };
                picture.all.push(seen);
            }
        }
        Ok(Look { found: picture, behind })
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Look<Vec<Listed>>> {
        let (sql, class, own) = self.behind();
        let behind: (&str, client::Params<'_>) = (sql, &[(&class, Type::INT4), (&own, Type::INT4)]);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: client::Params<'_> = &[(&prefix, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
        let (behind, rows) = self.both(behind, ("SELECT * FROM fencelock.session_list($1, $2, $3)", params)).await?;
        let behind = behind.first().map(|row| get(row, "behind")).transpose()?.unwrap_or(false);
        let listed = |row: &Row| {
            let count = |column| Ok::<_, Error>(usize::try_from(get::<i64>(row, column)?).unwrap_or(0));
            Ok(Listed {
                name: Name::from_key(get(row, "name")?, get(row, "long")?),
                inside: count("inside")?,
                waiting: count("waiting")?,
                held: get::<Option<i64>>(row, "held")?.map(duration),
            })
        };
        Ok(Look { found: rows.iter().map(listed).collect::<Result<_>>()?, behind })
    }

    async fn marks(&mut self, scopes: &[Scope]) -> Result<Vec<String>> {
        let schema = self.settings.schema.clone();
        let key = |scope: &Scope| match scope {
            Scope::Name(name) => Some(key(&schema, name)),
            Scope::Prefix(_) => None,
        };
        let keys: Vec<Option<i64>> = scopes.iter().map(key).collect();
        let (scopes, prefixes) = spelled_scopes(scopes);
        let params: client::Params<'_> =
            &[(&scopes, Type::TEXT_ARRAY), (&prefixes, Type::BOOL_ARRAY), (&keys, Type::INT8_ARRAY)];
        let rows = self.call(include_str!("session_marks.sql"), params).await?;
        rows.iter().map(|row| get(row, "mark")).collect()
    }
}

fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX).clamp(1, i64::from(i32::MAX))
}
