//! What is said and where: data to stdout, words to stderr, both as JSON where that was asked for.

use crate::args::Global;
use crate::failure::Failure;
use crate::json::Ticket;
use fencelock::name::printable;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// How to speak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

/// What is told while a lock is taken, held and let go.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event<'a> {
    Acquired { name: String, token: String, waited_ms: u64 },
    Granted { name: &'a str, waited_ms: u64 },
    Lost,
    Released,
    Broken { name: &'a str, token: String },
    Migrated { from: Option<i64>, to: i64 },
    Error { kind: &'a str, message: &'a str, holder: Option<Ticket<'a>> },
    Log { level: &'a str, message: &'a str },
}

impl Output {
    pub(crate) fn new(global: &Global) -> Output {
        Output { json: global.json, quiet: global.quiet }
    }

    /// Before the arguments have been understood: looks for `--json` by hand, up to `--`.
    pub(crate) fn guess() -> Output {
        let before_command = std::env::args_os().skip(1).take_while(|arg| arg != "--");
        Output { json: before_command.into_iter().any(|arg| arg == "--json"), quiet: false }
    }

    /// One failure, one line.
    pub(crate) fn failure(self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        let message = printable(&failure.message);
        if self.json {
            let holder = failure.holder.as_deref().map(Ticket::from);
            self.event_on_stderr(&Event::Error { kind: failure.kind, message: &message, holder });
        } else if colourful() {
            words(&format!("\x1b[1;31mfencelock:\x1b[0m {message}\n"));
        } else {
            words(&format!("fencelock: {message}\n"));
        }
    }

    /// Something worth a line that is no failure.
    pub(crate) fn note(self, message: &str) {
        if self.quiet {
            return;
        }
        if self.json {
            self.event_on_stderr(&Event::Log { level: "info", message });
        } else {
            words(&format!("fencelock: {message}\n"));
        }
    }

    /// An event among the words: what `run` tells with `--json`.
    pub(crate) fn event_on_stderr(self, event: &Event<'_>) {
        words(&(to_json(event) + "\n"));
    }

    /// An event as data: what `hold` tells with `--json`.
    pub(crate) fn event_on_stdout(self, event: &Event<'_>) {
        data_if_wanted(&(to_json(event) + "\n"));
    }
}

/// One line of JSON.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("our own types have no maps with odd keys")
}

/// Data, at once. A reader that has gone away is no failure: it has seen what it wanted.
pub(crate) fn data(text: &str) {
    if !data_if_wanted(text) {
        std::process::exit(0);
    }
}

/// The same for whoever holds a lock and has to let go of it first. Says whether it was taken.
pub(crate) fn data_if_wanted(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// Words. Nobody can be told if they cannot be written.
pub(crate) fn words(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Whether stderr is a terminal that takes control sequences.
pub(crate) fn on_terminal() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn colourful() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && on_terminal()
}
