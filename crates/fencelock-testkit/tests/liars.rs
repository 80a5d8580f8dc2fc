//! The suite tested: a false claim about a store makes a named test fail.

fn main() {
    fencelock_testkit::be_a_worker_if_asked();
}
