//! Verb by verb: what the store says, through one client and through several.

use crate::server::Server;
use crate::support::{LEASE, client, enter, inside, place, queued, reader, ticket, within};
use fencelock::ErrorKind;
use fencelock::clock::Moment;
use fencelock::store::{Entered, Hint, Place, Presence, Renew, Renewed, Scope, TicketId, Upgraded, Waited};
use futures_util::StreamExt;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_out_and_in_again() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    let mut last = 0;
    for _ in 0..20 {
        let ticket = ticket("a");
        let token = inside(&enter(&store, &ticket).await.unwrap());
        assert!(token > last, "{token} after {last}");
        last = token;
        assert_eq!(store.leave(std::slice::from_ref(&ticket.place)).await.unwrap(), [Presence::There]);
        assert_eq!(store.leave(&[ticket.place]).await.unwrap(), [Presence::Gone]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_handed_to_the_next_in_line() {
    let server = Server::start();
    let (_a, first) = client(&server.url()).await;
    let (_b, second) = client(&server.url()).await;
    let holder = ticket("a");
    inside(&enter(&first, &holder).await.unwrap());
    first.leave(&[place("b")]).await.unwrap(); // the server knows the script from here on
    let waiters = [ticket("a"), ticket("a"), ticket("a")];
    let mut tokens = Vec::new();
    for waiter in &waiters {
        tokens.push(queued(&enter(&second, waiter).await.unwrap()));
    }
    assert!(tokens.is_sorted());
    let before = server.requests();
    let mut leaving = holder.place;
    for (waiter, token) in waiters.iter().zip(tokens) {
        first.leave(&[leaving]).await.unwrap();
        let told = within(Duration::from_secs(5), "the hand-off", second.wait(&waiter.place, Moment::FAR)).await;
        assert_eq!(told.unwrap(), Waited::Admitted { token });
        leaving = waiter.place.clone();
    }
    assert_eq!(server.requests() - before, 3, "one request for each release and none for the waiters");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_holder_that_dies_gets_in_when_its_lease_ends() {
    let server = Server::start();
    let (_a, first) = client(&server.url()).await;
    let (_b, second) = client(&server.url()).await;
    let mut holder = ticket("a");
    holder.lease = Duration::from_millis(400);
    let since = Instant::now();
    inside(&enter(&first, &holder).await.unwrap());
    let waiter = ticket("a");
    queued(&enter(&second, &waiter).await.unwrap());
    let before = server.requests();
    let told = within(Duration::from_secs(5), "the lapse", second.wait(&waiter.place, Moment::FAR)).await.unwrap();
    assert!(matches!(told, Waited::Admitted { .. }), "{told:?}");
    let took = since.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_millis(900), "{took:?}");
    assert!(server.requests() - before <= 2, "no polling");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_skipped() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let holder = ticket("a");
    inside(&enter(&store, &holder).await.unwrap());
    let mut dead = ticket("a");
    dead.lease = Duration::from_millis(150);
    queued(&enter(&store, &dead).await.unwrap());
    let alive = ticket("a");
    queued(&enter(&store, &alive).await.unwrap());
    let told = within(Duration::from_secs(5), "its end", store.wait(&dead.place, Moment::FAR)).await.unwrap();
    assert_eq!(told, Waited::Gone);
    store.leave(&[holder.place]).await.unwrap();
    let told = within(Duration::from_secs(5), "the hand-off", store.wait(&alive.place, Moment::FAR)).await.unwrap();
    assert!(matches!(told, Waited::Admitted { .. }));
    let line = store.inspect(&alive.place.name).await.unwrap();
    assert_eq!((line.inside.len(), line.waiting.len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeating_an_enter_changes_nothing_but_the_lease() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let (first, mut second) = (ticket("a"), ticket("a"));
    let token = inside(&enter(&store, &first).await.unwrap());
    assert_eq!(inside(&enter(&store, &first).await.unwrap()), token);
    let place_in_line = queued(&enter(&store, &second).await.unwrap());
    assert_eq!(queued(&enter(&store, &second).await.unwrap()), place_in_line);
    assert_eq!(inside(&enter(&store, &first).await.unwrap()), token);
    store.leave(&[first.place]).await.unwrap();
    second.lease = Duration::from_secs(3600);
    match enter(&store, &second).await.unwrap() {
        Entered::Admitted { token, lease } => {
            assert_eq!(token, place_in_line);
            assert_eq!(lease, Duration::from_secs(3600));
        }
        other => panic!("{other:?}"),
    }
    second.lease = LEASE;
    match enter(&store, &second).await.unwrap() {
        Entered::Admitted { lease, .. } => assert!(lease > Duration::from_secs(3590), "never lower: {lease:?}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_queue_never_overtakes() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let first = reader("a");
    inside(&enter(&store, &first).await.unwrap());
    let mut second = reader("a");
    second.queue = false;
    inside(&enter(&store, &second).await.unwrap());
    let writer = ticket("a");
    queued(&enter(&store, &writer).await.unwrap());
    let mut third = reader("a");
    third.queue = false;
    match enter(&store, &third).await.unwrap() {
        Entered::Full { holder: Some(holder) } => {
            assert_eq!((holder.host.as_str(), holder.pid, holder.identity.as_str()), ("host", 1, "test"));
            assert!(holder.expires_in.unwrap() > Duration::from_secs(20));
        }
        other => panic!("{other:?}"),
    }
    let line = store.inspect(&first.place.name).await.unwrap();
    assert_eq!((line.inside.len(), line.waiting.len()), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_capacity_is_a_mismatch_until_the_line_is_empty() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let mutex = ticket("a");
    inside(&enter(&store, &mutex).await.unwrap());
    let mut permits = ticket("a");
    (permits.weight, permits.capacity) = (2, 3);
    let error = enter(&store, &permits).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    store.leave(&[mutex.place]).await.unwrap();
    inside(&enter(&store, &permits).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_all_or_none() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let held = ticket("b");
    inside(&enter(&store, &held).await.unwrap());
    let mut batch = [ticket("a"), ticket("b"), ticket("c")];
    batch.iter_mut().for_each(|ticket| ticket.queue = false);
    let answers = store.enter(&batch).await.unwrap();
    assert!(matches!(&answers[0], Entered::Full { holder: None }), "{answers:?}");
    assert!(matches!(&answers[1], Entered::Full { holder: Some(_) }), "{answers:?}");
    for name in ["a", "c"] {
        assert_eq!(store.inspect(&place(name).name).await.unwrap().capacity, 0, "{name} is free");
    }
    store.leave(&[held.place]).await.unwrap();
    let answers = store.enter(&batch).await.unwrap();
    for answer in &answers {
        inside(answer);
    }
    let places: Vec<Place> = batch.iter().map(|ticket| ticket.place.clone()).collect();
    assert_eq!(store.leave(&places).await.unwrap(), [Presence::There; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_name_those_that_are_gone() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let (there, waits, never) = (ticket("a"), ticket("a"), ticket("b"));
    enter(&store, &there).await.unwrap();
    enter(&store, &waits).await.unwrap();
    let batch: Vec<Renew> = [&there, &waits, &never]
        .iter()
        .map(|ticket| Renew { place: ticket.place.clone(), lease: Duration::from_secs(60), at_least: None })
        .collect();
    let answers = store.renew(&batch).await.unwrap();
    assert_eq!(answers[0], Renewed::There { lease: Duration::from_secs(60) });
    assert_eq!(answers[1], Renewed::There { lease: Duration::from_secs(60) });
    assert_eq!(answers[2], Renewed::Gone);
    assert_eq!(store.inspect(&never.place.name).await.unwrap().capacity, 0, "nobody was brought back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_raises_the_counter_only_for_those_who_are_there() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let far = 5_000_000_000_000_000;
    let (there, gone) = (ticket("a"), ticket("b"));
    enter(&store, &there).await.unwrap();
    let renew = |place: &Place| [Renew { place: place.clone(), lease: LEASE, at_least: Some(far) }];
    store.renew(&renew(&there.place)).await.unwrap();
    store.renew(&renew(&gone.place)).await.unwrap();
    assert_eq!(queued(&enter(&store, &ticket("a")).await.unwrap()), far + 1);
    assert!(inside(&enter(&store, &ticket("b")).await.unwrap()) < far);
    store.leave(&[there.place]).await.unwrap();
    assert!(queued(&enter(&store, &ticket("a")).await.unwrap()) > far);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_lets_readers_in_and_keeps_the_number() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let writer = ticket("a");
    let token = inside(&enter(&store, &writer).await.unwrap());
    let waiting = reader("a");
    queued(&enter(&store, &waiting).await.unwrap());
    assert_eq!(store.change(&writer.place, Some(1), None).await.unwrap(), Presence::There);
    let told = within(Duration::from_secs(5), "the reader", store.wait(&waiting.place, Moment::FAR)).await.unwrap();
    assert!(matches!(told, Waited::Admitted { .. }));
    let line = store.inspect(&writer.place.name).await.unwrap();
    assert_eq!(line.inside[0].token, Some(token));
    assert_eq!(line.inside.len(), 2);
    assert_eq!(store.change(&writer.place, Some(5), None).await.unwrap(), Presence::There);
    assert_eq!(store.inspect(&writer.place.name).await.unwrap().inside[0].weight, 1, "weights only go down");
    assert_eq!(store.change(&place("a"), Some(1), None).await.unwrap(), Presence::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_needs_to_be_alone() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let (first, second) = (reader("a"), reader("a"));
    let old = inside(&enter(&store, &first).await.unwrap());
    enter(&store, &second).await.unwrap();
    let new = TicketId::new();
    assert!(matches!(store.upgrade(&first.place, new).await.unwrap(), Upgraded::Held { by: Some(_) }));
    store.leave(&[second.place]).await.unwrap();
    let Upgraded::Admitted { token } = store.upgrade(&first.place, new).await.unwrap() else { panic!("refused") };
    assert!(token > old);
    assert_eq!(store.upgrade(&first.place, new).await.unwrap(), Upgraded::Admitted { token }, "once more");
    assert_eq!(store.leave(std::slice::from_ref(&first.place)).await.unwrap(), [Presence::Gone]);
    let late = reader("a");
    queued(&enter(&store, &late).await.unwrap());
    assert_eq!(store.upgrade(&first.place, new).await.unwrap(), Upgraded::Admitted { token }, "with company");
    assert_eq!(store.leave(&[Place { name: first.place.name.clone(), id: new }]).await.unwrap(), [Presence::There]);
    assert_eq!(store.upgrade(&first.place, TicketId::new()).await.unwrap(), Upgraded::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_put_out_is_told_at_once() {
    let server = Server::start();
    let (locks, _) = client(&server.url()).await;
    let (other, store) = client(&server.url()).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let since = Instant::now();
    assert!(other.break_ticket("a", guard.token()).await.unwrap());
    within(Duration::from_secs(1), "being told", guard.lost()).await;
    assert!(since.elapsed() < Duration::from_secs(1));
    assert_eq!(store.expel(&place("a").name, 1).await.unwrap(), Presence::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_told_to_those_who_watch() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let (_b, other) = client(&server.url()).await;
    let one = place("x/a").name;
    let mut named = other.watch(Scope::Name(one.clone())).await.unwrap();
    let mut prefix = other.watch(Scope::Prefix("x/".into())).await.unwrap();
    let long = fencelock::name::Name::new("x", &"long ".repeat(100)).unwrap();
    for name in ["x/a", "y", "x/b"] {
        let ticket = ticket(name);
        enter(&store, &ticket).await.unwrap();
        store.leave(&[ticket.place]).await.unwrap();
    }
    let mut hashed = ticket("x");
    hashed.place.name = long.clone();
    enter(&store, &hashed).await.unwrap();
    let hint = within(Duration::from_secs(5), "the hint", named.next()).await.unwrap();
    // It came and left: told together, or one after the other.
    assert!([Hint::Changed(one.clone()), Hint::Entered(one)].contains(&hint), "{hint:?}");
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 3 {
        match within(Duration::from_secs(5), "the hints", prefix.next()).await.unwrap() {
            Hint::Changed(name) | Hint::Entered(name) => drop(seen.insert(name.shown())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["x/a".to_string(), "x/b".into(), long.shown()]);
    let listed: Vec<String> =
        store.list("x/", None, 10).await.unwrap().iter().map(|listed| listed.name.shown()).collect();
    assert_eq!(listed, [long.shown()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_listed_in_order_and_in_pages() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    for i in 0..250 {
        enter(&store, &ticket(&format!("p/{i:03}"))).await.unwrap();
    }
    enter(&store, &ticket("p/007")).await.unwrap();
    enter(&store, &ticket("q")).await.unwrap();
    let first = store.list("p/", None, 200).await.unwrap();
    assert_eq!(first.len(), 200);
    assert!(first.is_sorted_by_key(|listed| listed.name.key().to_string()));
    assert_eq!((first[7].inside, first[7].waiting), (1, 1));
    let rest = store.list("p/", Some(first[199].name.key()), 200).await.unwrap();
    assert_eq!(rest.len(), 50);
    assert_eq!(rest[0].name.key(), "p/200");
    assert_eq!(store.list("", None, 1000).await.unwrap().len(), 251);
}

/// A line that is empty leaves its last number behind, for a while; a million names do not fill the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    for lease in [Duration::from_millis(200), LEASE, Duration::from_secs(86_400)] {
        let mut tickets = [ticket("a"), ticket("a"), ticket("a")];
        tickets.iter_mut().for_each(|ticket| ticket.lease = lease);
        for ticket in &tickets {
            enter(&store, ticket).await.unwrap();
        }
        let keys: Vec<String> = server.command(&["KEYS", "*"]);
        assert_eq!(keys.len(), 2, "{keys:?}");
        for key in &keys {
            let left: i64 = server.command(&["PTTL", key]);
            assert!(u128::try_from(left).unwrap() >= lease.as_millis(), "{key} outlives its tickets: {left}");
        }
        let places: Vec<Place> = tickets.iter().map(|ticket| ticket.place.clone()).collect();
        store.leave(&places).await.unwrap();
        let keys: Vec<String> = server.command(&["KEYS", "*"]);
        assert_eq!(keys, ["fencelock:{a}"]);
        let left: i64 = server.command(&["PTTL", "fencelock:{a}"]);
        assert!((55_000..=60_000).contains(&left), "{left}");
        // What is used again and again need not be told each time when it expires.
        for name in ["a", "a", "a", "b", "b", "b"] {
            let key = format!("fencelock:{{{name}}}");
            let mut alone = ticket(name);
            alone.lease = lease;
            enter(&store, &alone).await.unwrap();
            let left: i64 = server.command(&["PTTL", &key]);
            let lease = i64::try_from(lease.as_millis()).unwrap();
            assert!(left >= lease + 55_000, "{key} with {lease}: {left}");
            assert!(left <= lease.max(160_000) + 60_000, "{key} with {lease}: {left}");
            store.leave(&[alone.place]).await.unwrap();
            let left: i64 = server.command(&["PTTL", &key]);
            assert!((55_000..=220_000).contains(&left), "{key} with {lease}: {left}");
        }
        let once: i64 = {
            let mut once = ticket("once");
            once.lease = lease;
            enter(&store, &once).await.unwrap();
            store.leave(&[once.place]).await.unwrap();
            server.command(&["PTTL", "fencelock:{once}"])
        };
        assert!((55_000..=60_000 + 30_000).contains(&once), "a name used once with {lease:?}: {once}");
        let _: i64 = server.command(&["DEL", "fencelock:{b}", "fencelock:{once}"]);
    }
}

/// Its key is still there then, with its number; nobody is in the line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ended_is_over_although_its_key_lives_on() {
    let server = Server::start();
    let (_a, store) = client(&server.url()).await;
    let (mut dead, mut last) = (ticket("a"), 0);
    dead.lease = Duration::from_millis(200);
    for _ in 0..3 {
        let Entered::Admitted { token, .. } = enter(&store, &dead).await.unwrap() else { panic!("not alone") };
        assert!(token > last);
        last = token;
        // Whoever looks takes it out, and nobody is to have looked: there is nothing to wait for but the time.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let left: i64 = server.command(&["PTTL", "fencelock:{a}"]);
        assert!(left > 55_000, "the number goes with the lease: {left}");
        let mut next = ticket("a");
        next.queue = false;
        let Entered::Admitted { token, .. } = enter(&store, &next).await.unwrap() else { panic!("somebody is there") };
        assert!(token > last);
        last = token;
        assert_eq!(store.leave(&[dead.place.clone()]).await.unwrap(), [Presence::Gone]);
        assert_eq!(store.leave(&[next.place]).await.unwrap(), [Presence::There]);
        dead.place.id = TicketId::new();
    }
}
