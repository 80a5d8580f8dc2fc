//! The fence on a Redis server of the caller's own: a check at the head of a script that does the write, so that both come
//! about in one step.
//!
//! The marks are fields of a hash that the caller names, one for each name and label. It must be in the slot of the caller's
//! keys on a cluster, must not expire, and must not be evicted: a fence that forgets lets everybody in.
//!
//! ```no_run
//! # async fn f(connection: &mut fencelock::redis::aio::MultiplexedConnection, guard: &fencelock::MutexGuard) -> fencelock::Result<()> {
//! use fencelock::fence::redis::FencedScript;
//!
//! // KEYS and ARGV are the script's own.
//! let sell = FencedScript::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
//! let left: i64 = sell.call(connection, "stock:marks", &guard.token(), &["stock:42"], &["1"]).await?;
//! # Ok(())
//! # }
//! ```

use super::{Overtaken, checked};
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;
use redis::aio::ConnectionLike;
use redis::{FromRedisValue, RedisError, Script, ToRedisArgs};

/// What stands at the head of every fenced script, for those who send scripts in another way: its keys and arguments are those
/// of [`arguments`], before the script's own.
pub const LUA: &str = include_str!("redis/fence.lua");

/// The arguments that come before the script's own: the field of the marks, the token, its mode.
///
/// # Errors
/// `InvalidInput` for a token that no store can have given.
pub fn arguments(token: &Token) -> Result<[String; 3]> {
    let number = checked(token)?;
    // Neither has a space in it.
    Ok([format!("{} {}", token.label(), token.name()), format!("{number:020}"), token.mode().as_str().to_string()])
}

/// A script that runs only if the fence accepts the access.
#[derive(Clone, Debug)]
pub struct FencedScript(Script);

impl FencedScript {
    /// The fence, and then this. `KEYS` and `ARGV` are what is given to [`call`](FencedScript::call).
    #[must_use]
    pub fn new(lua: &str) -> FencedScript {
        FencedScript(Script::new(&format!("{LUA}{lua}")))
    }

    /// Runs it as one step on the server; `marks` is the hash of the marks. One round trip; one more where the server does not
    /// know the script yet.
    ///
    /// # Errors
    /// `Overtaken`: nothing was written. `InvalidInput` for a token that no store can have given. Whatever keeps the server
    /// from answering, with unknown effect; and what the script itself has raised, after which the marks have moved.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not run it.
    pub async fn call<T: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        marks: &str,
        token: &Token,
        keys: &[impl ToRedisArgs],
        args: &[impl ToRedisArgs],
    ) -> Result<T> {
        let mut script = self.0.prepare_invoke();
        script.key(marks);
        for key in keys {
            script.key(key);
        }
        for arg in arguments(token)? {
            script.arg(arg);
        }
        for arg in args {
            script.arg(arg);
        }
        script.invoke_async(connection).await.map_err(|error| said(token, error))
    }
}

/// Accepts an access and remembers it, or refuses it because a later grant has been here. Between the answer and a write of its
/// own somebody else may be accepted: a [`FencedScript`] does both in one step.
///
/// # Errors
/// Those of [`FencedScript::call`].
///
/// # Cancel safety
/// Dropping the future may or may not move the marks.
pub async fn accept(connection: &mut impl ConnectionLike, marks: &str, token: &Token) -> Result<()> {
    let none: [&str; 0] = [];
    FencedScript::new("return 1").call::<()>(connection, marks, token, &none, &none).await
}

fn said(token: &Token, error: RedisError) -> Error {
    let words = format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let mut words = words.split(' ').skip_while(|word| *word != "OVERTAKEN");
    match words.nth(1).and_then(|by| by.parse().ok()) {
        Some(by) => Overtaken { token: token.number(), by }.into(),
        None => Error::new(ErrorKind::Unavailable, "the fence could not be asked").effect_unknown().caused_by(error),
    }
}
