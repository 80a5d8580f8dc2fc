//! Sessions that end, keys that are deleted, and leaders that die or stand still: never two at a time, the lost one knows,
//! tokens grow.

use crate::server::Server;
use crate::{LONG, rounds, soon, within};
use fencelock::{ErrorKind, Locks, MutexGuard, Options, State};
use fencelock_testkit::until_waiting;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A loss that is told within this was not found by a renewal: those come every ten seconds.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The session that holds the first key below a name.
fn session_of(server: &Server, name: &str, at: usize) -> String {
    let (_, answer) = server.request("GET", &format!("/v1/kv/{name}/?recurse"), "").expect("an answer");
    let mut found: Vec<serde_json::Value> = serde_json::from_str(&answer).expect("somebody is in the line");
    found.sort_by_key(|one| one["CreateIndex"].as_u64());
    found[at]["Session"].as_str().expect("held").to_string()
}

fn end_session(server: &Server, id: &str) {
    let (status, answer) = server.request("PUT", &format!("/v1/session/destroy/{id}"), "").expect("an answer");
    assert_eq!(status, 200, "{answer}");
}

/// Somebody who waits for a lock, and when it came.
fn wait_for(locks: &Locks, name: &str) -> JoinHandle<(MutexGuard, Instant)> {
    fencelock_testkit::waiter(locks, name, Options::new())
}

pub(crate) async fn a_session_that_is_ended_is_told_at_once() {
    let server = Server::start();
    let (locks, other) = (Locks::connect(&server.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    for round in 0..rounds(1, 10) {
        let guard = locks.mutex("a").lock().await.unwrap();
        let second = locks.mutex("b").lock().await.unwrap();
        let next = wait_for(&other, "a");
        until_waiting(&other, "a", 1).await;
        let ended = Instant::now();
        end_session(&server, &session_of(&server, "b", 0));
        within(AT_ONCE, "being told of the loss", guard.lost()).await;
        println!("counted: round {round}: told {:?} after the session was ended", ended.elapsed());
        within(AT_ONCE, "being told of the other loss", second.lost()).await;
        assert_eq!(guard.state(), State::Lost);
        let (next, _) = within(LONG, "the next one", next).await.unwrap();
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
        // A new session is made for whoever comes next.
        let again = locks.mutex("a").lock().await.unwrap();
        assert!(again.token() > guard.token());
        again.release().await.unwrap();
    }
}

pub(crate) async fn a_waiter_whose_session_is_ended_queues_again() {
    let server = Server::start();
    let (locks, other) = (Locks::connect(&server.url()).await.unwrap(), Locks::connect(&server.url()).await.unwrap());
    for _ in 0..rounds(1, 10) {
        let guard = locks.mutex("a").lock().await.unwrap();
        let next = wait_for(&other, "a");
        until_waiting(&locks, "a", 1).await;
        let waiters = session_of(&server, "a", 1);
        end_session(&server, &waiters);
        let queued_again = || {
            let (_, answer) = server.request("GET", "/v1/kv/a/?recurse", "").expect("an answer");
            answer.matches("\"Session\"").count() == 2 && !answer.contains(&waiters)
        };
        soon("it queues again", queued_again).await;
        assert!(!next.is_finished(), "it came in beside the holder");
        let token = guard.token();
        guard.release().await.unwrap();
        let (next, _) = within(LONG, "the next one", next).await.unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
    }
}

pub(crate) async fn tokens_grow_although_the_key_was_deleted() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut last = None;
    for _ in 0..3 {
        let guard = locks.mutex("a").lock_with(Options::new().lease(Duration::from_secs(2))).await.unwrap();
        assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
        last = Some(guard.token());
        server.request("DELETE", "/v1/kv/a?recurse", "").expect("an answer");
        within(LONG, "being told of the loss", guard.lost()).await;
    }
    // With the lock of `consul lock` as well, whose counter starts anew whenever it is released.
    let locks = Locks::connect(&format!("{}?layout=consul-lock", server.url())).await.unwrap();
    let mut last = None;
    for _ in 0..3 {
        let guard = locks.mutex("a").lock().await.unwrap();
        assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await.unwrap();
        let (status, _) = server.request("GET", "/v1/kv/a/.lock", "").expect("an answer");
        assert_eq!(status, 404, "the key is gone with the lock");
    }
}

pub(crate) async fn no_leader_is_no_loss() {
    let mut cluster = Server::cluster();
    let locks = Locks::connect(&cluster[0].url()).await.unwrap();
    let long = Options::new().lease(Duration::from_secs(120));
    let guard = locks.mutex("a").lock_with(long).await.unwrap();
    cluster[1].kill();
    cluster[2].kill();
    soon("nobody leads", || {
        cluster[0]
            .request("PUT", "/v1/txn", r#"[{"KV": {"Verb": "set", "Key": "x"}}]"#)
            .is_some_and(|(status, _)| status == 500)
    })
    .await;
    let error = locks.inspect("a").await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, fencelock::Effect::Unknown), "{error}");
    let error = locks.mutex("b").lock_within(Duration::from_secs(3)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut), "{error}");
    assert_ne!(guard.state(), State::Lost, "nobody said that it is gone");
    cluster[1].restart();
    cluster[2].restart();
    soon("somebody leads again", || cluster.iter().all(Server::is_up)).await;
    let line = async {
        loop {
            match locks.inspect("a").await {
                Ok(line) => return line,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let line = within(LONG, "reading the line", line).await;
    assert_eq!(line.inside[0].token, Some(guard.token().number()), "the same ticket");
    assert_ne!(guard.state(), State::Lost);
    guard.release().await.unwrap();
}

/// What became of a holder and the one behind it.
async fn verdict(guard: MutexGuard, next: JoinHandle<(MutexGuard, Instant)>) -> (&'static str, u64) {
    let first = guard.token();
    let lost = tokio::select! {
        () = guard.lost() => Some(Instant::now()),
        () = tokio::time::sleep(Duration::from_secs(3)) => None,
    };
    let said = match lost {
        Some(lost) => {
            let (next, granted) = within(LONG, "the next one", next).await.unwrap();
            assert!(lost <= granted, "two at a time, for {:?}", lost - granted);
            assert!(next.token() > first);
            let number = next.token().number();
            next.release().await.unwrap();
            return ("lost, told, and passed on", number);
        }
        None => "kept",
    };
    assert!(!next.is_finished(), "two are inside, and neither was told");
    guard.release().await.unwrap();
    let (next, _) = within(LONG, "the next one", next).await.unwrap();
    assert!(next.token() > first);
    let number = next.token().number();
    next.release().await.unwrap();
    (said, number)
}

pub(crate) async fn a_leader_that_dies_or_stands_still() {
    let mut cluster = Server::cluster();
    let mut last = 0;
    for round in 0..rounds(1, 10) {
        for fault in ["killed", "paused"] {
            let leader = Server::leader(&cluster);
            // By the other two: an agent that is gone answers nobody.
            let [one, two] = [1, 2].map(|n| cluster[(leader + n) % 3].url());
            let (locks, other) = (Locks::connect(&one).await.unwrap(), Locks::connect(&two).await.unwrap());
            let options = Options::new().lease(Duration::from_secs(6));
            let guard = within(LONG, "the first lock", locks.mutex("a").lock_with(options)).await.unwrap();
            assert!(guard.token().number() > last, "tokens grow");
            let next = wait_for(&other, "a");
            until_waiting(&other, "a", 1).await;
            let verdict = if fault == "killed" {
                cluster[leader].kill();
                let verdict = verdict(guard, next).await;
                cluster[leader].restart();
                verdict
            } else {
                cluster[leader].signal("STOP");
                tokio::time::sleep(Duration::from_secs(4)).await;
                cluster[leader].signal("CONT");
                verdict(guard, next).await
            };
            println!("counted: round {round}: the leader was {fault}: the lock was {}", verdict.0);
            last = verdict.1;
            soon("all three are there again", || cluster.iter().all(Server::is_up)).await;
        }
    }
}
