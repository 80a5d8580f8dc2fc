//! Several processes: this test program, started again as a worker.

use crate::server::Server;
use crate::soon;
use fencelock::{Locks, Options};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts a worker that does `what`.
fn worker(what: &str, server: &Server, schema: &str, says: Stdio) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["processes::work", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("FENCELOCK_WORK", what)
        .env("FENCELOCK_WORK_URL", server.url(schema))
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
            let port: u16 = url.split([':', '/']).filter_map(|part| part.parse().ok()).next().expect("a port");
            let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
            let (sql, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            for i in 0..60_u32 {
                let name = format!("count/{}", i % 3);
                let guard = locks.mutex(&name).lock().await.unwrap();
                // Read, then write: two of us at once would lose one.
                let count: i64 = sql.query_one("SELECT n FROM counter WHERE name = $1", &[&name]).await.unwrap().get(0);
                sql.execute("UPDATE counter SET n = $2 WHERE name = $1", &[&name, &(count + 1)]).await.unwrap();
                guard.release().await.unwrap();
            }
        }
        other => panic!("nobody knows how to {other}"),
    }
}

#[tokio::test]
async fn a_killed_holder_blocks_for_its_lease_and_no_longer() {
    let server = Server::shared();
    let schema = Server::schema();
    let locks = Locks::connect(&server.url(&schema)).await.unwrap();
    let mut holder = worker("hold", &server, &schema, Stdio::piped());
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
    let server = Server::start(&[]);
    let sql = server.sql().await;
    sql.batch_execute(
        "CREATE TABLE counter (name text PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO counter VALUES ('count/0', 0), ('count/1', 0), ('count/2', 0)",
    )
    .await
    .unwrap();
    let workers: Vec<Child> = (0..4).map(|_| worker("count", &server, "count", Stdio::null())).collect();
    for mut one in workers {
        let ended = tokio::task::spawn_blocking(move || one.wait()).await.unwrap().unwrap();
        assert!(ended.success());
    }
    let sum: i64 = sql.query_one("SELECT sum(n)::bigint FROM counter", &[]).await.unwrap().get(0);
    assert_eq!(sum, 4 * 60);
    let deadlocks: i64 =
        sql.query_one("SELECT sum(deadlocks)::bigint FROM pg_stat_database", &[]).await.unwrap().get(0);
    assert_eq!(deadlocks, 0);
}
