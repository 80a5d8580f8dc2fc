//! Starts a Consul agent: `consul` from the path, or what `FENCELOCK_CONSUL` names; in memory, on free ports, killed when dropped.

use crate::worker::Failure;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running agent.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) port: u16,
}

/// The program, if there is one.
pub(crate) fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FENCELOCK_CONSUL") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("consul")).find(|program| program.is_file())
}

impl Agent {
    pub(crate) fn start() -> Result<Agent, Failure> {
        let program = program().ok_or("there is no consul, and FENCELOCK_CONSUL names none")?;
        for _ in 0..5 {
            // Held together, so that they differ.
            let held = [0; 3].map(|_| TcpListener::bind("127.0.0.1:0"));
            let mut ports = Vec::new();
            for one in &held {
                ports.push(one.as_ref().map_err(|error| error.to_string())?.local_addr()?.port());
            }
            drop(held);
            let child = Command::new(&program)
                .args(["agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-dns-port=-1", "-grpc-port=-1"])
                .args(["-serf-wan-port=-1", "-log-level=err", "-disable-host-node-id", "-node=n1"])
                .args([format!("-http-port={}", ports[0]), format!("-server-port={}", ports[1])])
                .arg(format!("-serf-lan-port={}", ports[2]))
                .args(["-hcl", r#"telemetry { prometheus_retention_time = "24h" disable_hostname = true }"#])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            let mut agent = Agent { child, port: ports[0] };
            let limit = Instant::now() + Duration::from_secs(20);
            while Instant::now() < limit && agent.child.try_wait()?.is_none() {
                // Sessions need a leader and the node in the catalogue.
                let leader = agent.get("/v1/status/leader").is_some_and(|body| body.contains(':'));
                if leader && agent.get("/v1/catalog/nodes").is_some_and(|body| body.contains("\"Node\"")) {
                    return Ok(agent);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Err("no consul could be started".into())
    }

    /// Requests that it has answered so far, these looks apart. One that waits for a change counts when it is answered.
    pub(crate) fn requests(&self) -> Option<f64> {
        let told = self.get("/v1/agent/metrics?format=prometheus")?;
        let count = |beginning: &str| {
            let mut lines =
                told.lines().filter(|line| line.starts_with(beginning) && !line.contains("v1_agent_metrics"));
            let counts =
                lines.by_ref().filter_map(|line| line.split_once("_count")?.1.rsplit(' ').next()?.parse::<f64>().ok());
            counts.fold(None, |sum: Option<f64>, one| Some(sum.unwrap_or(0.0) + one))
        };
        // Later versions say it in another way, and some in both.
        count("consul_api_http").or_else(|| count("consul_http"))
    }

    /// The body of an answer.
    pub(crate) fn get(&self, path: &str) -> Option<String> {
        let address = ([127, 0, 0, 1], self.port).into();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text.split_once("\r\n\r\n")?.1.to_string())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
