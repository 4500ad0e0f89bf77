//! Reads a claimed task from its row.

use taskyard_core::Timestamp;
use taskyard_core::schedule::{Interval, Reuse};

use crate::connection::Row;
use crate::output::Format;

/// Microseconds between the epochs of Unix (1970) and PostgreSQL (2000).
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// The columns that [`Task::read`] reads, of a row named `t`, in this order. A value that is too long for one message is
/// left out, and the last column says so.
pub const COLUMNS: &str = r#"t.id, CASE WHEN octet_length(t."group") > 524288 THEN '' ELSE t."group" END,
    CASE WHEN octet_length(t.remote) > 524288 THEN '' ELSE t.remote END,
    CASE WHEN octet_length(t.input) > 62914560 THEN '' ELSE t.input END, t.max, t.count, t.delete, t.drift,
    encode(timestamptz_send(t.plan), 'hex'), encode(interval_send(t.live), 'hex'),
    encode(interval_send(t.repeat), 'hex'), encode(interval_send(t.timeout), 'hex'),
    t.header, t.string, encode(charsend(t.delimiter), 'hex'), encode(charsend(t.escape), 'hex'),
    encode(charsend(t.quote), 'hex'), CASE WHEN octet_length(t."null") > 524288 THEN '' ELSE t."null" END,
    CASE WHEN octet_length(t.cron) > 524288 THEN '' ELSE t.cron END,
    CASE WHEN octet_length(t.zone) > 524288 THEN '' ELSE t.zone END, t.attempts, t.attempts_max,
    encode(interval_send(t.backoff), 'hex'), t.pid, t.save, encode(timestamptz_send(t.origin), 'hex'),
    octet_length(t.input) > 62914560 OR greatest(octet_length(t."group"), octet_length(t.remote),
        octet_length(t."null"), octet_length(t.cron), octet_length(t.zone)) > 524288"#;

/// The error of a task with a value that is too long.
const TOO_LONG: &str =
    "input must not be longer than 60 MiB, nor group, remote, null, cron and zone than 512 KiB";

/// The number of these columns.
pub const COLUMNS_COUNT: usize = 27;

/// A claimed task.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its id.
    pub id: i64,
    /// Its group.
    pub group: String,
    /// The connection string of its remote, if it runs there.
    pub remote: Option<String>,
    /// The statements that it runs.
    pub input: String,
    /// When it is planned to start.
    pub plan: Timestamp,
    /// Its plan before it was tried again.
    pub origin: Option<Timestamp>,
    /// Whether it is deleted when it has no output and no error.
    pub delete: bool,
    /// Whether repetitions and pauses count from its end.
    pub drift: bool,
    /// How its session may be reused.
    pub reuse: Reuse,
    /// The interval at which it repeats.
    pub repeat: Interval,
    /// How long it may run; zero is unlimited.
    pub timeout: Interval,
    /// The format of its output, or why it is invalid.
    pub format: Result<Format, String>,
    /// Its cron expression.
    pub cron: Option<String>,
    /// The time zone of its cron expression.
    pub zone: Option<String>,
    /// How often it was tried before.
    pub attempts: u32,
    /// How often it may be tried.
    pub attempts_max: u32,
    /// How long to wait before the second try.
    pub backoff: Interval,
    /// The process of the session that it was claimed for, if there is one.
    pub pid: Option<i32>,
    /// Whether its session keeps its state for the next task.
    pub save: bool,
}

impl Task {
    /// Reads the columns of [`COLUMNS`]; `None` if one is malformed.
    pub fn read(row: &mut Row, escapes_itself: bool) -> Option<Self> {
        let interval = |column: usize| interval(row.text(column)?);
        let (live, repeat) = (interval(9)?, interval(10)?);
        let (timeout, backoff) = (interval(11)?, interval(22)?);
        let format = match row.is_true(26) {
            true => Err(TOO_LONG.to_owned()),
            false => format(row, escapes_itself),
        };
        Some(Task {
            id: row.parsed(0)?,
            plan: timestamp(row.text(8)?)?,
            reuse: Reuse { max: row.parsed(4)?, count: row.parsed(5)?, live },
            delete: row.is_true(6),
            drift: row.is_true(7),
            repeat,
            timeout,
            format,
            attempts: row.parsed::<i32>(20)?.max(0).unsigned_abs(),
            attempts_max: row.parsed::<i32>(21)?.max(0).unsigned_abs(),
            backoff,
            pid: row.parsed(23),
            save: row.is_true(24),
            origin: row.text(25).and_then(timestamp),
            group: row.take(1)?,
            remote: row.take(2),
            input: row.take(3)?,
            cron: row.take(18),
            zone: row.take(19),
        })
    }
}

fn format(row: &Row, escapes_itself: bool) -> Result<Format, String> {
    let char = |column: usize, name: &str| match byte(row.text(column).unwrap_or_default()) {
        Some(0) | None => Ok(None),
        Some(byte) if byte.is_ascii() => Ok(Some(char::from(byte))),
        Some(_) => Err(format!("{name} must be one ASCII character")),
    };
    Ok(Format {
        header: row.is_true(12),
        string: row.is_true(13),
        delimiter: char(14, "delimiter")?,
        escape: char(15, "escape")?,
        quote: char(16, "quote")?,
        escapes_itself,
        null: row.text(17).unwrap_or_default().to_owned(),
    })
}

fn byte(hex: &str) -> Option<u8> {
    u8::from_str_radix(hex, 16).ok()
}

/// Reads an interval in the binary format of PostgreSQL, as hexadecimal digits.
pub fn interval(hex: &str) -> Option<Interval> {
    let part = |from: usize, to: usize| u64::from_str_radix(hex.get(from..to)?, 16).ok();
    let short = |value: u64| (value as u32).cast_signed();
    let (micros, days, months) = (part(0, 16)?, part(16, 24)?, part(24, 32)?);
    Some(Interval { months: short(months), days: short(days), micros: micros.cast_signed() })
}

/// Reads a timestamp in the binary format of PostgreSQL, as hexadecimal digits.
pub fn timestamp(hex: &str) -> Option<Timestamp> {
    let micros = u64::from_str_radix(hex, 16).ok()?.cast_signed();
    Some(match micros {
        i64::MAX => Timestamp::NEVER,
        micros => Timestamp::from_micros(micros.saturating_add(POSTGRES_EPOCH)),
    })
}

/// Writes a timestamp as PostgreSQL reads it.
pub fn timestamp_text(at: Timestamp) -> String {
    let micros = at.as_micros();
    if at == Timestamp::NEVER {
        return "infinity".into();
    }
    let (days, of_day) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    let (seconds, fraction) = (of_day / 1_000_000, of_day % 1_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    // A Julian day needs no calendar arithmetic: this is the one of 1970-01-01.
    let julian = days + 2_440_588;
    format!("J{julian} {hours:02}:{minutes:02}:{:02}.{fraction:06}+00", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_timestamps_are_read() {
        let text = "00000000000f42400000000200000003";
        let expected = Interval { months: 3, days: 2, micros: 1_000_000 };
        assert_eq!(interval(text), Some(expected));
        let text = "fffffffffff0bdc0ffffffffffffffff";
        let expected = Interval { months: -1, days: -1, micros: -1_000_000 };
        assert_eq!(interval(text), Some(expected));
        assert_eq!(timestamp("7fffffffffffffff"), Some(Timestamp::NEVER));
        assert_eq!(
            timestamp("0000000000000001").map(|at| at.as_micros()),
            Some(POSTGRES_EPOCH + 1)
        );
        for broken in ["", "xyz", "00000000000f4240", "é0000000000000000000000000000000"] {
            assert_eq!(interval(broken), None);
        }
    }

    #[test]
    fn timestamps_are_written() {
        assert_eq!(timestamp_text(Timestamp::EPOCH), "J2440588 00:00:00.000000+00");
        let at = Timestamp::from_micros(86_400_000_000 + 3_723_000_004);
        assert_eq!(timestamp_text(at), "J2440589 01:02:03.000004+00");
        assert_eq!(timestamp_text(Timestamp::NEVER), "infinity");
    }
}
