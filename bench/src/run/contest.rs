//! One sample: starts the processes of one lock for one workload, lets them go together, and looks at client and server meanwhile.

use super::peers::{self, Peers};
use super::plan::Work;
use super::process::Usage;
use super::servers::Server;
use crate::worker::Failure;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What was measured, by name.
pub(crate) type Figures = BTreeMap<String, f64>;

/// How a sample is taken.
pub(crate) struct Take<'a> {
    pub(crate) lock: &'a str,
    pub(crate) work: Work,
    pub(crate) secs: f64,
    pub(crate) tag: String,
    /// Counts requests where that slows the server down: the other figures are then worth nothing.
    pub(crate) counting: bool,
}

/// A started process and what it says.
struct Contender {
    child: Child,
    said: Receiver<Value>,
    complaint: std::path::PathBuf,
}

impl Contender {
    fn start(
        peers: &mut Peers,
        lock: &str,
        words: &[String],
        folder: &std::path::Path,
        n: usize,
    ) -> Result<Contender, Failure> {
        let complaint = folder.join(format!("stderr-{n}"));
        let mut command = peers.command(lock)?;
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(std::fs::File::create(&complaint)?);
        let mut child = command.spawn()?;
        let out = BufReader::new(child.stdout.take().ok_or("it has no output")?);
        let (sender, said) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Ok(value) = serde_json::from_str::<Value>(&line)
                    && sender.send(value).is_err()
                {
                    return;
                }
            }
        });
        Ok(Contender { child, said, complaint })
    }

    /// Waits for an event.
    fn hear(&mut self, event: &str, limit: Instant) -> Result<Value, Failure> {
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(value) if value["event"] == event => return Ok(value),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(format!("no {event} in time").into()),
                Err(RecvTimeoutError::Disconnected) => {
                    let _ = self.child.wait();
                    let words = std::fs::read_to_string(&self.complaint).unwrap_or_default();
                    let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
                    // The first clause: some list what they would have known.
                    return Err(format!("it ended: {}", last.split(';').next().unwrap_or(last)).into());
                }
            }
        }
    }

    fn go(&mut self) -> Result<(), Failure> {
        self.child.stdin.as_mut().ok_or("it has no input")?.write_all(b"\n")?;
        Ok(())
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes one sample.
pub(crate) fn sample(take: &Take<'_>, server: &Server, peers: &mut Peers) -> Result<Figures, Failure> {
    let folder = tempfile::tempdir()?;
    let words = |rest: String| -> Vec<String> {
        let head = [take.lock.to_string(), server.addr()];
        head.into_iter().chain(rest.split_whitespace().map(String::from)).chain([format!("tag={}", take.tag)]).collect()
    };
    let secs = take.secs;
    if take.lock == "wire-redis" {
        return wire(&server.addr(), secs);
    }
    match take.work {
        Work::Pair { procs, threads, names, hold_us } => {
            let warm = peers::warm_secs(take.lock);
            let words =
                words(format!("pair threads={threads} secs={secs} names={names} warm={warm} hold_us={hold_us}"));
            let mut all = (0..procs)
                .map(|n| Contender::start(peers, take.lock, &words, folder.path(), n))
                .collect::<Result<Vec<_>, _>>()?;
            pair(take, server, &mut all)
        }
        Work::Idle { waiters } => {
            let words = words(format!("idle waiters={waiters} secs={secs}"));
            standing(take, server, Contender::start(peers, take.lock, &words, folder.path(), 0)?)
        }
        Work::Hold { locks } => {
            let words = words(format!("hold locks={locks} secs={secs}"));
            standing(take, server, Contender::start(peers, take.lock, &words, folder.path(), 0)?)
        }
        Work::Pingpong => {
            let words = words(format!("pingpong secs={secs}"));
            let mut one = Contender::start(peers, take.lock, &words, folder.path(), 0)?;
            let result = one.hear("result", patience(secs))?;
            Ok(numbers(&result, &["p50_us", "p99_us", "max_us", "cycles"]))
        }
        Work::Start => {
            let words = words("hold locks=1 secs=0".into());
            let began = Instant::now();
            let mut one = Contender::start(peers, take.lock, &words, folder.path(), 0)?;
            one.hear("ready", patience(0.0))?;
            let took = began.elapsed().as_secs_f64() * 1e3;
            one.hear("result", patience(0.0))?;
            Ok(Figures::from([("start_ms".into(), took)]))
        }
        Work::Command => command(take, server, peers),
    }
}

/// What the wire allows: half of the plain `SET`s that `redis-benchmark` gets through on one connection, since a lock and its release are
/// two requests.
fn wire(addr: &str, secs: f64) -> Result<Figures, Failure> {
    let (host, port) = addr.rsplit_once(':').ok_or("an address without a port")?;
    let mut command = std::process::Command::new("redis-benchmark");
    command.args(["-h", host, "-p", port, "-c", "1", "-n"]).arg(format!("{:.0}", secs * 20_000.0));
    command.args(["--csv", "SET", "wire:__rand_int__", "v", "NX", "PX", "30000"]);
    let said = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let rate = said.lines().last().and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse::<f64>().ok());
    let rate = rate.ok_or("redis-benchmark said something else")? / 2.0;
    Ok(Figures::from([("cycles_s".into(), rate), ("requests".into(), 2.0)]))
}

/// The median of twenty in a row.
fn command(take: &Take<'_>, server: &Server, peers: &mut Peers) -> Result<Figures, Failure> {
    let folder = tempfile::tempdir()?;
    let mut took = Vec::new();
    for _ in 0..20 {
        let mut command = peers.command(take.lock)?;
        match take.lock {
            "fencelock-run" => command.args(["--store", &server.url(), "run", &take.tag, "--", "true"]),
            "etcdctl-lock" => {
                command.env("ETCDCTL_API", "3").args(["--endpoints", &server.addr(), "lock", &take.tag, "true"])
            }
            "consul-lock-program" => {
                command.arg("lock").arg(format!("-http-addr={}", server.addr())).args([&take.tag, "true"])
            }
            _ => command.arg(folder.path().join("lock")).arg("true"),
        };
        let began = Instant::now();
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
        if !status.success() {
            return Err(format!("it ended with {status}").into());
        }
    }
    took.sort_by(f64::total_cmp);
    Ok(Figures::from([("start_ms".into(), took[took.len() / 2])]))
}

/// System calls of a whole process for each cycle, those of a run without cycles taken off; where `strace` is at hand.
pub(crate) fn system_calls(lock: &str, server: &Server, peers: &mut Peers, tag: &str) -> Result<f64, Failure> {
    let folder = tempfile::tempdir()?;
    let mut count = |secs: f64| -> Result<(f64, f64), Failure> {
        let out = folder.path().join("calls");
        let worker = peers.command(lock)?;
        let mut traced = std::process::Command::new("strace");
        traced.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(&out).arg(worker.get_program()).args(worker.get_args());
        let secs = format!("secs={secs}");
        traced.args([lock, &server.addr(), "pair", "threads=1", "names=own", "warm=0", &secs, &format!("tag={tag}")]);
        let mut child = traced.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        child.stdin.take().ok_or("it has no input")?.write_all(b"\n")?;
        let said = child.wait_with_output()?;
        let result = String::from_utf8_lossy(&said.stdout)
            .lines()
            .last()
            .and_then(|line| serde_json::from_str::<Value>(line).ok());
        let cycles = result.as_ref().and_then(|result| result["cycles"].as_f64()).ok_or("it gave no result")?;
        let table = std::fs::read_to_string(&out)?;
        let total = table.lines().rfind(|line| line.trim_end().ends_with("total")).ok_or("strace counted nothing")?;
        Ok((total.split_whitespace().next().ok_or("strace counted nothing")?.parse()?, cycles))
    };
    let (fixed, few) = count(0.0)?;
    let (all, many) = count(1.0)?;
    Ok((all - fixed) / (many - few))
}

/// Far beyond what anything takes on a busy machine.
fn patience(secs: f64) -> Instant {
    Instant::now() + Duration::from_secs_f64(secs + 45.0)
}

fn numbers(result: &Value, names: &[&str]) -> Figures {
    names.iter().filter_map(|name| Some((name.to_string(), result[*name].as_f64()?))).collect()
}

fn pair(take: &Take<'_>, server: &Server, all: &mut [Contender]) -> Result<Figures, Failure> {
    let limit = patience(10.0);
    for one in all.iter_mut() {
        one.hear("ready", limit)?;
    }
    let monitor = if take.counting { server.monitor().transpose()? } else { None };
    let counted = monitor.as_ref().map(super::servers::Monitor::settled);
    let clients = |all: &[Contender]| -> Usage {
        let each = all.iter().map(|one| Usage::of(one.child.id()));
        each.fold(Usage::default(), |sum, one| Usage { cpu: sum.cpu + one.cpu, memory: sum.memory + one.memory })
    };
    let (before, theirs, at_server) = (server.counts(), clients(all), server.usage());
    for one in all.iter_mut() {
        one.go()?;
    }
    std::thread::sleep(Duration::from_secs_f64(take.secs * 0.6));
    let (memory, server_memory) = (clients(all).memory, server.usage().map(|usage| usage.memory));
    let limit = patience(take.secs);
    let results = all.iter_mut().map(|one| one.hear("result", limit)).collect::<Result<Vec<_>, _>>()?;
    // One that has ended but was not waited for still tells its times.
    let (after, theirs_after, at_server_after) = (server.counts(), clients(all), server.usage());
    let sum = |name: &str| results.iter().filter_map(|result| result[name].as_f64()).sum::<f64>();
    let most = |name: &str| results.iter().filter_map(|result| result[name].as_f64()).fold(0.0, f64::max);
    let cycles = sum("cycles");
    let mut figures = Figures::new();
    let mut put = |name: &str, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            figures.insert(name.into(), value);
        }
    };
    let per_cycle = |from: Option<f64>, to: Option<f64>| Some((to? - from?).max(0.0) / cycles);
    put("cycles", Some(cycles));
    // Each counts in its own window: those that end late do so because their last cycle was long.
    let rate = results.iter().filter_map(|r| Some(r["cycles"].as_f64()? / r["secs"].as_f64()?)).sum::<f64>();
    put("cycles_s", Some(rate));
    // The worst process: what its users see.
    for name in ["p50_us", "p90_us", "p99_us", "max_us", "per_worker_max"] {
        put(name, Some(most(name)));
    }
    let least = results.iter().filter_map(|result| result["per_worker_min"].as_f64()).fold(f64::MAX, f64::min);
    put("per_worker_min", Some(least));
    if let Work::Pair { procs, threads, names: "one", .. } = take.work {
        // In turns of everybody: a fair line that never stalls is at one.
        let turn = (procs * threads) as f64 * 1e6 / rate;
        put("p99_turns", Some(most("p99_us") / turn));
        put("most_to_least", Some(most("per_worker_max") / least));
    }
    put("errors", Some(sum("errors")));
    put("client_cpu_us", Some((theirs_after.cpu - theirs.cpu).max(0.0) * 1e6 / cycles));
    put("client_mb", Some(memory));
    put("server_cpu_us", at_server.zip(at_server_after).map(|(from, to)| (to.cpu - from.cpu) * 1e6 / cycles));
    put("server_mb", server_memory);
    put("bytes_in", per_cycle(before.bytes_in, after.bytes_in));
    put("bytes_out", per_cycle(before.bytes_out, after.bytes_out));
    put("requests", per_cycle(before.requests, after.requests));
    put("requests", per_cycle(counted, monitor.as_ref().map(super::servers::Monitor::settled)));
    Ok(figures)
}

/// `idle` and `hold`: what it costs while nothing happens.
fn standing(take: &Take<'_>, server: &Server, mut one: Contender) -> Result<Figures, Failure> {
    one.hear("ready", patience(60.0))?;
    let monitor = if take.counting { server.monitor().transpose()? } else { None };
    let (before, theirs, at_server) = (server.counts(), Usage::of(one.child.id()), server.usage());
    let (counted, began) = (monitor.as_ref().map(super::servers::Monitor::settled), Instant::now());
    // Until shortly before the end: then all let go, which is no part of it.
    std::thread::sleep(Duration::from_secs_f64((take.secs - 0.4).max(take.secs / 2.0)));
    let counted = counted.zip(monitor.as_ref().map(super::servers::Monitor::seen));
    let secs = began.elapsed().as_secs_f64();
    let (after, theirs_after, at_server_after) = (server.counts(), Usage::of(one.child.id()), server.usage());
    drop(monitor);
    one.hear("done", patience(take.secs + 10.0))?;
    let result = one.hear("result", patience(take.secs + 60.0))?;
    let mut figures = numbers(&result, &["drain_secs", "acquired", "errors", "held", "acquire_secs"]);
    let mut put = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            figures.insert(name.into(), value);
        }
    };
    let rate = |from: Option<f64>, to: Option<f64>| Some((to? - from?).max(0.0) / secs);
    put("client_cpu_share", Some((theirs_after.cpu - theirs.cpu) / secs));
    put("client_mb", Some(theirs_after.memory));
    put("server_cpu_share", at_server.zip(at_server_after).map(|(from, to)| (to.cpu - from.cpu) / secs));
    put("server_mb", at_server_after.map(|usage| usage.memory));
    put("bytes_in_s", rate(before.bytes_in, after.bytes_in));
    put("bytes_out_s", rate(before.bytes_out, after.bytes_out));
    put("requests_s", rate(before.requests, after.requests));
    put("requests_s", counted.map(|(from, to)| (to - from).max(0.0) / secs));
    Ok(figures)
}

/// Four processes add to one number under the lock: whether none was lost, and how many there should be.
pub(crate) fn proof(lock: &str, server: &Server, peers: &mut Peers, tag: &str) -> Result<(u64, u64), Failure> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("number");
    std::fs::write(&file, "0")?;
    let words: Vec<String> = [lock.to_string(), server.addr(), "proof".into(), "threads=4".into(), "rounds=12".into()]
        .into_iter()
        .chain([format!("file={}", file.display()), format!("tag={tag}")])
        .collect();
    let mut all =
        (0..4).map(|n| Contender::start(peers, lock, &words, folder.path(), n)).collect::<Result<Vec<_>, _>>()?;
    for one in &mut all {
        one.hear("ready", patience(10.0))?;
    }
    for one in &mut all {
        one.go()?;
    }
    let mut added = 0;
    for one in &mut all {
        added += one.hear("result", patience(60.0))?["added"].as_u64().unwrap_or(0);
    }
    Ok((std::fs::read_to_string(&file)?.trim().parse()?, added))
}
