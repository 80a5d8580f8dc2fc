//! A real terminal: the line that a wait shows, a child that wants the terminal, a pager behind us, `Ctrl-Z` and back.
#[test]
fn placeholder_replaced_below() {
    assert_eq!(1 + 1, 2);
}
