//! `IMPL ADDR WORKLOAD key=value...`: one measured process, in the words of `bench/README.md`. It prints JSON objects, one a line, on
//! stdout, and everything else on stderr. Which locks there are says `crate::impls`, so that Rust peers share all of this.

mod idle;
mod pair;
mod params;
mod pingpong;
mod proof;

use params::Params;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) const WORKLOADS: &str = "\
  pair      threads=1 secs=3 names=own|one|N warm=1 hold_us=0 tag=bench   (then waits for one line on stdin)
  idle      waiters=100 secs=5 tag=bench
  hold      locks=1000 secs=5 tag=bench
  pingpong  secs=3 settle_us=5000 jitter_us=0 procs=1 tag=bench
  proof     threads=4 rounds=20 file=PATH tag=bench                       (then waits for one line on stdin)";

/// Does what the words say.
pub(crate) fn work(words: &[String]) -> Result<(), Failure> {
    let [name, addr, workload, rest @ ..] = words else {
        return Err("IMPL, ADDR and WORKLOAD are needed".into());
    };
    let params = Params::parse(rest)?;
    match workload.as_str() {
        "pair" => pair::run(name, addr, &params),
        "idle" => idle::idle(name, addr, &params),
        "hold" => idle::hold(name, addr, &params),
        "pingpong" => pingpong::run(name, addr, &params),
        "proof" => proof::run(name, addr, &params),
        other => Err(format!("no workload is called {other:?}").into()),
    }
}

/// One JSON object on a line of its own, flushed.
#[allow(clippy::print_stdout, reason = "this is what the program is for")]
fn say(object: &serde_json::Value) {
    use std::io::Write;
    println!("{object}");
    // A driver that has gone away ends us at the next line of it.
    let _ = std::io::stdout().flush();
}

/// A worker that waits for nobody else wants no second thread: a hop between threads is most of what one cycle costs.
fn runtime(tasks: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = if tasks == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder.enable_all().build()
}

/// The processor time that this process has used so far, in seconds.
fn cpu_secs() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The machine's clock, which all its processes share.
fn now_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
