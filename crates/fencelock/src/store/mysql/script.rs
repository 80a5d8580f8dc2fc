//! Scripts: how they are put together from the `.sql` files, and how to read the rows that they answer.
//!
//! A template's `{words}` are replaced by numbers and by hexadecimal literals, so that no text of a user is ever read as SQL.

use super::client::{Answers, Client};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::{duration, text};
use crate::store::{Mode, Seen};
use mysql_async::{Row, Value};

/// The text of one of our files.
macro_rules! sql {
    ($file:literal) => {
        include_str!(concat!($file, ".sql"))
    };
}
pub(super) use sql;

/// What stands for the words of a template.
pub(super) type Words<'a> = [(&'a str, &'a str)];

/// Where nobody joins: `soonest` of admit.sql.
pub(super) const FAR: &str = "9223372036854775807";

/// A script in the making.
#[derive(Default)]
pub(super) struct Script(pub(super) String);

impl Script {
    pub(super) fn transaction() -> Script {
        let mut script = Script::default();
        script.add(sql!("begin"), &[]);
        script
    }

    pub(super) fn add(&mut self, template: &str, words: &Words<'_>) -> &mut Script {
        // Comments are for readers.
        for line in template.lines().filter(|line| !line.starts_with("--")) {
            let mut rest = line;
            while let Some((before, behind)) = rest.split_once('{') {
                let (word, behind) = behind.split_once('}').unwrap_or((behind, ""));
                let value = words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value);
                self.0.push_str(before);
                self.0.push_str(value.expect("every word of a template is given"));
                rest = behind;
            }
            self.0.push_str(rest);
            self.0.push('\n');
        }
        self
    }

    /// Locks these lines, in their order, and asks for the time.
    pub(super) fn lock<'a>(&mut self, names: impl Iterator<Item = (usize, &'a Name)>) -> &mut Script {
        for (i, name) in names {
            self.add(sql!("lock"), &[("i", &i.to_string()), ("name", &bytes(name.key().as_bytes()))]);
        }
        self.add(sql!("now"), &[])
    }

    /// For a script whose last statement answers: MariaDB takes all of it for one statement and sends one answer, for which the client is woken
    /// once. MySQL, which knows no such thing, takes the frame for comments.
    pub(super) fn as_one(&self) -> String {
        let script = self.0.trim_end().trim_end_matches(';');
        format!("/*M!100101 BEGIN NOT ATOMIC */\n{script}\n/*M!100101 ; END */")
    }

    pub(super) async fn commit(&mut self, client: &Client) -> Result<Answers> {
        self.0.push_str("COMMIT;\n");
        client.run(&self.0).await
    }
}

/// Bytes as SQL writes them.
pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len() + 3);
    out.push_str("x'");
    hex(bytes, &mut out);
    out.push('\'');
    out
}

pub(super) fn hex(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

pub(super) fn listed(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

pub(super) fn maybe(said: Option<&str>) -> String {
    said.map_or("NULL".into(), |said| bytes(text(said).as_bytes()))
}

pub(super) fn broken() -> Error {
    let message = "the database answered something that this version does not understand";
    Error::new(ErrorKind::Broken, message).effect_unknown()
}

/// The next answer of a script.
pub(super) fn next(answers: &mut std::vec::IntoIter<Vec<Row>>) -> Result<Vec<Row>> {
    answers.next().ok_or_else(broken)
}

pub(super) fn int(row: &Row, at: usize) -> Result<Option<i64>> {
    match row.as_ref(at) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Int(n)) => Ok(Some(*n)),
        Some(Value::UInt(n)) => i64::try_from(*n).map(Some).map_err(|_| broken()),
        Some(Value::Bytes(text)) => {
            let text = std::str::from_utf8(text).map_err(|_| broken())?;
            let whole = text.split('.').next().unwrap_or(text);
            whole.parse().map(Some).map_err(|_| broken())
        }
        _ => Err(broken()),
    }
}

pub(super) fn raw(row: &Row, at: usize) -> Result<Option<&[u8]>> {
    match row.as_ref(at) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
        _ => Err(broken()),
    }
}

pub(super) fn string(row: &Row, at: usize) -> Result<Option<String>> {
    Ok(raw(row, at)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

pub(super) fn number(number: Option<i64>) -> u64 {
    number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

pub(super) fn small(number: Option<i64>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// A row of `seen.sql`, with the ticket's capacity.
pub(crate) fn seen(row: &Row) -> Result<(u32, Seen)> {
    let seen = Seen {
        token: Some(number(int(row, 0)?)),
        mode: match int(row, 1)? {
            Some(0) => Mode::Exclusive,
            Some(1) => Mode::Shared,
            _ => Mode::Permits,
        },
        weight: small(int(row, 2)?),
        owner: string(row, 4)?.unwrap_or_default(),
        host: string(row, 5)?.unwrap_or_default(),
        pid: small(int(row, 6)?),
        identity: string(row, 7)?.unwrap_or_default(),
        reason: string(row, 8)?,
        entered: int(row, 9)?.map(duration),
        admitted: int(row, 10)?.map(duration),
        expires_in: int(row, 11)?.map(duration),
        value: string(row, 12)?,
    };
    Ok((small(int(row, 3)?), seen))
}
