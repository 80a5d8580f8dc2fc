//! The Redis store against real servers: what it costs, what it says, and what becomes of it when something breaks.

mod cluster;
mod contract;
mod cost;
mod documented;
mod failover;
mod faults;
mod late;
mod nodes;
mod oracle;
mod outages;
mod proxy;
mod quorum;
mod refusals;
mod replicas;
mod sentinel;
mod server;
mod support;
mod tls;
mod totality;
mod trio;
