//! What only shows from inside: that a holder's library thread is told of a ticket that was put out.

use super::*;
use crate::line::WHOLE;
use crate::store::{Kind, OwnerId};
use std::sync::mpsc;

fn mutex(name: &str) -> Enter {
    Enter {
        place: Place { name: Name::new("", name).unwrap(), id: TicketId::new() },
        kind: Kind::Mutex,
        weight: WHOLE,
        capacity: WHOLE,
        lease: Duration::from_secs(30),
        queue: true,
        owner: OwnerId::new(),
        held: Vec::new(),
        note: Note::default(),
    }
}

/// A store whose doubts can be heard.
fn open(file: &Path) -> (SqliteStore, mpsc::Receiver<Option<TicketId>>) {
    let store = SqliteStore::open(file).unwrap();
    let (sender, doubts) = mpsc::channel();
    let doubt = Arc::new(move |id| sender.send(id).unwrap());
    store.attach(Host { runtime: tokio::runtime::Handle::current(), doubt });
    (store, doubts)
}

async fn enter(store: &SqliteStore, ticket: &Enter) -> Entered {
    store.enter(std::slice::from_ref(ticket)).await.unwrap().remove(0)
}

async fn lock(store: &SqliteStore, ticket: &Enter) -> u64 {
    match enter(store, ticket).await {
        Entered::Admitted { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_holder_that_never_waited_learns_within_a_second_that_it_was_put_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let (holder, doubts) = open(&file);
    let (kept, lost) = (mutex("kept"), mutex("lost"));
    lock(&holder, &kept).await;
    let token = lock(&holder, &lost).await;
    assert!(!holder.client.post.is_open(), "it has nothing to wait for");
    let other = SqliteStore::open(&file).unwrap();
    assert_eq!(other.expel(&lost.place.name, token).await.unwrap(), Presence::There);
    let told = doubts.recv_timeout(Duration::from_millis(1500)).expect("told within a tick");
    assert_eq!(told, Some(lost.place.id));
    assert!(!folder.path().join("locks.db.wake").exists());
}

#[tokio::test]
async fn a_holder_with_a_socket_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let (holder, doubts) = open(&file);
    let held = mutex("held");
    let token = lock(&holder, &held).await;
    assert!(matches!(enter(&holder, &mutex("held")).await, Entered::Queued { .. }));
    assert!(holder.client.post.is_open());
    let other = SqliteStore::open(&file).unwrap();
    let start = std::time::Instant::now();
    other.expel(&held.place.name, token).await.unwrap();
    assert_eq!(doubts.recv_timeout(Duration::from_secs(5)), Ok(Some(held.place.id)));
    // By a datagram as a rule, at once; a lost one is made up for by the tick of 0.9 s.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // By its own hand it is told as well.
    let held = mutex("other");
    let token = lock(&holder, &held).await;
    holder.expel(&held.place.name, token).await.unwrap();
    assert_eq!(doubts.recv_timeout(Duration::from_secs(5)), Ok(Some(held.place.id)));
}

#[tokio::test]
async fn a_ticket_that_was_left_is_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let (store, doubts) = open(&folder.path().join("locks.db"));
    let held = mutex("x");
    lock(&store, &held).await;
    assert_eq!(store.leave(std::slice::from_ref(&held.place)).await.unwrap(), [Presence::There]);
    assert!(store.client.mine().tickets.is_empty(), "nothing is remembered of it");
    assert_eq!(doubts.try_recv(), Err(mpsc::TryRecvError::Empty));
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _doubts) = open(&folder.path().join("locks.db"));
    let (held, waiting) = (mutex("x"), mutex("x"));
    lock(&store, &held).await;
    enter(&store, &waiting).await;
    let until = store.client.clock.now().after(Duration::from_secs(20));
    let (waited, ()) = tokio::join!(store.wait(&waiting.place, until), store.close());
    assert_eq!(waited.unwrap_err().message(), "the store is closed");
    let error = store.enter(&[mutex("y")]).await.unwrap_err();
    assert_eq!(error.message(), "the store is closed");
    assert_eq!(std::fs::read_dir(folder.path().join("locks.db.wake")).unwrap().count(), 0);
}
