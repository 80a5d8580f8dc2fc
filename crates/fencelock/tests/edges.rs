//! Promises of holding on a store that misbehaves: a scripted wrapper around the memory store fails, hangs, panics or loses
//! replies, verb by verb.

use fencelock::clock::Moment;
use fencelock::name::Name;
use fencelock::store::memory::MemoryStore;
use fencelock::store::{
    BoxFuture, BoxStream, Capability, Enter, Entered, Hint, Host, Info, Line, Listed, Note, Place, Presence, Renew,
    Renewed, Scope, Store, TicketId, Upgraded, Waited,
};
use fencelock::{Error, ErrorKind, Locks, Options, Released, Result, State, VirtualClock};
use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

const SECOND: Duration = Duration::from_secs(1);

/// What a verb does instead of simply answering.
#[derive(Clone)]
enum Act {
    /// Not carried out, and it is known.
    Refuse,
    /// Carried out, the answer is lost.
    LoseReply,
    /// Never carried out, never answered.
    Hang,
    /// Carried out; the answer comes when told.
    AnswerLater(Arc<Notify>),
    /// Carried out when told.
    CarryOutLater(Arc<Notify>),
    Panic,
}

/// For each verb: what its next calls do (the number is how many of them), and how many there were.
#[derive(Clone, Debug)]
struct Script {
    inner: MemoryStore,
    acts: Arc<Mutex<HashMap<&'static str, (Act, usize)>>>,
    calls: Arc<Mutex<HashMap<&'static str, usize>>>,
    longest: Option<Duration>,
    broken_watch: bool,
}

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Act")
    }
}

impl Script {
    fn new(clock: &VirtualClock) -> Script {
        Script::on(MemoryStore::with_clock(clock.clock()))
    }

    fn on(inner: MemoryStore) -> Script {
        Script { inner, acts: Arc::default(), calls: Arc::default(), longest: None, broken_watch: false }
    }

    fn next(&self, verb: &'static str, times: usize, act: Act) {
        self.acts.lock().unwrap().insert(verb, (act, times));
    }

    fn calls(&self, verb: &'static str) -> usize {
        self.calls.lock().unwrap().get(verb).copied().unwrap_or(0)
    }

    async fn play<T>(&self, verb: &'static str, answer: BoxFuture<'_, Result<T>>) -> Result<T> {
        *self.calls.lock().unwrap().entry(verb).or_default() += 1;
        let act = {
            let mut acts = self.acts.lock().unwrap();
            match acts.get_mut(verb) {
                Some((act, times)) if *times > 0 => {
                    *times = times.saturating_sub(1);
                    Some(act.clone())
                }
                _ => None,
            }
        };
        match act {
            None => answer.await,
            Some(Act::Refuse) => Err(Error::new(ErrorKind::Unavailable, "scripted refusal")),
            Some(Act::LoseReply) => {
                let _ = answer.await;
                Err(Error::unknown("scripted loss of the reply"))
            }
            Some(Act::Hang) => pending().await,
            Some(Act::AnswerLater(told)) => {
                let answer = answer.await;
                told.notified().await;
                answer
            }
            Some(Act::CarryOutLater(told)) => {
                told.notified().await;
                answer.await
            }
            Some(Act::Panic) => panic!("scripted panic"),
        }
    }
}

impl Store for Script {
    fn info(&self) -> Info {
        self.inner.info()
    }
    fn capability(&self) -> Capability {
        self.inner.capability()
    }
    fn attach(&self, host: Host) {
        self.inner.attach(host);
    }
    fn enter<'a>(&'a self, batch: &'a [Enter]) -> BoxFuture<'a, Result<Vec<Entered>>> {
        Box::pin(async move {
            let mut batch = batch.to_vec();
            if let Some(longest) = self.longest {
                batch.iter_mut().for_each(|ticket| ticket.lease = ticket.lease.min(longest));
            }
            self.play("enter", self.inner.enter(&batch)).await
        })
    }
    fn wait<'a>(&'a self, place: &'a Place, until: Moment) -> BoxFuture<'a, Result<Waited>> {
        Box::pin(self.play("wait", self.inner.wait(place, until)))
    }
    fn renew<'a>(&'a self, batch: &'a [Renew]) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(async move {
            let mut batch = batch.to_vec();
            if let Some(longest) = self.longest {
                batch.iter_mut().for_each(|ticket| ticket.lease = ticket.lease.min(longest));
            }
            self.play("renew", self.inner.renew(&batch)).await
        })
    }
    fn leave<'a>(&'a self, batch: &'a [Place]) -> BoxFuture<'a, Result<Vec<Presence>>> {
        Box::pin(self.play("leave", self.inner.leave(batch)))
    }
    fn change<'a>(
        &'a self,
        place: &'a Place,
        weight: Option<u32>,
        note: Option<Note>,
    ) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(self.play("change", self.inner.change(place, weight, note)))
    }
    fn upgrade<'a>(&'a self, place: &'a Place, new: TicketId) -> BoxFuture<'a, Result<Upgraded>> {
        Box::pin(self.play("upgrade", self.inner.upgrade(place, new)))
    }
    fn expel<'a>(&'a self, name: &'a Name, token: u64) -> BoxFuture<'a, Result<Presence>> {
        Box::pin(self.play("expel", self.inner.expel(name, token)))
    }
    fn watch<'a>(&'a self, scope: Scope) -> BoxFuture<'a, Result<BoxStream<'static, Hint>>> {
        if self.broken_watch {
            *self.calls.lock().unwrap().entry("watch").or_default() += 1;
            return Box::pin(async { Ok(Box::pin(futures_util::stream::empty()) as BoxStream<'static, Hint>) });
        }
        Box::pin(self.play("watch", self.inner.watch(scope)))
    }
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Line>> {
        Box::pin(self.play("inspect", self.inner.inspect(name)))
    }
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(self.play("list", self.inner.list(prefix, after, limit)))
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

/// Runs on threads of the real world, but never for ever.
async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(5 * SECOND, future).await.unwrap_or_else(|_| panic!("{what} did not come"))
}

/// Waits for something that another thread does.
async fn until(what: &str, mut seen: impl FnMut() -> bool) {
    soon(what, async {
        while !seen() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

fn stage() -> (VirtualClock, Script, Locks) {
    let clock = VirtualClock::new();
    let script = Script::new(&clock);
    let locks = Locks::with_shared_store(Arc::new(script.clone()));
    (clock, script, locks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_renewal_is_retried_at_a_pace() {
    let (clock, script, locks) = stage();
    let guard = locks.mutex("a").lock().await.unwrap();
    script.next("renew", usize::MAX, Act::Refuse);
    // In one jump, since a keeper that never rests never settles.
    clock.jump(11 * SECOND);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(script.calls("renew") <= 3, "{} renewals while the clock stood still", script.calls("renew"));
    script.next("renew", 0, Act::Refuse);
    drop(guard);
}

#[tokio::test]
async fn a_cancelled_flush_loses_no_release() {
    let (_clock, script, locks) = stage();
    let lock = locks.rwlock("a");
    let (one, two) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    // Whoever takes the two releases, the keeper or the next caller, does not get far.
    let told = Arc::new(Notify::new());
    script.next("leave", usize::MAX, Act::CarryOutLater(told.clone()));
    drop((one, two));
    {
        let mut next = std::pin::pin!(lock.write());
        assert!(futures_util::poll!(next.as_mut()).is_pending());
    }
    script.next("leave", 0, Act::Hang);
    told.notify_waiters();
    told.notify_one();
    soon("close", locks.close()).await;
    assert!(locks.list("").await.unwrap().is_empty(), "a dropped guard's ticket is still there");
}

#[tokio::test]
async fn an_owner_holds_per_store() {
    let (a, b) = (Locks::with_store(MemoryStore::new()), Locks::with_store(MemoryStore::new()));
    let owner = a.owner();
    let first = a.mutex("x").lock_as(&owner).await.unwrap();
    let second = b.mutex("x").lock_as(&owner).await;
    if let Ok(second) = second {
        assert_eq!(b.inspect("x").await.unwrap().inside.len(), 1, "the second store was never asked");
        drop(second);
    }
    drop(first);
}

#[tokio::test]
async fn a_renewal_that_overtakes_the_upgrades_answer_loses_nothing() {
    let (clock, script, locks) = stage();
    let read = locks.rwlock("a").read_with(Options::new().lease(9 * SECOND)).await.unwrap();
    let told = Arc::new(Notify::new());
    script.next("upgrade", 1, Act::AnswerLater(told.clone()));
    let upgrade = tokio::spawn(read.try_upgrade());
    while script.calls("upgrade") == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(4 * SECOND); // a renewal of the old ticket, which the upgrade has replaced
    assert!(script.calls("renew") > 0);
    told.notify_one();
    let write = soon("upgrade", upgrade).await.unwrap().map_err(Error::from).unwrap();
    assert_eq!(write.state(), State::Safe, "lost although the store has it");
    clock.advance(30 * SECOND);
    assert_eq!(write.state(), State::Safe, "the new ticket is renewed");
    drop(write);
    soon("close", locks.close()).await;
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_release_after_min_hold_is_tried_again() {
    let (clock, script, locks) = stage();
    let guard = locks.mutex("a").lock_with(Options::new().min_hold(60 * SECOND)).await.unwrap();
    script.next("leave", 1, Act::Refuse);
    drop(guard);
    clock.advance(61 * SECOND);
    assert_eq!(script.calls("leave"), 2, "tried once more after the failure");
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_release_is_tried_for_as_long_as_the_ticket_may_live() {
    let (clock, script, locks) = stage();
    let guard = locks.mutex("a").lock_with(Options::new().max_hold(5 * SECOND)).await.unwrap();
    script.next("leave", 10, Act::Refuse);
    clock.advance(20 * SECOND);
    assert_eq!(guard.state(), State::Lost);
    assert!(locks.list("").await.unwrap().is_empty(), "blocked until the end of the lease");
}

#[tokio::test]
async fn max_hold_binds_a_fixed_lease_too() {
    let (clock, _script, locks) = stage();
    let options = Options::new().fixed_lease(60 * SECOND).max_hold(10 * SECOND);
    let Ok(guard) = locks.mutex("a").lock_with(options).await else { return };
    clock.advance(11 * SECOND);
    assert_eq!(guard.state(), State::Lost);
}

#[tokio::test]
async fn connecting_without_async_inside_a_runtime_says_so() {
    let refused = fencelock::blocking::Locks::connect("memory:").map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_ends_at_once_does_not_stop_the_library_thread() {
    let clock = VirtualClock::new();
    let script = Script { broken_watch: true, ..Script::new(&clock) };
    let locks = Locks::with_shared_store(Arc::new(script.clone()));
    let mutex = locks.mutex("a");
    let guard = mutex.lock().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock_with(Options::new().unfair()).await.map(drop) }
    });
    until("a watch", || script.calls("watch") > 0).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let watches = script.calls("watch");
    drop(guard);
    waiter.abort();
    assert!(watches < 50, "{watches} watches in 200 ms while the clock stood still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_never_answers_is_covered_by_the_tick() {
    let (clock, script, locks) = stage();
    script.next("watch", usize::MAX, Act::Hang);
    let mutex = locks.mutex("a");
    let guard = mutex.lock().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock_with(Options::new().unfair()).await.map(drop) }
    });
    until("a watch", || script.calls("watch") > 0).await;
    guard.release().await.unwrap();
    for _ in 0..10 {
        clock.advance(2 * SECOND);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let done = waiter.is_finished();
    waiter.abort();
    assert!(done, "free for 20 s, and the waiter has not looked");
}

#[tokio::test]
async fn a_shorter_lease_than_asked_for_is_renewed_in_time() {
    let clock = VirtualClock::new();
    let script = Script { longest: Some(8 * SECOND), ..Script::new(&clock) };
    let locks = Locks::with_shared_store(Arc::new(script.clone()));
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..60 {
        clock.advance(SECOND);
        assert_ne!(guard.state(), State::Lost, "the store grants 8 s, we renew as if it were 30");
    }
}

#[tokio::test]
async fn an_upgrade_that_is_never_answered_ends() {
    let (clock, script, locks) = stage();
    let read = locks.rwlock("a").read().await.unwrap();
    script.next("upgrade", usize::MAX, Act::Hang);
    let upgrade = tokio::spawn(read.try_upgrade());
    while script.calls("upgrade") == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..12 {
        clock.advance(10 * SECOND);
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(upgrade.is_finished(), "two minutes, four leases");
}

#[tokio::test]
async fn a_downgrade_that_is_never_answered_goes_on_in_the_background() {
    let (clock, script, locks) = stage();
    let write = locks.rwlock("a").write().await.unwrap();
    script.next("change", usize::MAX, Act::Hang);
    let downgrade = tokio::spawn(write.downgrade());
    while script.calls("change") == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..12 {
        clock.advance(10 * SECOND);
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(downgrade.is_finished(), "two minutes, four leases");
    drop(downgrade);
    let close = tokio::spawn(async move { locks.close().await });
    for _ in 0..12 {
        clock.advance(10 * SECOND);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(close.is_finished(), "close hangs although the ticket was left long ago");
}

#[tokio::test]
async fn a_release_that_is_never_answered_ends() {
    let (clock, script, locks) = stage();
    let guard = locks.mutex("a").lock().await.unwrap();
    script.next("leave", usize::MAX, Act::Hang);
    let release = tokio::spawn(guard.release());
    while script.calls("leave") == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..12 {
        clock.advance(10 * SECOND);
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(release.is_finished(), "two minutes, four leases");
}

#[tokio::test]
async fn min_hold_may_be_as_long_as_max_hold() {
    let (clock, _script, locks) = stage();
    let options = Options::new().min_hold(10 * SECOND).max_hold(10 * SECOND);
    let guard = locks.mutex("a").lock_with(options).await.unwrap();
    let release = tokio::spawn(guard.release());
    tokio::task::yield_now().await;
    clock.advance(11 * SECOND);
    assert_eq!(soon("release", release).await.unwrap().unwrap(), Released::Held, "released in time");
}

#[tokio::test]
async fn min_hold_may_be_as_long_as_the_fixed_lease() {
    let (clock, _script, locks) = stage();
    let options = Options::new().min_hold(10 * SECOND).fixed_lease(10 * SECOND);
    let Ok(guard) = locks.mutex("a").lock_with(options).await else { return };
    drop(guard);
    clock.advance(Duration::from_millis(9_900));
    assert!(locks.mutex("a").try_lock().await.is_err(), "left before min_hold was over");
}

#[tokio::test]
async fn a_store_that_panics_does_not_make_us_forget_a_release() {
    let (clock, script, locks) = stage();
    let guard = locks.mutex("a").lock().await.unwrap();
    script.next("leave", 1, Act::Panic);
    drop(guard);
    clock.advance(5 * SECOND);
    assert!(locks.list("").await.unwrap().is_empty(), "the release was forgotten");
}

#[tokio::test]
async fn close_waits_for_a_release_that_another_caller_has_taken_over() {
    let (_clock, script, locks) = stage();
    let lock = locks.rwlock("a");
    let told = Arc::new(Notify::new());
    let read = lock.read().await.unwrap();
    script.next("leave", 1, Act::CarryOutLater(told.clone()));
    drop(read);
    let mut next = Box::pin(lock.write());
    assert!(futures_util::poll!(next.as_mut()).is_pending());
    let mut close = Box::pin(locks.close());
    assert!(futures_util::poll!(close.as_mut()).is_pending(), "the release was not confirmed yet");
    told.notify_one();
    drop(next);
    soon("close", close).await;
}

#[tokio::test]
async fn an_upgrade_does_not_forget_an_unanswered_enter() {
    let (clock, script, locks) = stage();
    script.next("enter", 1, Act::LoseReply);
    let lock = locks.rwlock("a");
    let pending = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await }
    });
    while script.calls("enter") == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(SECOND);
    let read = soon("read", pending).await.unwrap().unwrap();
    let before = script.calls("leave");
    let write = read.try_upgrade().await.map_err(Error::from).unwrap();
    clock.advance(10 * SECOND);
    assert!(script.calls("leave") > before, "the first enter may still arrive: its id has to be left again");
    drop(write);
}

#[tokio::test]
async fn one_hanging_renewal_of_a_grant_does_not_hang_the_caller() {
    let (clock, script, locks) = stage();
    let mutex = locks.mutex("a");
    let first = mutex.lock().await.unwrap();
    let second = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock_with(Options::new().lease(60 * SECOND)).await.map(drop) }
    });
    while script.calls("wait") == 0 {
        tokio::task::yield_now().await;
    }
    script.next("renew", usize::MAX, Act::Hang);
    first.release().await.unwrap();
    while script.calls("renew") == 0 {
        tokio::task::yield_now().await;
    }
    script.next("renew", 0, Act::Hang);
    for _ in 0..12 {
        clock.advance(10 * SECOND);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(second.is_finished(), "its place lapsed 90 s ago, and it does not know");
}

#[tokio::test]
async fn an_upgrade_of_what_was_lost_leaves_no_ticket_behind() {
    let (clock, script, locks) = stage();
    let read = locks.rwlock("a").read_with(Options::new().lease(3 * SECOND)).await.unwrap();
    let told = Arc::new(Notify::new());
    script.next("upgrade", 1, Act::AnswerLater(told.clone()));
    let upgrade = tokio::spawn(read.try_upgrade());
    while script.calls("upgrade") == 0 {
        tokio::task::yield_now().await;
    }
    told.notify_one();
    clock.jump(Duration::from_millis(2_950)); // past the deadline, before the end of the lease
    let outcome = soon("upgrade", upgrade).await.unwrap();
    if let Ok(guard) = &outcome {
        assert_eq!(guard.state(), State::Lost);
    }
    drop(outcome);
    clock.settle();
    soon("close", locks.close()).await;
    assert!(locks.list("").await.unwrap().is_empty(), "the new ticket is nobody's");
}

#[test]
fn upgrades_and_readers_that_come_and_go_keep_the_tokens_in_order() {
    // A number that is minted before the line is looked at can be overtaken by a reader that comes and goes.
    let store = MemoryStore::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let passers: Vec<_> = (0..2)
        .map(|_| {
            let (lock, stop) = (Locks::with_store(store.clone()).rwlock("a"), stop.clone());
            std::thread::spawn(move || {
                runtime().block_on(async {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        if let Ok(read) = lock.try_read().await {
                            read.release().await.unwrap();
                        }
                    }
                });
            })
        })
        .collect();
    let lock = Locks::with_store(store).rwlock("a");
    runtime().block_on(async {
        for _ in 0..1_000 {
            let read = lock.read().await.unwrap();
            let before = read.token().number();
            match read.try_upgrade().await {
                Ok(write) => assert!(write.token().number() > before),
                Err(failed) => assert_eq!(failed.kind(), ErrorKind::Held),
            }
        }
    });
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    passers.into_iter().for_each(|passer| passer.join().unwrap());
}
