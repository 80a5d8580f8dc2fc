//! What the tests share: tickets by hand, and waiting for something with a limit.

use fencelock::line::WHOLE;
use fencelock::name::Name;
use fencelock::store::{Enter, Entered, Kind, Note, OwnerId, Place, Store, TicketId};
use fencelock::{Locks, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) fn place(name: &str) -> Place {
    Place { name: Name::new("", name).expect("a good name"), id: TicketId::new() }
}

/// A mutex's ticket that queues.
pub(crate) fn ticket(name: &str) -> Enter {
    Enter {
        place: place(name),
        kind: Kind::Mutex,
        weight: WHOLE,
        capacity: WHOLE,
        lease: LEASE,
        queue: true,
        owner: OwnerId::new(),
        held: Vec::new(),
        note: Note { host: "host".into(), pid: 1, identity: "test".into(), reason: None, value: None },
    }
}

pub(crate) fn reader(name: &str) -> Enter {
    Enter { kind: Kind::Read, weight: 1, ..ticket(name) }
}

pub(crate) async fn enter(store: &Arc<dyn Store>, ticket: &Enter) -> Result<Entered> {
    Ok(store.enter(std::slice::from_ref(ticket)).await?.remove(0))
}

/// The number of a ticket that must be inside.
pub(crate) fn inside(entered: &Entered) -> u64 {
    match entered {
        Entered::Admitted { token, .. } => *token,
        other => panic!("not inside: {other:?}"),
    }
}

pub(crate) fn queued(entered: &Entered) -> u64 {
    match entered {
        Entered::Queued { token: Some(token), .. } => *token,
        other => panic!("not queued: {other:?}"),
    }
}

/// A client of its own: `Locks` brings the library thread, the store its verbs.
pub(crate) async fn client(url: &str) -> (Locks, Arc<dyn Store>) {
    let locks = Locks::connect(url).await.expect("the server can be reached");
    let store = locks.store().clone();
    (locks, store)
}

/// Waits until so many are inside and so many wait, and until the server can be asked.
pub(crate) async fn stands(store: &Arc<dyn Store>, name: &str, inside: usize, waiting: usize) {
    let name = place(name).name;
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        let line = store.inspect(&name).await;
        if line.as_ref().is_ok_and(|line| (line.inside.len(), line.waiting.len()) == (inside, waiting)) {
            return;
        }
        assert!(Instant::now() < limit, "not {inside} inside and {waiting} waiting: {line:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits for something that must come true soon.
pub(crate) async fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < limit, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Something that must end within this.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("{what} took longer than {limit:?}"))
}

/// The source in whose head the store's needs are told.
pub(crate) fn documented() -> &'static str {
    include_str!("../../src/store/redis.rs")
}

/// The command there that makes a user with the least rights.
pub(crate) fn least_rights() -> Vec<&'static str> {
    let recipe: Vec<&str> = documented()
        .lines()
        .skip_while(|line| !line.contains("ACL SETUSER locks"))
        .take_while(|line| !line.contains("```"))
        .flat_map(|line| line.trim_start_matches("//!").split_whitespace())
        .collect();
    assert!(recipe.len() > 20, "{recipe:?}");
    recipe
}
