//! Replies and messages that come late: after the caller's patience, or after the lease.

use crate::proxy::Proxy;
use crate::server::Server;
use crate::support::{client, enter, inside, place, reader, soon, stands, ticket, within};
use fencelock::store::{Place, Presence, Renew, Renewed, TicketId, Upgraded};
use fencelock::{Effect, Error, ErrorKind, Options, State};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

fn unknown<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.expect_err("its reply is held back");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
}

/// Each verb is carried out, its reply does not come, and asking again tells what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_whose_reply_is_late_can_be_repeated() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (_locks, store) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    let renewal = |place: &Place| [Renew { place: place.clone(), lease: Duration::from_secs(40), at_least: None }];
    let [entering, renewing, changing, upgrading, leaving, expelling] = ["a", "b", "c", "d", "e", "f"].map(reader);
    let mut tokens = Vec::new();
    for there in [&renewing, &changing, &upgrading, &leaving, &expelling] {
        tokens.push(inside(&enter(&store, there).await.unwrap()));
    }
    let new = Place { name: upgrading.place.name.clone(), id: TicketId::new() };
    // So that no script is new to the server: only by its hash does the proxy know one.
    store.renew(&renewal(&place("x"))).await.unwrap();
    store.change(&place("x"), Some(1), None).await.unwrap();
    store.upgrade(&place("x"), TicketId::new()).await.unwrap();
    store.leave(&[place("x")]).await.unwrap();
    store.expel(&place("x").name, 1).await.unwrap();

    proxy.hold_replies(true);
    let (renew_it, leave_it) = (renewal(&renewing.place), [leaving.place.clone()]);
    let (entered, renewed, changed, upgraded, left, expelled) = tokio::join!(
        enter(&store, &entering),
        store.renew(&renew_it),
        store.change(&changing.place, Some(1), None),
        store.upgrade(&upgrading.place, new.id),
        store.leave(&leave_it),
        store.expel(&expelling.place.name, tokens[4]),
    );
    unknown(entered);
    unknown(renewed);
    unknown(changed);
    unknown(upgraded);
    unknown(left);
    unknown(expelled);
    let line = direct.inspect(&entering.place.name).await.unwrap();
    assert_eq!(line.inside.len(), 1, "carried out nevertheless");
    proxy.hold_replies(false);

    let token = inside(&enter(&store, &entering).await.unwrap());
    assert_eq!(line.inside[0].token, Some(token), "entered once");
    assert!(matches!(store.renew(&renew_it).await.unwrap()[0], Renewed::There { .. }));
    assert_eq!(store.change(&changing.place, Some(1), None).await.unwrap(), Presence::There);
    let Upgraded::Admitted { token } = store.upgrade(&upgrading.place, new.id).await.unwrap() else {
        panic!("refused")
    };
    let line = direct.inspect(&new.name).await.unwrap();
    assert_eq!((line.inside.len(), line.inside[0].token), (1, Some(token)), "upgraded once");
    assert_eq!(store.leave(&leave_it).await.unwrap(), [Presence::Gone], "the first one did it");
    assert_eq!(store.expel(&expelling.place.name, tokens[4]).await.unwrap(), Presence::Gone);
    for gone in ["e", "f"] {
        stands(&direct, gone, 0, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_that_never_arrived_can_be_repeated() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, store) = client(&proxy.url()).await;
    let first = ticket("a");
    proxy.lose_next_request();
    unknown(enter(&store, &first).await);
    stands(&store, "a", 0, 0).await;
    inside(&enter(&store, &first).await.unwrap());
    let place = [first.place];
    proxy.lose_next_request();
    unknown(store.leave(&place).await);
    stands(&store, "a", 1, 0).await;
    assert_eq!(store.leave(&place).await.unwrap(), [Presence::There]);
    for _ in 0..5 {
        proxy.lose_next_request();
        let guard = within(SOON, "the second try", locks.mutex("a").lock()).await.unwrap();
        proxy.lose_next_request();
        guard.release().await.unwrap();
        stands(&store, "a", 0, 0).await;
    }
}

/// No guard for it, however it ends; and what it left behind lasts no longer than its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_comes_after_the_lease_makes_no_guard() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, _) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let lease = Duration::from_millis(800);
    let mut last = 0;
    for _ in 0..3 {
        proxy.hold_replies(true);
        let mutex = locks.mutex("a");
        let locking = tokio::spawn(async move { mutex.lock_with(Options::new().lease(lease)).await });
        stands(&direct, "a", 1, 0).await;
        let ghost = direct.inspect(&place("a").name).await.unwrap();
        if let Some(ghost) = ghost.inside.first() {
            assert!(ghost.expires_in <= Some(lease), "{ghost:?}");
        }
        let error = within(SOON, "giving up", locking).await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
        // Somebody else comes: at the latest when the ghost's lease has ended. Only then do the replies arrive.
        let next = ticket("a");
        let token = match enter(&direct, &next).await.unwrap() {
            fencelock::store::Entered::Admitted { token, .. } => token,
            _ => {
                let since = Instant::now();
                let told = direct.wait(&next.place, fencelock::clock::Moment::FAR);
                let told = within(SOON, "the end of the ghost's lease", told).await.unwrap();
                assert!(since.elapsed() < lease + Duration::from_secs(2), "a ghost for {:?}", since.elapsed());
                let fencelock::store::Waited::Admitted { token } = told else { panic!("{told:?}") };
                token
            }
        };
        assert!(token > last);
        last = token;
        proxy.hold_replies(false);
        // What the library still sends to clean up does not touch it.
        within(SOON, "the clean-up", locks.close()).await;
        let line = direct.inspect(&next.place.name).await.unwrap();
        assert_eq!((line.inside.len(), line.inside[0].token), (1, Some(token)));
        direct.leave(&[next.place]).await.unwrap();
    }
}

/// The server goes on renewing; who holds it cannot know that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_are_confirmed_too_late_do_not_bring_a_hold_back() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, _) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    let lease = Duration::from_millis(900);
    let guard = locks.mutex("a").lock_with(Options::new().lease(lease)).await.unwrap();
    proxy.hold_messages(true);
    within(SOON, "the deadline", guard.lost()).await;
    let next = ticket("a");
    let queued = enter(&direct, &next).await.unwrap();
    proxy.hold_messages(false);
    if let fencelock::store::Entered::Queued { .. } = queued {
        let told = direct.wait(&next.place, fencelock::clock::Moment::FAR);
        within(SOON, "the end of what is left of the lease", told).await.unwrap();
    }
    assert_eq!(guard.state(), State::Lost);
    drop(guard);
    within(SOON, "the clean-up", locks.close()).await;
    stands(&direct, "a", 1, 0).await;
}

/// A grant for a ticket that has lapsed in the meantime is nobody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_heard_after_the_lease_makes_no_guard() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, _) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    let holder = ticket("a");
    inside(&enter(&direct, &holder).await.unwrap());
    let mutex = locks.mutex("a");
    let options = Options::new().lease(Duration::from_millis(900));
    let waiting = tokio::spawn(async move { mutex.lock_with(options).await });
    stands(&direct, "a", 1, 1).await;
    proxy.hold_messages(true);
    let next = ticket("a");
    enter(&direct, &next).await.unwrap();
    direct.leave(&[holder.place]).await.unwrap();
    // The waiter is let in, told so in vain, and lapses.
    let told = within(SOON, "the end of its lease", direct.wait(&next.place, fencelock::clock::Moment::FAR)).await;
    let fencelock::store::Waited::Admitted { token } = told.unwrap() else { panic!("not inside") };
    assert!(!waiting.is_finished());
    proxy.hold_messages(false);
    // It has heard by now, or will: it is in the queue again, behind the one that is inside.
    stands(&direct, "a", 1, 1).await;
    assert!(!waiting.is_finished());
    direct.leave(&[next.place]).await.unwrap();
    let guard = within(SOON, "its turn", waiting).await.unwrap().unwrap();
    assert!(guard.token().number() > token);
    guard.release().await.unwrap();
}

/// A repeated release hits its own ticket or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_is_late_takes_nothing_from_the_next_one() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, _) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    proxy.hold_replies(true);
    let releasing = tokio::spawn(async move { guard.release().await });
    stands(&direct, "a", 0, 0).await;
    let next = ticket("a");
    let token = inside(&enter(&direct, &next).await.unwrap());
    let _ = within(SOON, "the release", releasing).await.unwrap();
    proxy.hold_replies(false);
    within(SOON, "the clean-up", locks.close()).await;
    let line = direct.inspect(&next.place.name).await.unwrap();
    assert_eq!((line.inside.len(), line.inside[0].token), (1, Some(token)));
}

/// A message that gets lost on a connection that lives: the next renewal, or the slow tick, finds the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_message_is_made_up_for() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, _) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    let holder = ticket("a");
    inside(&enter(&direct, &holder).await.unwrap());
    let mutex = locks.mutex("a");
    let options = Options::new().lease(Duration::from_secs(6));
    let waiting = tokio::spawn(async move { mutex.lock_with(options).await });
    stands(&direct, "a", 1, 1).await;
    proxy.lose_next_message();
    direct.leave(&[holder.place]).await.unwrap();
    soon("the loss", || proxy.has_lost_a_message()).await;
    let guard = within(Duration::from_secs(16), "the slow tick", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
}
