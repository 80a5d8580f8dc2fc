//! The user's types on top of the store: locks, guards, owners, waiting, losing, cancelling.

mod cancelling;
mod chaos;
mod crowds;
mod deadlines;
mod election;
mod faults;
mod holding;
mod multi;
mod mutexes;
mod owners;
mod runtimes;
mod terms;
mod unfair;

use crate::suite::Test;

pub(crate) fn all() -> Vec<Test> {
    [
        mutexes::all(),
        [
            holding::TESTS,
            terms::TESTS,
            deadlines::TESTS,
            owners::TESTS,
            multi::TESTS,
            election::TESTS,
            unfair::TESTS,
            cancelling::TESTS,
            faults::TESTS,
            runtimes::TESTS,
            crowds::TESTS,
            chaos::TESTS,
        ]
        .concat(),
    ]
    .concat()
}
