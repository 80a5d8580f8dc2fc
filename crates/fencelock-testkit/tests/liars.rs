//! The suite tested: a false claim about a store makes a named test fail, and the same test passes on the honest store.

use fencelock::store::{Store, memory::MemoryStore};
use fencelock_testkit::{Lie, Lying, Provider, Test};
use libtest_mimic::{Arguments, Failed, Trial};
use std::sync::Arc;
use std::time::Duration;

/// Each lie, the test that catches it, and what that says.
const CAUGHT: &[(Lie, &str, &str)] = &[
    (Lie::Fair, "admission::tickets_come_in_by_the_order_of_entering", "not let in"),
    (Lie::Queue, "admission::one_at_a_time", "not queued"),
    (Lie::Fencing, "tokens::they_grow_over_leaving", "token 7 after token 7"),
    (Lie::Push, "wait::a_waiter_is_told_within_a_second", "says that it pushes"),
    (Lie::Weights, "admission::readers_share_and_a_writer_excludes", "not admitted at once"),
    (Lie::Weights, "admission::permits_are_counted", "not admitted at once"),
    (Lie::Batch, "batches::if_one_finds_no_room_none_is_in_its_line", "although another was full"),
    (Lie::SettableToken, "tokens::at_least_raises_the_next_one", "was asked for"),
    (Lie::Upgrade, "change::an_upgrade_takes_a_new_id_and_kills_the_old_one", "1 after 1"),
    (Lie::Expel, "change::expelling_puts_out_that_one_only", "There"),
    (Lie::ShortestLease, "leases::the_shortest_lease_is_kept", "the shortest lease is said to be"),
    (Lie::LongestLease, "leases::the_longest_lease_is_kept", "the longest lease is said to be"),
    (Lie::OwnLease, "leases::a_lapsed_ticket_is_gone_for_everybody", "it has lapsed"),
    (Lie::Reach, "processes::another_process_sees_our_ticket", "other processes share it"),
];

fn memory() -> Provider {
    let store = MemoryStore::new();
    Provider::new("memory", move || {
        let client = store.clone();
        async move { Arc::new(client) as Arc<dyn Store> }
    })
    .lease(Duration::from_millis(300))
    .url("memory:liars")
}

fn test(name: &str) -> Test {
    fencelock_testkit::all().into_iter().find(|test| test.name == name).expect("a test of the suite")
}

/// The claim chooses the test, and the test finds it false.
fn is_caught(lie: Lie, name: &str, says: &str) -> Result<(), Failed> {
    let liar = memory().wrapped(move |store| Arc::new(Lying::new(store, lie)));
    let claimed = Lying::new(Arc::new(MemoryStore::new()), lie).capability();
    if let Some(missing) = test(name).missing(&claimed, &liar) {
        return Err(format!("{name} is not chosen for a store that claims {lie:?}: {missing}").into());
    }
    match test(name).run(&liar, fencelock_testkit::seed()) {
        Err(why) if why.contains(says) => Ok(()),
        Err(why) => Err(format!("{name} failed for another reason: {why}").into()),
        Ok(()) => Err(format!("{name} passed on a store that lies about {lie:?}").into()),
    }
}

/// Without the lie the same test passes, so it is the lie that it catches.
fn passes_on_the_honest_store(name: &str) -> Result<(), Failed> {
    let missing = test(name).missing(&MemoryStore::new().capability(), &memory());
    if missing.is_some() {
        return Ok(()); // the honest store does not claim it
    }
    test(name).run(&memory(), fencelock_testkit::seed()).map_err(Failed::from)
}

/// Every test of the suite has a name of its own.
fn names_are_unique() -> Result<(), Failed> {
    let mut names: Vec<_> = fencelock_testkit::all().iter().map(|test| test.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{} is there twice", pair[0]).into()),
        None => Ok(()),
    }
}

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
    // The liars are meant to be found out: what their tests say in their panics is not for the reader.
    std::panic::set_hook(Box::new(|_| {}));
    let mut trials = vec![Trial::test("names_are_unique", names_are_unique)];
    for &(lie, name, says) in CAUGHT {
        trials.push(Trial::test(format!("{lie:?} is caught by {name}"), move || is_caught(lie, name, says)));
        trials.push(Trial::test(format!("without {lie:?} {name} passes"), move || passes_on_the_honest_store(name)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
