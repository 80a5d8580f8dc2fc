//! `pingpong`: two clients hand one name to each other, strictly in turn; measured from the start of a release to the
//! return of the other's acquire. With `procs=2` the second client is another process.

use super::params::Params;
use super::{Failure, now_nanos, runtime, say};
use crate::impls::Client;
use hdrhistogram::Histogram;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// What the two tell each other; times are those of the machine's clock, which both processes share.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Word {
    /// About to acquire.
    Calling,
    /// The acquire returned, at this time.
    Got(u64),
    /// About to release, at this time.
    Releasing(u64),
    Over,
}

impl Word {
    fn to_line(self) -> String {
        match self {
            Word::Calling => "calling 0".into(),
            Word::Got(at) => format!("got {at}"),
            Word::Releasing(at) => format!("releasing {at}"),
            Word::Over => "over 0".into(),
        }
    }

    fn from_line(line: &str) -> Option<Word> {
        let (word, at) = line.trim().split_once(' ')?;
        let at = at.parse().ok()?;
        match word {
            "calling" => Some(Word::Calling),
            "got" => Some(Word::Got(at)),
            "releasing" => Some(Word::Releasing(at)),
            "over" => Some(Word::Over),
            _ => None,
        }
    }
}

/// The way to the other side and back.
struct Link {
    send: Box<dyn FnMut(Word) + Send>,
    receive: Receiver<Word>,
}

struct Pace {
    lock: String,
    settle: Duration,
    jitter: u64,
    end: Instant,
}

pub(crate) fn run(name: &str, addr: &str, params: &Params) -> Result<(), Failure> {
    let secs: f64 = params.get("secs", 3.0)?;
    let tag = params.text("tag", "bench");
    let pace = || -> Result<Pace, Failure> {
        Ok(Pace {
            lock: format!("{tag}-pingpong"),
            settle: Duration::from_micros(params.get("settle_us", 5000)?),
            jitter: params.get("jitter_us", 0)?,
            end: Instant::now() + Duration::from_secs_f64(secs),
        })
    };
    if params.get("side", 0)? == 2 {
        let receive = words(BufReader::new(std::io::stdin()));
        let send = Box::new(|word: Word| {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{}", word.to_line()).and_then(|()| out.flush());
        });
        return side(name, addr, &pace()?, Link { send, receive }, false).map(drop);
    }
    let (mine, other) = if params.get("procs", 1)? == 2 {
        other_process(name, addr, params)?
    } else {
        other_thread(name, addr, pace()?)
    };
    let taken = side(name, addr, &pace()?, mine, true)?;
    other.join().map_err(|_| "the other side failed")?;
    say(&json!({
        "event": "result", "impl": name, "cycles": taken.len(), "p50_us": taken.value_at_quantile(0.5),
        "p99_us": taken.value_at_quantile(0.99), "max_us": taken.max(),
    }));
    Ok(())
}

fn other_thread(name: &str, addr: &str, pace: Pace) -> (Link, std::thread::JoinHandle<()>) {
    let (name, addr) = (name.to_string(), addr.to_string());
    let (to_other, from_me): (Sender<Word>, _) = channel();
    let (to_me, from_other): (Sender<Word>, _) = channel();
    let link = |sender: Sender<Word>, receive| Link { send: Box::new(move |word| _ = sender.send(word)), receive };
    let theirs = link(to_me, from_me);
    let other = std::thread::spawn(move || side(&name, &addr, &pace, theirs, false).map(drop).expect("the other side"));
    (link(to_other, from_other), other)
}

fn other_process(name: &str, addr: &str, params: &Params) -> Result<(Link, std::thread::JoinHandle<()>), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", name, addr, "pingpong", "side=2"]);
    for key in ["secs", "settle_us", "jitter_us", "tag"] {
        let value = params.text(key, "");
        if !value.is_empty() {
            command.arg(format!("{key}={value}"));
        }
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().ok_or("no way to the other process")?;
    let receive = words(BufReader::new(child.stdout.take().ok_or("no way from the other process")?));
    let send = Box::new(move |word: Word| _ = writeln!(stdin, "{}", word.to_line()));
    let other = std::thread::spawn(move || {
        let status = child.wait().expect("the other process");
        assert!(status.success(), "the other process ended with {status}");
    });
    Ok((Link { send, receive }, other))
}

fn words(from: impl BufRead + Send + 'static) -> Receiver<Word> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in from.lines().map_while(Result::ok) {
            if line.trim_start().starts_with('{')
                || Word::from_line(&line).is_none_or(|word| sender.send(word).is_err())
            {
                return;
            }
        }
    });
    receiver
}

/// One side. It blocks its thread between its turns, never a runtime that somebody else needs. The first side counts.
fn side(name: &str, addr: &str, pace: &Pace, mut link: Link, first: bool) -> Result<Histogram<u64>, Failure> {
    let runtime = runtime(1)?;

    let mut taken = Histogram::new_with_bounds(1, 3_600_000_000, 3)?;
    let mut record = |from: u64, to: u64| taken.saturating_record((to.saturating_sub(from) / 1000).max(1));
    let client = runtime.block_on(Client::connect(name, addr))?;
    if first {
        say(&json!({"event": "ready"}));
    } else {
        // The first side begins.
        while link.receive.recv()? != Word::Calling {}
        while !matches!(link.receive.recv()?, Word::Got(_)) {}
    }
    loop {
        (link.send)(Word::Calling);
        let guard = runtime.block_on(client.lock(&pace.lock))?;
        let got = now_nanos();
        (link.send)(Word::Got(got));
        // What the other side said while we waited: it released, and it is calling again.
        let mut released_by_other: Option<u64> = None;
        let over = loop {
            match link.receive.recv()? {
                Word::Releasing(at) => released_by_other = Some(at),
                Word::Calling => break false,
                Word::Over => break true,
                Word::Got(_) => {}
            }
        };
        if let Some(from) = released_by_other {
            record(from, got);
        }
        if over {
            runtime.block_on(guard.release())?;
            runtime.block_on(client.close());
            return Ok(taken);
        }
        std::thread::sleep(pace.settle + Duration::from_micros(fastrand::u64(0..=pace.jitter)));
        let now = now_nanos();
        (link.send)(Word::Releasing(now));
        runtime.block_on(guard.release())?;
        // Before the other one has it, whoever does not queue could take it again.
        loop {
            if let Word::Got(at) = link.receive.recv()? {
                record(now, at);
                break;
            }
        }
        if first && Instant::now() >= pace.end {
            // The other one is in, sees that it is over and leaves.
            (link.send)(Word::Over);
            runtime.block_on(client.close());
            return Ok(taken);
        }
    }
}
