//! What there is to play on: the databases and stores that were named, SQLite in a temporary folder, and with `--all` every server
//! whose program is on this machine, each on a free port and in a folder of its own.

use crate::Result;
use crate::args::Common;
use crate::shop;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Databases and stores, the embedded ones first unless others were named. What was started ends with this.
pub(crate) struct World {
    pub(crate) databases: Vec<String>,
    pub(crate) stores: Vec<String>,
    /// What was found and what was not.
    pub(crate) said: Vec<String>,
    /// What was wanted and is not there, by its name in the table, and why.
    pub(crate) missing: Vec<(String, String)>,
    _servers: Vec<Server>,
    _folder: TempDir,
}

impl World {
    pub(crate) fn open(common: &Common) -> Result<World> {
        let folder = tempfile::Builder::new().prefix("flash-sale").tempdir()?;
        let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
        let mut databases: Vec<String> = common.db.iter().cloned().collect();
        for db in &databases {
            shop::kind(db)?;
        }
        let mut stores = common.store.clone();
        // Beside all servers, the embedded ones have rows of their own; beside some, they only stand in for what is not there.
        let embedded = common.start.is_empty();
        if databases.is_empty() && embedded {
            databases.push(file("shop.db"));
        }
        if stores.is_empty() && embedded {
            stores.push(file("locks.db"));
        }
        let wanted = |kind: &Kind| match common.start.is_empty() {
            true => common.all,
            false => common.start.contains(kind),
        };
        // All at once: each takes its time to come up.
        let starting = KINDS.iter().filter(|kind| wanted(kind)).map(|kind| {
            let handle = std::thread::spawn(|| Server::start(*kind));
            (*kind, handle)
        });
        let (mut said, mut missing, mut servers) = (Vec::new(), Vec::new(), Vec::new());
        for (kind, handle) in starting.collect::<Vec<_>>() {
            match handle.join().map_err(|_| "a server could not be started")? {
                Ok(server) => {
                    said.push(format!("{}: {}", kind.told(), server.url));
                    // The last database is what the locks of other stores guard.
                    if matches!(kind, Kind::MariaDb | Kind::Postgres) {
                        databases.push(server.url.clone());
                    }
                    stores.push(server.url.clone());
                    servers.push(server);
                }
                Err(why) => {
                    said.push(format!("{}: not run: {why}", kind.told()));
                    missing.push((kind.name(), why.to_string()));
                }
            }
        }
        if databases.is_empty() {
            databases.push(file("shop.db"));
        }
        if stores.is_empty() {
            stores.push(file("locks.db"));
        }
        Ok(World { databases, stores, said, missing, _servers: servers, _folder: folder })
    }
}

/// A server that this program can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Redis
    Redis,
    /// MariaDB
    #[value(name = "mariadb")]
    MariaDb,
    /// PostgreSQL
    Postgres,
    /// ZooKeeper
    #[value(name = "zookeeper")]
    ZooKeeper,
    /// etcd
    Etcd,
    /// Consul
    Consul,
}

const KINDS: &[Kind] = &[Kind::Redis, Kind::MariaDb, Kind::Postgres, Kind::ZooKeeper, Kind::Etcd, Kind::Consul];

impl Kind {
    /// As on the command line and in the table.
    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// As people write it.
    fn told(self) -> &'static str {
        match self {
            Kind::Redis => "Redis",
            Kind::MariaDb => "MariaDB",
            Kind::Postgres => "PostgreSQL",
            Kind::ZooKeeper => "ZooKeeper",
            Kind::Etcd => "etcd",
            Kind::Consul => "Consul",
        }
    }
}

/// One that runs; it is killed when this is dropped, and dies with this program in any case.
struct Server {
    child: Child,
    url: String,
    _folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// For a shell: what it starts dies with the shell's standard input, so with this program, however that ends.
pub(crate) const GUARD: &str =
    r#"exec 3<&0; "$@" >/dev/null 2>&1 </dev/null & p=$!; (read _ <&3; kill -9 $p) >/dev/null 2>&1 & wait $p"#;

impl Server {
    fn start(kind: Kind) -> Result<Server> {
        let program = program(kind)?;
        let mut why = "it does not come up".to_string();
        // Somebody else may take the port between the look and the start.
        for _ in 0..3 {
            let folder = tempfile::Builder::new().prefix("flash-sale").tempdir()?;
            let port = free_port()?;
            let command = command(kind, &program, folder.path(), port)?;
            let mut guarded = Command::new("sh");
            guarded.args(["-c", GUARD, "sh"]).arg(command.get_program()).args(command.get_args());
            if let Some((user, group)) = user_of(kind) {
                guarded.uid(user).gid(group);
            }
            guarded.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut server = Server { child: guarded.spawn()?, url: url(kind, port), _folder: folder };
            let limit = Instant::now() + Duration::from_secs(60);
            while server.child.try_wait()?.is_none() && Instant::now() < limit {
                if answers(kind, port) {
                    return Ok(server);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            why = format!("{} does not come up", program.display());
        }
        Err(why.into())
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn url(kind: Kind, port: u16) -> String {
    match kind {
        Kind::Redis => format!("redis://127.0.0.1:{port}"),
        Kind::MariaDb => format!("mysql://root@127.0.0.1:{port}/shop"),
        Kind::Postgres => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
        Kind::ZooKeeper => format!("zookeeper://127.0.0.1:{port}"),
        Kind::Etcd => format!("etcd://127.0.0.1:{port}"),
        Kind::Consul => format!("consul://127.0.0.1:{port}"),
    }
}

/// Where the program is.
fn program(kind: Kind) -> Result<PathBuf> {
    let name = match kind {
        Kind::Redis => "redis-server",
        Kind::MariaDb => "mariadbd",
        Kind::Postgres => "postgres",
        Kind::ZooKeeper => "java",
        Kind::Etcd => "etcd",
        Kind::Consul => "consul",
    };
    if let Some(named) = std::env::var_os("FENCELOCK_CONSUL").map(PathBuf::from).filter(|_| kind == Kind::Consul) {
        return if named.is_file() { Ok(named) } else { Err(format!("no {}", named.display()).into()) };
    }
    if kind == Kind::ZooKeeper && !Path::new(JARS).join("zookeeper.jar").exists() {
        return Err(format!("no {JARS}/zookeeper.jar").into());
    }
    // Debian keeps PostgreSQL's programs out of the path.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let postgres = versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists()).max();
    let path = std::env::var_os("PATH").unwrap_or_default();
    // `cargo xtask test` unpacks a Consul beside the build where the machine has none.
    let beside = std::env::current_exe()?.ancestors().nth(2).map(|target| target.join("tmp/consul/usr/bin"));
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).chain(beside);
    let found = postgres.into_iter().chain(places.map(|place| place.join(name))).find(|path| path.is_file());
    found.ok_or_else(|| format!("no {name}").into())
}

const JARS: &str = "/usr/share/java";

/// Makes what it needs in its folder, and gives the command. None of them waits for the disk: what is in there is thrown away, and no two
/// disks are alike.
fn command(kind: Kind, program: &Path, folder: &Path, port: u16) -> Result<Command> {
    let data = folder.join("data");
    let mut command = Command::new(program);
    match kind {
        Kind::Redis => {
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command.arg("--dir").arg(folder);
        }
        Kind::Postgres => {
            give_away(folder, kind)?;
            let mut init = Command::new(program.with_file_name("initdb"));
            init.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
            if let Some((user, group)) = user_of(kind) {
                init.uid(user).gid(group);
            }
            succeed(init.current_dir("/"))?;
            command.arg("-D").arg(&data).arg("-k").arg(folder).args(["-p", &port.to_string()]);
            command.args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200", "-c", "fsync=off"]);
        }
        Kind::MariaDb => {
            let mut init = Command::new("mariadb-install-db");
            init.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
            init.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]);
            if is_root() {
                init.arg("--user=mysql");
            }
            succeed(&mut init)?;
            give_away(folder, kind)?;
            let file = folder.join("init.sql");
            std::fs::write(&file, "CREATE DATABASE IF NOT EXISTS shop;\n")?;
            command.arg("--no-defaults").arg(format!("--datadir={}", data.display())).arg(format!("--port={port}"));
            command.arg(format!("--socket={}", folder.join("s").display()));
            command.arg(format!("--pid-file={}", folder.join("pid").display()));
            command.arg(format!("--init-file={}", file.display()));
            command.args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=300"]);
            command.args(["--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--skip-log-bin"]);
        }
        Kind::ZooKeeper => {
            std::fs::create_dir_all(&data)?;
            let config = format!(
                "clientPort={port}\nclientPortAddress=127.0.0.1\ndataDir={}\ntickTime=500\nmaxClientCnxns=0\n\
                 minSessionTimeout=1000\nmaxSessionTimeout=60000\nadmin.enableServer=false\n",
                data.display()
            );
            let file = folder.join("zoo.cfg");
            std::fs::write(&file, config)?;
            let jars = ["zookeeper", "slf4j-simple"].map(|jar| format!("{JARS}/{jar}.jar")).join(":");
            command.args([
                "-Xms16m",
                "-Xmx128m",
                "-Dzookeeper.forceSync=no",
                "-Dzookeeper.jmx.log4j.disable=true",
                "-cp",
                &jars,
            ]);
            command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&file);
        }
        Kind::Etcd => {
            let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", free_port()?));
            command.args(["--name", "shop", "--logger", "zap", "--log-level", "error"]);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &format!("shop={peer}"), "--data-dir"]).arg(&data);
        }
        Kind::Consul => {
            command.args(["agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-node=shop", "-log-level=err"]);
            command.args(["-dns-port=-1", "-grpc-port=-1", "-serf-wan-port=-1", "-disable-host-node-id"]);
            command.arg(format!("-http-port={port}")).arg(format!("-server-port={}", free_port()?));
            command.arg(format!("-serf-lan-port={}", free_port()?));
            // A pause must not take longer here than elsewhere, and both nodes come from one address.
            command.args(["-hcl", r#"session_ttl_min = "1s""#, "-hcl", "disable_update_check = true"]);
            command.args(["-hcl", "limits { http_max_conns_per_client = 1000 }"]);
        }
    }
    Ok(command)
}

fn succeed(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string().into()),
    }
}

/// Whether it serves, not only listens, as far as can be seen without a client.
fn answers(kind: Kind, port: u16) -> bool {
    let quiet = |command: &mut Command| {
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let port_text = port.to_string();
    match kind {
        Kind::Postgres => {
            let Ok(postgres) = program(kind) else { return false };
            quiet(Command::new(postgres.with_file_name("pg_isready")).args(["-q", "-h", "127.0.0.1", "-p", &port_text]))
        }
        Kind::MariaDb => quiet(Command::new("mariadb-admin").args([
            "--no-defaults",
            "-uroot",
            "-h127.0.0.1",
            "--protocol=tcp",
            &format!("-P{port}"),
            "ping",
        ])),
        // A leader is an address in quotes, and sessions need the node in the catalogue.
        Kind::Consul => {
            let says = |path: &str, word: &str| get(port, path).is_some_and(|body| body.contains(word));
            says("/v1/status/leader", "\"127.") && says("/v1/catalog/nodes", "\"shop\"")
        }
        _ => TcpStream::connect(("127.0.0.1", port)).is_ok(),
    }
}

/// What a server of HTTP answers.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// The databases refuse to run as root: then as the users that their packages have made.
fn user_of(kind: Kind) -> Option<(u32, u32)> {
    let name = match kind {
        Kind::Postgres => "postgres:",
        Kind::MariaDb => "mysql:",
        _ => return None,
    };
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = users.lines().find(|line| line.starts_with(name)).filter(|_| is_root())?;
    let mut fields = line.split(':').skip(2).map(|field| field.parse().ok());
    Some((fields.next()??, fields.next()??))
}

/// To the user that the server runs as.
fn give_away(folder: &Path, kind: Kind) -> Result<()> {
    if let Some((user, group)) = user_of(kind) {
        std::os::unix::fs::chown(folder, Some(user), Some(group))?;
    }
    Ok(())
}
