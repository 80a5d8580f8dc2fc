//! What ends the program early: an exit code of the contract, and one line that says what, why, and what to do.

use fencelock::error::{ordinal, spoken};
use fencelock::name::printable;
use fencelock::{Error, ErrorKind, Seen};

/// Wrong usage: a bad name, duration, URL, option; a store not built in.
pub(crate) const USAGE: u8 = 64;
/// The store cannot be reached, refuses us, or cannot do what was asked.
pub(crate) const STORE: u8 = 69;
/// A bug of ours.
pub(crate) const BUG: u8 = 70;
/// Not acquired.
pub(crate) const HELD: u8 = 75;
/// Lost while the child ran.
pub(crate) const LOST: u8 = 76;

/// One failure.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// One word for machines.
    pub(crate) kind: &'static str,
    /// One line for people; empty when there is nothing to say (a signal ended us).
    pub(crate) message: String,
    /// Who stood in the way.
    pub(crate) holder: Option<Box<Seen>>,
}

impl Failure {
    pub(crate) fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Failure {
        Failure { code, kind, message: message.into(), holder: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, "usage", message)
    }

    pub(crate) fn store(message: impl Into<String>) -> Failure {
        Failure::new(STORE, "unavailable", message)
    }

    pub(crate) fn bug(message: impl Into<String>) -> Failure {
        Failure::new(BUG, "bug", message)
    }

    /// A signal ended us before there was anything to lose.
    pub(crate) fn signal(number: i32) -> Failure {
        Failure::new(u8::try_from(128 + number).unwrap_or(BUG), "signal", "")
    }

    /// What kept a store from being opened. "Unsupported" is a store that was not built in, and so wrong usage.
    pub(crate) fn connecting(error: Error) -> Failure {
        let unsupported = error.kind() == ErrorKind::Unsupported;
        let failure = Failure::from(error);
        if unsupported { Failure { code: USAGE, ..failure } } else { failure }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (code, kind) = match error.kind() {
            ErrorKind::Held => (HELD, "held"),
            ErrorKind::TimedOut => (HELD, "timed_out"),
            ErrorKind::Deadlock => (HELD, "deadlock"),
            ErrorKind::Limited => (HELD, "limited"),
            ErrorKind::Conflict => (HELD, "conflict"),
            ErrorKind::Lost => (LOST, "lost"),
            ErrorKind::Overtaken => (LOST, "overtaken"),
            ErrorKind::InvalidName => (USAGE, "invalid_name"),
            ErrorKind::InvalidInput => (USAGE, "invalid_input"),
            ErrorKind::Mismatch => (STORE, "mismatch"),
            ErrorKind::Unsupported => (STORE, "unsupported"),
            ErrorKind::Unavailable => (STORE, "unavailable"),
            ErrorKind::Denied => (STORE, "denied"),
            ErrorKind::Broken => (STORE, "broken"),
            _ => (BUG, "unknown"),
        };
        let message = match error.kind() {
            ErrorKind::Limited | ErrorKind::Conflict => error.to_string(),
            _ if code == HELD => held_line(&error),
            _ => error.to_string(),
        };
        Failure { code, kind, message, holder: error.holder().cloned().map(Box::new) }
    }
}

/// `nightly is held by web-3 pid 912 ("deploy 88") for 42 s, token 1187, lease ends in 12 s; waited 5 s, 3rd of 7`
fn held_line(error: &Error) -> String {
    let name = printable(error.name().unwrap_or("it"));
    let mut line = match error.holder() {
        Some(holder) => format!("{name} is held by {}", describe(holder)),
        None => format!("{name} is held by somebody else"),
    };
    if let Some(waited) = error.waited_for() {
        line += &format!("; waited {}", spoken(waited));
        if let Some((place, of)) = error.position() {
            line += &format!(", {} of {of}", ordinal(place));
        }
    }
    line
}

/// `web-3 pid 912 ("deploy 88") for 42 s, token 1187, lease ends in 12 s`
pub(crate) fn describe(seen: &Seen) -> String {
    let mut text = format!("{} pid {}", printable(&seen.identity), seen.pid);
    if seen.host != seen.identity {
        text += &format!(" on {}", printable(&seen.host));
    }
    if let Some(reason) = &seen.reason {
        text += &format!(" (\"{}\")", printable(reason));
    }
    if let Some(held) = seen.admitted.or(seen.entered) {
        text += &format!(" for {}", spoken(held));
    }
    if let Some(token) = seen.token {
        text += &format!(", token {token}");
    }
    if let Some(left) = seen.expires_in {
        text += &format!(", lease ends in {}", spoken(left));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock::Mode;
    use std::time::Duration;

    #[test]
    fn the_line_of_the_contract() {
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
        let error = Error::new(ErrorKind::Held, "held").named("nightly").held_by(Some(holder));
        let failure = Failure::from(error);
        assert_eq!(
            failure.message,
            "nightly is held by web-3 pid 912 (\"deploy 88\") for 42 s, token 1187, lease ends in 12 s"
        );
        assert_eq!((failure.code, failure.kind), (75, "held"));
        assert!(failure.holder.is_some());
    }

    #[test]
    fn every_kind_has_its_code() {
        let code = |kind| Failure::from(Error::new(kind, "x")).code;
        assert_eq!(code(ErrorKind::InvalidName), 64);
        assert_eq!(code(ErrorKind::InvalidInput), 64);
        assert_eq!(code(ErrorKind::Unavailable), 69);
        assert_eq!(code(ErrorKind::Denied), 69);
        assert_eq!(code(ErrorKind::Broken), 69);
        assert_eq!(code(ErrorKind::Mismatch), 69);
        assert_eq!(code(ErrorKind::Unsupported), 69);
        assert_eq!(code(ErrorKind::TimedOut), 75);
        assert_eq!(code(ErrorKind::Lost), 76);
        assert_eq!(Failure::connecting(Error::new(ErrorKind::Unsupported, "x")).code, 64);
        assert_eq!(Failure::signal(15).code, 143);
    }
}
