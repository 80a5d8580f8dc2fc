//! What is measured: the rows, who takes part in each, and what we want to see.

use super::servers::Kind;

/// A workload of `bench/README.md`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Pair {
        procs: usize,
        threads: usize,
        names: &'static str,
        hold_us: u32,
    },
    Idle {
        waiters: usize,
    },
    Hold {
        locks: usize,
    },
    Pingpong,
    /// From the start of the process to its first lock.
    Start,
    /// A program that takes a lock, runs `true` and lets go: from its start to its end.
    Command,
}

/// What is wanted of ours, compared with others: of several, with the best of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) figure: &'static str,
    pub(crate) wanted: Wanted,
    pub(crate) factor: f64,
    /// Nobody: the factor is the figure itself. A lock of another row is called `row/lock`.
    pub(crate) of: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    AtLeast,
    AtMost,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) kind: Kind,
    pub(crate) work: Work,
    /// Ours first, then those it is compared with.
    pub(crate) locks: &'static [&'static str],
    /// Only with `--all-peers`.
    pub(crate) more: &'static [&'static str],
    pub(crate) targets: &'static [Target],
}

/// The three rows of `--quick` and the peers in them.
pub(crate) const QUICK: [&str; 3] = ["redis-one", "redis-own-64", "redis-hot-4x16"];
pub(crate) const QUICK_PEERS: [&str; 7] =
    ["redis", "wire-redis", "floor-redis", "redisson-lock", "redisson-fair", "redsync", "rslock"];

/// Renewals come every ten seconds, everybody's by default: requests of those who stand still are counted over several of them.
pub(crate) const STANDING_SECS: f64 = 30.0;

const fn least(figure: &'static str, factor: f64, of: &'static [&'static str]) -> Target {
    Target { figure, wanted: Wanted::AtLeast, factor, of }
}

const fn most(figure: &'static str, factor: f64, of: &'static [&'static str]) -> Target {
    Target { figure, wanted: Wanted::AtMost, factor, of }
}

const fn row(
    id: &'static str,
    kind: Kind,
    work: Work,
    locks: &'static [&'static str],
    more: &'static [&'static str],
    targets: &'static [Target],
) -> Row {
    Row { id, kind, work, locks, more, targets }
}

const fn own(threads: usize) -> Work {
    Work::Pair { procs: 1, threads, names: "own", hold_us: 0 }
}

const fn hot(procs: usize, threads: usize, hold_us: u32) -> Work {
    Work::Pair { procs, threads, names: "one", hold_us }
}

/// Those who ask again and again, with their defaults and with the best setting that their documentation allows.
const POLLERS: &[&str] = &["redsync", "redsync-fast", "rslock", "rslock-fast"];
const REDIS: &[&str] = &["redis", "floor-redis", "redisson-lock", "redisson-fair", "redsync", "rslock"];
const REDIS_HOT: &[&str] = &[
    "redis",
    "redis-unfair",
    "floor-redis",
    "redisson-lock",
    "redisson-fair",
    "redsync",
    "redsync-fast",
    "rslock",
    "rslock-fast",
];
const REDIS_MORE: &[&str] = &["redisson-fenced", "spring-registry", "redislock", "redis-py", "node-redlock"];
const REDIS_MORE_HOT: &[&str] = &[
    "redisson-fenced",
    "spring-registry",
    "redislock",
    "redislock-fast",
    "redis-py",
    "redis-py-fast",
    "node-redlock",
    "node-redlock-fast",
];
/// Those who wait without asking, or renew.
const REDIS_STANDING: &[&str] = &["redis", "redisson-lock", "redisson-fair"];

/// Everything.
pub(crate) const ROWS: &[Row] = &[
    row(
        "redis-one",
        Kind::Redis,
        own(1),
        &["redis", "redis-asleep", "wire-redis", "floor-redis", "redisson-lock", "redisson-fair", "redsync", "rslock"],
        REDIS_MORE,
        &[
            least("cycles_s", 0.85, &["wire-redis"]),
            least("cycles_s", 1.0, &["redsync"]),
            least("cycles_s", 1.5, &["redisson-lock"]),
            most("requests", 2.0, &[]),
        ],
    ),
    row(
        "redis-own-64",
        Kind::Redis,
        own(64),
        REDIS,
        REDIS_MORE,
        &[
            least("cycles_s", 0.6, &["floor-redis"]),
            least("cycles_s", 10.0, &["redisson-lock"]),
            least("cycles_s", 1.5, &["redislock"]),
            most("server_cpu_us", 0.2, &["redisson-lock"]),
            most("requests", 2.0, &[]),
        ],
    ),
    row(
        "redis-hot-4x16",
        Kind::Redis,
        hot(4, 16, 0),
        REDIS_HOT,
        REDIS_MORE_HOT,
        &[
            least("cycles_s", 0.9, POLLERS),
            most("p99_us", 1.0 / 12.0, POLLERS),
            least("cycles_s", 0.8, &["floor-redis"]),
            most("p99_turns", 2.0, &[]),
            most("most_to_least", 1.5, &[]),
            most("requests", 2.05, &[]),
        ],
    ),
    row(
        "redis-hot-1x64",
        Kind::Redis,
        hot(1, 64, 0),
        REDIS_HOT,
        REDIS_MORE_HOT,
        &[
            least("cycles_s", 7.0, &["redisson-fair"]),
            least("cycles_s", 2.2, &["redisson-lock"]),
            most("requests", 2.05, &[]),
        ],
    ),
    row(
        "redis-hot-4x16-1ms",
        Kind::Redis,
        hot(4, 16, 1000),
        REDIS_HOT,
        REDIS_MORE_HOT,
        &[
            least("cycles_s", 1.0, POLLERS),
            least("cycles_s", 1.0, &["floor-redis"]),
            least("cycles_s", 0.95, &["postgres-hot-4x16-1ms/floor-postgres-session"]),
            most("p99_turns", 1.5, &[]),
            most("requests", 2.05, &[]),
        ],
    ),
    row("redis-hot-4x2", Kind::Redis, hot(4, 2, 0), REDIS_HOT, &[], &[]),
    row(
        "redis-hot-4x64",
        Kind::Redis,
        hot(4, 64, 0),
        &["redis", "redisson-lock", "redsync", "redsync-fast", "rslock", "rslock-fast"],
        &[],
        &[],
    ),
    row("redis-hot-1x8", Kind::Redis, hot(1, 8, 0), REDIS_HOT, &[], &[]),
    row(
        "redis-hot-1x256",
        Kind::Redis,
        hot(1, 256, 0),
        &["redis", "redisson-lock", "redsync", "redsync-fast", "rslock", "rslock-fast"],
        &[],
        &[],
    ),
    row(
        "redis-names-1000",
        Kind::Redis,
        Work::Pair { procs: 4, threads: 16, names: "1000", hold_us: 0 },
        REDIS,
        &[],
        &[],
    ),
    row(
        "redis-names-100000",
        Kind::Redis,
        Work::Pair { procs: 4, threads: 16, names: "100000", hold_us: 0 },
        &["redis", "floor-redis", "redsync", "rslock"],
        &[],
        &[],
    ),
    row(
        "redis-pingpong",
        Kind::Redis,
        Work::Pingpong,
        &["redis", "redisson-lock", "redisson-fair", "redsync", "redsync-fast", "rslock", "rslock-fast"],
        &[],
        &[most("p50_us", 0.5, &["redisson-lock"]), most("p50_us", 600.0, &[])],
    ),
    row(
        "redis-idle-100",
        Kind::Redis,
        Work::Idle { waiters: 100 },
        &["redis", "redisson-lock", "redisson-fair", "redsync", "rslock"],
        &[],
        &[most("requests_s", 1.0, &["redisson-lock", "redisson-fair", "redsync", "rslock"])],
    ),
    row(
        "redis-idle-1000",
        Kind::Redis,
        Work::Idle { waiters: 1000 },
        &["redis", "redisson-lock", "rslock"],
        &[],
        &[
            most("requests_s", 1.0, &["redisson-lock", "rslock"]),
            most("requests_s", 0.5, &[]),
            most("client_cpu_share", 1.0, &["redisson-lock", "rslock"]),
            most("client_mb", 0.1, &["redisson-lock"]),
        ],
    ),
    row("redis-idle-10000", Kind::Redis, Work::Idle { waiters: 10_000 }, &["redis"], &[], &[]),
    row(
        "redis-hold-1000",
        Kind::Redis,
        Work::Hold { locks: 1000 },
        REDIS_STANDING,
        &[],
        &[
            most("requests_s", 1.0, &["redisson-lock"]),
            most("client_cpu_share", 1.0, &["redisson-lock"]),
            most("client_mb", 0.1, &["redisson-lock"]),
        ],
    ),
    row(
        "redis-hold-10000",
        Kind::Redis,
        Work::Hold { locks: 10_000 },
        REDIS_STANDING,
        &[],
        &[
            most("requests_s", 4.0, &[]),
            most("requests_s", 1.0, &["redisson-lock"]),
            most("client_cpu_share", 1.0, &["redisson-lock"]),
            most("client_mb", 0.1, &["redisson-lock"]),
        ],
    ),
    row(
        "redis-start",
        Kind::Redis,
        Work::Start,
        &["redis", "floor-redis", "redisson-lock", "redsync", "rslock"],
        &["redis-py", "node-redlock"],
        &[],
    ),
    row(
        "zookeeper-one",
        Kind::Zookeeper,
        own(1),
        &["zookeeper", "floor-zookeeper", "curator-mutex"],
        &["kazoo-lock"],
        &[least("cycles_s", 1.0, &["curator-mutex"])],
    ),
    row(
        "zookeeper-own-64",
        Kind::Zookeeper,
        own(64),
        &["zookeeper", "floor-zookeeper", "curator-mutex"],
        &[],
        &[least("cycles_s", 1.3, &["curator-mutex"])],
    ),
    row(
        "zookeeper-hot-4x16",
        Kind::Zookeeper,
        hot(4, 16, 0),
        &["zookeeper", "curator-mutex"],
        &["kazoo-lock"],
        &[least("cycles_s", 2.0, &["curator-mutex"])],
    ),
    row(
        "zookeeper-pingpong",
        Kind::Zookeeper,
        Work::Pingpong,
        &["zookeeper", "curator-mutex"],
        &[],
        &[most("p50_us", 1.0, &["curator-mutex"])],
    ),
    row(
        "zookeeper-idle-100",
        Kind::Zookeeper,
        Work::Idle { waiters: 100 },
        &["zookeeper", "curator-mutex"],
        &[],
        &[most("requests_s", 1.0, &["curator-mutex"])],
    ),
    row(
        "zookeeper-hold-1000",
        Kind::Zookeeper,
        Work::Hold { locks: 1000 },
        &["zookeeper", "curator-mutex"],
        &[],
        &[most("requests_s", 1.0, &["curator-mutex"])],
    ),
    row(
        "etcd-one",
        Kind::Etcd,
        own(1),
        &["etcd", "floor-etcd", "etcd-mutex"],
        &[],
        &[least("cycles_s", 1.0, &["etcd-mutex"])],
    ),
    row("etcd-own-64", Kind::Etcd, own(64), &["etcd", "floor-etcd", "etcd-mutex"], &[], &[]),
    row(
        "etcd-hot-4x16",
        Kind::Etcd,
        hot(4, 16, 0),
        &["etcd", "etcd-mutex"],
        &[],
        &[least("cycles_s", 3.0, &["etcd-mutex"])],
    ),
    row(
        "etcd-pingpong",
        Kind::Etcd,
        Work::Pingpong,
        &["etcd", "etcd-mutex"],
        &[],
        &[most("p50_us", 1.0 / 15.0, &["etcd-mutex"]), most("p50_us", 6000.0, &[])],
    ),
    row(
        "etcd-idle-100",
        Kind::Etcd,
        Work::Idle { waiters: 100 },
        &["etcd", "etcd-mutex"],
        &[],
        &[most("requests_s", 1.0, &["etcd-mutex"])],
    ),
    row(
        "etcd-command",
        Kind::Etcd,
        Work::Command,
        &["fencelock-run", "etcdctl-lock"],
        &[],
        &[most("start_ms", 1.0, &["etcdctl-lock"])],
    ),
    row(
        "consul-one",
        Kind::Consul,
        own(1),
        &["consul", "consul-lock"],
        &[],
        &[least("cycles_s", 1.0, &["consul-lock"])],
    ),
    row("consul-own-64", Kind::Consul, own(64), &["consul", "consul-lock"], &[], &[]),
    row(
        "consul-hot-4x16",
        Kind::Consul,
        hot(4, 16, 0),
        &["consul", "consul-lock"],
        &[],
        &[most("p99_us", 0.1, &["consul-lock"])],
    ),
    row(
        "consul-pingpong",
        Kind::Consul,
        Work::Pingpong,
        &["consul", "consul-lock"],
        &[],
        &[most("p50_us", 1.0, &["consul-lock"])],
    ),
    row(
        "consul-command",
        Kind::Consul,
        Work::Command,
        &["fencelock-run", "consul-lock-program"],
        &[],
        &[most("start_ms", 1.0, &["consul-lock-program"])],
    ),
    row(
        "postgres-one",
        Kind::Postgres,
        own(1),
        &["postgres", "floor-postgres"],
        &[],
        &[least("cycles_s", 0.5, &["floor-postgres"])],
    ),
    row("postgres-own-64", Kind::Postgres, own(64), &["postgres", "floor-postgres"], &[], &[]),
    row(
        "postgres-hot-4x16",
        Kind::Postgres,
        hot(4, 16, 0),
        &["postgres", "postgres-session", "floor-postgres-session"],
        &[],
        &[],
    ),
    row(
        "postgres-session-own-16",
        Kind::Postgres,
        own(16),
        &["postgres-session", "floor-postgres-session"],
        &[],
        &[least("cycles_s", 0.9, &["floor-postgres-session"])],
    ),
    row(
        "postgres-session-hot-4x16",
        Kind::Postgres,
        hot(4, 16, 0),
        &["postgres-session", "floor-postgres-session"],
        &[],
        &[least("cycles_s", 0.9, &["floor-postgres-session"])],
    ),
    row(
        "postgres-hot-4x16-1ms",
        Kind::Postgres,
        hot(4, 16, 1000),
        &["postgres", "postgres-session", "floor-postgres-session"],
        &[],
        &[most("p99_turns", 1.5, &[])],
    ),
    row(
        "postgres-pingpong",
        Kind::Postgres,
        Work::Pingpong,
        &["postgres", "postgres-session"],
        &[],
        &[most("p50_us", 3000.0, &[])],
    ),
    row("mysql-one", Kind::Mysql, own(1), &["mysql", "floor-mysql"], &[], &[least("cycles_s", 0.5, &["floor-mysql"])]),
    row("mysql-own-64", Kind::Mysql, own(64), &["mysql", "floor-mysql"], &[], &[]),
    row("mysql-hot-4x16", Kind::Mysql, hot(4, 16, 0), &["mysql", "mysql-session", "floor-mysql-session"], &[], &[]),
    row(
        "mysql-session-own-16",
        Kind::Mysql,
        own(16),
        &["mysql-session", "floor-mysql-session"],
        &[],
        &[least("cycles_s", 0.8, &["floor-mysql-session"])],
    ),
    row(
        "mysql-session-hot-4x16",
        Kind::Mysql,
        hot(4, 16, 0),
        &["mysql-session", "floor-mysql-session"],
        &[],
        &[least("cycles_s", 0.8, &["floor-mysql-session"])],
    ),
    row(
        "mysql-pingpong",
        Kind::Mysql,
        Work::Pingpong,
        &["mysql", "mysql-session"],
        &[],
        &[most("p50_us", 25_000.0, &[])],
    ),
    row("sqlite-one", Kind::Sqlite, own(1), &["sqlite", "floor-sqlite"], &[], &[]),
    row("sqlite-own-64", Kind::Sqlite, own(64), &["sqlite", "floor-sqlite"], &[], &[]),
    row("sqlite-hot-4x16", Kind::Sqlite, hot(4, 16, 0), &["sqlite"], &[], &[]),
    row("sqlite-pingpong", Kind::Sqlite, Work::Pingpong, &["sqlite"], &[], &[]),
    row("sqlite-command", Kind::Sqlite, Work::Command, &["fencelock-run", "flock"], &[], &[]),
    row("sqlite-start", Kind::Sqlite, Work::Start, &["sqlite"], &[], &[]),
];

impl Work {
    /// In words.
    pub(crate) fn words(self) -> String {
        match self {
            Work::Pair { procs: 1, threads: 1, names: "own", .. } => "one worker, a name of its own".into(),
            Work::Pair { procs, threads, names, hold_us } => {
                let who = if procs == 1 {
                    format!("{threads} workers")
                } else {
                    format!("{procs} processes of {threads} workers")
                };
                let what = match names {
                    "own" => "a name each".to_string(),
                    "one" => "one name".to_string(),
                    many => format!("a random one of {many} names"),
                };
                let hold = if hold_us > 0 {
                    format!(", {} ms of work inside", f64::from(hold_us) / 1000.0)
                } else {
                    String::new()
                };
                format!("{who}, {what}{hold}")
            }
            Work::Idle { waiters } => format!("{waiters} waiters for one holder"),
            Work::Hold { locks } => format!("{locks} locks held"),
            Work::Pingpong => "hand-over between two clients".into(),
            Work::Start => "start of the process to its first lock".into(),
            Work::Command => "a program starts, locks, runs true, releases and ends".into(),
        }
    }

    /// The figures that are compared: whether more of it is better.
    pub(crate) fn compared(self) -> &'static [(&'static str, bool)] {
        match self {
            Work::Pair { names: "one", .. } => {
                &[("cycles_s", true), ("p99_us", false), ("requests", false), ("server_cpu_us", false)]
            }
            Work::Pair { .. } => &[("cycles_s", true), ("requests", false), ("server_cpu_us", false)],
            Work::Idle { .. } | Work::Hold { .. } => {
                &[("requests_s", false), ("client_cpu_share", false), ("client_mb", false)]
            }
            Work::Pingpong => &[("p50_us", false), ("p99_us", false)],
            Work::Start | Work::Command => &[("start_ms", false)],
        }
    }

    /// How long a window it needs, compared with the others.
    pub(crate) fn stretch(self) -> f64 {
        if self.stands_still() { 2.5 } else { 1.0 }
    }

    /// Whether nothing happens but what keeps locks alive.
    pub(crate) fn stands_still(self) -> bool {
        matches!(self, Work::Idle { .. } | Work::Hold { .. })
    }
}
