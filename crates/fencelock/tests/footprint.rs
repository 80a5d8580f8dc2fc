//! What holding many locks costs in memory: resident bytes per lock, the memory store's own share taken off.
#![cfg(target_os = "linux")]

use fencelock::Locks;
use fencelock::line::WHOLE;
use fencelock::name::Name;
use fencelock::store::memory::MemoryStore;
use fencelock::store::{Enter, Kind, Note, OwnerId, Place, Store, TicketId};
use std::time::Duration;

const LOCKS: usize = 10_000;

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn ten_thousand_held_locks_cost_less_than_two_kilobytes_each() {
    let before = resident_bytes();
    let store = MemoryStore::new();
    let (owner, note) = (OwnerId::new(), Note { host: "host".into(), identity: "host".into(), ..Note::default() });
    for i in 0..LOCKS {
        let ticket = Enter {
            place: Place { name: Name::new("", &format!("shop/stock/{i}")).unwrap(), id: TicketId::new() },
            kind: Kind::Mutex,
            weight: WHOLE,
            capacity: WHOLE,
            lease: Duration::from_secs(30),
            queue: true,
            owner,
            held: Vec::new(),
            note: note.clone(),
        };
        store.enter(&[ticket]).await.unwrap();
    }
    let of_the_store = resident_bytes() - before;

    let locks = Locks::with_store(MemoryStore::new());
    let before = resident_bytes();
    let mut guards = Vec::with_capacity(LOCKS);
    for i in 0..LOCKS {
        guards.push(locks.mutex(&format!("shop/stock/{i}")).lock().await.unwrap());
    }
    let each = (resident_bytes() - before).saturating_sub(of_the_store) / LOCKS;
    assert!(each < 2048, "{each} bytes for each lock (the store's own share is {})", of_the_store / LOCKS);
    eprintln!("{each} bytes for each lock beside the store's own {}", of_the_store / LOCKS);
    drop((guards, store));
}
