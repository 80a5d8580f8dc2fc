//! Long runs: whether this is one, and what it has counted.

use std::io::Write;

/// Whether this is a long run.
pub(crate) fn soaking() -> bool {
    std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1")
}

/// A figure for `cargo xtask soak`. Not by a macro that is swallowed in a test that passes.
pub(crate) fn counted(what: &str) {
    std::io::stderr().write_all(format!("counted: {what}\n").as_bytes()).expect("somebody listens");
}
