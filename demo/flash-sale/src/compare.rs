//! Two comparisons in one run each: 20 stripes against one lock, and a lock for each of ten products against one for the shop. The
//! same database, the same store, the same work inside.

use crate::Result;
use crate::args::{Common, CompareArgs};
use crate::live::Live;
use crate::plan::{PRODUCTS, Plan, Row};
use crate::servers::World;
use crate::strategy::Strategy;
use crate::{report, sale};
use serde::Serialize;
use std::time::Duration;

/// What is inside the lock.
const WORK: Duration = Duration::from_millis(5);

/// One comparison.
#[derive(Serialize)]
struct Compared {
    what: &'static str,
    coarse: Row,
    coarse_seconds: f64,
    fine: Row,
    fine_seconds: f64,
    /// How many times faster the finer one has sold everything.
    faster: f64,
}

/// Runs both. `Ok(false)` if one of them did not sell exactly what there was.
pub(crate) async fn run(args: &CompareArgs, common: &Common) -> Result<bool> {
    let world = World::open(common)?;
    world.said.iter().for_each(|line| eprintln!("{line}"));
    // Redis and PostgreSQL where they are.
    let find =
        |urls: &[String], scheme: &str| urls.iter().find(|url| url.starts_with(scheme)).or(urls.first()).cloned();
    let db = find(&world.databases, "postgres").ok_or("no database")?;
    let store = find(&world.stores, "redis:").ok_or("no store")?;
    let plan = |strategy, products| Plan {
        stock: 1000,
        products,
        work: WORK,
        // As many requests as there are pieces, so that nobody comes in vain.
        rounds: 1000_usize.div_ceil(common.customers.max(1)),
        ..Plan::new(common, strategy, &db, Some(&store))
    };
    let live = Live::for_terminal();
    let mut all = Vec::new();
    for (what, coarse, fine, products) in [
        ("20 stripes against one lock", Strategy::Lock, Strategy::Striped, 1),
        (
            "a lock per product against one for the shop, 10 products",
            Strategy::Lock,
            Strategy::LockPerProduct,
            PRODUCTS,
        ),
    ] {
        let (coarse, slow) = sale::run(&plan(coarse, products), &live).await?;
        let (fine, quick) = sale::run(&plan(fine, products), &live).await?;
        let faster = (slow.seconds / quick.seconds.max(0.001) * 100.0).round() / 100.0;
        if !args.json {
            println!("{}\n{}", report::line(&coarse), report::line(&fine));
            println!("{what}: {:.2} s against {:.2} s, {faster} times faster\n", quick.seconds, slow.seconds);
        }
        all.push(Compared { what, coarse, coarse_seconds: slow.seconds, fine, fine_seconds: quick.seconds, faster });
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    let exact = |row: &Row| row.sold == row.stock && row.stock_left == 0;
    Ok(all.iter().all(|compared| exact(&compared.coarse) && exact(&compared.fine)))
}
