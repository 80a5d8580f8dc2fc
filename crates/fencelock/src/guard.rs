//! Guards: what a caller has while it holds something. Dropping one releases in the background.

use crate::acquire::flush;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Ending, Hold, State};
use crate::keeper::{OwnLeaves, PATIENCE, backoff};
use crate::locks::Core;
use crate::name::Name;
use crate::observe;
use crate::store::{Mode, Presence, Seen, TicketId, Upgraded};
use crate::sync::atomic::Ordering;
use crate::token::Token;
use futures_util::future::select;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was still ours until now.
    Held,
    /// It was gone before: lost, or put out by somebody.
    AlreadyGone,
}

/// One guard's hand on a hold.
pub(crate) struct Grip {
    core: Arc<Core>,
    hold: Arc<Hold>,
    exclusive: bool,
    armed: bool,
}

impl Grip {
    /// Takes over a guard that the hold has counted already.
    pub(crate) fn new(core: Arc<Core>, hold: Arc<Hold>, exclusive: bool) -> Grip {
        Grip { core, hold, exclusive, armed: true }
    }

    /// Whether a release now would be held back by `min_hold`.
    pub(crate) fn is_held_back(&self) -> bool {
        self.hold.is_held_back()
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Whether it is not lost, as far as the clock says.
    pub(crate) fn is_ours(&self) -> bool {
        self.hold.state() != State::Lost
    }

    /// Whether this is what its `Locks` calls `name`.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        Name::new(&self.core.namespace, name).is_ok_and(|name| name.key() == self.hold.name.key())
    }

    /// Tells whoever listens that it was acquired.
    pub(crate) fn acquired(&self, started: Moment) {
        observe::acquired(&self.hold, self.core.keeper.clock.now().since(started));
    }

    /// Its token, if it has one.
    pub(crate) fn fence(&self) -> Option<Token> {
        (self.hold.kind.mode() != Mode::Permits).then(|| self.token())
    }

    /// Lets it go as one of several: what is to be sent goes to the calls, one for each store; what is left later by the
    /// library thread to those to be waited for.
    pub(crate) fn end(mut self, calls: &mut Vec<OwnLeaves>, later: &mut Vec<oneshot::Receiver<Presence>>) -> Released {
        self.armed = false;
        let keeper = &self.core.keeper;
        match self.hold.detach(self.exclusive) {
            Ending::WasLost => {
                keeper.bury(&self.hold);
                return Released::AlreadyGone;
            }
            Ending::Nothing => {}
            Ending::Downgrade => drop(tell_downgrade(&self.core, &self.hold)),
            Ending::Linger(until) => later.push(keeper.linger(&self.hold, until)),
            Ending::Leave => {
                observe::released(&self.hold);
                let leave = keeper.own_leave(&self.hold);
                match calls.iter_mut().find(|call| call.takes(&leave)) {
                    Some(call) => call.add(leave),
                    None => calls.push(leave),
                }
            }
        }
        Released::Held
    }

    pub(crate) fn token(&self) -> Token {
        let mode = if self.exclusive { Mode::Exclusive } else { Mode::Shared };
        Token::new(self.hold.number(), mode, self.hold.name.shared_key(), self.core.info.label.clone())
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        let mut work = pin!(work);
        let mut lost = pin!(self.hold.lost());
        poll_fn(|cx| {
            // First the clock, then the work: it is never polled past the deadline.
            if lost.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(self.hold.lost_error()));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    pub(crate) async fn release(mut self) -> Result<Released> {
        self.armed = false;
        let keeper = &self.core.keeper;
        let presence = match self.hold.detach(self.exclusive) {
            Ending::WasLost => {
                keeper.bury(&self.hold);
                return Ok(Released::AlreadyGone);
            }
            Ending::Nothing => return Ok(Released::Held),
            Ending::Downgrade => {
                drop(tell_downgrade(&self.core, &self.hold));
                return Ok(Released::Held);
            }
            Ending::Linger(until) => match keeper.linger(&self.hold, until).await {
                Ok(presence) => presence,
                Err(_) => {
                    return Err(Error::unknown("the release could not be confirmed").named(self.hold.name.shown()));
                }
            },
            Ending::Leave => {
                keeper.own_leave(&self.hold).send().await.map_err(|error| error.named(self.hold.name.shown()))?
            }
        };
        observe::released(&self.hold);
        Ok(match presence {
            Presence::There => Released::Held,
            Presence::Gone => Released::AlreadyGone,
        })
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        if self.armed {
            let_go(&self.core, &self.hold, self.exclusive);
        }
    }
}

/// One guard less; what has to be told to the store is told in the background.
pub(crate) fn let_go(core: &Arc<Core>, hold: &Arc<Hold>, exclusive: bool) {
    match hold.detach(exclusive) {
        Ending::Nothing => {}
        Ending::WasLost => core.keeper.bury(hold),
        Ending::Downgrade => drop(tell_downgrade(core, hold)),
        Ending::Linger(until) => drop(core.keeper.linger(hold, until)),
        Ending::Leave => {
            observe::released(hold);
            core.keeper.leave(core.keeper.leave_of(hold));
        }
    }
}

/// Tells the store that a writer has become a reader: retried until it is told or the ticket is no longer ours. The receiver
/// is ready then. The ticket's id is taken now, so that a late change cannot hit the ticket of a later upgrade.
fn tell_downgrade(core: &Arc<Core>, hold: &Arc<Hold>) -> oneshot::Receiver<()> {
    let (done, receiver) = oneshot::channel();
    let (keeper, hold, place) = (core.keeper.clone(), hold.clone(), hold.place());
    core.keeper.run(Some(place.name.shared_key()), async move {
        let mut tries = 0;
        while let Err(error) = keeper.ask("a downgrade", PATIENCE, || keeper.store.change(&place, Some(1), None)).await {
            tries += 1;
            if error.kind() != ErrorKind::Unavailable || !hold.is_held() {
                tracing::warn!(target: "fencelock", name = %hold.name, %error, "a downgrade could not be told to the store");
                break;
            }
            keeper.clock.sleep_until(keeper.clock.now().after(backoff(tries))).await;
        }
        let _ = done.send(());
    });
    receiver
}

/// Asks the store for an upgrade: retried under the same new id until it answers or its patience ends. Runs on the library
/// thread with the guard in its hands, so that whoever stops waiting for it leaves nothing undecided.
async fn upgrade(mut grip: Grip, answer: oneshot::Sender<std::result::Result<Grip, UpgradeError>>) {
    let (hold, keeper) = (grip.hold.clone(), grip.core.keeper.clone());
    let (old, new) = (hold.place(), TicketId::new());
    let mut tries = 0;
    let mut unanswered = false;
    let give_up = hold.deadline().min(keeper.clock.now().after(PATIENCE));
    // What a renewal says of the old ticket proves nothing from now on: it may have been replaced.
    hold.upgrading.fetch_add(1, Ordering::AcqRel);
    let outcome = loop {
        let patience = give_up.since(keeper.clock.now());
        match keeper.ask("an upgrade", patience, || keeper.store.upgrade(&old, new)).await {
            Ok(Upgraded::Admitted { token }) => {
                let orphan = Some(keeper.leave_of(&hold)).filter(|_| hold.unanswered() > keeper.clock.now());
                if !hold.upgraded(new, token) {
                    unanswered = true; // lost meanwhile: the new ticket is nobody's
                    break Err(hold.lost_error());
                }
                keeper.rename(old.id, &hold);
                orphan.into_iter().for_each(|leave| keeper.leave(leave));
                grip.exclusive = true;
                break Ok(());
            }
            // Another guard of the same owner was faster.
            Ok(Upgraded::Gone) if hold.id() != old.id && hold.harden() => {
                grip.exclusive = true;
                break Ok(());
            }
            Ok(Upgraded::Held { by }) => {
                let message = "not upgraded: somebody else holds it or waits for it";
                break Err(Error::new(ErrorKind::Held, message).named(hold.name.shown()).held_by(by));
            }
            Ok(Upgraded::Gone) => {
                hold.gone();
                keeper.strike(old.id);
                break Err(hold.lost_error());
            }
            Err(error) => {
                unanswered |= error.effect() == crate::Effect::Unknown;
                tries += 1;
                let again = keeper.clock.now().after(backoff(tries));
                if error.kind() != ErrorKind::Unavailable || again >= give_up {
                    break Err(error.named(hold.name.shown()));
                }
                keeper.clock.sleep_until(again).await;
            }
        }
    };
    hold.upgrading.fetch_sub(1, Ordering::AcqRel);
    if unanswered && outcome.is_err() {
        keeper.doubt(Some(old.id)); // is it still there?
        // One of the unanswered ones may yet be carried out: the new ticket would be nobody's.
        let ghost = Hold::new(
            keeper.clock.clone(),
            crate::store::Place { name: old.name, id: new },
            hold.kind,
            1,
            hold.capacity,
            hold.terms.clone(),
        );
        ghost.note_unanswered(keeper.unanswered_until(keeper.clock.now(), hold.terms.lease));
        keeper.leave(keeper.leave_of(&ghost));
    }
    // If nobody waits any more, the guard is dropped here.
    let _ = answer.send(match outcome {
        Ok(()) => Ok(grip),
        Err(error) => Err(UpgradeError { guard: ReadGuard(grip), error }),
    });
}

macro_rules! guard_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "dropping a guard releases the lock"]
        pub struct $name(pub(crate) Grip);

        impl $name {
            /// The lock's name, with its namespace.
            #[must_use]
            pub fn name(&self) -> String {
                self.0.hold.name.shown()
            }

            /// How sure we can be of it: computed from the clock at each call.
            #[must_use]
            pub fn state(&self) -> State {
                self.0.hold.state()
            }

            /// How long until the local deadline, at which it is lost unless a renewal gets through.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.0.hold.remaining()
            }

            /// Resolves when it is lost, for whatever reason: no renewal got through in time, the store says that it is
            /// gone, or its longest time has come. Fires although the store is out of reach.
            ///
            /// # Cancel safety
            /// Dropping the future changes nothing.
            pub async fn lost(&self) {
                self.0.hold.lost().await;
            }

            /// Runs `work` for as long as it is held: its output, or a `Lost` error as soon as it is lost. The work is never
            /// polled past the deadline.
            ///
            /// What the work has set going elsewhere goes on: only the [fence](crate::fence) stops that.
            ///
            /// # Errors
            /// `Lost`.
            ///
            /// # Cancel safety
            /// Dropping the future drops the work and keeps the guard.
            pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
                self.0.run(work).await
            }

            /// Releases, and says whether it was still held until then. One round trip; where a reply is lost, it asks again.
            ///
            /// With `min_hold` it resolves when that time is over. Where several guards of one owner share the hold, only
            /// the last one's release is told to the store.
            ///
            /// # Errors
            /// Whatever keeps the store from answering; the release is then tried again in the background.
            ///
            /// # Cancel safety
            /// Dropping the future releases in the background.
            pub async fn release(self) -> Result<Released> {
                self.0.release().await
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.0.hold)
            }
        }
    };
}

macro_rules! fenced {
    ($name:ident) => {
        impl $name {
            /// The fencing token: hand it to the resource with every access.
            #[must_use]
            pub fn token(&self) -> Token {
                self.0.token()
            }
        }
    };
}

guard_type! {
    /// A held [`Mutex`](crate::Mutex). Dropping it releases in the background; [`release`](MutexGuard::release) tells how it
    /// went.
    MutexGuard
}
guard_type! {
    /// A [`RwLock`](crate::RwLock) held for reading.
    ReadGuard
}
guard_type! {
    /// A [`RwLock`](crate::RwLock) held for writing.
    WriteGuard
}
guard_type! {
    /// Permits of a [`Semaphore`](crate::Semaphore). It has no fencing token: permits do not exclude each other.
    ///
    /// ```compile_fail
    /// fn fence(permit: fencelock::Permit, marks: &mut fencelock::fence::Marks) {
    ///     marks.accept(&permit.token()).unwrap();
    /// }
    /// ```
    Permit
}

fenced!(MutexGuard);
fenced!(ReadGuard);
fenced!(WriteGuard);

impl Permit {
    /// The number of the ticket, as `inspect` shows it and [`break_ticket`](crate::Locks::break_ticket) takes it. No fence.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.hold.number()
    }
}

impl WriteGuard {
    /// Becomes a reader without letting anybody in between: place and token stay, waiting readers come in.
    ///
    /// Resolves when the store has been told; if it cannot be, that goes on in the background, and readers wait longer.
    ///
    /// # Errors
    /// `Lost`.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub async fn downgrade(self) -> Result<ReadGuard> {
        let mut grip = self.0;
        if grip.hold.state() == State::Lost {
            return Err(grip.hold.lost_error());
        }
        let tell = grip.hold.soften();
        grip.exclusive = false;
        if tell {
            let told = tell_downgrade(&grip.core, &grip.hold);
            let clock = &grip.core.keeper.clock;
            let limit = select(grip.hold.lost(), clock.sleep_until(clock.now().after(PATIENCE)));
            select(told, limit).await;
        }
        if grip.hold.state() == State::Lost {
            return Err(grip.hold.lost_error());
        }
        Ok(ReadGuard(grip))
    }
}

impl ReadGuard {
    /// Becomes a writer, if nobody else holds the lock or waits for it; never waits for others. The token is a new, larger
    /// one, for all guards of the same owner.
    ///
    /// # Errors
    /// [`UpgradeError`], which gives the read guard back: `Held`, `Lost`, or whatever kept the store from answering.
    ///
    /// # Cancel safety
    /// Dropping the future gives the guard up: it is released as soon as the store has answered.
    pub async fn try_upgrade(self) -> Result<WriteGuard, UpgradeError> {
        let mut grip = self.0;
        if grip.hold.state() == State::Lost {
            let error = grip.hold.lost_error();
            return Err(UpgradeError { guard: ReadGuard(grip), error });
        }
        if grip.hold.harden() {
            grip.exclusive = true;
            return Ok(WriteGuard(grip));
        }
        let core = grip.core.clone();
        flush(&core, &grip.hold.name.clone()).await;
        let (answer, receiver) = oneshot::channel();
        core.keeper.run(Some(grip.hold.name.shared_key()), upgrade(grip, answer));
        receiver.await.expect("the library thread lives as long as any handle").map(WriteGuard)
    }
}

/// A failed [`try_upgrade`](ReadGuard::try_upgrade), with the read guard as it was.
#[derive(Debug)]
pub struct UpgradeError {
    guard: ReadGuard,
    error: Error,
}

impl UpgradeError {
    /// Why.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Who stood in the way.
    #[must_use]
    pub fn holder(&self) -> Option<&Seen> {
        self.error.holder()
    }

    /// The read guard.
    pub fn into_guard(self) -> ReadGuard {
        self.guard
    }
}

impl From<UpgradeError> for Error {
    /// Drops the read guard, which releases it.
    fn from(failed: UpgradeError) -> Error {
        failed.error
    }
}

impl std::fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for UpgradeError {}
