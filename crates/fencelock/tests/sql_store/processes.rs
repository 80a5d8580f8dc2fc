//! Several processes: this test program, started again as a worker.

use crate::{deadlocks, fresh, soon};
use fencelock::{Locks, Options};
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

/// What a worker does. Only ever run by the tests below.
#[tokio::test]
#[ignore = "run as a worker of the other tests"]
async fn work() {
    let what = std::env::var("FENCELOCK_WORK").expect("run by the other tests");
    let url = std::env::var("FENCELOCK_WORK_URL").expect("run by the other tests");
    let locks = Locks::connect(&url).await.unwrap();
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
        other => panic!("nobody knows how to {other}"),
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
    // Two seconds of lease; the slow tick alone would take five.
    assert!(killed.elapsed() < Duration::from_secs(4), "{:?}", killed.elapsed());
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
