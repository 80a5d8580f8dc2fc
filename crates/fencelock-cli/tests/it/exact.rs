//! What it is all for: nobody works at the same time.

use crate::support::Home;

#[test]
fn an_unprotected_sum_is_exact() {
    let home = Home::new();
    let sum = home.path().join("sum");
    std::fs::write(&sum, "0 0\n").unwrap();
    // Reads, thinks, writes; and checks that its token is larger than all before.
    let script =
        r#"read n last < sum; [ "$FENCELOCK_TOKEN" -gt "$last" ] || exit 9; echo "$((n + 1)) $FENCELOCK_TOKEN" > sum"#;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let done = home.run(["run", "sum", "--", "sh", "-c", script]);
                    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
                }
            });
        }
    });
    let end = std::fs::read_to_string(&sum).unwrap();
    assert_eq!(end.split_whitespace().next(), Some("200"));
    home.assert_nothing_left();
}
