//! Connections: one for each runtime that calls, opened at its first call, and the library thread's own, which also carries
//! the inbox. A connection that has failed, or left a question unanswered, is replaced at the next call.

use super::awake::{Spin, UnderWay};
use super::cluster::Cluster;
use super::fault;
use super::open;
use super::script::Call;
use super::sentinel::{self, At, Sentinels};
use super::way::Way;
use crate::error::{Error, ErrorKind, Result};
use futures_util::future::{Either, select};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long an answer may take. What is not answered by then may still be carried out.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The most connections of a runtime that carry one call at a time.
const POOLED: usize = 32;

/// An open connection.
#[derive(Clone)]
pub(super) struct Live {
    /// Cheap to share, not so cheap to clone.
    connection: Arc<Way>,
    under_way: UnderWay,
    end: Arc<End>,
    /// Whether its server may be found not to be the master any more: then no more of its answers count.
    followed: bool,
}

/// Whether a connection has ended, and who wants to know.
#[derive(Default)]
pub(super) struct End {
    ended: AtomicBool,
    told: Notify,
}

impl End {
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ready when it has ended.
    async fn wait(&self) {
        loop {
            let told = self.told.notified();
            if self.is_ended() {
                return;
            }
            told.await;
        }
    }
}

/// Ends it when the connection's driver is dropped, with its runtime for instance.
struct Ending(Arc<End>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Live {
    pub(super) fn is_open(&self) -> bool {
        !self.end.is_ended()
    }

    /// Ready when it has ended.
    pub(super) async fn ended(&self) {
        self.end.wait().await;
    }

    /// One round trip.
    pub(super) async fn send(&self, cmd: &Cmd, address: &str) -> Result<Value> {
        self.try_send(cmd).await.map_err(|error| fault::asking(error, address))
    }

    pub(super) async fn try_send(&self, cmd: &Cmd) -> redis::RedisResult<Value> {
        self.unless_broken(self.answer(cmd).await.and_then(Value::extract_error))
    }

    /// An error of the connection itself ends it.
    fn unless_broken<T>(&self, answer: redis::RedisResult<T>) -> redis::RedisResult<T> {
        if answer.as_ref().is_err_and(|error| error.is_io_error() || error.is_unrecoverable_error()) {
            self.end();
        }
        answer
    }

    async fn answer(&self, cmd: &Cmd) -> redis::RedisResult<Value> {
        let mut connection = MultiplexedConnection::clone(&self.connection);
        let _one = self.under_way.one();
        if !self.followed {
            return connection.send_packed_command(cmd).await;
        }
        self.unless_ended(connection.send_packed_command(cmd)).await
    }

    /// A paused master may answer when it comes back, long after another one took over: that does not count.
    async fn unless_ended<T>(&self, answer: impl Future<Output = redis::RedisResult<T>>) -> redis::RedisResult<T> {
        match select(pin!(self.ended()), pin!(answer)).await {
            Either::Left(_) => Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into()),
            Either::Right((answer, _)) => answer,
        }
    }

    /// Several commands, sent together: an answer for each, which may be an error. One round trip.
    pub(super) async fn send_all(&self, pipe: &redis::Pipeline, count: usize) -> redis::RedisResult<Vec<Value>> {
        let mut connection = MultiplexedConnection::clone(&self.connection);
        self.unless_broken(self.unless_ended(connection.send_packed_commands(pipe, 0, count)).await)
    }

    /// One round trip; two where the server does not know the script yet.
    pub(super) async fn call(&self, call: &Call, address: &str) -> Result<Value> {
        self.try_call(call).await.map_err(|error| fault::asking(error, address))
    }

    /// The same, with the server's own words if it refuses.
    pub(super) async fn try_call(&self, call: &Call) -> redis::RedisResult<Value> {
        match self.try_send(call.by_hash()).await {
            Err(error) if error.kind() == redis::ServerErrorKind::NoScript.into() => {
                self.try_send(&call.in_full()).await
            }
            answer => answer,
        }
    }

    /// One round trip: the same as [`try_send`](Live::try_send), to a node that is just being given the slot.
    pub(super) async fn try_ask(&self, cmd: &Cmd) -> redis::RedisResult<Value> {
        let mut asking = redis::pipe();
        asking.cmd("ASKING").ignore().add_command(cmd.clone());
        let answer = MultiplexedConnection::clone(&self.connection).send_packed_commands(&asking, 1, 1).await;
        self.unless_broken(answer)?.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// It is not to be used any more.
    pub(super) fn end(&self) {
        self.end.end();
    }

    /// From now on messages of this channel come in.
    pub(super) async fn subscribe(&self, channel: &str, address: &str) -> Result<()> {
        let answer = MultiplexedConnection::clone(&self.connection).subscribe(channel).await;
        if answer.as_ref().is_err_and(redis::RedisError::is_io_error) {
            self.end.end();
        }
        answer.map_err(|error| fault::asking(error, address))
    }

    /// The other way round. If it fails, messages that nobody wants go on coming in.
    pub(super) async fn unsubscribe(&self, channel: &str) {
        let _ = MultiplexedConnection::clone(&self.connection).unsubscribe(channel).await;
    }
}

/// A message: where it came from and what it says.
pub(super) type Message = (Vec<u8>, Vec<u8>);

/// The connections of one client.
pub(super) struct Connections {
    dial: Dial,
    pub(super) address: String,
    /// Whether every new connection is checked, and how: may the server evict, and how long must it have been up?
    pub(super) check_each: Option<(bool, Duration)>,
    /// How many replicas have to confirm what counts.
    pub(super) replicas: Option<usize>,
    /// Whether a connection stays awake for the answer to a lone call.
    pub(super) awake: Spin,
    slots: Mutex<HashMap<Id, Arc<Slot>>>,
    /// Every connection to a master that may be replaced by another one, and that may still be open, the library thread's
    /// included.
    open: Mutex<Vec<(Weak<End>, At)>>,
    /// Rung when the master is another one.
    pub(super) moved: Notify,
    /// Set when it is no master any more.
    over: AtomicBool,
}

/// How the server is found.
pub(super) enum Dial {
    One(Box<Client>),
    Sentinels(Box<Sentinels>),
    /// A node of a cluster, for as long as it is a master.
    Master(Box<Client>, At),
    /// Some node of it; whoever wants more than that asks the [`Cluster`].
    Cluster(Box<Cluster>),
}

/// The connection of one runtime.
struct Slot {
    live: Mutex<Option<Live>>,
    /// One at a time opens it. Each runtime for itself: one that is blocked must not be in another's way.
    opening: tokio::sync::Mutex<()>,
    /// Connections that carry one call at a time, and how many more calls may have one.
    idle: Mutex<Vec<Live>>,
    free: Arc<Semaphore>,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            live: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
            free: Arc::new(Semaphore::new(POOLED)),
        }
    }
}

/// A connection for one call. Dropped before its answers are all there, it is closed.
pub(super) struct Pooled {
    pub(super) live: Live,
    slot: Arc<Slot>,
    _free: OwnedSemaphorePermit,
}

impl Pooled {
    /// The next call may have it.
    pub(super) fn give_back(self) {
        self.slot.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.live);
    }
}

impl Slot {
    fn get(&self) -> Option<Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(Live::is_open)
    }

    fn has_idle(&self) -> bool {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).iter().any(Live::is_open)
    }

    fn set(&self, live: Option<Live>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = live;
    }
}

impl Connections {
    pub(super) fn new(dial: Dial, address: String) -> Connections {
        let (slots, open) = (Mutex::default(), Mutex::default());
        let (moved, over) = (Notify::new(), AtomicBool::new(false));
        Connections { dial, address, check_each: None, replicas: None, awake: Spin::Never, slots, open, moved, over }
    }

    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.dial {
            Dial::Sentinels(sentinels) => Some(sentinels),
            _ => None,
        }
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        match &self.dial {
            Dial::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// Nothing more is asked of a server that is not the master that the sentinels name.
    pub(super) fn cut_stale(&self) {
        let Some(master) = self.sentinels().and_then(Sentinels::known) else { return };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let stale: Vec<_> = open.extract_if(.., |(_, at)| *at != master).collect();
        drop(open);
        stale.iter().filter_map(|(end, _)| end.upgrade()).for_each(|end| end.end());
        if !stale.is_empty() {
            self.moved.notify_one();
        }
    }

    /// It is no master any more: nothing is asked of it from now on, and what it has not answered yet does not count.
    pub(super) fn cut(&self) {
        self.over.store(true, Ordering::Release);
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        open.iter().filter_map(|(end, _)| end.upgrade()).for_each(|end| end.end());
    }

    /// A new connection to a master that may be replaced.
    fn follow(&self, end: &Arc<End>, at: At) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(end, _)| end.upgrade().is_some_and(|end| !end.is_ended()));
        open.push((Arc::downgrade(end), at));
    }

    fn slot(&self, runtime: Id) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(&runtime) {
            return slot.clone();
        }
        // Runtimes that have ended took their connections with them.
        slots.retain(|_, slot| slot.get().is_some() || slot.has_idle());
        slots.entry(runtime).or_default().clone()
    }

    /// The calling runtime's connection; a new one costs two round trips.
    pub(super) async fn of_this_runtime(&self) -> Result<Live> {
        let runtime = Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::Unsupported, "this store needs a tokio runtime (or the blocking interface)")
        })?;
        if let Some(live) =
            self.slots.lock().unwrap_or_else(PoisonError::into_inner).get(&runtime.id()).and_then(|slot| slot.get())
        {
            return Ok(live);
        }
        // In a box, since it is rare and large: every call's future would be as large as this.
        Box::pin(self.open_for(runtime.id())).await
    }

    async fn open_for(&self, runtime: Id) -> Result<Live> {
        let slot = self.slot(runtime);
        let _opening = slot.opening.lock().await;
        if let Some(live) = slot.get() {
            return Ok(live);
        }
        let live = self.open(|_| {}).await?;
        slot.set(Some(live.clone()));
        Ok(live)
    }

    /// A connection of that runtime that nobody else uses meanwhile; a new one costs two round trips.
    pub(super) async fn pooled(&self, runtime: &Handle) -> Result<Pooled> {
        let slot = self.slot(runtime.id());
        let closed = |_| Error::new(ErrorKind::Unavailable, "the store was closed");
        let free = slot.free.clone().acquire_owned().await.map_err(closed)?;
        let idle = || slot.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let open = std::iter::from_fn(idle).find(Live::is_open);
        let live = match open {
            Some(live) => live,
            None => self.open(|_| {}).await?,
        };
        Ok(Pooled { live, slot, _free: free })
    }

    /// Opens one more, whose messages are handed to `heard`.
    pub(super) async fn open(&self, heard: impl Fn(Message) + Send + Sync + 'static) -> Result<Live> {
        let messages = move |push: PushInfo| {
            if push.kind == PushKind::Message {
                let mut data = push.data.into_iter().rev();
                if let (Some(Value::BulkString(said)), Some(Value::BulkString(channel))) = (data.next(), data.next()) {
                    heard((channel, said));
                }
            }
        };
        self.open_with(messages).await
    }

    /// Opens one more, with everything that the server says by itself handed to `pushed`.
    pub(super) async fn open_with(&self, pushed: impl Fn(PushInfo) + Send + Sync + 'static) -> Result<Live> {
        let end = Arc::new(End::default());
        let ending = Ending(end.clone());
        let push = move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection => ending.0.end(),
                _ => pushed(push),
            }
            Ok::<(), ()>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(ANSWER_WITHIN))
            .set_push_sender(push);
        let (client, followed) = match &self.dial {
            Dial::One(client) => (Client::clone(client), false),
            Dial::Sentinels(sentinels) => {
                let (client, at) = sentinels.master().await?;
                self.follow(&end, at);
                (client, true)
            }
            Dial::Master(client, at) => {
                self.follow(&end, at.clone());
                (Client::clone(client), true)
            }
            Dial::Cluster(cluster) => (cluster.any()?, false),
        };
        let another = || Error::new(ErrorKind::Unavailable, "the cluster has just got another master");
        if self.over.load(Ordering::Acquire) {
            return Err(another());
        }
        let late = |_| redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let under_way = UnderWay::default();
        let opening = Way::open(&client, config, self.awake, &under_way);
        let connecting = async { timeout(CONNECT_WITHIN, opening).await.map_err(late)? };
        let way = match select(pin!(connecting), pin!(end.wait())).await {
            Either::Left((way, _)) => way.map_err(|error| fault::connecting(error, &self.address))?,
            Either::Right(_) if self.over.load(Ordering::Acquire) => return Err(another()),
            Either::Right(_) => {
                return Err(Error::new(ErrorKind::Unavailable, format!("{} hangs up at once", self.address)));
            }
        };
        let live = Live { connection: Arc::new(way), under_way, end, followed };
        if self.sentinels().is_some() {
            sentinel::check_master(&live, &self.address).await?;
            // Whoever finds the new master first takes the others along.
            self.cut_stale();
            if !live.is_open() {
                return Err(Error::new(ErrorKind::Unavailable, "the sentinels have just named another master"));
            }
        }
        if let Some((evictable, grown)) = self.check_each {
            open::check(&live, &self.address, evictable, grown).await?;
        }
        Ok(live)
    }

    /// Closes them all.
    pub(super) fn close(&self) {
        if let Some(cluster) = self.cluster() {
            cluster.close();
        }
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
