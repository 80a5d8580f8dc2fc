//! Lines that are not read because nobody else uses them: whoever does come is seen nevertheless.

use crate::server::Server;
use crate::support::within;
use fencelock::{ErrorKind, Locks, Released};
use std::time::Duration;
use zookeeper_client::{Acls, Client, CreateMode};

/// Two clients, and a server on which the first is used to being alone in the line "a": the next number there is 5.
async fn used_to_it() -> (Server, Locks, Locks) {
    let server = Server::start();
    let (locks, other) = (Locks::connect(&server.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    for _ in 0..5 {
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    assert!(server.ask("wchp").unwrap().lines().any(|line| line == "/a"), "the node of the line is watched");
    (server, locks, other)
}

async fn raw(server: &Server) -> Client {
    Client::connect(&format!("127.0.0.1:{}", server.port())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_came_in_between_is_seen() {
    let (_server, locks, other) = used_to_it().await;
    let held = other.mutex("a").lock().await.unwrap();
    let error = locks.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").lock().await.unwrap() }
    });
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Released::Held);
    let next = within(Duration::from_secs(10), "its turn", waiting).await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

/// The other one's ticket has the number that the first one counts on, less one: by the numbers nobody came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_was_made_again_is_not_taken_for_the_old_one() {
    let (server, locks, other) = used_to_it().await;
    raw(&server).await.delete("/a", None).await.unwrap();
    for _ in 0..4 {
        other.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    let held = other.mutex("a").lock().await.unwrap();
    let children = raw(&server).await.list_children("/a").await.unwrap();
    assert!(children[0].ends_with("-lock-0000000004"), "{children:?}");
    let error = locks.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    held.release().await.unwrap();
    locks.mutex("a").try_lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_recipe_s_node_is_seen() {
    let (server, locks, _other) = used_to_it().await;
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let zk = raw(&server).await;
    zk.create("/a/lock-", b"", &ephemeral).await.unwrap();
    let error = locks.mutex("a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_whose_node_says_something_else_is_read() {
    let (server, locks, other) = used_to_it().await;
    raw(&server).await.set_data("/a", b"said by somebody", None).await.unwrap();
    for _ in 0..5 {
        let guard = locks.mutex("a").lock().await.unwrap();
        assert!(other.mutex("a").try_lock().await.is_err());
        guard.release().await.unwrap();
        other.mutex("a").try_lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tasks_of_one_client_take_turns() {
    let (_server, locks, _other) = used_to_it().await;
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (locks, inside) = (locks.clone(), inside.clone());
            tokio::spawn(async move {
                for _ in 0..50 {
                    let guard = locks.mutex("a").lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
