//! Connections: one for each runtime that calls, opened at its first call, and the library thread's own, which also carries
//! the inbox. A connection that has failed, or left a question unanswered, is replaced at the next call.

use super::cluster::Cluster;
use super::fault;
use super::open;
use super::script::Call;
use super::sentinel::{self, Sentinels};
use crate::error::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

/// How long an answer may take. What is not answered by then may still be carried out.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// An open connection.
#[derive(Clone)]
pub(super) struct Live {
    connection: MultiplexedConnection,
    end: Arc<End>,
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
        self.told.notify_one();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
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
        while self.is_open() {
            self.end.told.notified().await;
        }
    }

    /// One round trip.
    pub(super) async fn send(&self, cmd: &Cmd, address: &str) -> Result<Value> {
        self.try_send(cmd).await.map_err(|error| fault::asking(error, address))
    }

    pub(super) async fn try_send(&self, cmd: &Cmd) -> redis::RedisResult<Value> {
        let answer = self.connection.clone().send_packed_command(cmd).await.and_then(Value::extract_error);
        if let Err(error) = &answer
            && (error.is_io_error() || error.is_unrecoverable_error())
        {
            self.end.end();
        }
        answer
    }

    /// One round trip; two where the server does not know the script yet.
    pub(super) async fn call(&self, call: &Call, address: &str) -> Result<Value> {
        self.try_call(call).await.map_err(|error| fault::asking(error, address))
    }

    /// The same, with the server's own words if it refuses.
    pub(super) async fn try_call(&self, call: &Call) -> redis::RedisResult<Value> {
        match self.try_send(&call.by_hash()).await {
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
        let answer = self.connection.clone().send_packed_commands(&asking, 1, 1).await;
        if answer.as_ref().is_err_and(redis::RedisError::is_io_error) {
            self.end();
        }
        answer?.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// One round trip for all of them; a refusal is among the answers.
    pub(super) async fn send_all(&self, all: &redis::Pipeline, count: usize, address: &str) -> Result<Vec<Value>> {
        let answers = self.connection.clone().send_packed_commands(all, 0, count).await;
        if answers.as_ref().is_err_and(redis::RedisError::is_io_error) {
            self.end();
        }
        answers.map_err(|error| fault::asking(error, address))
    }

    /// It is not to be used any more.
    pub(super) fn end(&self) {
        self.end.end();
    }

    /// From now on messages of this channel come in.
    pub(super) async fn subscribe(&self, channel: &str, address: &str) -> Result<()> {
        let answer = self.connection.clone().subscribe(channel).await;
        if answer.as_ref().is_err_and(redis::RedisError::is_io_error) {
            self.end.end();
        }
        answer.map_err(|error| fault::asking(error, address))
    }

    /// The other way round. If it fails, messages that nobody wants go on coming in.
    pub(super) async fn unsubscribe(&self, channel: &str) {
        let _ = self.connection.clone().unsubscribe(channel).await;
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
    slots: Mutex<HashMap<Id, Arc<Slot>>>,
    /// Every connection that may still be open, the library thread's included.
    open: Mutex<Vec<Weak<End>>>,
}

/// How the server is found.
pub(super) enum Dial {
    One(Client),
    Sentinels(Sentinels),
    /// Some node of it; whoever wants more than that asks the [`Cluster`].
    Cluster(Box<Cluster>),
}

/// The connection of one runtime.
#[derive(Default)]
struct Slot {
    live: Mutex<Option<Live>>,
    /// One at a time opens it. Each runtime for itself: one that is blocked must not be in another's way.
    opening: tokio::sync::Mutex<()>,
}

impl Slot {
    fn get(&self) -> Option<Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(Live::is_open)
    }

    fn set(&self, live: Option<Live>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = live;
    }
}

impl Connections {
    pub(super) fn new(dial: Dial, address: String) -> Connections {
        Connections { dial, address, check_each: None, slots: Mutex::default(), open: Mutex::default() }
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

    /// The server is another one from now on: nothing more is asked of the old one.
    pub(super) fn cut(&self) {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        open.iter().filter_map(Weak::upgrade).for_each(|end| end.end());
    }

    fn slot(&self, runtime: Id) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(&runtime) {
            return slot.clone();
        }
        // Runtimes that have ended took their connections with them.
        slots.retain(|_, slot| slot.get().is_some());
        slots.entry(runtime).or_default().clone()
    }

    /// The calling runtime's connection; a new one costs two round trips.
    pub(super) async fn of_this_runtime(&self) -> Result<Live> {
        let runtime = Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::Unsupported, "this store needs a tokio runtime (or the blocking interface)")
        })?;
        let slot = self.slot(runtime.id());
        if let Some(live) = slot.get() {
            return Ok(live);
        }
        let _opening = slot.opening.lock().await;
        if let Some(live) = slot.get() {
            return Ok(live);
        }
        let live = self.open(|_| {}).await?;
        slot.set(Some(live.clone()));
        Ok(live)
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
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN))
            .set_push_sender(push);
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|end| end.upgrade().is_some_and(|end| !end.is_ended()));
            open.push(Arc::downgrade(&end));
        }
        let client = match &self.dial {
            Dial::One(client) => client.clone(),
            Dial::Sentinels(sentinels) => sentinels.master().await?,
            Dial::Cluster(cluster) => cluster.any()?,
        };
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| fault::connecting(error, &self.address))?;
        let live = Live { connection, end };
        if self.sentinels().is_some() {
            sentinel::check_master(&live, &self.address).await?;
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
