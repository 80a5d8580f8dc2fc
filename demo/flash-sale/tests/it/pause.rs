//! A node that is frozen inside past its lease: only the fence and the ways of the database come out right, on every kind of store.

use crate::story::{checked, strategy};
use crate::{at_once, together};

#[test]
fn a_pause_is_survived_by_the_fence_and_the_database_alone() {
    let _together = together();
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a path");
    // Most of the time of each is the wait for a lease.
    let on: [(&str, &[&str]); 5] = [
        ("sqlite", &["none", "process-lock", "for-update", "optimistic", "cas"]),
        ("sqlite", &["lock", "lock-unfair", "lock-per-product", "fenced", "striped"]),
        ("redis", &["lock", "fenced", "striped", "set-nx-px-script"]),
        ("mariadb", &["none", "for-update", "cas", "fenced"]),
        ("postgres", &["lock", "fenced", "optimistic", "none"]),
    ];
    let stories = on.map(|(server, strategies)| {
        let common = ["story", "--pause", "--json", "--out", out].into_iter();
        let servers = if server == "sqlite" { vec!["--quick"] } else { vec!["--start", server] };
        common.chain(servers).chain(strategies.iter().flat_map(|strategy| ["--only", strategy])).collect()
    });
    for ((server, strategies), (table, told)) in on.iter().zip(at_once(&stories)) {
        let rows = checked(&table, &told);
        assert_eq!(rows.len(), strategies.len(), "{told}");
        for row in rows {
            assert!(row["store"].as_str().is_some_and(|store| store.contains(server)), "{row}");
            let right = matches!(strategy(&row), "fenced" | "for-update" | "optimistic" | "cas");
            assert_eq!(row["verdict"], if right { "right" } else { "oversold" }, "{row}\n{told}");
            assert!(row["fault"].as_str().is_some_and(|fault| fault.contains("frozen")), "{row}");
        }
    }
}
