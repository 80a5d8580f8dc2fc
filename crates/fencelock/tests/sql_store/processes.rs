//! Several processes: this test program, started again as a worker.

use crate::soak::{counted, soaking};
use crate::{alone, deadlocks, disturb, fresh, soon};
use fencelock::{ErrorKind, Locks, Options};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts a worker that does `what`.
fn worker(what: &str, url: &str, counters: &Path, says: Stdio) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["processes::work", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("FENCELOCK_WORK", what)
        .env("FENCELOCK_WORK_URL", url)
        .env("FENCELOCK_WORK_COUNTERS", counters)
        .stdout(says)
        .stderr(Stdio::inherit())
        .spawn()
        .expect("a worker")
}

/// Connects, as often as it takes: others may end the connection while it is being made.
async fn connected(url: &str) -> Locks {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        match Locks::connect(url).await {
            Ok(locks) => return locks,
            Err(error) => {
                assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < limit, "{error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a worker does. Only ever run by the tests below.
#[tokio::test]
#[ignore = "run as a worker of the other tests"]
async fn work() {
    let what = std::env::var("FENCELOCK_WORK").expect("run by the other tests");
    let url = std::env::var("FENCELOCK_WORK_URL").expect("run by the other tests");
    let locks = connected(&url).await;
    match what.as_str() {
        "hold" => {
            let options = Options::new().lease(Duration::from_secs(2));
            let guard = locks.mutex("dead").lock_with(options).await.unwrap();
            println!("\nheld {}", guard.token());
            std::io::stdout().flush().unwrap();
            std::future::pending::<()>().await;
        }
        "count" => {
            let counters = std::path::PathBuf::from(std::env::var_os("FENCELOCK_WORK_COUNTERS").expect("a folder"));
            for i in 0..60_u32 {
                let name = format!("count/{}", i % 3);
                let guard = locks.mutex(&name).lock().await.unwrap();
                // Read, then write: two of us at once would lose one.
                let file = counters.join((i % 3).to_string());
                let count: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
                tokio::task::yield_now().await;
                std::fs::write(&file, (count + 1).to_string()).unwrap();
                guard.release().await.unwrap();
            }
        }
        "mix" => {
            let seconds = std::env::var("FENCELOCK_WORK_COUNTERS").expect("how long").parse().expect("seconds");
            mix(&locks, Instant::now() + Duration::from_secs(seconds)).await;
        }
        other => panic!("nobody knows how to {other}"),
    }
}

/// The lease of those who are killed in the middle of something.
const SHORT: Duration = Duration::from_secs(2);

/// A little of everything, on few names.
async fn mix(locks: &Locks, end: Instant) {
    let mut rounds = 0_u32;
    while Instant::now() < end {
        let (i, j) = (fastrand::u32(..3), fastrand::u32(..3));
        let options = || Options::new().lease(SHORT).wait(Duration::from_millis(fastrand::u64(..300)));
        let done = match fastrand::u32(..7) {
            0 | 1 => locks.mutex(&format!("mix/{i}")).lock_with(options()).await.map(drop),
            2 => locks.mutex(&format!("mix/{i}")).lock_with(options().unfair()).await.map(drop),
            3 => match locks.rwlock(&format!("mix/{i}")).read_with(options()).await {
                Ok(guard) => guard.try_upgrade().await.map(drop).map_err(fencelock::Error::from),
                Err(error) => Err(error),
            },
            4 => locks.semaphore("mix/permits", 3).acquire_many_with(1 + i % 2, options()).await.map(drop),
            5 => locks.register("mix").update(|_| Some("x")).await.map(drop),
            _ => {
                let names = [format!("mix/{i}"), format!("mix/{j}")];
                let names = if i == j { &names[..1] } else { &names[..] };
                locks.all(names).lock_with(options()).await.map(drop)
            }
        };
        match done.map_err(|error| (error.kind(), error)) {
            Ok(()) => rounds += 1,
            // Others are inside, or somebody has ended our statement or connection.
            Err((ErrorKind::Held | ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::Lost, _)) => {}
            Err((_, error)) => panic!("{error}"),
        }
    }
    println!("\ndone {rounds}");
}

/// Processes are killed, their statements and connections ended by the server, and nothing of ours ever deadlocks. With
/// `FENCELOCK_SOAK=1` for a minute.
#[tokio::test]
async fn whatever_is_killed_nothing_deadlocks_and_nothing_is_stuck() {
    // Others' statements would be ended as well.
    let (server, url) = alone().await;
    let seconds = if soaking() { 60 } else { 6 };
    let locks = Locks::connect(&url).await.unwrap();
    let before = deadlocks(&server).await;
    let end = Instant::now() + Duration::from_secs(seconds);
    let start = || {
        let left = end.saturating_duration_since(Instant::now()).as_secs().max(1);
        worker("mix", &url, Path::new(&left.to_string()), Stdio::null())
    };
    let mut workers: Vec<Child> = (0..8).map(|_| start()).collect();
    let mut killed = 0;
    while Instant::now() < end {
        disturb(&server).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        if fastrand::u32(..8) == 0 {
            let victim = fastrand::usize(..workers.len());
            // One that has failed is not hidden by being killed.
            assert!(workers[victim].try_wait().unwrap().is_none_or(|ended| ended.success()));
            workers[victim].kill().unwrap();
            workers[victim].wait().unwrap();
            workers[victim] = start();
            killed += 1;
        }
    }
    for mut one in workers {
        let ended = tokio::task::spawn_blocking(move || one.wait()).await.unwrap().unwrap();
        assert!(ended.success(), "a worker failed");
    }
    counted(&format!("{seconds} s, {killed} killed, {} deadlocks", deadlocks(&server).await - before));
    assert_eq!(deadlocks(&server).await, before);
    for i in 0..3 {
        let options = Options::new().wait(SHORT * 2 + Duration::from_secs(10));
        let guard = locks.mutex(&format!("mix/{i}")).lock_with(options).await;
        guard.expect("whoever was killed blocks for its lease").release().await.unwrap();
    }
}

#[tokio::test]
async fn a_killed_holder_blocks_for_its_lease_and_no_longer() {
    let (_server, url) = fresh().await;
    let locks = Locks::connect(&url).await.unwrap();
    let mut holder = worker("hold", &url, Path::new(""), Stdio::piped());
    let mut lines = BufReader::new(holder.stdout.take().expect("piped")).lines();
    let token: u64 = loop {
        let line = lines.next().expect("the worker says that it holds").unwrap();
        if let Some(token) = line.strip_prefix("held ") {
            break token.parse().unwrap();
        }
    };
    let waiting = tokio::spawn({
        let mutex = locks.mutex("dead");
        async move { mutex.lock().await }
    });
    soon("a place in the line", async {
        while locks.inspect("dead").await.unwrap().waiting.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    holder.kill().unwrap();
    holder.wait().unwrap();
    let killed = Instant::now();
    let guard = soon("our turn", waiting).await.unwrap().unwrap();
    // Two seconds of lease, and a machine that may be busy.
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert!(u64::from(guard.token()) > token);
}

#[tokio::test]
async fn processes_exclude_each_other_and_never_deadlock() {
    let (server, url) = fresh().await;
    let before = deadlocks(&server).await;
    let counters = tempfile::tempdir().unwrap();
    (0..3).for_each(|i| std::fs::write(counters.path().join(i.to_string()), "0").unwrap());
    let workers: Vec<Child> = (0..4).map(|_| worker("count", &url, counters.path(), Stdio::null())).collect();
    for mut one in workers {
        let ended = tokio::task::spawn_blocking(move || one.wait()).await.unwrap().unwrap();
        assert!(ended.success());
    }
    let count =
        |i: u32| -> u32 { std::fs::read_to_string(counters.path().join(i.to_string())).unwrap().parse().unwrap() };
    assert_eq!((0..3).map(count).sum::<u32>(), 4 * 60);
    assert_eq!(deadlocks(&server).await, before);
}
