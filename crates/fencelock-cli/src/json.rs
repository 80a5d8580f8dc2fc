//! The JSON of the contract: tickets, lines and lists. Tokens are strings, since they may exceed 2^53.

use fencelock::{Line, Seen};
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One ticket. What the store does not tell is null.
#[derive(Debug, Serialize)]
pub(crate) struct Ticket<'a> {
    token: Option<String>,
    mode: &'static str,
    weight: u32,
    host: &'a str,
    pid: u32,
    identity: &'a str,
    owner: &'a str,
    reason: Option<&'a str>,
    entered_at: Option<String>,
    expires_in_ms: Option<u64>,
}

impl<'a> From<&'a Seen> for Ticket<'a> {
    fn from(seen: &'a Seen) -> Ticket<'a> {
        Ticket {
            token: seen.token.map(|token| token.to_string()),
            mode: seen.mode.as_str(),
            weight: seen.weight,
            host: &seen.host,
            pid: seen.pid,
            identity: &seen.identity,
            owner: &seen.owner,
            reason: seen.reason.as_deref(),
            entered_at: seen.entered.and_then(|ago| SystemTime::now().checked_sub(ago)).map(rfc3339),
            expires_in_ms: seen.expires_in.map(millis),
        }
    }
}

/// What `show` tells.
#[derive(Debug, Serialize)]
pub(crate) struct Shown<'a> {
    name: &'a str,
    capacity: u32,
    inside: Vec<Ticket<'a>>,
    waiting: Vec<Ticket<'a>>,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(name: &'a str, line: &'a Line) -> Shown<'a> {
        Shown {
            name,
            capacity: line.capacity,
            inside: line.inside.iter().map(Ticket::from).collect(),
            waiting: line.waiting.iter().map(Ticket::from).collect(),
        }
    }
}

/// One name with somebody in it: an element of `ls`, a line of `watch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) inside: usize,
    pub(crate) waiting: usize,
    pub(crate) held_ms: Option<u64>,
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// `2026-11-15T23:48:38.123Z`
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{:03}Z", second % 60, since.subsec_millis())
}

/// The date so many days after 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years have 146,097 days; whole such spans first, so that the walk below is short.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
