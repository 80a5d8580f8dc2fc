//! The register: a value with a version, written only by who has seen the latest one. Sometimes no lock is the right lock.

use crate::beside::Registers;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::locks::Core;
use crate::name::Name;
use crate::store::TicketId;
use std::sync::Arc;
use std::time::Duration;

/// The longest value, in bytes: 1 MiB.
const LONGEST_VALUE: usize = 1 << 20;

/// So often an update is tried before it gives up.
const TRIES: u32 = 100;
/// So often a write without an answer is asked for again.
const ASKED_AGAIN: u32 = 2;
/// The pauses between two tries are random, up to this at first and up to the other in the end.
const SHORT_PAUSE: Duration = Duration::from_micros(200);
const LONG_PAUSE: Duration = Duration::from_millis(50);

/// A version of a register's value. It grows with every write and is never used twice, also after the value was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a register held when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value; `None` where there is none.
    pub value: Option<Vec<u8>>,
    /// Whoever writes next has to name it.
    pub version: Version,
}

/// A value with a version, up to 1 MiB. Made by [`Locks::register`](crate::Locks::register).
///
/// A lock makes others wait; a register makes whoever comes second try again. That is cheaper where two seldom meet, and nothing
/// can be forgotten, since nothing is held.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:register-example").await?;
/// let stock = locks.register("stock/42");
/// stock.set("7").await?;
///
/// // By hand: load, think, write if nobody was faster.
/// let seen = stock.load().await?;
/// assert!(stock.store_if(seen.version, "6").await?.is_some());
/// assert!(stock.store_if(seen.version, "5").await?.is_none());
///
/// // The same with the trying again.
/// let left = stock
///     .update(|value| {
///         let left: u32 = std::str::from_utf8(value?).ok()?.parse().ok()?;
///         left.checked_sub(1).map(|left| left.to_string())
///     })
///     .await?;
/// assert_eq!(left.value.as_deref(), Some(&b"5"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Register {
    core: Arc<Core>,
    name: Arc<Result<Name>>,
}

impl Register {
    pub(crate) fn new(core: Arc<Core>, name: Result<Name>) -> Register {
        Register { core, name: Arc::new(name) }
    }

    /// The value and its version. One round trip.
    ///
    /// # Errors
    /// `Unsupported` where the store keeps no registers, `InvalidName`, or whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn load(&self) -> Result<Versioned> {
        let (name, registers) = self.parts()?;
        let held = registers.load(name).await.map_err(|error| error.named(name.shown()))?;
        Ok(Versioned { value: held.value, version: Version(held.version) })
    }

    /// Writes `value` if the register is still as it was when `version` was loaded. Says the new version, or `None` if somebody
    /// was faster. A register without a value may also say `None` without a reason: load again, then. One round trip.
    ///
    /// # Errors
    /// `InvalidInput` for a value above 1 MiB, and those of [`load`](Register::load). One whose [effect](Error::effect) is unknown may
    /// have been carried out.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write.
    pub async fn store_if(&self, version: Version, value: impl AsRef<[u8]>) -> Result<Option<Version>> {
        self.write(version, Some(value.as_ref())).await
    }

    /// Deletes the value if the register is still as it was when `version` was loaded, and says whether it was. One round trip.
    ///
    /// # Errors
    /// As [`store_if`](Register::store_if).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not delete it.
    pub async fn delete_if(&self, version: Version) -> Result<bool> {
        Ok(self.write(version, None).await?.is_some())
    }

    /// Writes `value`, whatever is there.
    ///
    /// # Errors
    /// As [`update`](Register::update).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write.
    pub async fn set(&self, value: impl AsRef<[u8]>) -> Result<Version> {
        Ok(self.update(|_| Some(value.as_ref())).await?.version)
    }

    /// Changes the value: `change` gets what is there (`None` if nothing) and says what is to be there, or `None` to leave it as it is.
    /// If somebody was faster it is called again with what is there then, up to a hundred times, after short random pauses. Two
    /// round trips where nobody interferes.
    ///
    /// Comes back with what is there now.
    ///
    /// # Errors
    /// `Conflict` if others were faster every time; and those of [`store_if`](Register::store_if).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write, at most once.
    pub async fn update<V: AsRef<[u8]>>(
        &self,
        mut change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Versioned> {
        let mut pause = SHORT_PAUSE;
        for _ in 0..TRIES {
            let seen = self.load().await?;
            let Some(value) = change(seen.value.as_deref()) else { return Ok(seen) };
            let value = value.as_ref();
            if let Some(version) = self.write(seen.version, Some(value)).await? {
                return Ok(Versioned { value: Some(value.to_vec()), version });
            }
            self.pause(&mut pause).await;
        }
        let message = format!("others were faster {TRIES} times in a row");
        Err(self.named(Error::new(ErrorKind::Conflict, message)))
    }

    /// One round trip; more where an answer is missing. A write has an id, so that asking again does not write again.
    async fn write(&self, version: Version, value: Option<&[u8]>) -> Result<Option<Version>> {
        let (name, registers) = self.parts()?;
        if value.is_some_and(|value| value.len() > LONGEST_VALUE) {
            let message = format!("a register's value has at most {LONGEST_VALUE} bytes");
            return Err(self.named(Error::new(ErrorKind::InvalidInput, message)));
        }
        let id = TicketId::new();
        let mut unanswered: Option<Error> = None;
        let mut pause = LONG_PAUSE;
        for again in 0.. {
            match registers.store_if(name, version.0, value, id).await {
                Ok(Some(version)) => return Ok(Some(Version(version))),
                // It may have been ours that somebody has written over since.
                Ok(None) => return unanswered.map_or(Ok(None), |error| Err(self.named(error))),
                Err(error) if error.effect() == Effect::Unknown && again < ASKED_AGAIN => unanswered = Some(error),
                Err(error) if unanswered.is_some() => return Err(self.named(error.effect_unknown())),
                Err(error) => return Err(self.named(error)),
            }
            self.pause(&mut pause).await;
        }
        unreachable!("the last try answers")
    }

    async fn pause(&self, longest: &mut Duration) {
        let clock = &self.core.info.clock;
        clock.sleep_until(clock.now().after(longest.mul_f64(fastrand::f64()))).await;
        *longest = (*longest * 2).min(LONG_PAUSE);
    }

    fn parts(&self) -> Result<(&Name, &Arc<dyn Registers>)> {
        let name = self.name.as_ref().as_ref().map_err(Error::again)?;
        let registers = self.core.beside.need_registers().map_err(|error| error.named(name.shown()))?;
        Ok((name, registers))
    }

    fn named(&self, error: Error) -> Error {
        match &*self.name {
            Ok(name) => error.named(name.shown()),
            Err(_) => error,
        }
    }
}
