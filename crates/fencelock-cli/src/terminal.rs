//! The controlling terminal, and which process group it listens to.

use rustix::fd::OwnedFd;
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Our controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(OwnedFd);

impl Terminal {
    /// `None` where there is none, as under cron.
    pub(crate) fn open() -> Option<Terminal> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal(file.into()))
    }

    /// Whether it listens to this group.
    pub(crate) fn belongs_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0) == Ok(group)
    }

    /// Hands it from our own group to another, only if our own has it. Says whether the other has it now.
    pub(crate) fn give_to(&self, group: Pid) -> bool {
        if self.belongs_to(getpgrp()) {
            let _ = tcsetpgrp(&self.0, group);
        }
        self.belongs_to(group)
    }

    /// Takes it back from a group. Works from the background, since SIGTTOU is blocked.
    pub(crate) fn take_back_from(&self, group: Pid) {
        if self.belongs_to(group) {
            let _ = tcsetpgrp(&self.0, getpgrp());
        }
    }
}
