//! A node that is frozen inside past its lease: only the fence and the ways of the database come out right, on every kind of store.

use crate::story::{checked, strategy};
use crate::{at_once, together};

#[test]
fn a_pause_is_survived_by_the_fence_and_the_database_alone() {
    let _together = together();
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    let story = |words: &[&'static str]| {
        let common = ["story", "--pause", "--json", "--out", out];
        common.into_iter().chain(words.iter().copied()).collect::<Vec<&str>>()
    };
    let redis = ["--start", "redis", "--start", "postgres", "--only"];
    // Most of the time of each is the wait for a lease.
    let stories = [
        (10, story(&["--quick"])),
        (6, story(&[&redis[..], &["lock", "--only", "fenced", "--only", "striped"]].concat())),
        (4, story(&[&redis[..], &["set-nx-px-script", "--only", "lock-unfair", "--only", "optimistic"]].concat())),
        (
            4,
            story(&[
                "--start",
                "mariadb",
                "--only",
                "none",
                "--only",
                "for-update",
                "--only",
                "cas",
                "--only",
                "fenced",
            ]),
        ),
    ];
    let commands: Vec<Vec<&str>> = stories.iter().map(|(_, words)| words.clone()).collect();
    for ((expected, _), (table, told)) in stories.iter().zip(at_once(&commands)) {
        let rows = checked(&table, &told);
        assert_eq!(rows.len(), *expected, "{told}");
        for row in rows {
            let right = matches!(strategy(&row), "fenced" | "for-update" | "optimistic" | "cas");
            assert_eq!(row["verdict"], if right { "right" } else { "oversold" }, "{row}\n{told}");
            assert!(row["fault"].as_str().is_some_and(|fault| fault.contains("frozen")), "{row}");
        }
    }
}
