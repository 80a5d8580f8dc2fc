//! `fencelock-bench worker IMPL ADDR WORKLOAD key=value...`: one measured process. It prints JSON objects, one a line, on
//! stdout, and everything else on stderr.
//!
//! IMPL: `memory`, `sqlite`, `redis`, `redis-cluster`, `quorum`, `zookeeper` (and each with `-unfair`), `floor-sqlite`,
//! `floor-redis`, `floor-zookeeper`. ADDR: a file for sqlite, a name for memory, host:port for redis (several, with commas
//! between them, for a cluster), or a store URL.
//!
//! - `pair threads=T secs=S names=own|one|N warm=W hold_us=H tag=X`
//! - `idle waiters=W secs=S tag=X`
//! - `hold locks=N secs=S tag=X`
//! - `pingpong secs=S tag=X settle_us=5000 jitter_us=0 procs=1|2`

mod floor_consul;
mod floor_etcd;
mod floors;
mod idle;
mod impls;
mod pair;
mod params;
mod pingpong;

use params::Params;
use std::process::ExitCode;

const USAGE: &str = "usage: fencelock-bench worker IMPL ADDR pair|idle|hold|pingpong [key=value...]
  IMPL   memory, sqlite, redis, redis-cluster, quorum, zookeeper, etcd, consul, postgres, postgres-session, mysql, mysql-session
         (or each with -unfair), and floor- before sqlite, redis, zookeeper, etcd, consul, postgres, postgres-session, mysql, mysql-session
  ADDR   a file (sqlite), a name (memory), host:port (redis, redis-cluster, zookeeper, etcd, consul, postgres, mysql), or a store URL
  pair      threads=1 secs=3 names=own|one|N warm=1 hold_us=0 tag=bench   (then waits for one line on stdin)
  idle      waiters=100 secs=5 tag=bench
  hold      locks=1000 secs=5 tag=bench
  pingpong  secs=3 settle_us=5000 jitter_us=0 procs=1 tag=bench";

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some("worker"), true) = (args.first().map(String::as_str), args.len() >= 4) else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    match work(&args[1], &args[2], &args[3], &args[4..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fencelock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(name: &str, addr: &str, workload: &str, rest: &[String]) -> Result<(), Failure> {
    let params = Params::parse(rest)?;
    match workload {
        "pair" => pair::run(name, addr, &params),
        "idle" => idle::idle(name, addr, &params),
        "hold" => idle::hold(name, addr, &params),
        "pingpong" => pingpong::run(name, addr, &params),
        other => Err(format!("no workload is called {other:?}\n{USAGE}").into()),
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
