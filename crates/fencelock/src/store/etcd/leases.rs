//! Sessions: a lease of the server for each distinct lease of ours, kept alive by a task on the library thread. A key that
//! lives with it, and a watch of that key, tell at once when it has ended.

use super::Shared;
use super::fault::Fault;
use super::hub::{What, closed};
use super::rpc::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, TxnRequest};
use super::{keys, txn};
use crate::clock::Moment;
use crate::error::Result;
use crate::keeper::backoff;
use crate::store::session::Life;
use futures_util::future::FutureExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// The server makes every shorter lease one of this length.
pub(super) const SHORTEST: Duration = Duration::from_secs(2);
/// Where nobody says which.
pub(super) const USUAL: Duration = Duration::from_secs(30);
/// A session that nobody has used for so long is given back.
const IDLE: Duration = Duration::from_secs(60);

/// A lease of the server.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) lease: i64,
    ttl: Duration,
    life: Mutex<Life>,
    used: Mutex<Moment>,
    /// An enter was given up without an answer: there may be a ticket that nobody knows.
    suspicious: AtomicBool,
    /// Its marker has gone, or was out of sight for a while.
    doubted: Notify,
}

impl Session {
    /// Another client's: nothing is known of it before it is kept alive.
    pub(super) fn of_another(lease: i64) -> Session {
        let life = Mutex::new(Life::new(Moment::default(), Duration::ZERO));
        let (used, suspicious) = (Mutex::default(), AtomicBool::new(false));
        Session { lease, ttl: Duration::ZERO, life, used, suspicious, doubted: Notify::new() }
    }

    pub(super) fn is_of_another(&self) -> bool {
        self.ttl.is_zero()
    }

    fn life(&self) -> Life {
        *self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it surely lives, from `now`.
    pub(super) fn remaining(&self, now: Moment) -> Duration {
        self.life().remaining(now)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.life().has_ended()
    }

    pub(super) fn end(&self) {
        self.life.lock().unwrap_or_else(PoisonError::into_inner).end();
        self.doubted.notify_one();
    }

    pub(super) fn suspect(&self) {
        self.suspicious.store(true, Ordering::Release);
    }

    /// It may have ended.
    pub(super) fn doubt(&self) {
        self.doubted.notify_one();
    }

    fn idle_for(&self, now: Moment) -> Duration {
        now.since(*self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn use_now(&self, now: Moment) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Whether a ticket can be entrusted to it as it is.
    fn is_fresh(&self, now: Moment) -> bool {
        self.remaining(now) > self.ttl / 2
    }
}

/// Where the session of one length is found.
#[derive(Debug, Default)]
pub(super) struct Slot {
    current: Mutex<Option<Arc<Session>>>,
    /// One at a time opens it.
    opening: tokio::sync::Mutex<()>,
}

impl Slot {
    fn get(&self) -> Option<Arc<Session>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone().filter(|session| !session.has_ended())
    }

    fn set(&self, session: Option<Arc<Session>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }
}

/// A lease as the server can keep it: whole seconds, at least two.
fn kept(lease: Duration) -> Duration {
    Duration::from_secs(lease.as_secs() + u64::from(lease.subsec_nanos() > 0)).max(SHORTEST)
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

impl Shared {
    /// The session for tickets with this lease. No round trip where it is there and has enough of its time left; one to keep
    /// it alive, or to open it.
    pub(super) async fn session(self: &Arc<Self>, lease: Duration) -> Result<Arc<Session>> {
        let (ttl, slot) = {
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            let (ttl, slot) = sessions.slot(kept(lease), Arc::default);
            (ttl, slot.clone())
        };
        let fresh = |session: &Arc<Session>| session.is_fresh(self.clock.now());
        if let Some(session) = slot.get().filter(fresh) {
            session.use_now(self.clock.now());
            return Ok(session);
        }
        let _opening = slot.opening.lock().await;
        if let Some(session) = slot.get() {
            if fresh(&session) || self.keep_alive(&session).await? {
                session.use_now(self.clock.now());
                return Ok(session);
            }
            self.has_ended(&session);
        }
        let sent = self.clock.now();
        let question = LeaseGrantRequest { ttl: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX), id: 0 };
        let granted = self.ask(question).await?;
        let session = Arc::new(Session {
            lease: granted.id,
            ttl,
            life: Mutex::new(Life::new(sent, seconds(granted.ttl))),
            used: Mutex::new(sent),
            suspicious: AtomicBool::new(false),
            doubted: Notify::new(),
        });
        slot.set(Some(session.clone()));
        self.host(|host| host.spawn(keep(Arc::downgrade(self), session.clone(), slot.clone())));
        Ok(session)
    }

    /// All sessions that are open.
    pub(super) fn open_sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().filter_map(|(_, slot)| slot.get()).collect()
    }

    /// Keeps a session alive: `false` if it has ended. One round trip.
    pub(super) async fn keep_alive(self: &Arc<Self>, session: &Session) -> Result<bool, Fault> {
        if session.has_ended() {
            return Ok(false);
        }
        let sent = self.clock.now();
        let answer = self.ask(LeaseKeepAliveRequest { id: session.lease }).await?;
        // A lease that is no more is no error to the server.
        if answer.ttl <= 0 {
            session.end();
            return Ok(false);
        }
        session.life.lock().unwrap_or_else(PoisonError::into_inner).confirm(sent, seconds(answer.ttl));
        Ok(true)
    }

    /// Whoever holds something by this session looks at once.
    fn has_ended(&self, session: &Session) {
        session.end();
        self.host(|host| host.doubt(None));
    }

    /// Puts the marker: `false` if the session has ended. One round trip.
    async fn mark(self: &Arc<Self>, session: &Session) -> Result<bool> {
        let put = txn::put(&keys::marker(session.lease), Vec::new(), session.lease);
        match self.ask(TxnRequest { success: vec![put], ..TxnRequest::default() }).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.no_lease => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Deletes what the session owns and nobody knows. One round trip, and one for what is found.
    async fn sweep(self: &Arc<Self>, session: &Session) -> Result<()> {
        let owned = self.ask(LeaseTimeToLiveRequest { id: session.lease, keys: true }).await?.keys;
        let strays: Vec<_> = owned.iter().filter(|key| self.is_stray(key)).map(txn::delete).collect();
        for some in strays.chunks(100) {
            self.ask(TxnRequest { success: some.to_vec(), ..TxnRequest::default() }).await?;
        }
        Ok(())
    }

    /// Gives a session back, and with it whatever still hangs on it. One round trip.
    pub(super) async fn revoke(self: &Arc<Self>, session: &Session) {
        session.end();
        // If it fails, the lease ends by itself.
        let _ = self.ask(LeaseRevokeRequest { id: session.lease }).await;
    }
}

/// Keeps a session alive until it has ended, or nobody has used it for long.
async fn keep(shared: Weak<Shared>, session: Arc<Session>, slot: Arc<Slot>) {
    let Some(this) = shared.upgrade() else { return };
    // Without rights on that key the next keep-alive tells that the session has ended.
    let marked = this.mark(&session).await;
    let _watching = marked.is_ok().then(|| this.hub.join(What::Marker(session.clone())));
    let poll = if marked.is_ok() { session.ttl / 3 } else { (session.ttl / 3).min(Duration::from_millis(700)) };
    let clock = this.clock.clone();
    let closing = this.closed.subscribe();
    drop(this);
    let mut tries = 0;
    loop {
        let now = clock.now();
        let due = match tries {
            0 => now.after(poll.mul_f64(0.9 + fastrand::f64() / 10.0)),
            tries => now.after(backoff(tries).min(session.ttl / 6)),
        };
        let doubted = futures_util::select_biased! {
            () = closed(&closing).fuse() => return,
            () = session.doubted.notified().fuse() => true,
            () = clock.sleep_until(due).fuse() => false,
        };
        let Some(this) = shared.upgrade() else { return };
        if session.has_ended() {
            return this.has_ended(&session);
        }
        // Whether the lease is there is asked of the log: a keep-alive may be answered by a server that missed its end.
        let alive = if doubted && marked.is_ok() { this.mark(&session).await } else { Ok(true) };
        let alive = match alive {
            Ok(true) => this.keep_alive(&session).await.map_err(Into::into),
            other => other,
        };
        match alive {
            Ok(true) => tries = 0,
            Ok(false) => return this.has_ended(&session),
            Err(_) => tries += 1,
        }
        if tries == 0 && session.suspicious.load(Ordering::Acquire) {
            // If it fails, the next round does it.
            let _ = this.sweep(&session).await;
        }
        if session.idle_for(clock.now()) > IDLE.max(session.ttl) && this.take_idle(&session, &slot) {
            return this.revoke(&session).await;
        }
    }
}

impl Shared {
    /// Takes a session out of use, if no ticket hangs on it.
    fn take_idle(&self, session: &Arc<Session>, slot: &Slot) -> bool {
        let tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        if tickets.values().any(|ours| Arc::ptr_eq(&ours.session, session)) {
            session.use_now(self.clock.now());
            return false;
        }
        slot.set(None);
        // Whoever got it a moment ago finds that it has ended, and opens another.
        session.end();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_whole_seconds_and_two_at_least() {
        for (asked, granted) in [(0, 2000), (500, 2000), (2000, 2000), (2001, 3000), (30_000, 30_000), (30_500, 31_000)]
        {
            assert_eq!(kept(Duration::from_millis(asked)), Duration::from_millis(granted));
        }
    }
}
