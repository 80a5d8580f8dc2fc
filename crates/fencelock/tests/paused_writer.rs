//! The example of the paused writer runs on every store and does what it says: it ends with an error if a late write is accepted
//! anywhere.

#[path = "etcd_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the etcd store")]
mod etcd;
#[path = "../examples/paused_writer/main.rs"]
mod example;
#[path = "mysql_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the MySQL store")]
mod mysql;
#[path = "postgres_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the PostgreSQL store")]
mod postgres;
#[path = "redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the Redis store")]
mod redis;
#[path = "zookeeper_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the ZooKeeper store")]
mod zookeeper;

use libtest_mimic::{Arguments, Failed, Trial};

/// Runs it with this URL; `name` is that of the resource there.
fn runs(url: Option<&str>, name: &str) -> Result<(), Failed> {
    let refused = example::resources(url).map_err(|error| error.to_string())?;
    if !["gate", "SQLite", "HTTP", name].iter().all(|name| refused.contains(name)) {
        return Err(format!("only these have refused it: {refused:?}").into());
    }
    Ok(())
}

fn main() {
    if let Ok(url) = std::env::var(example::WRITER) {
        return example::writer(&url).expect("the writer");
    }
    let trials = vec![
        Trial::test("without_a_server", || runs(None, "gate")),
        Trial::test("on_redis", || runs(Some(&redis::Server::start().url()), "Redis")),
        Trial::test("on_postgres", || {
            let server = postgres::Server::shared();
            runs(Some(&format!("postgres://postgres@127.0.0.1:{}/postgres", server.port)), "PostgreSQL")
        }),
        Trial::test("on_mariadb", || {
            let server = mysql::Server::shared();
            let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
            let database = runtime.block_on(server.database());
            runs(Some(&server.url(&database)), "MySQL")
        }),
        Trial::test("on_zookeeper", || {
            let server = zookeeper::Server::start();
            runs(Some(&format!("zookeeper://127.0.0.1:{}", server.port())), "ZooKeeper")
        }),
        Trial::test("on_etcd", || runs(Some(&etcd::Cluster::one().url()), "etcd")),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
