//! What a store may keep beside its lines: limiters and registers, for providers that say so.

mod limiters;
mod registers;

use crate::suite::Test;

pub(crate) fn all() -> Vec<Test> {
    [limiters::TESTS, registers::TESTS].concat()
}
