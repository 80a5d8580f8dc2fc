//! Starts etcd servers for the tests: one, or a cluster, each on free ports, in a folder of its own, killed when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running cluster; one server is a small one.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
}

/// Where a server sits: as what the others and its clients know it, and what it is started through.
pub(crate) struct Seat {
    pub(crate) peer: String,
    pub(crate) client: String,
    pub(crate) through: Vec<String>,
}

impl Seat {
    /// On this machine, as any program.
    fn here() -> Seat {
        Seat { peer: "127.0.0.1".into(), client: "127.0.0.1".into(), through: Vec::new() }
    }
}

/// One server.
pub(crate) struct Member {
    /// The shell that guards it, and itself.
    child: Child,
    pub(crate) pid: u32,
    dir: TempDir,
    host: String,
    pub(crate) port: u16,
    through: Vec<String>,
    args: Vec<String>,
    tls: bool,
}

impl Cluster {
    /// One server.
    pub(crate) fn one() -> Cluster {
        Cluster::with(1, &[])
    }

    /// Three of them.
    pub(crate) fn three() -> Cluster {
        Cluster::with(3, &[])
    }

    /// So many, with more arguments. With certificates among them the clients' side speaks TLS.
    pub(crate) fn with(count: usize, args: &[&str]) -> Cluster {
        let seats: Vec<Seat> = (0..count).map(|_| Seat::here()).collect();
        (0..20).find_map(|_| Cluster::seated(&seats, args)).expect("no etcd could be started")
    }

    /// With each of them in a place of its own; nothing if they do not come up.
    pub(crate) fn seated(seats: &[Seat], args: &[&str]) -> Option<Cluster> {
        let ports: Vec<(u16, u16)> = seats.iter().map(|_| (free_port(), free_port())).collect();
        let name = |(i, (seat, (_, port))): (usize, (&Seat, &(u16, u16)))| format!("e{i}=http://{}:{port}", seat.peer);
        let all: Vec<String> = seats.iter().zip(&ports).enumerate().map(name).collect();
        let members = seats.iter().zip(&ports).enumerate();
        let members = members.map(|(i, (seat, ports))| Member::start(i, seat, *ports, &all, args));
        let mut cluster = Cluster { members: members.collect() };
        cluster.wait_until_up().then_some(cluster)
    }

    /// Whether all answer (and are ours: another process may have taken a port first, then ours has ended).
    fn wait_until_up(&mut self) -> bool {
        let limit = Instant::now() + Duration::from_secs(20);
        while Instant::now() < limit {
            if self.members.iter_mut().any(|member| member.child.try_wait().expect("our own child").is_some()) {
                return false;
            }
            if self.members.iter().all(Member::is_healthy) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// `host:port,host:port`
    pub(crate) fn hosts(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(Member::address).collect();
        hosts.join(",")
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://{}", self.hosts())
    }

    /// Runs `etcdctl` on the members that are up and gives what it wrote.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let output = self.ctl_command(args).output().expect("etcdctl can be run");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "etcdctl {args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    pub(crate) fn ctl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.hosts()).args(args);
        command
    }

    /// Which member leads.
    pub(crate) fn leader(&self) -> usize {
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let leads = |member: &Member| member.metric("etcd_server_is_leader") == Some(1.0);
            if let Some(leader) = self.members.iter().position(leads) {
                return leader;
            }
            assert!(Instant::now() < limit, "nobody leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Messages that the servers got from clients so far, the tests' own looks apart.
    pub(crate) fn messages(&self) -> u64 {
        let services = ["etcdserverpb.KV", "etcdserverpb.Lease", "etcdserverpb.Watch"];
        let of = |member: &Member| -> f64 {
            let text = member.get("/metrics").unwrap_or_default();
            let lines = text.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
            lines
                .filter(|line| services.iter().any(|service| line.contains(&format!("grpc_service=\"{service}\""))))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        self.members.iter().map(of).sum::<f64>() as u64
    }
}

impl Member {
    fn start(i: usize, seat: &Seat, (client, peer): (u16, u16), all: &[String], more: &[&str]) -> Member {
        let dir = TempDir::new_in(fast_folder()).expect("a temporary folder");
        let tls = more.contains(&"--cert-file");
        let scheme = if tls { "https" } else { "http" };
        let client_url = format!("{scheme}://{}:{client}", seat.client);
        let peer_url = format!("http://{}:{peer}", seat.peer);
        let mut args: Vec<String> = [
            ("--name", format!("e{i}")),
            ("--data-dir", dir.path().join("data").display().to_string()),
            ("--listen-client-urls", client_url.clone()),
            ("--advertise-client-urls", client_url),
            ("--listen-peer-urls", peer_url.clone()),
            ("--initial-advertise-peer-urls", peer_url),
            ("--initial-cluster", all.join(",")),
            ("--initial-cluster-token", format!("t{peer}")),
            ("--heartbeat-interval", "50".into()),
            ("--election-timeout", "500".into()),
            ("--logger", "zap".into()),
            ("--log-level", "error".into()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_string(), value])
        .collect();
        // The token must be the same for all.
        let at = args.iter().position(|arg| arg == "--initial-cluster-token").expect("it is there");
        args[at + 1] = format!("t{}", all.join("").len());
        if tls {
            // Health and counters without a certificate.
            args.extend(["--listen-metrics-urls".into(), format!("http://127.0.0.1:{}", metrics_port(peer))]);
        }
        args.extend(more.iter().map(ToString::to_string));
        let (child, pid) = guarded(&seat.through, &args);
        let (host, through) = (seat.client.clone(), seat.through.clone());
        Member { child, pid, dir, host, port: client, through, args, tls }
    }

    /// `host:port`
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn plain_port(&self) -> u16 {
        if !self.tls {
            return self.port;
        }
        let url = self.args.iter().skip_while(|arg| *arg != "--listen-metrics-urls").nth(1).expect("it is there");
        url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.get("/health").is_some_and(|text| text.contains("\"health\":\"true\""))
    }

    /// What the server says at a path, over plain HTTP.
    pub(crate) fn get(&self, path: &str) -> Option<String> {
        let host: IpAddr = self.host.parse().ok()?;
        let address = (host, self.plain_port()).into();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// One of the server's numbers.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        self.get("/metrics")?.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// Kills it as a power cut would.
    pub(crate) fn kill(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }

    /// Starts it again, with what is in its folder, and waits until it is up.
    pub(crate) fn restart(&mut self) {
        self.kill();
        for _ in 0..50 {
            (self.child, self.pid) = guarded(&self.through, &self.args);
            let limit = Instant::now() + Duration::from_secs(10);
            while Instant::now() < limit && self.child.try_wait().expect("our own child").is_none() {
                if self.is_healthy() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            self.kill();
        }
        panic!("the server in {} did not come up again", self.dir.path().display());
    }

    /// `STOP`, `CONT`.
    pub(crate) fn signal(&self, signal: &str) {
        let done = Command::new("kill").arg(format!("-{signal}")).arg(self.pid.to_string()).status();
        assert!(done.expect("kill can be run").success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The server dies with its standard input, so that it does not outlive a test program that ends without dropping anything.
const GUARD: &str =
    r#"exec 3<&0; "$@" >/dev/null 2>&1 </dev/null & p=$!; echo $p; (read _ <&3; kill -9 $p) >/dev/null 2>&1 & wait $p"#;

fn guarded(through: &[String], args: &[String]) -> (Child, u32) {
    let mut child = Command::new("sh")
        .args(["-c", GUARD, "sh"])
        .args(through)
        .arg(program())
        .args(args)
        .env("ETCD_UNSUPPORTED_ARCH", "arm64")
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

fn program() -> PathBuf {
    std::env::var_os("FENCELOCK_ETCD").map_or_else(|| "etcd".into(), PathBuf::from)
}

/// In memory where that can be had: the server syncs every write.
fn fast_folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

fn metrics_port(_peer: u16) -> u16 {
    free_port()
}

/// A port that nobody uses at the moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}
