//! What becomes of locks when connections, replies, scripts or the server's data are lost.
//! `docs/redis.md` has the table of verdicts.

use crate::proxy::Proxy;
use crate::server::Server;
use crate::support::{client, enter, inside, place, queued, reader, soon, stands, ticket, within};
use fencelock::clock::Moment;
use fencelock::store::{Place, Presence, Renew, Renewed, TicketId, Upgraded, Waited};
use fencelock::{Effect, ErrorKind, Locks, Options, State};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_whose_reply_is_lost_can_be_repeated() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (_locks, store) = client(&proxy.url()).await;
    // So that no script is new to the server.
    let warm = reader("warm");
    enter(&store, &warm).await.unwrap();
    let renewal = |place: &Place| [Renew { place: place.clone(), lease: Duration::from_secs(40), at_least: None }];
    store.renew(&renewal(&warm.place)).await.unwrap();
    store.change(&warm.place, Some(1), None).await.unwrap();
    store.upgrade(&warm.place, TicketId::new()).await.unwrap();
    store.expel(&warm.place.name, 1).await.unwrap();
    store.leave(std::slice::from_ref(&warm.place)).await.unwrap();

    let first = reader("a");
    macro_rules! lost {
        ($call:expr) => {{
            let before = proxy.lost_replies();
            proxy.lose_next_reply();
            let error = $call.await.expect_err("its reply is lost");
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
            assert_eq!(proxy.lost_replies(), before + 1);
            $call.await.expect("the second time it arrives")
        }};
    }
    let token = inside(&lost!(enter(&store, &first)));
    let line = store.inspect(&first.place.name).await.unwrap();
    assert_eq!((line.inside.len(), line.inside[0].token), (1, Some(token)), "entered once");
    let renewed = lost!(store.renew(&renewal(&first.place)));
    assert!(matches!(renewed[0], Renewed::There { .. }));
    assert_eq!(lost!(store.change(&first.place, Some(1), None)), Presence::There);
    let new = Place { name: first.place.name.clone(), id: TicketId::new() };
    let Upgraded::Admitted { token: upgraded } = lost!(store.upgrade(&first.place, new.id)) else { panic!("refused") };
    let line = store.inspect(&new.name).await.unwrap();
    assert_eq!((line.inside.len(), line.inside[0].token), (1, Some(upgraded)), "upgraded once");
    assert_eq!(lost!(store.leave(std::slice::from_ref(&new))), [Presence::Gone], "the first one did it");
    let last = ticket("a");
    let token = inside(&enter(&store, &last).await.unwrap());
    assert_eq!(lost!(store.expel(&last.place.name, token)), Presence::Gone);
    assert_eq!(store.inspect(&new.name).await.unwrap().capacity, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_reply_is_lost_is_held_once_and_released() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, store) = client(&proxy.url()).await;
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    for _ in 0..5 {
        proxy.lose_next_reply();
        let guard = within(SOON, "the second try", locks.mutex("a").lock()).await.unwrap();
        let line = store.inspect(&place("a").name).await.unwrap();
        assert_eq!((line.inside.len(), line.waiting.len()), (1, 0), "no ghost");
        assert_eq!(line.inside[0].token, Some(guard.token().into()));
        proxy.lose_next_reply();
        // The library goes on until it is confirmed.
        let _ = guard.release().await;
        within(SOON, "the release", locks.close()).await;
        assert_eq!(store.inspect(&place("a").name).await.unwrap().capacity, 0, "free");
    }
    assert_eq!(proxy.lost_replies(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_was_published_to_nobody_is_found_after_the_reconnect() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, _) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    for _ in 0..5 {
        let holder = ticket("a");
        inside(&enter(&direct, &holder).await.unwrap());
        let mutex = locks.mutex("a");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        stands(&direct, "a", 1, 1).await;
        proxy.refuse(true);
        proxy.cut_subscribers();
        soon("no subscriber but one", || inboxes(&server) == 1).await;
        direct.leave(&[holder.place]).await.unwrap();
        assert!(!waiting.is_finished());
        proxy.refuse(false);
        let guard = within(SOON, "the look", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// The grant was published before anybody listened again, and the answer to the enter comes after that: neither may be relied on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_queued_while_nobody_listened_is_looked_at_once_its_answer_is_there() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (locks, _) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    for _ in 0..3 {
        let holder = ticket("a");
        inside(&enter(&direct, &holder).await.unwrap());
        proxy.refuse(true);
        proxy.cut_subscribers();
        soon("no subscriber but one", || inboxes(&server) == 1).await;
        proxy.hold_replies(true);
        let mutex = locks.mutex("a");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        stands(&direct, "a", 1, 1).await;
        direct.leave(&[holder.place]).await.unwrap();
        proxy.refuse(false);
        soon("two subscribers", || inboxes(&server) == 2).await;
        // Nothing to wait for: the client has to read the server's acknowledgement, or the test shows nothing.
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.hold_replies(false);
        let guard = within(SOON, "the look", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

fn inboxes(server: &Server) -> usize {
    server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", "fencelock:inbox:*"]).len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_cost_no_lock_and_no_place() {
    let server = Server::start();
    let (locks, store) = client(&server.url()).await;
    let guard = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(1))).await.unwrap();
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    stands(&store, "a", 1, 1).await;
    for kind in ["normal", "pubsub"] {
        let _: u64 = server.command(&["CLIENT", "KILL", "TYPE", kind]);
    }
    let token = guard.token();
    soon("renewals on a new connection", || guard.remaining() > Duration::from_millis(700)).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_ne!(guard.state(), State::Lost, "renewals go on");
    guard.release().await.unwrap();
    let next = within(SOON, "the hand-off", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    drop(next);
    locks.close().await;
    assert_eq!(store.inspect(&place("a").name).await.unwrap().capacity, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_sent_again() {
    let server = Server::start();
    let (locks, _) = client(&server.url()).await;
    for _ in 0..3 {
        let _: String = server.command(&["SCRIPT", "FLUSH"]);
        let guard = locks.mutex("a").lock().await.unwrap();
        let _: String = server.command(&["SCRIPT", "FLUSH"]);
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_holders_are_lost_and_tokens_grow() {
    let server = Server::start();
    let (locks, _) = client(&server.url()).await;
    let guard = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(1))).await.unwrap();
    let _: String = server.command(&["FLUSHALL"]);
    let other = Locks::connect(&server.url()).await.unwrap();
    let next = within(SOON, "the free lock", other.mutex("a").lock()).await.unwrap();
    assert!(next.token() > guard.token(), "the fence rejects the first one");
    within(Duration::from_secs(1), "the next renewal", guard.lost()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_without_data_holders_are_lost_and_tokens_grow() {
    let mut server = Server::start();
    let (locks, _) = client(&server.url()).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    server.restart();
    let other = Locks::connect(&server.url()).await.unwrap();
    let next = within(SOON, "the free lock", other.mutex("a").lock()).await.unwrap();
    assert!(next.token() > guard.token());
    // Long before its lease ends: the client is connected again and looks.
    within(SOON, "being told", guard.lost()).await;
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    stands(other.store(), "a", 1, 1).await;
    next.release().await.unwrap();
    drop(within(SOON, "the hand-off", waiting).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_ends_holds_at_their_deadline() {
    let server = Server::start();
    let (locks, store) = client(&server.url()).await;
    let lease = Duration::from_millis(600);
    let guard = locks.mutex("a").lock_with(Options::new().lease(lease)).await.unwrap();
    let since = Instant::now();
    server.signal("STOP");
    within(SOON, "the deadline", guard.lost()).await;
    // The deadline itself is before the lease's end; the rest is how late a busy machine wakes us.
    assert!(since.elapsed() <= lease + Duration::from_secs(1), "lost {:?} after the server stopped", since.elapsed());
    server.signal("CONT");
    drop(guard);
    let next = within(SOON, "the free lock", locks.mutex("a").lock()).await.unwrap();
    next.release().await.unwrap();
    locks.close().await;
    assert_eq!(store.inspect(&place("a").name).await.unwrap().capacity, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_a_cut_client_keeps_its_place_or_takes_a_new_one() {
    let server = Server::start();
    let proxy = Proxy::before(server.port()).await;
    let (_locks, store) = client(&proxy.url()).await;
    let (_other, direct) = client(&server.url()).await;
    let holder = ticket("a");
    inside(&enter(&direct, &holder).await.unwrap());
    let waiter = ticket("a");
    let token = queued(&enter(&store, &waiter).await.unwrap());
    proxy.cut_all();
    direct.leave(&[holder.place]).await.unwrap();
    let told = within(SOON, "the look", store.wait(&waiter.place, Moment::FAR)).await.unwrap();
    assert_eq!(told, Waited::Admitted { token });
}

/// Every future dropped at once or a little later: nothing stays behind but for what the library cleans up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_calls_leave_nothing_behind() {
    let server = Server::start();
    let (locks, store) = client(&server.url()).await;
    for i in 0..100u64 {
        let mutex = locks.mutex("a");
        let options = Options::new().lease(Duration::from_millis(500));
        let call = mutex.lock_with(options);
        let _ = tokio::time::timeout(Duration::from_micros(i * 20), call).await.map(drop);
    }
    within(SOON, "the clean-up", locks.close()).await;
    let name = place("a").name;
    let limit = Instant::now() + Duration::from_secs(2);
    while store.inspect(&name).await.unwrap().capacity != 0 {
        assert!(Instant::now() < limit, "somebody is still in the line");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
