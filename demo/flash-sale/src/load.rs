//! The customers: a closed loop. Each sends a request, waits for the answer, and sends the next.

use crate::Result;
use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Barrier;

/// Who comes, how often, and where to.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    /// Of several, each customer alternates.
    pub(crate) to: Vec<SocketAddr>,
    pub(crate) customers: usize,
    /// `None`: until they are told to stop.
    pub(crate) rounds: Option<usize>,
    pub(crate) products: u32,
    /// After this long a customer gives up on an answer.
    pub(crate) timeout: Duration,
}

/// What has come out so far; shared with whoever looks on.
pub(crate) struct Tally {
    inner: Mutex<Inner>,
    stop: AtomicBool,
}

struct Inner {
    micros: Histogram<u64>,
    sold: u64,
    sold_out: u64,
    failures: BTreeMap<String, u64>,
    started: Instant,
    last_answer: Instant,
    stuck: Duration,
    /// The sum of what each customer has spent in the shop.
    shopping: Duration,
    /// Since the last look.
    recent: Histogram<u64>,
    recent_since: Instant,
}

/// The numbers at the end.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Numbers {
    pub(crate) requests: u64,
    pub(crate) sold: u64,
    pub(crate) sold_out: u64,
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) qps: f64,
    pub(crate) mean_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// The longest time without an answer from the shop.
    pub(crate) stuck_ms: u64,
    pub(crate) seconds: f64,
    pub(crate) customers: usize,
    /// `customers / mean`, which must be the QPS.
    pub(crate) by_littles_law: f64,
}

/// The last moments, for the page.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Recent {
    pub(crate) qps: f64,
    pub(crate) mean_ms: f64,
    pub(crate) p99_ms: f64,
}

fn histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 600_000_000, 3).expect("bounds that are in order");
    histogram.auto(true);
    histogram
}

impl Tally {
    pub(crate) fn new() -> Arc<Tally> {
        let now = Instant::now();
        let inner = Inner {
            micros: histogram(),
            sold: 0,
            sold_out: 0,
            failures: BTreeMap::new(),
            started: now,
            last_answer: now,
            stuck: Duration::ZERO,
            shopping: Duration::ZERO,
            recent: histogram(),
            recent_since: now,
        };
        Arc::new(Tally { inner: Mutex::new(inner), stop: AtomicBool::new(false) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everybody goes home after the request that is under way.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn begin(&self) {
        let (mut inner, now) = (self.inner(), Instant::now());
        (inner.started, inner.last_answer, inner.recent_since) = (now, now, now);
    }

    fn count(&self, took: Duration, answer: Answer) {
        let (mut inner, now) = (self.inner(), Instant::now());
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        inner.micros.saturating_record(micros);
        inner.recent.saturating_record(micros);
        match answer {
            Answer::Sold | Answer::SoldOut => {
                inner.stuck = inner.stuck.max(now - inner.last_answer);
                inner.last_answer = now;
                if answer == Answer::Sold { inner.sold += 1 } else { inner.sold_out += 1 }
            }
            Answer::Failed(cause) => *inner.failures.entry(cause).or_default() += 1,
        }
    }

    /// How long nobody has got an answer by now.
    pub(crate) fn silence(&self) -> Duration {
        self.inner().last_answer.elapsed()
    }

    pub(crate) fn requests(&self) -> u64 {
        self.inner().micros.len()
    }

    /// What has come in since the last call.
    pub(crate) fn recent(&self) -> Recent {
        let mut inner = self.inner();
        let seconds = inner.recent_since.elapsed().as_secs_f64().max(0.001);
        let recent = Recent {
            qps: inner.recent.len() as f64 / seconds,
            mean_ms: inner.recent.mean() / 1000.0,
            p99_ms: inner.recent.value_at_quantile(0.99) as f64 / 1000.0,
        };
        inner.recent.clear();
        inner.recent_since = Instant::now();
        recent
    }

    /// All of it. The time of a customer is from its first request to its last answer; the QPS is what so many customers do in the
    /// mean of these times, so that the last stragglers do not count as idle customers.
    pub(crate) fn numbers(&self, customers: usize) -> Numbers {
        let inner = self.inner();
        let round = |x: f64| (x * 1000.0).round() / 1000.0;
        let requests = inner.micros.len();
        let mean_ms = inner.micros.mean() / 1000.0;
        let shopping = inner.shopping.as_secs_f64() / customers.max(1) as f64;
        let stuck = inner.stuck.max(if requests > 0 { inner.last_answer.elapsed() } else { Duration::ZERO });
        Numbers {
            requests,
            sold: inner.sold,
            sold_out: inner.sold_out,
            failures: inner.failures.clone(),
            qps: round(if shopping > 0.0 { requests as f64 / shopping } else { 0.0 }),
            mean_ms: round(mean_ms),
            p50_ms: round(inner.micros.value_at_quantile(0.5) as f64 / 1000.0),
            p99_ms: round(inner.micros.value_at_quantile(0.99) as f64 / 1000.0),
            stuck_ms: u64::try_from(stuck.as_millis()).unwrap_or(u64::MAX),
            seconds: round(inner.started.elapsed().as_secs_f64()),
            customers,
            by_littles_law: round(if mean_ms > 0.0 { customers as f64 * 1000.0 / mean_ms } else { 0.0 }),
        }
    }
}

impl Numbers {
    /// How far the QPS is from `customers / mean`: the generator's own idleness.
    pub(crate) fn off_littles_law(&self) -> f64 {
        if self.by_littles_law == 0.0 { 0.0 } else { (self.qps / self.by_littles_law - 1.0).abs() }
    }

    /// In words, failures and check included.
    pub(crate) fn told(&self) -> String {
        let causes: Vec<String> = self.failures.iter().map(|(cause, n)| format!("{n} {cause}")).collect();
        let off = self.off_littles_law() * 100.0;
        let law = if off <= 5.0 { "holds" } else { "DOES NOT HOLD: the customers were idle in between" };
        format!(
            "{} requests in {:.2} s: {} sold, {} sold out, failures: {}\n\
             QPS {:.1}, mean {:.2} ms, p50 {:.2} ms, p99 {:.2} ms, longest silence {} ms\n\
             QPS = customers / mean: {} / {:.2} ms = {:.1}, {off:.1} % apart: {law}",
            self.requests,
            self.seconds,
            self.sold,
            self.sold_out,
            if causes.is_empty() { "none".to_string() } else { causes.join(", ") },
            self.qps,
            self.mean_ms,
            self.p50_ms,
            self.p99_ms,
            self.stuck_ms,
            self.customers,
            self.mean_ms,
            self.by_littles_law,
        )
    }
}

/// Sends the crowd in and waits until all have gone home.
pub(crate) async fn run(crowd: &Crowd, tally: &Arc<Tally>) -> Result<Numbers> {
    let start = Arc::new(Barrier::new(crowd.customers + 1));
    let mut customers = tokio::task::JoinSet::new();
    for number in 0..crowd.customers {
        customers.spawn(customer(crowd.clone(), number, tally.clone(), start.clone()));
    }
    // All are connected: the clock starts.
    start.wait().await;
    tally.begin();
    while let Some(done) = customers.join_next().await {
        done?;
    }
    Ok(tally.numbers(crowd.customers))
}

async fn customer(crowd: Crowd, number: usize, tally: Arc<Tally>, start: Arc<Barrier>) {
    let mut lines: Vec<Option<Line>> = Vec::new();
    for address in &crowd.to {
        lines.push(connect(*address).await.ok());
    }
    start.wait().await;
    let began = Instant::now();
    let mut done = began;
    for round in 0.. {
        if crowd.rounds.is_some_and(|rounds| round >= rounds) || tally.stop.load(Ordering::Relaxed) {
            break;
        }
        let turn = (number + round) % crowd.to.len();
        // Everybody wants everything in turn, and no two begin with the same.
        let product = (number + round / crowd.to.len()) % crowd.products.max(1) as usize + 1;
        let sent = Instant::now();
        let request = ask(&mut lines[turn], crowd.to[turn], product);
        let answer = match tokio::time::timeout(crowd.timeout, request).await {
            Ok(answer) => answer,
            Err(_) => {
                lines[turn] = None;
                Answer::Failed("timed out".into())
            }
        };
        done = Instant::now();
        let lost = answer == Answer::Failed("no connection".into());
        tally.count(done - sent, answer);
        if lost {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    tally.inner().shopping += done - began;
}

type Line = SendRequest<Empty<Bytes>>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Sold,
    SoldOut,
    Failed(String),
}

async fn connect(to: SocketAddr) -> Result<Line> {
    let stream = tokio::net::TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (line, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(line)
}

async fn ask(line: &mut Option<Line>, to: SocketAddr, product: usize) -> Answer {
    // A kept connection may have been closed by the other side since: then once more on a new one, before anything was sent.
    let usable = match line.as_mut() {
        Some(line) => line.ready().await.is_ok(),
        None => false,
    };
    if !usable {
        *line = connect(to).await.ok();
    }
    let Some(sender) = line.as_mut() else { return Answer::Failed("no connection".into()) };
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("/stock/{product}/reduce"))
        .header("host", "shop")
        .header("content-length", "0")
        .body(Empty::new());
    let Ok(request) = request else { return Answer::Failed("no request".into()) };
    let answer = match sender.send_request(request).await {
        Ok(answer) => answer,
        Err(_) => {
            *line = None;
            return Answer::Failed("no connection".into());
        }
    };
    let status = answer.status();
    let Ok(body) = answer.into_body().collect().await else {
        *line = None;
        return Answer::Failed("no connection".into());
    };
    let body = body.to_bytes();
    match (status.as_u16(), body.trim_ascii()) {
        (200, b"sold") => Answer::Sold,
        (200, b"sold out") => Answer::SoldOut,
        (429, _) => Answer::Failed("limited".into()),
        (409, _) => Answer::Failed("conflict".into()),
        (412, _) => Answer::Failed("overtaken".into()),
        (502 | 504, _) => Answer::Failed("no connection".into()),
        (503, b"the lock was not to be had") => Answer::Failed("lock not had".into()),
        (status, _) => Answer::Failed(format!("status {status}")),
    }
}
