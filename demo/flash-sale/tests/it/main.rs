//! The shop as a visitor runs it: the built program, its table, its page, its limiters, and what is left after a crash.

mod crash;
mod limits;
mod page;
mod pause;
mod story;

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What promises a time runs by itself; the others share the machine.
static MACHINE: RwLock<()> = RwLock::new(());

pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn together() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// How many sales of each kind: more in a soak.
pub(crate) fn rounds() -> usize {
    if std::env::var_os("FENCELOCK_SOAK").is_some() { 20 } else { 1 }
}

/// The program with these words.
pub(crate) fn program(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flash-sale"));
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs it to its end; what it wrote.
pub(crate) fn ran(words: &[&str]) -> (Output, String) {
    let output = program(words).output().expect("the program can be run");
    let told = format!(
        "flash-sale {}\n{}\n{}",
        words.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output, told)
}

/// Several commands that print JSON, at the same time.
pub(crate) fn at_once(commands: &[Vec<&str>]) -> Vec<(Value, String)> {
    std::thread::scope(|scope| {
        let running: Vec<_> = commands.iter().map(|words| scope.spawn(|| json(words))).collect();
        running.into_iter().map(|running| running.join().expect("it prints JSON")).collect()
    })
}

/// One command that prints JSON.
pub(crate) fn json(words: &[&str]) -> (Value, String) {
    let (output, told) = ran(words);
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    (value, told)
}

pub(crate) fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {row}"))
}

pub(crate) fn whole(row: &Value, field: &str) -> i64 {
    row[field].as_i64().unwrap_or_else(|| panic!("no whole {field} in {row}"))
}

/// A program that says a line when it is up; killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    says: BufReader<ChildStdout>,
    pub(crate) first: String,
}

impl Running {
    pub(crate) fn start(words: &[&str]) -> Running {
        let mut command = program(words);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it can be run");
        let says = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut running = Running { child, says, first: String::new() };
        running.first = running.hear();
        running
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("it says something");
        line.trim().to_string()
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("it listens");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}
