//! A writer is stopped (SIGSTOP) past its lease, between looking at its guard and writing. Meanwhile another gets the lock and
//! writes. Then the first one goes on, and its write comes too late: each resource refuses it by its token.
//!
//! Without a URL the locks are in a SQLite file, and the resources are a gate in this process, a SQLite database and (with the
//! feature `tower`) an HTTP service. With one, the locks are there, and what is written to is there as well, behind the fence
//! of its kind.
//!
//! ```sh
//! cargo run -p fencelock --example paused_writer
//! cargo run -p fencelock --all-features --example paused_writer -- redis://127.0.0.1
//! cargo run -p fencelock --all-features --example paused_writer -- postgres://postgres@127.0.0.1/postgres
//! cargo run -p fencelock --all-features --example paused_writer -- mysql://root@127.0.0.1/shop
//! cargo run -p fencelock --all-features --example paused_writer -- zookeeper://127.0.0.1
//! cargo run -p fencelock --all-features --example paused_writer -- etcd://127.0.0.1
//! ```

#[cfg(feature = "etcd")]
mod gateway;
mod here;
mod servers;

use fencelock::fence::header;
use fencelock::store::BoxFuture;
use fencelock::{ErrorKind, Locks, Token};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Set for the second process: where the locks are.
pub(crate) const WRITER: &str = "FENCELOCK_EXAMPLE_WRITER";
/// The shortest that every store here can keep.
const LEASE: Duration = Duration::from_secs(2);

/// Anything that can go wrong.
pub(crate) type Anyhow<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What can be written to, behind the fence of its kind.
pub(crate) trait Resource: Send {
    fn name(&self) -> &'static str;

    /// One write, under this token.
    fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, fencelock::Result<()>>;
}

/// Both processes begin here.
#[allow(dead_code, reason = "the test of this example begins elsewhere")]
fn main() -> Anyhow<()> {
    match std::env::var(WRITER) {
        Ok(url) => writer(&url),
        Err(_) => resources(std::env::args().nth(1).as_deref()).map(drop),
    }
}

/// Takes the lock and writes whenever it is told to, without another look at its guard: that look would help only until the
/// next pause.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn writer(url: &str) -> Anyhow<()> {
    let locks = Locks::builder(url).lease(LEASE).connect().await?;
    let guard = locks.mutex("stock/42").lock().await?;
    for _ in std::io::stdin().lines() {
        println!("{}", header::write(&guard.token()));
    }
    Ok(())
}

/// The process that has the resources, and becomes the next holder. Says which of them have refused the late write: all.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn resources(url: Option<&str>) -> Anyhow<Vec<&'static str>> {
    let folder = tempfile::tempdir()?;
    let mut resources = here::all(folder.path())?;
    if let Some(url) = url {
        resources.push(servers::at(url).await?);
    }
    let url = url.map_or_else(|| format!("sqlite:{}", folder.path().join("locks.db").display()), String::from);
    let mut paused = Other::start(&url)?;

    let first = paused.write()?;
    for resource in &mut resources {
        resource.write(&first).await?;
    }
    println!("the first writer has token {first} and writes everywhere");

    paused.signal(Signal::STOP)?;
    let locks = Locks::connect(&url).await?;
    let guard = locks.mutex("stock/42").lock_within(Duration::from_secs(60)).await?;
    println!("it is stopped; its lease ends, and the next writer gets token {}", guard.token());
    for resource in &mut resources {
        resource.write(&guard.token()).await?;
    }

    paused.signal(Signal::CONT)?;
    let late = paused.write()?;
    assert_eq!(late, first, "it does not know");
    println!("it goes on and writes with token {late}:");
    let mut refusals = Vec::new();
    for resource in &mut resources {
        let refused = resource.write(&late).await.expect_err("a late write was accepted");
        assert_eq!(refused.kind(), ErrorKind::Overtaken, "{refused}");
        println!("  {:<10} refused: {refused}", resource.name());
        refusals.push(resource.name());
    }
    guard.release().await?;
    Ok(refusals)
}

/// The other process.
struct Other {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(url: &str) -> Anyhow<Other> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(WRITER, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Other { child, said })
    }

    /// Lets it write, and says with which token.
    fn write(&mut self) -> Anyhow<Token> {
        writeln!(self.child.stdin.as_mut().ok_or("no stdin")?, "write")?;
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(header::read(line.trim_end())?)
    }

    fn signal(&self, signal: Signal) -> Anyhow<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or("no process id")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
