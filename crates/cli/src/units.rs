//! Parses and prints durations, times, sizes and deliveries.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use taskyard_core::{Holder, Lease, Span, TaskId, Timestamp};

/// A value, or `none` to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrNone<T>(pub Option<T>);

/// A number of bytes, printed with its largest whole unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GB"), (20, "MB"), (10, "KB")];
        let whole = |(shift, _): &(u32, &str)| self.0 != 0 && self.0.trailing_zeros() >= *shift;
        match units.into_iter().find(whole) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A delivery, written as `ID` or `ID:LEASE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The task.
    pub id: TaskId,
    /// The lease that must hold the task, if one is given.
    pub holder: Holder,
}

impl FromStr for Delivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| "write ID or ID:LEASE".into());
        let (id, holder) = match text.split_once(':') {
            Some((id, lease)) => (id, Holder::Lease(Lease(number(lease)?))),
            None => (text, Holder::Any),
        };
        number(id).map(|id| Delivery { id: TaskId(id), holder })
    }
}

/// A duration: `5s`, `1m30s`, `250ms`, `2h`, `1d`, or seconds.
pub fn span(text: &str) -> Result<Span, String> {
    if let Ok(seconds) = text.parse::<f64>()
        && seconds.is_finite()
        && seconds >= 0.0
    {
        return Ok(Span::from_micros((seconds * 1e6).round() as i64));
    }
    let parts = parts(text).filter(|parts| !parts.is_empty());
    let micros = parts.and_then(|parts| {
        parts.iter().map(|(number, unit)| Some(number * unit_micros(unit)?)).sum::<Option<f64>>()
    });
    let micros = micros.ok_or("write a time such as 5s, 1m30s, 250ms, 2h or 1d")?;
    Ok(Span::from_micros(micros.round() as i64))
}

/// A duration, or `none`.
pub fn span_or_none(text: &str) -> Result<OrNone<Span>, String> {
    if text == "none" { Ok(OrNone(None)) } else { span(text).map(|span| OrNone(Some(span))) }
}

/// A whole number, or `none`.
pub fn number_or_none<T: FromStr>(text: &str) -> Result<OrNone<T>, String> {
    if text == "none" {
        return Ok(OrNone(None));
    }
    let number = text.parse().map_err(|_| "write a whole number, or none")?;
    Ok(OrNone(Some(number)))
}

/// A number of bytes: `64MB`, `512K`, `1.5GiB`; a K is 1024.
pub fn size(text: &str) -> Result<Size, String> {
    let wrong = || "write a size such as 64MB, 512KB or 2GB".to_owned();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| wrong())?;
    let factor: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return Err(wrong()),
    };
    Ok(Size((number * factor as f64) as usize))
}

/// A number of bytes as a short text.
pub fn bytes(count: u64) -> String {
    let units = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    match units.into_iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", count as f64 / size as f64),
        None => format!("{count} bytes"),
    }
}

/// A priority.
pub fn pri(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("write a whole number from 0 to {}; smaller goes first", u64::MAX))
}

/// A time: `2030-01-31T08:00:00Z`, with an offset or a fraction, a date alone for its midnight in UTC, or seconds since
/// 1970.
pub fn timestamp(text: &str) -> Result<Timestamp, String> {
    let wrong = || {
        "write a date such as 2030-01-31 (midnight UTC), a time with its zone such as \
         2030-01-31T08:00:00Z or 2030-01-31T08:00:00+03:00, or seconds since 1970"
            .to_owned()
    };
    if let Ok(seconds) = text.parse::<f64>() {
        return Timestamp::from_secs_f64(seconds).ok_or_else(wrong);
    }
    calendar_seconds(text).and_then(Timestamp::from_secs_f64).ok_or_else(wrong)
}

/// A time in seconds since 1970, in the format that `timestamp` reads.
pub fn utc(seconds: f64) -> String {
    let total = seconds.max(0.0) as i64;
    let (mut days, clock) = (total / 86_400, total % 86_400);
    let mut year = 1970;
    while days >= 365 + i64::from(is_leap(year)) {
        days -= 365 + i64::from(is_leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = month_days(year);
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, days + 1)
}

/// The present time in seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The duration since a time in seconds since 1970.
pub fn age(since: f64) -> String {
    in_words(now() - since)
}

/// A duration in seconds as text, with its two largest units.
pub fn in_words(seconds: f64) -> String {
    let total = seconds.round().max(0.0) as u64;
    let parts = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let mut rest = total;
    let mut words = Vec::new();
    for (length, unit) in parts {
        if rest >= length && words.len() < 2 {
            words.push(format!("{} {unit}", rest / length));
            rest %= length;
        }
    }
    if words.is_empty() { "less than a second".into() } else { words.join(" ") }
}

/// A duration in seconds as a short text, with its largest unit.
pub fn short(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Numbers, each with the letters after it.
fn parts(text: &str) -> Option<Vec<(f64, &str)>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let letters = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, after) = rest.split_at(letters);
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        parts.push((number.parse().ok().filter(|number: &f64| *number >= 0.0)?, unit));
        rest = next;
    }
    Some(parts)
}

fn unit_micros(unit: &str) -> Option<f64> {
    Some(match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" | "min" => 60e6,
        "h" => 3600e6,
        "d" => 86_400e6,
        _ => return None,
    })
}

/// Seconds since 1970 of a date and time with a zone, or of midnight UTC of a date.
fn calendar_seconds(text: &str) -> Option<f64> {
    let (date, rest) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00:00Z"));
    let zone = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone);
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let offset = match zone {
        "Z" | "z" => 0.0,
        _ => {
            let [hours, minutes] = numbers(&zone[1..], ':')?;
            (hours * 3600.0 + minutes * 60.0) * if zone.starts_with('-') { -1.0 } else { 1.0 }
        }
    };
    let days = month_days(year as i64);
    let month = (1.0..=12.0).contains(&month).then_some(month as usize)?;
    let valid = (1.0..=days[month - 1] as f64).contains(&day)
        && (1970.0..=9999.0).contains(&year)
        && hour < 24.0
        && minute < 60.0
        && second < 61.0;
    let before: i64 = days[..month - 1].iter().sum();
    let past = year as i64 - 1;
    let leaps = past / 4 - past / 100 + past / 400 - 477;
    let day_number = (past - 1969) * 365 + leaps + before + day as i64 - 1;
    let seconds = day_number as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second - offset;
    valid.then_some(seconds)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn month_days(year: i64) -> [i64; 12] {
    [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

/// Exactly `N` numbers with this separator; only the last may have a fraction.
fn numbers<const N: usize>(text: &str, between: char) -> Option<[f64; N]> {
    let mut numbers = [0.0; N];
    let mut parts = text.split(between);
    for (place, number) in numbers.iter_mut().enumerate() {
        let part = parts.next()?;
        let fits = |c: char| c.is_ascii_digit() || (c == '.' && place + 1 == N);
        *number = Some(part).filter(|part| part.chars().all(fits))?.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, micros) in [
            ("5", 5_000_000),
            ("0.25", 250_000),
            ("5s", 5_000_000),
            ("1m30s", 90_000_000),
            ("250ms", 250_000),
            ("1.5h", 5_400_000_000),
            ("1d", 86_400_000_000),
            ("0", 0),
        ] {
            assert_eq!(span(text), Ok(Span::from_micros(micros)), "{text}");
        }
        assert_eq!(span("1000000d"), Ok(Span::FOREVER));
        for text in ["", "5x", "s", "-5", "-5s", "5s3", "nan", "inf", "1m-30s", "one"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_parsed_and_printed() {
        assert_eq!(size("64MB"), Ok(Size(64 << 20)));
        assert_eq!(size("1.5KiB"), Ok(Size(1536)));
        assert_eq!(size("100"), Ok(Size(100)));
        for text in ["0", "100", "1536", "512KB", "48MB", "3GB"] {
            assert_eq!(size(text).unwrap().to_string(), text);
        }
        for text in ["", "MB", "-1", "5 apples", "1..5"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_printed_in_words() {
        for (seconds, words) in [
            (0.2, "less than a second"),
            (-5.0, "less than a second"),
            (1.0, "1 s"),
            (61.4, "1 min 1 s"),
            (3600.0, "1 h"),
            (93_784.0, "1 d 2 h"),
        ] {
            assert_eq!(in_words(seconds), words);
        }
    }

    #[test]
    fn times_are_parsed_and_printed() {
        for (text, seconds) in [
            ("1700000000.5", 1_700_000_000.5),
            ("1970-01-01T00:00:00Z", 0.0),
            ("2000-02-29T12:00:00Z", 951_825_600.0),
            ("2023-11-14T22:13:20Z", 1_700_000_000.0),
            ("2023-11-14 23:13:20.25+01:00", 1_700_000_000.25),
            ("2100-03-01T00:00:00Z", 4_107_542_400.0),
        ] {
            assert_eq!(timestamp(text), Ok(Timestamp::from_secs_f64(seconds).unwrap()), "{text}");
        }
        for text in ["1970-01-01T00:00:00Z", "2000-02-29T12:00:07Z", "2100-12-31T23:59:59Z"] {
            assert_eq!(utc(timestamp(text).unwrap().as_secs_f64()), text);
        }
        for text in ["", "-5", "tomorrow", "2023-02-29T00:00:00Z", "2023-13-01T00:00:00Z"] {
            assert!(timestamp(text).is_err(), "{text}");
        }
        for text in ["2023-11-31", "2023-11", "2023-11-14T22:13:20", "2023-11-14T25:00:00Z"] {
            assert!(timestamp(text).is_err(), "{text}");
        }
        assert_eq!(timestamp("2023-11-14"), timestamp("2023-11-14T00:00:00Z"), "midnight in UTC");
        assert_eq!(timestamp("2023-11-14T03:00:00+03:00"), timestamp("2023-11-14"));
        assert!(timestamp("1-2-3T4:5:6Z").is_err());
    }

    #[test]
    fn deliveries_are_parsed() {
        let held = Delivery { id: TaskId(3), holder: Holder::Lease(Lease(17)) };
        assert_eq!("3:17".parse(), Ok(held));
        assert_eq!("3".parse(), Ok(Delivery { id: TaskId(3), holder: Holder::Any }));
        for text in ["", ":", "3:", ":17", "a", "3:17:1", "-1"] {
            assert!(text.parse::<Delivery>().is_err(), "{text}");
        }
    }
}
