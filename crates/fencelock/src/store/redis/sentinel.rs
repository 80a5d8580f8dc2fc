//! Sentinels: who the master is, and being told at once when it is another one. A paused master that comes back believes to
//! be one for a while, so its connections are dropped when the sentinels say so, not when it does.

use super::Shared;
use super::connection::Live;
use super::open::{invalid, with_options};
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::backoff;
use futures_util::future::select;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, PushInfo, PushKind, RedisConnectionInfo, Value,
};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How long one sentinel may take; there are others.
const WITHIN: Duration = Duration::from_millis(500);

pub(super) struct Sentinels {
    hosts: Vec<(String, u16)>,
    service: String,
    /// For the sentinels, and for the master.
    ours: RedisConnectionInfo,
    theirs: ConnectionInfo,
    /// The one that answered last.
    good: AtomicUsize,
    /// Where the last connection went.
    master: Mutex<Option<(String, u16)>>,
}

impl Sentinels {
    /// `[user[:password]@]host:port,host:port/service`
    pub(super) fn parse(rest: &str, options: &BTreeMap<String, String>) -> Result<Sentinels> {
        let form = || invalid("sentinels are named as redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/MASTER");
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (format!("{credentials}@"), rest),
            None => (String::new(), rest),
        };
        let (hosts, service) = rest.split_once('/').ok_or_else(form)?;
        if service.is_empty() || service.contains('/') {
            return Err(form());
        }
        let host = |host: &str| {
            let (host, port) = host.rsplit_once(':').unwrap_or((host, "26379"));
            let port = port.parse().ok().filter(|_| !host.is_empty())?;
            Some((host.trim_matches(['[', ']']).to_string(), port))
        };
        let hosts: Vec<_> = hosts.split(',').map(host).collect::<Option<_>>().ok_or_else(form)?;
        let theirs = format!("redis://{credentials}master").into_connection_info().map_err(|_| form())?;
        let theirs = with_options(theirs, options)?;
        let mut ours =
            RedisConnectionInfo::default().set_protocol(redis::ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some(user) = options.get("sentinel_user") {
            ours = ours.set_username(user);
        }
        if let Some(password) = options.get("sentinel_password") {
            ours = ours.set_password(password);
        }
        let service = service.to_string();
        Ok(Sentinels { hosts, service, ours, theirs, good: AtomicUsize::new(0), master: Mutex::default() })
    }

    /// Without credentials.
    pub(super) fn address(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        format!("redis+sentinel://{}/{}", hosts.join(","), self.service)
    }

    fn at(&self, (host, port): &(String, u16), redis: RedisConnectionInfo) -> Result<Client> {
        let address = redis::ConnectionAddr::Tcp(host.clone(), *port);
        let info = self.theirs.clone().set_addr(address).set_redis_settings(redis);
        Client::open(info).map_err(|error| invalid("that address cannot be used").caused_by(error))
    }

    /// The sentinels, the one that answered last first.
    fn in_turn(&self) -> impl Iterator<Item = usize> {
        let (first, count) = (self.good.load(Ordering::Relaxed), self.hosts.len());
        (0..count).map(move |i| (first + i) % count)
    }

    async fn sentinel(&self, which: usize, config: AsyncConnectionConfig) -> Result<redis::aio::MultiplexedConnection> {
        let client = self.at(&self.hosts[which], self.ours.clone())?;
        let config = config.set_connection_timeout(Some(WITHIN)).set_response_timeout(Some(WITHIN));
        let opened = client.get_multiplexed_async_connection_with_config(&config).await;
        opened.map_err(|error| super::fault::connecting(error, &format!("sentinel {which}")))
    }

    /// Asks one sentinel: `None` if it knows no such master.
    async fn ask(&self, connection: &mut redis::aio::MultiplexedConnection) -> Result<Option<(String, u16)>> {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        cmd.query_async(connection).await.map_err(|error| super::fault::connecting(error, "a sentinel"))
    }

    /// A client for the master as the sentinels name it: two round trips, more where sentinels are down.
    pub(super) async fn master(&self) -> Result<Client> {
        let mut failed = None;
        for which in self.in_turn() {
            let answer = async {
                let mut connection = self.sentinel(which, AsyncConnectionConfig::new()).await?;
                self.ask(&mut connection).await
            };
            match answer.await {
                Ok(Some(master)) => {
                    self.good.store(which, Ordering::Relaxed);
                    let client = self.at(&master, self.theirs.redis_settings().clone())?;
                    *self.master.lock().unwrap_or_else(PoisonError::into_inner) = Some(master);
                    return Ok(client);
                }
                Ok(None) => {
                    let message = format!("the sentinels know no master called {:?}", self.service);
                    failed = Some(Error::new(ErrorKind::Unavailable, message));
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let message = format!("no sentinel of {} names a master", self.address());
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, message)))
    }

    fn last_master(&self) -> Option<(String, u16)> {
        self.master.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The sentinels may be behind: what they name must believe it itself. One round trip.
pub(super) async fn check_master(live: &Live, address: &str) -> Result<()> {
    let role = live.send(&redis::cmd("ROLE"), address).await?;
    match role {
        Value::Array(facts) if facts.first() == Some(&Value::BulkString(b"master".to_vec())) => Ok(()),
        _ => Err(Error::new(ErrorKind::Unavailable, "the sentinels still name a server that is no master any more")),
    }
}

/// Listens to one sentinel after the other for as long as the store is open, and drops all connections when the master has
/// changed.
pub(super) async fn follow(shared: Weak<Shared>) {
    let mut tries = 0;
    while let Some(this) = shared.upgrade() {
        let Some(sentinels) = this.connections.sentinels() else { return };
        for which in sentinels.in_turn() {
            if this.is_closed() {
                return;
            }
            match listen(&this, sentinels, which).await {
                Ok(()) => tries = 0,
                Err(error) => tracing::debug!(%error, "a sentinel could not be listened to"),
            }
        }
        tries += 1;
        this.clock.sleep_until(this.clock.now().after(backoff(tries))).await;
    }
}

/// Listens to one sentinel until its connection is lost.
async fn listen(this: &Arc<Shared>, sentinels: &Sentinels, which: usize) -> Result<()> {
    let news = Arc::new((Notify::new(), Notify::new()));
    let told = news.clone();
    let push = move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => told.1.notify_one(),
            PushKind::Message => told.0.notify_one(),
            _ => {}
        }
        Ok::<(), ()>(())
    };
    let mut connection = sentinels.sentinel(which, AsyncConnectionConfig::new().set_push_sender(push)).await?;
    let subscribed = connection.subscribe("+switch-master").await;
    subscribed.map_err(|error| super::fault::connecting(error, "a sentinel"))?;
    loop {
        // Asked after every message and at the beginning: what was told before we listened counts too.
        let master = sentinels.ask(&mut connection).await?;
        if master.is_some() && sentinels.last_master().is_some_and(|last| Some(last) != master) {
            tracing::warn!(service = sentinels.service, "the sentinels name another master");
            this.connections.cut();
        }
        // A sentinel that has gone silent is asked now and then.
        let tick = this.clock.sleep_until(this.clock.now().after(Duration::from_secs(10)));
        let (message, lost, closed) = (pin!(news.0.notified()), pin!(news.1.notified()), pin!(this.closing()));
        let ended = select(lost, closed);
        match select(select(message, pin!(tick)), ended).await {
            futures_util::future::Either::Left(_) => {}
            futures_util::future::Either::Right(_) => return Ok(()),
        }
    }
}
