//! The sessions of this client: one for each distinct lease, four at most; kept alive by renewals, and watched, so that the
//! end of one is known as soon as the server knows.

use super::Shared;
use super::api::Wanted;
use crate::clock::Moment;
use crate::error::Result;
use crate::keeper::backoff;
use crate::store::session::Life;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How long the server may keep the question open whether a session has ended.
const WAIT: Duration = Duration::from_secs(300);
/// The longest that a session lives without a renewal.
pub(super) const LONGEST: Duration = Duration::from_secs(86_400);

/// One session.
pub(super) struct Session {
    pub(super) id: String,
    pub(super) ttl: Duration,
    life: Mutex<Life>,
}

impl Session {
    fn life<T>(&self, act: impl FnOnce(&mut Life) -> T) -> T {
        act(&mut self.life.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn remaining(&self, now: Moment) -> Duration {
        self.life(|life| life.remaining(now))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.life(|life| life.has_ended())
    }

    pub(super) fn end(&self) {
        self.life(Life::end);
    }
}

impl Shared {
    /// The session for tickets with this lease: one request if it has to be made.
    pub(super) async fn session_for(self: &Arc<Self>, lease: Duration) -> Result<Arc<Session>> {
        let ttl = lease.clamp(self.shortest, LONGEST);
        let mut sessions = self.sessions.lock().await;
        let (ttl, slot) = sessions.slot(ttl, || None);
        if let Some(session) = slot.as_ref().filter(|session| !session.has_ended()) {
            return Ok(session.clone());
        }
        let sent = self.clock.now();
        let id = self.agent.create_session(&Wanted { ttl, ..self.wanted() }).await?;
        let session = Arc::new(Session { id, ttl, life: Mutex::new(Life::new(sent, ttl)) });
        *slot = Some(session.clone());
        if let Some(host) = self.host.get() {
            host.spawn(watch(Arc::downgrade(self), Arc::downgrade(&session)));
        }
        Ok(session)
    }

    /// One request. An error proves nothing: the session lives on until its time is over.
    pub(super) async fn renew_session(&self, session: &Session) -> Result<()> {
        let sent = self.clock.now();
        if self.agent.renew_session(&session.id).await? {
            session.life(|life| life.confirm(sent, session.ttl));
        } else {
            session.end();
        }
        Ok(())
    }

    fn wanted(&self) -> Wanted<'_> {
        let (behavior, lock_delay) = (self.behavior, self.lock_delay);
        Wanted { name: "fencelock", ttl: self.shortest, behavior, lock_delay }
    }

    /// The shortest time to live that the server takes: two requests, once.
    pub(super) async fn find_shortest(agent: &super::api::Agent) -> Result<Duration> {
        let ttl = Duration::from_secs(1);
        let wanted = Wanted { name: "fencelock", ttl, behavior: "delete", lock_delay: Duration::ZERO };
        match agent.create_session(&wanted).await {
            Ok(id) => {
                agent.destroy_session(&id).await?;
                Ok(ttl)
            }
            // "... must be between [10s=24h0m0s]"
            Err(error) if error.to_string().contains("must be between [") => {
                let text = error.to_string();
                let least = text.split_once("between [").and_then(|(_, rest)| rest.split('=').next());
                Ok(least.and_then(|least| crate::duration::parse(least).ok()).unwrap_or(Duration::from_secs(10)))
            }
            Err(error) => Err(error),
        }
    }

    /// Ends them all: their tickets go with them.
    pub(super) async fn end_sessions(&self) {
        let mut sessions = self.sessions.lock().await;
        let taken = std::mem::take(&mut *sessions);
        let ending = taken.iter().filter_map(|(_, session)| session.as_ref()).map(|session| async {
            session.end();
            let _ = self.agent.destroy_session(&session.id).await;
        });
        futures_util::future::join_all(ending).await;
    }
}

/// Tells as soon as a session has ended, whoever ended it. Runs on the library thread.
async fn watch(shared: Weak<Shared>, session: Weak<Session>) {
    let (mut index, mut failed) = (0, 0);
    loop {
        let (Some(shared), Some(session)) = (shared.upgrade(), session.upgrade()) else { return };
        if session.has_ended() || shared.is_closed() {
            return;
        }
        match shared.until_closed(shared.agent.session(&session.id, index, WAIT)).await {
            None => return,
            Some(Ok((true, new))) => {
                failed = 0;
                index = if new < index { 0 } else { new };
            }
            Some(Ok((false, _))) => {
                session.end();
                if let Some(host) = shared.host.get() {
                    host.doubt(None);
                }
                return;
            }
            Some(Err(_)) => {
                failed += 1;
                index = 0;
                shared.clock.sleep_until(shared.clock.now().after(backoff(failed))).await;
            }
        }
    }
}
