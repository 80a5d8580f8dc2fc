//! Names: what the user calls a lock, and the one spelling of it that every store uses.
//!
//! A name is split at `/`. A part of `[A-Za-z0-9._-]` is used as it is, so that other clients of the same store can share
//! it; any other part (also an empty one, `.`, `..`, or one shaped like a ticket of some store) is written as `%` and its
//! bytes percent-escaped. A spelling of more than 200 bytes becomes `%~` and a hash of 128 bits, behind the namespace. So
//! two names never share a lock and one name always does; a prefix that ends in `/` stays a prefix.

use crate::error::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::sync::Arc;

/// The longest spelling that is used as it is, in bytes.
pub const LONGEST: usize = 200;
/// The longest namespace, in bytes.
pub const LONGEST_NAMESPACE: usize = 100;
/// How much of a long name is kept for people to read, in bytes.
const LONGEST_SHOWN: usize = 512;

/// A name as a store writes it ([`key`](Name::key)), with what the user called it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    key: Arc<str>,
    /// Only where the key does not say it all: hashed names.
    long: Option<Arc<str>>,
}

impl Name {
    /// Spells `name` within `namespace` (empty: none).
    ///
    /// # Errors
    /// `InvalidName` for an empty name, or a namespace that is too long or not made of plain parts.
    pub fn new(namespace: &str, name: &str) -> Result<Name> {
        check_namespace(namespace)?;
        if name.is_empty() {
            return Err(Error::new(ErrorKind::InvalidName, "a lock's name must not be empty"));
        }
        let mut key = String::with_capacity(namespace.len() + name.len() + 8);
        if !namespace.is_empty() {
            key.push_str(namespace);
            key.push('/');
        }
        let room = key.len();
        // Spelling a very long name only to hash it would be waste: no part gets shorter by being spelled.
        if room + name.len() <= LONGEST {
            for (i, part) in name.split('/').enumerate() {
                if i > 0 {
                    key.push('/');
                }
                spell_part(part, &mut key);
            }
            if key.len() <= LONGEST {
                return Ok(Name { key: key.into(), long: None });
            }
            key.truncate(room);
        }
        let shown = shorten(&key, name);
        key.push_str("%~");
        for byte in &Sha256::digest(name.as_bytes())[..16] {
            let _ = write!(key, "{byte:02x}");
        }
        Ok(Name { key: key.into(), long: Some(shown.into()) })
    }

    /// A name as it was found in a store; `long` is what the ticket's note says of it, if anything.
    #[must_use]
    pub fn from_key(key: &str, long: Option<&str>) -> Name {
        Name { key: key.into(), long: long.map(Into::into) }
    }

    /// The spelling that stores use: at most 200 bytes of `[A-Za-z0-9._/%~-]`, no empty part, no `.` or `..`.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn shared_key(&self) -> Arc<str> {
        self.key.clone()
    }

    /// What must be kept beside the key, since the key is a hash; `None` where the key says it all.
    #[must_use]
    pub fn long(&self) -> Option<&str> {
        self.long.as_deref()
    }

    /// What the user called it, the namespace included (a very long name is cut).
    #[must_use]
    pub fn shown(&self) -> String {
        match &self.long {
            Some(long) => long.to_string(),
            None => self.key.split('/').map(unspell_part).collect::<Vec<_>>().join("/"),
        }
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.shown())
    }
}

impl std::fmt::Display for Name {
    /// For people: control and direction-changing characters are shown as escapes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable(&self.shown()))
    }
}

/// The part of `prefix` that every key of a name with that prefix begins with: up to its last `/`, spelled.
pub(crate) fn prefix_key(namespace: &str, prefix: &str) -> Result<String> {
    check_namespace(namespace)?;
    let mut key = String::new();
    if !namespace.is_empty() {
        key.push_str(namespace);
        key.push('/');
    }
    if let Some((folder, _)) = prefix.rsplit_once('/') {
        for part in folder.split('/') {
            spell_part(part, &mut key);
            key.push('/');
        }
    }
    Ok(key)
}

/// Where hashed names of a namespace are found.
pub(crate) fn hashed_prefix(namespace: &str) -> String {
    if namespace.is_empty() { "%~".to_string() } else { format!("{namespace}/%~") }
}

/// Makes text fit for a terminal or a log: nothing in it can move the cursor, hide or turn around what follows.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let turns =
            matches!(c, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}');
        if c.is_control() || turns {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

fn check_namespace(namespace: &str) -> Result<()> {
    if namespace.len() > LONGEST_NAMESPACE {
        let message = format!("a namespace has at most {LONGEST_NAMESPACE} bytes, this one has {}", namespace.len());
        return Err(Error::new(ErrorKind::InvalidName, message));
    }
    if !namespace.is_empty() && !namespace.split('/').all(is_plain) {
        let message = format!(
            "the namespace {:?} is not made of parts of letters, digits, '.', '_' and '-' joined by '/'",
            printable(namespace)
        );
        return Err(Error::new(ErrorKind::InvalidName, message));
    }
    Ok(())
}

fn spell_part(part: &str, key: &mut String) {
    if is_plain(part) {
        key.push_str(part);
        return;
    }
    key.push('%');
    for byte in part.bytes() {
        // `-` and `_` as well: an escaped part must not look like a ticket to anybody.
        if byte.is_ascii_alphanumeric() || byte == b'.' {
            key.push(char::from(byte));
        } else {
            let _ = write!(key, "%{byte:02X}");
        }
    }
}

fn unspell_part(part: &str) -> String {
    match part.strip_prefix('%') {
        Some(escaped) => percent_encoding::percent_decode_str(escaped).decode_utf8_lossy().into_owned(),
        None => part.to_string(),
    }
}

fn is_plain(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain) && !like_a_ticket(part)
}

/// Whether a part could be taken for a ticket: ZooKeeper's sequential nodes (Curator's, kazoo's and ours end in ten digits
/// behind a marker), etcd's lease ids in hex (alone or before our ticket id), Consul's `.lock` and ticket ids.
fn like_a_ticket(part: &str) -> bool {
    let hex = |s: &str| s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let lease = |s: &str| (12..=16).contains(&s.len()) && hex(s);
    let id = |s: &str| s.len() == 32 && hex(s);
    let sequential = part.len() > 10
        && part.bytes().rev().take(10).all(|b| b.is_ascii_digit())
        && matches!(part.as_bytes()[part.len() - 11], b'-' | b'_');
    let etcd = part.split_once('-').is_some_and(|(l, i)| (1..=16).contains(&l.len()) && hex(l) && id(i));
    let uuid = part.len() == 36 && part.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && part.split('-').all(hex);
    sequential || lease(part) || id(part) || etcd || uuid || part == ".lock"
}

fn shorten(namespace: &str, name: &str) -> String {
    if name.len() <= LONGEST_SHOWN {
        return format!("{namespace}{name}");
    }
    let end = (0..=LONGEST_SHOWN).rev().find(|i| name.is_char_boundary(*i)).unwrap_or(0);
    format!("{namespace}{}…", &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(name: &str) -> String {
        Name::new("", name).unwrap().key().to_string()
    }

    #[test]
    fn plain_names_are_used_as_they_are() {
        for name in ["a", "stock/42", "shop/stock/42", "A.b_c-d", "x/..y", &"n".repeat(200), "2026-11-15", "job-7"] {
            assert_eq!(key(name), name);
        }
        assert_eq!(Name::new("shop", "stock/42").unwrap().key(), "shop/stock/42");
    }

    #[test]
    fn every_other_name_gets_a_spelling_of_its_own() {
        let odd = [
            "/",
            "//",
            "a/",
            "/a",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/./b",
            "a b",
            "a%20b",
            "%a",
            "a\0b",
            "a\0",
            "ä",
            "a\u{308}",
            "🔒",
            "а",
            "a*?[",
            "{a}",
            "a\r\nb",
            "\u{1b}[31m",
            " a",
            "a ",
            "lock-0000000001",
            "_c_x-lock-0000000001",
            "__WRIT__0000000007",
            "a/__READ__0000000007",
            "694d81417acd4754",
            "694d81417acd4754-00112233445566778899aabbccddeeff",
            "00112233445566778899aabbccddeeff",
            "0b3f1c2a-0000-4000-8000-000000000000",
            ".lock",
            "a/.lock",
            "%~00112233445566778899aabbccddeeff",
        ];
        let mut seen: HashMap<String, &str> = HashMap::new();
        for name in odd {
            let key = key(name);
            assert_ne!(key, name, "{name:?} is not used as it is");
            assert!(key.split('/').all(|part| !part.is_empty() && !like_a_ticket(part)), "{name:?} became {key}");
            assert_eq!(Name::new("", name).unwrap().shown(), name);
            assert_eq!(seen.insert(key, name), None, "{name:?} shares a lock");
        }
    }

    #[test]
    fn long_names_are_hashed_and_still_differ() {
        let long = "x".repeat(1 << 20);
        let other = format!("{}y", &long[1..]);
        assert_ne!(key(&long), key(&other));
        assert_eq!(key(&long), key(&long.clone()));
        assert_eq!(key(&long).len(), 34);
        assert!(Name::new("", &long).unwrap().shown().len() < 600);
        // Longer by its spelling only.
        assert!(key(&"é".repeat(100)).starts_with("%~"));
        assert_eq!(Name::new("shop", &long).unwrap().key(), format!("shop/{}", key(&long)));
    }

    #[test]
    fn bad_names_and_namespaces_are_refused() {
        for (namespace, name) in
            [("", ""), ("a b", "x"), ("a//b", "x"), ("/", "x"), ("..", "x"), (&"n".repeat(101)[..], "x")]
        {
            assert_eq!(
                Name::new(namespace, name).unwrap_err().kind(),
                ErrorKind::InvalidName,
                "{namespace:?} {name:?}"
            );
        }
    }

    #[test]
    fn nothing_in_a_shown_name_can_fool_a_terminal() {
        let name = Name::new("", "a\u{1b}[2Jb\r\n\u{202e}c").unwrap();
        assert_eq!(name.to_string(), "a\\u{1b}[2Jb\\u{d}\\u{a}\\u{202e}c");
    }

    fn any_name() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-c./%_-]{1,8}",
            "\\PC{1,12}",
            any::<Vec<char>>()
                .prop_map(|chars| chars.into_iter().collect::<String>())
                .prop_filter("not empty", |s| !s.is_empty()),
        ]
    }

    proptest! {
        #[test]
        fn the_spelling_is_injective(a in any_name(), b in any_name()) {
            prop_assert_eq!(a == b, key(&a) == key(&b));
        }

        #[test]
        fn a_short_name_can_be_read_back(name in any_name()) {
            let spelled = Name::new("", &name).unwrap();
            if spelled.long().is_none() {
                prop_assert_eq!(spelled.shown(), name);
            }
        }

        #[test]
        fn keys_are_safe_for_every_store(name in any_name()) {
            let key = key(&name);
            prop_assert!(key.len() <= LONGEST);
            prop_assert!(key.bytes().all(|b| b.is_ascii_alphanumeric() || b"._/%~-".contains(&b)));
            prop_assert!(key.split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
        }

        #[test]
        fn a_folder_stays_a_prefix(folder in any_name(), name in any_name()) {
            let full = format!("{folder}/{name}");
            let spelled = Name::new("ns", &full).unwrap();
            if spelled.long().is_none() {
                let prefix = prefix_key("ns", &(folder + "/")).unwrap();
                prop_assert!(spelled.key().starts_with(&prefix), "{} in {}", prefix, spelled.key());
            }
        }
    }
}
