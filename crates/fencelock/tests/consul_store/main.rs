//! The Consul store against real servers: what it costs, what it says, who else it excludes, and what becomes of it when
//! something breaks. Where there is no Consul, this program says so and runs nothing.

mod access;
mod cost;
mod faults;
mod interop;
mod server;

use libtest_mimic::{Arguments, Trial};
use std::pin::Pin;
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

type Test = fn() -> Pin<Box<dyn Future<Output = ()>>>;

/// The tests by their names.
macro_rules! tests {
    ($($group:ident::$name:ident),+ $(,)?) => {
        [$((concat!(stringify!($group), "::", stringify!($name)), (|| Box::pin($group::$name())) as Test)),+]
    };
}

fn main() {
    let arguments = Arguments::from_args();
    if server::program().is_none() {
        println!("{}", server::MISSING);
        return;
    }
    let tests = tests!(
        access::tokens_and_rights,
        access::a_private_authority_and_client_certificates,
        cost::two_requests_for_a_cycle_that_nobody_contends,
        cost::everybody_gets_on_at_a_hot_name,
        faults::a_session_that_is_ended_is_told_at_once,
        faults::a_waiter_whose_session_is_ended_queues_again,
        faults::tokens_grow_although_the_key_was_deleted,
        faults::no_leader_is_no_loss,
        faults::a_leader_that_dies_or_stands_still,
        interop::consul_lock_and_our_mutex_exclude_each_other,
        interop::the_other_layout_is_named,
    );
    let trials = tests.map(|(name, test)| {
        Trial::test(name, move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime").block_on(test());
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}

/// How often something is done: seldom, or in a long run so many times.
pub(crate) fn rounds(seldom: usize, soak: usize) -> usize {
    if std::env::var_os("FENCELOCK_SOAK").is_some_and(|on| on == "1") { soak } else { seldom }
}

/// Waits for something that must come true soon.
pub(crate) async fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < limit, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Something that must end within this.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("{what} took longer than {limit:?}"))
}
