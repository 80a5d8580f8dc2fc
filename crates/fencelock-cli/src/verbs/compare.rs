//! `stores --compare`: which store for what. The words are those of `docs/choosing.md`; the speed is what the last committed run of
//! `fencelock-bench` found (`measured.tsv`, which a test of the bench compares with it).

use crate::output::{self, Output, to_json};
use serde::Serialize;

/// Lock and release pairs a second of one worker, of 64 with a name each, of 4 x 16 on one name; and the hand-over in microseconds.
const MEASURED: &str = include_str!("../measured.tsv");

/// One store.
#[derive(Serialize)]
struct Compared {
    store: &'static str,
    shared_by: &'static str,
    needs: &'static str,
    survives: &'static str,
    does_not_survive: &'static str,
    #[serde(flatten)]
    speed: Speed,
}

/// Nothing where it was not measured.
#[derive(Serialize, Default)]
struct Speed {
    one_worker_per_second: Option<u64>,
    own_names_per_second: Option<u64>,
    one_name_per_second: Option<u64>,
    hand_over_us: Option<u64>,
}

const STORES: [[&str; 5]; 10] = [
    ["memory", "one process", "nothing", "a task that panics or is cancelled", "the end of the process"],
    [
        "sqlite",
        "one host",
        "a file on a local disk",
        "kill -9 of any process, a restart, a power cut",
        "a file that is restored from a backup; a network file system (refused)",
    ],
    [
        "redis",
        "all who reach it",
        "one server",
        "a cut connection, a restart with its data, a forgotten script",
        "data that the server lost: may grant twice, with larger tokens",
    ],
    [
        "redis+sentinel, redis+cluster",
        "all who reach it",
        "a master, replicas and sentinels, or a cluster",
        "the loss of a master whose last writes were replicated",
        "a failover to a replica that was behind: may grant twice, with larger tokens",
    ],
    [
        "quorum",
        "all who reach it",
        "three or more independent Redis masters",
        "the loss of a minority of them",
        "a node that forgets while a lock is held; has no queue",
    ],
    [
        "zookeeper",
        "all who reach it",
        "an ensemble, Java",
        "the loss of a minority, leader changes",
        "the loss of a majority: nobody gets a lock until it is back",
    ],
    [
        "etcd",
        "all who reach it",
        "a cluster",
        "the loss of a minority, leader changes",
        "the loss of a majority: nobody gets a lock until it is back",
    ],
    [
        "consul",
        "all who reach it",
        "a cluster",
        "leader changes",
        "the loss of a majority: nobody gets a lock until it is back; leases are 10 s and more, a dead holder blocks for up to two",
    ],
    [
        "postgres",
        "all who reach it",
        "a database that you have anyway",
        "a restart, kill -9 of the server",
        "a failover to a standby that was behind: may grant twice, with the same tokens",
    ],
    [
        "mysql",
        "all who reach it",
        "a database that you have anyway",
        "a restart, kill -9 of the server",
        "a failover to a replica that was behind: may grant twice, with the same tokens; waiters poll",
    ],
];

fn speed(store: &str) -> Speed {
    let line = MEASURED.lines().find(|line| line.split('\t').next() == Some(store));
    let mut fields = line.into_iter().flat_map(|line| line.split('\t').skip(1)).map(|field| field.parse().ok());
    let mut next = || fields.next().flatten();
    Speed {
        one_worker_per_second: next(),
        own_names_per_second: next(),
        one_name_per_second: next(),
        hand_over_us: next(),
    }
}

pub(crate) fn run(output: Output) -> u8 {
    let stores = STORES.map(|[store, shared_by, needs, survives, does_not_survive]| Compared {
        store,
        shared_by,
        needs,
        survives,
        does_not_survive,
        speed: speed(store),
    });
    if output.json {
        output::data(&(to_json(&stores) + "\n"));
        return 0;
    }
    let mut text = String::new();
    for store in &stores {
        text += &format!("{}: shared by {}; needs {}\n", store.store, store.shared_by, store.needs);
        text += &format!("    survives {}\n    does not survive {}\n", store.survives, store.does_not_survive);
        let figure = |value: Option<u64>, words: &str| value.map(|value| format!("{value} {words}"));
        let figures = [
            figure(store.speed.one_worker_per_second, "locks/s by one worker"),
            figure(store.speed.own_names_per_second, "by 64 with a name each"),
            figure(store.speed.one_name_per_second, "by 64 on one name"),
            figure(store.speed.hand_over_us, "us for a hand-over"),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        let speed = if figures.is_empty() { "not measured".into() } else { figures.join(", ") };
        text += &format!("    {speed}\n");
    }
    text += "Measured on two cores with client and server on one machine; only ratios mean anything. docs/choosing.md says more.\n";
    output::data(&text);
    0
}
