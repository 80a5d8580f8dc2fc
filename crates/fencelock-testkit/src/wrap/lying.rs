//! A store that claims what is not true, to see that a test of the suite catches it.

use fencelock::Result;
use fencelock::clock::Moment;
use fencelock::name::Name;
use fencelock::store::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Fencing, Hint, Host, Info, Lifetime, Line, Listed, Note, Place,
    Presence, Queue, Reach, Renew, Renewed, Scope, Store, TicketId, Upgraded, Waited, Wake, Weights,
};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What is claimed although it is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Fair, although whoever came last gets in first.
    Fair,
    /// A queue, although whoever finds no room is sent away.
    Queue,
    /// Fencing, although every number is the same.
    Fencing,
    /// Push, although a waiter only looks every three seconds.
    Push,
    /// Any weights, although readers and permits exclude each other.
    Weights,
    /// Batches of sixteen, although half of one may get in.
    Batch,
    /// A settable token, although it is not heeded.
    SettableToken,
    /// Upgrades, although the ticket stays what it was.
    Upgrade,
    /// Putting others out, although nobody goes.
    Expel,
    /// A shortest lease of 50 ms, although a ticket lives for five seconds at least.
    ShortestLease,
    /// A longest lease of ten years, although none is longer than a minute.
    LongestLease,
    /// Tickets with a lease of their own, although they live as long as the client does.
    OwnLease,
    /// All processes of the host, although each has its own.
    Reach,
}

/// A store that tells one [`Lie`]; otherwise it is the one inside.
pub struct Lying {
    inner: Arc<dyn Store>,
    lie: Lie,
    /// Who pretends to stand in the line, for [`Lie::Fair`].
    beside: Mutex<VecDeque<Enter>>,
}

impl Lying {
    /// Around `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, lie: Lie) -> Lying {
        Lying { inner, lie, beside: Mutex::default() }
    }

    fn beside(&self) -> std::sync::MutexGuard<'_, VecDeque<Enter>> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, token: u64) -> u64 {
        if self.lie == Lie::Fencing { 7 } else { token }
    }

    fn lease(&self, lease: Duration) -> Duration {
        match self.lie {
            Lie::ShortestLease => lease.max(Duration::from_secs(5)),
            Lie::LongestLease => lease.min(Duration::from_secs(60)),
            Lie::OwnLease => lease + Duration::from_secs(3600),
            _ => lease,
        }
    }

    async fn pause(&self, pause: Duration) {
        let clock = self.inner.info().clock;
        clock.sleep_until(clock.now().after(pause)).await;
    }

    async fn enter_as_claimed(&self, batch: &[Enter]) -> Result<Vec<Entered>> {
        let mut batch = batch.to_vec();
        for ticket in &mut batch {
            ticket.lease = self.lease(ticket.lease);
            ticket.queue &= self.lie != Lie::Queue;
            if self.lie == Lie::Weights {
                ticket.weight = ticket.capacity;
            }
        }
        if self.lie == Lie::Batch {
            let mut answers = Vec::new();
            for ticket in &batch {
                answers.extend(self.inner.enter(std::slice::from_ref(ticket)).await?);
            }
            return Ok(answers);
        }
        if self.lie == Lie::Fair && batch.len() == 1 && batch[0].queue {
            let mut ticket = batch.remove(0);
            ticket.queue = false;
            let mut answers = self.inner.enter(std::slice::from_ref(&ticket)).await?;
            if let Some(Entered::Full { holder }) = answers.first() {
                answers = vec![Entered::Queued { token: None, lease: ticket.lease, ahead: holder.clone() }];
                self.beside().push_front(ticket);
            }
            return Ok(answers);
        }
        self.inner.enter(&batch).await
    }

    /// Last come, first served.
    async fn wait_beside(&self, place: &Place, until: Moment) -> Result<Waited> {
        let clock = self.inner.info().clock;
        loop {
            let first = self.beside().front().cloned();
            if let Some(ticket) = first.filter(|first| first.place == *place) {
                let answers = self.inner.enter(std::slice::from_ref(&ticket)).await?;
                if let Some(Entered::Admitted { token, .. }) = answers.first() {
                    self.beside().pop_front();
                    return Ok(Waited::Admitted { token: *token });
                }
            } else if !self.beside().iter().any(|ticket| ticket.place == *place) {
                return self.inner.wait(place, until).await;
            }
            if clock.now() >= until {
                return Ok(Waited::Waiting);
            }
            self.pause(Duration::from_millis(2)).await;
        }
    }
}

impl fmt::Debug for Lying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lying({:?}, {:?})", self.lie, self.inner)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for Lying {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capability(&self) -> Capability {
        let mut claimed = self.inner.capability();
        match self.lie {
            Lie::Fair | Lie::Queue => claimed.queue = Queue::Fifo,
            Lie::Upgrade => claimed.upgrade = true,
            Lie::Expel => claimed.expel = true,
            Lie::Fencing => claimed.fencing = Fencing::Replicated,
            Lie::Push => claimed.wake = Wake::Push,
            Lie::Weights => claimed.weights = Weights::Any,
            Lie::Batch => claimed.atomic_batch = 16,
            Lie::SettableToken => claimed.settable_token = true,
            Lie::ShortestLease => claimed.shortest_lease = Duration::from_millis(50),
            Lie::LongestLease => claimed.longest_lease = Duration::from_secs(10 * 365 * 86_400),
            Lie::OwnLease => claimed.lifetime = Lifetime::Ticket,
            Lie::Reach => claimed.reach = Reach::Host,
        }
        claimed
    }

    fn attach(&self, host: Host) {
        self.inner.attach(host);
    }

    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            let answers = self.enter_as_claimed(batch).await?;
            let told = |answer| match answer {
                Entered::Admitted { token, lease } => Entered::Admitted { token: self.number(token), lease },
                Entered::Queued { token, lease, ahead } => {
                    Entered::Queued { token: token.map(|token| self.number(token)), lease, ahead }
                }
                full => full,
            };
            Ok(answers.into_iter().map(told).collect())
        })
    }

    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(async move {
            let clock = self.inner.info().clock;
            let waited = match self.lie {
                Lie::Fair => self.wait_beside(place, until).await?,
                Lie::Push => loop {
                    let found = self.inner.wait(place, clock.now()).await?;
                    if found != Waited::Waiting || clock.now() >= until {
                        break found;
                    }
                    self.pause(Duration::from_secs(3).min(until.since(clock.now()))).await;
                },
                _ => self.inner.wait(place, until).await?,
            };
            Ok(match waited {
                Waited::Admitted { token } => Waited::Admitted { token: self.number(token) },
                other => other,
            })
        })
    }

    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(async move {
            let mut batch = batch.to_vec();
            for renew in &mut batch {
                renew.lease = self.lease(renew.lease);
                renew.at_least = renew.at_least.filter(|_| self.lie != Lie::SettableToken);
            }
            self.inner.renew(&batch).await
        })
    }

    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(async move {
            let mut answers = self.inner.leave(batch).await?;
            for (place, answer) in batch.iter().zip(&mut answers) {
                let before = self.beside().len();
                self.beside().retain(|ticket| ticket.place != *place);
                if self.beside().len() < before {
                    *answer = Presence::There;
                }
            }
            Ok(answers)
        })
    }

    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        self.inner.change(place, weight.filter(|_| self.lie != Lie::Weights), note)
    }

    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(async move {
            if self.lie == Lie::Upgrade {
                // It stays what it was, and says otherwise.
                return Ok(match self.inner.wait(place, Moment::default()).await? {
                    Waited::Admitted { token } => Upgraded::Admitted { token },
                    _ => Upgraded::Gone,
                });
            }
            Ok(match self.inner.upgrade(place, new).await? {
                Upgraded::Admitted { token } => Upgraded::Admitted { token: self.number(token) },
                other => other,
            })
        })
    }

    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        if self.lie == Lie::Expel {
            return Box::pin(std::future::ready(Ok(Presence::There)));
        }
        self.inner.expel(name, token)
    }

    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        self.inner.watch(scope)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        self.inner.inspect(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        self.inner.list(prefix, after, limit)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}
