//! Starts Redis servers for the tests: each on a free port, in a folder of its own, killed when dropped.

use redis::{FromRedisValue, Value};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running server.
pub(crate) struct Server {
    /// The shell that guards it, and itself.
    child: Child,
    pid: u32,
    dir: TempDir,
    port: u16,
    program: PathBuf,
    args: Vec<String>,
    password: Option<String>,
}

impl Server {
    /// A server without persistence.
    pub(crate) fn start() -> Server {
        Server::with(&[])
    }

    /// The same with more arguments.
    pub(crate) fn with(args: &[&str]) -> Server {
        Server::of(&redis(), args)
    }

    /// The same of another program that speaks its language.
    pub(crate) fn of(program: &Path, args: &[&str]) -> Server {
        for _ in 0..20 {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let port = free_port();
            let args: Vec<String> = args.iter().map(|arg| arg.replace("$DIR", &dir.path().to_string_lossy())).collect();
            let password = args.iter().skip_while(|arg| *arg != "--requirepass").nth(1).cloned();
            let (child, pid) = spawn(program, dir.path(), port, &args);
            let mut server = Server { child, pid, dir, port, program: program.into(), args, password };
            if server.wait_until_up() {
                return server;
            }
        }
        panic!("no {} could be started", program.display());
    }

    /// Two replicas that have caught up and said so: for up to a second more they would confirm nothing.
    pub(crate) fn replicas_of(master: &Server) -> [Server; 2] {
        let start = || Server::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
        let replicas = [start(), start()];
        let limit = Instant::now() + Duration::from_secs(15);
        // Something that they can confirm.
        let _: u64 = master.command(&["PUBLISH", "warm", "up"]);
        for replica in &replicas {
            let online = format!("port={},state=online,offset=", replica.port);
            let confirms = || {
                let info: String = master.command(&["INFO", "replication"]);
                info.split_once(&online).is_some_and(|(_, offset)| !offset.starts_with('0'))
            };
            while !confirms() {
                assert!(Instant::now() < limit, "the replica does not catch up");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        replicas
    }

    /// A sentinel that watches `master` as `locks`, with a quorum of two.
    pub(crate) fn sentinel_of(master: &Server) -> Server {
        Server::watching(master.port, 2, &[])
    }

    /// The same on its own, with more arguments, and the master on another port than commands of tests go to.
    pub(crate) fn sentinel(master_port: u16, args: &[String]) -> Server {
        Server::watching(master_port, 1, args)
    }

    fn watching(master_port: u16, quorum: u32, args: &[String]) -> Server {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let conf = dir.path().join("sentinel.conf");
        let lines = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {}\nsentinel monitor locks 127.0.0.1 {master_port} \
             {quorum}\nsentinel down-after-milliseconds locks 500\nsentinel failover-timeout locks 3000\n",
            dir.path().display(),
        );
        std::fs::write(&conf, lines).expect("a file in our own folder");
        let mut all: Vec<OsString> = vec![conf.into(), "--sentinel".into()];
        all.extend(args.iter().map(OsString::from));
        let (child, pid) = guarded(&redis(), &all);
        let mut server = Server { child, pid, dir, port, program: redis(), args: Vec::new(), password: None };
        assert!(server.wait_until_up(), "the sentinel does not come up");
        server
    }

    /// Whether it answers (and is ours: another process may have taken the port first, then ours has ended).
    fn wait_until_up(&mut self) -> bool {
        let limit = Instant::now() + Duration::from_secs(10);
        while Instant::now() < limit {
            if self.child.try_wait().expect("our own child").is_some() {
                return false;
            }
            if self.try_command::<Value>(&["PING"]).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn client(&self) -> redis::Client {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        redis::Client::open(format!("redis://{password}127.0.0.1:{}", self.port)).expect("a good address")
    }

    pub(crate) fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut connection = self.client().get_connection_with_timeout(Duration::from_secs(5))?;
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        cmd.query(&mut connection)
    }

    /// One command on a connection of its own.
    pub(crate) fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// A number that INFO tells: `commandstats`, `cmdstat_evalsha`, `calls`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info: String = self.command(&["INFO", "commandstats"]);
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// How many scripts were called: the requests of a client that sends nothing else.
    pub(crate) fn requests(&self) -> u64 {
        ["eval", "evalsha", "fcall"].iter().map(|command| self.calls(command)).sum()
    }

    /// How many commands were carried out, those inside scripts included.
    pub(crate) fn commands(&self) -> u64 {
        let info: String = self.command(&["INFO", "stats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.and_then(|rest| rest.trim().parse().ok()).expect("a number")
    }

    /// Kills it as a power cut would.
    pub(crate) fn kill(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }

    /// Starts it again on the same port, with whatever is in its folder.
    pub(crate) fn restart(&mut self) {
        self.kill();
        for _ in 0..50 {
            (self.child, self.pid) = spawn(&self.program, self.dir.path(), self.port, &self.args);
            if self.wait_until_up() {
                return;
            }
        }
        panic!("the server did not come up again");
    }

    /// How long its file of commands is.
    pub(crate) fn written(&self) -> u64 {
        std::fs::metadata(self.commands_file()).expect("it writes down what it does").len()
    }

    /// Cuts that file off, as a power cut does with what was not on the disk yet.
    pub(crate) fn forget_from(&self, length: u64) {
        let file = std::fs::OpenOptions::new().write(true).open(self.commands_file());
        file.and_then(|file| file.set_len(length)).expect("a file in our own folder");
    }

    fn commands_file(&self) -> PathBuf {
        let files = std::fs::read_dir(self.dir.path().join("appendonlydir")).expect("it writes down what it does");
        let mut paths = files.map(|file| file.expect("a file in our own folder").path());
        paths.find(|path| path.to_string_lossy().ends_with(".incr.aof")).expect("a file of commands")
    }

    /// The processes' own business: no key, no connection of the client's is touched.
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

/// The server dies with its standard input, so that it does not outlive a test program that ends without dropping anything.
pub(crate) const GUARD: &str =
    r#"exec 3<&0; "$@" >/dev/null 2>&1 </dev/null & p=$!; echo $p; (read _ <&3; kill -9 $p) >/dev/null 2>&1 & wait $p"#;

fn spawn(program: &Path, dir: &Path, port: u16, args: &[String]) -> (Child, u32) {
    let port = port.to_string();
    let fixed = ["--port", &port, "--bind", "127.0.0.1", "--protected-mode", "no", "--save", "", "--appendonly", "no"];
    let more = ["--daemonize", "no", "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0", "--dir"];
    let mut all: Vec<OsString> = fixed.iter().chain(&more).map(OsString::from).collect();
    all.push(dir.into());
    all.extend(args.iter().map(OsString::from));
    guarded(program, &all)
}

fn guarded(program: &Path, args: &[OsString]) -> (Child, u32) {
    let mut child = Command::new("sh")
        .args(["-c", GUARD, "sh"])
        .arg(program)
        .args(args)
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

fn redis() -> PathBuf {
    std::env::var_os("FENCELOCK_REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from)
}

/// A port that nobody uses at the moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}
