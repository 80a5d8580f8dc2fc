//! `hold`: hold a lock until a signal, or the end of stdin.

use crate::args::Hold;
use crate::failure::{Failure, LOST};
use crate::held::{self, Want};
use crate::output::{self, Event, Output};
use crate::signals::Signals;
use crate::store_url::Choice;
use fencelock::Released;
use fencelock::name::printable;
use std::io::Read;

pub(crate) async fn run(hold: Hold, choice: &Choice, mut signals: Signals, output: Output) -> Result<u8, Failure> {
    let taken =
        held::take(choice, Want::Names(std::slice::from_ref(&hold.name)), &hold.lock, &mut signals, output).await?;
    if output.json {
        output.event_on_stdout(&taken.event());
    } else {
        output::data_if_wanted(&format!("{}\n", taken.held.tokens()));
    }
    tokio::select! {
        _ = signals.next_ending() => {}
        () = end_of_stdin(), if hold.until_eof => {}
        () = taken.held.lost() => {}
    }
    if taken.held.why_lost().await.is_none() {
        taken.hold_back(&hold.lock, &mut signals).await;
    }
    let lost = taken.held.why_lost().await;
    let gone =
        format!("{}: lost: the store says that it was gone when it was to be released", printable(&taken.spelled));
    let quiet = lost.is_some() || output.quiet;
    let released = taken.release(Output { quiet, ..output }).await;
    let lost = match lost {
        Some(error) => Some(Failure::from(error)),
        None if released == Released::AlreadyGone => Some(Failure::new(LOST, "lost", gone)),
        None => None,
    };
    if output.json {
        output.event_on_stdout(if lost.is_some() { &Event::Lost } else { &Event::Released });
    }
    match lost {
        Some(failure) => Err(failure),
        None => Ok(0),
    }
}

/// Reads on a thread of its own: stdin may be anything, also something that cannot be asked whether it has more.
async fn end_of_stdin() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut stdin = std::io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => break,
                _ => {}
            }
        }
        let _ = sender.send(());
    });
    let _ = receiver.await;
}
