//! Locks that belong to a connection: PostgreSQL's advisory locks.

use super::prepared::Connection;
use super::settings::{self, Settings};
use super::verbs::{get, number, seen_of, spelled_scopes};
use super::{check_layout, client, fault};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::session::{Ask, Driver, Left, Session, Taken};
use crate::store::sql::{duration, text};
use crate::store::{Enter, Listed, Note, Place, Scope, Seen};
use futures_util::future::{Either, select};
use sha2::{Digest, Sha256};
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
}

/// The one connection.
pub(super) struct Postgres {
    settings: Settings,
    clock: Clock,
    open: Option<Open>,
}

/// Connects once to see whether it works here, and leaves the rest to the library thread.
pub(super) async fn connect(settings: Settings, clock: Clock) -> Result<Session> {
    let mut driver = Postgres { settings, clock: clock.clone(), open: None };
    driver.open().await?;
    driver.close();
    Ok(Session::new(driver, true, clock))
}

/// 64 bits of the name's hash. The schema is part of it: keys are the whole database's.
fn key(schema: &str, name: &Name) -> i64 {
    let mut hash = Sha256::new();
    hash.update(schema.as_bytes());
    hash.update([0]);
    hash.update(name.key().as_bytes());
    let hash = hash.finalize();
    i64::from_be_bytes(hash[..8].try_into().expect("a hash is longer"))
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
        let address = self.settings.address.clone();
        let Some(open) = &self.open else { return Err(Error::unknown(format!("{address}: the connection has ended"))) };
        let sql = client::spelled(sql, &self.settings.schema);
        let answer = Self::within(&self.clock, &address, open.connection.query(&sql, params)).await;
        match answer {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => {
                self.open = None;
                Err(fault::of_call(error, &address))
            }
            Err(late) => {
                self.open = None;
                Err(late)
            }
        }
    }

    /// Tries for one exclusive lock; `None` if that needs more words. One round trip.
    async fn take_one(&mut self, marker: i64, enter: &Enter) -> Result<Option<Taken>> {
        let Enter { place, note, .. } = enter;
        let params: client::Params<'_> = &[
            (&marker, Type::INT8),
            (&place.name.key(), Type::TEXT),
            (&place.name.long().map(text), Type::TEXT),
            (&&place.id.as_bytes()[..], Type::BYTEA),
            (&key(&self.settings.schema, &place.name), Type::INT8),
            (&&enter.owner.as_bytes()[..], Type::BYTEA),
            (&text(&note.host), Type::TEXT),
            (&i64::from(note.pid), Type::INT8),
            (&text(&note.identity), Type::TEXT),
            (&note.reason.as_deref().map(text), Type::TEXT),
            (&note.value.as_deref().map(text), Type::TEXT),
        ];
        let rows = self.call(include_str!("session_take.sql"), params).await?;
        let backend = rows.first().map(|row| get(row, "backend")).transpose()?;
        self.same(backend)?;
        let token = rows.first().map(|row| get::<Option<i64>>(row, "token")).transpose()?.flatten();
        Ok(token.map(|token| Taken::Got(number(token))))
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
            let marker = fastrand::i64(..);
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
            Ok(Open { connection, notes, marker, backend, ttl: None })
        };
        let opened = Self::within(&self.clock, &address, opening).await;
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

    async fn take(&mut self, ttl: Duration, asked: &[Ask<'_>]) -> Result<Vec<Taken>> {
        let Some(open) = &mut self.open else { return Err(Error::unknown("the connection has ended")) };
        let marker = open.marker;
        let changed = (open.ttl != Some(ttl)).then(|| millis(ttl));
        open.ttl = Some(ttl);
        if let ([one], None) = (asked, changed)
            && one.attempt
            && !one.shared()
            && let Some(taken) = self.take_one(marker, one.enter).await?
        {
            return Ok(vec![taken]);
        }
        let schema = self.settings.schema.clone();
        let each = || asked.iter().map(|ask| ask.enter);
        let names: Vec<&str> = each().map(|t| t.place.name.key()).collect();
        let longs: Vec<Option<String>> = each().map(|t| t.place.name.long().map(text)).collect();
        let ids: Vec<&[u8]> = each().map(|t| &t.place.id.as_bytes()[..]).collect();
        let keys: Vec<i64> = each().map(|t| key(&schema, &t.place.name)).collect();
        let shareds: Vec<bool> = asked.iter().map(Ask::shared).collect();
        let attempts: Vec<bool> = asked.iter().map(|ask| ask.attempt).collect();
        let stays: Vec<bool> = asked.iter().map(|ask| ask.stay).collect();
        let owners: Vec<&[u8]> = each().map(|t| &t.owner.as_bytes()[..]).collect();
        let hosts: Vec<String> = each().map(|t| text(&t.note.host)).collect();
        let pids: Vec<i64> = each().map(|t| i64::from(t.note.pid)).collect();
        let identities: Vec<String> = each().map(|t| text(&t.note.identity)).collect();
        let reasons: Vec<Option<String>> = each().map(|t| t.note.reason.as_deref().map(text)).collect();
        let values: Vec<Option<String>> = each().map(|t| t.note.value.as_deref().map(text)).collect();
        let sql = "SELECT * FROM fencelock.session_take($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)";
        let params: client::Params<'_> = &[
            (&marker, Type::INT8),
            (&changed, Type::INT8),
            (&names, Type::TEXT_ARRAY),
            (&longs, Type::TEXT_ARRAY),
            (&ids, Type::BYTEA_ARRAY),
            (&keys, Type::INT8_ARRAY),
            (&shareds, Type::BOOL_ARRAY),
            (&attempts, Type::BOOL_ARRAY),
            (&stays, Type::BOOL_ARRAY),
            (&owners, Type::BYTEA_ARRAY),
            (&hosts, Type::TEXT_ARRAY),
            (&pids, Type::INT8_ARRAY),
            (&identities, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&values, Type::TEXT_ARRAY),
        ];
        let rows = self.call(sql, params).await?;
        if let Some(row) = rows.first() {
            self.same(Some(get(row, "backend")?))?;
        }
        let taken = |row: &Row| {
            Ok(match get::<i32>(row, "what")? {
                0 => Taken::Got(number(get(row, "token")?)),
                1 => Taken::Not,
                _ => Taken::Collision(get(row, "other")?),
            })
        };
        rows.iter().map(taken).collect()
    }

    async fn put_back(&mut self, left: &[Left<'_>]) -> Result<()> {
        let schema = self.settings.schema.clone();
        if let [Left { place, shared: false, inside: true }] = left {
            let (key, id) = (key(&schema, &place.name), &place.id.as_bytes()[..]);
            let params: client::Params<'_> = &[(&place.name.key(), Type::TEXT), (&id, Type::BYTEA), (&key, Type::INT8)];
            let rows = self.call(include_str!("session_leave.sql"), params).await?;
            return self.same(rows.first().map(|row| row.get(0)));
        }
        let names: Vec<&str> = left.iter().map(|l| l.place.name.key()).collect();
        let ids: Vec<&[u8]> = left.iter().map(|l| &l.place.id.as_bytes()[..]).collect();
        let keys: Vec<i64> = left.iter().map(|l| key(&schema, &l.place.name)).collect();
        let shareds: Vec<bool> = left.iter().map(|l| l.shared).collect();
        let insides: Vec<bool> = left.iter().map(|l| l.inside).collect();
        let params: client::Params<'_> = &[
            (&names, Type::TEXT_ARRAY),
            (&ids, Type::BYTEA_ARRAY),
            (&keys, Type::INT8_ARRAY),
            (&shareds, Type::BOOL_ARRAY),
            (&insides, Type::BOOL_ARRAY),
        ];
        let rows = self.call("SELECT fencelock.session_leave($1, $2, $3, $4, $5)", params).await?;
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

    async fn say(&mut self, place: &Place, to_shared: bool, note: Option<&Note>) -> Result<()> {
        let key = key(&self.settings.schema, &place.name);
        let said = note.is_some();
        let note = note.cloned().unwrap_or_default();
        let params: client::Params<'_> = &[
            (&place.name.key(), Type::TEXT),
            (&&place.id.as_bytes()[..], Type::BYTEA),
            (&key, Type::INT8),
            (&to_shared, Type::BOOL),
            (&said, Type::BOOL),
            (&text(&note.host), Type::TEXT),
            (&i64::from(note.pid), Type::INT8),
            (&text(&note.identity), Type::TEXT),
            (&note.reason.as_deref().map(text), Type::TEXT),
            (&note.value.as_deref().map(text), Type::TEXT),
        ];
        let rows = self.call("SELECT fencelock.session_say($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)", params).await?;
        self.same(rows.first().map(|row| row.get(0)))
    }

    async fn inspect(&mut self, name: &Name) -> Result<(u32, Vec<Seen>)> {
        let params: client::Params<'_> = &[(&name.key(), Type::TEXT)];
        let rows = self.call("SELECT * FROM fencelock.session_inspect($1)", params).await?;
        let all = rows.iter().map(seen_of).collect::<Result<Vec<_>>>()?;
        Ok((all.first().map_or(0, |(capacity, _)| *capacity), all.into_iter().map(|(_, seen)| seen).collect()))
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: client::Params<'_> = &[(&prefix, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
        let rows = self.call("SELECT * FROM fencelock.session_list($1, $2, $3)", params).await?;
        let listed = |row: &Row| {
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

    async fn marks(&mut self, scopes: &[Scope]) -> Result<Vec<String>> {
        let (scopes, prefixes) = spelled_scopes(scopes);
        let params: client::Params<'_> = &[(&scopes, Type::TEXT_ARRAY), (&prefixes, Type::BOOL_ARRAY)];
        let rows = self.call("SELECT mark FROM fencelock.session_mark($1, $2)", params).await?;
        rows.iter().map(|row| get(row, "mark")).collect()
    }
}

fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX).clamp(1, i64::from(i32::MAX))
}
