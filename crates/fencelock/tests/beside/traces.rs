//! Every limiter decides as the simulation does, on random arrivals: local, memory and SQLite with a clock that is moved by hand;
//! Redis by its own script, with the server's clock taken out of it.

use crate::reference::{Reference, Shape};
use crate::server::Server;
use crate::{clock, random, rounds};
use fencelock::beside::{Ask, Beside, Limiters};
use fencelock::limit::bucket::Verdict;
use fencelock::limit::{Decision, Limit, Limiter, Rate};
use fencelock::store::BoxFuture;
use fencelock::store::memory::MemoryStore;
use fencelock::store::sqlite::SqliteStore;
use fencelock::{Error, ErrorKind, Locks, Result, VirtualClock};
use std::sync::Arc;
use std::time::Duration;

/// The limit script with the time as one more argument. A key lives on the server's clock, so its end is taken out as well.
const SCRIPT: &str = include_str!("../../src/store/redis/limit.lua");

fn shape(random: &mut fastrand::Rng) -> Shape {
    let per = [1, 250, 1_000, 60_000, 3_600_000][random.usize(..5)];
    let leaky = random.bool();
    let burst = random.u32(if leaky { 0..30 } else { 1..30 });
    let undelayed = [0, u32::MAX, random.u32(..10)][random.usize(..3)];
    Shape { leaky, count: random.u32(4..200), per: Duration::from_millis(per), burst, undelayed }
}

fn limit(shape: Shape) -> Limit {
    let rate = Rate::new(shape.count, shape.per);
    let limit = if shape.leaky { Limit::leaky_bucket(rate) } else { Limit::token_bucket(rate) };
    limit.burst(shape.burst).delay_after(shape.undelayed)
}

/// One arrival: so many microseconds after the last, so many requests, so long a wait.
type Arrival = (u64, u32, u64);

fn arrivals(random: &mut fastrand::Rng, shape: Shape, count: usize) -> Vec<Arrival> {
    // Around the rate, from far too fast to slow enough to recover.
    let each = u64::try_from(shape.per.as_micros()).unwrap() / u64::from(shape.count);
    let most = u64::from(shape.burst) + u64::from(shape.leaky);
    (0..count)
        .map(|_| {
            let gap = match random.u8(..10) {
                0..3 => 0,
                3..6 => random.u64(..=each),
                6..9 => random.u64(..=4 * each),
                _ => random.u64(..=(u64::from(shape.burst) + 3) * each),
            };
            let wait = [0, random.u64(..=each), random.u64(..=50 * each), u64::from(u32::MAX)][random.usize(..4)];
            (gap, if random.u8(..4) == 0 { random.u32(1..=most.min(5) as u32) } else { 1 }, wait)
        })
        .collect()
}

/// Plays a trace and says what was granted.
async fn play(what: &str, limiter: &Limiter, clock: &VirtualClock, shape: Shape, arrivals: &[Arrival]) -> usize {
    let mut reference = Reference::new(shape);
    let mut granted = 0;
    for (i, (gap, requests, at_most)) in arrivals.iter().enumerate() {
        clock.advance(Duration::from_micros(*gap));
        let now = clock.clock().now().as_nanos() / 1000;
        let before = reference.clone();
        let decided = limiter.reserve(*requests, Duration::from_micros(*at_most)).await;
        if Reference::new(shape).ask(now, *requests, *at_most).is_none() {
            assert_eq!(decided.unwrap_err().kind(), ErrorKind::InvalidInput, "they never could");
            continue;
        }
        let expected = reference.ask(now, *requests, *at_most);
        let decided = decided.unwrap();
        let context = || format!("{what}: arrival {i} of {shape:?}: {arrivals:?}");
        match (decided, expected) {
            (Decision::Granted { wait }, Some(expected)) => {
                assert_eq!(wait, Duration::from_micros(expected), "{}", context());
                granted += 1;
            }
            (Decision::Refused { retry_after }, None) => {
                // Then it would pass with as little waiting as ever, and a moment before it would not.
                let then = now + u64::try_from(retry_after.as_micros()).unwrap();
                let least = Reference::new(shape).ask(then, *requests, u64::MAX);
                assert_eq!(before.clone().ask(then, *requests, u64::MAX), least, "{}", context());
                let grain = if shape.leaky { 2_000 } else { 1 };
                if then > now + grain {
                    let early = before.clone().ask(then - grain, *requests, u64::MAX);
                    assert_ne!(early, least, "{retry_after:?}: {}", context());
                }
            }
            (decided, expected) => panic!("{decided:?}, not {expected:?}: {}", context()),
        }
    }
    granted
}

/// Random traces on one limiter each.
async fn compare(what: &str, traces: usize, clock: &VirtualClock, mut limiter: impl FnMut(usize, Limit) -> Limiter) {
    let mut random = random();
    let (mut granted, mut asked) = (0, 0);
    for trace in 0..traces {
        let shape = shape(&mut random);
        let arrivals = arrivals(&mut random, shape, 60);
        granted += play(what, &limiter(trace, limit(shape)), clock, shape, &arrivals).await;
        asked += arrivals.len();
    }
    assert!(granted > asked / 5 && granted < asked, "{granted} of {asked}: the traces do not test much");
}

#[tokio::test]
async fn local_limiters_decide_as_the_simulation_does() {
    let (virtual_clock, clock) = clock();
    let limiter = |_, limit| Limiter::local_with(limit, 10, clock.clone());
    compare("local", rounds(1_000, 10_000), &virtual_clock, limiter).await;
}

#[tokio::test]
async fn the_memory_store_decides_as_the_simulation_does() {
    let (virtual_clock, clock) = clock();
    let store = Arc::new(MemoryStore::with_clock(clock));
    let locks = Locks::with_store_and(Arc::new(MemoryStore::new()), Beside::all(&store));
    let limiter = |trace: usize, limit| locks.limiter("trace", limit).key(&trace.to_string());
    compare("memory", rounds(1_000, 10_000), &virtual_clock, limiter).await;
}

#[tokio::test]
async fn sqlite_decides_as_the_simulation_does() {
    let (virtual_clock, clock) = clock();
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open_in_boot(&folder.path().join("locks.db"), "boot", clock).unwrap());
    let locks = Locks::with_store_and(Arc::new(MemoryStore::new()), Beside::all(&store));
    let limiter = |trace: usize, limit| locks.limiter("trace", limit).key(&trace.to_string());
    compare("sqlite", rounds(1_000, 1_000), &virtual_clock, limiter).await;
}

/// Calls the script of the Redis store with the time of a virtual clock.
#[derive(Debug)]
struct Scripted {
    connection: redis::aio::MultiplexedConnection,
    script: redis::Script,
    clock: VirtualClock,
}

impl Limiters for Scripted {
    fn decide<'a>(&'a self, bucket: &'a str, ask: &'a Ask) -> BoxFuture<'a, Result<Verdict>> {
        Box::pin(async move {
            let rule = ask.rule;
            let mut call = self.script.key(format!("fencelock:bucket:{{{bucket}}}"));
            for number in [u64::from(rule.leaky), rule.cost, rule.give, rule.room, rule.free, ask.count, ask.at_most] {
                call.arg(number);
            }
            call.arg(self.clock.clock().now().as_nanos() / 1000);
            let answer: redis::RedisResult<String> = call.invoke_async(&mut self.connection.clone()).await;
            let answer = answer.map_err(|error| Error::unknown("the script failed").caused_by(error))?;
            let (granted, wait) = answer.split_once(' ').unwrap();
            Ok(Verdict { granted: granted == "1", wait: wait.parse().unwrap() })
        })
    }
}

#[tokio::test]
async fn the_script_of_redis_decides_as_the_simulation_does() {
    let (virtual_clock, _) = clock();
    let server = Server::start();
    let once = |text: &str, from: &str, to: &str| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text.replace(from, to)
    };
    let script = once(SCRIPT, "redis.call('TIME')", "{0, ARGV[8]}");
    let script = once(&script, ", 'PX', whole(fresh + from_now + 1)", "");
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let scripted = Scripted { connection, script: redis::Script::new(&script), clock: virtual_clock.clone() };
    let beside = Beside::nothing().with_limiters(Arc::new(scripted));
    let locks = Locks::with_store_and(Arc::new(MemoryStore::new()), beside);
    let limiter = |trace: usize, limit| locks.limiter("trace", limit).key(&trace.to_string());
    compare("redis", rounds(200, 1_000), &virtual_clock, limiter).await;
}
