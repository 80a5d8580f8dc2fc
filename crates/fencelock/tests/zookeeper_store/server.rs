//! Starts ZooKeeper servers for the tests, one or an ensemble of three: each on free ports, in a folder of its own, killed
//! when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server has to come up: the machine may be busy.
const UP: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Server {
    /// The shell that guards it, and itself.
    child: Child,
    pub(crate) pid: u32,
    dir: TempDir,
    /// Where its clients find it.
    host: String,
    port: u16,
    flags: Vec<String>,
    /// What stands before its command line: how to get to where it is to run.
    through: Vec<String>,
}

/// A member of an ensemble that does not live where the others do.
pub(crate) struct Seat {
    /// Where the others find it, and by which ports.
    pub(crate) host: String,
    pub(crate) ports: [u16; 2],
    /// Where clients find it.
    pub(crate) client: (String, u16),
    /// What stands before its command line.
    pub(crate) through: Vec<String>,
}

impl Server {
    /// A server alone.
    pub(crate) fn start() -> Server {
        Server::with(&[], &[])
    }

    /// The same with more lines in its configuration and more flags for Java; `$DIR` is its folder.
    pub(crate) fn with(lines: &[&str], flags: &[&str]) -> Server {
        for _ in 0..5 {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let port = free_port();
            let mut config = vec![format!("clientPort={port}"), "clientPortAddress=127.0.0.1".into()];
            config.extend(lines.iter().map(|line| line.to_string()));
            let mut server = Server::prepare(dir, ("127.0.0.1", port), &config, flags, &[]);
            if server.wait_until_up() {
                return server;
            }
        }
        panic!("no ZooKeeper could be started");
    }

    fn prepare(
        dir: TempDir,
        (host, port): (&str, u16),
        config: &[String],
        flags: &[&str],
        through: &[String],
    ) -> Server {
        let folder = dir.path().to_string_lossy().into_owned();
        let data = dir.path().join("data");
        std::fs::create_dir_all(&data).expect("a folder in our own folder");
        // Half a second is the shortest session that has time for two heart beats.
        let common = "tickTime=200\ninitLimit=50\nsyncLimit=15\nmaxClientCnxns=0\nminSessionTimeout=400\n\
                      maxSessionTimeout=60000\nadmin.enableServer=false\n4lw.commands.whitelist=*\n";
        let lines: String = config.iter().map(|line| line.replace("$DIR", &folder) + "\n").collect();
        std::fs::write(dir.path().join("zoo.cfg"), format!("{common}dataDir={folder}/data\n{lines}"))
            .expect("a file in our own folder");
        let flags: Vec<String> = flags.iter().map(|flag| flag.replace("$DIR", &folder)).collect();
        let (child, pid) = spawn(dir.path(), &flags, through);
        Server { child, pid, dir, host: host.to_string(), port, flags, through: through.to_vec() }
    }

    /// Whether it serves (and is ours: another process may have taken the port first, then ours has ended).
    fn wait_until_up(&mut self) -> bool {
        let limit = Instant::now() + UP;
        while Instant::now() < limit {
            if self.child.try_wait().expect("our own child").is_some() {
                return false;
            }
            if self.mode().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// `standalone`, `leader` or `follower`; nothing while it does not serve.
    pub(crate) fn mode(&self) -> Option<String> {
        let answer = self.ask("srvr")?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(String::from)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("zookeeper://{}:{}", self.host, self.port)
    }

    /// What it answers to one of its words of four letters.
    pub(crate) fn ask(&self, word: &str) -> Option<String> {
        let address = (self.host.parse::<std::net::IpAddr>().expect("an address"), self.port).into();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// A number that `mntr` tells.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let answer = self.ask("mntr").expect("it answers");
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        let value = value.unwrap_or_else(|| panic!("{name} is not told in {answer}"));
        value.trim().parse::<f64>().expect("a number") as u64
    }

    /// Kills it as a power cut would.
    pub(crate) fn kill(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }

    /// Starts it again on the same ports, with whatever is in its folder.
    pub(crate) fn restart(&mut self) {
        self.kill();
        for _ in 0..5 {
            (self.child, self.pid) = spawn(self.dir.path(), &self.flags, &self.through);
            if self.wait_until_up() {
                return;
            }
        }
        panic!("the server did not come up again");
    }

    /// The process' own business: no node, no connection of a client is touched.
    pub(crate) fn signal(&self, signal: &str) {
        let done = Command::new("kill").arg(format!("-{signal}")).arg(self.pid.to_string()).status();
        assert!(done.expect("kill can be run").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Three servers.
pub(crate) struct Ensemble {
    pub(crate) servers: Vec<Server>,
}

impl Ensemble {
    pub(crate) fn start() -> Ensemble {
        for _ in 0..5 {
            let ports: Vec<u16> = (0..9).map(|_| free_port()).collect();
            let peers: Vec<[u16; 2]> = (0..3).map(|n| [ports[n * 3], ports[n * 3 + 1]]).collect();
            let all = [&peers[..], &peers[..], &peers[..]].map(<[_]>::to_vec);
            let clients = [ports[2], ports[5], ports[8]];
            if let Some(ensemble) = Ensemble::try_start(&all, &clients) {
                return ensemble;
            }
        }
        panic!("no ensemble could be started");
    }

    /// With the ports by which each of them reaches each: its own are where it listens, the others' may lead through a proxy.
    pub(crate) fn try_start(seen: &[Vec<[u16; 2]>; 3], clients: &[u16; 3]) -> Option<Ensemble> {
        let mut servers = Vec::new();
        for (me, (seen, client)) in seen.iter().zip(clients).enumerate() {
            let mut config = vec!["standaloneEnabled=false".to_string()];
            for (n, [quorum, election]) in seen.iter().enumerate() {
                config.push(format!("server.{}=127.0.0.1:{quorum}:{election};127.0.0.1:{}", n + 1, clients[n]));
            }
            let dir = tempfile::tempdir().expect("a temporary folder");
            std::fs::create_dir_all(dir.path().join("data")).expect("a folder in our own folder");
            std::fs::write(dir.path().join("data/myid"), (me + 1).to_string()).expect("a file in our own folder");
            servers.push(Server::prepare(dir, ("127.0.0.1", *client), &config, &[], &[]));
        }
        let mut ensemble = Ensemble { servers };
        let up = ensemble.servers.iter_mut().all(Server::wait_until_up);
        up.then_some(ensemble)
    }

    /// With each of them in a place of its own.
    pub(crate) fn seated(seats: &[Seat; 3]) -> Option<Ensemble> {
        let mut config = vec!["standaloneEnabled=false".to_string()];
        for (n, Seat { host, ports: [quorum, election], client, .. }) in seats.iter().enumerate() {
            config.push(format!("server.{}={host}:{quorum}:{election};{}:{}", n + 1, client.0, client.1));
        }
        let start = |(me, seat): (usize, &Seat)| {
            let dir = tempfile::tempdir().expect("a temporary folder");
            std::fs::create_dir_all(dir.path().join("data")).expect("a folder in our own folder");
            std::fs::write(dir.path().join("data/myid"), (me + 1).to_string()).expect("a file in our own folder");
            Server::prepare(dir, (&seat.client.0, seat.client.1), &config, &[], &seat.through)
        };
        let mut ensemble = Ensemble { servers: seats.iter().enumerate().map(start).collect() };
        let up = ensemble.servers.iter_mut().all(Server::wait_until_up);
        up.then_some(ensemble)
    }

    /// All of them.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|server| format!("{}:{}", server.host, server.port)).collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// Who leads now; waits until somebody does.
    pub(crate) fn leader(&self) -> usize {
        let limit = Instant::now() + UP;
        loop {
            if let Some(leader) = self.servers.iter().position(|server| server.mode().as_deref() == Some("leader")) {
                return leader;
            }
            assert!(Instant::now() < limit, "nobody leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until all of them serve.
    pub(crate) fn settle(&mut self) {
        assert!(self.servers.iter_mut().all(Server::wait_until_up), "a server is down");
    }
}

/// The server dies with its standard input, so that it does not outlive a test program that ends without dropping anything.
const GUARD: &str =
    r#"exec 3<&0; "$@" >/dev/null 2>&1 </dev/null & p=$!; echo $p; (read _ <&3; kill -9 $p) >/dev/null 2>&1 & wait $p"#;

fn spawn(dir: &Path, flags: &[String], through: &[String]) -> (Child, u32) {
    let small = ["-XX:+UseSerialGC", "-Xms16m", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];
    let quick = [
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
        "-Dzookeeper.forceSync=no",
        "-Dzookeeper.preAllocSize=1024",
        "-Djava.net.preferIPv4Stack=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dzookeeper.nio.numWorkerThreads=2",
        "-Dzookeeper.nio.numSelectorThreads=1",
    ];
    // Debian's manifest forgets some of Netty, which only TLS needs.
    let jars = ["zookeeper", "slf4j-simple", "netty-all", "netty-codec", "netty-resolver"];
    let jars: Vec<String> = jars.iter().map(|jar| jars_in().join(format!("{jar}.jar")).display().to_string()).collect();
    let mut child = Command::new("sh")
        .args(["-c", GUARD, "sh"])
        .args(through)
        .arg("java")
        .args(small)
        .args(quick)
        .args(flags)
        .args(["-cp", &jars.join(":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain"])
        .arg(dir.join("zoo.cfg"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell can be run");
    let mut pid = String::new();
    let out = child.stdout.as_mut().expect("it is a pipe");
    BufReader::new(out).read_line(&mut pid).expect("the shell says who it started");
    (child, pid.trim().parse().expect("a process id"))
}

fn jars_in() -> PathBuf {
    std::env::var_os("FENCELOCK_ZOOKEEPER_JARS").map_or_else(|| "/usr/share/java".into(), PathBuf::from)
}

/// A port that nobody uses at the moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}
