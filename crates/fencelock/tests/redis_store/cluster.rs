//! A cluster: calls find the node that has the line, also while slots move and masters change.
//!
//! | fault | verdict |
//! |---|---|
//! | a slot was moved | the call is sent on; waiters are listened for on the new node and looked at |
//! | a slot is being moved | calls wait for up to a second, then `Unavailable` with no effect; nothing runs in between |
//! | a master dies, a replica takes over | what was replicated is kept, the rest is lost and told; tokens grow |
//! | a master dies, nobody takes over | its locks are lost at their deadlines, those of other masters are kept |

use crate::nodes::Nodes;
use crate::server::{Server, free_port};
use crate::support::{client, documented, enter, inside, least_rights, place, queued, soon, ticket, within};
use fencelock::clock::Moment;
use fencelock::store::{Presence, Renew, Renewed, Scope, Waited};
use fencelock::{Effect, ErrorKind, Locks, MutexGuard, Options, State};
use futures_util::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Barrier;

const SOON: Duration = Duration::from_secs(10);

fn names(nodes: &Nodes, stem: &str) -> Vec<String> {
    (0..3).map(|node| nodes.name_on(node, stem)).collect()
}

fn listeners(server: &Server) -> Vec<String> {
    server.command(&["PUBSUB", "SHARDCHANNELS", "fencelock:*"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_finds_its_node_after_a_slot_has_moved() {
    let nodes = Nodes::start();
    let (_locks, store) = client(&nodes.url()).await;
    let name = nodes.name_on(0, "a");
    let holder = ticket(&name);
    let token = inside(&enter(&store, &holder).await.unwrap());
    nodes.move_slot(nodes.slot(&name), 0, 1);
    // The first one is told where it is, the others know.
    let renewed = store.renew(&[Renew { place: holder.place.clone(), lease: holder.lease, at_least: None }]).await;
    assert!(matches!(renewed.unwrap()[..], [Renewed::There { .. }]));
    assert_eq!(nodes.servers[1].command::<u64>(&["EXISTS", &format!("fencelock:{{{name}}}")]), 1);
    let waiting = ticket(&name);
    assert!(queued(&enter(&store, &waiting).await.unwrap()) > token);
    nodes.move_slot(nodes.slot(&name), 1, 2);
    assert_eq!(store.leave(std::slice::from_ref(&holder.place)).await.unwrap(), [Presence::There]);
    let told = within(SOON, "the grant", store.wait(&waiting.place, Moment::FAR)).await.unwrap();
    assert!(matches!(told, Waited::Admitted { token: next } if next > token));
    let line = store.inspect(&waiting.place.name).await.unwrap();
    assert_eq!((line.inside.len(), line.waiting.len()), (1, 0));
    let listed = store.list("", None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|one| one.name.shown().to_string()).collect::<Vec<_>>(), [name]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_being_moved_stands_still() {
    let nodes = Nodes::start();
    let (locks, store) = client(&nodes.url()).await;
    let name = nodes.name_on(0, "a");
    let slot = nodes.slot(&name);
    let guard = locks.mutex(&name).lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    nodes.open_slot(slot, 0, 1);
    // The line's keys are still with the old owner, then with the new one: both refuse, the second one after `ASK`.
    for moved in [false, true] {
        if moved {
            nodes.move_keys(slot, 0, 1);
        }
        let error = enter(&store, &ticket(&name)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
        assert!(error.to_string().contains("being moved"), "{error}");
    }
    // A single key follows `ASK` all the way: that which marks a watched line.
    let mut hints = store.watch(Scope::Name(place(&name).name)).await.unwrap();
    let mutex = locks.mutex(&name);
    let waiting = tokio::spawn(async move { mutex.lock_within(SOON * 3).await });
    nodes.close_slot(slot, 0, 1);
    assert_eq!(nodes.servers[1].command::<u64>(&["EXISTS", &format!("fencelock:{{{name}}}:watch")]), 1);
    within(SOON, "the slot", async { while locks.inspect(&name).await.is_err() {} }).await;
    assert_eq!(guard.state(), State::Safe);
    let token = guard.token();
    guard.release().await.unwrap();
    let next = within(SOON, "the hand-off", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    within(SOON, "a hint", hints.next()).await.unwrap();
}

/// What the holders of one name saw: never two at once, and numbers that grow.
#[derive(Default)]
struct Seen {
    taken: AtomicBool,
    last: AtomicU64,
    grants: AtomicU64,
    /// How long somebody has waited, in milliseconds.
    longest: AtomicU64,
}

impl Seen {
    async fn hold(&self, guard: MutexGuard) {
        assert!(!self.taken.swap(true, Ordering::SeqCst), "granted twice");
        let token = u64::from(guard.token());
        assert!(self.last.swap(token, Ordering::SeqCst) < token, "tokens grow");
        tokio::task::yield_now().await;
        self.grants.fetch_add(1, Ordering::SeqCst);
        self.taken.store(false, Ordering::SeqCst);
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resharding_under_load_grants_nothing_twice_and_leaves_nobody_behind() {
    let nodes = Nodes::start();
    let clients = [Locks::connect(&nodes.url()).await.unwrap(), Locks::connect(&nodes.url()).await.unwrap()];
    let names = [nodes.name_on(0, "hot"), nodes.name_on(0, "warm")];
    let (seen, stop) = (Arc::new([Seen::default(), Seen::default()]), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for i in 0..16 {
        let (locks, name, seen, stop) = (clients[i % 2].clone(), names[i / 2 % 2].clone(), seen.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            let mutex = locks.mutex(&name);
            while !stop.load(Ordering::SeqCst) {
                let asked = Instant::now();
                let guard = within(SOON * 3, "a turn", mutex.lock()).await.unwrap();
                seen[i / 2 % 2].longest.fetch_max(asked.elapsed().as_millis() as u64, Ordering::SeqCst);
                seen[i / 2 % 2].hold(guard).await;
            }
        }));
    }
    let rounds = if std::env::var_os("FENCELOCK_SOAK").is_some() { 100 } else { 10 };
    let slots: Vec<usize> = names.iter().map(|name| nodes.slot(name)).collect();
    let nodes = tokio::task::spawn_blocking(move || {
        for round in 0..rounds {
            for slot in &slots {
                nodes.move_slot(*slot, round % 3, (round + 1) % 3);
            }
        }
        nodes
    });
    let nodes = nodes.await.unwrap();
    // They go on where the slots are now.
    let so_far: Vec<u64> = seen.iter().map(|seen| seen.grants.load(Ordering::SeqCst)).collect();
    soon("everybody goes on", || {
        seen.iter().zip(&so_far).all(|(seen, before)| seen.grants.load(Ordering::SeqCst) > before + 50)
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    for (name, seen) in names.iter().zip(&*seen) {
        let (grants, longest) = (seen.grants.load(Ordering::SeqCst), seen.longest.load(Ordering::SeqCst));
        println!("{rounds} moves of {name}: {grants} grants, nobody waited for longer than {longest} ms");
        assert_eq!(nodes.owner(name), rounds % 3);
        assert_eq!(clients[0].inspect(name).await.unwrap().inside.len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requests_for_a_cycle_however_many_wait() {
    let nodes = Nodes::start();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Locks::connect(&nodes.url()).await.unwrap());
    }
    let (rounds, workers) = (50, 64);
    let start = Arc::new(Barrier::new(workers + 1));
    let mut tasks = Vec::new();
    for i in 0..workers {
        let (locks, start) = (clients[i % 4].clone(), start.clone());
        tasks.push(tokio::spawn(async move {
            start.wait().await;
            for _ in 0..rounds {
                locks.mutex("hot").lock().await.unwrap().release().await.unwrap();
            }
        }));
    }
    let before = nodes.requests();
    start.wait().await;
    for task in tasks {
        task.await.unwrap();
    }
    let cycle = (nodes.requests() - before) as f64 / (workers * rounds) as f64;
    println!("{cycle:.4} requests for each cycle");
    assert!((2.0..=2.05).contains(&cycle), "{cycle} requests for each cycle");
    // One subscription for each client, and in the end none.
    let here = &nodes.servers[nodes.owner("hot")];
    assert_eq!(here.calls("ssubscribe"), 4);
    soon("nobody listens any more", || listeners(here).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_all_nodes_are_woken_and_then_not_listened_for() {
    let nodes = Nodes::start();
    let (one, two) = (Locks::connect(&nodes.url()).await.unwrap(), Locks::connect(&nodes.url()).await.unwrap());
    let names = names(&nodes, "a");
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for name in &names {
        held.push(one.mutex(name).lock().await.unwrap());
        let mutex = two.mutex(name);
        waiting.push(tokio::spawn(async move { mutex.lock().await }));
    }
    for (node, name) in names.iter().enumerate() {
        soon("the waiter is listened for", || listeners(&nodes.servers[node]).len() == 1).await;
        assert!(listeners(&nodes.servers[node])[0].starts_with(&format!("fencelock:{{{name}}}:inbox:")));
    }
    for (guard, next) in held.into_iter().zip(waiting) {
        let token = guard.token();
        guard.release().await.unwrap();
        let next = within(SOON, "the hand-off", next).await.unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
    }
    for server in &nodes.servers {
        soon("nobody listens any more", || listeners(server).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_slot_moves_is_woken() {
    let nodes = Nodes::start();
    let (one, two) = (Locks::connect(&nodes.url()).await.unwrap(), Locks::connect(&nodes.url()).await.unwrap());
    let name = nodes.name_on(0, "a");
    let slot = nodes.slot(&name);
    for listened in [true, false] {
        let (from, to) = if listened { (0, 1) } else { (1, 2) };
        let guard = one.mutex(&name).lock().await.unwrap();
        let mutex = two.mutex(&name);
        let waiting = tokio::spawn(async move { mutex.lock().await });
        soon("the waiter is listened for", || listeners(&nodes.servers[from]).len() == 1).await;
        nodes.move_slot(slot, from, to);
        if listened {
            soon("the waiter is listened for again", || listeners(&nodes.servers[to]).len() == 1).await;
        }
        // Otherwise the message may find nobody, and the look after the subscription finds the grant.
        guard.release().await.unwrap();
        within(SOON, "the hand-off", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
}

/// The script publishes when nobody listens yet: the look after the subscription finds the grant, long before the slow tick.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_before_the_subscription_is_found() {
    let nodes = Nodes::start();
    let may_listen = |may: &str| {
        for server in &nodes.servers {
            let words = ["ACL", "SETUSER", "locks", "on", ">secret", "allkeys", "allchannels", "+@all", may];
            let _: String = server.command(&words);
        }
    };
    may_listen("-ssubscribe");
    let url = nodes.url().replace("redis+cluster://", "redis+cluster://locks:secret@");
    let (_locks, store) = client(&url).await;
    let (holder, next) = (ticket("a"), ticket("a"));
    inside(&enter(&store, &holder).await.unwrap());
    let token = queued(&enter(&store, &next).await.unwrap());
    let server = &nodes.servers[nodes.owner("a")];
    soon("it tries to listen", || !server.command::<Vec<redis::Value>>(&["ACL", "LOG"]).is_empty()).await;
    store.leave(std::slice::from_ref(&holder.place)).await.unwrap();
    may_listen("+ssubscribe");
    let told = within(SOON, "the grant", store.wait(&next.place, Moment::FAR)).await.unwrap();
    assert_eq!(told, Waited::Admitted { token });
}

/// What the master has, its replica has (`WAIT` would ask for the writes of its own connection only).
async fn replicated(master: &Server) {
    soon("the replica has it all", || {
        let info: String = master.command(&["INFO", "replication"]);
        let number = |text: &str| text.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().ok();
        let sent = info.lines().find_map(|line| number(line.strip_prefix("master_repl_offset:")?));
        let read = info.lines().filter_map(|line| line.strip_prefix("slave0:")).flat_map(|line| line.split(','));
        let read = read.filter_map(|fact| number(fact.strip_prefix("offset=")?)).next();
        sent.is_some() && sent == read
    })
    .await;
}

async fn lock_again(locks: &Locks, name: &str) -> MutexGuard {
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        match locks.mutex(name).lock_within(SOON).await {
            Ok(guard) => return guard,
            Err(error) => assert!(Instant::now() < limit, "no new master: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_followed_and_tokens_grow() {
    let mut nodes = Nodes::with(3, 1);
    let (locks, other) = (Locks::connect(&nodes.url()).await.unwrap(), Locks::connect(&nodes.url()).await.unwrap());
    let (here, there, more) = (nodes.name_on(0, "a"), nodes.name_on(1, "a"), nodes.name_on(0, "b"));
    let lease = Options::new().lease(Duration::from_secs(60));
    let kept = locks.mutex(&here).lock_with(lease).await.unwrap();
    let apart = locks.mutex(&there).lock_with(Options::new().lease(Duration::from_secs(3))).await.unwrap();
    let mutex = other.mutex(&here);
    let waiting = tokio::spawn(async move { mutex.lock_with(Options::new().lease(Duration::from_secs(60))).await });
    soon("it waits", || listeners(&nodes.servers[0]).len() == 1).await;
    // Replicated: it must survive.
    replicated(&nodes.servers[0]).await;
    nodes.servers[0].kill();
    let after = lock_again(&locks, &more).await;
    assert_eq!(nodes.owner(&more), 3, "the replica");
    assert_eq!(kept.state(), State::Safe, "its ticket is on the new master too");
    assert_ne!(apart.state(), State::Lost, "the other masters have nothing to do with it");
    soon("the waiter is listened for on the new master", || listeners(&nodes.servers[3]).len() == 1).await;
    let token = kept.token();
    kept.release().await.unwrap();
    let next = within(SOON, "the hand-off on the new master", waiting).await.unwrap().unwrap();
    assert!(next.token() > token && after.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_replicated_is_lost_and_told() {
    let mut nodes = Nodes::with(3, 1);
    let locks = Locks::connect(&nodes.url()).await.unwrap();
    let (here, there) = (nodes.name_on(0, "a"), nodes.name_on(1, "a"));
    let elsewhere = locks.mutex(&there).lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    // The replica is cut off: it would read what was sent to it although it stood still.
    nodes.servers[3].signal("STOP");
    assert_eq!(nodes.servers[0].command::<u64>(&["CLIENT", "KILL", "TYPE", "replica"]), 1);
    let guard = locks.mutex(&here).lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    nodes.servers[0].kill();
    nodes.servers[3].signal("CONT");
    // Long before its lease ends, and without a renewal being due: the new master is asked as soon as there is one.
    within(SOON * 2, "the loss", guard.lost()).await;
    assert_eq!(elsewhere.state(), State::Safe);
    let next = lock_again(&locks, &here).await;
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_down_costs_only_its_own_locks() {
    let mut nodes = Nodes::start();
    let locks = Locks::builder(&nodes.url()).lease(Duration::from_secs(3)).connect().await.unwrap();
    let mut guards = Vec::new();
    for name in names(&nodes, "a") {
        guards.push(locks.mutex(&name).lock().await.unwrap());
    }
    let gone = nodes.name_on(2, "b");
    nodes.servers[2].kill();
    within(SOON, "the loss", guards[2].lost()).await;
    // Two leases on, the others are still there.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for guard in &guards[..2] {
        assert_ne!(guard.state(), State::Lost);
    }
    let again = Locks::connect(&nodes.url()).await.expect("two of three masters are there");
    for locks in [&locks, &again] {
        let free = locks.mutex(&nodes.name_on(0, "b")).try_lock().await.expect("the others serve new locks too");
        free.release().await.unwrap();
    }
    let error = again.mutex(&gone).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_master_that_comes_back_is_not_asked_any_more() {
    let nodes = Nodes::with(3, 1);
    let locks = Locks::connect(&nodes.url()).await.unwrap();
    let (name, more) = (nodes.name_on(0, "a"), nodes.name_on(0, "b"));
    let first = locks.mutex(&name).lock_with(Options::new().lease(Duration::from_secs(60))).await.unwrap();
    replicated(&nodes.servers[0]).await;
    nodes.servers[0].signal("STOP");
    let after = lock_again(&locks, &more).await;
    nodes.servers[0].signal("CONT");
    assert!(after.token() > first.token());
    assert_eq!(first.state(), State::Safe);
    // Written where it is read, and where everybody else looks.
    let other = Locks::connect(&nodes.url()).await.unwrap();
    for locks in [&locks, &other] {
        assert_eq!(locks.inspect(&more).await.unwrap().inside.len(), 1);
    }
    assert_eq!(other.mutex(&name).try_lock().await.unwrap_err().kind(), ErrorKind::Held);
}

/// It takes seconds to find out that it does not answer: many callers, one after the other, would take minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_goes_on_waiting_for_a_master_that_was_replaced() {
    let nodes = Nodes::with(3, 1);
    let (_locks, store) = client(&nodes.url()).await;
    let name = nodes.name_on(0, "a");
    enter(&store, &ticket(&name)).await.unwrap();
    nodes.servers[0].signal("STOP");
    // One call after the other: whenever the new master is found, some are under way that the old one was asked.
    let mut asked = tokio::task::JoinSet::new();
    let mut ended = Vec::new();
    let limit = Instant::now() + Duration::from_secs(60);
    while !ended.iter().any(Result::is_ok) {
        assert!(Instant::now() < limit, "no new master: {ended:?}");
        let (store, name) = (store.clone(), place(&name).name);
        asked.spawn(async move { store.inspect(&name).await.map(drop) });
        tokio::time::sleep(Duration::from_millis(20)).await;
        while let Some(answer) = asked.try_join_next() {
            ended.push(answer.unwrap());
        }
    }
    within(SOON, "whoever asked the old one", async {
        while let Some(answer) = asked.join_next().await {
            ended.push(answer.unwrap());
        }
    })
    .await;
    nodes.servers[0].signal("CONT");
    for error in ended.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_rights_are_enough() {
    let nodes = Nodes::start();
    let more = documented().lines().find(|line| line.contains("+ssubscribe")).expect("what a cluster needs is told");
    let more = more.split_whitespace().map(|word| word.trim_matches(['`', '.'])).filter(|word| word.starts_with('+'));
    let rights: Vec<&str> = least_rights().into_iter().chain(more).collect();
    for server in &nodes.servers {
        let _: String = server.command(&rights);
    }
    let url = nodes.url().replace("redis+cluster://", "redis+cluster://locks:secret@");
    let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    assert!(!format!("{one:?} {:?}", one.info()).contains("secret"));
    let error = Locks::connect(&url.replace("secret", "wrong")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let name = nodes.name_on(0, "a");
    let guard = one.mutex(&name).lock().await.unwrap();
    let mutex = two.mutex(&name);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    soon("it waits", || listeners(&nodes.servers[0]).len() == 1).await;
    nodes.move_slot(nodes.slot(&name), 0, 1);
    guard.release().await.unwrap();
    let next = within(SOON, "the hand-off", waiting).await.unwrap().unwrap();
    let mut hints = one.store().watch(Scope::Name(place(&name).name)).await.unwrap();
    assert!(one.break_ticket(&name, next.token()).await.unwrap());
    within(SOON, "being told", next.lost()).await;
    within(SOON, "a hint", hints.next()).await.unwrap();
    assert_eq!(one.list("").await.unwrap().len(), 0);
    one.mutex(&name).lock_with(Options::new().unfair()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_is_no_cluster_is_refused_and_the_other_way_round() {
    let nodes = Nodes::start();
    let node = &nodes.servers[0];
    let error = Locks::connect(&node.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let cure = format!("redis+cluster://127.0.0.1:{}", node.port());
    assert!(error.to_string().contains(&cure), "{error}");
    Locks::connect(&cure).await.unwrap();
    let one_down = nodes.url().replace("redis+cluster://", "redis+cluster://127.0.0.1:1,");
    Locks::connect(&one_down).await.unwrap();
    let alone = Server::start();
    let error = Locks::connect(&alone.url().replace("redis://", "redis+cluster://")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("redis://127.0.0.1"), "{error}");
    for (url, part) in [
        (format!("{cure}/1"), "no databases"),
        (format!("{cure}?db=1"), "knows no option"),
        ("redis+cluster://".into(), "HOST:PORT"),
        ("redis+cluster://u:secret@host".into(), "HOST:PORT"),
        ("redis+cluster://u:secret@:7".into(), "HOST:PORT"),
    ] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
        assert!(error.to_string().contains(part), "{url}: {error}");
        assert!(!format!("{error:?}").contains("secret"));
    }
}

#[tokio::test]
async fn a_cluster_that_is_down_is_told() {
    let node = Server::with(&["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]);
    let url = format!("redis+cluster://127.0.0.1:{}", node.port());
    let error = Locks::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("the cluster is down"), "{error}");
    let (nodes, name) = (Nodes::start(), "a");
    let (_locks, store) = client(&nodes.url()).await;
    enter(&store, &ticket(name)).await.unwrap();
    let _: redis::Value =
        nodes.servers[nodes.owner(name)].command(&["CLUSTER", "DELSLOTS", &nodes.slot(name).to_string()]);
    let error = enter(&store, &ticket(name)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.to_string().contains("the cluster is down"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    fencelock_testkit::certificates(dir.path());
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    // The nodes' own port is this one and 10,000.
    let port = std::iter::repeat_with(free_port).find(|port| *port < 55_000).unwrap().to_string();
    let cluster = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--tls-cluster", "yes"];
    let files = [file("ca.crt"), file("server.crt"), file("server.key")];
    let [ca, cert, key] = &files;
    let tls = ["--tls-port", &port, "--tls-ca-cert-file", ca, "--tls-cert-file", cert, "--tls-key-file", key];
    let node = Server::with(&[cluster.as_slice(), &tls].concat());
    let _: redis::Value = node.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    soon("it is up", || node.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")).await;
    let url = format!("rediss+cluster://localhost:{port}");
    let good = format!("{url}?ca={ca}&cert={}&key={}", file("client.crt"), file("client.key"));
    let (one, two) = (Locks::connect(&good).await.unwrap(), Locks::connect(&good).await.unwrap());
    assert_eq!(one.info().address, url);
    let guard = one.mutex("a").lock().await.unwrap();
    let mutex = two.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    soon("it waits", || listeners(&node).len() == 1).await;
    guard.release().await.unwrap();
    within(SOON, "the hand-off", waiting).await.unwrap().unwrap().release().await.unwrap();
    let error = Locks::connect(&format!("{url}?ca={}", file("other.crt"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
