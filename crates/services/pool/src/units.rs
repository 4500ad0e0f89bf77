//! Formats durations and sizes for messages.

use std::time::Duration;

/// Size units, largest first.
const SIZES: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// Formats seconds with millisecond precision.
pub(crate) fn seconds(duration: Duration) -> String {
    let millis = (duration.as_secs_f64() * 1e3).round();
    if millis == 0.0 && !duration.is_zero() {
        return "less than 0.001 s".into();
    }
    format!("{} s", millis / 1e3)
}

/// Formats a number of bytes in the largest unit that divides it.
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

    // A client that asked for a third of a second got a message about a limit of 0.333333 s.
    #[test]
    fn numbers_are_short() {
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
