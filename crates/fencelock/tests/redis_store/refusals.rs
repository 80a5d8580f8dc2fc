//! Servers that cannot keep locks, or do not want us: one clear error each, with the cure.

use crate::server::{Server, free_port};
use crate::support::{client, enter, least_rights, place, reader, ticket};
use fencelock::store::{Renew, Scope, TicketId};
use fencelock::{Error, ErrorKind, Locks};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn refused(url: &str) -> Error {
    Locks::connect(url).await.expect_err("this server must be refused")
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_refused() {
    for policy in ["volatile-lru", "volatile-ttl", "allkeys-lru", "allkeys-random"] {
        let server = Server::with(&["--maxmemory-policy", policy]);
        let error = refused(&server.url()).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for part in [policy, "noeviction", "evictable=allow"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        Locks::connect(&format!("{}?evictable=allow", server.url())).await.unwrap();
        let error = refused(&format!("{}?evictable=perhaps", server.url())).await;
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test]
async fn a_replica_is_refused() {
    let master = Server::start();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let error = refused(&replica.url()).await;
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("read-only replica"), "{error}");
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_says_so() {
    let server = Server::start();
    let (_locks, store) = client(&server.url()).await;
    enter(&store, &ticket("a")).await.unwrap();
    let _: String = server.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let error = enter(&store, &ticket("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("read-only replica"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_told_and_never_shown() {
    let server = Server::with(&["--requirepass", "right-one"]);
    for url in [server.url(), server.url().replace("redis://", "redis://:wrong-one@")] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let all = format!("{error} {error:?}");
        assert!(all.contains("password") && !all.contains("wrong-one"), "{all}");
    }
    let locks = Locks::connect(&server.url().replace("redis://", "redis://:right-one@")).await.unwrap();
    assert!(!format!("{locks:?} {:?}", locks.info()).contains("right-one"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let error = refused(&format!("redis://127.0.0.1:{}", free_port())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("cannot connect to redis://127.0.0.1:"), "{error}");
    let error = refused("redis://:se%20cret@nobody at home").await;
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(!format!("{error:?}").contains("se%20cret"));
}

/// A server that answers everything with one error.
#[tokio::test]
async fn a_server_that_loads_its_data_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(1..) = client.read(&mut buffer).await {
                    let answer = b"-LOADING Redis is loading the dataset in memory\r\n".repeat(4);
                    if client.write_all(&answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let error = refused(&format!("redis://127.0.0.1:{port}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("loading"), "{error}");
}

#[tokio::test]
async fn scripts_that_are_forbidden_are_told() {
    let server = Server::start();
    let _: String = server.command(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@all", "-@scripting"]);
    let url = server.url().replace("redis://", "redis://reader:pw@");
    let (_locks, store) = client(&url).await;
    let error = enter(&store, &ticket("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("access rules"), "{error}");
    let _: String = server.command(&["ACL", "SETUSER", "narrow", "on", ">pw", "~other:*", "&*", "+@all"]);
    let url = server.url().replace("redis://", "redis://narrow:pw@");
    let (_locks, store) = client(&url).await;
    let error = enter(&store, &ticket("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
}

/// The recipe in the store's docs, word by word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_rights_are_enough() {
    let server = Server::start();
    let _: String = server.command(&least_rights());
    let url = server.url().replace("redis://", "redis://locks:secret@");
    let (locks, store) = client(&url).await;
    let (first, second) = (reader("a"), ticket("a"));
    enter(&store, &first).await.unwrap();
    enter(&store, &second).await.unwrap();
    let hints = store.watch(Scope::Name(first.place.name.clone())).await.unwrap();
    drop((hints, store.watch(Scope::Prefix(String::new())).await.unwrap()));
    let renewal = Renew { place: first.place.clone(), lease: Duration::from_secs(60), at_least: Some(7) };
    store.renew(&[renewal]).await.unwrap();
    store.change(&first.place, Some(1), None).await.unwrap();
    store.upgrade(&first.place, TicketId::new()).await.unwrap();
    store.inspect(&place("a").name).await.unwrap();
    assert_eq!(store.list("", None, 10).await.unwrap().len(), 1);
    store.leave(&[first.place]).await.unwrap();
    store.expel(&second.place.name, 1).await.unwrap();
    enter(&store, &ticket("a")).await.unwrap();
    // What is only needed when keys are missing.
    let _: u64 = server.command(&["DEL", "fencelock:{a}:q"]);
    store.inspect(&place("a").name).await.unwrap();
    let _: u64 = server.command(&["DEL", "fencelock:{a}:t"]);
    assert_eq!(store.inspect(&place("a").name).await.unwrap_err().kind(), ErrorKind::Broken);
    locks.mutex("b").lock().await.unwrap().release().await.unwrap();
    let denied: Vec<Vec<String>> = server.try_command(&["ACL", "LOG"]).unwrap_or_default();
    assert_eq!(denied, Vec::<Vec<String>>::new());
}
