//! The leaky bucket against nginx itself: random arrivals are sent to a real server with `limit_req`, and its log says when each came, what
//! became of it and after how long; ours gets the same arrivals at the same milliseconds and must let as many through, within one.
//!
//! The log tells the time of day and the limit counts a clock of its own, so that an arrival on the edge of a millisecond may be one
//! off: that is the one.

use crate::server::GUARD;
use crate::{clock, random, rounds};
use fencelock::limit::{Decision, Limit, Limiter, Rate};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Rate per second, burst, and what the configuration says of the delay.
const ZONES: [(u32, u32, &str); 4] = [(20, 0, ""), (25, 8, ""), (40, 12, " nodelay"), (30, 10, " delay=4")];

fn limit(zone: usize) -> Limit {
    let (rate, burst, delay) = ZONES[zone];
    let limit = Limit::leaky_bucket(Rate::per_second(rate)).burst(burst);
    match delay.trim() {
        "" => limit,
        "nodelay" => limit.nodelay(),
        other => limit.delay_after(other.strip_prefix("delay=").unwrap().parse().unwrap()),
    }
}

/// A server in a folder of its own, with one worker; it dies with its standard input.
struct Nginx {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Nginx {
    fn start() -> Nginx {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let dir = folder.path().display();
            std::fs::write(folder.path().join("page"), "through").unwrap();
            let zones: String = ZONES
                .iter()
                .enumerate()
                .map(|(i, (rate, burst, delay))| {
                    format!(
                        "limit_req_zone $arg_trace zone=z{i}:1m rate={rate}r/s;
                         server {{ listen 127.0.0.1:{port}; server_name z{i}; root {dir};
                                   location / {{ limit_req zone=z{i} burst={burst}{delay}; limit_req_status 429; }} }}\n"
                    )
                })
                // A burst of none is the default and cannot be written.
                .map(|zone| zone.replace(" burst=0;", ";"))
                .collect();
            let config = format!(
                "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log crit;
                 events {{ worker_connections 1024; }}
                 http {{ log_format told '$arg_trace $connection $msec $request_time $status';
                         access_log {dir}/access.log told; keepalive_timeout 0;
                         client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
                         uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n{zones}}}"
            );
            let file = folder.path().join("nginx.conf");
            std::fs::write(&file, config).unwrap();
            let mut child = Command::new("sh")
                .args(["-c", GUARD, "sh"])
                .arg(program())
                .arg("-c")
                .arg(&file)
                .arg("-p")
                .arg(folder.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("a shell can be run");
            let limit = Instant::now() + Duration::from_secs(10);
            while child.try_wait().unwrap().is_none() && Instant::now() < limit {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Nginx { child, folder, port };
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            drop(child.stdin.take());
            let _ = child.wait();
        }
        panic!("nginx (of the package nginx-light) does not come up");
    }

    /// The log's lines of all traces, once there are so many.
    fn log(&self, lines: usize) -> Vec<Told> {
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            let text = std::fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
            if text.lines().count() >= lines {
                return text.lines().map(Told::read).collect();
            }
            assert!(Instant::now() < limit, "nginx has logged {} of {lines} requests", text.lines().count());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&places).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|place| place.join("nginx")).find(|path| path.is_file()).unwrap_or_else(|| "nginx".into())
}

/// What nginx told of a request.
#[derive(Clone, Debug)]
struct Told {
    trace: usize,
    connection: u64,
    /// When it came, in milliseconds of the time of day.
    came: u64,
    took: u64,
    passed: bool,
}

impl Told {
    fn read(line: &str) -> Told {
        let words: Vec<&str> = line.split(' ').collect();
        let millis = |text: &str| text.replace('.', "").parse::<u64>().unwrap();
        let (ended, took) = (millis(words[2]), millis(words[3]));
        let passed = match words[4] {
            "200" => true,
            "429" => false,
            other => panic!("nginx says {other}: {line}"),
        };
        let trace = words[0].parse().unwrap();
        Told { trace, connection: words[1].parse().unwrap(), came: ended - took, took, passed }
    }
}

/// The moments at which requests are sent: calm, storms and pauses; and one storm that is too much in any case.
fn arrivals(random: &mut fastrand::Rng, (rate, burst, _): (u32, u32, &str), length: Duration) -> Vec<Duration> {
    let storm = length.mul_f64(0.1 + 0.8 * random.f64());
    let mut moments = vec![storm; burst as usize + 6];
    let mut now = Duration::ZERO;
    while now < length {
        let each = Duration::from_secs(1) / rate;
        let count = random.usize(1..20);
        let pace = each.mul_f64([0.0, 0.3, 0.8, 1.0, 1.5][random.usize(..5)]);
        for _ in 0..count {
            moments.push(now);
            now += pace.mul_f64(2.0 * random.f64());
        }
        now += each.mul_f64(4.0 * random.f64());
    }
    moments.retain(|moment| *moment < length);
    moments
}

async fn request(port: u16, zone: usize, trace: usize) {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET /page?trace={trace} HTTP/1.1\r\nHost: z{zone}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.1 429"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leaky_bucket_lets_through_what_nginx_lets_through() {
    let (traces, length) = (rounds(4, 20), Duration::from_millis(rounds(1_500, 5_000) as u64));
    let nginx = Nginx::start();
    let mut random = random();
    let plans: Vec<_> = (0..traces).map(|trace| arrivals(&mut random, ZONES[trace % ZONES.len()], length)).collect();
    let sent: usize = plans.iter().map(Vec::len).sum();
    let started = tokio::time::Instant::now() + Duration::from_millis(20);
    let mut requests = tokio::task::JoinSet::new();
    for (trace, plan) in plans.iter().enumerate() {
        for moment in plan {
            let (port, at) = (nginx.port, started + *moment);
            requests.spawn(async move {
                tokio::time::sleep_until(at).await;
                request(port, trace % ZONES.len(), trace).await;
            });
        }
    }
    while let Some(done) = requests.join_next().await {
        done.unwrap();
    }
    let mut told = nginx.log(sent);
    told.sort_by_key(|told| (told.trace, told.came, told.connection));
    assert_eq!(told.len(), sent);
    for (trace, told) in told.chunk_by(|a, b| a.trace == b.trace).enumerate() {
        compare(trace, told).await;
    }
}

/// One trace: as many as nginx lets through, and nobody earlier, within one request.
async fn compare(trace: usize, told: &[Told]) {
    let (virtual_clock, clock) = clock();
    let limiter = Limiter::local_with(limit(trace % ZONES.len()), 1, clock);
    // When each that passed goes on.
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut before = told[0].came;
    for request in told {
        virtual_clock.advance(Duration::from_millis(request.came - before));
        before = request.came;
        if request.passed {
            theirs.push(request.came + request.took);
        }
        if let Decision::Granted { wait } = limiter.reserve(1, Duration::from_secs(60)).await.unwrap() {
            ours.push(request.came + u64::try_from(wait.as_millis()).unwrap());
        }
    }
    let story = format!("trace {trace} of {} requests: nginx passed {}, we {}", told.len(), theirs.len(), ours.len());
    eprintln!("{story}");
    assert!(ours.len().abs_diff(theirs.len()) <= 1, "{story}: {told:?}");
    assert!(!theirs.is_empty() && theirs.len() < told.len(), "{story}: nothing was tested");
    // Requests of one millisecond have no order in the log, so it is the departures that are compared.
    ours.sort_unstable();
    theirs.sort_unstable();
    // Two milliseconds for the two clocks; and one request more or less, which shifts those after it by one.
    for (k, (theirs, ours)) in theirs.iter().skip(1).zip(&ours).enumerate() {
        assert!(theirs + 2 >= *ours, "{story}: nginx let the {}th go at {theirs}, we the one before at {ours}", k + 2);
    }
}
