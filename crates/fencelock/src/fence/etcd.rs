//! The fence on an etcd cluster of the caller's own: conditions and operations for the caller's transaction, whichever client
//! sends it.
//!
//! Marks are keys, and their numbers are the end of the key: below `FOLDER/LABEL:NAME/` there is `w/` and the token of an
//! exclusive access, and `s/` and that of a shared one, each with 20 digits, so that keys are in the order of tokens. "No later
//! grant has been here" is then "this range is empty", which the servers judge in the transaction itself: nothing is read
//! before, and nobody has to try again because another was faster. An access takes out the keys of those it has overtaken.
//!
//! What a client makes of an [`Access`]:
//!
//! | here | in etcd's transaction |
//! |---|---|
//! | each of `empty` | a compare: `CREATE` `EQUAL` 0, with `key` and `range_end` (etcd 3.3 or later) |
//! | `put` | on success: a put of this key, without a value and without a lease |
//! | each of `delete` | on success: a delete of this range |
//! | the caller's own writes | on success |
//! | `look` | on failure: a read of this range, keys only; then [`overtaken`](Access::overtaken) says whether it was the fence |
//!
//! ```
//! use fencelock::{Token, fence::etcd::{self, Range}, store::Mode};
//!
//! let token = |n, mode| Token::from_parts(n, mode, "stock/42", "redis").unwrap();
//! let write = etcd::access("shop/marks", &token(33, Mode::Exclusive))?;
//! assert_eq!(write.put, "shop/marks/redis:stock%2F42/w/00000000000000000033");
//! assert_eq!(write.empty.len(), 2, "no later writer, and no later reader");
//! let read = etcd::access("shop/marks", &token(34, Mode::Shared))?;
//! assert_eq!(read.empty.len(), 1, "no later writer");
//!
//! // The transaction has failed, and this is what it found:
//! let refused = write.overtaken([&read.put]).unwrap();
//! assert_eq!((refused.token, refused.by), (33, 34));
//! # Ok::<(), fencelock::Error>(())
//! ```

use super::{Marks, Overtaken, checked, spelled};
use crate::error::Result;
use crate::store::Mode;
use crate::token::Token;

/// The keys from the first up to the second, which is not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// `key`
    pub from: String,
    /// `range_end`
    pub to: String,
}

/// What one access puts into the transaction of the write that it protects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// There must be no key in any of these.
    pub empty: Vec<Range>,
    /// To be put.
    pub put: String,
    /// To be deleted.
    pub delete: Vec<Range>,
    /// To be read if the transaction does not succeed: there are few.
    pub look: Range,
    token: Token,
}

/// The keys of one kind of access.
struct Kind(String);

impl Kind {
    fn key(&self, number: u64) -> String {
        format!("{}{number:020}", self.0)
    }

    /// Where the keys of this kind end.
    fn end(&self) -> String {
        after(&self.0)
    }

    fn above(&self, number: u64) -> Range {
        Range { from: self.key(number + 1), to: self.end() }
    }

    fn below(&self, number: u64) -> Range {
        Range { from: self.0.clone(), to: self.key(number) }
    }
}

/// What comes after all keys that begin with this, which ends with a slash.
fn after(folder: &str) -> String {
    format!("{}0", &folder[..folder.len() - 1])
}

/// What an access needs, with its marks below `folder`. No round trip beside the caller's own.
///
/// # Errors
/// `InvalidInput` for a token that no store can have given.
pub fn access(folder: &str, token: &Token) -> Result<Access> {
    checked(token)?;
    let number = token.number();
    let of_token = format!("{folder}/{}/", spelled(token));
    let (exclusive, shared) = (Kind(format!("{of_token}w/")), Kind(format!("{of_token}s/")));
    let look = Range { from: of_token.clone(), to: after(&of_token) };
    Ok(if token.mode() == Mode::Exclusive {
        Access {
            empty: vec![exclusive.above(number), shared.above(number)],
            put: exclusive.key(number),
            delete: vec![exclusive.below(number), shared.below(number)],
            look,
            token: token.clone(),
        }
    } else {
        Access {
            empty: vec![exclusive.above(number)],
            put: shared.key(number),
            delete: vec![shared.below(number)],
            look,
            token: token.clone(),
        }
    })
}

impl Access {
    /// Why a transaction did not succeed, from the keys that `look` has found. `None`: not because of the fence, but of another
    /// condition of the caller's own.
    #[must_use]
    pub fn overtaken(&self, keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Option<Overtaken> {
        let mut marks = Marks::default();
        for key in keys {
            let key = std::str::from_utf8(key.as_ref()).unwrap_or_default();
            let mark = key.strip_prefix(&self.look.from).and_then(|rest| rest.split_once('/'));
            match mark.and_then(|(kind, number)| Some((kind, number.parse::<u64>().ok()?))) {
                Some(("w", number)) => marks.exclusive = marks.exclusive.max(number),
                Some(("s", number)) => marks.shared = marks.shared.max(number),
                _ => {}
            }
        }
        marks.accept(&self.token).err()
    }
}
