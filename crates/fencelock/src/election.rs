//! Leader election: a lock whose holder says something of itself, and whose others can see who it is and when that changes.

use crate::acquire;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Grip, Released};
use crate::hold::State;
use crate::keeper::{PATIENCE, backoff};
use crate::line::WHOLE;
use crate::locks::{Core, Locks};
use crate::name::Name;
use crate::observe;
use crate::options::Options;
use crate::store::{BoxStream, Hint, Kind, Note, Presence, Scope, Seen};
use crate::token::Token;
use futures_util::StreamExt;
use futures_util::future::select;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

/// Whoever observes looks again at the latest after this long: a lapse that nobody has noticed is told by nobody.
const TICK: Duration = Duration::from_secs(5);

/// An election: one leader at a time, whom everybody can see. Made by [`Locks::election`].
///
/// The leader is the holder of the lock of that name; candidates wait in its queue. The **term** is the fencing token: a
/// later leader has a larger one, so a resource that checks it refuses a leader that has been replaced without knowing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:election-example").await?;
/// let election = locks.election("scheduler");
/// assert!(election.leader().await?.is_none());
///
/// let leadership = election.campaign("10.0.0.7:8080").await?; // waits until we are it
/// let leader = election.leader().await?.unwrap();
/// assert_eq!((leader.value.as_str(), leader.term), ("10.0.0.7:8080", leadership.term()));
///
/// leadership.run(async { /* lead */ }).await?; // stops as soon as the leadership is lost
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    core: Arc<Core>,
    name: Arc<Result<Name>>,
}

/// Who leads, as everybody sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The term: the number of the leader's fencing token. 0 where the store does not tell others.
    pub term: u64,
    /// What the leader says of itself; empty if nothing.
    pub value: String,
    /// What its process calls itself.
    pub identity: String,
    /// The machine.
    pub host: String,
    /// The process.
    pub pid: u32,
}

impl Leader {
    fn of(seen: Seen) -> Leader {
        Leader {
            term: seen.token.unwrap_or(0),
            value: seen.value.unwrap_or_default(),
            identity: seen.identity,
            host: seen.host,
            pid: seen.pid,
        }
    }
}

impl Locks {
    /// An election. No I/O. It is the same lock as the [`mutex`](Locks::mutex) of that name.
    pub fn election(&self, name: &str) -> Election {
        let name = Name::new(&self.core.namespace, name);
        Election { core: self.core.clone(), name: Arc::new(name) }
    }
}

impl Election {
    /// Waits in the queue until we are the leader, for as long as it takes. `value` is what the others are told.
    ///
    /// # Errors
    /// `Mismatch`, `InvalidName`, or whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidacy, or the leadership if it was just won; nothing is left behind.
    pub async fn campaign(&self, value: &str) -> Result<Leadership> {
        self.campaign_with(value, Options::new()).await
    }

    /// Becomes the leader if there is none and nobody waits to be.
    ///
    /// # Errors
    /// `Held`, with the leader's facts; and those of [`campaign`](Election::campaign).
    ///
    /// # Cancel safety
    /// As [`campaign`](Election::campaign).
    pub async fn try_campaign(&self, value: &str) -> Result<Leadership> {
        self.campaign_within(value, Duration::ZERO).await
    }

    /// Waits at most this long to be the leader.
    ///
    /// # Errors
    /// `TimedOut`, with the leader's facts; and those of [`campaign`](Election::campaign).
    ///
    /// # Cancel safety
    /// As [`campaign`](Election::campaign).
    pub async fn campaign_within(&self, value: &str, wait: Duration) -> Result<Leadership> {
        self.campaign_with(value, Options::new().wait(wait)).await
    }

    /// Campaigns as the options say. The lease is how long the others are without a leader if this process dies.
    ///
    /// # Errors
    /// `InvalidInput` for options that do not fit together or the store; and those of the other calls.
    ///
    /// # Cancel safety
    /// As [`campaign`](Election::campaign).
    pub async fn campaign_with(&self, value: &str, options: Options) -> Result<Leadership> {
        let mut request = self.core.request(self.name()?.clone(), Kind::Leader, (WHOLE, WHOLE), &options, None)?;
        request.note.value = Some(value.into());
        let (note, span) = (request.note.clone(), observe::acquiring(&request.name, Kind::Leader));
        let hold = acquire::acquire(&self.core, request).instrument(span).await?;
        Ok(Leadership { core: self.core.clone(), grip: Grip::new(self.core.clone(), hold, true), note })
    }

    /// Who leads now. One round trip.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(look(&self.core, self.name()?).await?.map(Leader::of))
    }

    /// Who leads, now and whenever that changes: first how it is, then each new leader, each new value, and `None` while
    /// there is none. What comes and goes between two looks is not seen; the last state always is. A leader that died is seen
    /// to be gone when its lease has ended.
    ///
    /// The stream does not end. While the store cannot be reached it says nothing, and then goes on with how it is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> fencelock::Result<()> {
    /// # let locks = fencelock::Locks::connect("memory:observe-example").await?;
    /// use futures_util::StreamExt;
    ///
    /// let election = locks.election("scheduler");
    /// let mut leaders = election.observe().await?;
    /// assert_eq!(leaders.next().await, Some(None));
    /// let leadership = election.campaign("10.0.0.7").await?;
    /// assert_eq!(leaders.next().await.flatten().unwrap().value, "10.0.0.7");
    /// leadership.resign().await?;
    /// assert_eq!(leaders.next().await, Some(None));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Whatever keeps the store from answering now.
    ///
    /// # Cancel safety
    /// Dropping the future, or the stream, ends the watch.
    pub async fn observe(&self) -> Result<BoxStream<'static, Option<Leader>>> {
        let name = self.name()?.clone();
        // First the watch, then the look: what changes in between is told.
        let hints = self.core.keeper.store.watch(Scope::Name(name.clone())).await?;
        let first = look(&self.core, &name).await?;
        let core = self.core.clone();
        let now = first.clone().map(Leader::of);
        let observer = Observer { core, name, hints: Some(hints), look_at: Moment::FAR, last: now.clone(), failed: 0 };
        let observer = observer.seen(first.as_ref());
        let changes = futures_util::stream::unfold(observer, |mut observer| async move {
            let leader = observer.change().await;
            Some((leader, observer))
        });
        Ok(futures_util::stream::once(std::future::ready(now)).chain(changes).boxed())
    }

    fn name(&self) -> Result<&Name> {
        self.name.as_ref().as_ref().map_err(Error::again)
    }
}

async fn look(core: &Core, name: &Name) -> Result<Option<Seen>> {
    Ok(core.keeper.store.inspect(name).await?.inside.into_iter().next())
}

/// What goes on behind a stream of leaders.
struct Observer {
    core: Arc<Core>,
    name: Name,
    hints: Option<BoxStream<'static, Hint>>,
    /// When to look although nobody told.
    look_at: Moment,
    last: Option<Leader>,
    /// How many calls have failed in a row.
    failed: u32,
}

impl Observer {
    fn clock(&self) -> &Clock {
        &self.core.keeper.clock
    }

    /// The leader's lease is the time to look again; a candidate that comes next is told.
    fn seen(mut self, leader: Option<&Seen>) -> Observer {
        self.look_next(leader);
        self
    }

    fn look_next(&mut self, leader: Option<&Seen>) {
        let lease = leader.and_then(|seen| seen.expires_in);
        let pause = lease.map_or(TICK, |lease| lease.saturating_add(Duration::from_millis(5)).min(TICK));
        self.look_at = self.clock().now().after(pause);
    }

    /// Waits for the next change.
    async fn change(&mut self) -> Option<Leader> {
        loop {
            self.wait().await;
            match look(&self.core, &self.name).await {
                Ok(seen) => {
                    self.failed = 0;
                    self.look_next(seen.as_ref());
                    let leader = seen.map(Leader::of);
                    if leader != self.last {
                        self.last.clone_from(&leader);
                        return leader;
                    }
                }
                Err(_) => self.pause(),
            }
        }
    }

    /// Until somebody tells, or it is time to look.
    async fn wait(&mut self) {
        if self.hints.is_none() {
            // What was told between two watches nobody has heard: look at once.
            match self.core.keeper.store.watch(Scope::Name(self.name.clone())).await {
                Ok(hints) => {
                    self.hints = Some(hints);
                    self.clock().sleep_until(self.pause_of(self.failed)).await;
                    return;
                }
                // A store that cannot tell is asked by the timer.
                Err(_) => self.pause(),
            }
        }
        let timer = self.clock().sleep_until(self.look_at);
        let Some(hints) = &mut self.hints else { return timer.await };
        let ended = {
            let told = pin!(hints.next());
            matches!(select(told, pin!(timer)).await, futures_util::future::Either::Left((None, _)))
        };
        if ended {
            self.hints = None;
            self.failed += 1;
        }
    }

    fn pause(&mut self) {
        self.failed += 1;
        self.look_at = self.pause_of(self.failed);
    }

    fn pause_of(&self, failed: u32) -> Moment {
        if failed == 0 { Moment::default() } else { self.clock().now().after(backoff(failed)) }
    }
}

/// We lead. Dropping it resigns in the background; [`resign`](Leadership::resign) tells how it went.
#[must_use = "dropping a leadership resigns"]
pub struct Leadership {
    core: Arc<Core>,
    grip: Grip,
    note: Note,
}

impl Leadership {
    /// The term: larger than that of every earlier leader.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.grip.hold().number()
    }

    /// The term as a fencing token: hand it to the resource with every access.
    #[must_use]
    pub fn token(&self) -> Token {
        self.grip.token()
    }

    /// The election's name, with its namespace.
    #[must_use]
    pub fn name(&self) -> String {
        self.grip.hold().name.shown()
    }

    /// How sure we can be of it: computed from the clock at each call.
    #[must_use]
    pub fn state(&self) -> State {
        self.grip.hold().state()
    }

    /// How long until the local deadline, at which it is lost unless a renewal gets through.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.grip.hold().remaining()
    }

    /// Resolves when it is lost, for whatever reason. Fires although the store is out of reach.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        self.grip.hold().lost().await;
    }

    /// Leads for as long as we are the leader: the work's output, or a `Lost` error as soon as it is lost. The work is never
    /// polled past the deadline.
    ///
    /// # Errors
    /// `Lost`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and keeps the leadership.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        self.grip.run(work).await
    }

    /// Tells the others something new. One round trip.
    ///
    /// # Errors
    /// `Lost` if it is no longer ours; or whatever keeps the store from answering: the others may or may not have been told.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not tell them.
    pub async fn set_value(&mut self, value: &str) -> Result<()> {
        let hold = self.grip.hold();
        if hold.state() == State::Lost {
            return Err(hold.lost_error());
        }
        let note = Note { value: Some(value.into()), ..self.note.clone() };
        let (keeper, place) = (&self.core.keeper, hold.place());
        let told = keeper.ask("a change", PATIENCE, || keeper.store.change(&place, None, Some(note.clone()))).await;
        match told.map_err(|error| error.named(place.name.shown()))? {
            Presence::There => {
                self.note = note;
                Ok(())
            }
            Presence::Gone => {
                keeper.doubt(Some(place.id));
                Err(Error::new(ErrorKind::Lost, "lost: the store says that it is gone").named(place.name.shown()))
            }
        }
    }

    /// Lets the next candidate lead, and says whether we led until then. One round trip; where a reply is lost, it asks again.
    ///
    /// # Errors
    /// Whatever keeps the store from answering; it is then tried again in the background.
    ///
    /// # Cancel safety
    /// Dropping the future resigns in the background.
    pub async fn resign(self) -> Result<Released> {
        self.grip.release().await
    }
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leadership({:?})", self.grip.hold())
    }
}
