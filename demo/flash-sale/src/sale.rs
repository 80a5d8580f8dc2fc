//! One sale, from the full shelf to the verdict: stocks up, opens the stage, lets the customers in, does what is to go wrong, and
//! reads the books.

use crate::Result;
use crate::hook::Point;
use crate::live::Live;
use crate::load::{self, Crowd, Numbers, Tally};
use crate::plan::{Fault, Plan, Row};
use crate::seller::LOCK;
use crate::shop::{Books, Shop};
use crate::stage::Stage;
use crate::strategy::Strategy;
use fencelock::Locks;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How long a shop must be silent to count as stuck.
const STUCK: Duration = Duration::from_secs(3);

/// The lease in a sale that is to be paused; stores that cannot keep it say so themselves.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(2);

/// Runs one sale. `live` is told how it goes.
pub(crate) async fn run(plan: &Plan, live: &Live) -> Result<(Row, Numbers)> {
    let (row, numbers, books) = through(plan, live).await?;
    live.ended(&row, &books);
    Ok((row, numbers))
}

/// The same, and whoever looks on is not told that it is over.
async fn through(plan: &Plan, live: &Live) -> Result<(Row, Numbers, Books)> {
    for _ in 0..10 {
        if let Some(result) = once(plan, live).await? {
            return Ok(result);
        }
        live.say("the sale was over before node-1 got to the place: once more");
    }
    Err("node-1 never got to the place where something was to go wrong".into())
}

/// One try; `None` if what was to go wrong could not, since the sale was over first.
async fn once(plan: &Plan, live: &Live) -> Result<Option<(Row, Numbers, Books)>> {
    let shop = Shop::open(&plan.db).await?;
    plan.stock_up(&shop).await?;
    if plan.strategy.by_hand() {
        forget_lock_by_hand(plan).await?;
    }
    let mut stage = Stage::open(plan).await?;
    let tally = Tally::new();
    let watcher = live.follow(plan, &shop, &tally, stage.front()).await;
    // Customers of a sale in which something goes wrong come until it is over.
    let endless = matches!(plan.fault, Fault::Paused | Fault::Killed | Fault::KilledAfterSetnx);
    let crowd = Crowd {
        to: stage.doors(),
        customers: plan.customers,
        rounds: (!endless).then_some(plan.rounds),
        products: plan.products,
        timeout: Duration::from_secs(if endless { 1 } else { 60 }),
    };
    let (numbers, done) = {
        let going = load::run(&crowd, &tally);
        let wrong = go_wrong(plan, &mut stage, &shop, &tally, live);
        let wrong = async {
            let done = wrong.await;
            if endless || done.is_err() {
                tally.stop();
            }
            done
        };
        let (numbers, wrong) = tokio::join!(going, wrong);
        (numbers?, wrong?)
    };
    // A write may still be under way behind a customer who has left: when the nodes are gone, none is.
    for node in &mut stage.nodes {
        node.kill().await?;
    }
    drop(stage);
    let books = shop.books().await?;
    drop(watcher);
    let row = judge(plan, books.left, books.sold, &numbers);
    Ok(done.then_some((row, numbers, books)))
}

fn judge(plan: &Plan, left: i64, sold: i64, numbers: &Numbers) -> Row {
    let stock = plan.stock_of_each() * i64::from(plan.products);
    let oversold = (sold - stock).max(0);
    let verdict = if oversold > 0 {
        "oversold"
    } else if sold + left != stock {
        "books wrong"
    } else if plan.fault == Fault::KilledAfterSetnx && numbers.stuck_ms >= STUCK.as_millis() as u64 {
        "stuck"
    } else {
        "right"
    };
    Row {
        strategy: plan.strategy.name(),
        store: plan.store_name(),
        nodes: plan.nodes,
        stock,
        stock_left: left,
        sold,
        oversold,
        requests: numbers.requests,
        qps: numbers.qps,
        mean_ms: numbers.mean_ms,
        p50_ms: numbers.p50_ms,
        p99_ms: numbers.p99_ms,
        fault: plan.fault.told(plan.strategy).into(),
        stuck_ms: numbers.stuck_ms,
        verdict: verdict.into(),
    }
}

/// A lock by hand may have been left by the sale before.
async fn forget_lock_by_hand(plan: &Plan) -> Result<()> {
    let url = plan.store.as_deref().ok_or("this strategy needs a --store redis://...")?;
    let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let _: u64 = redis::AsyncCommands::del(&mut redis, crate::by_hand::KEY).await?;
    Ok(())
}

/// Does what is to go wrong, in the middle of the sale. `false` if there was no middle.
async fn go_wrong(plan: &Plan, stage: &mut Stage, shop: &Shop, tally: &Tally, live: &Live) -> Result<bool> {
    match plan.fault {
        Fault::Nothing | Fault::WorkPastExpiry | Fault::PausedBeforeDel => Ok(true),
        Fault::Killed => {
            until_sold(plan.stock / 2, shop).await?;
            live.say("every node is killed with -9");
            for node in &mut stage.nodes {
                node.kill().await?;
            }
            for number in 0..stage.nodes.len() {
                stage.restart(number).await?;
            }
            live.say("and started again");
            until_sold_out(shop, Duration::from_secs(60)).await?;
            Ok(true)
        }
        Fault::KilledAfterSetnx => {
            until_sold(plan.stock / 2, shop).await?;
            let node = &mut stage.nodes[0];
            tokio::time::timeout(Duration::from_secs(30), node.catch(Point::AfterSetnx)).await??;
            node.kill().await?;
            live.say("node-1 is killed with the lock in its hand");
            stage.restart(0).await?;
            // Ends when the shop has been silent for long enough, or goes on although it should not.
            let limit = Instant::now() + Duration::from_secs(20);
            while tally.silence() < STUCK && Instant::now() < limit {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(true)
        }
        Fault::Paused => {
            // Early: without a queue one node may sell most of it.
            until_sold(plan.stock / 10, shop).await?;
            pause(plan, stage, shop, live).await
        }
    }
}

/// Waits until so much is sold.
async fn until_sold(pieces: i64, shop: &Shop) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(60);
    while shop.books().await?.sold < pieces {
        if Instant::now() > limit {
            return Err(format!("nobody sells {pieces} pieces here").into());
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Ok(())
}

/// Waits until nothing is left, or as long as that.
async fn until_sold_out(shop: &Shop, at_most: Duration) -> Result<()> {
    let limit = Instant::now() + at_most;
    while shop.books().await?.left > 0 && Instant::now() < limit {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Freezes the first node between a read and a write, waits until the lease is over and the others have sold the rest (or cannot),
/// and lets it go on.
async fn pause(plan: &Plan, stage: &mut Stage, shop: &Shop, live: &Live) -> Result<bool> {
    let node = &mut stage.nodes[0];
    let over = async {
        until_sold_out(shop, Duration::from_secs(60)).await?;
        // Whoever is inside now was there before.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(())
    };
    let caught: Result<bool> = tokio::select! {
        caught = node.catch(Point::Inside) => caught.map(|()| true),
        over = over => over.map(|()| false),
    };
    if !caught? {
        return Ok(false);
    }
    freeze(plan, node).await?;
    live.frozen(Some(0));
    live.say("node-1 is frozen between its read and its write");
    let past = Instant::now() + plan.lease + Duration::from_millis(500);
    let limit = Instant::now() + plan.lease * 3 + Duration::from_secs(20);
    loop {
        // Where the frozen node holds the row itself, nobody can sell anything: then time decides.
        let sold_out = shop.books().await?.left <= 0;
        let now = Instant::now();
        let waits_for_it = plan.strategy == Strategy::ForUpdate;
        if now > past && (sold_out || waits_for_it) || now > limit {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.go().await?;
    node.signal(Signal::CONT)?;
    live.frozen(None);
    live.say("node-1 goes on and writes");
    // Until what was under way is answered, and the rest sold.
    let limit = Instant::now() + Duration::from_secs(10);
    let (mut calm, mut sold) = (Instant::now(), -1);
    while calm.elapsed() < Duration::from_millis(500) && Instant::now() < limit {
        let books = shop.books().await?;
        if books.sold != sold || books.left > 0 {
            (calm, sold) = (Instant::now(), books.sold);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(true)
}

/// Stops the process. On SQLite another of its threads may be in a transaction of the lock's file just then, and nobody could do
/// anything: that is not the pause that is meant, so it is let go for a moment and stopped again.
async fn freeze(plan: &Plan, node: &crate::stage::Node) -> Result<()> {
    let store = plan.store.as_deref().filter(|url| url.starts_with("sqlite:"));
    let locks = match store {
        Some(url) => Some(Locks::connect(url).await?),
        None => None,
    };
    for _ in 0..100 {
        node.signal(Signal::STOP)?;
        let Some(locks) = &locks else { return Ok(()) };
        let probe = locks.mutex(&format!("{LOCK}-probe"));
        let free = tokio::time::timeout(Duration::from_millis(300), probe.lock()).await;
        if let Ok(Ok(guard)) = free {
            guard.release().await?;
            return Ok(());
        }
        node.signal(Signal::CONT)?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Err("node-1 could not be frozen outside of the lock's file".into())
}

/// Runs it; one that can oversell is pressed until it does, or until there is no harder.
pub(crate) async fn pressed(mut plan: Plan, live: &Live) -> Result<(Row, Numbers)> {
    let must = plan.strategy.can_oversell(plan.nodes) || plan.fault == Fault::PausedBeforeDel || {
        plan.fault == Fault::WorkPastExpiry
    };
    let mut result = through(&plan, live).await?;
    for press in 0..12 {
        if !must || result.0.oversold > 0 {
            break;
        }
        if plan.fault == Fault::Nothing || plan.fault == Fault::Paused {
            plan.work = (plan.work * 2).clamp(Duration::from_millis(1), Duration::from_millis(100));
        }
        live.say(&format!("not oversold: once more, {} ms of work, attempt {}", plan.work.as_millis(), press + 2));
        result = through(&plan, live).await?;
    }
    let (row, numbers, books) = result;
    live.ended(&row, &books);
    Ok((row, numbers))
}
