//! How the connection is spoken to: one round trip each, and with it goes what was put back before.

use super::{Mysql, Numbers, Open, released};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::mysql::client::{self, Answers};
use crate::store::mysql::fault;
use crate::store::mysql::script::{broken, listed, string};
use crate::store::sql::session::Driver as _;
use futures_util::future::{Either, select};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Row, Statement, Value};
use std::pin::pin;
use std::time::Duration;

/// We give up a call after this long, and the connection with it.
const PATIENCE: Duration = Duration::from_secs(5);

/// As many locks are taken and given back at once by a statement that the server has read before: reading costs it more than the locks do.
/// There is one for each of these numbers.
pub(super) const SLOTS: [usize; 3] = [1, 4, 16];

/// Gives so many locks back, or fewer, and then tries for as many, for MariaDB. For nothing it does nothing.
fn with_slots(slots: usize) -> String {
    let (back, tried) = (vec!["RELEASE_LOCK(?)"; slots].join(", "), vec!["GET_LOCK(?, 0)"; slots].join(", "));
    answering(
        &format!("LEFT(CONCAT_WS('', {back}), 0)"),
        &format!(", {}", numbered(&format!("CONCAT_WS('', {tried})"))),
    )
}

/// The last statement of every call: the connection's number, what goes along and says nothing, and what is wanted.
fn answering(along: &str, wanted: &str) -> String {
    format!("SELECT CONCAT_WS(' ', CONNECTION_ID(), {along}{wanted})")
}

/// What became of these tries, and a number if one of them went well, for MariaDB.
pub(super) fn numbered(tries: &str) -> String {
    format!("@got := {tries}, IF(INSTR(@got, '1'), NEXTVAL(fencelock_number), 0)")
}

/// What is to be put back.
pub(super) enum Kept {
    Nothing,
    /// With the next call: the statement that takes the rows out, if there are any, and the keys of the locks.
    Along {
        rows: String,
        keys: Vec<String>,
    },
    /// The connection ended before that was answered.
    Lost,
}

impl Mysql {
    pub(super) async fn within<T>(clock: &Clock, address: &str, future: impl Future<Output = T>) -> Result<T> {
        let limit = clock.sleep_until(clock.now().after(PATIENCE));
        match select(pin!(future), limit).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => {
                Err(Error::unknown(format!("{address} did not answer within {} s", PATIENCE.as_secs())))
            }
        }
    }

    /// One round trip: what these statements answer.
    pub(super) async fn run(&mut self, script: &str) -> Result<Answers> {
        Ok(self.send(script, "").await?.0)
    }

    /// One round trip: the values of these expressions, none of which has a space, behind these statements.
    pub(super) async fn tell(&mut self, script: &str, wanted: &str) -> Result<Vec<String>> {
        Ok(self.send(script, &format!(", {wanted}")).await?.1)
    }

    /// One round trip. Whatever goes wrong ends the connection: what of it was done cannot be known, and the end undoes it. The last answer begins
    /// with the connection's number: so all was carried out to its end, and by whom we think. What was put back goes along; within that
    /// last answer, if it is the only one, so that we are woken once.
    async fn send(&mut self, script: &str, wanted: &str) -> Result<(Answers, Vec<String>)> {
        let mut open = self.open.take().ok_or_else(|| self.has_ended())?;
        let (mut first, mut along) = (String::new(), "''".to_string());
        let carries = self.carry();
        if let Some((rows, keys)) = &carries {
            let locks = listed(keys.iter().map(|key| released(key)));
            first.push_str(rows);
            match (keys.is_empty(), script.is_empty()) {
                (true, _) => {}
                (false, true) => along = format!("LEFT(CONCAT_WS('', {locks}), 0)"),
                (false, false) => first = format!("{rows}DO {locks};\n"),
            }
        }
        let script = format!("{first}{script}{}\n", answering(&along, wanted));
        let answer = Self::within(&self.clock, &self.hosts.address, client::collect(&mut open.conn, &script)).await?;
        let mut answers = answer.map_err(|error| fault::of_call(error, &self.hosts.address))?;
        let last = answers.pop().and_then(|mut rows| rows.pop());
        Ok((answers, self.answered(open, last.as_ref(), carries.is_some())?))
    }

    /// The same by a statement with slots, whatever is to go along. Nothing, if there is none that will do.
    pub(super) async fn fill(&mut self, tried: &[String]) -> Result<Option<Vec<String>>> {
        let Some(at) = self.slots(tried.len()) else { return Ok(None) };
        let Some(statement) = self.prepared(at).await? else { return Ok(None) };
        let mut open = self.open.take().ok_or_else(|| self.has_ended())?;
        let carries = self.carry();
        let back = carries.as_ref().map_or(&[][..], |(_, keys)| keys);
        let padded = |keys: &[String]| {
            let nothing = std::iter::repeat_n(Value::NULL, SLOTS[at] - keys.len());
            keys.iter().map(Value::from).chain(nothing).collect::<Vec<_>>()
        };
        let params = [padded(back), padded(tried)].concat();
        let call = open.conn.exec_first(&statement, params);
        let last: Result<Option<Row>, _> = Self::within(&self.clock, &self.hosts.address, call).await?;
        let last = last.map_err(|error| fault::of_call(error, &self.hosts.address))?;
        self.answered(open, last.as_ref(), carries.is_some()).map(Some)
    }

    /// Which of [`SLOTS`] will do for so many that are tried for, and for what goes along.
    fn slots(&self, tried: usize) -> Option<usize> {
        let back = match &self.kept {
            Kept::Along { rows, .. } if !rows.is_empty() => return None,
            Kept::Along { keys, .. } => keys.len(),
            _ => 0,
        };
        let will_do = |open: &Open| open.prepares && open.numbers == Numbers::Sequence;
        SLOTS.iter().position(|slots| *slots >= tried.max(back)).filter(|_| self.open.as_ref().is_some_and(will_do))
    }

    /// The statement with so many slots, if the server prepares it. One round trip, the first time.
    async fn prepared(&mut self, at: usize) -> Result<Option<Statement>> {
        let Some(open) = &mut self.open else { return Err(self.has_ended()) };
        if open.prepared[at].is_none() {
            let prepared = open.conn.prep(with_slots(SLOTS[at]));
            match Self::within(&self.clock, &self.hosts.address, prepared).await {
                Ok(Ok(statement)) => open.prepared[at] = Some(statement),
                Ok(Err(mysql_async::Error::Server(_))) => open.prepares = false,
                Ok(Err(error)) => {
                    self.close();
                    return Err(fault::of_call(error, &self.hosts.address));
                }
                Err(late) => {
                    self.close();
                    return Err(late);
                }
            }
        }
        Ok(self.open.as_ref().and_then(|open| open.prepared[at].clone()))
    }

    /// What is to go along with a call that is sent now.
    fn carry(&mut self) -> Option<(String, Vec<String>)> {
        match std::mem::replace(&mut self.kept, Kept::Nothing) {
            Kept::Along { rows, keys } => {
                self.kept = Kept::Lost;
                Some((rows, keys))
            }
            kept => {
                self.kept = kept;
                None
            }
        }
    }

    /// A call's last answer. If it is the right one, the connection lives.
    fn answered(&mut self, open: Open, last: Option<&Row>, carries: bool) -> Result<Vec<String>> {
        let last = last.map(|row| string(row, 0)).transpose()?.flatten();
        let mut words = last.as_deref().unwrap_or_default().split(' ');
        if words.next().and_then(|id| id.parse().ok()) != Some(open.id) {
            let message = format!("{} does not keep to one connection: use mode=rows", self.hosts.address);
            return Err(Error::new(ErrorKind::Unsupported, message).effect_unknown());
        }
        if carries {
            self.kept = Kept::Nothing;
        }
        self.open = Some(open);
        Ok(words.skip(1).map(Into::into).collect())
    }

    /// An answer that cannot be understood is no answer.
    pub(super) fn broken(&mut self) -> Error {
        self.close();
        broken()
    }

    pub(super) fn has_ended(&self) -> Error {
        Error::unknown(format!("{}: the connection has ended", self.hosts.address))
    }
}
