//! The measured locks.

use crate::worker::Failure;
use rslock::{LockGuard, LockManager};
use std::time::Duration;

/// One client.
#[derive(Clone)]
pub(crate) struct Client(LockManager);

/// One held lock.
pub(crate) struct Held(LockGuard);

impl Client {
    pub(crate) async fn connect(name: &str, addr: &str) -> Result<Client, Failure> {
        let mut manager = LockManager::new(vec![format!("redis://{addr}")]);
        match name {
            // It looks again after 0 to 200 ms.
            "rslock" => {}
            "rslock-fast" => manager.set_retry(3, Duration::from_millis(2)),
            _ => return Err(format!("no implementation is called {name:?}").into()),
        }
        Ok(Client(manager))
    }

    pub(crate) async fn lock(&self, name: &str) -> Result<Held, Failure> {
        Ok(Held(self.0.acquire(name, Duration::from_secs(30)).await?))
    }

    pub(crate) async fn handle(&self) -> Result<Client, Failure> {
        Ok(self.clone())
    }

    pub(crate) async fn close(&self) {}
}

impl Held {
    /// It does not know.
    pub(crate) fn is_lost(&self) -> bool {
        false
    }

    pub(crate) async fn release(self) -> Result<(), Failure> {
        self.0.release().await;
        Ok(())
    }
}
