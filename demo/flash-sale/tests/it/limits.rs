//! The limiters in front: the token bucket of a node, and nginx's two.

use crate::{ran, together};

/// How many were turned away, by what the load generator says.
fn limited(told: &str) -> u64 {
    let failures = told.split("failures: ").nth(1).unwrap_or_else(|| panic!("{told}"));
    let causes = failures.lines().next().unwrap_or_default();
    let of = causes.split(", ").find_map(|cause| cause.strip_suffix(" limited"));
    of.map_or(0, |n| n.parse().expect("a number"))
}

#[test]
fn the_token_bucket_lets_ten_a_second_through() {
    let _together = together();
    let (_, told) = ran(&["sale", "--strategy", "for-update", "--limit", "10/s", "--work", "0s", "--no-nginx"]);
    // Two nodes, and however long it took: ten a second and one to begin with, each.
    let seconds: f64 = told.split("requests in ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
    let through = 500 - limited(&told);
    assert!(through >= 2 && through as f64 <= 2.0 * (11.0 + 10.0 * seconds), "{told}");
}

#[test]
fn nginx_limits_requests_and_connections() {
    let _together = together();
    for words in [
        &["--limit-req", "20r/s", "--burst", "5", "--nodelay"][..],
        &["--conn-per-address", "5"],
        &["--conn-per-server", "5"],
    ] {
        let (_, told) = ran(&[&["sale", "--strategy", "for-update"][..], words].concat());
        let turned_away = limited(&told);
        assert!(turned_away > 0 && turned_away < 500, "{words:?}: {told}");
    }
}
