//! The example of the paused writer runs, and does what it says: it ends with an error if a late write is accepted anywhere.

#[path = "../examples/paused_writer.rs"]
mod example;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if std::env::var_os(example::WRITER).is_some() {
        return example::main().expect("the writer");
    }
    let trial =
        Trial::test("a_late_write_is_refused_everywhere", || example::main().map_err(|error| error.to_string().into()));
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}
