//! A quorum of independent servers (Redlock): what it refuses, what it survives, and, shown as it is, what it does not.

use crate::server::Server;
use crate::support::{enter, inside, soon, ticket, within};
use fencelock::fence::Marks;
use fencelock::store::{Entered, Renew, Store};
use fencelock::{ErrorKind, Locks, Mode, MutexGuard, Options, Result, State, Token};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "a";

/// Some servers and the URL of a quorum of them.
struct Nodes(Vec<Server>);

impl Nodes {
    fn start(count: usize) -> Nodes {
        Nodes::with(count, &[])
    }

    fn with(count: usize, args: &[&str]) -> Nodes {
        Nodes((0..count).map(|_| Server::with(args)).collect())
    }

    /// Nodes that vote from the start, with time to answer on a busy machine.
    fn url(&self) -> String {
        self.url_with("young=allow&node_timeout=1s")
    }

    fn url_with(&self, query: &str) -> String {
        let urls: Vec<String> = self.0.iter().map(Server::url).collect();
        format!("quorum:{}?{query}", urls.join("|"))
    }

    /// The one node's own store, to look at what is on it.
    async fn alone(&self, node: usize) -> (Locks, Arc<dyn Store>) {
        crate::support::client(&self.0[node].url()).await
    }

    fn tickets_on(&self, node: usize) -> usize {
        let keys: Vec<String> = self.0[node].command(&["KEYS", "fencelock:{a}*"]);
        keys.iter()
            .filter(|key| {
                // The short form of a line that somebody is in has more than its last number and how long that lives.
                let kind: String = self.0[node].command(&["TYPE", key]);
                kind != "string" || self.0[node].command::<String>(&["GET", key]).split(' ').count() > 3
            })
            .count()
    }
}

async fn locks(url: &str) -> Locks {
    Locks::connect(url).await.expect("a majority is there")
}

async fn lock(locks: &Locks, lease: Duration) -> Result<MutexGuard> {
    locks.mutex(NAME).lock_with(Options::new().wait(Duration::from_secs(20)).lease(lease)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_quorum_is_refused() {
    let nodes = Nodes::start(3);
    let [a, b, c] = [0, 1, 2].map(|i| nodes.0[i].url());
    let same = c.replace("127.0.0.1", "localhost");
    for (url, kind, part) in [
        (format!("quorum:{a}|{b}"), ErrorKind::InvalidInput, "3 stores at least"),
        (format!("quorum:{a}|{b}|{a}"), ErrorKind::InvalidInput, "named twice"),
        (format!("quorum:{a}|{b}|{c}|{same}?young=allow"), ErrorKind::InvalidInput, "named twice"),
        (format!("quorum:{a}|{b}|sqlite:x"), ErrorKind::InvalidInput, "Redis masters"),
        (format!("quorum:{a}|{b}|{c}?node_timeout=0"), ErrorKind::InvalidInput, "node_timeout"),
        (format!("quorum:{a}|{b}|{c}?young=maybe"), ErrorKind::InvalidInput, "young"),
        // They have just been started: nobody knows what they held before.
        (format!("quorum:{a}|{b}|{c}"), ErrorKind::Unavailable, "?young=allow"),
    ] {
        let error = Locks::connect(&url).await.expect_err(&url);
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(error.to_string().contains(part), "{url}: {error}");
    }
    let locks = locks(&nodes.url()).await;
    let permits = locks.semaphore("uploads", 5);
    assert_eq!(permits.acquire().await.unwrap_err().kind(), ErrorKind::Unsupported, "permits on two majorities add up");
    let reader = locks.rwlock("catalog").read().await.unwrap();
    assert_eq!(reader.try_upgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_may_be_down() {
    let mut nodes = Nodes::start(3);
    nodes.0[2].kill();
    let locks = locks(&nodes.url()).await;
    let guard = lock(&locks, Duration::from_secs(30)).await.unwrap();
    let (first, other) = (guard.token(), Locks::connect(&nodes.url()).await.unwrap());
    let error = other.mutex(NAME).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    guard.release().await.unwrap();
    assert!(lock(&other, Duration::from_secs(30)).await.unwrap().token() > first);

    nodes.0[1].kill();
    let error = other.mutex(NAME).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("2 of 3 nodes have no vote, 1 may miss"), "{error}");
    assert!(error.to_string().contains(&nodes.0[2].url()), "it names them: {error}");
    assert_eq!(Locks::connect(&nodes.url()).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_has_no_vote_and_holds_nobody_up() {
    let nodes = Nodes::start(3);
    let locks = locks(&nodes.url_with("young=allow&node_timeout=300ms")).await;
    lock(&locks, Duration::from_secs(30)).await.unwrap().release().await.unwrap();
    nodes.0[0].signal("STOP");
    for _ in 0..5 {
        let guard =
            within(Duration::from_secs(10), "a lock beside a node that hangs", lock(&locks, Duration::from_secs(30)));
        guard.await.unwrap().release().await.unwrap();
    }
    nodes.0[0].signal("CONT");
    // What it was sent while it hung is taken back: nothing stays there.
    soon("the node that hung is empty", || nodes.tickets_on(0) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_missed_a_ticket_gets_it_with_a_renewal() {
    let mut nodes = Nodes::start(3);
    nodes.0[2].kill();
    let locks = locks(&nodes.url()).await;
    let guard = lock(&locks, Duration::from_millis(1500)).await.unwrap();
    nodes.0[2].restart();
    soon("the third node has it too", || nodes.tickets_on(2) == 1).await;
    assert_eq!(guard.state(), State::Safe);
    guard.release().await.unwrap();
    for node in 0..3 {
        soon("nothing is left", || nodes.tickets_on(node) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_a_majority_at_a_renewal_is_lost() {
    let nodes = Nodes::start(3);
    let locks = locks(&nodes.url()).await;
    let guard = lock(&locks, Duration::from_secs(3)).await.unwrap();
    for node in 0..2 {
        nodes.0[node].command::<String>(&["FLUSHALL"]);
    }
    within(Duration::from_secs(10), "the loss is told", guard.lost()).await;
    assert_eq!(guard.state(), State::Lost);
    soon("what was left of it is taken away", || nodes.tickets_on(2) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_although_every_node_counts_for_itself() {
    let mut nodes = Nodes::start(3);
    // The first node is far ahead of the others.
    let far = 8_000_000_000_000_000;
    {
        let (_locks, store) = nodes.alone(0).await;
        let ahead = ticket(NAME);
        inside(&enter(&store, &ahead).await.unwrap());
        let raise = Renew { place: ahead.place.clone(), lease: ahead.lease, at_least: Some(far) };
        store.renew(&[raise]).await.unwrap();
        store.leave(std::slice::from_ref(&ahead.place)).await.unwrap();
    }
    let locks = locks(&nodes.url()).await;
    // Without the third one the first has to vote.
    nodes.0[2].kill();
    let mut last = 0;
    for round in 0..5 {
        let guard = lock(&locks, Duration::from_secs(30)).await.unwrap();
        assert!(guard.token().number() > last, "round {round}");
        last = guard.token().number();
        guard.release().await.unwrap();
    }
    // Where it has voted, its number was written to a majority: without it the tokens still go on above.
    nodes.0[2].restart();
    nodes.0[0].kill();
    let guard = lock(&locks, Duration::from_secs(30)).await.unwrap();
    assert!(last > far && guard.token().number() > last, "{} after {last}", guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_that_come_after_the_lease_are_no_grant() {
    let nodes = Nodes::start(3);
    let locks = locks(&nodes.url_with("young=allow&node_timeout=5s")).await;
    let store = locks.store().clone();
    lock(&locks, Duration::from_secs(30)).await.unwrap().release().await.unwrap();
    let mut late = ticket(NAME);
    late.lease = Duration::from_millis(200);
    nodes.0[0].signal("STOP");
    nodes.0[1].signal("STOP");
    let asked = tokio::spawn({
        let (store, late) = (store.clone(), late.clone());
        async move { enter(&store, &late).await }
    });
    tokio::time::sleep(Duration::from_millis(400)).await; // that long is what is tested: twice the lease
    nodes.0[0].signal("CONT");
    nodes.0[1].signal("CONT");
    match asked.await.unwrap() {
        Ok(Entered::Admitted { .. }) => panic!("it was over before it was granted"),
        Ok(Entered::Full { .. } | Entered::Queued { .. }) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
    }
    for node in 0..3 {
        soon("nothing is left", || nodes.tickets_on(node) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_just_started_does_not_vote() {
    let mut nodes = Nodes::start(3);
    // Old enough by now: three seconds.
    let young = |nodes: &Nodes| nodes.url_with("longest_lease=2s&node_timeout=1s");
    let url = young(&nodes);
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    let locks = loop {
        match Locks::builder(&url).connect().await {
            Ok(locks) => break locks,
            Err(error) => assert!(std::time::Instant::now() < limit, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    // A bare majority: the third is down.
    nodes.0[2].kill();
    let guard = lock(&locks, Duration::from_secs(2)).await.unwrap();
    nodes.0[2].restart();
    // The second one forgets everything.
    nodes.0[1].restart();
    let other = Locks::builder(&url).connect().await;
    let error = match other {
        Err(error) => error,
        Ok(other) => other.mutex(NAME).try_lock().await.expect_err("only one node may vote"),
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("has been up for"), "{error}");
    drop(guard);
}

/// The first holder's ticket is on the first two of three nodes, and the second node is killed and started again. Says
/// nothing if no second holder got in, else whether the fence then accepts a write of the first one.
async fn second_holder(args: &[&str]) -> Option<bool> {
    let mut nodes = Nodes::with(3, args);
    let quick = |nodes: &Nodes| nodes.url_with("young=allow&node_timeout=1s");
    nodes.0[2].kill();
    // By hand: a holder that is not renewed in the meantime, as one that is paused. Its lease has long to go.
    let one = locks(&quick(&nodes)).await;
    let first = inside(&enter(one.store(), &ticket(NAME)).await.unwrap());
    nodes.0[1].restart();
    nodes.0[2].restart();
    let two = locks(&quick(&nodes)).await;
    match two.mutex(NAME).try_lock().await {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Held, "{error}");
            None
        }
        Ok(second) => {
            let second = second.token();
            let first = Token::from_parts(first, Mode::Exclusive, second.name(), second.label()).expect("a good token");
            let mut marks = Marks::default();
            marks.accept(&second).expect("the later one may write");
            Some(marks.accept(&first).is_ok())
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_does_not_survive_a_node_that_comes_back_without_its_data_and_votes_at_once() {
    // This is why `young=allow` is only for new servers. The fence refuses whoever came first.
    let accepted = second_holder(&[]).await.expect("two holders at a time");
    assert!(!accepted, "the fence let the overtaken one write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_survives_a_killed_node_with_an_append_only_file() {
    // A killed process loses nothing that it has written; with everysec a power cut may cost the last second.
    for policy in ["everysec", "always"] {
        let judged = second_holder(&["--appendonly", "yes", "--appendfsync", policy]).await;
        assert_eq!(judged, None, "{policy}: a second holder");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_contenders_all_get_their_turn() {
    let nodes = Nodes::start(5);
    let url = nodes.url();
    let mut tasks = Vec::new();
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let marks = Arc::new(std::sync::Mutex::new(Vec::<Token>::new()));
    for _ in 0..4 {
        let locks = locks(&url).await;
        for _ in 0..3 {
            let (locks, inside, marks) = (locks.clone(), inside.clone(), marks.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = lock(&locks, Duration::from_secs(30)).await.expect("its turn");
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "alone");
                    marks.lock().unwrap().push(guard.token());
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    guard.release().await.expect("release");
                }
            }));
        }
    }
    for task in tasks {
        within(Duration::from_secs(60), "every contender", task).await.unwrap();
    }
    let marks = marks.lock().unwrap();
    assert_eq!(marks.len(), 60);
    assert!(marks.is_sorted_by(|a, b| a < b), "tokens grow with every grant");
}
