//! The caller's runtime: ended, blocked, or none at all.

use crate::ctx::{Client, Ctx, SOON, eventually, soon};
use crate::suite::tests;
use crate::wrap::faulty::{Fault, Verb};
use fencelock::{ErrorKind, Options, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

tests!("runtimes":
    a_guard_dropped_after_its_runtime_has_ended_is_released,
    a_guard_dropped_by_a_panic_is_released,
    a_task_that_is_aborted_leaves_nothing_behind,
    the_last_handle_sends_its_releases,
    a_blocked_runtime_keeps_its_lock [OwnLease],
    a_blocked_runtime_that_lost_its_lock_knows [OwnLease],
);

/// Runs on a thread of its own, with a runtime of one worker.
async fn elsewhere<T: Send + 'static, F: Future<Output = T>>(work: impl FnOnce() -> F + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work())
    });
    tokio::task::spawn_blocking(move || thread.join()).await.expect("joined").expect("no panic")
}

async fn a_guard_dropped_after_its_runtime_has_ended_is_released(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let guard = elsewhere({
        let mutex = client.locks.mutex(&name);
        move || async move { mutex.lock().await.expect("free") }
    })
    .await;
    assert_eq!(other.locks.mutex(&name).try_lock().await.expect_err("held").kind(), ErrorKind::Held);
    // On a thread that has no runtime either.
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    let next = other.locks.mutex(&name).lock_within(SOON).await.expect("the library's own thread has released it");
    next.release().await.expect("release");
}

async fn a_guard_dropped_by_a_panic_is_released(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.text("a"));
    let mutex = client.locks.mutex(&name);
    let caught = tokio::spawn(async move {
        let _guard = mutex.lock().await.expect("free");
        // Unwinds without a word on the terminal.
        std::panic::resume_unwind(Box::new("on purpose"));
    })
    .await;
    assert!(caught.expect_err("it panicked").is_panic());
    let next = ctx.client().await.locks.mutex(&name).lock_within(SOON).await.expect("released by unwinding");
    next.release().await.expect("release");
}

async fn a_task_that_is_aborted_leaves_nothing_behind(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.text("a"));
    let holder = client.locks.mutex(&name).lock().await.expect("free");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    for _ in 0..5 {
        let mutex = client.locks.mutex(&name);
        runtime.spawn(async move { mutex.lock().await.map(drop) });
    }
    if client.store.capability().queue != fencelock::store::Queue::Absent {
        eventually("they wait", || async { client.inspect(&ctx.name("a")).await.waiting.len() == 5 }).await;
    }
    runtime.shutdown_background();
    eventually("their places are given up", || async { client.inspect(&ctx.name("a")).await.waiting.is_empty() }).await;
    holder.release().await.expect("release");
    assert!(client.is_empty(&ctx.name("a")).await);
}

async fn the_last_handle_sends_its_releases(ctx: Arc<Ctx>) {
    let (other, name) = (ctx.client().await, ctx.text("a"));
    for _ in 0..5 {
        let client: Client = ctx.client().await;
        let guard = client.locks.mutex(&name).lock().await.expect("free");
        // Off the runtime's threads: the last handle waits for a moment.
        tokio::task::spawn_blocking(move || drop((guard, client))).await.expect("no panic");
        let next = other.locks.mutex(&name).lock_within(Duration::from_secs(5)).await.expect("released");
        next.release().await.expect("release");
    }
}

async fn a_blocked_runtime_keeps_its_lock(ctx: Arc<Ctx>) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let lease = (ctx.lease() * 2).max(Duration::from_secs(1));
    let state = elsewhere({
        let mutex = client.locks.mutex(&name);
        move || async move {
            let guard = mutex.lock_with(Options::new().lease(lease)).await.expect("free");
            std::thread::sleep(lease * 3 / 2);
            let state = guard.state();
            guard.release().await.expect("release");
            state
        }
    })
    .await;
    assert_ne!(state, State::Lost, "the library's own thread renews");
    assert!(other.is_empty(&ctx.name("a")).await);
}

async fn a_blocked_runtime_that_lost_its_lock_knows(ctx: Arc<Ctx>) {
    let (client, faulty) = ctx.faulty().await;
    let (other, name) = (ctx.client().await, ctx.text("a"));
    let lease = ctx.lease();
    faulty.always(Verb::Renew, Fault::Drop);
    let polls = Arc::new(AtomicUsize::new(0));
    let (state, told, outcome, again) = elsewhere({
        let (mutex, polls) = (client.locks.mutex(&name), polls.clone());
        move || async move {
            let guard = mutex.lock_with(Options::new().lease(lease)).await.expect("free");
            let told = guard.lost();
            let mut told = Box::pin(told);
            assert!(futures_util::poll!(told.as_mut()).is_pending());
            let mut state = None;
            // The work blocks the only worker past the lease, and asks to be polled again.
            let work = std::future::poll_fn(|cx| {
                if polls.fetch_add(1, Ordering::Relaxed) == 0 {
                    std::thread::sleep(lease + Duration::from_millis(50));
                    state = Some(guard.state());
                    cx.waker().wake_by_ref();
                }
                std::task::Poll::<()>::Pending
            });
            let outcome = guard.run(work).await.map_err(|error| error.kind());
            let again = guard.run(async { polls.fetch_add(1, Ordering::Relaxed) }).await.map_err(|error| error.kind());
            let told = futures_util::poll!(told.as_mut()).is_ready();
            (state, told, outcome, again)
        }
    })
    .await;
    assert_eq!(state, Some(State::Lost), "at its next line of code");
    assert!(told, "lost() has fired");
    assert_eq!(outcome, Err(ErrorKind::Lost));
    assert_eq!(again.map(drop), Err(ErrorKind::Lost));
    assert_eq!(polls.load(Ordering::Relaxed), 1, "run polled past the deadline");
    faulty.heal();
    let next = soon("the next gets in", other.locks.mutex(&name).lock()).await.expect("lock");
    next.release().await.expect("release");
}
