//! What was committed of the last run agrees with itself: the program shows the speed that the newest run has found.

use std::path::{Path, PathBuf};

fn runs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("runs");
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn the_program_shows_what_the_newest_run_has_found() {
    let newest = runs().pop().expect("a committed run");
    let found = std::fs::read_to_string(newest.join("summary.tsv")).unwrap();
    let shown = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/fencelock-cli/src/measured.tsv");
    assert_eq!(std::fs::read_to_string(shown).unwrap(), found, "copy {}/summary.tsv there", newest.display());
}

#[test]
fn no_lock_of_a_committed_run_has_failed_its_proof() {
    for run in runs() {
        let text = std::fs::read_to_string(run.join("results.json")).unwrap();
        let results: serde_json::Value = serde_json::from_str(&text).unwrap();
        let proofs = results["proofs"].as_array().expect("proofs");
        assert!(!proofs.is_empty(), "{}", run.display());
        for proof in proofs.iter().filter(|proof| proof["not_run"].is_null()) {
            assert_eq!(proof["found"], proof["wanted"], "{proof}");
        }
    }
}
