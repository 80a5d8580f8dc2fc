//! A multi-lock over several stores: sorted by name and label, all or nothing, and nothing left on any of them.

use fencelock::store::memory::MemoryStore;
use fencelock::{ErrorKind, Locks, Options, Released, State};
use fencelock_testkit::ctx::{eventually, poll_times, soon};
use fencelock_testkit::{Fault, Faulty, Verb};
use std::sync::Arc;
use std::time::Duration;

/// A store with this label, and a handle to make its calls go wrong.
fn store(label: &str) -> (Locks, Faulty) {
    let faulty = Faulty::new(Arc::new(MemoryStore::new().label(label)));
    (Locks::with_shared_store(Arc::new(faulty.clone())), faulty)
}

async fn nothing_is_left(stores: &[&Locks]) {
    for locks in stores {
        soon("close", locks.close()).await;
        eventually("nothing is left", || async { locks.list("").await.unwrap().is_empty() }).await;
    }
}

#[tokio::test]
async fn one_guard_over_three_stores() {
    let ((one, one_calls), (two, two_calls), (three, _)) = (store("one"), store("two"), store("three"));
    // The same name on two of them are two locks.
    let multi = one.all(["c", "a"]).and(two.all(["b", "a"])).and(three.all(["d"]));
    let guard = multi.lock().await.unwrap();
    let tokens: Vec<(String, String)> =
        guard.tokens().iter().map(|token| (token.name().to_string(), token.label().to_string())).collect();
    let given = [("c", "one"), ("a", "one"), ("b", "two"), ("a", "two"), ("d", "three")];
    assert_eq!(tokens, given.map(|(name, label)| (name.to_string(), label.to_string())));
    assert_eq!((guard.token("a").unwrap().label(), guard.state()), ("one", State::Safe));
    // In the order of names and labels: a on one; a and b on two, together; c on one; d on three.
    assert_eq!((one_calls.calls(Verb::Enter), two_calls.calls(Verb::Enter)), (2, 1));
    let refused = two.all(["a"]).and(one.all(["x"])).try_lock().await.unwrap_err();
    assert_eq!((refused.kind(), refused.name()), (ErrorKind::Held, Some("a")));
    one.close().await;
    assert!(one.list("x").await.unwrap().is_empty());
    assert_eq!(guard.release().await.unwrap(), Released::Held);
    assert_eq!((one_calls.calls(Verb::Leave), two_calls.calls(Verb::Leave)), (1, 1), "one call for each store");
    nothing_is_left(&[&one, &two, &three]).await;
}

#[tokio::test]
async fn two_stores_with_one_label_are_refused() {
    let ((one, _), (two, _)) = (store("same"), store("same"));
    let refused = one.all(["a"]).and(two.all(["b"])).lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("labelled \"same\""), "{refused}");
    drop(one.all(["a"]).and(one.clone().all(["b"])).lock().await.expect("one store twice is one store"));
}

#[tokio::test]
async fn a_store_that_fails_takes_nothing_from_the_others() {
    for fault in [Fault::Fail, Fault::Drop, Fault::LoseReply] {
        let ((one, _), (two, calls)) = (store("one"), store("two"));
        calls.always(Verb::Enter, fault);
        let options = Options::new().lease(Duration::from_millis(400));
        let multi = one.all(["a", "b", "d", "e"]).and(two.all(["c"]));
        let failed = soon("it gives up", multi.lock_with(options)).await.unwrap_err();
        assert_eq!((failed.kind(), failed.name()), (ErrorKind::Unavailable, Some("c")));
        nothing_is_left(&[&one, &two]).await;
    }
}

#[tokio::test]
async fn lost_on_one_is_lost() {
    let ((one, _), (two, _)) = (store("one"), store("two"));
    let guard =
        one.all(["a"]).and(two.all(["b"])).lock_with(Options::new().lease(Duration::from_millis(600))).await.unwrap();
    two.break_ticket("b", guard.token("b").unwrap()).await.unwrap();
    let lost = soon("it is told", guard.run(std::future::pending::<()>())).await.unwrap_err();
    assert_eq!((lost.kind(), lost.name()), (ErrorKind::Lost, Some("b")));
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyGone);
    nothing_is_left(&[&one, &two]).await;
}

#[tokio::test]
async fn cancelled_at_every_await() {
    for k in 1..200 {
        let ((one, one_calls), (two, two_calls)) = (store("one"), store("two"));
        one_calls.yielding();
        two_calls.yielding();
        let multi = one.all(["a", "c", "d"]).and(two.all(["b", "e"]));
        let done = poll_times(async { multi.lock().await.unwrap().release().await }, k).await.is_some();
        nothing_is_left(&[&one, &two]).await;
        if done {
            return;
        }
    }
    panic!("it never completes");
}

/// Two callers who name them in opposite orders, on two stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_never_wait_for_each_other() {
    let ((one, _), (two, _)) = (store("one"), store("two"));
    let mut tasks = Vec::new();
    for task in 0..4 {
        let (one, two) = (one.clone(), two.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..50 {
                let multi = if task % 2 == 0 {
                    one.all(["a", "c"]).and(two.all(["b", "a"]))
                } else {
                    two.all(["a", "b"]).and(one.all(["c", "a"]))
                };
                drop(multi.lock().await.unwrap());
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("nobody is stuck").unwrap();
    }
    nothing_is_left(&[&one, &two]).await;
}
