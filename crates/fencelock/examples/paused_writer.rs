//! A writer is stopped (SIGSTOP) past its lease, between looking at its guard and writing. Meanwhile another gets the lock and
//! writes. Then the first one goes on, and its write comes too late: each resource refuses it by its token.
//!
//! ```sh
//! cargo run -p fencelock --example paused_writer --features sqlite,redis,tower
//! ```

use fencelock::fence::tower::{FenceLayer, Fenced, TokenLayer};
use fencelock::fence::{self, Gate, header};
use fencelock::redis::aio::MultiplexedConnection;
use fencelock::rusqlite::Connection;
use fencelock::{Error, ErrorKind, Locks, Token};
use http::{Request, Response, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};

/// Set for the second process: where the locks are.
pub(crate) const WRITER: &str = "FENCELOCK_EXAMPLE_WRITER";
const LEASE: Duration = Duration::from_secs(1);

/// Anything that can go wrong.
pub(crate) type Anyhow<T> = Result<T, Box<dyn std::error::Error>>;

/// Both processes begin here.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Anyhow<()> {
    match std::env::var(WRITER) {
        Ok(url) => writer(&url).await,
        Err(_) => resources().await,
    }
}

/// Takes the lock and writes whenever it is told to, without another look at its guard: that look would help only until the
/// next pause.
async fn writer(url: &str) -> Anyhow<()> {
    let locks = Locks::builder(url).lease(LEASE).connect().await?;
    let guard = locks.mutex("stock/42").lock().await?;
    for _ in std::io::stdin().lines() {
        println!("{}", header::write(&guard.token()));
    }
    Ok(())
}

/// The process that has the resources, and becomes the next holder.
async fn resources() -> Anyhow<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut paused = Other::start(&url)?;
    let redis = RedisServer::start(folder.path());
    let mut resources = Resource::all(folder.path(), redis.as_ref()).await?;

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
    for resource in &mut resources {
        let refused = resource.write(&late).await.expect_err("a late write was accepted");
        assert_eq!(refused.kind(), ErrorKind::Overtaken);
        println!("  {:<8} refused: {refused}", resource.name());
    }
    guard.release().await?;
    Ok(())
}

/// What can be written to, each behind the fence of its kind.
enum Resource {
    InProcess(Gate),
    Sqlite(Connection),
    Http(Fenced<BoxCloneService<Request<String>, Response<String>, Infallible>>),
    Redis(MultiplexedConnection),
}

impl Resource {
    async fn all(folder: &Path, redis: Option<&RedisServer>) -> Anyhow<Vec<Resource>> {
        let shop = Connection::open(folder.join("shop.db"))?;
        fence::sqlite::migrate(&shop)?;
        shop.execute_batch("CREATE TABLE stock (pieces INTEGER); INSERT INTO stock VALUES (100)")?;
        let service = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
        let service = FenceLayer::new(Gate::new()).layer(BoxCloneService::new(service));
        let mut all = vec![Resource::InProcess(Gate::new()), Resource::Sqlite(shop), Resource::Http(service)];
        match redis {
            Some(server) => all.push(Resource::Redis(server.connect().await?)),
            None => println!("(there is no redis-server here: Redis is left out)"),
        }
        Ok(all)
    }

    fn name(&self) -> &str {
        match self {
            Resource::InProcess(_) => "gate",
            Resource::Sqlite(_) => "SQLite",
            Resource::Http(_) => "HTTP",
            Resource::Redis(_) => "Redis",
        }
    }

    async fn write(&mut self, token: &Token) -> fencelock::Result<()> {
        let failed = |error| Error::new(ErrorKind::Unavailable, "the shop's own database").caused_by(error);
        match self {
            Resource::InProcess(gate) => {
                let pass = gate.enter(token).await?;
                // ... the write ...
                drop(pass);
            }
            Resource::Sqlite(shop) => {
                let transaction = shop.transaction().map_err(failed)?;
                fence::sqlite::accept(&transaction, token)?;
                transaction.execute("UPDATE stock SET pieces = pieces - 1", ()).map_err(failed)?;
                transaction.commit().map_err(failed)?;
            }
            Resource::Http(service) => {
                let client = TokenLayer::new(token).layer(service);
                let Ok(response) = client.oneshot(Request::new(String::new())).await;
                if response.status() == StatusCode::PRECONDITION_FAILED {
                    return Err(Error::new(ErrorKind::Overtaken, response.into_body()));
                }
            }
            Resource::Redis(connection) => {
                let sell = fence::redis::FencedScript::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
                let _left: i64 = sell.call(connection, "stock:marks", token, &["stock:42"], &["1"]).await?;
            }
        }
        Ok(())
    }
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

/// A server of our own, on a socket file.
struct RedisServer {
    child: Child,
    client: fencelock::redis::Client,
}

impl RedisServer {
    fn start(folder: &Path) -> Option<RedisServer> {
        let socket = folder.join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .current_dir(folder)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let client = fencelock::redis::Client::open(format!("redis+unix://{}", socket.display())).ok()?;
        Some(RedisServer { child, client })
    }

    async fn connect(&self) -> Anyhow<MultiplexedConnection> {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            match self.client.get_multiplexed_async_connection().await {
                Ok(connection) => return Ok(connection),
                Err(error) if Instant::now() > end => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
