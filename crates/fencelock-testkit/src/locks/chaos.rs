//! Everything at once: readers, writers, owners, upgrades, downgrades, faults and cancellations at random, on one name. Whoever
//! is inside checks that nobody is there who must not be; at the end nothing is left.

use crate::ctx::{Ctx, SOON, eventually, soon};
use crate::suite::tests;
use fencelock::{ErrorKind, Options, Owner, RwLock, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

tests!("chaos":
    readers_writers_and_cancellations [Readers],
    readers_writers_cancellations_and_faults [Readers],
);

/// Who is inside: the number of readers, or -1 for a writer.
#[derive(Default)]
struct Room(AtomicI64);

/// Somebody inside. Goes before his guard does.
struct Inside<'a>(&'a Room, bool);

impl Room {
    fn enter(&self, writes: bool) -> Inside<'_> {
        let changed = if writes {
            self.0.compare_exchange(0, -1, Ordering::SeqCst, Ordering::SeqCst)
        } else {
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |there| (there >= 0).then_some(there + 1))
        };
        if let Err(there) = changed {
            panic!("a {} came in beside {there}", if writes { "writer" } else { "reader" });
        }
        Inside(self, writes)
    }
}

impl<'a> Inside<'a> {
    /// A writer becomes a reader.
    fn soften(self) -> Inside<'a> {
        let room = self.0;
        room.0.store(1, Ordering::SeqCst);
        std::mem::forget(self);
        Inside(room, false)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(if self.1 { 1 } else { -1 }, Ordering::SeqCst);
    }
}

async fn readers_writers_and_cancellations(ctx: Arc<Ctx>) {
    chaos(&ctx, 0.0).await;
}

async fn readers_writers_cancellations_and_faults(ctx: Arc<Ctx>) {
    chaos(&ctx, 0.1).await;
}

async fn chaos(ctx: &Arc<Ctx>, faults: f64) {
    let room = Arc::new(Room::default());
    let end = std::time::Instant::now() + Duration::from_millis(700) * ctx.rounds(1) as u32;
    // A slow machine gets the time it needs.
    let (done, latest) = (Arc::new(AtomicUsize::new(0)), end + Duration::from_secs(45));
    let enough = move |done: &AtomicUsize| match std::time::Instant::now() {
        now if now < end => false,
        now => done.load(Ordering::SeqCst) > 20 || now > latest,
    };
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for i in 0..3 {
        let (client, faulty) = ctx.faulty().await;
        faulty.yielding();
        if faults > 0.0 {
            faulty.heal();
            faulty.random(ctx.rng().u64(..) ^ i, faults);
        }
        for j in 0..3 {
            let (lock, room) = (client.locks.rwlock(&ctx.text("a")), room.clone());
            let (owner, upgrades) = (client.locks.owner(), client.store.capability().upgrade);
            let mut rng = fastrand::Rng::with_seed(ctx.rng().u64(..).wrapping_add(i * 16 + j));
            let done = done.clone();
            tasks.push(tokio::spawn(async move {
                while !enough(&done) {
                    let limit = if rng.u8(..3) == 0 { Duration::from_micros(rng.u64(..1500)) } else { SOON * 3 };
                    let act = act(&lock, &owner, &room, fastrand::Rng::with_seed(rng.u64(..)), upgrades);
                    if tokio::time::timeout(limit, act).await.is_ok() {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }));
        }
        clients.push((client, faulty));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(90), task).await.expect("nobody is stuck").expect("no panic");
    }
    let acts = done.load(Ordering::SeqCst);
    assert!(acts > 20, "only {acts} acts came to their end");
    assert_eq!(room.0.load(Ordering::SeqCst), 0);
    for (client, faulty) in &clients {
        faulty.heal();
        soon("close", client.locks.close()).await;
    }
    eventually("nothing is left", || async { clients[0].0.is_empty(&ctx.name("a")).await }).await;
}

/// One visit. With faults on, getting in may fail for good; what must not happen is to be inside beside another.
async fn act(lock: &RwLock, owner: &Owner, room: &Room, mut rng: fastrand::Rng, upgrades: bool) {
    let options = if rng.u8(..4) == 0 { Options::new().unfair() } else { Options::new() };
    if rng.u8(..3) == 0 {
        let Ok(guard) = lock.write_with(options).await else { return };
        let inside = room.enter(true);
        tokio::task::yield_now().await;
        assert_eq!(room.0.load(Ordering::SeqCst), -1);
        if rng.bool() {
            // Cancelled in there, the guard would go before its holder does.
            drop(inside);
            let Ok(guard) = guard.downgrade().await else { panic!("nobody has taken it away") };
            let inside = room.enter(false);
            tokio::task::yield_now().await;
            drop(inside);
            let _ = guard.release().await;
        } else {
            drop(inside);
        }
        return;
    }
    if rng.u8(..4) == 0 {
        // Twice as the same owner, who reads beside its own writing.
        let Ok(write) = lock.write_as(owner).await else { return };
        let inside = room.enter(true);
        if let Ok(read) = lock.read_as(owner).await {
            let inside = inside.soften();
            drop(write);
            tokio::task::yield_now().await;
            drop(inside);
            drop(read);
        }
        return;
    }
    let Ok(guard) = lock.read_with(options).await else { return };
    let inside = room.enter(false);
    tokio::task::yield_now().await;
    drop(inside);
    if !upgrades || rng.bool() {
        let _ = guard.release().await;
        return;
    }
    match guard.try_upgrade().await {
        Ok(guard) => {
            let inside = room.enter(true);
            tokio::task::yield_now().await;
            drop(inside);
            drop(guard);
        }
        Err(failed) => {
            assert!(matches!(failed.kind(), ErrorKind::Held | ErrorKind::Unavailable | ErrorKind::Lost), "{failed}");
            let guard = failed.into_guard();
            if guard.state() != State::Lost {
                let _ = guard.release().await;
            }
        }
    }
}
