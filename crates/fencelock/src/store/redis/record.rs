//! What the server keeps of a ticket, in words: see the head of `line.lua`.

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Enter, Mode, Note, Seen, waiting_lease};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use std::fmt::Write as _;
use std::time::Duration;

/// What would end a word or a line.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'=');

/// What a client says of a ticket: see the head of `line.lua`.
pub(super) fn entry(ticket: &Enter, inbox: &str) -> String {
    let mut entry = String::with_capacity(256);
    let id = ticket.place.id.digits();
    entry.push_str(text(&id));
    for (number, digits) in [
        (u64::from(ticket.weight), 7),
        (u64::from(ticket.capacity), 7),
        (micros(ticket.lease), 1),
        (micros(waiting_lease(ticket.lease)), 1),
        (u64::from(ticket.queue), 1),
    ] {
        entry.push(' ');
        push_number(&mut entry, number, digits);
    }
    for word in [inbox, ticket.kind.mode().as_str(), text(&ticket.owner.digits())] {
        entry.push(' ');
        entry.push_str(word);
    }
    entry.push(' ');
    write_note(&mut entry, &ticket.note);
    if !ticket.held.is_empty() {
        let held: Vec<&str> = ticket.held.iter().map(crate::name::Name::key).collect();
        let _ = write!(entry, " held={}", utf8_percent_encode(&held.join(","), ESCAPED));
    }
    if let Some(long) = ticket.place.name.long() {
        let _ = write!(entry, " name={}", utf8_percent_encode(long, ESCAPED));
    }
    entry
}

fn text(digits: &[u8; 32]) -> &str {
    std::str::from_utf8(digits).unwrap_or_default()
}

/// In so many digits at least. This is written for every lock: by hand it costs a fifth of what the formatter takes.
fn push_number(text: &mut String, mut number: u64, digits: usize) {
    let mut all = [b'0'; 20];
    let mut at = all.len();
    while number > 0 || all.len() - at < digits {
        at -= 1;
        all[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    text.push_str(std::str::from_utf8(&all[at..]).unwrap_or_default());
}

/// In whole milliseconds; never less than was asked for.
pub(super) fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The server counts whole microseconds; never less than was asked for.
pub(super) fn micros(lease: Duration) -> u64 {
    u64::try_from(lease.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// The name in full, where a ticket's facts have to say it since its key is a hash.
pub(super) fn long_name(facts: &str) -> Option<String> {
    let name = facts.split(' ').find_map(|word| word.strip_prefix("name="))?;
    Some(percent_decode_str(name).decode_utf8_lossy().into_owned())
}

pub(super) fn note(note: &Note) -> String {
    let mut text = String::new();
    write_note(&mut text, note);
    text
}

fn write_note(text: &mut String, note: &Note) {
    push(text, "host=", &note.host);
    text.push_str(" pid=");
    push_number(text, u64::from(note.pid), 1);
    push(text, " id=", &note.identity);
    for (key, value) in [(" why=", &note.reason), (" value=", &note.value)] {
        if let Some(value) = value {
            push(text, key, value);
        }
    }
}

/// A word. Most need no escaping.
fn push(text: &mut String, key: &str, value: &str) {
    text.push_str(key);
    if value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%' && byte != b'=') {
        text.push_str(value);
    } else {
        text.extend(utf8_percent_encode(value, ESCAPED));
    }
}

/// A record as others see it, at `now` on the server's clock.
pub(super) fn seen(record: &str, now: u64) -> Result<Seen> {
    let broken = || Error::new(ErrorKind::Broken, "the server has a ticket that cannot be read");
    let mut words = record.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (Some(token), Some(expiry), Some(entered), Some(admitted), Some(weight)) =
        (number(), number(), number(), number(), number())
    else {
        return Err(broken());
    };
    // Then its capacity, its leases, whether it wanted to queue, and where it is told.
    let (Some(mode), Some(owner)) = (words.nth(5), words.next()) else { return Err(broken()) };
    let ago = |then: u64| Duration::from_micros(now.saturating_sub(then));
    let mut seen = Seen {
        token: Some(token),
        mode: match mode {
            "exclusive" => Mode::Exclusive,
            "shared" => Mode::Shared,
            "permits" => Mode::Permits,
            _ => return Err(broken()),
        },
        weight: u32::try_from(weight).map_err(|_| broken())?,
        host: String::new(),
        pid: 0,
        identity: String::new(),
        owner: owner.to_string(),
        reason: None,
        value: None,
        entered: Some(ago(entered)),
        admitted: (admitted > 0).then(|| ago(admitted)),
        expires_in: Some(Duration::from_micros(expiry.saturating_sub(now))),
    };
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        let value = || percent_decode_str(value).decode_utf8_lossy().into_owned();
        match key {
            "host" => seen.host = value(),
            "pid" => seen.pid = value().parse().unwrap_or(0),
            "id" => seen.identity = value(),
            "why" => seen.reason = Some(value()),
            "value" => seen.value = Some(value()),
            _ => {}
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;
    use crate::store::{Kind, OwnerId, Place, TicketId};

    #[test]
    fn what_was_said_can_be_read_back() {
        let ticket = Enter {
            place: Place { name: Name::new("", "x").unwrap(), id: TicketId::new() },
            kind: Kind::Read,
            weight: 1,
            capacity: 1 << 20,
            lease: Duration::from_secs(1),
            queue: true,
            owner: OwnerId::new(),
            held: vec![Name::new("", "a b").unwrap()],
            note: Note {
                host: "web 3".into(),
                pid: 912,
                identity: "a=b%20\n".into(),
                reason: Some("".into()),
                value: Some("v".into()),
            },
        };
        let entry = entry(&ticket, "inbox");
        let (id, rest) = entry.split_once(' ').unwrap();
        assert_eq!(id, ticket.place.id.to_string());
        let record = format!("7 5000000 1000000 0 {rest}");
        let seen = seen(&record, 2_000_000).unwrap();
        assert_eq!(seen.token, Some(7));
        assert_eq!(seen.mode, Mode::Shared);
        assert_eq!((seen.host.as_str(), seen.pid, seen.identity.as_str()), ("web 3", 912, "a=b%20\n"));
        assert_eq!((seen.reason.as_deref(), seen.value.as_deref()), (Some(""), Some("v")));
        assert_eq!(seen.owner, ticket.owner.to_string());
        assert_eq!((seen.entered, seen.admitted), (Some(Duration::from_secs(1)), None));
        assert_eq!(seen.expires_in, Some(Duration::from_secs(3)));
    }

    #[test]
    fn what_is_no_record_is_told() {
        for record in [
            "",
            "1 2 3",
            "1 2 3 4 5 6 7 8 1 inbox shared",
            "1 2 3 4 5 6 7 8 1 inbox odd owner",
            "x 1 1 1 1 6 7 8 1 i shared o",
        ] {
            assert_eq!(seen(record, 0).unwrap_err().kind(), ErrorKind::Broken, "{record:?}");
        }
    }
}
