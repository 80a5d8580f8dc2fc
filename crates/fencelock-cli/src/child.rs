//! The child process: how it is started, signalled and waited for.
//!
//! It is started through ourselves ([`exec`]): between fork and exec nothing but our own, safe code runs, in a process of its
//! own, which asks for the parent-death signal and then becomes the command. The signal follows the *thread* that started
//! the child, so that is the main thread, which lives as long as we do.

use crate::failure::Failure;
use crate::held::Taken;
use crate::output::Output;
use nix::sys::signal::{SigSet, Signal, killpg};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The hidden verb that becomes the command.
pub(crate) const EXEC: &str = "__exec";

/// The child's process group, for as long as it may be signalled.
///
/// The lock is held while signalling and while the child is reaped: a number that was given back to the system could be
/// somebody else's by the time a signal is sent.
#[derive(Clone, Debug)]
pub(crate) struct Group(Arc<Mutex<Option<Pid>>>);

impl Group {
    /// Sends a signal to all of it. `false` if the child is gone.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let group = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        group.is_some_and(|group| killpg(raw(group), signal).is_ok())
    }

    /// Whether the child is there still.
    pub(crate) fn is_there(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

fn raw(pid: Pid) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get())
}

/// What became of the child since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// It has stopped.
    Stopped(i32),
    /// It is gone; what our own exit code is to be.
    Ended(u8),
}

/// A child that was started.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) group: Group,
}

impl Child {
    /// Starts the command in a group of its own. It learns of the lock by its environment.
    pub(crate) fn start(
        command: &[OsString],
        taken: &Taken,
        before: &SigSet,
        output: Output,
    ) -> Result<Child, Failure> {
        let here = if cfg!(target_os = "linux") {
            // Also right when the program's file was replaced in the meantime.
            OsString::from("/proc/self/exe")
        } else {
            std::env::current_exe().map_err(|error| Failure::new(126, "start", cannot("fencelock", &error)))?.into()
        };
        let mut start = Command::new(here);
        start.arg0("fencelock").arg(EXEC);
        start.arg(std::process::id().to_string()).arg(mask_to_text(before)).arg(if output.json {
            "json"
        } else {
            "text"
        });
        start.args(command).process_group(0);
        start.env("FENCELOCK_NAME", &taken.spelled);
        start.env("FENCELOCK_TOKEN", taken.held.tokens());
        start.env("FENCELOCK_MODE", taken.for_each_name(taken.held.mode().as_str()));
        start.env("FENCELOCK_LABEL", taken.for_each_name(&taken.locks.info().label));
        start.env("FENCELOCK_HELD", &taken.nesting);
        let child = start.spawn().map_err(|error| Failure::new(126, "start", cannot("fencelock", &error)))?;
        let pid = Pid::from_child(&child);
        Ok(Child { pid, group: Group(Arc::new(Mutex::new(Some(pid)))) })
    }

    /// Looks without waiting. After `Ended`, the group is not signalled any more.
    pub(crate) fn look(&self) -> Result<Change, Failure> {
        let failed = |error| Failure::bug(format!("the child cannot be waited for: {error}"));
        // Seen, not yet reaped: its number is still its own.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::Pid(self.pid), ended).map_err(failed)?.is_some() {
            let mut group = self.group.0.lock().unwrap_or_else(PoisonError::into_inner);
            *group = None;
            let (_, status) =
                waitpid(Some(self.pid), WaitOptions::empty()).map_err(failed)?.unwrap_or_else(|| unreachable!());
            let code = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => code,
                (None, Some(signal)) => 128 + signal,
                (None, None) => return Err(Failure::bug("the child ended in an unknown way")),
            };
            return Ok(Change::Ended(u8::try_from(code).unwrap_or(u8::MAX)));
        }
        let stopped = waitid(WaitId::Pid(self.pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).map_err(failed)?;
        Ok(match stopped.and_then(|status| status.stopping_signal()) {
            Some(signal) => Change::Stopped(signal),
            None => Change::None,
        })
    }

    /// Whether anybody is left in the group of a child that is gone. The number stays taken for as long as somebody is.
    pub(crate) fn leaves_others(&self) -> bool {
        killpg(raw(self.pid), None).is_ok()
    }

    /// Ends whoever is left in the group of a child that is gone.
    pub(crate) fn kill_others(&self) {
        let _ = killpg(raw(self.pid), Signal::SIGKILL);
    }
}

/// `__exec PARENT MASK json|text CMD ARGS...`: becomes the command. Comes back only with the exit code of a failure.
pub(crate) fn exec(mut args: impl Iterator<Item = OsString>) -> u8 {
    let mut text = || args.next().and_then(|arg| arg.into_string().ok()).unwrap_or_default();
    let (parent, mask, json) = (text(), text(), text() == "json");
    let output = Output { json, quiet: false };
    let Some(command) = args.next() else {
        output.failure(&Failure::usage("fencelock __exec is not meant to be called"));
        return crate::failure::USAGE;
    };
    die_with(&parent);
    let _ = text_to_mask(&mask).thread_set_mask();
    let failure = become_command(&command, args);
    output.failure(&failure);
    failure.code
}

/// This process becomes the command. Comes back only if it cannot.
pub(crate) fn become_command(command: &OsStr, args: impl Iterator<Item = OsString>) -> Failure {
    let error = Command::new(command).args(args).exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Failure::new(code, "start", cannot(command, &error))
}

/// From now on the kernel kills us when our parent dies; and so do we if it has died before.
#[cfg(target_os = "linux")]
fn die_with(parent: &str) {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if now.as_deref() != Some(parent) {
        std::process::exit(i32::from(crate::failure::LOST));
    }
}

/// There is no such signal elsewhere: the child outlives us there.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: &str) {}

fn cannot(command: impl AsRef<OsStr>, error: &std::io::Error) -> String {
    let command = fencelock::name::printable(&command.as_ref().to_string_lossy());
    match error.kind() {
        std::io::ErrorKind::NotFound => format!("{command} cannot be started: no such command"),
        _ => format!("{command} cannot be started: {error}"),
    }
}

/// Signal numbers, joined by commas.
fn mask_to_text(mask: &SigSet) -> String {
    mask.iter().map(|signal| (signal as i32).to_string()).collect::<Vec<_>>().join(",")
}

fn text_to_mask(text: &str) -> SigSet {
    text.split(',').filter_map(|number| Signal::try_from(number.parse::<i32>().ok()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_survives_the_way() {
        let mask: SigSet = [Signal::SIGINT, Signal::SIGUSR2].into_iter().collect();
        assert_eq!(mask_to_text(&mask), "2,12");
        assert_eq!(text_to_mask("2,12"), mask);
        assert_eq!(text_to_mask(""), SigSet::empty());
    }
}
