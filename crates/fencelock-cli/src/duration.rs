//! Durations as they are typed: `250ms`, `30s`, `5m`, `1h`, and `0`.

use std::time::Duration;

/// The shortest lease that every store can be asked for; some need longer ones and say so themselves.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// The longest lease.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 86_400);

pub(crate) use fencelock::duration::parse;

/// A duration that is not zero.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("must not be zero".into()),
        duration => Ok(duration),
    }
}

/// A lease that some store could keep: checked here, so that an impossible one creates nothing.
pub(crate) fn parse_lease(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        lease if lease < SHORTEST_LEASE => Err("too short: 100ms are the least".into()),
        lease if lease > LONGEST_LEASE => Err("too long: a year is the most".into()),
        lease => Ok(lease),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_the_manual_says_is_understood() {
        for (text, millis) in
            [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("0", 0), ("0s", 0), ("007s", 7000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in ["", "5", "s", "-5s", "+5s", "1.5s", "5 s", "5S", "5sec", "1h30m", " 5s", "5s ", "٣s", "1d"] {
            assert!(parse(text).unwrap_err().contains("250ms, 30s, 5m or 1h"), "{text}");
        }
        for text in ["99999999999999999999s", "18446744073709551615h", "87601h"] {
            assert!(parse(text).unwrap_err().contains("too long"), "{text}");
        }
        assert!(parse_positive("0ms").is_err());
        assert!(parse_lease("99ms").is_err());
        assert!(parse_lease("8761h").is_err());
        assert_eq!(parse_lease("100ms"), Ok(SHORTEST_LEASE));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in any::<String>()) {
            let _ = parse(&text);
            let _ = parse_lease(&text);
        }

        #[test]
        fn every_number_of_seconds_is_read_back(seconds in 0u64..10 * 365 * 86_400) {
            prop_assert_eq!(parse(&format!("{seconds}s")), Ok(Duration::from_secs(seconds)));
        }
    }
}
