//! Scripts on lines of which keys are missing, of another type or of another layout: an error or a repair, never a wrong
//! grant.

use crate::server::Server;
use crate::support::{client, enter, inside, place, queued, reader, ticket};
use fencelock::ErrorKind;
use fencelock::store::{Enter, Entered, Presence, Renew, Store, TicketId};
use std::sync::Arc;
use std::time::Duration;

/// The tickets of a line with company, those who wait, those who share it; and the only key of a line without company.
const KEYS: [&str; 3] = ["fencelock:{a}:t", "fencelock:{a}:q", "fencelock:{a}:x"];
const SHORT: &str = "fencelock:{a}";

/// Somebody inside, or two who share it, and whoever waits: three in all.
async fn line(store: &Arc<dyn Store>, shared: bool) -> [Enter; 3] {
    let kind = if shared { reader } else { ticket };
    let tickets = [kind("a"), kind("a"), ticket("a")];
    inside(&enter(store, &tickets[0]).await.unwrap());
    let second = enter(store, &tickets[1]).await.unwrap();
    if shared {
        inside(&second)
    } else {
        queued(&second)
    };
    queued(&enter(store, &tickets[2]).await.unwrap());
    tickets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_set_of_missing_keys_makes_a_wrong_grant() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    for (shared, missing) in (1..4u32).map(|missing| (false, missing)).chain((1..8).map(|missing| (true, missing))) {
        for verb in 0..6 {
            let _: String = server.command(&["FLUSHALL"]);
            let tickets = line(&store, shared).await;
            let holder = store.inspect(&place("a").name).await.unwrap().inside[0].token.unwrap();
            for (bit, key) in KEYS.iter().enumerate() {
                if missing & 1 << bit != 0 {
                    let _: u64 = server.command(&["DEL", key]);
                }
            }
            let (first, all, lost) = (&tickets[0].place, missing == if shared { 7 } else { 3 }, missing & 1 != 0);
            let context = format!("shared {shared}, missing {missing:03b}, verb {verb}");
            match verb {
                0 => match enter(&store, &ticket("a")).await {
                    // Nothing is left: this is an empty line, and its numbers go on.
                    Ok(Entered::Admitted { token, .. }) => assert!(all && token > holder, "{context}"),
                    Ok(other) => {
                        queued(&other);
                        assert!(!lost, "{context}");
                    }
                    Err(error) => assert!(lost && !all && error.kind() == ErrorKind::Broken, "{context}: {error}"),
                },
                1 => match store.leave(std::slice::from_ref(first)).await {
                    Ok(answer) => {
                        let there = if lost { Presence::Gone } else { Presence::There };
                        assert_eq!(answer, [there], "{context}");
                        let next = store.inspect(&first.name).await.unwrap();
                        assert_eq!(next.inside.len(), usize::from(!lost), "{context}: the next one is in");
                    }
                    Err(error) => assert!(lost && !all && error.kind() == ErrorKind::Broken, "{context}: {error}"),
                },
                2 => {
                    let renewal =
                        [Renew { place: first.clone(), lease: Duration::from_secs(60), at_least: Some(holder) }];
                    match store.renew(&renewal).await {
                        Ok(answer) => {
                            let there = matches!(answer[0], fencelock::store::Renewed::There { .. });
                            assert_eq!(there, !lost, "{context}");
                        }
                        Err(error) => assert!(lost && !all && error.kind() == ErrorKind::Broken, "{context}: {error}"),
                    }
                }
                3 => match store.change(first, Some(1), None).await {
                    Ok(answer) => assert_eq!(answer == Presence::There, !lost, "{context}"),
                    Err(error) => assert!(lost && !all && error.kind() == ErrorKind::Broken, "{context}: {error}"),
                },
                4 => match store.upgrade(first, TicketId::new()).await {
                    Ok(answer) => {
                        assert!(!matches!(answer, fencelock::store::Upgraded::Admitted { .. }), "{context}");
                    }
                    Err(error) => assert!(lost && !all && error.kind() == ErrorKind::Broken, "{context}: {error}"),
                },
                _ => match store.expel(&first.name, holder).await {
                    Ok(answer) => assert_eq!(answer == Presence::There, !lost, "{context}"),
                    Err(error) => assert!(lost && !all && error.kind() == ErrorKind::Broken, "{context}: {error}"),
                },
            }
            if !lost {
                // Repaired: the keys agree again.
                let seen = store.inspect(&first.name).await.unwrap();
                let sharing = seen.inside.iter().filter(|seen| seen.weight < fencelock::line::WHOLE).count();
                for (key, tickets) in [(KEYS[1], seen.waiting.len()), (KEYS[2], sharing)] {
                    let count: usize = server.command(&["ZCARD", key]);
                    assert_eq!(count, tickets, "{context}: {key}");
                    assert!(count == 0 || server.command::<i64>(&["PTTL", key]) > 0, "{context}: {key}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_without_its_tickets_is_free_when_their_leases_have_ended() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    let mut tickets = [ticket("a"), ticket("a")];
    for ticket in &mut tickets {
        ticket.lease = Duration::from_millis(300);
        enter(&store, ticket).await.unwrap();
    }
    let _: u64 = server.command(&["DEL", KEYS[0]]);
    let error = enter(&store, &ticket("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken);
    assert!(error.to_string().contains("free in"), "{error}");
    // What is left of the line does not say when exactly: after twice the longest lease at the latest.
    tokio::time::sleep(Duration::from_millis(650)).await;
    inside(&enter(&store, &ticket("a")).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_another_type_are_told_and_left_alone() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    for key in [SHORT, KEYS[0], KEYS[1], KEYS[2]] {
        let _: String = server.command(&["FLUSHALL"]);
        if key != SHORT {
            line(&store, key == KEYS[2]).await;
        }
        let _: u64 = server.command(&["DEL", key]);
        let _: u64 = server.command(&["LPUSH", key, "theirs"]);
        let truth = || {
            let mut all: Vec<String> = server.try_command(&["HGETALL", KEYS[0]]).unwrap_or_default();
            all.sort();
            all
        };
        let before = truth();
        let error = enter(&store, &ticket("a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{error:?}");
        assert!(error.to_string().contains("not ours"), "{error}");
        assert!(store.leave(&[place("a")]).await.is_err());
        let kept: Vec<String> = server.command(&["LRANGE", key, "0", "-1"]);
        assert_eq!(kept, ["theirs"]);
        assert_eq!(truth(), before, "nothing was half done");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_that_are_missing_are_counted_again() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    for shared in [false, true] {
        let _: String = server.command(&["FLUSHALL"]);
        let tickets = line(&store, shared).await;
        let before = store.inspect(&place("a").name).await.unwrap();
        let _: u64 = server.command(&["HDEL", KEYS[0], "s"]);
        let last = queued(&enter(&store, &ticket("a")).await.unwrap());
        let after = store.inspect(&place("a").name).await.unwrap();
        assert_eq!((after.capacity, after.inside.len()), (before.capacity, before.inside.len()));
        assert_eq!(after.waiting.last().unwrap().token, Some(last));
        let places = tickets.map(|ticket| ticket.place);
        assert_eq!(store.leave(&places).await.unwrap(), [Presence::There; 3]);
        assert_eq!(store.inspect(&place("a").name).await.unwrap().inside[0].token, Some(last));
        let _: u64 = server.command(&["HSET", KEYS[0], "s", "1cut"]);
        assert_eq!(enter(&store, &ticket("a")).await.unwrap_err().kind(), ErrorKind::Broken);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_ticket_that_cannot_be_read_is_told() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    let entered = inside(&enter(&store, &ticket("a")).await.unwrap());
    let good: String = server.command(&["GET", SHORT]);
    assert!(good.starts_with(&format!("1 {entered} ")), "{good}");
    // Up to whose it is; what it says of itself may be cut.
    for cut in 1..=12 {
        let words: Vec<&str> = good.split(' ').take(cut).collect();
        let _: String = server.command(&["SET", SHORT, &words.join(" "), "PX", "5000"]);
        match (cut, enter(&store, &ticket("a")).await) {
            // That is what an empty line looks like.
            (3, Ok(entered)) => assert!(inside(&entered) > 0),
            (_, Ok(entered)) => panic!("{words:?}: {entered:?}"),
            (_, Err(error)) => assert_eq!(error.kind(), ErrorKind::Broken, "{words:?}: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_layout_is_refused() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    let _: u64 = server.command(&["HSET", KEYS[0], "s", "2 or more"]);
    for _ in 0..2 {
        let error = enter(&store, &ticket("a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken);
        assert!(error.to_string().contains("layout 2"), "{error}");
        let _: String = server.command(&["SET", SHORT, "2 5 6"]);
    }
}
