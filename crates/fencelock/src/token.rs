//! The fencing token: the number that travels with every write, so that the resource can refuse one that comes too late.

use crate::store::Mode;
use std::fmt;
use std::sync::Arc;

/// A fencing token: larger than every earlier one of the same name on the same store.
///
/// Hand it to the resource with each access. A resource that remembers the highest token it has seen refuses a writer that
/// was paused past its lease: see [`fence`](crate::fence). It shows as its number. A semaphore's permit has no token, since
/// permits do not exclude each other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    number: u64,
    mode: Mode,
    name: Arc<str>,
    label: Arc<str>,
}

impl Token {
    /// A token as it came with a request: from a header or an environment. `name` is the lock's name with its namespace,
    /// `label` the store's. A permit's number is no token, so this gives `None` for [`Mode::Permits`].
    #[must_use]
    pub fn from_parts(number: u64, mode: Mode, name: &str, label: &str) -> Option<Token> {
        (mode != Mode::Permits).then(|| Token { number, mode, name: name.into(), label: label.into() })
    }

    pub(crate) fn new(number: u64, mode: Mode, name: Arc<str>, label: Arc<str>) -> Token {
        debug_assert_ne!(mode, Mode::Permits);
        Token { number, mode, name, label }
    }

    /// The number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether it was granted alone or beside other readers.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The lock's name with its namespace, as the store spells it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The store's label. Tokens of different labels cannot be compared.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }
}

impl From<&Token> for u64 {
    fn from(token: &Token) -> u64 {
        token.number
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        token.number
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} {} of {} on {})", self.number, self.mode, self.name, self.label)
    }
}
