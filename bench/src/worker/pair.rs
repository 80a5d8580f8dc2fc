//! `pair`: workers that lock, hold and release in a loop.

use super::params::Params;
use super::{Failure, runtime, say};
use crate::impls::Client;
use hdrhistogram::Histogram;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Plan {
    names: String,
    tag: String,
    hold: Duration,
}

/// What one worker did in the window.
struct Tally {
    waits: Histogram<u64>,
    errors: u64,
    first_error: Option<String>,
}

pub(crate) fn run(name: &str, addr: &str, params: &Params) -> Result<(), Failure> {
    let threads: usize = params.get("threads", 1)?;
    let window = Duration::from_secs_f64(params.get("secs", 3.0)?);
    let warm = Duration::from_secs_f64(params.get("warm", 1.0)?);
    let plan = Arc::new(Plan {
        names: params.text("names", "own").to_string(),
        tag: params.text("tag", "bench").to_string(),
        hold: Duration::from_micros(params.get("hold_us", 0)?),
    });
    if plan.names != "own" && plan.names != "one" && plan.names.parse::<u32>().is_err() {
        return Err(format!("names={} is neither own, one nor a number", plan.names).into());
    }
    runtime(threads)?.block_on(async {
        let client = Client::connect(name, addr).await?;
        let mine = Arc::new(Plan { names: "own".into(), tag: format!("{}-warm", plan.tag), hold: Duration::ZERO });
        let mut clients = Vec::with_capacity(threads);
        for _ in 0..threads {
            clients.push(client.handle().await?);
        }
        measure(&clients, warm, &mine).await?;
        say(&json!({"event": "ready"}));
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        let started = Instant::now();
        let tallies = measure(&clients, window, &plan).await?;
        report(name, started.elapsed(), &tallies);
        client.close().await;
        Ok(())
    })
}

async fn measure(clients: &[Client], window: Duration, plan: &Arc<Plan>) -> Result<Vec<Tally>, Failure> {
    let end = Instant::now() + window;
    let each = clients.iter().enumerate();
    let workers: Vec<_> =
        each.map(|(worker, client)| tokio::spawn(work(client.clone(), worker, end, plan.clone()))).collect();
    let mut tallies = Vec::new();
    for worker in workers {
        tallies.push(worker.await?);
    }
    Ok(tallies)
}

async fn work(client: Client, worker: usize, end: Instant, plan: Arc<Plan>) -> Tally {
    let waits = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds");
    let mut tally = Tally { waits, errors: 0, first_error: None };
    let own = format!("{}-{}-{worker}", plan.tag, std::process::id());
    let many: Option<u32> = plan.names.parse().ok();
    loop {
        let called = Instant::now();
        if called >= end {
            return tally;
        }
        let cycle = async {
            let guard = match (plan.names.as_str(), many) {
                ("own", _) => client.lock(&own).await?,
                (_, Some(many)) => client.lock(&format!("{}-n{}", plan.tag, fastrand::u32(0..many))).await?,
                _ => client.lock(&format!("{}-one", plan.tag)).await?,
            };
            let waited = called.elapsed();
            if !plan.hold.is_zero() {
                tokio::time::sleep(plan.hold).await;
            }
            guard.release().await?;
            Ok::<Duration, Failure>(waited)
        };
        match cycle.await {
            Ok(waited) => {
                tally.waits.saturating_record(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX).max(1));
                // Whoever never waits never yields: the others would starve.
                tokio::task::coop::consume_budget().await;
            }
            Err(error) => {
                tally.errors += 1;
                tally.first_error.get_or_insert_with(|| error.to_string());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn report(name: &str, took: Duration, tallies: &[Tally]) {
    let mut all: Histogram<u64> = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds");
    for tally in tallies {
        all.add(&tally.waits).expect("the same bounds");
    }
    let per_worker = || tallies.iter().map(|tally| tally.waits.len());
    say(&json!({
        "event": "result", "impl": name, "cycles": all.len(), "secs": took.as_secs_f64(),
        "per_worker_min": per_worker().min(), "per_worker_max": per_worker().max(),
        "p50_us": all.value_at_quantile(0.5), "p90_us": all.value_at_quantile(0.9), "p99_us": all.value_at_quantile(0.99),
        "max_us": all.max(), "errors": tallies.iter().map(|tally| tally.errors).sum::<u64>(),
        "first_error": tallies.iter().find_map(|tally| tally.first_error.clone()),
    }));
}
