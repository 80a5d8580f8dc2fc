//! What a database must do for session locks: one connection, and what can be said on it.

use crate::error::Result;
use crate::name::Name;
use crate::store::{Enter, Listed, Mode, Place, Scope, Seen};
use std::time::Duration;

/// What the server is asked for.
pub(crate) struct Ask<'a> {
    pub(crate) enter: &'a Enter,
    /// Whether to try, or only to say that the table is behind.
    pub(crate) attempt: bool,
    /// Whether the table is behind even if it is not got.
    pub(crate) stay: bool,
}

/// A ticket that goes.
pub(crate) struct Left<'a> {
    pub(crate) place: &'a Place,
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "MySQL's locks know no readers and have keys of their own")
    )]
    pub(crate) shared: bool,
    /// Whether it has the lock.
    pub(crate) inside: bool,
    /// Whether it has a row.
    pub(crate) row: bool,
}

/// A ticket as the table is to show it.
pub(crate) struct Shown<'a> {
    pub(crate) enter: &'a Enter,
    /// Its number, once it is inside.
    pub(crate) number: Option<u64>,
    /// How long ago that was.
    pub(crate) entered: Duration,
    pub(crate) admitted: Option<Duration>,
}

/// What became of an [`Ask`].
pub(crate) enum Taken {
    Got(u64),
    Not,
    /// Another name of this client has the same key.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "MySQL's locks have keys of their own"))]
    Collision(String),
}

/// What others see, and whether some client has something to tell that is not in the table yet.
pub(crate) struct Look<T> {
    pub(crate) found: T,
    pub(crate) behind: bool,
}

/// A line as the table shows it.
pub(crate) struct Picture {
    /// Of the first ticket; 0 if there is none.
    pub(crate) capacity: u32,
    pub(crate) all: Vec<Seen>,
    /// Another name that is in use and has the same key.
    pub(crate) other: Option<String>,
}

/// One connection, and what can be said on it. An error after which it is no longer open has taken all its locks with it.
///
/// A client that has more to tell than the table shows is *behind*: it holds one more lock of the server, its flag, from the
/// call that made the difference until the table shows everything. Whoever looks reads the flags first and the table after.
pub(crate) trait Driver: Send + 'static {
    /// Opens the connection, if it is not open.
    fn open(&mut self) -> impl Future<Output = Result<()>> + Send;
    fn is_open(&self) -> bool;
    /// Ready when the connection has ended; never, where that is only seen by the next call.
    fn ended(&mut self) -> impl Future<Output = ()> + Send;
    /// Closes it: the server then frees all its locks.
    fn close(&mut self);
    /// Whether our flag is up.
    fn is_behind(&self) -> bool;
    /// Tries for locks, and puts the flag up for whoever got in or stays. One round trip; one more if `ttl` is new. The server
    /// ends the connection when it is silent for `ttl`.
    fn take(&mut self, ttl: Duration, asked: &[Ask<'_>]) -> impl Future<Output = Result<Vec<Taken>>> + Send;
    /// So many new numbers, the lowest first, for locks that this connection has and keeps, for others of its tickets; puts the flag up.
    /// One round trip; one more if `ttl` is new.
    fn pass_on(&mut self, ttl: Duration, count: usize) -> impl Future<Output = Result<Vec<u64>>> + Send;
    /// Whether another client is seen to wait for a name.
    fn is_wanted(&mut self, name: &Name) -> impl Future<Output = Result<bool>> + Send;
    /// Takes rows out, then gives locks back. One round trip; or none, if it goes along with the next call, whatever that is.
    fn put_back(&mut self, left: &[Left<'_>]) -> impl Future<Output = Result<()>> + Send;
    /// Makes sure that what was put back is. One round trip, or none.
    fn settle(&mut self) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
    /// Takes out the rows of those who have `gone`, writes these, and then takes the flag down if that is `all` there is to tell. One
    /// round trip, or two.
    fn show(&mut self, gone: &[Place], shown: &[Shown<'_>], all: bool) -> impl Future<Output = Result<()>> + Send;
    /// Makes a writer a reader, without a moment between.
    fn lower(&mut self, name: &Name) -> impl Future<Output = Result<()>> + Send;
    /// Makes sure that the connection, and so what it holds, is still there.
    fn touch(&mut self, ttl: Duration) -> impl Future<Output = Result<()>> + Send;
    fn inspect(&mut self, name: &Name) -> impl Future<Output = Result<Look<Picture>>> + Send;
    fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Look<Vec<Listed>>>> + Send;
    /// What changes whenever something within a scope does. It need not tell of a ticket that came and went before the table showed
    /// it, but of its number, and for a name whether somebody has it.
    fn marks(&mut self, scopes: &[Scope]) -> impl Future<Output = Result<Vec<String>>> + Send;
}

pub(crate) fn is_shared(enter: &Enter) -> bool {
    enter.kind.mode() == Mode::Shared
}
