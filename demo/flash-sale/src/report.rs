//! The table: as Markdown, JSON and SVG.

use crate::Result;
use crate::plan::Row;
use std::fmt::Write as _;
use std::path::Path;

const HEAD: [&str; 11] =
    ["strategy", "store", "nodes", "stock", "left", "sold", "oversold", "QPS", "mean ms", "p99 ms", "verdict"];

/// One row in one line.
pub(crate) fn line(row: &Row) -> String {
    let fault =
        if row.fault == "none" { String::new() } else { format!(" ({}; silent {} ms)", row.fault, row.stuck_ms) };
    format!(
        "{:<22} {:<22} left {:>4}, sold {:>4} of {:<4}, QPS {:>7.1}, p99 {:>8.2} ms: {}{fault}",
        row.strategy, row.store, row.stock_left, row.sold, row.stock, row.qps, row.p99_ms, row.verdict
    )
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.strategy.clone(),
        row.store.clone(),
        row.nodes.to_string(),
        row.stock.to_string(),
        row.stock_left.to_string(),
        row.sold.to_string(),
        row.oversold.to_string(),
        format!("{:.0}", row.qps),
        format!("{:.2}", row.mean_ms),
        format!("{:.2}", row.p99_ms),
        match row.verdict.as_str() {
            "right" => "right".into(),
            other => format!("**{other}**"),
        },
    ]
}

/// The whole table, padded so that it reads as text too. What could not be run, and why, has a row of its own.
pub(crate) fn markdown(rows: &[Row], missing: &[(String, String)]) -> String {
    let faulty = rows.iter().any(|row| row.fault != "none");
    let mut head: Vec<String> = HEAD.iter().map(|word| word.to_string()).collect();
    let mut table: Vec<Vec<String>> = rows.iter().map(cells).collect();
    if faulty {
        head.extend(["fault".to_string(), "silent ms".to_string()]);
        for (cells, row) in table.iter_mut().zip(rows) {
            cells.extend([row.fault.clone(), row.stuck_ms.to_string()]);
        }
    }
    for (store, why) in missing {
        let mut cells = vec![String::new(); head.len()];
        (cells[0], cells[1], cells[HEAD.len() - 1]) = ("all".into(), store.clone(), format!("*not run*: {why}"));
        table.push(cells);
    }
    let widths: Vec<usize> = (0..head.len())
        .map(|i| table.iter().map(|cells| cells[i].len()).chain([head[i].len()]).max().unwrap_or(0))
        .collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let mut out = line(&head);
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    out += &line(&rule);
    table.iter().for_each(|cells| out += &line(cells));
    if rows.iter().any(|row| row.store.ends_with("sqlite")) {
        out += "\nOn SQLite the naive read and the write are two statements of their own, since its transactions are \
                serialisable;\n`for-update` is `BEGIN IMMEDIATE` there. Elsewhere the read and the write share one transaction.\n";
    }
    out
}

/// Bars of the QPS, coloured by the verdict.
pub(crate) fn svg(rows: &[Row]) -> String {
    let most = rows.iter().map(|row| row.qps).fold(1.0, f64::max);
    let (height, left) = (26, 300);
    let mut bars = String::new();
    for (i, row) in rows.iter().enumerate() {
        let y = 46 + i * height;
        let width = (row.qps / most * 360.0).max(1.0);
        let colour = match row.verdict.as_str() {
            "right" => "#2f8f6b",
            "stuck" => "#b8862b",
            _ => "#c8453b",
        };
        let name =
            format!("{} · {} · {} node{}", row.strategy, row.store, row.nodes, if row.nodes == 1 { "" } else { "s" });
        let told = match row.oversold {
            0 => format!("{:.0}/s, {}", row.qps, row.verdict),
            n => format!("{:.0}/s, {n} too many", row.qps),
        };
        let _ = writeln!(
            bars,
            "<text x='{}' y='{}' text-anchor='end'>{name}</text><rect x='{left}' y='{y}' width='{width:.1}' height='17' \
             rx='3' fill='{colour}'/><text x='{:.1}' y='{}' class='n'>{told}</text>",
            left - 10,
            y + 13,
            left as f64 + width + 8.0,
            y + 13
        );
    }
    let full = 60 + rows.len() * height;
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 820 {full}' font-family='system-ui,sans-serif' font-size='12'>\
         <style>text{{fill:#333}}.n{{fill:#777}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.n{{fill:#999}}}}</style>\
         <text x='{left}' y='26' font-size='15'>Requests a second, and what became of the books</text>\n{bars}</svg>\n"
    )
}

/// All three, into a folder.
pub(crate) fn write(folder: &Path, rows: &[Row], missing: &[(String, String)]) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("story.md"), markdown(rows, missing))?;
    std::fs::write(folder.join("story.json"), serde_json::to_string_pretty(rows)? + "\n")?;
    std::fs::write(folder.join("story.svg"), svg(rows))?;
    Ok(())
}
