//! `proof`: workers that add one to a plain number in a file under the lock. If the lock does what it says, none is missing at the end.

use super::params::Params;
use super::{Failure, runtime, say};
use crate::impls::Client;
use serde_json::json;
use std::path::PathBuf;

pub(crate) fn run(name: &str, addr: &str, params: &Params) -> Result<(), Failure> {
    let threads: usize = params.get("threads", 4)?;
    let rounds: usize = params.get("rounds", 20)?;
    let lock = format!("{}-proof", params.text("tag", "bench"));
    let file = PathBuf::from(params.text("file", ""));
    runtime(threads)?.block_on(async {
        let client = Client::connect(name, addr).await?;
        let mut clients = Vec::with_capacity(threads);
        for _ in 0..threads {
            clients.push(client.handle().await?);
        }
        say(&json!({"event": "ready"}));
        std::io::stdin().read_line(&mut String::new())?;
        let workers: Vec<_> = clients
            .into_iter()
            .map(|client| {
                let (lock, file) = (lock.clone(), file.clone());
                tokio::spawn(async move {
                    for _ in 0..rounds {
                        let held = client.lock(&lock).await?;
                        let number: u64 = std::fs::read_to_string(&file)?.trim().parse()?;
                        std::fs::write(&file, (number + 1).to_string())?;
                        held.release().await?;
                    }
                    Ok::<(), Failure>(())
                })
            })
            .collect();
        for worker in workers {
            worker.await??;
        }
        say(&json!({"event": "result", "impl": name, "added": threads * rounds}));
        client.close().await;
        Ok(())
    })
}
