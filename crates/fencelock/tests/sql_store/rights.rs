//! Everything that a user of a store does, to see whether its rights are enough.

use fencelock::{ErrorKind, Locks};
use futures_util::StreamExt;

/// Does it, by rows and by session.
pub(crate) async fn use_all(url: &str) {
    let mode = |mode: &str| format!("{url}{}mode={mode}", if url.contains('?') { '&' } else { '?' });
    for url in [mode("rows"), mode("session")] {
        let locks = Locks::connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let other = Locks::connect(&url).await.unwrap();
        let mut hints = other.store().watch(fencelock::store::Scope::Prefix("used".into())).await.unwrap();
        let guard = locks.mutex("used").lock().await.unwrap();
        assert_eq!(other.mutex("used").try_lock().await.unwrap_err().kind(), ErrorKind::Held);
        let waiting = tokio::spawn({
            let mutex = other.mutex("used");
            async move { mutex.lock().await }
        });
        assert!(hints.next().await.is_some());
        assert_eq!(locks.list("used").await.unwrap().len(), 1);
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
    let locks = Locks::connect(&mode("rows")).await.unwrap();
    let reader = locks.rwlock("used/rw").read().await.unwrap();
    let Ok(writer) = reader.try_upgrade().await else { panic!("nobody else reads") };
    let reader = writer.downgrade().await.unwrap();
    assert!(locks.break_ticket("used/rw", reader.token()).await.unwrap());
    let register = locks.register("used");
    let version = register.set("1").await.unwrap();
    assert!(register.delete_if(version).await.unwrap());
    let permits = locks.semaphore("used/permits", 3).acquire_many(2).await.unwrap();
    permits.release().await.unwrap();
}
