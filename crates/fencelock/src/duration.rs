//! Durations as people write them in URLs and on command lines: `250ms`, `30s`, `5m`, `1h`, and `0`.

use std::time::Duration;

/// The longest that is taken: what is meant to last longer is better left out.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A whole number with its unit.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(fencelock::duration::parse("250ms"), Ok(Duration::from_millis(250)));
/// assert!(fencelock::duration::parse("1.5s").is_err());
/// ```
///
/// # Errors
/// What is wrong with it, in words for whoever wrote it.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || "not a duration: write 250ms, 30s, 5m or 1h".to_string();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err(wrong());
    }
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let too_long = || "too long: ten years are the most".to_string();
    let millis = number.parse::<u64>().ok().and_then(|n| n.checked_mul(millis)).ok_or_else(too_long)?;
    let duration = Duration::from_millis(millis);
    if duration > LONGEST { Err(too_long()) } else { Ok(duration) }
}
