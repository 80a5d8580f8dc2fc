//! The story: every strategy that the stores allow, one row each.

use crate::Result;
use crate::args::{Common, StoryArgs};
use crate::live::Live;
use crate::plan::{Fault, Plan, Row};
use crate::report;
use crate::sale::{self, SHORT_LEASE};
use crate::servers::World;
use crate::strategy::Strategy;
use std::time::Duration;

/// Runs it and tells it. Fails if a strategy that must not oversell did, or one that must did not.
pub(crate) async fn tell(args: &StoryArgs, common: &Common) -> Result<bool> {
    let world = World::open(common)?;
    for line in &world.said {
        eprintln!("{line}");
    }
    let live = Live::for_terminal();
    let mut rows: Vec<Row> = Vec::new();
    let mut wrong = Vec::new();
    for plan in plans(args, common, &world) {
        let (row, numbers) = match sale::pressed(plan.clone(), &live).await {
            Ok(sold) => sold,
            // One sale that could not be held does not take the others with it.
            Err(error) => {
                let line = format!("{} on {}: it could not be held: {error}", plan.strategy.name(), plan.store_name());
                eprintln!("{line}");
                wrong.push(line);
                continue;
            }
        };
        if !args.json {
            eprintln!("{}", report::line(&row));
            if !numbers.failures.is_empty() {
                let causes: Vec<String> = numbers.failures.iter().map(|(cause, n)| format!("{n} {cause}")).collect();
                eprintln!("    failures: {}", causes.join(", "));
            }
        }
        let off = numbers.off_littles_law();
        if numbers.failures.is_empty() && off > 0.05 {
            eprintln!("    QPS is {:.1} % off customers / mean: the customers were idle in between", off * 100.0);
        }
        wrong.extend(surprise(&plan, &row));
        rows.push(row);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", report::markdown(&rows, &world.missing));
    }
    report::write(&args.out, &rows, &world.missing)?;
    eprintln!("written: {0}/story.md, {0}/story.json, {0}/story.svg", args.out.display());
    for line in &wrong {
        eprintln!("not as expected: {line}");
    }
    Ok(wrong.is_empty())
}

/// What a row should have said, if it did not.
fn surprise(plan: &Plan, row: &Row) -> Option<String> {
    use Strategy::{Cas, Fenced, ForUpdate, Optimistic, SetNxPxCheckDel, SetNxPxDel, Setnx, SetnxExpire};
    let expected = match (plan.strategy, plan.fault) {
        (Setnx | SetnxExpire, Fault::KilledAfterSetnx) => "stuck",
        (SetNxPxDel | SetNxPxCheckDel, _) => "oversold",
        (strategy, _) if strategy.can_oversell(plan.nodes) => "oversold",
        (Fenced | ForUpdate | Optimistic | Cas, Fault::Paused) => "right",
        (_, Fault::Paused) => "oversold",
        _ => "right",
    };
    (row.verdict != expected).then(|| format!("{} on {}: {}, not {expected}", row.strategy, row.store, row.verdict))
}

/// All sales of the story, in the order of the table.
fn plans(args: &StoryArgs, common: &Common, world: &World) -> Vec<Plan> {
    use Strategy::{Cas, Fenced, ForUpdate, Lock, LockPerProduct, LockUnfair, None, Optimistic, ProcessLock, Striped};
    let mut plans = Vec::new();
    let (databases, stores) = match args.quick {
        true => (&world.databases[..1], &world.stores[..1]),
        false => (&world.databases[..], &world.stores[..]),
    };
    for db in databases {
        if !args.quick && !args.pause {
            plans.push(Plan { nodes: 1, ..Plan::new(common, ProcessLock, db, Option::None) });
        }
        for strategy in [None, ProcessLock, ForUpdate, Optimistic, Cas] {
            plans.push(Plan::new(common, strategy, db, Option::None));
        }
    }
    // Locks of ours guard the database that was named first; SQLite's file guards itself.
    for store in stores {
        let db = if store.starts_with("sqlite:") { &databases[0] } else { databases.last().unwrap_or(&databases[0]) };
        for strategy in [Lock, LockUnfair, LockPerProduct, Fenced, Striped] {
            let queueless = store.starts_with("quorum:") || store.contains("mode=session");
            if !(strategy == LockUnfair && queueless) {
                plans.push(Plan::new(common, strategy, db, Some(store)));
            }
        }
    }
    if let (Some(redis), false) = (stores.iter().find(|url| url.starts_with("redis:")), args.quick) {
        let db = databases.last().unwrap_or(&databases[0]);
        plans.extend(by_hand(common, db, redis, args.pause));
    }
    for plan in &mut plans {
        if args.pause {
            plan.fault = Fault::Paused;
            plan.lease = SHORT_LEASE;
            plan.expiry = SHORT_LEASE;
        }
    }
    let mut seen = std::collections::HashSet::new();
    plans.retain(|plan| {
        let wanted = args.only.is_empty() || args.only.contains(&plan.strategy);
        let key = (plan.strategy, plan.store_name(), plan.nodes);
        // Two rows must not have the same name.
        let first = !wanted || seen.insert(key);
        if !first {
            eprintln!("a second {} on {} is left out", plan.strategy.name(), plan.store_name());
        }
        wanted && first
    });
    plans
}

/// The steps by hand, each with what breaks it. In a pause only the last step is left to break.
fn by_hand(common: &Common, db: &str, redis: &str, pause: bool) -> Vec<Plan> {
    use Strategy::{SetNxPxCheckDel, SetNxPxDel, SetNxPxScript, Setnx, SetnxExpire};
    let steps = [Setnx, SetnxExpire, SetNxPxDel, SetNxPxCheckDel, SetNxPxScript];
    let plans = steps.into_iter().skip(if pause { 4 } else { 0 });
    plans.map(|strategy| with_its_fault(Plan::new(common, strategy, db, Some(redis)))).collect()
}

/// A step by hand with the fault that breaks it; anything else as it is.
pub(crate) fn with_its_fault(plan: Plan) -> Plan {
    let millis = Duration::from_millis;
    match plan.strategy {
        Strategy::Setnx | Strategy::SetnxExpire => Plan { fault: Fault::KilledAfterSetnx, ..plan },
        Strategy::SetNxPxDel => Plan { fault: Fault::WorkPastExpiry, work: millis(35), expiry: millis(20), ..plan },
        // A short sale, again and again: two have to be inside when the last piece goes.
        Strategy::SetNxPxCheckDel => Plan {
            fault: Fault::PausedBeforeDel,
            stock: plan.stock.min(10),
            rounds: plan.rounds.min(3),
            work: millis(40),
            expiry: millis(50),
            pause_before_del: millis(50),
            ..plan
        },
        _ => plan,
    }
}
