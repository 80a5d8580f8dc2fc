//! What can be measured: our locks on a store, and the floor below them.

use crate::floors::consul::FloorConsul;
use crate::floors::etcd::FloorEtcd;
use crate::floors::sql::{self as floors, Floor};
use crate::worker::Failure;
use fencelock::{Locks, MutexGuard, Options};
use redis::aio::MultiplexedConnection;
use rusqlite::Connection;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One client.
#[derive(Clone)]
pub(crate) enum Client {
    Ours { locks: Locks, unfair: bool },
    FloorSqlite(Arc<Mutex<Connection>>),
    FloorRedis(MultiplexedConnection),
    FloorZookeeper(zookeeper_client::Client),
    FloorSql(Floor, String),
    FloorEtcd(FloorEtcd),
    FloorConsul(FloorConsul),
}

/// One held lock.
pub(crate) enum Held {
    Ours(MutexGuard),
    FloorSqlite(Arc<Mutex<Connection>>),
    FloorRedis { connection: MultiplexedConnection, name: String, secret: String },
    FloorZookeeper { client: zookeeper_client::Client, path: String },
    FloorSql { floor: Floor, name: String },
    FloorEtcd { floor: FloorEtcd, name: String, made: i64 },
    FloorConsul { floor: FloorConsul, name: String },
}

impl Client {
    pub(crate) async fn connect(name: &str, addr: &str) -> Result<Client, Failure> {
        let (kind, unfair) = match name.strip_suffix("-unfair") {
            Some(kind) => (kind, true),
            None => (name, false),
        };
        let url = match kind {
            "floor-sqlite" => return Ok(Client::FloorSqlite(Arc::new(Mutex::new(floor(addr)?)))),
            "floor-redis" => return Ok(Client::FloorRedis(floor_redis(addr).await?)),
            "floor-zookeeper" => return Ok(Client::FloorZookeeper(floor_zookeeper(addr).await?)),
            "zookeeper" if addr.contains("://") => addr.to_string(),
            "zookeeper" => format!("zookeeper://{addr}"),
            "floor-postgres" | "floor-postgres-session" => {
                let session = kind.ends_with("-session");
                let url = floors::url("postgres", addr);
                return Ok(Client::FloorSql(Floor::postgres(&url, session).await?, url));
            }
            "floor-mysql" | "floor-mysql-session" => {
                let session = kind.ends_with("-session");
                let url = floors::url("mysql", addr);
                return Ok(Client::FloorSql(Floor::mysql(&url, session).await?, url));
            }
            "postgres" | "mysql" => floors::url(kind, addr),
            "postgres-session" => floors::session_url("postgres", addr),
            "mysql-session" => floors::session_url("mysql", addr),
            "redis" => redis_url(addr),
            // Does not stay awake for an answer.
            "redis-asleep" => format!("{}?spin=0", redis_url(addr)),
            "redis-cluster" if !addr.contains("://") => format!("redis+cluster://{addr}"),
            "redis-cluster" => addr.to_string(),
            "quorum" if addr.starts_with("quorum:") => addr.to_string(),
            "quorum" => {
                let nodes: Vec<String> = addr.split(['|', ',']).map(redis_url).collect();
                format!("quorum:{}?young=allow", nodes.join("|"))
            }
            "floor-etcd" => return Ok(Client::FloorEtcd(FloorEtcd::connect(addr).await?)),
            "etcd" if addr.contains("://") => addr.to_string(),
            "etcd" => format!("etcd://{addr}"),
            "floor-consul" => return Ok(Client::FloorConsul(FloorConsul::connect(addr).await?)),
            "consul" if addr.contains("://") => addr.to_string(),
            "consul" => format!("consul://{addr}"),
            "memory" | "sqlite" if addr.starts_with(&format!("{kind}:")) => addr.to_string(),
            "memory" | "sqlite" => format!("{kind}:{addr}"),
            _ => return Err(format!("no implementation is called {name:?}").into()),
        };
        Ok(Client::Ours { locks: Locks::connect(&url).await?, unfair })
    }

    /// As long as it takes, with default options.
    pub(crate) async fn lock(&self, name: &str) -> Result<Held, Failure> {
        match self {
            Client::Ours { locks, unfair: false } => Ok(Held::Ours(locks.mutex(name).lock().await?)),
            Client::Ours { locks, unfair: true } => {
                Ok(Held::Ours(locks.mutex(name).lock_with(Options::new().unfair()).await?))
            }
            Client::FloorSqlite(connection) => {
                update(connection)?;
                Ok(Held::FloorSqlite(connection.clone()))
            }
            Client::FloorRedis(connection) => {
                let (mut connection, secret) = (connection.clone(), format!("{:032x}", fastrand::u128(..)));
                let mut set = redis::cmd("SET");
                set.arg(name).arg(&secret).arg("NX").arg("PX").arg(30_000);
                while set.query_async::<Option<String>>(&mut connection).await?.is_none() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(Held::FloorRedis { connection, name: name.to_string(), secret })
            }
            Client::FloorZookeeper(client) => {
                let path = format!("/{name}");
                loop {
                    match client.create(&path, b"", &EPHEMERAL).await {
                        Ok(_) => return Ok(Held::FloorZookeeper { client: client.clone(), path }),
                        Err(zookeeper_client::Error::NodeExists) => {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Client::FloorSql(floor, _) => {
                floor.lock(name).await?;
                Ok(Held::FloorSql { floor: floor.clone(), name: name.to_string() })
            }
            Client::FloorEtcd(floor) => {
                let made = loop {
                    if let Some(made) = floor.put(name).await? {
                        break made;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                };
                Ok(Held::FloorEtcd { floor: floor.clone(), name: name.to_string(), made })
            }
            Client::FloorConsul(floor) => {
                while !floor.acquire(name).await? {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(Held::FloorConsul { floor: floor.clone(), name: name.to_string() })
            }
        }
    }

    /// What a worker needs of its own: only locks of a connection need a connection each, all others share the process'.
    pub(crate) async fn handle(&self) -> Result<Client, Failure> {
        match self {
            Client::FloorSql(Floor::Postgres { session: true, .. }, url) => {
                Ok(Client::FloorSql(Floor::postgres(url, true).await?, url.clone()))
            }
            Client::FloorSql(Floor::Mysql { session: true, .. }, url) => {
                Ok(Client::FloorSql(Floor::mysql(url, true).await?, url.clone()))
            }
            _ => Ok(self.clone()),
        }
    }

    pub(crate) async fn close(&self) {
        if let Client::Ours { locks, .. } = self {
            locks.close().await;
        }
    }
}

impl Held {
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Held::Ours(guard) if guard.state() == fencelock::State::Lost)
    }

    pub(crate) async fn release(self) -> Result<(), Failure> {
        match self {
            Held::Ours(guard) => drop(guard.release().await?),
            Held::FloorSqlite(connection) => update(&connection)?,
            Held::FloorRedis { mut connection, name, secret } => {
                DELETE.key(name).arg(secret).invoke_async::<()>(&mut connection).await?;
            }
            Held::FloorZookeeper { client, path } => client.delete(&path, None).await?,
            Held::FloorSql { floor, name } => floor.release(&name).await?,
            Held::FloorEtcd { floor, name, made } => floor.delete(&name, made).await?,
            Held::FloorConsul { floor, name } => floor.release(&name).await?,
        }
        Ok(())
    }
}

/// The barest correct release: only if it is still ours.
static DELETE: std::sync::LazyLock<redis::Script> = std::sync::LazyLock::new(|| {
    redis::Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0")
});

/// The barest correct call: a node that goes with its session.
const EPHEMERAL: zookeeper_client::CreateOptions<'static> =
    zookeeper_client::CreateMode::Ephemeral.with_acls(zookeeper_client::Acls::anyone_all());

async fn floor_zookeeper(addr: &str) -> Result<zookeeper_client::Client, Failure> {
    let cluster = addr.strip_prefix("zookeeper://").unwrap_or(addr);
    let connector = zookeeper_client::Client::connector().with_session_timeout(Duration::from_secs(30));
    Ok(connector.connect(cluster).await?)
}

fn redis_url(addr: &str) -> String {
    if addr.contains("://") { addr.to_string() } else { format!("redis://{addr}") }
}

/// A connection with the settings of our store.
async fn floor_redis(addr: &str) -> Result<MultiplexedConnection, Failure> {
    use redis::IntoConnectionInfo;
    let info = redis_url(addr).into_connection_info()?;
    let redis = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let client = redis::Client::open(info.set_redis_settings(redis).set_tcp_settings(tcp))?;
    Ok(client.get_multiplexed_async_connection().await?)
}

/// A file with the settings of our store.
fn floor(path: &str) -> Result<Connection, Failure> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = 60000;
         CREATE TABLE IF NOT EXISTS floor (id INTEGER PRIMARY KEY, n INTEGER NOT NULL);
         INSERT OR IGNORE INTO floor VALUES (1, 0);",
    )?;
    Ok(connection)
}

/// The barest correct call: one write transaction.
fn update(connection: &Mutex<Connection>) -> rusqlite::Result<()> {
    let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    connection.prepare_cached("UPDATE floor SET n = n + 1 WHERE id = 1")?.execute([])?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}
