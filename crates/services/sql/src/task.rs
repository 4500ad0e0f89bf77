//! A task as it was claimed.

use taskyard_core::Timestamp;
use taskyard_core::schedule::{Interval, Reuse};

use crate::output::Format;
use crate::wire::Row;

/// Microseconds between 1970 and 2000, where PostgreSQL begins to count.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// The columns that [`Task::read`] reads, of a row called `t`, in this order. The last one says whether something is too
/// long to travel in one message; that is left out then.
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

/// What is said about a task that cannot be read for its length.
const TOO_LONG: &str =
    "input must not be longer than 60 MiB, nor group, remote, null, cron and zone than 512 KiB";

/// How many they are.
pub const COLUMNS_COUNT: usize = 27;

/// A task as it was claimed.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its key.
    pub id: i64,
    /// Its group.
    pub group: String,
    /// Where it runs, if not here.
    pub remote: Option<String>,
    /// What it runs.
    pub input: String,
    /// When it was to begin.
    pub plan: Timestamp,
    /// When it was to begin before it was tried again.
    pub origin: Option<Timestamp>,
    /// Whether it is deleted when it has nothing to say.
    pub delete: bool,
    /// Whether what follows counts from its end.
    pub drift: bool,
    /// What it says about its session.
    pub reuse: Reuse,
    /// How often it runs.
    pub repeat: Interval,
    /// How long it may run; zero is as long as it likes.
    pub timeout: Interval,
    /// How it wants its output, or why that cannot be.
    pub format: Result<Format, String>,
    /// When it runs, by cron.
    pub cron: Option<String>,
    /// By which clocks.
    pub zone: Option<String>,
    /// How often it was tried before.
    pub attempts: u32,
    /// How often it may be tried.
    pub attempts_max: u32,
    /// How long to wait before the second try.
    pub backoff: Interval,
    /// The session that it was given to, if it was.
    pub pid: Option<i32>,
    /// Whether its session stays as it is for the next task.
    pub save: bool,
}

impl Task {
    /// Reads the columns of [`COLUMNS`]; `None` if something else is there.
    pub fn read(row: &mut Row, escapes_itself: bool) -> Option<Self> {
        let interval = |place: usize| interval(row.text(place)?);
        let (live, repeat) = (interval(9)?, interval(10)?);
        let (timeout, backoff) = (interval(11)?, interval(22)?);
        let format = match row.is_true(26) {
            true => Err(TOO_LONG.to_owned()),
            false => format(row, escapes_itself),
        };
        Some(Task {
            id: row.parsed(0)?,
            plan: moment(row.text(8)?)?,
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
            origin: row.text(25).and_then(moment),
            group: row.take(1)?,
            remote: row.take(2),
            input: row.take(3)?,
            cron: row.take(18),
            zone: row.take(19),
        })
    }
}

fn format(row: &Row, escapes_itself: bool) -> Result<Format, String> {
    let char = |place: usize, name: &str| match byte(row.text(place).unwrap_or_default()) {
        Some(0) | None => Ok(None),
        Some(byte) if byte.is_ascii() => Ok(Some(char::from(byte))),
        Some(_) => Err(format!("{name} must be one character of ASCII")),
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

/// An interval as PostgreSQL sends it.
pub fn interval(hex: &str) -> Option<Interval> {
    let part = |from: usize, to: usize| u64::from_str_radix(hex.get(from..to)?, 16).ok();
    let short = |value: u64| (value as u32).cast_signed();
    let (micros, days, months) = (part(0, 16)?, part(16, 24)?, part(24, 32)?);
    Some(Interval { months: short(months), days: short(days), micros: micros.cast_signed() })
}

/// A moment as PostgreSQL sends it.
pub fn moment(hex: &str) -> Option<Timestamp> {
    let micros = u64::from_str_radix(hex, 16).ok()?.cast_signed();
    Some(match micros {
        i64::MAX => Timestamp::NEVER,
        micros => Timestamp::from_micros(micros.saturating_add(POSTGRES_EPOCH)),
    })
}

/// A moment as PostgreSQL reads it.
pub fn moment_text(at: Timestamp) -> String {
    let micros = at.as_micros();
    if at == Timestamp::NEVER {
        return "infinity".into();
    }
    let (days, of_day) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    let (seconds, fraction) = (of_day / 1_000_000, of_day % 1_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    // Julian days are the one form of a date that needs no calendar: 1970 began with this one.
    let julian = days + 2_440_588;
    format!("J{julian} {hours:02}:{minutes:02}:{:02}.{fraction:06}+00", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_moments_as_they_are_sent() {
        let text = "00000000000f42400000000200000003";
        let expected = Interval { months: 3, days: 2, micros: 1_000_000 };
        assert_eq!(interval(text), Some(expected));
        let text = "fffffffffff0bdc0ffffffffffffffff";
        let expected = Interval { months: -1, days: -1, micros: -1_000_000 };
        assert_eq!(interval(text), Some(expected));
        assert_eq!(moment("7fffffffffffffff"), Some(Timestamp::NEVER));
        assert_eq!(moment("0000000000000001").map(|at| at.as_micros()), Some(POSTGRES_EPOCH + 1));
        for broken in ["", "xyz", "00000000000f4240", "é0000000000000000000000000000000"] {
            assert_eq!(interval(broken), None);
        }
    }

    #[test]
    fn moments_as_they_are_read() {
        assert_eq!(moment_text(Timestamp::EPOCH), "J2440588 00:00:00.000000+00");
        let at = Timestamp::from_micros(86_400_000_000 + 3_723_000_004);
        assert_eq!(moment_text(at), "J2440589 01:02:03.000004+00");
        assert_eq!(moment_text(Timestamp::NEVER), "infinity");
    }
}
