//! The ZooKeeper store against real servers: what it costs, what it says, and what becomes of it when something breaks.

mod alone;
mod cost;
mod faults;
mod follower;
mod proxy;
mod refusals;
#[allow(dead_code, reason = "shared with other tests of the store")]
mod server;
#[path = "../redis_store/support.rs"]
#[allow(dead_code, reason = "shared with the tests of another store")]
mod support;
mod tls;
#[cfg(target_os = "linux")]
mod together;
