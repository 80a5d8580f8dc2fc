//! The one error type: what happened, whether it may have had an effect, who stands in the way, and what to do.

use crate::store::Seen;
use std::fmt;
use std::time::Duration;

/// A result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else holds it, and the caller did not want to wait.
    Held,
    /// The wait ended before our turn came.
    TimedOut,
    /// It was ours and is no longer.
    Lost,
    /// The access came too late: a later grant has been at the resource. What a [fence](crate::fence) says.
    Overtaken,
    /// Waiting would never end: the caller holds what it would wait for.
    Deadlock,
    /// A limiter does not let it through now: see [`Error::retry_after`].
    Limited,
    /// Others have written in between, again and again.
    Conflict,
    /// The name is in use as another kind of lock, or as a semaphore of another size.
    Mismatch,
    /// The name or namespace cannot be used.
    InvalidName,
    /// An option, a duration or a URL makes no sense.
    InvalidInput,
    /// The store, or this build, cannot do what was asked.
    Unsupported,
    /// The store cannot be reached, or did not answer in time.
    Unavailable,
    /// The store refused us.
    Denied,
    /// The store answered something that it must not: damaged data, an unknown layout, a bug.
    Broken,
}

/// Whether a failed call may have changed something in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It certainly changed nothing.
    None,
    /// It may or may not have been carried out, now or later.
    Unknown,
}

/// What went wrong, with the facts that help: see [`kind`](Error::kind), [`holder`](Error::holder), and its `Display`.
pub struct Error(Box<Facts>);

struct Facts {
    kind: ErrorKind,
    effect: Effect,
    name: Option<String>,
    message: String,
    holder: Option<Seen>,
    waited: Option<Duration>,
    position: Option<(usize, usize)>,
    retry_after: Option<Duration>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind that certainly had no effect. The message is one clause without a full stop.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Facts {
            kind,
            effect: Effect::None,
            name: None,
            message: message.into(),
            holder: None,
            waited: None,
            position: None,
            retry_after: None,
            source: None,
        }))
    }

    /// A store that could not be reached or did not answer, so that the effect is unknown.
    #[must_use]
    pub fn unknown(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unavailable, message).effect_unknown()
    }

    /// A line that is in use with another capacity than was asked for.
    #[must_use]
    pub fn mismatch(name: &str, asked: u32, there: u32) -> Error {
        let kind = |capacity: u32| match capacity {
            crate::line::WHOLE => "a mutex or read-write lock".to_string(),
            n => format!("a semaphore of {n}"),
        };
        let message = format!("asked for {} while it is in use as {}", kind(asked), kind(there));
        Error::new(ErrorKind::Mismatch, message).named(name)
    }

    /// The same, with the effect unknown.
    #[must_use]
    pub fn effect_unknown(mut self) -> Error {
        self.0.effect = Effect::Unknown;
        self
    }

    /// The same, with the lock's name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Error {
        self.0.name = Some(name.into());
        self
    }

    /// The same, with who stands in the way.
    #[must_use]
    pub fn held_by(mut self, holder: Option<Seen>) -> Error {
        self.0.holder = holder;
        self
    }

    pub(crate) fn waited(mut self, waited: Duration, position: Option<(usize, usize)>) -> Error {
        self.0.waited = Some(waited);
        self.0.position = position;
        self
    }

    pub(crate) fn retry_in(mut self, after: Duration) -> Error {
        self.0.retry_after = Some(after);
        self
    }

    /// The same, with what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the failed call may have changed something in the store. The library cleans up after itself either way.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// The name it is about, if it is about one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Who stood in the way, as far as the store could say.
    #[must_use]
    pub fn holder(&self) -> Option<&Seen> {
        self.0.holder.as_ref()
    }

    /// How long the caller had waited.
    #[must_use]
    pub fn waited_for(&self) -> Option<Duration> {
        self.0.waited
    }

    /// The caller's place in the queue when it gave up and the queue's length: `(3, 7)` is third of seven.
    #[must_use]
    pub fn position(&self) -> Option<(usize, usize)> {
        self.0.position
    }

    /// When a limiter would let it through if nobody else came.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// What happened, without name, holder and cause.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether trying again may help without anybody doing anything about it.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Held | ErrorKind::TimedOut | ErrorKind::Limited | ErrorKind::Conflict | ErrorKind::Unavailable
        )
    }

    /// A second error with the same facts, for a second caller who waited for the same thing.
    pub(crate) fn again(&self) -> Error {
        let facts = &*self.0;
        Error(Box::new(Facts {
            kind: facts.kind,
            effect: facts.effect,
            name: facts.name.clone(),
            message: facts.message.clone(),
            holder: facts.holder.clone(),
            waited: facts.waited,
            position: facts.position,
            retry_after: facts.retry_after,
            source: facts.source.as_ref().map(|source| source.to_string().into()),
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = &*self.0;
        if let Some(name) = &facts.name {
            write!(f, "{}: ", crate::name::printable(name))?;
        }
        f.write_str(&facts.message)?;
        if let Some(holder) = &facts.holder {
            write!(f, ": {holder}")?;
        }
        if let Some((place, of)) = facts.position {
            write!(f, "; you were {} of {of}", ordinal(place))?;
        }
        if let Some(source) = &facts.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (effect {:?}): {self}", self.0.kind, self.0.effect)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

/// `1st`, `2nd`, `3rd`, `4th`, `11th`, `21st`.
#[must_use]
pub fn ordinal(n: usize) -> String {
    let ending = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

/// A duration for people: `250 ms`, `1.5 s`, `42 s`, `5 min 3 s`, `2 h 5 min`.
#[must_use]
pub fn spoken(duration: Duration) -> String {
    let millis = duration.as_millis();
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{millis} ms"),
        1..10 if millis % 1000 >= 100 => format!("{}.{} s", seconds, millis % 1000 / 100),
        1..120 => format!("{seconds} s"),
        120..7200 if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ if seconds % 3600 < 60 => format!("{} h", seconds / 3600),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Mode, Seen};

    #[test]
    fn an_error_says_who_and_where() {
        let holder = Seen {
            token: Some(1187),
            mode: Mode::Exclusive,
            weight: 1 << 20,
            host: "web-3".into(),
            pid: 912,
            identity: "web-3".into(),
            owner: "a1".into(),
            reason: Some("deploy 88".into()),
            value: None,
            entered: Some(Duration::from_secs(50)),
            admitted: Some(Duration::from_secs(42)),
            expires_in: Some(Duration::from_secs(12)),
        };
        let error = Error::new(ErrorKind::TimedOut, "timed out after 5 s")
            .named("nightly")
            .held_by(Some(holder))
            .waited(Duration::from_secs(5), Some((3, 7)));
        assert_eq!(
            error.to_string(),
            "nightly: timed out after 5 s: held for 42 s by web-3 pid 912 (deploy 88), token 1187, lease ends in 12 s; you were 3rd of 7"
        );
        assert_eq!(error.again().to_string(), error.to_string());
    }

    #[test]
    fn durations_are_spoken() {
        for (millis, text) in [
            (0, "0 ms"),
            (250, "250 ms"),
            (1000, "1 s"),
            (1500, "1.5 s"),
            (42_000, "42 s"),
            (303_000, "5 min 3 s"),
            (300_000, "5 min"),
            (7_200_000, "2 h"),
            (7_500_000, "2 h 5 min"),
        ] {
            assert_eq!(spoken(Duration::from_millis(millis)), text);
        }
        assert_eq!(
            ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "113th"].map(String::from),
            [1, 2, 3, 4, 11, 12, 21, 113].map(ordinal)
        );
    }
}
