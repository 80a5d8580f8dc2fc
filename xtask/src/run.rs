//! Running a program and reading what it says, line by line in the order in which it was said, at most for so long.

use crate::Result;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long output may still trickle in from processes that a program left behind.
const AFTERMATH: Duration = Duration::from_secs(2);

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With code 0.
    Well,
    /// In another way of its own, in words.
    Badly(String),
    /// It was still running when its time was up, and was killed with everything it had started.
    TimeUp(Duration),
}

impl End {
    /// What to say of an end that was not good.
    pub(crate) fn complaint(&self) -> Option<String> {
        match self {
            End::Well => None,
            End::Badly(how) => Some(how.clone()),
            End::TimeUp(limit) => Some(format!("still running after {} s", limit.as_secs())),
        }
    }
}

/// The cargo that runs us, in the workspace, without colours.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::root()).env("CARGO_TERM_COLOR", "never");
    cargo
}

/// The command line as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_string();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ")
}

/// Prints a line; a reader that went away is no reason to stop.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Runs a command and hands over each line of its output. Standard output and standard error share one pipe, so that their
/// lines keep their order; there is no standard input.
pub(crate) fn lines(command: &mut Command, limit: Option<Duration>, mut line: impl FnMut(&str)) -> Result<End> {
    let cannot = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
    let (reader, writer) = std::io::pipe().map_err(|e| cannot("make a pipe", e))?;
    let second = writer.try_clone().map_err(|e| cannot("share a pipe", e))?;
    let name = shown(command);
    let started = Instant::now();
    let spawned = command.stdin(Stdio::null()).stdout(writer).stderr(second).spawn();
    // The command keeps its ends of the pipe: without this the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawned.map_err(|e| cannot(&format!("start `{name}`"), e))?;

    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_string();
            if sender.send(text).is_err() {
                break;
            }
            bytes.clear();
        }
    });
    let mut ended: Option<(Instant, End)> = None;
    let mut open = true;
    loop {
        let pause = Duration::from_millis(20);
        match receiver.recv_timeout(pause) {
            Ok(text) => line(&text),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => {
                open = false;
                std::thread::sleep(pause);
            }
        }
        if let Some((when, _)) = &ended {
            if !open {
                break;
            }
            if when.elapsed() > AFTERMATH {
                line(&format!("xtask: `{name}` ended and left a process behind that holds its output"));
                break;
            }
            continue;
        }
        let status = child.try_wait().map_err(|e| cannot(&format!("wait for `{name}`"), e))?;
        ended = match status {
            Some(status) if status.success() => Some((Instant::now(), End::Well)),
            Some(status) => Some((Instant::now(), End::Badly(status.to_string()))),
            None if limit.is_some_and(|limit| started.elapsed() > limit) => {
                kill_tree(&mut child);
                Some((Instant::now(), End::TimeUp(limit.unwrap_or_default())))
            }
            None => None,
        };
    }
    Ok(ended.map_or(End::Well, |(_, end)| end))
}

/// Runs a command and shows what it says.
pub(crate) fn shown_lines(command: &mut Command, limit: Option<Duration>) -> Result<End> {
    say(&format!("\n$ {}", shown(command)));
    lines(command, limit, say)
}

/// Kills a child and all its descendants. (They are in our process group, so that Ctrl-C reaches them; so there is no group
/// of their own to kill.)
fn kill_tree(child: &mut Child) {
    let mut family = vec![child.id()];
    let mut next = 0;
    while next < family.len() {
        let children = children_of(family[next]);
        family.extend(children);
        next += 1;
    }
    let _ = child.kill();
    let descendants: Vec<String> = family[1..].iter().map(u32::to_string).collect();
    if !descendants.is_empty() {
        let quiet = || Stdio::null();
        let _ = Command::new("kill").arg("-KILL").args(descendants).stdout(quiet()).stderr(quiet()).status();
    }
    let _ = child.wait();
}

/// The processes whose parent is `pid`; none where there is no `/proc`.
fn children_of(pid: u32) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|process| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            parent_in(&stat) == Some(pid)
        })
        .collect()
}

/// The parent's number in a line of `/proc/N/stat`: the second field after the name, which may itself hold spaces and brackets.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn heard(script: &str, limit: Option<Duration>) -> (End, Vec<String>) {
        let mut heard = Vec::new();
        let end = lines(&mut sh(script), limit, |line| heard.push(line.to_string())).unwrap();
        (end, heard)
    }

    #[test]
    fn both_streams_arrive_in_order() {
        let (end, heard) = heard("echo a; echo b >&2; printf c; printf 'd\\n' >&2; printf last", None);
        assert_eq!((end, heard.join(",").as_str()), (End::Well, "a,b,cd,last"));
    }

    #[test]
    fn a_bad_end_is_told() {
        assert_eq!(heard("exit 3", None).0, End::Badly("exit status: 3".into()));
        assert!(heard("kill -9 $$", None).0.complaint().unwrap().contains("signal: 9"));
    }

    #[test]
    fn a_time_limit_ends_the_whole_family() {
        let limit = Duration::from_secs(2);
        let (end, heard) = heard("sh -c 'echo $$; exec sleep 600' & wait", Some(limit));
        assert_eq!(end, End::TimeUp(limit));
        // A killed process dies in its own time, and may then wait to be collected by its new parent.
        let alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", heard[0])).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while alive() {
            assert!(Instant::now() < deadline, "{} lives on", heard[0]);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_process_left_behind_does_not_hold_us() {
        let (end, heard) = heard("sleep 30 & echo $!", None);
        assert_eq!(end, End::Well);
        assert!(heard[1].contains("left a process behind"), "{heard:?}");
        let _ = Command::new("kill").arg(&heard[0]).status();
    }

    #[test]
    fn the_parent_is_found_behind_an_odd_name() {
        assert_eq!(parent_in("12 (a) b (c)) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("nonsense"), None);
    }
}
