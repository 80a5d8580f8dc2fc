//! The table of faults in the docs names tests that exist.

use std::path::Path;

#[test]
fn every_test_that_the_docs_name_exists() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(here.join("../../docs/redis.md")).expect("the page is there");
    let mut named = 0;
    for (module, test) in docs.split('`').filter_map(|word| word.split_once("::")) {
        let file = here.join("tests/redis_store").join(module).with_extension("rs");
        let source = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("no file for {module}::{test}"));
        assert!(source.contains(&format!("fn {test}(")), "no test {module}::{test}");
        named += 1;
    }
    assert!(named > 30, "{named}");
}
