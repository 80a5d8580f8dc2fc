//! Starts Redis Clusters for the tests: masters, replicas where they are wanted, and slots moved by hand.

use crate::server::Server;
use redis::Value;
use std::time::{Duration, Instant};

/// A running cluster.
pub(crate) struct Nodes {
    pub(crate) servers: Vec<Server>,
}

const SLOTS: usize = 16_384;

impl Nodes {
    /// Three masters, with the slots in equal parts, that have accepted each other.
    pub(crate) fn start() -> Nodes {
        Nodes::with(3, 0)
    }

    /// The same with so many masters and, behind the first of them, so many replicas.
    pub(crate) fn with(masters: usize, replicas: usize) -> Nodes {
        let count = masters + replicas;
        let servers: Vec<Server> = (0..count).map(|_| node()).collect();
        for (at, server) in servers.iter().enumerate().take(masters) {
            let (first, last) = (at * SLOTS / masters, (at + 1) * SLOTS / masters - 1);
            let _: Value = server.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            // Without a number of its own two that believe to have the same slot could not settle it.
            let _: Value = server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        let nodes = Nodes { servers };
        for other in &nodes.servers[1..] {
            let _: Value = nodes.servers[0].command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
        }
        let known = format!("cluster_known_nodes:{count}\r\n");
        nodes.until("the nodes know each other", |info| info.contains(&known));
        for replica in &nodes.servers[masters..] {
            let master = nodes.id(0);
            let limit = Instant::now() + LIMIT;
            while replica.try_command::<Value>(&["CLUSTER", "REPLICATE", &master]).is_err() {
                assert!(Instant::now() < limit, "no replica of the first master");
                std::thread::sleep(PAUSE);
            }
            let limit = Instant::now() + LIMIT;
            while !replica.command::<String>(&["INFO", "replication"]).contains("master_link_status:up") {
                assert!(Instant::now() < limit, "the replica does not catch up");
                std::thread::sleep(PAUSE);
            }
        }
        nodes.until("the cluster is up", |info| info.contains("cluster_state:ok"));
        nodes
    }

    /// Waits for every node that still answers to say so of the cluster.
    pub(crate) fn until(&self, what: &str, says: impl Fn(&str) -> bool) {
        let limit = Instant::now() + LIMIT;
        for server in &self.servers {
            while let Ok(info) = server.try_command::<String>(&["CLUSTER", "INFO"]) {
                if says(&info) {
                    break;
                }
                assert!(Instant::now() < limit, "in vain: {what}: {info}");
                std::thread::sleep(PAUSE);
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    pub(crate) fn id(&self, node: usize) -> String {
        self.servers[node].command(&["CLUSTER", "MYID"])
    }

    pub(crate) fn slot(&self, name: &str) -> usize {
        let words = ["CLUSTER", "KEYSLOT", &format!("{{{name}}}")];
        self.servers.iter().find_map(|one| one.try_command(&words).ok()).expect("a node answers")
    }

    /// Which of the nodes has the lock's slot, as the first one that answers says.
    pub(crate) fn owner(&self, name: &str) -> usize {
        let slot = self.slot(name);
        self.servers.iter().find_map(|one| self.owner_of(slot, one)).expect("a node answers, and somebody has the slot")
    }

    /// Which of the nodes has the slot, as this one says.
    fn owner_of(&self, slot: usize, said_by: &Server) -> Option<usize> {
        let all: String = said_by.try_command(&["CLUSTER", "NODES"]).ok()?;
        let owns = |line: &&str| {
            line.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap()..=last.parse().unwrap()).contains(&slot)
            })
        };
        let line = all.lines().find(owns)?;
        self.servers.iter().position(|one| line.contains(&format!(":{}@", one.port())))
    }

    /// A name whose slot this node has.
    pub(crate) fn name_on(&self, node: usize, stem: &str) -> String {
        let names = (0..).map(|i| format!("{stem}{i}"));
        names.into_iter().find(|name| self.owner(name) == node).expect("one of them")
    }

    /// Opens a slot: from now on it is being moved.
    pub(crate) fn open_slot(&self, slot: usize, from: usize, to: usize) {
        let slot = slot.to_string();
        let _: Value = self.servers[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        let _: Value = self.servers[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Moves the keys of an open slot.
    pub(crate) fn move_keys(&self, slot: usize, from: usize, to: usize) {
        let port = self.servers[to].port().to_string();
        loop {
            let keys: Vec<String> = self.servers[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]);
            if keys.is_empty() {
                return;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "REPLACE", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let _: Value = self.servers[from].command(&words);
        }
    }

    /// Gives an open slot to its new owner, as `redis-cli --cluster reshard` does.
    pub(crate) fn close_slot(&self, slot: usize, from: usize, to: usize) {
        let others = (0..self.servers.len()).filter(|at| *at != to && *at != from);
        for at in [to, from].into_iter().chain(others) {
            // A replica is told by its master.
            let said: redis::RedisResult<Value> =
                self.servers[at].try_command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.id(to)]);
            assert!(said.is_ok() || at != to && at != from, "{said:?}");
        }
    }

    /// Moves a slot with everything in it, and waits until all nodes have heard of it: one that has not would bring up old
    /// claims, and the nodes would fall out over the slot.
    pub(crate) fn move_slot(&self, slot: usize, from: usize, to: usize) {
        self.agree(slot, from);
        self.open_slot(slot, from, to);
        self.move_keys(slot, from, to);
        self.close_slot(slot, from, to);
        self.agree(slot, to);
    }

    /// Waits until all nodes say that the slot is this one's, with the same epochs, twice in a row.
    fn agree(&self, slot: usize, owner: usize) {
        let limit = Instant::now() + LIMIT;
        let epochs = |server: &Server| {
            let all: String = server.command(&["CLUSTER", "NODES"]);
            let mut epochs: Vec<[String; 2]> = all
                .lines()
                .map(|line| line.split(' ').collect::<Vec<_>>())
                .map(|words| [words[0].to_string(), words[6].to_string()])
                .collect();
            epochs.sort();
            epochs
        };
        let agrees = |one: &Server| self.owner_of(slot, one) == Some(owner) && epochs(one) == epochs(&self.servers[0]);
        let mut times = 0;
        while times < 2 {
            times = if self.servers.iter().all(agrees) { times + 1 } else { 0 };
            assert!(Instant::now() < limit, "the nodes do not agree that {owner} has {slot}");
            std::thread::sleep(PAUSE);
        }
    }

    /// How many scripts all nodes have been asked to run.
    pub(crate) fn requests(&self) -> u64 {
        self.servers.iter().map(Server::requests).sum()
    }
}

const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// A node without slots. Its second port, for other nodes, has to be free as well.
fn node() -> Server {
    let file = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"];
    let more = ["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"];
    Server::with(&[file.as_slice(), &more].concat())
}
