//! The Redis store against real servers: what it costs, what it says, and what becomes of it when something breaks.

mod cluster;
mod contract;
mod cost;
mod faults;
mod nodes;
mod oracle;
mod proxy;
mod quorum;
mod refusals;
mod sentinel;
mod server;
mod support;
mod tls;
mod totality;
