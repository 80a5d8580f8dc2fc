//! Connections: one for each runtime that calls, opened at its first call. Each is to one server of the list and stays there;
//! one that has failed, or left a question unanswered, is replaced at the next call, by one to the next server.

use super::connector::Connector;
use super::fault::{self, Fault};
use super::frame::Unary;
use super::open::{CONNECT_WITHIN, Servers};
use super::rpc::auth_client::AuthClient;
use super::rpc::kv_client::KvClient;
use super::rpc::lease_client::LeaseClient;
use super::rpc::{
    AuthenticateRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest,
    RangeResponse, TxnRequest, TxnResponse,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use futures_util::future::{Either, select};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};

/// How long an answer may take where there are other servers. What is not answered by then may still be carried out.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The same where there is no other server to ask.
const ONLY_ONE_WITHIN: Duration = Duration::from_secs(10);
/// A question that its asker gave up after this long speaks against the connection.
const SUSPICIOUS: Duration = Duration::from_millis(500);
/// The largest answer: a list of very many names.
const LARGEST: usize = 64 << 20;

/// What the server gave us for user name and password.
type Token = MetadataValue<Ascii>;

/// An open connection.
#[derive(Clone)]
pub(super) struct Live {
    channel: Channel,
    token: Option<Token>,
    /// Which server.
    at: usize,
    end: Arc<End>,
}

#[derive(Default)]
struct End {
    ended: AtomicBool,
    told: Notify,
}

impl Live {
    fn is_open(&self) -> bool {
        !self.end.ended.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.end.ended.store(true, Ordering::Release);
        self.end.told.notify_waiters();
    }

    /// Ready when nobody should use it any more.
    pub(super) async fn ended(&self) {
        let mut told = pin!(self.end.told.notified());
        told.as_mut().enable();
        if self.is_open() {
            told.await;
        }
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A request that says who we are.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

/// A question to the server.
pub(super) trait Call: Clone + Send + Sync + 'static {
    type Answer: Send + 'static;

    /// One round trip.
    fn send(self, live: &Live) -> impl Future<Output = Result<Self::Answer, Status>> + Send;
}

macro_rules! call {
    ($client:ident.$method:ident: $question:ty => $answer:ty) => {
        impl Call for $question {
            type Answer = $answer;

            async fn send(self, live: &Live) -> Result<$answer, Status> {
                let mut client = $client::new(Unary(live.channel())).max_decoding_message_size(LARGEST);
                Ok(client.$method(live.request(self)).await?.into_inner())
            }
        }
    };
}

call!(KvClient.range: RangeRequest => RangeResponse);
call!(KvClient.txn: TxnRequest => TxnResponse);
call!(LeaseClient.lease_grant: LeaseGrantRequest => LeaseGrantResponse);
call!(LeaseClient.lease_revoke: LeaseRevokeRequest => LeaseRevokeResponse);
call!(LeaseClient.lease_time_to_live: LeaseTimeToLiveRequest => LeaseTimeToLiveResponse);

impl Call for LeaseKeepAliveRequest {
    type Answer = LeaseKeepAliveResponse;

    /// A stream of its own for each: as much work as any other call, and none that could break without notice.
    async fn send(self, live: &Live) -> Result<LeaseKeepAliveResponse, Status> {
        let request = live.request(futures_util::stream::iter([self]));
        let mut answers = LeaseClient::new(live.channel()).lease_keep_alive(request).await?.into_inner();
        answers.message().await?.ok_or_else(|| Status::unavailable("the stream ended without an answer"))
    }
}

/// The connections of one client.
pub(super) struct Connections {
    servers: Servers,
    clock: Clock,
    /// The server to begin with.
    next: AtomicUsize,
    slots: Mutex<HashMap<Id, Arc<Slot>>>,
    closed: AtomicBool,
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
}

/// A question that is under way. If it is given up after a while, that speaks against the connection.
struct Asking<'a> {
    connections: &'a Connections,
    live: &'a Live,
    since: Moment,
    answered: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.answered && self.connections.clock.now().since(self.since) >= SUSPICIOUS {
            self.connections.drop_live(self.live);
        }
    }
}

impl Connections {
    pub(super) fn new(servers: Servers, clock: Clock) -> Connections {
        let next = AtomicUsize::new(fastrand::usize(..servers.endpoints.len()));
        Connections { servers, clock, next, slots: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// All servers, without credentials.
    pub(super) fn address(&self) -> &str {
        &self.servers.address
    }

    fn slot(&self, runtime: Id) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(&runtime) {
            return slot.clone();
        }
        // Of runtimes that have ended nothing more is heard.
        slots.retain(|_, slot| slot.get().is_some());
        slots.entry(runtime).or_default().clone()
    }

    /// The calling runtime's connection.
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
        let live = self.open().await?;
        *slot.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
        Ok(live)
    }

    /// Tries each server once, beginning with the one whose turn it is.
    async fn open(&self) -> Result<Live> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unavailable, "the store has been closed"));
        }
        let count = self.servers.endpoints.len();
        let first = self.next.load(Ordering::Relaxed);
        let mut failure = None;
        for at in (0..count).map(|i| (first + i) % count) {
            match self.open_at(at).await {
                Ok(live) => {
                    self.next.store(at, Ordering::Relaxed);
                    return Ok(live);
                }
                // Another server would say the same.
                Err(error) if error.kind() != ErrorKind::Unavailable => return Err(error),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(ErrorKind::InvalidInput, "no server is named")))
    }

    /// One round trip to connect, and one more to say who we are.
    async fn open_at(&self, at: usize) -> Result<Live> {
        let (endpoint, address) = &self.servers.endpoints[at];
        let channel = endpoint.connect_with_connector(Connector::new(CONNECT_WITHIN)).await;
        let channel = channel.map_err(|error| fault::unreachable(address, error))?;
        let mut live = Live { channel, token: None, at, end: Arc::default() };
        if let Some((name, password)) = &self.servers.user {
            let question = AuthenticateRequest { name: name.clone(), password: password.clone() };
            let mut client = AuthClient::new(live.channel());
            let asking = pin!(client.authenticate(question));
            let limit = pin!(self.clock.sleep_until(self.clock.now().after(ANSWER_WITHIN)));
            let token = match select(asking, limit).await {
                Either::Left((Ok(answer), _)) => answer.into_inner().token,
                Either::Left((Err(status), _)) => return Err(fault::of(&status, address).into()),
                Either::Right(_) => return Err(fault::late(address).into()),
            };
            let unreadable = |_| Error::new(ErrorKind::Broken, "the server's answer cannot be read");
            live.token = Some(token.parse().map_err(unreadable)?);
        }
        Ok(live)
    }

    /// Nobody uses this one any more; the next is to the next server.
    pub(super) fn drop_live(&self, live: &Live) {
        if live.is_open() {
            let next = (live.at + 1) % self.servers.endpoints.len();
            // Unless somebody went on already.
            let _ = self.next.compare_exchange(live.at, next, Ordering::Relaxed, Ordering::Relaxed);
            live.end();
        }
    }

    /// One round trip; more only where this runtime has no connection yet.
    pub(super) async fn call<C: Call>(&self, question: &C) -> Result<C::Answer, Fault> {
        let mut again = true;
        loop {
            let live = self.of_this_runtime().await?;
            let address = &self.servers.endpoints[live.at].1;
            let since = self.clock.now();
            let mut asking = Asking { connections: self, live: &live, since, answered: false };
            let answer = pin!(question.clone().send(&live));
            let patience = if self.servers.endpoints.len() > 1 { ANSWER_WITHIN } else { ONLY_ONE_WITHIN };
            let limit = pin!(self.clock.sleep_until(since.after(patience)));
            let answer = select(answer, limit).await;
            asking.answered = true;
            let fault = match answer {
                Either::Left((Ok(answer), _)) => return Ok(answer),
                Either::Left((Err(status), _)) => fault::of(&status, address),
                Either::Right(_) => fault::late(address),
            };
            if fault.elsewhere || fault.stale_token {
                self.drop_live(&live);
            }
            // Nothing was done, and a new connection says anew who we are.
            if !(fault.stale_token && self.servers.user.is_some() && std::mem::take(&mut again)) {
                return Err(fault);
            }
        }
    }

    /// Closes them all.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
