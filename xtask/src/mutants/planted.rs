//! The bugs that are planted, each with the tests that must catch it. A test that is worth its place has an entry here:
//! without one nobody knows that it can fail.

use super::Mutant;

/// Every planted bug.
pub(super) const PLANTED: &[Mutant] = &[
    Mutant {
        name: "rule-comparison",
        why: "a writer comes in beside readers",
        file: "crates/fencelock/src/line.rs",
        find: "ahead + u64::from(weight) <= u64::from(capacity)",
        replace: "{ let _ = weight; ahead < u64::from(capacity) }",
        package: "fencelock",
        args: &["--lib"],
        cfg: None,
        tests: &["line::tests::weight_within_capacity"],
    },
    Mutant {
        name: "one-mark-fence",
        why: "a paused writer wakes up and writes under a live reader",
        file: "crates/fencelock/src/fence.rs",
        find: "let by = if exclusive { self.exclusive.max(self.shared) } else { self.exclusive };",
        replace: "let by = self.exclusive;",
        package: "fencelock",
        args: &["--lib"],
        cfg: None,
        tests: &["fence::tests::two_marks_over_all_histories"],
    },
];
