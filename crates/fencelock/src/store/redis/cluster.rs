//! Redis Cluster: which node has a line, and how a call gets there. The scripts and records are those of one server; every
//! key and channel of a line has its name in braces, so a line is in one slot and a script never leaves it.
//!
//! We keep the map of slots ourselves, over connections like those to one server: one to each node for each runtime that calls,
//! and on the library thread one more to each master that only listens (`listen.rs`). A call that the map sends to the
//! wrong node is told so and sent on; whatever else goes wrong makes the library thread ask for a new map.
//!
//! While a slot is being moved, the nodes refuse every call that names a key which is not there (and a line never has all of
//! its keys), so the locks in it stand still for that time: nothing is granted twice, nothing is half done.

use super::connection::{Connections, Dial};
use super::fault;
use super::open::{self, Tls, invalid, with_options};
use crate::error::{Error, ErrorKind, Result};
use channels::Channels;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Client, ConnectionInfo, IntoConnectionInfo};
use slots::{Address, Owners};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Notify;

mod channels;
pub(super) mod listen;
pub(super) mod route;
mod slots;

/// How long a node may take to tell who owns what; there are others.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// The most nodes that are asked for a new map.
const ASKED: usize = 5;

/// The nodes of a cluster, and who owns what.
pub(super) struct Cluster {
    seeds: Vec<Address>,
    settings: ConnectionInfo,
    tls: Option<Tls>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    map: RwLock<Map>,
    /// Rung when the map is no longer right.
    stale: Notify,
    channels: Channels,
}

/// A node that we know of.
pub(super) struct Node {
    address: Address,
    connections: Connections,
    /// Which connection listens to it, or 0: guarded by the book of [`Channels`].
    listening: AtomicU64,
    /// Channels to be unsubscribed.
    leaving: Mutex<Vec<String>>,
    /// Rung when there may be something to subscribe or unsubscribe.
    bell: Notify,
}

impl Node {
    fn leave(&self, channel: String) {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
        self.bell.notify_one();
    }

    fn take_leaving(&self) -> Vec<String> {
        std::mem::take(&mut *self.leaving.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Who owns which slot.
#[derive(Default)]
struct Map {
    masters: Vec<Arc<Node>>,
    owned: Vec<Option<u16>>,
}

impl Map {
    fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.owned.get(usize::from(slot)).copied().flatten().map(|owner| &self.masters[usize::from(owner)])
    }
}

impl Cluster {
    /// `[user[:password]@]host:port,host:port`
    pub(super) fn parse(rest: &str, tls: Option<Tls>, options: &BTreeMap<String, String>) -> Result<Cluster> {
        let form = || invalid("a cluster is named as redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]");
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (format!("{credentials}@"), rest),
            None => (String::new(), rest),
        };
        let (hosts, db) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(db, "" | "0") {
            return Err(invalid("a cluster has no databases but 0: leave the database out"));
        }
        let host = |host: &str| {
            let (host, port) = host.rsplit_once(':')?;
            Some((host.trim_matches(['[', ']']).to_string(), port.parse().ok().filter(|_| !host.is_empty())?))
        };
        let seeds: Vec<Address> = hosts.split(',').map(host).collect::<Option<_>>().ok_or_else(form)?;
        let settings = format!("redis://{credentials}node").into_connection_info().map_err(|_| form())?;
        let settings = with_options(settings, options)?;
        Ok(Cluster {
            seeds,
            settings,
            tls,
            nodes: Mutex::default(),
            map: RwLock::default(),
            stale: Notify::new(),
            channels: Channels::default(),
        })
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "rediss" } else { "redis" }
    }

    /// Without credentials.
    pub(super) fn address(&self) -> String {
        let hosts: Vec<String> = self.seeds.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        format!("{}+cluster://{}", self.scheme(), hosts.join(","))
    }

    fn client(&self, at: &Address) -> Result<Client> {
        open::client(self.settings.clone(), self.tls.as_ref(), at)
    }

    /// A client for some node: where there is no better reason to choose.
    pub(super) fn any(&self) -> Result<Client> {
        let masters = self.masters();
        self.client(masters.first().map_or(&self.seeds[0], |node| &node.address))
    }

    fn node(&self, address: &Address) -> Result<Arc<Node>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(address) {
            return Ok(node.clone());
        }
        let shown = format!("{}://{}:{}", self.scheme(), address.0, address.1);
        let connections = Connections::new(Dial::Master(Box::new(self.client(address)?), address.clone()), shown);
        let node = Node {
            address: address.clone(),
            connections,
            leaving: Mutex::default(),
            listening: AtomicU64::new(0),
            bell: Notify::new(),
        };
        let node = Arc::new(node);
        nodes.insert(address.clone(), node.clone());
        Ok(node)
    }

    fn masters(&self) -> Vec<Arc<Node>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).masters.clone()
    }

    fn owner(&self, slot: u16) -> Result<Arc<Node>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let nobody = || Error::new(ErrorKind::Unavailable, "the cluster is down: nobody has the slot of this lock");
        map.owner(slot).cloned().ok_or_else(nobody)
    }

    fn owns(&self, node: &Arc<Node>, slot: u16) -> bool {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, node))
    }

    /// A node says that this slot is another one's.
    fn moved(&self, slot: u16, to: &Arc<Node>) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let master = map.masters.iter().position(|node| Arc::ptr_eq(node, to)).unwrap_or_else(|| {
            map.masters.push(to.clone());
            map.masters.len() - 1
        });
        if let Some(owner) = map.owned.get_mut(usize::from(slot)) {
            *owner = Some(master as u16);
        }
        drop(map);
        to.bell.notify_one();
        self.stale.notify_one();
    }

    /// Asks several nodes who owns what and takes what most of them say: one round trip, more where nodes are down.
    async fn refresh(&self) -> Result<()> {
        let mut asked = self.masters();
        fastrand::shuffle(&mut asked);
        asked.truncate(ASKED);
        let mut told = self.ask_for_owners(asked).await;
        if told.as_ref().map_or(true, Vec::is_empty) {
            let seeds = self.seeds.iter().map(|seed| self.node(seed)).collect::<Result<_>>()?;
            told = self.ask_for_owners(seeds).await;
        }
        let (addresses, owned) = Owners::agreed(told?).index();
        let masters: Vec<Arc<Node>> = addresses.iter().map(|address| self.node(address)).collect::<Result<_>>()?;
        // Nothing more is asked of a node that is no master any more.
        let gone = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.extract_if(|address, _| !addresses.contains(address)).map(|(_, node)| node).collect::<Vec<_>>()
        };
        let map = Map { masters, owned };
        let before = std::mem::replace(&mut *self.map.write().unwrap_or_else(PoisonError::into_inner), map).masters;
        gone.iter().for_each(|node| node.connections.close());
        // A paused one may answer when it comes back, long after another one took over: that does not count. (A node that is
        // just being given its first slot has not been a master yet.)
        let were = gone.iter().filter(|node| before.iter().any(|master| Arc::ptr_eq(master, node)));
        were.for_each(|node| node.connections.cut());
        self.masters().iter().chain(&gone).for_each(|node| node.bell.notify_one());
        Ok(())
    }

    /// What these nodes say, as soon as more than half of them have; the last error if nobody says anything.
    async fn ask_for_owners(&self, nodes: Vec<Arc<Node>>) -> Result<Vec<Owners>> {
        let enough = nodes.len() / 2 + 1;
        let mut asked: FuturesUnordered<_> = nodes.into_iter().map(ask_for_owners).collect();
        let (mut told, mut failed) = (Vec::new(), None);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(owners) => told.push(owners),
                Err(error) => failed = Some(error),
            }
            if told.len() >= enough {
                break;
            }
        }
        match failed {
            Some(error) if told.is_empty() => Err(error),
            _ => Ok(told),
        }
    }

    /// Finds the nodes and asks each master whether it can keep locks: four round trips.
    pub(super) async fn check(&self, evictable: bool) -> Result<()> {
        self.refresh().await?;
        let check = |node: Arc<Node>| async move {
            let live = node.connections.of_this_runtime().await?;
            let mut info = redis::cmd("CLUSTER");
            info.arg("INFO");
            let info: String = redis::from_redis_value(live.send(&info, &node.connections.address).await?)
                .map_err(|_| super::unreadable())?;
            if !info.contains("cluster_state:ok") {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "the cluster is down: not all of its slots have a master",
                ));
            }
            open::check_node(&live, &node.connections.address, evictable).await
        };
        let masters = self.masters();
        if masters.is_empty() {
            return Err(Error::new(ErrorKind::Unavailable, "the cluster is down: none of its slots has a master"));
        }
        let checked = join_all(masters.into_iter().map(check)).await;
        // One that is down just now is not worse than one that goes down later, as long as there are others.
        let some = checked.iter().any(Result::is_ok);
        let mut bad = checked.into_iter().filter_map(Result::err);
        bad.find(|error| !some || error.kind() != ErrorKind::Unavailable).map_or(Ok(()), Err)
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        let nodes = std::mem::take(&mut *self.nodes.lock().unwrap_or_else(PoisonError::into_inner));
        nodes.values().for_each(|node| node.connections.close());
    }
}

/// One round trip.
async fn ask_for_owners(node: Arc<Node>) -> Result<Owners> {
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("SLOTS");
    let told = async {
        let live = node.connections.of_this_runtime().await?;
        live.try_send(&cmd).await.map_err(|error| match error.detail() {
            Some(detail) if detail.contains("cluster support disabled") => {
                let message = format!("the server is no node of a cluster: name it as {}", node.connections.address);
                Error::new(ErrorKind::Unsupported, message)
            }
            _ => fault::asking(error, &node.connections.address),
        })
    };
    let unanswered = |_| {
        let message = format!("{} does not tell who owns what", node.connections.address);
        Error::new(ErrorKind::Unavailable, message)
    };
    let told = tokio::time::timeout(TOLD_WITHIN, told).await.map_err(unanswered)??;
    Owners::read(told, &node.address).ok_or_else(super::unreadable)
}
