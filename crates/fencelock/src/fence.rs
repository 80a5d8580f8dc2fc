//! The fence: what a resource remembers, so that an access that was overtaken is refused. Pure, like [the line](crate::line).
//!
//! A resource keeps **two marks** per name and store label: the highest exclusive token it has accepted, and the highest
//! shared one. With a single mark, a paused writer 5 would wake up and write under live reader 6, or readers would refuse
//! each other. With two, over all histories of up to four tickets (`fence/tests.rs`): no access is accepted after a
//! conflicting access of a later grant was, and no rightful holder is ever refused.
//!
//! A token that nobody checks protects nothing. The same rule, where resources live:
//!
//! | resource | checker | what makes the check and the write one step |
//! |---|---|---|
//! | in this process | [`Gate`] | its pass, held during the access |
//! | SQLite | `fence::sqlite` (feature `sqlite`) | the caller's transaction |
//! | PostgreSQL, MySQL, MariaDB | `fencelock::sql::fence_in` (features `postgres`, `mysql`), beside the store's own tables | the caller's transaction |
//! | the same, and SQLite | [`sql`]: text and parameters for any driver, without a store | the caller's transaction |
//! | Redis | `fence::redis` (feature `redis`) | one script |
//! | ZooKeeper | `fence::zookeeper` (feature `zookeeper`) | the caller's transaction |
//! | HTTP | `fence::tower` (feature `tower`); [`header`] for others | the gate's pass |
//!
//! All of them take a [`Token`], which a semaphore's permit does not have, and keep their marks by name and store label.

use crate::error::{Error, ErrorKind, Result};
use crate::store::Mode;
use crate::token::Token;

mod gate;
pub mod header;
#[cfg(feature = "redis")]
pub mod redis;
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use gate::{Gate, Pass};

/// The longest name or label that a checker keeps marks for, in bytes. No store of ours gives a longer one.
const LONGEST: usize = 255;

/// What every checker that keeps its marks elsewhere asks first: could a store have given this token? A name or label that is
/// cut, folded or padded on its way would share the marks of another. Gives the number as databases count.
pub(crate) fn checked(token: &Token) -> Result<i64> {
    let fits = |text: &str| (1..=LONGEST).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    match i64::try_from(token.number()) {
        Ok(number) if number > 0 && fits(token.name()) && fits(token.label()) => Ok(number),
        _ => Err(Error::new(ErrorKind::InvalidInput, "not a token that a store has given")),
    }
}

/// The two marks of one name: see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Marks {
    /// The highest exclusive token accepted.
    pub exclusive: u64,
    /// The highest shared token accepted.
    pub shared: u64,
}

impl Marks {
    /// Accepts an access and remembers it, or refuses it because a later grant has been here.
    ///
    /// ```
    /// use fencelock::{Token, fence::Marks, store::Mode};
    /// let token = |n, mode| Token::from_parts(n, mode, "stock/42", "redis").unwrap();
    ///
    /// let mut marks = Marks::default();
    /// assert!(marks.accept(&token(34, Mode::Exclusive)).is_ok());
    /// assert!(marks.accept(&token(33, Mode::Exclusive)).is_err(), "33 was paused and comes after 34");
    /// assert!(marks.accept(&token(36, Mode::Shared)).is_ok());
    /// assert!(marks.accept(&token(35, Mode::Shared)).is_ok(), "readers do not refuse each other");
    /// assert!(marks.accept(&token(34, Mode::Exclusive)).is_err(), "a reader has come since");
    /// ```
    ///
    /// # Errors
    /// [`Overtaken`], with the mark that stood in the way.
    pub fn accept(&mut self, token: &Token) -> std::result::Result<(), Overtaken> {
        self.judge(token.number(), token.mode() == Mode::Exclusive)
    }

    fn judge(&mut self, number: u64, exclusive: bool) -> std::result::Result<(), Overtaken> {
        let by = if exclusive { self.exclusive.max(self.shared) } else { self.exclusive };
        if number < by {
            return Err(Overtaken { token: number, by });
        }
        let mark = if exclusive { &mut self.exclusive } else { &mut self.shared };
        *mark = number.max(*mark);
        Ok(())
    }
}

/// The access came too late: a later grant has been at the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken {
    /// The token that was refused.
    pub token: u64,
    /// The later token that has been accepted before.
    pub by: u64,
}

impl std::fmt::Display for Overtaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "token {} was overtaken by token {}: the lock was lost before this access", self.token, self.by)
    }
}

impl std::error::Error for Overtaken {}

impl From<Overtaken> for Error {
    fn from(overtaken: Overtaken) -> Error {
        Error::new(ErrorKind::Overtaken, overtaken.to_string())
    }
}

#[cfg(test)]
mod tests;
