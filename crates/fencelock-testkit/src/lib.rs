//! The conformance suite of fencelock: every promise that a [`Store`](fencelock::store::Store) makes, as a named test.
//!
//! A store's own test file is about ten lines, in a test target with `harness = false`:
//!
//! ```no_run
//! use fencelock::store::{Store, memory::MemoryStore};
//! use fencelock_testkit::Provider;
//! use std::sync::Arc;
//!
//! fn main() {
//!     let store = MemoryStore::new();
//!     fencelock_testkit::main(Provider::new("memory", move || {
//!         let client = store.clone();
//!         async move { Arc::new(client) as Arc<dyn Store> }
//!     }));
//! }
//! ```
//!
//! - Which tests are run is decided by the store's declared [capability](fencelock::store::Capability); what it excludes is
//!   shown as ignored, with the reason, and each claim has a test that fails where it is false (`tests/liars.rs`).
//! - Tests use names of their own, so they run in parallel on one server and leave nothing behind.
//! - `FENCELOCK_SEED` repeats the random choices of a failed run; `FENCELOCK_SOAK=1` runs ten times as many rounds.
//! - [`check_fence`] holds a checker of fencing tokens to the rule of the two marks.
//! - [`certificates`] makes a private authority, for servers that speak TLS.
//! - [`Net`] is a network namespace for one server of several, whose link to the others can be cut.
//! - [`Peer`] is another client's program, told when to hold its lock: [`exclude_each_other`] and [`add_up`] hold it beside ours.
//! - [`Faulty`] and [`Lying`] are stores around a store, for tests of one's own.

mod beside;
pub mod ctx;
mod fence;
mod histories;
mod locks;
mod net;
mod peer;
mod provider;
mod store;
mod suite;
mod tls;
mod waiting;
mod wrap;

pub use fence::{Checker, check_fence};
pub use net::{Net, main_with_net};
pub use peer::{Peer, PeerTest, add_up, exclude_each_other, main_beside, peer_rounds, quietly};
pub use provider::{Open, Provider};
pub use suite::{Need, Test, all, be_a_worker_if_asked, main, main_of, seed};
pub use tls::certificates;
pub use waiting::{until_waiting, waiter, with_a_runtime};
pub use wrap::faulty::{Fault, Faulty, Valve, Verb};
pub use wrap::lying::{Lie, Lying};
