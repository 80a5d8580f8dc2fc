//! The line that a terminal shows while we wait: who holds it, since when, why, and our place in the queue.

use crate::failure::describe;
use crate::output::{self, Output};
use fencelock::error::{ordinal, spoken};
use fencelock::name::printable;
use fencelock::{Line, Locks, Seen};
use std::time::{Duration, Instant};

/// How long a wait may last before it is worth a word, and how often the word is kept current.
const TICK: Duration = Duration::from_secs(1);

/// Shows the line until it is dropped. Says nothing where nobody looks. One call to the store per second.
pub(crate) async fn show(locks: &Locks, names: &[String], output: Output) {
    if output.json || output.quiet || !output::on_terminal() {
        return std::future::pending().await;
    }
    let mut shown = Shown { any: false };
    // The order in which they are queued for.
    let mut names: Vec<&String> = names.iter().collect();
    names.sort();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    loop {
        tokio::time::sleep(TICK).await;
        // Where the store does not answer, the wait goes on and so does the last line.
        if let Some((name, line)) = in_the_way(locks, &names, &host).await {
            shown.set(&text(&printable(name), &line, &host, std::process::id()));
        }
    }
}

/// The name that is being waited for: the one where we queue, else the last that somebody else is in. One call for each name.
async fn in_the_way<'a>(locks: &Locks, names: &[&'a String], host: &str) -> Option<(&'a String, Line)> {
    let ours = |seen: &Seen| seen.pid == std::process::id() && seen.host == host;
    let mut found = None;
    for name in names {
        let Ok(line) = locks.inspect(name).await else { continue };
        if names.len() == 1 || line.waiting.iter().any(ours) {
            return Some((name, line));
        }
        if line.inside.first().is_some_and(|seen| !ours(seen)) {
            found = Some((*name, line));
        }
    }
    found
}

/// The same for a turn whose moment is known.
pub(crate) async fn show_turn(name: &str, turn: Instant, output: Output) {
    if output.json || output.quiet || !output::on_terminal() {
        return std::future::pending().await;
    }
    let mut shown = Shown { any: false };
    let label = printable(name);
    loop {
        tokio::time::sleep(TICK).await;
        shown.set(&format!(
            "waiting for {label}: our turn is in {}",
            spoken(turn.saturating_duration_since(Instant::now()))
        ));
    }
}

/// `waiting for nightly: held by web-3 pid 912 ("deploy 88") for 42 s, token 1187, lease ends in 12 s; you are 3rd of 7`
fn text(name: &str, line: &Line, host: &str, pid: u32) -> String {
    let mut text = format!("waiting for {name}");
    if let Some(first) = line.inside.first() {
        text += &format!(": held by {}", describe(first));
        match line.inside.len() - 1 {
            0 => {}
            1 => text += " and 1 other",
            others => text += &format!(" and {others} others"),
        }
    }
    if let Some(place) = line.waiting.iter().position(|seen| seen.pid == pid && seen.host == host) {
        text += &format!("; you are {} of {}", ordinal(place + 1), line.waiting.len());
    }
    text
}

/// A line on the terminal that goes away without a trace.
struct Shown {
    any: bool,
}

impl Shown {
    fn set(&mut self, text: &str) {
        self.any = true;
        output::words(&format!("\r\x1b[K{}", fit(text, width())));
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.any {
            output::words("\r\x1b[K");
        }
    }
}

/// How many columns there are.
pub(crate) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(80)
}

/// Cut so that it never wraps: a line that wrapped could not be taken back. Counts every character as two columns wide that
/// might be.
fn fit(text: &str, width: usize) -> String {
    let columns = |c: char| if c.is_ascii() { 1 } else { 2 };
    if text.chars().map(columns).sum::<usize>() < width {
        return text.to_string();
    }
    let mut used = 0;
    let room = width.saturating_sub(4);
    let mut cut: String = text
        .chars()
        .take_while(|c| {
            used += columns(*c);
            used <= room
        })
        .collect();
    cut.push_str("...");
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock::Mode;

    fn seen(pid: u32, token: u64) -> Seen {
        Seen {
            token: Some(token),
            mode: Mode::Exclusive,
            weight: 1 << 20,
            host: "web-3".into(),
            pid,
            identity: "web-3".into(),
            owner: "a1".into(),
            reason: Some("deploy 88".into()),
            value: None,
            entered: Some(Duration::from_secs(50)),
            admitted: Some(Duration::from_secs(42)),
            expires_in: Some(Duration::from_secs(12)),
        }
    }

    #[test]
    fn the_line_says_who_why_and_where() {
        let mut line =
            Line { capacity: 1 << 20, inside: vec![seen(912, 1187)], waiting: vec![seen(7, 1188), seen(8, 1189)] };
        assert_eq!(
            text("nightly", &line, "web-3", 8),
            "waiting for nightly: held by web-3 pid 912 (\"deploy 88\") for 42 s, token 1187, lease ends in 12 s; you are 2nd of 2"
        );
        line.inside.push(seen(913, 1187));
        line.waiting.clear();
        assert!(text("nightly", &line, "web-3", 8).ends_with("lease ends in 12 s and 1 other"));
        assert_eq!(text("nightly", &Line::default(), "web-3", 8), "waiting for nightly");
    }

    #[test]
    fn it_never_wraps() {
        assert_eq!(fit("abc", 80), "abc");
        assert_eq!(fit("abcdefghij", 10), "abcdef...");
        for width in 0..20 {
            assert!(fit("ääääääääääääääää", width).chars().filter(|c| !c.is_ascii()).count() * 2 <= width);
        }
    }
}
