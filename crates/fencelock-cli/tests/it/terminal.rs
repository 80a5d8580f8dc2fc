//! A real terminal: the line that a wait shows, a child that wants the terminal, a pager behind us, `Ctrl-Z` and back.

use crate::support::{Home, PATIENCE, is_alive, state, wait_until};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A program with a terminal of its own, as its session's leader.
struct Terminal {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// Everything that it has shown.
    seen: String,
    /// How much of that has been looked for already.
    passed: usize,
    child: Child,
}

impl Terminal {
    fn start(home: &Home, program: &[&str]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let window = rustix::termios::Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&master, window).unwrap();
        let slave = || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
        // `setsid -c` makes the terminal on its stdin the controlling one.
        let mut command: Command = home.command("setsid");
        command.arg("-c").args(program).env("PS1", "prompt> ").env("NO_COLOR", "1");
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        drop(command);
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The end of a terminal is an error.
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 || sender.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { keyboard, screen, seen: String::new(), passed: 0, child }
    }

    /// A shell with job control.
    fn shell(home: &Home) -> Terminal {
        let mut terminal = Terminal::start(home, &["bash", "--norc", "--noprofile", "-i"]);
        terminal.expect("prompt> ");
        terminal
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is shown, behind what was expected before.
    fn expect(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen[self.passed..].find(text) {
                let before = self.seen[self.passed..self.passed + at].to_string();
                self.passed += at + text.len();
                return before;
            }
            match self.screen.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("{text:?} was not shown, but {:?}", &self.seen[self.passed..]),
            }
        }
    }

    /// The number that follows this text.
    fn number_after(&mut self, text: &str) -> u32 {
        self.expect(text);
        self.expect("\r\n").trim().parse().unwrap()
    }

    fn code(mut self) -> i32 {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < end, "it does not end: {:?}", &self.seen[self.passed..]);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_wait_shows_one_line_that_keeps_itself_current() {
    let home = Home::new();
    let mut holder = home.start(["hold", "x", "--reason", "deploy 88"]);
    let token = holder.line();
    let mut terminal = Terminal::start(&home, &["fencelock", "run", "x", "--", "echo", "inside"]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let line = format!("waiting for x: held by {host} pid {} (\"deploy 88\") for ", holder.pid());
    let before = Instant::now();
    assert_eq!(terminal.expect(&line), "\r\x1b[K", "it begins at the edge of a cleared line");
    assert!(before.elapsed() >= Duration::from_millis(500), "a short wait shows nothing");
    terminal.expect(&format!(", token {token}, lease ends in "));
    terminal.expect("; you are 1st of 1");
    assert_eq!(terminal.expect(&line), "\r\x1b[K", "again, in the same place");
    terminal.expect("; you are 1st of 1");
    holder.signal(Signal::TERM);
    let cleared = terminal.expect("inside\r\n");
    assert!(cleared.ends_with("\r\x1b[K"), "it goes away without a trace: {cleared:?}");
    assert_eq!(terminal.code(), 0);
    assert_eq!(holder.finish().code, 0);
}

#[test]
fn a_wait_says_nothing_where_nobody_wants_to_know() {
    let home = Home::new();
    let mut holder = home.start(["hold", "x"]);
    holder.line();
    for flag in ["-q", "--json"] {
        let mut terminal = Terminal::start(
            &home,
            &["fencelock", "run", "x", flag, "--wait", "1500ms", "--held-code", "0", "--", "true"],
        );
        let silent = if flag == "-q" { String::new() } else { terminal.expect("{\"event\":\"error\"") };
        assert_eq!(silent, "");
        assert_eq!(terminal.code(), 0);
    }
}

#[test]
fn colours_are_for_terminals_without_no_color() {
    let home = Home::new();
    let mut plain = Terminal::start(&home, &["fencelock", "show"]);
    assert_eq!(plain.expect("fencelock: "), "");
    assert_eq!(plain.code(), 64);
    let mut colourful = Terminal::start(&home, &["env", "-u", "NO_COLOR", "fencelock", "show"]);
    assert_eq!(colourful.expect("fencelock:"), "\x1b[1;31m");
    assert_eq!(colourful.code(), 64);
}

#[test]
fn a_child_that_reads_the_terminal_gets_it() {
    let home = Home::new();
    let script = "echo ready; read line; echo \"got $line\"; read line; echo \"and $line\"; exit 7";
    let mut terminal = Terminal::start(&home, &["fencelock", "run", "x", "--", "sh", "-c", script]);
    terminal.expect("ready");
    terminal.press("one\n");
    terminal.expect("got one");
    terminal.press("two\n");
    terminal.expect("and two");
    assert_eq!(terminal.code(), 7);
    home.assert_nothing_left();
}

#[test]
fn an_interactive_shell_works_and_gives_the_terminal_back() {
    let home = Home::new();
    let mut terminal = Terminal::shell(&home);
    terminal.press("fencelock run x -- env PS1='inner> ' bash --norc --noprofile -i\n");
    terminal.expect("bash --norc --noprofile -i\r\n");
    terminal.expect("inner> ");
    terminal.press("echo \"I am $FENCELOCK_NAME\"; cat\n");
    terminal.expect("I am x\r\n");
    terminal.press("hello\n");
    terminal.expect("hello\r\nhello\r\n");
    terminal.press("\x03");
    terminal.expect("inner> ");
    terminal.press("exit 3\n");
    terminal.expect("prompt> ");
    terminal.press("echo \"code $?\"; read answer; echo \"read $answer\"\n");
    terminal.expect("code 3");
    terminal.press("yes\n");
    terminal.expect("read yes");
    home.assert_nothing_left();
}

#[test]
fn a_keyboard_interrupt_ends_the_child() {
    let home = Home::new();
    let mut terminal = Terminal::shell(&home);
    terminal.press("fencelock run x -- sh -c 'echo pid $$; exec sleep 1000'; echo code $?\n");
    terminal.expect("code $?\r\n");
    let pid = terminal.number_after("pid ");
    terminal.press("\x03");
    // The shell that sees 130 of a program that caught the signal goes on with the list or not, as it likes.
    terminal.expect("prompt> ");
    assert!(!is_alive(pid));
    home.assert_nothing_left();
}

/// Starts a child that never asks for the terminal, and one that does.
fn start_in(terminal: &mut Terminal, options: &str, then: &str) -> u32 {
    terminal.press(&format!("fencelock run x {options} -- sh -c 'echo pid $$; {then}'\n"));
    terminal.expect(&format!("{then}'\r\n"));
    terminal.number_after("pid ")
}

#[test]
fn stopped_by_the_keyboard_and_continued() {
    let home = Home::new();
    let mut terminal = Terminal::shell(&home);
    let pid = start_in(&mut terminal, "--lease 30s", "exec sleep 1000");
    terminal.press("\x1a");
    terminal.expect("Stopped");
    terminal.expect("prompt> ");
    wait_until("the group is stopped", || state(pid) == Some('T'));
    terminal.press("fg\n");
    wait_until("the group goes on", || state(pid) == Some('S'));
    assert_eq!(home.say("run x --wait 0 -- true").code, 75, "still held");
    terminal.press("\x1a");
    terminal.expect("Stopped");
    terminal.expect("prompt> ");
    wait_until("the group is stopped again", || state(pid) == Some('T'));
    terminal.press("bg\n");
    wait_until("it goes on in the background", || state(pid) == Some('S'));
    terminal.press("kill %1; wait %1; echo code $?\n");
    terminal.expect("code 143");
    assert!(!is_alive(pid));
    home.assert_nothing_left();
}

#[test]
fn a_child_with_the_terminal_is_stopped_and_continued() {
    let home = Home::new();
    let mut terminal = Terminal::shell(&home);
    let pid = start_in(&mut terminal, "--lease 30s", "exec cat");
    terminal.press("one\n");
    terminal.expect("one\r\none\r\n");
    terminal.press("\x1a");
    terminal.expect("Stopped");
    terminal.expect("prompt> ");
    assert_eq!(state(pid), Some('T'));
    terminal.press("echo the shell has the terminal\n");
    terminal.expect("echo the shell has the terminal\r\n");
    terminal.expect("the shell has the terminal\r\n");
    terminal.press("fg\n");
    terminal.expect("fg\r\n");
    terminal.expect("exec cat'\r\n");
    terminal.press("two\n");
    terminal.expect("two\r\n");
    terminal.expect("two\r\n");
    terminal.press("\x04");
    terminal.expect("prompt> ");
    terminal.press("echo code $?\n");
    terminal.expect("code 0");
    home.assert_nothing_left();
}

#[test]
fn in_the_background_it_waits_for_the_terminal_and_goes_on_holding() {
    let home = Home::new();
    let mut terminal = Terminal::shell(&home);
    terminal.press("fencelock run x --lease 1500ms -- sh -c 'echo pid $$; exec cat' &\n");
    terminal.expect("exec cat' &\r\n");
    let pid = terminal.number_after("pid ");
    wait_until("it stops for the terminal", || state(pid) == Some('T'));
    assert_eq!(home.say("run x --wait 2s -- true").code, 75, "held all the time, longer than the lease");
    assert_eq!(state(pid), Some('T'), "it is not given what our own group does not have");
    terminal.press("fg\n");
    terminal.expect("fg\r\n");
    wait_until("it has the terminal", || state(pid) == Some('S'));
    terminal.press("hello\n");
    terminal.expect("hello\r\nhello\r\n");
    terminal.press("\x04");
    terminal.expect("prompt> ");
    home.assert_nothing_left();
}

#[test]
fn continued_past_its_deadline_the_child_never_goes_on() {
    let home = Home::new();
    let mut terminal = Terminal::shell(&home);
    let then = "while :; do echo >> work; sleep 0.01; done";
    let pid = start_in(&mut terminal, "--lease 500ms", then);
    let work = home.path().join("work");
    wait_until("it works", || work.exists());
    terminal.press("\x1a");
    terminal.expect("Stopped");
    terminal.expect("prompt> ");
    let done = home.run(["run", "x", "--wait", "20s", "--", "stat", "-c", "%s", "work"]);
    assert_eq!(done.code, 0, "another gets in: {done:?}");
    terminal.press("fg; echo code $?\n");
    terminal.expect("fencelock: x: lost: no renewal got through for 500 ms; the command was stopped\r\n");
    terminal.expect("code 76");
    assert!(!is_alive(pid));
    assert_eq!(std::fs::metadata(&work).unwrap().len().to_string(), done.stdout.trim(), "not one stroke more");
    home.assert_nothing_left();
}

#[test]
fn stopped_while_it_waits() {
    let home = Home::new();
    let mut holder = home.start(["hold", "x"]);
    holder.line();
    let mut terminal = Terminal::shell(&home);
    terminal.press("fencelock run x -- echo inside\n");
    terminal.expect("echo inside\r\n");
    terminal.expect("waiting for x");
    terminal.press("\x1a");
    terminal.expect("Stopped");
    terminal.expect("prompt> ");
    terminal.press("fg\n");
    terminal.expect("waiting for x");
    holder.signal(Signal::TERM);
    terminal.expect("inside\r\n");
    terminal.expect("prompt> ");
    assert_eq!(holder.finish().code, 0);
    home.assert_nothing_left();
}

#[test]
fn a_pager_behind_us_does_not_stop_us() {
    let home = Home::new();
    let mut terminal = Terminal::shell(&home);
    // The child asks for the terminal and gets it; the pager, in our own group, then stops for wanting it too, and its
    // group with it, but not us: we go on renewing.
    std::fs::write(home.path().join("pager"), "read key < /dev/tty; echo \"key $key\"; cat\n").unwrap();
    std::fs::write(
        home.path().join("child"),
        "echo pid $$ >/dev/tty; read a </dev/tty; echo \"a $a\"; exec sleep 1000\n",
    )
    .unwrap();
    terminal.press("fencelock run x --lease 1500ms -- sh child | sh pager\n");
    terminal.expect("sh pager\r\n");
    let pid = terminal.number_after("pid ");
    let us = wait_for_parent(pid);
    // Whoever has the terminal first, both want it.
    wait_until("the child has stopped for it, or has it", || matches!(state(pid), Some('T' | 'S')));
    let done = home.say("run x --wait 2s -- true");
    assert_eq!(done.code, 75, "held all the time, longer than the lease: {done:?}");
    assert!(is_alive(pid) && matches!(state(us), Some('S')), "we are not stopped: {:?}", state(us));
    crate::support::signal(us, Signal::TERM);
    wait_until("the child is gone", || !is_alive(pid));
    wait_until("we are gone", || !is_alive(us));
    home.assert_nothing_left();
}

fn wait_for_parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

#[test]
fn break_asks_first() {
    let home = Home::new();
    let mut holder = home.start(["hold", "x", "--reason", "deploy 88"]);
    let token = holder.line();
    let ask = |answer: &str| {
        let mut terminal = Terminal::start(&home, &["fencelock", "break", "x", "--token", &token]);
        terminal.expect("x is held by ");
        terminal.expect("(\"deploy 88\")");
        terminal.expect("put it out? [y/N] ");
        terminal.press(answer);
        if answer.starts_with('n') {
            terminal.expect("fencelock: x was left as it is");
        }
        terminal.code()
    };
    assert_eq!(ask("no\n"), 69);
    assert!(is_alive(holder.pid()));
    assert_eq!(ask("y\n"), 0);
    assert_eq!(holder.finish().code, 76);
}

#[test]
fn watch_is_a_table_on_a_terminal() {
    let home = Home::new();
    let mut terminal = Terminal::start(&home, &["fencelock", "watch"]);
    terminal.expect("nobody holds anything");
    let mut holder = home.start(["hold", "stock/42"]);
    holder.line();
    terminal.expect("NAME      INSIDE  WAITING  HELD FOR");
    terminal.expect("stock/42  1       0        ");
    holder.signal(Signal::TERM);
    terminal.expect("nobody holds anything");
    assert_eq!(holder.finish().code, 0);
    terminal.press("\x03");
    assert_eq!(terminal.code(), -1, "nothing is held: the signal just ends it");
}
