//! Waiting beside the queue: nobody is overtaken, nobody is woken for nothing, nobody is forgotten.

use crate::ctx::{Ctx, SOON, eventually, soon};
use crate::suite::tests;
use crate::wrap::faulty::{Fault, Faulty, Verb};
use fencelock::{ErrorKind, Options};
use std::sync::Arc;
use std::time::{Duration, Instant};

tests!("unfair":
    it_never_overtakes_a_waiter [Fair],
    it_leaves_no_ticket_while_it_waits,
    a_release_wakes_no_herd [Push],
    everybody_gets_in_in_the_end,
    readers_get_in_together [Readers],
    a_light_one_gets_in_beside_a_heavy_one_that_waits [Permits],
    who_gives_up_passes_its_turn_on,
    a_watch_that_was_cut_is_taken_up_again [Push],
    a_dead_holder_is_noticed [OwnLease],
);

fn unfair() -> Options {
    Options::new().unfair()
}

async fn it_never_overtakes_a_waiter(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let holder = one.locks.mutex(&name).lock().await.expect("free");
    let fair = tokio::spawn({
        let mutex = one.locks.mutex(&name);
        async move { mutex.lock().await.expect("lock") }
    });
    eventually("it waits in the queue", || async { one.inspect(&ctx.name("a")).await.waiting.len() == 1 }).await;
    let barging = tokio::spawn({
        let mutex = two.locks.mutex(&name);
        async move { mutex.lock_with(unfair()).await.expect("lock") }
    });
    holder.release().await.expect("release");
    let first = soon("the fair one gets in", fair).await.expect("no panic");
    assert!(!barging.is_finished(), "it overtook");
    let token = first.token();
    first.release().await.expect("release");
    let second = soon("then the other", barging).await.expect("no panic");
    assert!(second.token() > token);
    second.release().await.expect("release");
}

async fn it_leaves_no_ticket_while_it_waits(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let holder = one.locks.mutex(&name).lock().await.expect("free");
    let error = two.locks.mutex(&name).lock_with(unfair().wait(Duration::from_millis(30))).await.expect_err("held");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let mutex = two.locks.mutex(&name);
    let given_up = tokio::time::timeout(Duration::from_millis(30), mutex.lock_with(unfair())).await;
    assert!(given_up.is_err());
    // A try that was given up half-way is taken back in the background.
    eventually("no ticket waits", || async { one.inspect(&ctx.name("a")).await.waiting.is_empty() }).await;
    holder.release().await.expect("release");
    two.locks.close().await;
    assert!(one.is_empty(&ctx.name("a")).await);
}

/// Two clients with many waiters each: a release is told once to each client, which lets one of its waiters try.
async fn a_release_wakes_no_herd(ctx: Arc<Ctx>) {
    const EACH: usize = 30;
    let (holder, name) = (ctx.client().await, ctx.text("a"));
    let clients = [ctx.faulty().await, ctx.faulty().await];
    let guard = holder.locks.mutex(&name).lock().await.expect("free");
    let mut tasks = Vec::new();
    for (client, _) in &clients {
        for _ in 0..EACH {
            let mutex = client.locks.mutex(&name);
            tasks.push(tokio::spawn(async move {
                let guard = mutex.lock_with(unfair()).await.expect("lock");
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.release().await.expect("release");
            }));
        }
    }
    let tries = |clients: &[(crate::ctx::Client, Faulty)]| -> usize {
        clients.iter().map(|(_, faulty)| faulty.calls(Verb::Enter)).sum()
    };
    eventually("everybody has tried once", || std::future::ready(tries(&clients) >= 2 * EACH)).await;
    tokio::time::sleep(Duration::from_millis(100)).await; // what the first tries have set going comes to rest
    clients.iter().for_each(|(_, faulty)| faulty.reset_counts());
    guard.release().await.expect("release");
    for task in tasks {
        soon("everybody gets in", task).await.expect("no panic");
    }
    let tries = tries(&clients);
    // A hand-off is two changes of the line, each told to two clients: four tries at most, and a few that cross.
    assert!(tries <= 2 * EACH * 6, "{tries} tries for {} hand-offs", 2 * EACH);
}

async fn everybody_gets_in_in_the_end(ctx: Arc<Ctx>) {
    let name = ctx.text("a");
    let mut tasks = Vec::new();
    for client in [ctx.client().await, ctx.client().await] {
        for i in 0..10 {
            let mutex = client.locks.mutex(&name);
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let options = if i % 2 == 0 { unfair() } else { Options::new() };
                    mutex.lock_with(options).await.expect("lock").release().await.expect("release");
                }
            }));
        }
    }
    for task in tasks {
        tokio::time::timeout(SOON * 4, task).await.expect("nobody is forgotten").expect("no panic");
    }
}

async fn readers_get_in_together(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let writer = one.locks.rwlock(&name).write().await.expect("free");
    let readers: Vec<_> = (0..5)
        .map(|_| {
            let lock = two.locks.rwlock(&name);
            tokio::spawn(async move { lock.read_with(unfair()).await.expect("lock") })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(30)).await; // let them be refused; it holds either way
    writer.release().await.expect("release");
    // All at the same time: nobody lets go before everybody is in.
    let mut guards = Vec::new();
    for reader in readers {
        let guard = tokio::time::timeout(Duration::from_secs(4), reader).await;
        guards.push(guard.expect("each lets the next try").expect("no panic"));
    }
    assert_eq!(one.inspect(&ctx.name("a")).await.inside.len(), 5);
    drop(guards);
    two.locks.close().await;
}

async fn a_light_one_gets_in_beside_a_heavy_one_that_waits(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    let a = one.locks.semaphore(&name, 4).acquire_many(2).await.expect("free");
    let b = one.locks.semaphore(&name, 4).acquire_many(2).await.expect("free");
    let mut tasks = Vec::new();
    for permits in [4, 2] {
        let semaphore = two.locks.semaphore(&name, 4);
        tasks.push(tokio::spawn(async move { semaphore.acquire_many_with(permits, unfair()).await.expect("lock") }));
        tokio::time::sleep(Duration::from_millis(50)).await; // the heavy one comes first
    }
    a.release().await.expect("release");
    let light = tokio::time::timeout(Duration::from_secs(4), tasks.remove(1)).await;
    let light = light.expect("the heavy one's refusal lets the lighter one try").expect("no panic");
    light.release().await.expect("release");
    b.release().await.expect("release");
    soon("the heavy one gets in", tasks.remove(0)).await.expect("no panic").release().await.expect("release");
}

async fn who_gives_up_passes_its_turn_on(ctx: Arc<Ctx>) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.text("a"));
    for round in 0..ctx.rounds(10) {
        let guard = one.locks.mutex(&name).lock().await.expect("free");
        let limit = Duration::from_millis(10);
        let gives_up = tokio::spawn({
            let mutex = two.locks.mutex(&name);
            async move { mutex.lock_with(unfair().wait(limit)).await }
        });
        let stays = tokio::spawn({
            let mutex = two.locks.mutex(&name);
            async move { mutex.lock_with(unfair()).await }
        });
        // The release comes at about the time at which the first one gives up.
        tokio::time::sleep(limit + Duration::from_micros(500 * (round as u64 % 6))).await;
        guard.release().await.expect("release");
        if let Ok(guard) = gives_up.await.expect("no panic") {
            guard.release().await.expect("release");
        }
        let guard = tokio::time::timeout(Duration::from_secs(4), stays).await.expect("the turn was passed on");
        guard.expect("no panic").expect("lock").release().await.expect("release");
    }
}

/// The stream of hints ends while somebody waits, and the release falls into the gap.
async fn a_watch_that_was_cut_is_taken_up_again(ctx: Arc<Ctx>) {
    let (holder, name) = (ctx.client().await, ctx.text("a"));
    let (client, faulty) = ctx.faulty().await;
    let guard = holder.locks.mutex(&name).lock().await.expect("free");
    let waiter = tokio::spawn({
        let mutex = client.locks.mutex(&name);
        async move { mutex.lock_with(unfair()).await.expect("lock") }
    });
    eventually("it has tried again under the watch", || {
        std::future::ready(faulty.calls(Verb::Watch) == 1 && faulty.calls(Verb::Enter) >= 2)
    })
    .await;
    tokio::time::sleep(Duration::from_millis(50)).await; // its refusal has been told to the watcher
    faulty.next(Verb::Watch, [Fault::DelayBefore(Duration::from_millis(300))]);
    faulty.cut_watches();
    eventually("it watches again", || std::future::ready(faulty.calls(Verb::Watch) == 2)).await;
    guard.release().await.expect("release");
    let released = Instant::now();
    soon("it gets in", waiter).await.expect("no panic").release().await.expect("release");
    let waited = released.elapsed();
    assert!(waited < Duration::from_secs(2), "the release in the gap was noticed only after {waited:?}");
}

async fn a_dead_holder_is_noticed(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.text("a"));
    let dead = crate::ctx::leased(ctx.mutex(&ctx.name("a")), ctx.lease());
    client.admitted(&dead).await;
    let started = Instant::now();
    let guard = soon("its lease ends", client.locks.mutex(&name).lock_with(unfair())).await.expect("lock");
    let waited = started.elapsed();
    assert!(waited < ctx.lease() + Duration::from_secs(3), "noticed only after {waited:?}");
    guard.release().await.expect("release");
}
