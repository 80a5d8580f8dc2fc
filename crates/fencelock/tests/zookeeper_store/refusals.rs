//! What is refused, and how that is told: other recipes' nodes, wrong users, missing rights, odd addresses.

use crate::server::{Server, free_port};
use fencelock::{ErrorKind, Locks};
use zookeeper_client::{Acls, Client, CreateMode};

async fn raw(server: &Server) -> Client {
    Client::connect(&format!("127.0.0.1:{}", server.port())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_recipes_are_a_mismatch_and_names_below_are_not() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let zk = raw(&server).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for (name, foreign) in [
        ("kazoo", "00112233445566778899aabbccddeeff__lock__"),
        ("net", "lock-"),
        ("latch", "_c_0b3f1c2a-0000-4000-8000-00000000000a-latch-"),
        ("java", "x-72057594037927936-"),
    ] {
        zk.create(&format!("/{name}"), b"", &open).await.unwrap();
        zk.create(&format!("/{name}/{foreign}"), b"", &ephemeral).await.unwrap();
        for error in [
            locks.mutex(name).lock().await.unwrap_err(),
            locks.mutex(name).try_lock().await.unwrap_err(),
            locks.semaphore(name, 3).acquire().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.to_string().contains(foreign), "{error}");
        }
        assert_eq!(zk.list_children(&format!("/{name}")).await.unwrap().len(), 1, "nothing of ours is left");
    }
    let below = locks.mutex("a/b").lock().await.unwrap();
    let above = locks.mutex("a").try_lock().await.unwrap();
    assert!(above.token() > below.token());
    let list = locks.list("a").await.unwrap();
    assert_eq!(list.iter().map(|listed| listed.name.key()).collect::<Vec<_>>(), ["a", "a/b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_s_nodes_are_the_user_s() {
    let server = Server::start();
    let url = |user: &str| server.url().replace("://", &format!("://{user}"));
    let ours = Locks::connect(&url("web:secret@")).await.unwrap();
    let same = Locks::connect(&url("web:secret@")).await.unwrap();
    let guard = ours.mutex("a").lock().await.unwrap();
    assert_eq!(same.mutex("a").try_lock().await.unwrap_err().kind(), ErrorKind::Held);
    for stranger in ["", "web:wrong@", "other:secret@"] {
        let locks = Locks::connect(&url(stranger)).await.unwrap();
        let error = locks.mutex("a").lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{stranger}: {error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        let error = locks.break_ticket("a", guard.token().number()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    // Rights are not inherited: what is made with an open rule is everybody's.
    let open = Locks::connect(&format!("{}?acl=open", url("web:secret@"))).await.unwrap();
    let shared = open.mutex("b").lock().await.unwrap();
    let anybody = Locks::connect(&server.url()).await.unwrap();
    assert_eq!(anybody.mutex("b").try_lock().await.unwrap_err().kind(), ErrorKind::Held);
    shared.release().await.unwrap();
    anybody.mutex("b").lock().await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chroot_is_made_and_holds_everything() {
    let server = Server::start();
    let locks = Locks::connect(&format!("{}/teams/shop", server.url())).await.unwrap();
    let guard = locks.mutex("stock/42").lock().await.unwrap();
    let zk = raw(&server).await;
    assert_eq!(zk.list_children("/teams/shop/stock/42").await.unwrap().len(), 1);
    let elsewhere = Locks::connect(&server.url()).await.unwrap();
    let same_name = elsewhere.mutex("stock/42").try_lock().await.unwrap();
    let same_lock = elsewhere.mutex("teams/shop/stock/42").try_lock().await.unwrap_err();
    assert_eq!(same_lock.kind(), ErrorKind::Held);
    assert!(same_lock.holder().unwrap().token == Some(guard.token().number()));
    assert_eq!(locks.list("").await.unwrap().len(), 1);
    same_name.release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_told_at_once() {
    let url = format!("zookeeper://127.0.0.1:{}", free_port());
    let error = Locks::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&url), "{error}");
    let error = Locks::connect(&format!("{url}?session=1ms")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_for_all_leases_where_it_is_asked_for() {
    use fencelock::Options;
    use std::time::Duration;
    let server = Server::start();
    let locks = Locks::connect(&format!("{}?session=3s", server.url())).await.unwrap();
    let options = |secs: u64| Options::new().lease(Duration::from_secs(secs));
    let short = locks.mutex("a").lock_with(options(1)).await.unwrap();
    let long = locks.mutex("b").lock_with(options(50)).await.unwrap();
    assert!(long.remaining() <= Duration::from_secs(3), "{:?}", long.remaining());
    let zk = raw(&server).await;
    let mut owners = Vec::new();
    for name in ["/a", "/b"] {
        let child = zk.list_children(name).await.unwrap().remove(0);
        owners.push(zk.get_data(&format!("{name}/{child}")).await.unwrap().1.ephemeral_owner);
    }
    assert_eq!(owners[0], owners[1], "one session");
    short.release().await.unwrap();
    long.release().await.unwrap();
}
