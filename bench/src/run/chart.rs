//! Pictures of a run, as SVG: bars for the rows of each store, and how the cost of a cycle grows with the crowd.

use super::plan::ROWS;
use super::results::Results;
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const BAR: f64 = 18.0;
const LEFT: f64 = 170.0;

/// Each with the name of its file.
pub(crate) fn all(results: &Results) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    for row in ROWS {
        let wanted = ["-one", "-own-64", "-hot-4x16", "-pingpong", "-idle-1000", "-hold-1000"];
        if !wanted.iter().any(|end| row.id.ends_with(end)) {
            continue;
        }
        let (figure, _) = row.work.compared()[0];
        let figure = if figure == "requests_s" { "client_mb" } else { figure };
        let locks = row.locks.iter().chain(row.more);
        let bars: Vec<(&str, f64)> =
            locks.filter_map(|lock| Some((*lock, results.median(row.id, lock, figure)?))).collect();
        if bars.len() > 1 {
            let unit = match figure {
                "cycles_s" => "cycles/s, more is better",
                "client_mb" => "MiB of the client, less is better",
                _ => "us, less is better",
            };
            let title = format!("{}: {} ({unit})", row.id, row.work.words());
            pictures.push((format!("{}.svg", row.id), bar_chart(&title, row.locks[0], &bars)));
        }
    }
    let crowd = [("redis-hot-4x2", 8.0), ("redis-hot-4x16", 64.0), ("redis-hot-4x64", 256.0)];
    let locks = ["redis", "redisson-lock", "redsync-fast", "rslock", "rslock-fast"];
    for (figure, unit, file) in [
        ("server_cpu_us", "server CPU per cycle in us", "growth-server-cpu.svg"),
        ("p99_us", "p99 of a wait in us", "growth-p99.svg"),
        ("requests", "requests per cycle", "growth-requests.svg"),
    ] {
        let lines: Vec<(&str, Vec<(f64, f64)>)> = locks
            .iter()
            .map(|lock| {
                (*lock, crowd.iter().filter_map(|(row, at)| Some((*at, results.median(row, lock, figure)?))).collect())
            })
            .filter(|(_, points): &(&str, Vec<_>)| points.len() > 1)
            .collect();
        if !lines.is_empty() {
            pictures.push((
                file.into(),
                line_chart(&format!("Redis, one name, 4 processes: {unit} against contenders"), &lines),
            ));
        }
    }
    pictures
}

fn frame(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"10\" y=\"20\" font-weight=\"bold\">{title}</text>\n"
    )
}

fn bar_chart(title: &str, ours: &str, bars: &[(&str, f64)]) -> String {
    let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = frame(40.0 + bars.len() as f64 * (BAR + 6.0), title);
    for (at, (lock, value)) in bars.iter().enumerate() {
        let y = 34.0 + at as f64 * (BAR + 6.0);
        let (width, middle) = ((WIDTH - LEFT - 90.0) * value / most, y + BAR * 0.72);
        let colour = match *lock {
            lock if lock == ours => "#1b6ca8",
            lock if lock.starts_with("floor-") => "#c9c9c9",
            _ => "#8aa0ae",
        };
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{lock}</text><rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{BAR}\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{middle:.1}\">{value:.0}</text>",
            LEFT - 8.0,
            LEFT + width + 6.0,
        );
    }
    text + "</svg>\n"
}

/// Both axes by powers: what doubles is a step.
fn line_chart(title: &str, lines: &[(&str, Vec<(f64, f64)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let range = |values: Vec<f64>| {
        let least = values.iter().copied().fold(f64::MAX, f64::min).max(0.001);
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max).max(least * 1.01);
        (least.ln(), most.ln())
    };
    let (xs, ys) = (range(points().map(|point| point.0).collect()), range(points().map(|point| point.1).collect()));
    let (bottom, top, right) = (280.0, 50.0, WIDTH - 160.0);
    let x = |value: f64| 70.0 + (right - 70.0) * (value.ln() - xs.0) / (xs.1 - xs.0);
    let y = |value: f64| bottom - (bottom - top) * (value.max(0.001).ln() - ys.0) / (ys.1 - ys.0);
    let mut text = frame(320.0, title);
    let colours = ["#1b6ca8", "#b5542c", "#6b8e23", "#8a5a9e", "#555555"];
    let mut labels: Vec<f64> = Vec::new();
    for ((lock, points), colour) in lines.iter().zip(colours) {
        let path: Vec<String> = points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (at, value) in points {
            let _ = writeln!(
                text,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"304\" text-anchor=\"middle\">{at}</text>",
                x(*at),
                y(*value),
                x(*at),
            );
        }
        let Some((at, value)) = points.last() else { continue };
        // Names that would lie on each other move down.
        let mut label = y(*value) + 4.0;
        while labels.iter().any(|other| (other - label).abs() < 13.0) {
            label += 13.0;
        }
        labels.push(label);
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{label:.1}\" fill=\"{colour}\">{lock} {value:.1}</text>",
            x(*at) + 8.0
        );
    }
    text + "</svg>\n"
}
