//! Waiting beside the queue (`unfair`): no ticket is left in the line. A change of the line is told once to each process,
//! which lets one of its waiters on that name try. The next one is woken when that one got in and there may be more room,
//! when it gave up, or when it was refused while a lighter one waits; a plain refusal wakes nobody, since the winner's
//! release will be told again. A slow tick covers what is never told, such as a holder that died.

use crate::acquire::{Attempt, Found, Request};
use crate::clock::Moment;
use crate::error::Result;
use crate::keeper::backoff;
use crate::locks::Core;
use crate::name::Name;
use crate::store::{BoxStream, Hint, Scope, Seen};
use crate::sync::{Mutex, lock};
use futures_util::future::{Either, select};
use futures_util::stream::StreamExt;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

/// At the latest after this long a waiter tries again, told or not.
const TICK: Duration = Duration::from_secs(5);

/// The names that somebody of this `Locks` waits for beside the queue.
#[derive(Default)]
pub(crate) struct Gates(Mutex<HashMap<Arc<str>, Arc<Gate>>>);

struct Gate(Mutex<GateState>);

#[derive(Default)]
struct GateState {
    waiters: VecDeque<Waiter>,
    next: u64,
    /// Something has changed while one of us was trying: its refusal may be out of date.
    changed: bool,
    /// How long until the holder's lease ends, as far as the last refusal told.
    look_again: Option<Duration>,
    /// The watcher does not know of that yet.
    news: bool,
    watcher: Option<Waker>,
    watched: bool,
}

struct Waiter {
    key: u64,
    weight: u32,
    turn: bool,
    waker: Option<Waker>,
}

/// Gets in without ever standing in the line, and says whether it had to wait.
pub(crate) async fn come_in<'a>(core: &'a Arc<Core>, request: &'a Request) -> Result<(Attempt<'a>, bool)> {
    // The first try costs nobody anything: one round trip.
    if let Ok(attempt) = try_once(core, request).await? {
        return Ok((attempt, false));
    }
    let mut place = Beside::join(core, request);
    loop {
        place.turn().await;
        match try_once(core, request).await? {
            Ok(attempt) => {
                place.got_in(request.weight < request.capacity);
                return Ok((attempt, true));
            }
            Err(holder) => place.refused(holder),
        }
    }
}

async fn try_once<'a>(core: &'a Arc<Core>, request: &'a Request) -> Result<Result<Attempt<'a>, Option<Seen>>> {
    let mut attempt = Attempt::new(core, request);
    Ok(match attempt.enter(false).await? {
        Found::Full(holder) => Err(holder),
        Found::Inside | Found::Queued(_) => Ok(attempt),
    })
}

/// One waiter's place beside the queue; dropping it passes the turn on.
struct Beside<'a> {
    core: &'a Arc<Core>,
    name: &'a Name,
    gate: Arc<Gate>,
    key: u64,
    weight: u32,
}

impl<'a> Beside<'a> {
    fn join(core: &'a Arc<Core>, request: &'a Request) -> Beside<'a> {
        let mut gates = lock(&core.gates.0);
        let gate = gates.entry(request.name.shared_key()).or_insert_with(|| Arc::new(Gate(Mutex::default()))).clone();
        let mut state = lock(&gate.0);
        state.next += 1;
        let key = state.next;
        state.waiters.push_back(Waiter { key, weight: request.weight, turn: false, waker: None });
        let first = !std::mem::replace(&mut state.watched, true);
        drop(state);
        drop(gates);
        if first {
            let (name, weak, keeper) = (request.name.clone(), Arc::downgrade(&gate), core.keeper.clone());
            core.keeper.run(None, async move { watch(keeper, name, weak).await });
        }
        Beside { core, name: &request.name, gate, key, weight: request.weight }
    }

    /// Waits until it is our turn to try.
    async fn turn(&mut self) {
        poll_fn(|cx| {
            let mut state = lock(&self.gate.0);
            match state.waiters.iter_mut().find(|waiter| waiter.key == self.key) {
                Some(waiter) if !waiter.turn => {
                    waiter.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    fn refused(&mut self, holder: Option<Seen>) {
        let mut state = lock(&self.gate.0);
        state.look_again = holder.and_then(|holder| holder.expires_in);
        state.news = true;
        let watcher = state.watcher.take();
        let again = std::mem::take(&mut state.changed);
        let weight = self.weight;
        if let Some(waiter) = state.waiters.iter_mut().find(|waiter| waiter.key == self.key) {
            waiter.turn = again;
        }
        let lighter = if again { None } else { state.pass_turn(|other| other.weight < weight) };
        drop(state);
        watcher.into_iter().chain(lighter).for_each(Waker::wake);
    }

    fn got_in(self, more_room: bool) {
        let mut state = lock(&self.gate.0);
        if let Some(at) = state.waiters.iter().position(|waiter| waiter.key == self.key) {
            // It leaves without handing on its turn, unless there may be room for more.
            state.waiters[at].turn = false;
        }
        let changed = std::mem::take(&mut state.changed);
        let next = if more_room || changed { state.pass_turn(|waiter| waiter.key != self.key) } else { None };
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        let mut gates = lock(&self.core.gates.0);
        let mut state = lock(&self.gate.0);
        let Some(at) = state.waiters.iter().position(|waiter| waiter.key == self.key) else { return };
        let had_turn = state.waiters.remove(at).is_some_and(|waiter| waiter.turn);
        let next = if had_turn { state.pass_turn(|_| true) } else { None };
        let mut watcher = None;
        if state.waiters.is_empty() {
            watcher = state.watcher.take();
            gates.remove(self.name.key());
        }
        drop(state);
        drop(gates);
        next.into_iter().chain(watcher).for_each(Waker::wake);
    }
}

impl GateState {
    /// Gives the turn to the first waiter that will do and has not got it.
    fn pass_turn(&mut self, will_do: impl Fn(&Waiter) -> bool) -> Option<Waker> {
        let waiter = self.waiters.iter_mut().find(|waiter| !waiter.turn && will_do(waiter))?;
        waiter.turn = true;
        waiter.waker.take()
    }

    /// Something has changed: one of us may try, unless somebody is at it, who is then told.
    fn told(&mut self) -> Option<Waker> {
        if self.waiters.iter().any(|waiter| waiter.turn) {
            self.changed = true;
            return None;
        }
        self.pass_turn(|_| true)
    }
}

/// Passes on what the store tells of one name, for as long as somebody waits beside it. Runs on the library thread.
async fn watch(keeper: Arc<crate::keeper::Keeper>, name: Name, gate: Weak<Gate>) {
    let mut hints: Option<BoxStream<'static, Hint>> = None;
    let mut tell = false;
    let (mut ended, mut not_before) = (0, Moment::default());
    loop {
        let pause = {
            let Some(gate) = gate.upgrade() else { return };
            let mut state = lock(&gate.0);
            if state.waiters.is_empty() {
                return;
            }
            let woken = if tell { state.told() } else { None };
            state.news = false;
            // Not before the holder's lease ends: until then only a hint is worth a try.
            let pause = state.look_again.map_or(TICK, |lease| lease.saturating_add(Duration::from_millis(5)).min(TICK));
            drop(state);
            woken.into_iter().for_each(Waker::wake);
            pause
        };
        let tick = pin!(keeper.clock.sleep_until(keeper.clock.now().after(pause)));
        let spoken_to = pin!(poll_fn(|cx| {
            let Some(gate) = gate.upgrade() else { return Poll::Ready(()) };
            let mut state = lock(&gate.0);
            if state.waiters.is_empty() || state.news {
                return Poll::Ready(());
            }
            state.watcher = Some(cx.waker().clone());
            Poll::Pending
        }));
        let told = pin!(async {
            if let Some(stream) = &mut hints {
                while let Some(hint) = stream.next().await {
                    ended = 0;
                    // Somebody's coming makes no room: only what may have is worth a try.
                    if !matches!(hint, Hint::Entered(_)) {
                        return;
                    }
                }
                // What was told between two watches nobody has heard.
                hints = None;
                ended += 1;
                not_before = keeper.clock.now().after(backoff(ended));
            }
            keeper.clock.sleep_until(not_before).await;
            match keeper.store.watch(Scope::Name(name.clone())).await {
                Ok(stream) => hints = Some(stream),
                // A store that cannot tell is asked by the tick, and then asked to tell again.
                Err(_) => std::future::pending().await,
            }
        });
        tell = matches!(select(select(told, tick), spoken_to).await, Either::Left(_));
    }
}
