//! Starts Consul agents for the tests: what `FENCELOCK_CONSUL` names, `consul` from the path, or one that lies beside the build;
//! on free ports, killed when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program, if there is one.
pub(crate) fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FENCELOCK_CONSUL") {
        return Some(named.into());
    }
    // Where `cargo xtask test` unpacks it, if the machine has none.
    let unpacked = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("consul/usr/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([unpacked]);
    folders.find_map(|folder| Some(folder.join("consul")).filter(|program| program.is_file()))
}

/// What to say where there is none.
pub(crate) const MISSING: &str = "not run: no consul, and FENCELOCK_CONSUL names none";

/// The agent dies with its standard input, so that it does not outlive a test program that ends without dropping anything.
const GUARD: &str =
    r#"exec 3<&0; "$@" >"$LOG" 2>&1 </dev/null & p=$!; echo $p; (read _ <&3; kill -9 $p) >/dev/null 2>&1 & wait $p"#;

/// Where one of a cluster is: for the others, for clients, and what comes before its command.
pub(crate) struct Seat {
    pub(crate) bind: String,
    pub(crate) client: String,
    pub(crate) through: Vec<String>,
}

/// A running agent.
pub(crate) struct Server {
    child: Child,
    pid: u32,
    dir: TempDir,
    host: String,
    http: u16,
    https: u16,
    /// What may see and do everything, where not everybody may.
    token: Option<String>,
    through: Vec<String>,
    args: Vec<String>,
}

impl Server {
    /// One server in memory that takes sessions of a second.
    pub(crate) fn start() -> Server {
        Server::with(&[r#"session_ttl_min="1s""#])
    }

    /// The same with other settings, in which `$HTTPS` is a free port.
    pub(crate) fn with(settings: &[&str]) -> Server {
        Server::start_with(settings, None)
    }

    /// The same where a token is needed to see anything.
    pub(crate) fn with_token(settings: &[&str], token: &str) -> Server {
        Server::start_with(settings, Some(token.to_string()))
    }

    fn start_with(settings: &[&str], token: Option<String>) -> Server {
        for _ in 0..20 {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let [http, rpc, serf, https] = free_ports();
            let mut args: Vec<String> =
                ["agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-dns-port=-1", "-grpc-port=-1"]
                    .map(String::from)
                    .into();
            args.extend([
                format!("-http-port={http}"),
                format!("-server-port={rpc}"),
                format!("-serf-lan-port={serf}"),
            ]);
            args.extend(
                ["-serf-wan-port=-1", "-log-level=warn", "-disable-host-node-id", "-node=n1"].map(String::from),
            );
            for setting in settings {
                args.extend(["-hcl".to_string(), setting.replace("$HTTPS", &https.to_string())]);
            }
            let (through, host) = (Vec::new(), "127.0.0.1".to_string());
            let (child, pid) = spawn(&dir, &through, &args);
            let mut server = Server { child, pid, dir, host, http, https, token: token.clone(), through, args };
            if server.wait_until_up() {
                return server;
            }
        }
        panic!("no consul could be started");
    }

    /// A cluster of three, with their data on disk.
    pub(crate) fn cluster() -> Vec<Server> {
        let here = || Seat { bind: "127.0.0.1".into(), client: "127.0.0.1".into(), through: Vec::new() };
        let made = (0..5).find_map(|_| Server::seated([here(), here(), here()]));
        made.expect("a cluster of consul can be started")
    }

    /// The same, each where it is told to be; if it comes up.
    pub(crate) fn seated(seats: [Seat; 3]) -> Option<Vec<Server>> {
        let ports: Vec<[u16; 4]> = seats.iter().map(|_| free_ports()).collect();
        let join: Vec<String> = seats
            .iter()
            .zip(&ports)
            .map(|(seat, [_, _, serf, _])| format!("-retry-join={}:{serf}", seat.bind))
            .collect();
        let start = |(node, seat): (usize, Seat)| {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let [http, rpc, serf, https] = ports[node];
            let mut args: Vec<String> = ["agent", "-server", "-bootstrap-expect=3"].map(String::from).into();
            args.extend([format!("-bind={}", seat.bind), format!("-client={}", seat.client)]);
            args.extend(["-dns-port=-1", "-grpc-port=-1", "-serf-wan-port=-1", "-log-level=warn"].map(String::from));
            args.extend(["-disable-host-node-id", "-retry-interval=200ms"].map(String::from));
            args.extend([
                format!("-http-port={http}"),
                format!("-server-port={rpc}"),
                format!("-serf-lan-port={serf}"),
            ]);
            args.extend([format!("-node=n{node}"), format!("-data-dir={}", dir.path().join("data").display())]);
            args.extend(join.iter().cloned());
            for setting in [
                r#"session_ttl_min="1s""#,
                r#"performance { raft_multiplier = 1 rpc_hold_timeout = "1s" }"#,
                "leave_on_terminate=false",
                "disable_update_check=true",
                r#"gossip_lan { probe_interval="100ms" probe_timeout="50ms" gossip_interval="20ms" suspicion_mult=2 }"#,
            ] {
                args.extend(["-hcl".to_string(), setting.to_string()]);
            }
            let (child, pid) = spawn(&dir, &seat.through, &args);
            Server { child, pid, dir, host: seat.client, http, https, token: None, through: seat.through, args }
        };
        let servers: Vec<Server> = seats.into_iter().enumerate().map(start).collect();
        let limit = Instant::now() + Duration::from_secs(30);
        while Instant::now() < limit {
            if servers.iter().all(Server::sees_all) {
                return Some(servers);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }

    /// Whether it knows a leader, and all of a cluster.
    pub(crate) fn sees_all(&self) -> bool {
        self.is_up() && self.nodes() >= 3
    }

    fn nodes(&self) -> usize {
        self.get("/v1/catalog/nodes").map_or(0, |body| body.matches("\"Node\"").count())
    }

    pub(crate) fn is_up(&self) -> bool {
        // A leader is an address in quotes; without one there are only the quotes. Sessions need the node in the catalogue.
        self.get("/v1/status/leader").is_some_and(|leader| leader.trim().len() > 2) && self.nodes() > 0
    }

    fn wait_until_up(&mut self) -> bool {
        let limit = Instant::now() + Duration::from_secs(20);
        while Instant::now() < limit {
            if self.child.try_wait().expect("our own child").is_some() {
                return false;
            }
            if self.is_up() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    pub(crate) fn port(&self) -> u16 {
        self.http
    }

    pub(crate) fn https_port(&self) -> u16 {
        self.https
    }

    /// Which of a cluster leads.
    pub(crate) fn leader(cluster: &[Server]) -> usize {
        let limit = Instant::now() + Duration::from_secs(60);
        while Instant::now() < limit {
            let leader = cluster.iter().find_map(|server| server.get("/v1/status/leader")).unwrap_or_default();
            let port = leader.trim().trim_matches('"').rsplit(':').next().unwrap_or_default();
            let leads = |server: &Server| server.args.contains(&format!("-server-port={port}"));
            if let Some(at) = cluster.iter().position(leads) {
                return at;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("nobody leads");
    }

    /// Sends the agent a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let done = Command::new("kill").arg(format!("-{signal}")).arg(self.pid.to_string()).status();
        assert!(done.expect("kill can be run").success(), "{signal} could not be sent");
    }

    pub(crate) fn url(&self) -> String {
        format!("consul://{}:{}", self.host, self.http)
    }

    fn get(&self, path: &str) -> Option<String> {
        self.request("GET", path, "").filter(|(status, _)| *status == 200).map(|(_, body)| body)
    }

    /// One request by hand: the status and the body.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect((self.host.as_str(), self.http)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let token = self.token.as_ref().map(|token| format!("X-Consul-Token: {token}\r\n")).unwrap_or_default();
        write!(stream, "{method} {path} HTTP/1.0\r\nHost: x\r\n{token}Content-Length: {}\r\n\r\n{body}", body.len())
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_string()))
    }

    /// Kills it as a power cut would.
    pub(crate) fn kill(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }

    /// Starts it again on the same ports, with whatever is in its folder.
    pub(crate) fn restart(&mut self) {
        self.kill();
        (self.child, self.pid) = spawn(&self.dir, &self.through, &self.args);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The shell that guards it, and the agent's own number.
fn spawn(dir: &TempDir, through: &[String], args: &[String]) -> (Child, u32) {
    let mut child = Command::new("sh")
        .args(["-c", GUARD, "sh"])
        .args(through)
        .arg(program().expect("asked for before"))
        .args(args)
        .env("LOG", dir.path().join("log"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell can be run");
    let mut pid = String::new();
    let out = child.stdout.as_mut().expect("it is a pipe");
    BufReader::new(out).read_line(&mut pid).expect("the shell says whom it started");
    (child, pid.trim().parse().expect("a process id"))
}

/// Ports that nobody uses at the moment.
fn free_ports() -> [u16; 4] {
    let listeners = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("its own address").port())
}
