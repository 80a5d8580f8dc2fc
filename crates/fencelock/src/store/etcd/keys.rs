//! How a ticket's key is spelled: `<name>/<lease in hex>-<ticket id>`, and `<name>/<lease in hex>` where it belongs to
//! another client (Go's `concurrency` package, `etcdctl lock`). A key belongs to a line only if nothing but that one component
//! follows the name, and the hex is the key's own lease.

use super::rpc::KeyValue;
use crate::error::Result;
use crate::name::Name;
use crate::store::note::{Picture, Record, Ticket};
use crate::store::{Place, TicketId};
use prost::bytes::Bytes;

/// The key of one of our tickets.
pub(super) fn of(name: &Name, lease: i64, id: TicketId) -> Bytes {
    format!("{}/{lease:x}-{id}", name.key()).into()
}

/// The key by which a session's end is noticed. No name is ever spelled like that, and it looks like no ticket.
pub(super) fn marker(lease: i64) -> Bytes {
    format!("%fencelock/session-{lease:x}").into()
}

/// The keys of a line, and of every name below it: from, and up to.
pub(super) fn line(name: &Name) -> (Bytes, Bytes) {
    (format!("{}/", name.key()).into(), format!("{}0", name.key()).into())
}

/// Every key that begins like this: from, and up to.
pub(super) fn prefix(prefix: &str) -> (Bytes, Bytes) {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1, // ASCII: it cannot overflow
        None => return (Bytes::from_static(&[0]), Bytes::from_static(&[0])),
    }
    (prefix.to_string().into(), end.into())
}

/// What a key's last component says: the lease, and the ticket's id if it is one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) lease: i64,
    pub(super) id: Option<TicketId>,
}

/// The name and the shape of a ticket's key; nothing for any other key.
pub(super) fn split(key: &[u8]) -> Option<(&str, Shape)> {
    let (name, component) = std::str::from_utf8(key).ok()?.rsplit_once('/')?;
    Some((name, shape(component)?))
}

/// Whether this is the key of that ticket, whatever its lease.
pub(super) fn is_of(key: &[u8], place: &Place) -> bool {
    split(key).is_some_and(|(name, shape)| name == place.name.key() && shape.id == Some(place.id))
}

fn shape(component: &str) -> Option<Shape> {
    let (lease, id) = match component.split_once('-') {
        Some((lease, id)) => (lease, Some(ticket_id(id)?)),
        None => (component, None),
    };
    let plain = (1..=16).contains(&lease.len()) && !lease.starts_with('0') && lower_hex(lease);
    let lease = i64::from_str_radix(lease, 16).ok().filter(|_| plain)?;
    Some(Shape { lease, id })
}

fn lower_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn ticket_id(text: &str) -> Option<TicketId> {
    let bits = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32 && lower_hex(text))?;
    Some(TicketId::from_bytes(bits.to_be_bytes()))
}

/// A key as a ticket of the line `name`; nothing where it is none of that line's.
pub(super) fn ticket(name: &str, kv: &KeyValue) -> Option<Result<Ticket>> {
    let (of, shape) = split(&kv.key)?;
    if of != name || shape.lease != kv.lease {
        return None;
    }
    // Weights of tickets that are not ours are not read: an election's value may say anything.
    let who = || format!("another client (lease {:x})", shape.lease);
    let record = match shape.id {
        Some(_) => Record::parse(&kv.value, &who()),
        None => Ok(Record::foreign(&who(), &kv.value)),
    };
    let token = u64::try_from(kv.create_revision).unwrap_or(0);
    Some(record.map(|record| Ticket { order: token, token: Some(token), id: shape.id, record, expires_in: None }))
}

/// A line out of what was read.
pub(super) fn picture(name: &str, kvs: &[KeyValue]) -> Result<Picture> {
    Ok(Picture::new(kvs.iter().filter_map(|kv| ticket(name, kv)).collect::<Result<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::WHOLE;

    fn name(name: &str) -> Name {
        Name::new("", name).unwrap()
    }

    #[test]
    fn a_key_can_be_read_back() {
        let id = TicketId::new();
        for lease in [1, 0x694d_8141_7acd_4754, i64::MAX] {
            let key = of(&name("a/b c"), lease, id);
            assert_eq!(split(&key), Some(("a/%b%20c", Shape { lease, id: Some(id) })));
        }
    }

    #[test]
    fn other_keys_are_no_tickets() {
        let id = TicketId::new();
        for key in [
            "a".to_string(),
            "a/".into(),
            "a/x".into(),
            format!("a/-{id}"),
            format!("a/0{:x}-{id}", 5),
            format!("a/5-{id}0"),
            format!("a/5-{}", id.to_string().to_uppercase() + "A"),
            "a/+5".into(),
            "a/12345678901234567".into(),
            "a/8000000000000000".into(),
            String::from_utf8(marker(5).to_vec()).unwrap(),
        ] {
            assert_eq!(split(key.as_bytes()), None, "{key}");
        }
        assert_eq!(split(b"a/\xff"), None);
    }

    #[test]
    fn a_line_is_what_stands_right_below_its_name() {
        let kv = |key: String, lease, create_revision| KeyValue {
            key: key.into(),
            lease,
            create_revision,
            ..KeyValue::default()
        };
        let id = TicketId::new();
        let kvs = [
            kv("a/7".into(), 7, 30),
            kv("a/8".into(), 7, 10),
            kv("a/b/7".into(), 7, 11),
            kv("a/x".into(), 0, 12),
            kv(format!("a/9-{id}"), 9, 20),
        ];
        let picture = picture("a", &kvs).unwrap();
        let found: Vec<_> = picture.tickets().iter().map(|t| (t.token, t.id, t.record.weight)).collect();
        assert_eq!(found, [(Some(20), Some(id), WHOLE), (Some(30), None, WHOLE)]);
    }

    #[test]
    fn ranges_hold_what_they_should() {
        let (from, to) = line(&name("a"));
        let within = |key: &str| key.as_bytes() >= &*from && key.as_bytes() < &*to;
        assert!(within("a/7") && within("a/b/7") && !within("a") && !within("a-b/7") && !within("ab/7"));
        assert_eq!(prefix("ab/"), ("ab/".into(), "ab0".into()));
        assert_eq!(prefix(""), (vec![0].into(), vec![0].into()));
    }
}
