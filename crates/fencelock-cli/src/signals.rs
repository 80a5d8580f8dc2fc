//! Signals as events: blocked everywhere, taken by one thread that waits for them, told through a channel. No handler runs
//! anywhere, so nothing has to be careful about what a handler may do.

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Signals that end us, or are handed on to the child.
pub(crate) const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// Those of job control and children.
const JOBS: [Signal; 3] = [Signal::SIGCHLD, Signal::SIGTSTP, Signal::SIGCONT];
/// Blocked and never taken: a process that blocks them may write to its terminal and hand it on from the background.
const TERMINAL: [Signal; 2] = [Signal::SIGTTIN, Signal::SIGTTOU];

/// The stream of signals.
#[derive(Debug)]
pub(crate) struct Signals {
    receiver: UnboundedReceiver<Signal>,
    /// The mask that we were started with, for the child.
    pub(crate) before: SigSet,
}

impl Signals {
    /// Takes the ending ones only. To be called before any other thread is started: threads inherit the mask.
    pub(crate) fn ending() -> Signals {
        Signals::take(&ENDING, &[])
    }

    /// Takes the ending ones, and those of job control and children.
    pub(crate) fn all() -> Signals {
        Signals::take(&[&ENDING[..], &JOBS[..]].concat(), &TERMINAL)
    }

    fn take(wanted: &[Signal], blocked: &[Signal]) -> Signals {
        // Under `nohup` a hang-up stays ignored; the child inherits that. The others are taken although a shell makes its
        // background jobs ignore some of them: whoever sends them by hand means us.
        let nohup = ignores(Signal::SIGHUP);
        let wanted: SigSet = wanted.iter().copied().filter(|signal| !(nohup && *signal == Signal::SIGHUP)).collect();
        let mut mask = wanted;
        blocked.iter().for_each(|signal| mask.add(*signal));
        let before = mask.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK).expect("a valid way to block");
        let (sender, receiver) = unbounded_channel();
        std::thread::Builder::new()
            .name("signals".into())
            .stack_size(64 * 1024)
            .spawn(move || while wanted.wait().is_ok_and(|signal| sender.send(signal).is_ok()) {})
            .expect("the system can start one more thread");
        Signals { receiver, before }
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            // The thread ends only with the process.
            None => std::future::pending().await,
        }
    }

    /// The next signal that ends us. A stop is carried out on the way: `Ctrl-Z` while we wait for our turn.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGTSTP => stop_ourselves(),
                signal if ENDING.contains(&signal) => return signal,
                _ => {}
            }
        }
    }
}

/// Stops this process as `Ctrl-Z` would have, and comes back when it is continued; at once where nobody could continue us
/// (the kernel then drops the signal).
pub(crate) fn stop_ourselves() {
    let stop = SigSet::from(Signal::SIGTSTP);
    let _ = stop.thread_unblock();
    let _ = nix::sys::signal::raise(Signal::SIGTSTP);
    let _ = stop.thread_block();
}

/// Whether we were started to ignore a signal, where the system tells.
fn ignores(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal as i32 - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_ignored_is_seen() {
        // Rust programs ignore SIGPIPE from the start; nobody ignores SIGUSR1 for a test.
        assert!(ignores(Signal::SIGPIPE));
        assert!(!ignores(Signal::SIGUSR1));
    }
}
