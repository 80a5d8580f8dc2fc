//! Lost replies, repeated and delayed calls, calls that are carried out after their caller has gone.

use crate::ctx::{Ctx, SOON, eventually, soon, within};
use crate::suite::tests;
use crate::wrap::faulty::{Fault, Valve, Verb};
use fencelock::{Effect, ErrorKind, Options, Released, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

tests!("faults":
    a_lost_reply_on_enter_is_asked_for_again,
    a_lost_reply_on_enter_in_the_queue [Fair],
    a_lost_reply_on_leave_is_no_lock_held,
    a_failed_leave_is_tried_again,
    a_lost_reply_on_downgrade [Readers],
    a_lost_reply_on_upgrade [Readers Upgrade],
    a_lost_reply_of_a_try_that_gives_up,
    an_enter_that_is_never_answered_is_taken_back,
    an_upgrade_whose_replies_are_all_lost [OwnLease Readers Upgrade],
    a_repeated_call_changes_nothing,
    a_wait_that_fails_is_begun_again [Fair],
    a_cancelled_enter_that_is_carried_out_later_is_taken_back [OwnLease],
    a_store_that_never_answers_a_try,
    a_change_that_comes_late_does_not_lower_an_upgrade [Readers Upgrade],
    faults_at_random_and_a_counter_that_comes_out_exact,
);

async fn a_lost_reply_on_enter_is_asked_for_again(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let name = ctx.text("a");
    for faults in [vec![Fault::LoseReply], vec![Fault::Drop, Fault::LoseReply], vec![Fault::Fail, Fault::LoseReply]] {
        let tries = faults.len() + 1;
        faulty.reset_counts();
        faulty.next(Verb::Enter, faults);
        let guard = client.locks.mutex(&name).lock_within(SOON).await.expect("its own ticket is not in its way");
        assert_eq!(faulty.calls(Verb::Enter), tries);
        assert_eq!(
            client.numbers(&ctx.name("a")).await,
            (vec![client.told(guard.token().number())], vec![]),
            "one ticket"
        );
        guard.release().await.expect("release");
        assert!(client.is_empty(&ctx.name("a")).await);
    }
}

async fn a_lost_reply_on_enter_in_the_queue(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let holder = other.locks.mutex(&name).lock().await.expect("free");
    faulty.next(Verb::Enter, [Fault::LoseReply, Fault::LoseReply]);
    let waiter = tokio::spawn({
        let mutex = client.locks.mutex(&name);
        async move { mutex.lock().await.expect("lock") }
    });
    eventually("it has asked three times", || std::future::ready(faulty.calls(Verb::Enter) == 3)).await;
    assert_eq!(other.inspect(&ctx.name("a")).await.waiting.len(), 1, "one place");
    holder.release().await.expect("release");
    soon("it gets in", waiter).await.expect("no panic").release().await.expect("release");
    assert!(other.is_empty(&ctx.name("a")).await);
}

async fn a_lost_reply_on_leave_is_no_lock_held(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let guard = client.locks.mutex(&name).lock().await.expect("free");
    faulty.next(Verb::Leave, [Fault::LoseReply]);
    assert_eq!(guard.release().await.expect("it asks again"), Released::Held, "gone by its own leave");
    let next = other.locks.mutex(&name).try_lock().await.expect("it was released");
    soon("close", client.locks.close()).await;
    assert_eq!(next.state(), State::Safe, "the repeated leave is about its own ticket only");
    assert_eq!(next.release().await.expect("release"), Released::Held);
}

async fn a_failed_leave_is_tried_again(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    for by_drop in [true, false] {
        let guard = client.locks.mutex(&name).lock().await.expect("free");
        faulty.next(Verb::Leave, [Fault::Fail, Fault::Drop, Fault::Fail]);
        if by_drop {
            drop(guard);
        } else {
            let _ = guard.release().await;
        }
        let next = other.locks.mutex(&name).lock_within(SOON).await.expect("it is left in the background");
        next.release().await.expect("release");
        soon("close", client.locks.close()).await;
        faulty.heal();
    }
}

async fn a_lost_reply_on_downgrade(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let writer = client.locks.rwlock(&name).write().await.expect("free");
    faulty.next(Verb::Change, [Fault::LoseReply, Fault::Fail]);
    let reader = soon("the downgrade", writer.downgrade()).await.expect("held");
    other.locks.rwlock(&name).try_read().await.expect("shared").release().await.expect("release");
    assert_eq!(reader.release().await.expect("release"), Released::Held);
}

async fn a_lost_reply_on_upgrade(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let reader = client.locks.rwlock(&name).read().await.expect("free");
    let before = reader.token().number();
    faulty.next(Verb::Upgrade, [Fault::LoseReply, Fault::Drop]);
    let writer = soon("the upgrade", reader.try_upgrade()).await.expect("alone");
    assert!(writer.token().number() > before);
    assert_eq!(other.numbers(&ctx.name("a")).await.0, [other.told(writer.token().number())]);
    assert_eq!(writer.release().await.expect("release"), Released::Held);
    assert!(other.is_empty(&ctx.name("a")).await);
}

async fn a_lost_reply_of_a_try_that_gives_up(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    faulty.always(Verb::Enter, Fault::LoseReply);
    let error = soon("it gives up", client.locks.mutex(&name).try_lock()).await.expect_err("never an answer");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    faulty.heal();
    eventually("its ticket is taken back", || async { other.is_empty(&ctx.name("a")).await }).await;
    other.locks.mutex(&name).try_lock().await.expect("free").release().await.expect("release");
}

async fn an_enter_that_is_never_answered_is_taken_back(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        faulty.next(Verb::Enter, [Fault::BlackholeAfter]);
        let locked = soon("it gives up", client.locks.mutex(&name).lock_within(wait)).await;
        let error = locked.expect_err("never an answer");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut), "{error}");
        eventually("its ticket is taken back", || async { other.is_empty(&ctx.name("a")).await }).await;
        other.locks.mutex(&name).try_lock().await.expect("free").release().await.expect("release");
    }
}

/// The upgrade is carried out, but nobody ever hears of it: the reader's ticket is gone, and the writer's is nobody's.
async fn an_upgrade_whose_replies_are_all_lost(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let options = Options::new().lease(ctx.lease() * 2);
    let reader = client.locks.rwlock(&name).read_with(options).await.expect("free");
    faulty.always(Verb::Upgrade, Fault::LoseReply);
    let failed = soon("it gives up", reader.try_upgrade()).await.expect_err("never an answer");
    assert!(matches!(failed.kind(), ErrorKind::Unavailable | ErrorKind::Lost), "{failed}");
    let reader = failed.into_guard();
    faulty.heal();
    soon("it is told that its ticket is gone", reader.lost()).await;
    let next = other.locks.mutex(&name).lock_within(SOON).await.expect("the writer's ticket is taken back");
    assert_eq!(reader.state(), State::Lost);
    assert_eq!(next.release().await.expect("release"), Released::Held);
    soon("close", client.locks.close()).await;
    assert!(other.is_empty(&ctx.name("a")).await);
}

async fn a_repeated_call_changes_nothing(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let name = ctx.text("a");
    let verbs = [Verb::Enter, Verb::Renew, Verb::Change, Verb::Upgrade, Verb::Inspect, Verb::List];
    for verb in verbs {
        faulty.always(verb, Fault::Repeat);
    }
    let guard = client.locks.mutex(&name).lock().await.expect("free");
    assert_eq!(client.numbers(&ctx.name("a")).await.0, [client.told(guard.token().number())]);
    assert_eq!(guard.release().await.expect("release"), Released::Held);
    let capability = client.store.capability();
    if capability.weights != fencelock::store::Weights::Whole && capability.upgrade {
        let lock = client.locks.rwlock(&name);
        let writer = lock.read().await.expect("free").try_upgrade().await.expect("alone");
        let reader = writer.downgrade().await.expect("held");
        let beside = lock.try_read().await.expect("shared");
        assert_eq!(client.inspect(&ctx.name("a")).await.inside.len(), 2);
        drop((reader, beside));
    }
    faulty.always(Verb::Leave, Fault::Repeat);
    let guard = client.locks.mutex(&name).lock().await.expect("free");
    guard.release().await.expect("a leave that was carried out twice");
    assert!(client.is_empty(&ctx.name("a")).await);
}

async fn a_wait_that_fails_is_begun_again(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let holder = other.locks.mutex(&name).lock().await.expect("free");
    faulty.next(Verb::Wait, [Fault::Fail, Fault::Drop, Fault::LoseReply]);
    let waiter = tokio::spawn({
        let mutex = client.locks.mutex(&name);
        async move { mutex.lock().await.expect("lock") }
    });
    eventually("it waits for the third time", || std::future::ready(faulty.calls(Verb::Wait) >= 3)).await;
    let number = other.inspect(&ctx.name("a")).await.waiting[0].token;
    holder.release().await.expect("release");
    let guard = soon("it gets in", waiter).await.expect("no panic");
    assert_eq!(Some(guard.token().number()), number, "it kept its place");
    guard.release().await.expect("release");
}

/// The leave of a cancelled enter says "not there"; then the enter is carried out after all. The ghost must be taken back well
/// before its lease ends.
async fn a_cancelled_enter_that_is_carried_out_later_is_taken_back(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    for lapse in [Duration::ZERO, Duration::from_millis(300)] {
        let valve = Valve::new();
        faulty.next(Verb::Enter, [Fault::HoldBack(valve.clone())]);
        faulty.reset_counts();
        let lease = Duration::from_secs(10).max(ctx.lease() * 5);
        let lock = tokio::spawn({
            let mutex = client.locks.mutex(&name);
            async move { mutex.lock_with(Options::new().lease(lease)).await.map(drop) }
        });
        eventually("it is under way", || std::future::ready(valve.arrived() == 1)).await;
        lock.abort();
        assert!(lock.await.expect_err("aborted").is_cancelled());
        soon("close", client.locks.close()).await;
        assert!(faulty.calls(Verb::Leave) >= 1, "it was left, and was not there");
        tokio::time::sleep(lapse).await;
        valve.open();
        eventually("the enter is carried out", || std::future::ready(valve.passed() == 1)).await;
        let ghost = Instant::now();
        within(lease / 2, "the ghost is taken back", || async { other.is_empty(&ctx.name("a")).await }).await;
        let next = other.locks.mutex(&name).lock_within(lease).await.expect("free");
        assert!(ghost.elapsed() < lease / 2, "the ghost lived for {:?}", ghost.elapsed());
        next.release().await.expect("release");
    }
}

async fn a_store_that_never_answers_a_try(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    faulty.always(Verb::Enter, Fault::Blackhole);
    let error = soon("a try ends", client.locks.mutex(&ctx.text("a")).try_lock()).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let limit = Duration::from_millis(50);
    let error = soon("it ends", client.locks.mutex(&ctx.text("a")).lock_within(limit)).await.expect_err("no answer");
    assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unavailable), "{error}");
    faulty.heal();
    soon("it works again", client.locks.mutex(&ctx.text("a")).lock())
        .await
        .expect("free")
        .release()
        .await
        .expect("release");
}

/// A writer's last write guard is dropped, and the change that tells it fails late: meanwhile the reader that was left has been
/// upgraded. The change is sent again, and must not lower the new ticket.
async fn a_change_that_comes_late_does_not_lower_an_upgrade(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let (owner, lock) = (client.locks.owner(), client.locks.rwlock(&name));
    let (write, read) = (lock.write_as(&owner).await.expect("free"), lock.read_as(&owner).await.expect("ours"));
    // An upgrade waits for a change that is under way, but not for longer than a second.
    faulty.next(Verb::Change, [Fault::DropAfter(Duration::from_millis(1500))]);
    drop(write);
    eventually("it is under way", || std::future::ready(faulty.delayed() == 1)).await;
    let write = soon("the upgrade", read.try_upgrade()).await.expect("alone");
    eventually("the change is sent again", || std::future::ready(faulty.calls(Verb::Change) == 2)).await;
    soon("close", client.locks.close()).await;
    assert_eq!(other.inspect(&ctx.name("a")).await.inside[0].mode, fencelock::Mode::Exclusive);
    assert_eq!(other.locks.rwlock(&name).try_read().await.expect_err("written").kind(), ErrorKind::Held);
    assert_eq!(write.release().await.expect("release"), Released::Held);
}

/// Every fifth call fails, is dropped, repeated, or loses its reply; the counter comes out exact and nothing is left.
async fn faults_at_random_and_a_counter_that_comes_out_exact(ctx: Arc<Ctx>) {
    let name = ctx.text("a");
    let counter = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicU64::new(0));
    let rounds = ctx.rounds(10);
    let mut tasks = Vec::new();
    let mut clients = Vec::new();
    for i in 0..3 {
        let (client, faulty) = ctx.faulty().await;
        faulty.random(ctx.rng().u64(..).wrapping_add(i), 0.2);
        for _ in 0..2 {
            let (mutex, counter, done) = (client.locks.mutex(&name), counter.clone(), done.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..rounds {
                    // An enter may fail for good; then nothing was counted.
                    let Ok(guard) = mutex.lock().await else { continue };
                    let number = counter.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    counter.store(number + 1, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                    drop(guard.release().await);
                }
            }));
        }
        clients.push((client, faulty));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(90), task).await.expect("nobody is stuck").expect("no panic");
    }
    assert_eq!(counter.load(Ordering::Relaxed), done.load(Ordering::Relaxed));
    assert!(done.load(Ordering::Relaxed) > rounds as u64, "most of them got in");
    for (client, faulty) in &clients {
        faulty.heal();
        soon("close", client.locks.close()).await;
    }
    eventually("nothing is left", || async { clients[0].0.is_empty(&ctx.name("a")).await }).await;
}
