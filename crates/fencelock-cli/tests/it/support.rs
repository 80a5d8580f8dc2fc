//! A home of its own for each test, and ways to start the program and to wait for what it does.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing that a test waits for takes nearly as long on a machine that is not stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again until it is so.
pub(crate) fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process is there and no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// The state letter of a process.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Sends a signal.
pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A user with a home folder and no locks.
pub(crate) struct Home {
    dir: TempDir,
}

/// What a finished program left.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Home {
    pub(crate) fn new() -> Home {
        Home { dir: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where the embedded default keeps its file.
    pub(crate) fn store(&self) -> PathBuf {
        self.path().join("state/fencelock/locks.db")
    }

    /// Any program, in this home.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for name in ["FENCELOCK_STORE", "FENCELOCK_HELD", "NO_COLOR", "COLUMNS"] {
            command.env_remove(name);
        }
        command.env("HOME", self.path()).env("XDG_STATE_HOME", self.path().join("state")).env("TERM", "xterm");
        let program = Path::new(env!("CARGO_BIN_EXE_fencelock"));
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", program.parent().unwrap().display()));
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    /// Our program.
    pub(crate) fn fencelock<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_fencelock"));
        command.args(args);
        command
    }

    /// Runs our program to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        finish(self.fencelock(args))
    }

    /// The same with the words of one line. No quotes.
    pub(crate) fn say(&self, line: &str) -> Done {
        self.run(line.split_whitespace())
    }

    /// Starts our program; its lines are heard as they come.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        Running::new(self.fencelock(args))
    }

    /// `run NAME` with a shell script as the command, which says `started PID` first.
    pub(crate) fn start_script(&self, options: &[&str], script: &str) -> (Running, u32) {
        // The shell would tell of each sleep in its group that a signal has ended.
        let script = format!("exec 2>/dev/null; echo started $$; {script}");
        let mut args = vec!["run", "x"];
        args.extend_from_slice(options);
        args.extend_from_slice(&["--", "sh", "-c", &script]);
        let mut running = self.start(args);
        let pid = running.line().strip_prefix("started ").expect("the script starts").parse().unwrap();
        (running, pid)
    }

    /// The names with someone in them, as `ls --json` tells.
    pub(crate) fn ls(&self) -> String {
        let done = self.say("ls --json");
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        done.stdout.trim_end().to_string()
    }

    /// Nobody holds or waits for anything, and nothing but the store's own files is left.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.ls(), "[]");
        let names = |folder: &Path| -> Vec<String> {
            let entries = std::fs::read_dir(folder).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        // The folder of the sockets may stay; a socket may not.
        let own = ["locks.db", "locks.db-shm", "locks.db-wal", "locks.db.wake"];
        let mut files = names(self.store().parent().unwrap());
        files.retain(|name| !own.contains(&name.as_str()));
        files.extend(names(&self.store().with_extension("db.wake")));
        assert_eq!(files, Vec::<String>::new());
    }
}

/// Runs anything to its end.
pub(crate) fn finish(mut command: Command) -> Done {
    let output = command.output().unwrap();
    Done {
        code: code(output.status),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// As a shell would tell it.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or(status.signal().map(|signal| -signal)).unwrap()
}

/// A program that was started.
pub(crate) struct Running {
    child: Child,
    stdout: Receiver<(Instant, String)>,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Running {
    pub(crate) fn new(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, stdout) = channel();
        let reader = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        let mut errors = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).unwrap();
            text
        });
        Running { child, stdout, stderr: Some(stderr) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its stdout.
    pub(crate) fn line(&mut self) -> String {
        self.timed_line().1
    }

    /// The same, with when it came.
    pub(crate) fn timed_line(&mut self) -> (Instant, String) {
        match self.stdout.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(_) => {
                let _ = self.child.kill();
                panic!("no line came; stderr: {}", self.stderr.take().unwrap().join().unwrap());
            }
        }
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn signal(&self, which: rustix::process::Signal) {
        signal(self.pid(), which);
    }

    /// Its end, and everything that it has not told yet.
    pub(crate) fn finish(mut self) -> Done {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > end => {
                    let _ = self.child.kill();
                    panic!("it does not end; stderr: {}", self.stderr.take().unwrap().join().unwrap());
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let mut stdout = String::new();
        while let Ok((_, line)) = self.stdout.recv_timeout(PATIENCE) {
            stdout += &(line + "\n");
        }
        Done { code: code(status), stdout, stderr: self.stderr.take().unwrap().join().unwrap() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test leaves nobody running. A child that is not there any more is no matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Numbers, times and host names become words, so that whole outputs can be compared.
pub(crate) fn tame(text: &str) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = text.replace(&format!("\"{host}\""), "\"HOST\"").replace(&format!("{host} pid"), "HOST pid");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(c) = rest.chars().next() {
        if c.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            out.push('N');
            rest = &rest[end..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}
