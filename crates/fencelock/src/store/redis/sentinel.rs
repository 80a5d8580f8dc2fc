//! Sentinels: who the master is, and being told at once when it is another one. A paused master that comes back believes to
//! be one for a while, so its connections are dropped when the sentinels say so, not when it does. A sentinel may be behind
//! the others for some seconds; each of their decisions has a number, and what is older than what we know is not followed.

use super::Shared;
use super::connection::Live;
use super::open::{self, Tls, invalid, with_options};
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::backoff;
use futures_util::future::{Either, join, join_all, select};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, PushInfo, PushKind, RedisConnectionInfo, Value,
};
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How long one sentinel may take; there are others.
const WITHIN: Duration = Duration::from_secs(1);
/// A sentinel that has gone silent is asked now and then.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// Host and port.
pub(super) type At = (String, u16);

/// What a sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    master: At,
    /// The number of the decision that made it the master; 0 where it is not told.
    epoch: u64,
}

pub(super) struct Sentinels {
    hosts: Vec<At>,
    service: String,
    /// For the sentinels, and for the master.
    ours: RedisConnectionInfo,
    theirs: ConnectionInfo,
    /// For both.
    tls: Option<Tls>,
    /// The one that answered last.
    good: AtomicUsize,
    /// The latest that any of them has said.
    known: Mutex<Option<Named>>,
}

impl Sentinels {
    /// `[user[:password]@]host:port,host:port/service`
    pub(super) fn parse(rest: &str, tls: Option<Tls>, options: &BTreeMap<String, String>) -> Result<Sentinels> {
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
        Ok(Sentinels { hosts, service, ours, theirs, tls, good: AtomicUsize::new(0), known: Mutex::default() })
    }

    /// Without credentials.
    pub(super) fn address(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{}/{}", hosts.join(","), self.service)
    }

    fn at(&self, at: &At, redis: RedisConnectionInfo) -> Result<Client> {
        let info = self.theirs.clone().set_redis_settings(redis);
        open::client(info, self.tls.as_ref(), at)
    }

    /// The sentinels, the one that answered last first.
    fn in_turn(&self) -> impl Iterator<Item = usize> {
        let (first, count) = (self.good.load(Ordering::Relaxed), self.hosts.len());
        (0..count).map(move |i| (first + i) % count)
    }

    async fn sentinel(&self, which: usize, config: AsyncConnectionConfig) -> Result<MultiplexedConnection> {
        let client = self.at(&self.hosts[which], self.ours.clone())?;
        let config = config.set_connection_timeout(Some(WITHIN)).set_response_timeout(Some(WITHIN));
        let opened = client.get_multiplexed_async_connection_with_config(&config).await;
        opened.map_err(|error| super::fault::connecting(error, &format!("sentinel {which}")))
    }

    /// Asks one sentinel: `None` if it knows no such master. One round trip.
    async fn ask(&self, connection: &MultiplexedConnection) -> Result<Option<Named>> {
        let about = |what: &str| {
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg(what).arg(&self.service);
            cmd
        };
        // The second one names the old address for a while, with the new number; the first one has none. Sent together,
        // they are answered together.
        let (address, facts) = (about("GET-MASTER-ADDR-BY-NAME"), about("MASTER"));
        let mut connections = (connection.clone(), connection.clone());
        let (address, facts) = join(
            address.query_async::<Option<At>>(&mut connections.0),
            facts.query_async::<HashMap<String, String>>(&mut connections.1),
        )
        .await;
        let address = address.map_err(|error| super::fault::connecting(error, "a sentinel"))?;
        // A user with few rights may not be told.
        let epoch = facts.ok().and_then(|facts| facts.get("config-epoch")?.parse().ok()).unwrap_or(0);
        Ok(address.map(|master| Named { master, epoch }))
    }

    /// A sentinel has said this. Whether it is followed: not if another one has told of a later decision.
    fn learn(&self, said: &Named) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if said.epoch > 0 && known.as_ref().is_some_and(|known| said.epoch < known.epoch) {
            return false;
        }
        if known.as_ref().is_some_and(|known| known.master != said.master) {
            tracing::warn!(service = self.service, "the sentinels name another master");
        }
        *known = Some(said.clone());
        true
    }

    /// Where every connection should go, as far as is known.
    pub(super) fn known(&self) -> Option<At> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|known| known.master.clone())
    }

    /// A client for the master as the sentinels name it, and where that is: two round trips, more where sentinels are down
    /// or behind.
    pub(super) async fn master(&self) -> Result<(Client, At)> {
        let mut failed = None;
        let mut behind: Vec<Named> = Vec::new();
        for which in self.in_turn() {
            let answer = async {
                let connection = self.sentinel(which, AsyncConnectionConfig::new()).await?;
                self.ask(&connection).await
            };
            match answer.await {
                Ok(Some(named)) if self.learn(&named) => {
                    self.good.store(which, Ordering::Relaxed);
                    return Ok((self.at(&named.master, self.theirs.redis_settings().clone())?, named.master));
                }
                Ok(Some(named)) => behind.push(named),
                Ok(None) => {
                    let message = format!("the sentinels know no master called {:?}", self.service);
                    failed = Some(Error::new(ErrorKind::Unavailable, message));
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // If all of them are, they were set up anew and count from the beginning.
        if behind.len() == self.hosts.len() {
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let message = if behind.is_empty() {
            format!("no sentinel of {} names a master", self.address())
        } else {
            "the sentinels that answer are behind: another one has named a later master".to_string()
        };
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, message)))
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

/// Listens to the sentinels for as long as the store is open, and drops all connections to another server than the one that
/// they name. To all of them: who has heard of a switch first tells it first, and any of them may be down.
pub(super) async fn follow(shared: Weak<Shared>) {
    let count = shared.upgrade().and_then(|this| Some(this.connections.sentinels()?.hosts.len())).unwrap_or(0);
    join_all((0..count).map(|which| follow_one(shared.clone(), which))).await;
}

async fn follow_one(shared: Weak<Shared>, which: usize) {
    let mut tries = 0;
    while let Some(this) = shared.upgrade() {
        let Some(sentinels) = this.connections.sentinels() else { return };
        match listen(&this, sentinels, which).await {
            Ok(()) => tries = 0,
            Err(error) => tracing::debug!(%error, "a sentinel could not be listened to"),
        }
        if this.is_closed() {
            return;
        }
        tries += 1;
        let pause = pin!(this.clock.sleep_until(this.clock.now().after(backoff(tries))));
        select(pause, pin!(this.closing())).await;
    }
}

/// Listens to one sentinel until its connection is lost or the store is closed.
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
        if let Some(named) = sentinels.ask(&connection).await?
            && sentinels.learn(&named)
        {
            this.connections.cut_stale();
        }
        let tick = this.clock.sleep_until(this.clock.now().after(ASK_EVERY));
        let (message, lost, closed) = (pin!(news.0.notified()), pin!(news.1.notified()), pin!(this.closing()));
        match select(select(message, pin!(tick)), select(lost, closed)).await {
            Either::Left(_) => {}
            Either::Right(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_that_is_behind_is_not_followed() {
        let sentinels = Sentinels::parse("a:1,b:2/locks", None, &BTreeMap::new()).unwrap();
        let named = |port: u16, epoch| Named { master: ("m".into(), port), epoch };
        assert!(sentinels.learn(&named(1, 4)));
        assert!(sentinels.learn(&named(2, 5)));
        assert!(!sentinels.learn(&named(1, 4)));
        assert_eq!(sentinels.known(), Some(("m".into(), 2)));
        assert!(sentinels.learn(&named(3, 5)), "the same decision may name another address");
        assert!(sentinels.learn(&named(4, 0)), "without a number the latest word counts");
    }
}
