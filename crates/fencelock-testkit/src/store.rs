//! The store's own promises: each sentence of `fencelock::store`, verb by verb.

mod admission;
mod batches;
mod changing;
mod entering;
mod leases;
mod names;
mod processes;
mod seeing;
mod tokens;
mod waiting;

pub(crate) use processes::worker;

use crate::suite::Test;

pub(crate) fn all() -> Vec<Test> {
    [
        entering::TESTS,
        admission::TESTS,
        tokens::TESTS,
        leases::TESTS,
        changing::TESTS,
        batches::TESTS,
        waiting::TESTS,
        seeing::TESTS,
        names::TESTS,
        processes::TESTS,
    ]
    .concat()
}
