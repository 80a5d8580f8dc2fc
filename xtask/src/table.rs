//! A plain table: columns as wide as their widest cell, numbers to the right.

/// Lays out `rows` under `head`, one line each, with two spaces between columns.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let mut out = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            let gap = " ".repeat(width - cell.chars().count());
            let number = !cell.is_empty() && cell.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            out += &if number { format!("{gap}{cell}  ") } else { format!("{cell}{gap}  ") };
        }
        out.trim_end().to_string()
    };
    let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * (N - 1));
    let mut out = vec![line(head), rule];
    out.extend(rows.iter().map(|row| line(row.each_ref().map(String::as_str))));
    out.join("\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows = [["a".to_string(), "7".into()], ["größer".into(), "12.5".into()]];
        let shown = super::table(["name", "seconds"], &rows);
        assert_eq!(shown, "name    seconds\n---------------\na             7\ngrößer     12.5");
    }
}
