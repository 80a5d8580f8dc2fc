//! Several processes on one limiter and on one register.

use crate::rounds;
use crate::server::Server;
use fencelock::limit::{Limit, Rate};
use fencelock::{ErrorKind, Locks};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RATE: u32 = 200;
const BURST: u32 = 30;
/// What all processes share. The odd burst and rate leave a remainder everywhere.
const LIMIT: Limit = Limit::token_bucket(Rate::per_second(RATE)).burst(BURST);
const LEAKY: Limit = Limit::leaky_bucket(Rate::per_second(RATE)).burst(BURST).nodelay();

/// Another process with a part to play; it begins when it is told to, and says one number in the end.
struct Process(Child);

impl Process {
    fn start(part: &str, url: &str) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "processes::process", "--nocapture", "--test-threads=1"])
            .env("FENCELOCK_TEST_PART", part)
            .env("FENCELOCK_TEST_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = Process(child.unwrap());
        process.hear("ready");
        process
    }

    fn tell(&mut self) {
        writeln!(self.0.stdin.as_mut().unwrap(), "go").unwrap();
    }

    /// What comes after the word. The reader is made anew each time, so one line at a time is read.
    fn hear(&mut self, word: &str) -> String {
        let out = self.0.stdout.as_mut().unwrap();
        let mut lines = BufReader::with_capacity(1, out).lines();
        loop {
            let line = lines.next().expect("it says what it found").unwrap();
            if let Some((_, rest)) = line.split_once(&format!("part {word}")) {
                return rest.trim().to_string();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The part of another process.
#[test]
#[ignore = "played by other processes of these tests"]
fn process() {
    let part = std::env::var("FENCELOCK_TEST_PART").expect("a part to play");
    let url = std::env::var("FENCELOCK_TEST_URL").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::connect(&url).await.unwrap();
        println!("part ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let found = match part.split_once(' ').unwrap() {
            ("tokens", millis) => hammer(&locks, LIMIT, millis.parse().unwrap()).await,
            ("leaky", millis) => hammer(&locks, LEAKY, millis.parse().unwrap()).await,
            ("count", times) => count(&locks, times.parse().unwrap()).await,
            other => panic!("no such part: {other:?}"),
        };
        println!("part found {found}");
    });
}

/// Tries all the time; says how often it was let through.
async fn hammer(locks: &Locks, limit: Limit, millis: u64) -> u64 {
    let limiter = locks.limiter("shared", limit);
    let (end, mut passed) = (Instant::now() + Duration::from_millis(millis), 0);
    while Instant::now() < end {
        match limiter.try_acquire().await {
            Ok(()) => passed += 1,
            Err(error) if error.kind() == ErrorKind::Limited => tokio::time::sleep(Duration::from_micros(300)).await,
            Err(error) => panic!("{error}"),
        }
    }
    passed
}

async fn count(locks: &Locks, times: u32) -> u64 {
    let counter = locks.register("counter");
    for _ in 0..times {
        let added = |value: Option<&[u8]>| -> Option<String> {
            let value = value.map_or(0, |value| std::str::from_utf8(value).unwrap().parse::<u32>().unwrap());
            Some((value + 1).to_string())
        };
        counter.update(added).await.unwrap();
    }
    times.into()
}

/// Starts them, lets them go at once, and says what each found and how long it took in all.
fn together(processes: usize, part: &str, url: &str) -> (u64, Duration) {
    let mut all: Vec<_> = (0..processes).map(|_| Process::start(part, url)).collect();
    let started = Instant::now();
    all.iter_mut().for_each(Process::tell);
    let sum = all.iter_mut().map(|process| process.hear("found").parse::<u64>().unwrap()).sum();
    (sum, started.elapsed())
}

fn urls(folder: &tempfile::TempDir, server: &Server) -> [String; 2] {
    [format!("sqlite:{}", folder.path().join("locks.db").display()), server.url()]
}

#[test]
fn four_processes_never_get_more_through_than_rate_and_burst() {
    let millis = rounds(1_500, 5_000);
    for part in ["tokens", "leaky"] {
        let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
        for url in urls(&folder, &server) {
            let (passed, took) = together(4, &format!("{part} {millis}"), &url);
            // Of a leaky bucket the first request is not counted.
            let most = f64::from(RATE) * took.as_secs_f64() + f64::from(BURST) + 1.0;
            assert!((passed as f64) <= most, "{url} {part}: {passed} in {took:?}, at most {most}");
            // They did try: half of it got through although the machine is busy with other things.
            let least = f64::from(RATE) * millis as f64 / 2_000.0 + f64::from(BURST) / 2.0;
            assert!((passed as f64) >= least, "{url} {part}: {passed} in {took:?}, at least {least}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_count_to_exactly_four_thousand() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
    for url in urls(&folder, &server) {
        let (sum, _) = together(8, "count 500", &url);
        let locks = Locks::connect(&url).await.unwrap();
        let value = locks.register("counter").load().await.unwrap().value.unwrap();
        assert_eq!((sum, std::str::from_utf8(&value).unwrap()), (4_000, "4000"), "{url}");
    }
}
