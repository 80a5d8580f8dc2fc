//! `stores`: what this build speaks, the URL forms, and what each store promises.

use crate::output::{self, Output, to_json};
use fencelock::connect::{COMMON_OPTIONS, SCHEMES, Scheme};
use serde::Serialize;

/// One store, for machines.
#[derive(Serialize)]
struct Store {
    scheme: &'static str,
    form: &'static str,
    about: &'static str,
    feature: &'static str,
    built_in: bool,
    options: Vec<&'static str>,
    promises: &'static [&'static str],
}

impl From<&Scheme> for Store {
    fn from(scheme: &Scheme) -> Store {
        Store {
            scheme: scheme.scheme,
            form: scheme.form,
            about: scheme.about,
            feature: scheme.feature,
            built_in: scheme.built_in,
            options: COMMON_OPTIONS.iter().chain(scheme.options).copied().collect(),
            promises: promises(scheme.scheme),
        }
    }
}

/// What a store promises, in words.
fn promises(scheme: &str) -> &'static [&'static str] {
    match scheme {
        "memory" => &["fair", "tokens grow while the process lives", "waiters are woken at once"],
        "sqlite" if cfg!(target_os = "linux") => {
            &["fair", "tokens grow for ever, restarts and power loss included", "waiters are woken at once"]
        }
        "sqlite" => &["fair", "tokens grow for ever, restarts and power loss included", "waiters ask again and again"],
        "redis" | "rediss" | "redis+unix" => &[
            "fair",
            "tokens grow over restarts, lost data included, while the server's clock does not go back",
            "waiters are woken at once",
        ],
        "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {
            &["fair", "a failover may give two holders, with tokens that tell them apart", "waiters are woken at once"]
        }
        "quorum" => &[
            "not fair",
            "goes on without a minority; a node that forgets may give two holders, with tokens that tell them apart",
            "no permits, no upgrade, nobody can be put out",
        ],
        "postgres" => &[
            "fair",
            "tokens grow for ever, while the database keeps what it has committed",
            "waiters are woken at once, or ask again and again behind a pooler",
        ],
        "mysql" => &[
            "fair",
            "tokens grow for ever, while the database keeps what it has committed",
            "waiters ask again and again, all of a process at once",
        ],
        "zookeeper" => &[
            "fair",
            "tokens grow for ever, also over leader changes",
            "waiters are woken at once",
            "exclusion with Curator's mutex and read-write lock",
        ],
        "etcd" | "etcds" => &[
            "fair",
            "tokens grow for ever, over the loss of any minority of the servers",
            "waiters are woken at once, and so is a holder whose session ends",
            "leases of 2 s and more",
        ],
        "consul" | "consuls" => &[
            "fair",
            "tokens grow for ever, over the loss of any minority of the servers",
            "waiters are woken at once",
            "leases of 10 s and more; a dead holder blocks for up to two of its leases",
            "layout=consul-lock shares the lock of `consul lock`: mutexes only, not fair",
        ],
        _ => &[],
    }
}

pub(crate) fn run(output: Output) -> u8 {
    let stores: Vec<Store> = SCHEMES.iter().map(Store::from).collect();
    if output.json {
        output::data(&(to_json(&stores) + "\n"));
        return 0;
    }
    let mut text = String::new();
    for store in stores {
        text += &format!("{}\n    for {}\n", store.form, store.about);
        if !store.promises.is_empty() {
            text += &format!("    {}\n", store.promises.join("; "));
        }
        text += &format!("    options: {}\n", store.options.join(", "));
        if !store.built_in {
            text += &format!("    not in this build: build with the feature \"{}\"\n", store.feature);
        }
    }
    output::data(&text);
    0
}
