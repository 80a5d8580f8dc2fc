//! How often an uncontended lock and its release allocate, all threads of the process together: a count that no noise touches. The bounds are
//! what was found (17, 28 and 33), and a little more; whoever allocates less lowers them.

use fencelock::Locks;

#[path = "../../crates/fencelock/tests/redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod redis_server;

#[global_allocator]
static COUNTING: dhat::Alloc = dhat::Alloc;

const CYCLES: u64 = 500;

/// Allocations for each cycle.
async fn per_cycle(url: &str) -> f64 {
    let locks = Locks::connect(url).await.unwrap();
    let mutex = locks.mutex("counted");
    let cycle = async || {
        mutex.lock().await.unwrap().release().await.unwrap();
    };
    // Connections, threads, buffers that are kept.
    for _ in 0..50 {
        cycle().await;
    }
    let before = dhat::HeapStats::get().total_blocks;
    for _ in 0..CYCLES {
        cycle().await;
    }
    let after = dhat::HeapStats::get().total_blocks;
    locks.close().await;
    (after - before) as f64 / CYCLES as f64
}

/// One test: what others allocate meanwhile would be counted with it.
#[test]
fn a_cycle_allocates_no_more_than_it_did() {
    let _counting = dhat::Profiler::builder().testing().build();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, folder) = (redis_server::Server::start(), tempfile::tempdir().unwrap());
    let bounds = [
        ("memory:".to_string(), 18.0),
        (format!("sqlite:{}", folder.path().join("locks.db").display()), 30.0),
        (server.url(), 36.0),
    ];
    for (url, bound) in bounds {
        let found = runtime.block_on(per_cycle(&url));
        let scheme = url.split(':').next().unwrap_or_default();
        eprintln!("{scheme}: {found:.1} allocations for a lock and its release");
        assert!(found <= bound, "{scheme}: {found:.1} allocations for a lock and its release, {bound} were enough");
    }
}
