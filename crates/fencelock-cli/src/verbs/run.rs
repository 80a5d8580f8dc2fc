//! `run`: hold a lock while a command runs, and stop the command before another may start.

use crate::args::{Lock, Run};
use crate::child::{Change, Child};
use crate::failure::{Failure, LOST};
use crate::held::{self, Taken, Want};
use crate::output::{Event, Output};
use crate::signals::{self, ENDING, Signals};
use crate::store_url::Choice;
use crate::terminal::Terminal;
use crate::watchdog::Watchdog;
use fencelock::error::spoken;
use fencelock::{Released, State};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::time::{Duration, Instant};

const DEFAULT_GRACE: Duration = Duration::from_secs(5);
const STOPPED: &str = "the command was stopped";
const ENDED: &str = "the command had ended by itself";
/// How often a child that has stopped for a terminal we do not have is looked after. A shell that brings us to the
/// foreground tells nobody.
const TERMINAL_TICK: Duration = Duration::from_millis(200);
/// How often we look whether the rest of a stopped group is gone.
const GROUP_TICK: Duration = Duration::from_millis(10);

/// How one time of holding ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The command ended by itself, with this code.
    Ended(u8),
    /// It was lost before, and why.
    Lost(String),
}

pub(crate) async fn run(run: Run, choice: &Choice, mut signals: Signals, output: Output) -> Result<u8, Failure> {
    let grace = grace(&run.lock, output);
    match once(Want::Names(&run.names), &run.lock, grace, &run.command, choice, &mut signals, output).await? {
        Outcome::Ended(code) => Ok(code),
        Outcome::Lost(why) => Err(Failure::new(LOST, "lost", why)),
    }
}

/// Takes what is wanted, runs the command, and lets go.
pub(crate) async fn once(
    want: Want<'_>,
    lock: &Lock,
    grace: Duration,
    command: &[OsString],
    choice: &Choice,
    signals: &mut Signals,
    output: Output,
) -> Result<Outcome, Failure> {
    let taken = held::take(choice, want, lock, signals, output).await?;
    if output.json {
        output.event_on_stderr(&taken.event());
    }
    let clock = taken.locks.info().clock.clone();
    let child = match Child::start(command, &taken, &signals.before, output) {
        Ok(child) => child,
        Err(failure) => {
            taken.release(output).await;
            return Err(failure);
        }
    };
    let watchdog = Watchdog::start(taken.held.clone(), child.group.clone(), clock.clone(), grace);
    let (code, killed) = attend(&child, &taken, signals).await.inspect_err(|_| {
        child.group.signal(Signal::SIGKILL);
    })?;
    // First of all: whatever the clock says later is no loss while the child ran.
    let lost = taken.held.why_lost().await;
    let stopped = watchdog.end();
    if let Some(terminal) = Terminal::open() {
        terminal.take_back_from(child.pid);
    }
    let why = match lost {
        Some(error) => Some(error.to_string()),
        None if stopped.is_some() => Some(about_to_be_lost(&taken, lock, grace)),
        None if taken.is_gone(lock).await => Some(gone(&taken)),
        None => None,
    };
    let lost = match why {
        Some(why) => {
            if let Some(end) = stopped {
                clear_group(&child, end.since(clock.now())).await;
            }
            // Whether the store hears of it is no news any more.
            taken.release(Output { quiet: true, ..output }).await;
            Some(format!("{why}; {}", if killed || stopped.is_some() { STOPPED } else { ENDED }))
        }
        None => {
            let (asked, why) = (lock.min_hold.is_some(), gone(&taken));
            taken.hold_back(lock, signals).await;
            let released = taken.release(output).await;
            // With `--min-hold` it was still there when the command ended.
            (released == Released::AlreadyGone && !asked).then(|| format!("{why}; {ENDED}"))
        }
    };
    if output.json {
        output.event_on_stderr(if lost.is_some() { &Event::Lost } else { &Event::Released });
    }
    Ok(match lost {
        Some(why) => Outcome::Lost(why),
        None => Outcome::Ended(code),
    })
}

/// The watchdog has stopped the child in time.
fn about_to_be_lost(taken: &Taken, lock: &Lock, grace: Duration) -> String {
    match lock.max_hold {
        Some(max) if taken.age() + grace >= max => {
            format!("{}: lost: its longest time ({}) is over", name_of(taken), spoken(max))
        }
        _ => format!("{}: lost: no renewal got through in time", name_of(taken)),
    }
}

fn gone(taken: &Taken) -> String {
    format!("{}: lost: the store says that it was gone before the command had ended", name_of(taken))
}

fn name_of(taken: &Taken) -> String {
    fencelock::name::printable(&taken.spelled)
}

/// At most a third of the lease, so that one lost renewal does not stop the child; and of `--max-hold`.
pub(crate) fn grace(lock: &Lock, output: Output) -> Duration {
    let most = lock.lease.min(lock.max_hold.unwrap_or(Duration::MAX)) / 3;
    if let Some(asked) = lock.grace
        && asked > most
    {
        output.note(&format!(
            "--grace {} is more than a third of the time to be held: cut to {}",
            spoken(asked),
            spoken(most)
        ));
    }
    lock.grace.unwrap_or(DEFAULT_GRACE).min(most)
}

/// Looks after the child until it is gone: hands signals on, and keeps the rules of the terminal. Says its code, and whether
/// it was not allowed to go on after a stop.
async fn attend(child: &Child, taken: &Taken, signals: &mut Signals) -> Result<(u8, bool), Failure> {
    let mut job = Job { child, taken, stopped: false, wants_terminal: false, killed: false };
    loop {
        let signal = tokio::select! {
            signal = signals.next() => Some(signal),
            () = tokio::time::sleep(TERMINAL_TICK), if job.wants_terminal => None,
        };
        match signal {
            Some(Signal::SIGCHLD) => match child.look()? {
                Change::Ended(code) => return Ok((code, job.killed)),
                Change::Stopped(signal) => job.child_stopped(signal),
                Change::None => {}
            },
            Some(Signal::SIGTSTP) => job.suspend(),
            Some(Signal::SIGCONT) if job.stopped => job.resume(),
            Some(signal) if ENDING.contains(&signal) => {
                child.group.signal(signal);
                if job.stopped {
                    // It could not hear it.
                    child.group.signal(Signal::SIGCONT);
                }
            }
            Some(_) => {}
            None => job.offer_terminal(),
        }
    }
}

/// The child as a job of the terminal.
struct Job<'a> {
    child: &'a Child,
    taken: &'a Taken,
    /// As far as we know.
    stopped: bool,
    /// Stopped since it wants the terminal, and our own group does not have it either.
    wants_terminal: bool,
    /// Continued too late.
    killed: bool,
}

impl Job<'_> {
    fn child_stopped(&mut self, signal: i32) {
        self.stopped = true;
        match Signal::try_from(signal) {
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) => {
                self.wants_terminal = true;
                self.offer_terminal();
            }
            Ok(Signal::SIGTSTP) => self.suspend(),
            // A shell that suspends itself leaves the terminal to nobody. A child that was stopped from elsewhere is no
            // reason to stop: we go on holding the lock for it.
            _ if Terminal::open().is_some_and(|terminal| terminal.belongs_to(self.child.pid)) => self.suspend(),
            _ => {}
        }
    }

    fn offer_terminal(&mut self) {
        let Some(terminal) = Terminal::open() else {
            self.wants_terminal = false;
            return;
        };
        if terminal.give_to(self.child.pid) {
            self.wants_terminal = false;
            self.stopped = false;
            self.child.group.signal(Signal::SIGCONT);
        }
    }

    /// `Ctrl-Z`, to us or to the child: the group is stopped first, the terminal given back, then we stop.
    fn suspend(&mut self) {
        self.child.group.signal(Signal::SIGSTOP);
        self.stopped = true;
        if let Some(terminal) = Terminal::open() {
            terminal.take_back_from(self.child.pid);
        }
        signals::stop_ourselves();
        self.resume();
    }

    /// Continued: the deadline is looked at before the group goes on.
    fn resume(&mut self) {
        if self.taken.held.state() == State::Lost {
            self.killed = self.child.group.signal(Signal::SIGKILL);
            return;
        }
        self.stopped = false;
        self.wants_terminal = false;
        self.child.group.signal(Signal::SIGCONT);
    }
}

/// After a loss, whoever is left in the child's group gets the rest of the grace and is then killed.
async fn clear_group(child: &Child, rest: Duration) {
    let end = Instant::now() + rest;
    while child.leaves_others() {
        if Instant::now() >= end {
            child.kill_others();
            return;
        }
        tokio::time::sleep(GROUP_TICK).await;
    }
}
