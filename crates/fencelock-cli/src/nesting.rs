//! `run x` inside `run x` would wait for ever: `FENCELOCK_HELD` tells what is held further out.
//!
//! It is a list of `fingerprint:mode:name`, separated by spaces. The fingerprint is a hash of the store without credentials and
//! of the namespace; the name is spelled as the store spells it, so it has no space in it.

use crate::args::Lock;
use crate::failure::{Failure, HELD};

/// How something is, or is to be, held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Exclusive,
    Shared,
    Permits { permits: u32, of: u32 },
}

impl Held {
    pub(crate) fn of(lock: &Lock) -> Held {
        match (lock.permits, lock.of) {
            (Some(permits), Some(of)) => Held::Permits { permits, of },
            _ if lock.shared => Held::Shared,
            _ => Held::Exclusive,
        }
    }

    fn parse(text: &str) -> Option<Held> {
        match text {
            "exclusive" => Some(Held::Exclusive),
            "shared" => Some(Held::Shared),
            _ => {
                let (permits, of) = text.strip_prefix("permits=")?.split_once('/')?;
                Some(Held::Permits { permits: permits.parse().ok()?, of: of.parse().ok()? })
            }
        }
    }

    /// Whether one process cannot wait for the second while it has the first. A lock and a semaphore of one name are the
    /// store's to refuse.
    fn excludes(self, wish: Held) -> bool {
        match (self, wish) {
            (Held::Shared, Held::Shared) => false,
            (Held::Exclusive | Held::Shared, Held::Exclusive | Held::Shared) => true,
            (Held::Permits { permits: have, .. }, Held::Permits { permits: want, of }) => {
                u64::from(have) + u64::from(want) > u64::from(of)
            }
            _ => false,
        }
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Held::Exclusive => f.write_str("exclusive"),
            Held::Shared => f.write_str("shared"),
            Held::Permits { permits, of } => write!(f, "permits={permits}/{of}"),
        }
    }
}

/// Refuses what would wait for itself.
pub(crate) fn check(outer: &str, fingerprint: &str, spelled: &str, wish: Held) -> Result<(), Failure> {
    let clash = outer
        .split(' ')
        .filter_map(parse)
        .find(|(print, held, name)| *print == fingerprint && *name == spelled && held.excludes(wish));
    match clash {
        None => Ok(()),
        Some((_, held, _)) => {
            let message = format!(
                "{spelled} is held ({held}) by the `fencelock run` that this one runs inside of, and would wait for itself \
                 for ever; take it once, outside"
            );
            Err(Failure::new(HELD, "deadlock", message))
        }
    }
}

/// The value for the child: what is held further out, and these.
pub(crate) fn add(fingerprint: &str, spelled: &[String], held: Held) -> String {
    let outer = std::env::var("FENCELOCK_HELD").ok().filter(|outer| !outer.is_empty());
    let entries = spelled.iter().map(|name| format!("{fingerprint}:{held}:{name}"));
    outer.into_iter().chain(entries).collect::<Vec<_>>().join(" ")
}

fn parse(entry: &str) -> Option<(&str, Held, &str)> {
    let mut parts = entry.splitn(3, ':');
    let (print, held, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some((print, Held::parse(held)?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_excludes_itself_is_refused() {
        let outer = "aa:shared:x bb:exclusive:y aa:permits=2/3:s nonsense aa:what:z";
        let refused = |print: &str, name: &str, wish| check(outer, print, name, wish).is_err();
        assert!(!refused("aa", "x", Held::Shared));
        assert!(refused("aa", "x", Held::Exclusive));
        assert!(refused("bb", "y", Held::Exclusive));
        assert!(refused("bb", "y", Held::Shared));
        assert!(!refused("aa", "y", Held::Exclusive), "another store");
        assert!(!refused("bb", "x", Held::Exclusive), "another store");
        assert!(!refused("aa", "s", Held::Permits { permits: 1, of: 3 }));
        assert!(refused("aa", "s", Held::Permits { permits: 2, of: 3 }));
        assert!(!refused("aa", "s", Held::Exclusive), "a mismatch is the store's to tell");
        assert!(!refused("aa", "z", Held::Exclusive));
        let failure = check(outer, "bb", "y", Held::Exclusive).unwrap_err();
        assert_eq!((failure.code, failure.kind), (75, "deadlock"));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for held in [Held::Exclusive, Held::Shared, Held::Permits { permits: 2, of: 7 }] {
            let entry = format!("0123:{held}:shop/%a%3Ab");
            assert_eq!(parse(&entry), Some(("0123", held, "shop/%a%3Ab")));
        }
    }
}
