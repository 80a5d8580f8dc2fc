//! The real servers, as the tests start them, and what they count.

use super::consul::Agent;
use super::process::Usage;
use crate::worker::Failure;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::TempDir;

#[path = "../../../crates/fencelock/tests/etcd_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod etcd;
#[path = "../../../crates/fencelock/tests/mysql_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod mysql;
#[path = "../../../crates/fencelock/tests/postgres_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod postgres;
#[path = "../../../crates/fencelock/tests/redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod redis;
#[path = "../../../crates/fencelock/tests/zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod zookeeper;

/// What a row runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Redis,
    Zookeeper,
    Etcd,
    Consul,
    Postgres,
    Mysql,
}

impl Kind {
    pub(crate) const ALL: [Kind; 7] =
        [Kind::Sqlite, Kind::Redis, Kind::Zookeeper, Kind::Etcd, Kind::Consul, Kind::Postgres, Kind::Mysql];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Sqlite => "sqlite",
            Kind::Redis => "redis",
            Kind::Zookeeper => "zookeeper",
            Kind::Etcd => "etcd",
            Kind::Consul => "consul",
            Kind::Postgres => "postgres",
            Kind::Mysql => "mysql",
        }
    }
}

/// A running server; killed when dropped.
pub(crate) enum Server {
    Sqlite(TempDir),
    Redis(redis::Server),
    Zookeeper(zookeeper::Server),
    Etcd(etcd::Cluster),
    Consul(Agent),
    Postgres(postgres::Server),
    Mysql(mysql::Server),
}

/// What a server has counted so far; where it does not count, nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: Option<f64>,
    pub(crate) bytes_in: Option<f64>,
    pub(crate) bytes_out: Option<f64>,
}

impl Server {
    /// A fresh one. The test helpers panic where their server is not on the machine: that is an error here.
    pub(crate) fn start(kind: Kind) -> Result<Server, Failure> {
        if kind == Kind::Consul {
            return Ok(Server::Consul(Agent::start()?));
        }
        std::panic::set_hook(Box::new(|_| {}));
        let started = std::panic::catch_unwind(|| match kind {
            Kind::Sqlite => Server::Sqlite(tempfile::tempdir().expect("a temporary folder")),
            Kind::Redis => Server::Redis(redis::Server::start()),
            Kind::Zookeeper => Server::Zookeeper(zookeeper::Server::start()),
            Kind::Etcd | Kind::Consul => Server::Etcd(etcd::Cluster::one()),
            Kind::Postgres => Server::Postgres(postgres::Server::start(&[])),
            Kind::Mysql => Server::Mysql(mysql::Server::start(&[])),
        });
        drop(std::panic::take_hook());
        let server = started.map_err(|_| format!("no server for {} could be started", kind.name()))?;
        if let Server::Mysql(server) = &server {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                use mysql_async::prelude::Queryable;
                let mut sql = server.sql("mysql").await;
                sql.query_drop("CREATE DATABASE test").await?;
                sql.disconnect().await
            })?;
        }
        Ok(server)
    }

    /// As the words say it: host:port, or a file.
    pub(crate) fn addr(&self) -> String {
        let port = match self {
            Server::Sqlite(folder) => return folder.path().join("locks.db").display().to_string(),
            Server::Redis(server) => server.port(),
            Server::Zookeeper(server) => server.port(),
            Server::Etcd(cluster) => cluster.members[0].port,
            Server::Consul(agent) => agent.port,
            Server::Postgres(server) => server.port,
            Server::Mysql(server) => server.port,
        };
        format!("127.0.0.1:{port}")
    }

    /// As the program wants it.
    pub(crate) fn url(&self) -> String {
        match self {
            Server::Sqlite(_) => format!("sqlite:{}", self.addr()),
            Server::Redis(_) => format!("redis://{}", self.addr()),
            Server::Zookeeper(_) => format!("zookeeper://{}", self.addr()),
            Server::Etcd(_) => format!("etcd://{}", self.addr()),
            Server::Consul(_) => format!("consul://{}", self.addr()),
            Server::Postgres(_) => format!("postgres://postgres@{}/postgres", self.addr()),
            Server::Mysql(_) => format!("mysql://root@{}/test", self.addr()),
        }
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        let child = |child: &std::sync::Mutex<Option<std::process::Child>>| {
            child.lock().unwrap_or_else(std::sync::PoisonError::into_inner).as_ref().map(std::process::Child::id)
        };
        let pid = match self {
            Server::Sqlite(_) => None,
            Server::Redis(server) => Some(server.pid),
            Server::Zookeeper(server) => Some(server.pid),
            Server::Etcd(cluster) => Some(cluster.members[0].pid),
            Server::Consul(agent) => Some(agent.child.id()),
            Server::Postgres(server) => child(&server.child),
            Server::Mysql(server) => child(&server.child),
        };
        pid.map(Usage::of)
    }

    /// Redis counts the commands inside scripts too, so its requests are counted by `Monitor`; what our own look costs is taken off.
    pub(crate) fn counts(&self) -> Counts {
        match self {
            Server::Redis(server) => {
                let read = || {
                    let info: String = server.command(&["INFO", "stats"]);
                    let number = |name: &str| {
                        info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap_or(0.0)
                    };
                    (number("total_net_input_bytes:"), number("total_net_output_bytes:"))
                };
                let (first, second) = (read(), read());
                // The second look saw the first one's bytes: half of each look lies before it, half behind.
                let (own_in, own_out) = (second.0 - first.0, second.1 - first.1);
                Counts { requests: None, bytes_in: Some(second.0 - own_in), bytes_out: Some(second.1 - own_out) }
            }
            Server::Zookeeper(server) => {
                Counts { requests: Some(server.number("zk_packets_received") as f64), ..Counts::default() }
            }
            Server::Etcd(cluster) => {
                let member = &cluster.members[0];
                Counts {
                    requests: Some(cluster.messages() as f64),
                    bytes_in: member.metric("etcd_network_client_grpc_received_bytes_total"),
                    bytes_out: member.metric("etcd_network_client_grpc_sent_bytes_total"),
                }
            }
            Server::Consul(agent) => Counts { requests: agent.requests(), ..Counts::default() },
            Server::Sqlite(_) | Server::Postgres(_) | Server::Mysql(_) => Counts::default(),
        }
    }

    pub(crate) fn version(&self) -> String {
        match self {
            Server::Sqlite(_) => rusqlite::version().to_string(),
            Server::Redis(server) => {
                let info: String = server.command(&["INFO", "server"]);
                let line = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
                line.unwrap_or_default().trim().to_string()
            }
            Server::Zookeeper(server) => {
                let answer = server.ask("mntr").unwrap_or_default();
                let line = answer.lines().find_map(|line| line.strip_prefix("zk_version\t")).unwrap_or_default();
                line.split(['-', ',']).next().unwrap_or_default().to_string()
            }
            Server::Etcd(cluster) => {
                let text = cluster.members[0].get("/version").unwrap_or_default();
                text.split('"').nth(3).unwrap_or_default().to_string()
            }
            Server::Consul(agent) => {
                let me = agent.get("/v1/agent/self").unwrap_or_default();
                let version = me.split("\"Version\":\"").nth(1).or_else(|| me.split("\"Version\": \"").nth(1));
                version.and_then(|rest| rest.split('"').next()).unwrap_or_default().to_string()
            }
            Server::Postgres(_) => super::machine::first_line("psql", &["--version"]),
            Server::Mysql(_) => super::machine::first_line("mariadbd", &["--version"]),
        }
    }

    /// Counts what clients send from now on; Redis only.
    pub(crate) fn monitor(&self) -> Option<Result<Monitor, Failure>> {
        matches!(self, Server::Redis(_)).then(|| Monitor::start(&self.addr()))
    }
}

/// Counts the requests that a Redis server gets: the lines of MONITOR without those of scripts.
pub(crate) struct Monitor {
    seen: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    stream: TcpStream,
}

impl Monitor {
    fn start(addr: &str) -> Result<Monitor, Failure> {
        let mut stream = TcpStream::connect(addr)?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut ok = [0; 5];
        stream.read_exact(&mut ok)?;
        let (seen, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, ended, lines) = (seen.clone(), over.clone(), BufReader::new(stream.try_clone()?));
        std::thread::spawn(move || {
            for line in lines.split(b'\n').map_while(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                // +1700000000.123456 [0 127.0.0.1:5000] "EVALSHA" ..., and [0 lua] for what a script does.
                let head = &line[..line.len().min(60)];
                if !head.windows(4).any(|part| part == b"lua]") {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Monitor { seen, over, stream })
    }

    /// So many so far.
    pub(crate) fn seen(&self) -> f64 {
        self.seen.load(Ordering::Relaxed) as f64
    }

    /// So many so far, once what was sent has arrived.
    pub(crate) fn settled(&self) -> f64 {
        let mut before = self.seen();
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let now = self.seen();
            if now - before < 5.0 {
                return now;
            }
            before = now;
        }
        before
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}
