//! What the scripts' answers mean.

use super::record;
use super::waiters::Standing;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Presence, Seen};
use redis::Value;
use std::time::Duration;

pub(super) fn unreadable() -> Error {
    Error::new(ErrorKind::Broken, "the server's answer cannot be read").effect_unknown()
}

pub(super) fn micros(text: Option<&str>) -> Result<Duration> {
    text.and_then(|text| text.parse().ok()).map(Duration::from_micros).ok_or_else(unreadable)
}

pub(super) fn number<T: std::str::FromStr>(text: Option<&str>) -> Result<T> {
    text.and_then(|text| text.parse().ok()).ok_or_else(unreadable)
}

/// Answers in an array, or one that comes alone.
pub(super) fn texts(value: Value, count: usize) -> Result<Vec<String>> {
    let texts: Vec<String> = match value {
        Value::Array(_) => redis::from_redis_value(value),
        one => redis::from_redis_value(one).map(|one| vec![one]),
    }
    .map_err(|_| unreadable())?;
    if texts.len() == count { Ok(texts) } else { Err(unreadable()) }
}

pub(super) fn presences(value: Value, count: usize) -> Result<Vec<Presence>> {
    let there: Vec<u8> = match value {
        Value::Array(values) => values.into_iter().map(redis::from_redis_value).collect::<Result<_, _>>(),
        other => redis::from_redis_value(other).map(|one| vec![one]),
    }
    .map_err(|_| unreadable())?;
    if there.len() != count {
        return Err(unreadable());
    }
    Ok(there.into_iter().map(|there| if there == 1 { Presence::There } else { Presence::Gone }).collect())
}

/// `0`, `1 lease number` or `2 lease number next-lapse`.
pub(super) fn standing(text: &str) -> Result<Standing> {
    let mut words = text.split(' ');
    match words.next() {
        Some("0") => Ok(Standing::Gone),
        Some("1") => {
            let lease = micros(words.next())?;
            Ok(Standing::Inside { lease, token: number(words.next())? })
        }
        Some("2") => {
            let lease = micros(words.next())?;
            let token = number(words.next())?;
            Ok(Standing::Waiting { lease, token, next_lapse: micros(words.next())? })
        }
        _ => Err(unreadable()),
    }
}

pub(super) fn standings(value: Value, count: usize) -> Result<Vec<Standing>> {
    texts(value, count)?.iter().map(|text| standing(text)).collect()
}

/// `now record`, or nothing.
pub(super) fn holder(text: &str) -> Result<Option<Seen>> {
    let (now, record) = text.split_once(' ').ok_or_else(unreadable)?;
    let now = number(Some(now))?;
    if record.is_empty() { Ok(None) } else { record::seen(record, now).map(Some) }
}
