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
    for curve in CURVES {
        let along = |lock: &str| {
            let point = |(row, at): &(&str, f64)| Some((*at, results.median(row, lock, curve.figure)?));
            curve.along.iter().filter_map(point).collect::<Vec<(f64, f64)>>()
        };
        let lines = curve.locks.iter().map(|lock| (*lock, along(lock)));
        let lines: Vec<_> = lines.filter(|(_, points)| points.len() > 1).collect();
        if !lines.is_empty() {
            pictures.push((format!("growth-{}.svg", curve.file), line_chart(curve.title, &lines)));
        }
    }
    pictures
}

/// How one figure grows from row to row.
struct Curve {
    file: &'static str,
    title: &'static str,
    figure: &'static str,
    locks: &'static [&'static str],
    /// The rows, with what grows.
    along: &'static [(&'static str, f64)],
}

const CROWD: &[(&str, f64)] = &[("redis-hot-4x2", 8.0), ("redis-hot-4x16", 64.0), ("redis-hot-4x64", 256.0)];
const CROWDED: &[&str] = &["redis", "redisson-lock", "redsync-fast", "rslock", "rslock-fast"];
const IDLE: &[(&str, f64)] = &[("redis-idle-100", 100.0), ("redis-idle-1000", 1e3), ("redis-idle-10000", 1e4)];
const HELD: &[(&str, f64)] = &[("redis-hold-1000", 1e3), ("redis-hold-10000", 1e4)];
const NAMES: &[(&str, f64)] = &[("redis-hot-4x16", 1.0), ("redis-names-1000", 1e3), ("redis-names-100000", 1e5)];

const CURVES: &[Curve] = &[
    Curve {
        file: "server-cpu",
        title: "Redis, one name, 4 processes: server CPU per cycle in us against contenders",
        figure: "server_cpu_us",
        locks: CROWDED,
        along: CROWD,
    },
    Curve {
        file: "p99",
        title: "Redis, one name, 4 processes: p99 of a wait in us against contenders",
        figure: "p99_us",
        locks: CROWDED,
        along: CROWD,
    },
    Curve {
        file: "requests",
        title: "Redis, one name, 4 processes: requests per cycle against contenders",
        figure: "requests",
        locks: CROWDED,
        along: CROWD,
    },
    Curve {
        file: "idle-requests",
        title: "Redis: requests/s of those who only wait against their number",
        figure: "requests_s",
        locks: &["redis", "redisson-lock", "redisson-fair", "rslock"],
        along: IDLE,
    },
    Curve {
        file: "idle-memory",
        title: "Redis: MiB of the client against those who wait in it",
        figure: "client_mb",
        locks: &["redis", "redisson-lock", "redisson-fair", "rslock"],
        along: IDLE,
    },
    Curve {
        file: "held-requests",
        title: "Redis: requests/s to keep locks against their number",
        figure: "requests_s",
        locks: &["redis", "redisson-lock", "redisson-fair"],
        along: HELD,
    },
    Curve {
        file: "names-server-cpu",
        title: "Redis, 4 processes of 16 workers: server CPU per cycle in us against names",
        figure: "server_cpu_us",
        locks: &["redis", "floor-redis", "redsync", "rslock"],
        along: NAMES,
    },
];

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
    let mut text = frame(320.0, &format!("{title} (both by powers)"));
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
        let Some(((at, value), before)) = points.split_last() else { continue };
        for (at, value) in before {
            let (left, above) = (x(*at), y(*value) - 6.0);
            let _ = writeln!(
                text,
                "<text x=\"{left:.1}\" y=\"{above:.1}\" font-size=\"10\" fill=\"{colour}\">{value:.1}</text>"
            );
        }
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
