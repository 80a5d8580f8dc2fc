//! What a database must do for session locks: one connection, and what can be said on it.

use crate::error::Result;
use crate::name::Name;
use crate::store::{Enter, Listed, Mode, Note, Place, Scope, Seen};
use std::time::Duration;

/// What the server is asked for.
pub(crate) struct Ask<'a> {
    pub(crate) enter: &'a Enter,
    /// Whether to try, or only to say that it waits.
    pub(crate) attempt: bool,
    /// Whether to say that it waits, if it does not get in.
    pub(crate) stay: bool,
}

impl Ask<'_> {
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "MySQL's locks know no readers and have keys of their own")
    )]
    pub(crate) fn shared(&self) -> bool {
        is_shared(self.enter)
    }
}

/// A ticket that goes.
pub(crate) struct Left<'a> {
    pub(crate) place: &'a Place,
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "MySQL's locks know no readers and have keys of their own")
    )]
    pub(crate) shared: bool,
    pub(crate) inside: bool,
}

/// What became of an [`Ask`].
pub(crate) enum Taken {
    Got(u64),
    Not,
    /// The name is in use with this capacity.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code, reason = "PostgreSQL keeps no permits"))]
    Mismatch(u32),
    /// Another name has the same key.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "MySQL's locks know no readers and have keys of their own")
    )]
    Collision(String),
}

/// One connection, and what can be said on it. An error after which it is no longer open has taken all its locks with it.
pub(crate) trait Driver: Send + 'static {
    /// Opens the connection, if it is not open.
    fn open(&mut self) -> impl Future<Output = Result<()>> + Send;
    fn is_open(&self) -> bool;
    /// Ready when the connection has ended; never, where that is only seen by the next call.
    fn ended(&mut self) -> impl Future<Output = ()> + Send;
    /// Closes it: the server then frees all its locks.
    fn close(&mut self);
    /// One round trip: the server ends the connection when it is silent for `ttl`.
    fn take(&mut self, ttl: Duration, asked: &[Ask<'_>]) -> impl Future<Output = Result<Vec<Taken>>> + Send;
    fn put_back(&mut self, left: &[Left<'_>]) -> impl Future<Output = Result<()>> + Send;
    /// Makes sure that the connection, and so what it holds, is still there.
    fn touch(&mut self, ttl: Duration) -> impl Future<Output = Result<()>> + Send;
    fn say(&mut self, place: &Place, to_shared: bool, note: Option<&Note>) -> impl Future<Output = Result<()>> + Send;
    fn inspect(&mut self, name: &Name) -> impl Future<Output = Result<(u32, Vec<Seen>)>> + Send;
    fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Listed>>> + Send;
    fn marks(&mut self, scopes: &[Scope]) -> impl Future<Output = Result<Vec<String>>> + Send;
}

pub(super) fn is_shared(enter: &Enter) -> bool {
    enter.kind.mode() == Mode::Shared
}
