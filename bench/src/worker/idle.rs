//! `idle`: many that wait for one holder; `hold`: many locks held at once. Both say how much processor time it took.

use super::params::Params;
use super::{Failure, cpu_secs, runtime, say};
use crate::impls::Client;
use serde_json::json;
use std::time::{Duration, Instant};

pub(crate) fn idle(name: &str, addr: &str, params: &Params) -> Result<(), Failure> {
    let waiters: usize = params.get("waiters", 100)?;
    let window = Duration::from_secs_f64(params.get("secs", 5.0)?);
    let lock = format!("{}-idle", params.text("tag", "bench"));
    runtime(2)?.block_on(async {
        let client = Client::connect(name, addr).await?;
        let holder = client.lock(&lock).await?;
        let tasks: Vec<_> = (0..waiters)
            .map(|_| {
                let (client, lock) = (client.clone(), lock.clone());
                tokio::spawn(async move { client.lock(&lock).await?.release().await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(3)).await;
        say(&json!({"event": "ready"}));
        let (before, started) = (cpu_secs(), Instant::now());
        tokio::time::sleep(window).await;
        let cpu = (cpu_secs() - before) / started.elapsed().as_secs_f64();
        say(&json!({"event": "done"}));
        let started = Instant::now();
        holder.release().await?;
        let (mut acquired, mut errors) = (0, 0);
        for task in tasks {
            match task.await? {
                Ok(()) => acquired += 1,
                Err(_) => errors += 1,
            }
        }
        say(&json!({
            "event": "result", "impl": name, "drain_secs": started.elapsed().as_secs_f64(), "acquired": acquired,
            "errors": errors, "cpu_share": cpu,
        }));
        client.close().await;
        Ok(())
    })
}

pub(crate) fn hold(name: &str, addr: &str, params: &Params) -> Result<(), Failure> {
    let locks: usize = params.get("locks", 1000)?;
    let window = Duration::from_secs_f64(params.get("secs", 5.0)?);
    let tag = params.text("tag", "bench");
    runtime(2)?.block_on(async {
        let client = Client::connect(name, addr).await?;
        let started = Instant::now();
        let mut held = Vec::with_capacity(locks);
        for i in 0..locks {
            held.push(client.lock(&format!("{tag}-hold-{i}")).await?);
        }
        let acquire_secs = started.elapsed().as_secs_f64();
        say(&json!({"event": "ready"}));
        let (before, started) = (cpu_secs(), Instant::now());
        tokio::time::sleep(window).await;
        let cpu = (cpu_secs() - before) / started.elapsed().as_secs_f64();
        say(&json!({"event": "done"}));
        let still = held.iter().filter(|held| !held.is_lost()).count();
        for held in held {
            held.release().await?;
        }
        say(&json!({"event": "result", "impl": name, "held": still, "acquire_secs": acquire_secs, "cpu_share": cpu}));
        client.close().await;
        Ok(())
    })
}
