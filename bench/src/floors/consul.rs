//! The floor below the Consul store: the barest correct calls, with the store's settings.

use crate::worker::Failure;
use reqwest::Client;
use serde_json::{Value, json};

/// One client with its connections, and a session that is long enough for a run.
#[derive(Clone)]
pub(crate) struct FloorConsul {
    client: Client,
    base: String,
    session: String,
}

impl FloorConsul {
    pub(crate) async fn connect(addr: &str) -> Result<FloorConsul, Failure> {
        let base = format!("http://{}", addr.trim_start_matches("consul://"));
        let client = Client::builder().no_proxy().tcp_nodelay(true).build()?;
        let wanted = json!({"TTL": "600s", "Behavior": "delete", "LockDelay": "0s"}).to_string();
        let made = client.put(format!("{base}/v1/session/create")).body(wanted).send().await?.text().await?;
        let made: Value = serde_json::from_str(&made)?;
        let session = made["ID"].as_str().ok_or("the server made no session")?.to_string();
        Ok(FloorConsul { client, base, session })
    }

    async fn put(&self, name: &str, act: &str) -> Result<bool, Failure> {
        let path = format!("{}/v1/kv/{name}?{act}={}", self.base, self.session);
        Ok(self.client.put(path).send().await?.text().await?.trim() == "true")
    }

    /// Takes the key if nobody has it.
    pub(crate) async fn acquire(&self, name: &str) -> Result<bool, Failure> {
        self.put(name, "acquire").await
    }

    /// Gives the key back.
    pub(crate) async fn release(&self, name: &str) -> Result<(), Failure> {
        self.put(name, "release").await.map(drop)
    }
}
