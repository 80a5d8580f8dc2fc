//! A master, two replicas and three sentinels: the store follows the master, and tokens never go back.

use crate::server::Server;
use crate::support::within;
use fencelock::store::Presence;
use fencelock::{ErrorKind, Locks, MutexGuard, Options};
use std::time::{Duration, Instant};

struct Trio {
    master: Server,
    _replicas: [Server; 2],
    sentinels: Vec<Server>,
}

impl Trio {
    async fn start() -> Trio {
        let master = Server::start();
        let replicas = [Server::replica_of(&master), Server::replica_of(&master)];
        let sentinels: Vec<Server> = (0..3).map(|_| Server::sentinel_of(&master)).collect();
        let limit = Instant::now() + Duration::from_secs(30);
        for sentinel in &sentinels {
            loop {
                let facts: Vec<String> = sentinel.command(&["SENTINEL", "MASTER", "locks"]);
                let fact = |name: &str| facts.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
                if fact("num-other-sentinels").as_deref() == Some("2") && fact("num-slaves").as_deref() == Some("2") {
                    break;
                }
                assert!(Instant::now() < limit, "the sentinels do not agree");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Trio { master, _replicas: replicas, sentinels }
    }

    fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        format!("redis+sentinel://{}/locks", hosts.join(","))
    }
}

async fn lock_again(locks: &Locks, name: &str) -> MutexGuard {
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        match locks.mutex(name).lock_within(Duration::from_secs(10)).await {
            Ok(guard) => return guard,
            Err(error) => assert!(Instant::now() < limit, "no new master: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_followed_and_tokens_grow() {
    let mut trio = Trio::start().await;
    let locks = Locks::connect(&trio.url()).await.unwrap();
    let before = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    let token = before.token();
    // Replicated: it must survive.
    let copied: u64 = trio.master.command(&["WAIT", "2", "5000"]);
    assert_eq!(copied, 2);
    trio.master.kill();
    let other = lock_again(&locks, "b").await;
    assert_eq!(before.state(), fencelock::State::Safe, "its ticket is on the new master too");
    let again = Locks::connect(&trio.url()).await.unwrap();
    assert_eq!(again.mutex("a").try_lock().await.unwrap_err().kind(), ErrorKind::Held);
    let mutex = again.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    before.release().await.unwrap();
    // At once as a rule. A client that is told of the switch at this very moment may miss the message: then the slow tick
    // (15 s) finds it, which is what is promised.
    let next = within(Duration::from_secs(30), "the hand-off on the new master", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    drop((next, other));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_master_that_comes_back_is_not_asked_any_more() {
    let trio = Trio::start().await;
    let locks = Locks::connect(&trio.url()).await.unwrap();
    let first = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    trio.master.signal("STOP");
    let other = lock_again(&locks, "b").await;
    trio.master.signal("CONT");
    let newer = lock_again(&locks, "c").await;
    assert!(newer.token() > other.token() && newer.token() > first.token());
    // Whatever the old master says of it, the new one has the last word.
    let line = locks.inspect("c").await.unwrap();
    assert_eq!(line.inside.len(), 1, "written where it is read");
    let old: bool = trio.master.try_command(&["EXISTS", "fencelock:{c}"]).unwrap_or(false);
    assert!(!old, "not on the old master");
    assert!(locks.break_ticket("c", newer.token()).await.unwrap());
    assert_eq!(locks.store().expel(&crate::support::place("c").name, 1).await.unwrap(), Presence::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_sentinels_are_told() {
    let trio = Trio::start().await;
    let error = Locks::connect(&trio.url().replace("/locks", "/others")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("\"others\""), "{error}");
    for url in ["redis+sentinel://", "redis+sentinel://a:1", "redis+sentinel://:9/x", "redis+sentinel://u:secret@a:x/m"]
    {
        let error = Locks::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
        assert!(!format!("{error:?}").contains("secret"));
    }
    let one_down = trio.url().replace("redis+sentinel://", "redis+sentinel://127.0.0.1:1,");
    Locks::connect(&one_down).await.unwrap();
}
