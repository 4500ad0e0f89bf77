//! Writes durations and sizes as people read them.

use std::time::Duration;

/// Sizes that have a name of their own, the largest first.
const SIZES: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// Seconds, to the millisecond.
pub(crate) fn seconds(duration: Duration) -> String {
    let millis = (duration.as_secs_f64() * 1e3).round();
    if millis == 0.0 && !duration.is_zero() {
        return "less than 0.001 s".into();
    }
    format!("{} s", millis / 1e3)
}

/// A number of bytes, in the largest unit of which it is a whole number.
pub(crate) fn size(bytes: u64) -> String {
    let unit = SIZES.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Clients that had asked for a third of a second were told of a limit of 0.333333 s.
    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        let cases = [(2_000_000, "2 s"), (333_333, "0.333 s"), (300_000, "0.3 s"), (0, "0 s")];
        for (micros, text) in cases {
            assert_eq!(seconds(Duration::from_micros(micros)), text);
        }
        assert_eq!(seconds(Duration::from_micros(1)), "less than 0.001 s");
        assert_eq!(seconds(Duration::from_nanos(2_999_999_999)), "3 s");
        let cases =
            [(1 << 31, "2 GiB"), (128 << 10, "128 KiB"), (1000, "1000 bytes"), (0, "0 bytes")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}
