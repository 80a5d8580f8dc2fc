//! Owners: re-entry, explicit and local. An owner that holds a line already gets another guard on the same ticket, with the
//! same token and without a round trip; the last guard's end leaves.

use crate::acquire::{self, Attempt, Found, Request};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Grip;
use crate::hold::{Attach, Hold};
use crate::locks::Core;
use crate::name::Name;
use crate::observe;
use crate::store::{BoxFuture, Mode, OwnerId};
use crate::sync::{Mutex, lock};
use futures_util::FutureExt;
use futures_util::future::{Either, Shared, WeakShared, select};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

/// Somebody who may hold the same lock more than once: see `lock_as`, `read_as`, `write_as`.
///
/// A clone is the same owner. A writer may take read guards as well; when its last write guard is dropped the lock becomes a
/// reader's. The other way round, a reader that asks to write gets a `Deadlock` error at once: it would wait for itself. It
/// can try [`try_upgrade`](crate::ReadGuard::try_upgrade).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:owner-example").await?;
/// let owner = locks.owner();
/// let mutex = locks.mutex("ledger");
/// let outer = mutex.lock_as(&owner).await?;
/// let inner = mutex.lock_as(&owner).await?; // at once
/// assert_eq!(outer.token(), inner.token());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Owner(Arc<Inner>);

struct Inner {
    id: OwnerId,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    /// By the `Locks` and the name: the same name in another store is another lock.
    slots: HashMap<(OwnerId, Arc<str>), Slot>,
    /// Beyond this many, what is over is swept out first.
    sweep_at: usize,
}

impl Lines {
    fn insert(&mut self, key: (OwnerId, Arc<str>), slot: Slot) {
        self.slots.insert(key, slot);
        if self.slots.len() > self.sweep_at {
            self.slots.retain(|_, slot| match slot {
                Slot::Pending { way_in, .. } => way_in.upgrade().is_some(),
                Slot::Held(hold) => hold.is_held(),
            });
            self.sweep_at = 16 + 2 * self.slots.len();
        }
    }
}

#[derive(Clone)]
enum Slot {
    /// An enter is under way; whoever comes meanwhile waits for the same one. It ends with the last who waits.
    Pending {
        way_in: WeakShared<BoxFuture<'static, Shareable>>,
        exclusive: bool,
    },
    Held(Arc<Hold>),
}

impl Slot {
    /// Whether there is nothing to attach to any more.
    fn is_over(&self) -> bool {
        match self {
            Slot::Pending { way_in, .. } => way_in.upgrade().is_none_or(|way_in| way_in.peek().is_some()),
            Slot::Held(hold) => !hold.is_held(),
        }
    }
}

type Shareable = std::result::Result<Arc<Grant>, Arc<Error>>;
/// Of several names.
type AllShareable = std::result::Result<Vec<Arc<Grant>>, Arc<Error>>;

/// A hold that nobody has taken a guard on yet. If nobody does, it is left.
struct Grant {
    core: Arc<Core>,
    hold: Arc<Hold>,
    exclusive: bool,
}

impl Drop for Grant {
    fn drop(&mut self) {
        // Gives back the guard that came with the grant.
        crate::guard::let_go(&self.core, &self.hold, self.exclusive);
    }
}

impl Owner {
    pub(crate) fn new() -> Owner {
        Owner(Arc::new(Inner { id: OwnerId::new(), lines: Mutex::default() }))
    }

    pub(crate) fn id(&self) -> OwnerId {
        self.0.id
    }

    /// The names that it holds now in this `Locks`.
    pub(crate) fn held(&self, locks: OwnerId) -> Vec<Name> {
        let lines = lock(&self.0.lines);
        let held = lines.slots.iter().filter_map(|((of, _), slot)| match slot {
            Slot::Held(hold) if *of == locks && hold.is_held() => Some(hold.name.clone()),
            _ => None,
        });
        held.collect()
    }

    pub(crate) async fn acquire(&self, core: &Arc<Core>, mut request: Request) -> Result<Arc<Hold>> {
        let exclusive = request.kind.mode() == Mode::Exclusive;
        let name = request.name.clone();
        let key = (core.owner, name.shared_key());
        let wait = request.wait;
        let started = core.keeper.clock.now();
        // The shared way in has no time limit but "not at all": every caller has its own.
        let at_once = wait.is_some_and(|wait| wait.is_zero());
        if !at_once {
            request.wait = None;
        }
        loop {
            let (way_in, mine) = {
                let mut lines = lock(&self.0.lines);
                let pending = match lines.slots.get(&key).cloned() {
                    Some(Slot::Held(hold)) => match hold.attach(exclusive) {
                        Attach::Done => return Ok(hold),
                        Attach::Deadlock => return Err(read_then_write(&name)),
                        Attach::NotHeld => None,
                    },
                    Some(Slot::Pending { way_in, exclusive: for_writing }) => {
                        way_in.upgrade().filter(|way_in| way_in.peek().is_none()).map(|way_in| (way_in, for_writing))
                    }
                    None => None,
                };
                match pending {
                    Some((_, false)) if exclusive => return Err(read_then_write(&name)),
                    Some((way_in, _)) => (way_in, false),
                    None => {
                        let way_in = self.way_in(core, request.clone(), exclusive);
                        if let Some(weak) = way_in.downgrade() {
                            lines.insert(key.clone(), Slot::Pending { way_in: weak, exclusive });
                        }
                        (way_in, true)
                    }
                }
            };
            let limit = match wait {
                Some(_) if at_once && mine => Moment::FAR,
                Some(wait) => started.after(wait),
                None => Moment::FAR,
            };
            let limit = pin!(core.keeper.clock.sleep_until(limit));
            let answer = match select(way_in, limit).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) if at_once => return Err(acquire::held(&name, None)),
                Either::Right(_) => {
                    let waited = core.keeper.clock.now().since(started);
                    return Err(acquire::timed_out_error(core, &name, waited, 0).await);
                }
            };
            match answer {
                Ok(grant) => {
                    if grant.hold.attach(exclusive) == Attach::Done {
                        return Ok(grant.hold.clone());
                    }
                }
                // Another call of ours did not want to wait; this one does.
                Err(error) if !mine && !at_once && error.kind() == ErrorKind::Held => {}
                Err(error) => return Err(error.again()),
            }
        }
    }

    /// All of these locks of one store in one call that does not wait: one round trip. `None`, and nothing was asked, if this
    /// owner has one of them, or is about to: then they go one by one.
    pub(crate) async fn take_all(&self, core: &Arc<Core>, requests: Vec<Request>) -> Option<Result<Vec<Grip>>> {
        let exclusive: Vec<bool> = requests.iter().map(|request| request.kind.mode() == Mode::Exclusive).collect();
        let ways_in: Vec<_> = {
            let mut lines = lock(&self.0.lines);
            let keys: Vec<_> = requests.iter().map(|request| (core.owner, request.name.shared_key())).collect();
            if keys.iter().any(|key| lines.slots.get(key).is_some_and(|slot| !slot.is_over())) {
                return None;
            }
            let all = self.all_in(core, requests);
            let one = |(at, key): (usize, (OwnerId, Arc<str>))| {
                let one = all.clone().map(move |all| all.map(|grants| grants[at].clone()));
                let way_in = (Box::pin(one) as BoxFuture<'static, Shareable>).shared();
                if let Some(weak) = way_in.downgrade() {
                    lines.insert(key, Slot::Pending { way_in: weak, exclusive: exclusive[at] });
                }
                way_in
            };
            keys.into_iter().enumerate().map(one).collect()
        };
        let mut grips = Vec::with_capacity(ways_in.len());
        for (way_in, exclusive) in ways_in.into_iter().zip(exclusive) {
            match way_in.await {
                Ok(grant) if grant.hold.attach(exclusive) == Attach::Done => {
                    grips.push(Grip::new(core.clone(), grant.hold.clone(), exclusive));
                }
                // Lost already.
                Ok(_) => return None,
                Err(error) => return Some(Err(error.again())),
            }
        }
        Some(Ok(grips))
    }

    fn all_in(&self, core: &Arc<Core>, requests: Vec<Request>) -> Shared<BoxFuture<'static, AllShareable>> {
        let (core, owner) = (core.clone(), self.0.clone());
        let way_in = async move {
            for request in &requests {
                acquire::flush(&core, &request.name).await;
            }
            let started = core.keeper.clock.now();
            let mut attempts: Vec<_> = requests.iter().map(|request| Attempt::new(&core, request)).collect();
            let found = Attempt::enter_all(&mut attempts, false).await.map_err(Arc::new)?;
            if found.iter().any(|found| !matches!(found, Found::Inside)) {
                return Err(Arc::new(acquire::refused(requests.iter().map(|request| &request.name), found)));
            }
            let mut grants = Vec::with_capacity(requests.len());
            for (request, attempt) in requests.iter().zip(attempts) {
                let hold = attempt.confirm().await.map_err(Arc::new)?;
                let hold = hold.ok_or_else(|| Arc::new(acquire::held(&request.name, None)))?;
                observe::acquired(&hold, core.keeper.clock.now().since(started));
                let exclusive = request.kind.mode() == Mode::Exclusive;
                grants.push(Arc::new(Grant { core: core.clone(), hold, exclusive }));
            }
            // Before anybody hears of it, as for one.
            let mut lines = lock(&owner.lines);
            for (request, grant) in requests.iter().zip(&grants) {
                lines.insert((core.owner, request.name.shared_key()), Slot::Held(grant.hold.clone()));
            }
            Ok(grants)
        };
        (Box::pin(way_in) as BoxFuture<'static, AllShareable>).shared()
    }

    fn way_in(&self, core: &Arc<Core>, request: Request, exclusive: bool) -> Shared<BoxFuture<'static, Shareable>> {
        let (core, owner) = (core.clone(), self.0.clone());
        let key = (core.owner, request.name.shared_key());
        let way_in = async move {
            let hold = acquire::acquire(&core, request).await.map_err(Arc::new)?;
            // Before anybody hears of it: whoever comes from now on finds it held, never a way in that is over.
            let grant = Arc::new(Grant { core, hold: hold.clone(), exclusive });
            lock(&owner.lines).insert(key, Slot::Held(hold));
            Ok(grant)
        };
        (Box::pin(way_in) as BoxFuture<'static, Shareable>).shared()
    }
}

fn read_then_write(name: &Name) -> Error {
    let message = "this owner holds it for reading and would wait for itself: use try_upgrade, or write from the start";
    Error::new(ErrorKind::Deadlock, message).named(name.shown())
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Owner({})", self.0.id)
    }
}
