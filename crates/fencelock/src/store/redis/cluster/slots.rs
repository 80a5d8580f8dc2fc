//! Slots: which one a key falls into, and who owns which, as the nodes tell. No I/O.

use redis::Value;
use std::collections::HashMap;

/// How many slots a cluster has.
pub(crate) const SLOTS: usize = 16_384;

/// Where a node is: host and port.
pub(crate) type Address = (String, u16);

/// The slot of a key: that of what stands between its first braces, if there is something.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS as u16
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(
            crc ^ (u16::from(*byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    })
}

/// `HOST:PORT`, where the host may be missing: then it is that of whoever said so.
pub(crate) fn address(text: &str, said_by: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    Some((host_or(host, said_by), port.parse().ok()?))
}

fn host_or(host: &str, said_by: &Address) -> String {
    if matches!(host, "" | "?") { said_by.0.clone() } else { host.trim_matches(['[', ']']).to_string() }
}

/// What one node says of all slots.
pub(crate) struct Owners(Vec<Option<Address>>);

impl Owners {
    /// The answer to `CLUSTER SLOTS` of the node at `said_by`: for each range its first and last slot, its master, and the
    /// replicas.
    pub(crate) fn read(answer: Value, said_by: &Address) -> Option<Owners> {
        let Value::Array(ranges) = answer else { return None };
        let mut owners = vec![None; SLOTS];
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let mut range = range.into_iter();
            let (Some(Value::Int(first)), Some(Value::Int(last)), Some(Value::Array(master))) =
                (range.next(), range.next(), range.next())
            else {
                return None;
            };
            let mut master = master.into_iter();
            let host = match master.next()? {
                Value::BulkString(host) => String::from_utf8(host).ok()?,
                // A node that does not know its own address.
                _ => String::new(),
            };
            let Some(Value::Int(port)) = master.next() else { return None };
            let master = (host_or(&host, said_by), u16::try_from(port).ok()?);
            let range = usize::try_from(first).ok()?..=usize::try_from(last).ok()?;
            owners.get_mut(range)?.fill(Some(master));
        }
        Some(Owners(owners))
    }

    /// What most of them say, slot by slot: a node that was cut off, or paused, may still tell an old story. Between equals the
    /// first one counts.
    pub(crate) fn agreed(mut all: Vec<Owners>) -> Owners {
        if all.len() == 1 {
            return all.remove(0);
        }
        let owner = |slot: usize| {
            let mut votes: Vec<(&Address, usize)> = Vec::new();
            for said in all.iter().filter_map(|owners| owners.0[slot].as_ref()) {
                match votes.iter_mut().find(|(owner, _)| *owner == said) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((said, 1)),
                }
            }
            let most = votes.iter().map(|(_, count)| *count).max()?;
            votes.into_iter().find(|(_, count)| *count == most).map(|(owner, _)| owner.clone())
        };
        Owners((0..SLOTS).map(owner).collect())
    }

    /// The masters, each once, and for each slot which of them has it (or none).
    pub(crate) fn index(self) -> (Vec<Address>, Vec<Option<u16>>) {
        let mut known: HashMap<Address, u16> = HashMap::new();
        let mut masters = Vec::new();
        let mut index = |owner: Address| {
            *known.entry(owner).or_insert_with_key(|owner| {
                masters.push(owner.clone());
                masters.len() as u16 - 1
            })
        };
        let owned = self.0.into_iter().map(|owner| owner.map(&mut index)).collect();
        (masters, owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of the cluster's specification and of a real server.
    #[test]
    fn keys_fall_where_the_server_says() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot("x{a}"), 15495);
        assert_eq!(slot("fencelock:{a}:inbox:7"), 15495);
        assert_eq!(slot("{}x"), crc16(b"{}x") % 16384);
        assert_eq!(slot("foo"), 12182);
    }

    fn owners(ranges: &[(i64, i64, &str, i64)]) -> Owners {
        let range = |(first, last, host, port): &(i64, i64, &str, i64)| {
            let node = Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(*port)]);
            Value::Array(vec![Value::Int(*first), Value::Int(*last), node])
        };
        Owners::read(Value::Array(ranges.iter().map(range).collect()), &("here".into(), 1)).unwrap()
    }

    #[test]
    fn most_of_the_nodes_are_believed() {
        let old = || owners(&[(0, 16383, "a", 1)]);
        let new = || owners(&[(0, 99, "b", 2), (100, 16383, "a", 1)]);
        for all in [vec![old(), new(), new()], vec![new(), old()], vec![new()]] {
            let (masters, owned) = Owners::agreed(all).index();
            assert_eq!(masters, [("b".to_string(), 2), ("a".to_string(), 1)]);
            assert_eq!((owned[99], owned[100]), (Some(0), Some(1)));
        }
    }

    #[test]
    fn slots_that_nobody_has_are_told() {
        let (masters, owned) = owners(&[(5, 6, "", 7)]).index();
        assert_eq!(masters, [("here".to_string(), 7)], "the host of whoever said so");
        assert_eq!((owned[4], owned[5]), (None, Some(0)));
        assert!(Owners::read(Value::Nil, &("x".into(), 1)).is_none());
        let beyond = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(99_999), Value::Array(vec![])])]);
        assert!(Owners::read(beyond, &("x".into(), 1)).is_none());
    }

    #[test]
    fn an_address_may_lack_its_host() {
        let by = ("here".to_string(), 1);
        assert_eq!(address(":7", &by), Some(("here".into(), 7)));
        assert_eq!(address("?:7", &by), Some(("here".into(), 7)));
        assert_eq!(address("::1:7", &by), Some(("::1".into(), 7)));
        assert_eq!(address("x", &by), None);
    }
}
