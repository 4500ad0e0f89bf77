//! Formats numbers, times and names for display.

use taskyard_wire::http::DurationsAnswer;

use super::columns::Column;
use super::sample::{Durations, Rates, Report, Row};
use crate::output::printable;
use crate::sparkline::blocks;
use crate::units;

/// The text of a cell, for a narrow screen.
pub fn cell(row: &Row, column: Column, now: f64) -> String {
    match column {
        Column::Tube => label(row),
        Column::Kind => row.kind.to_owned(),
        Column::Ready => count(row.tasks.ready),
        Column::Taken => count(row.tasks.taken),
        Column::Delayed => count(row.tasks.delayed),
        Column::Buried => count(row.tasks.buried),
        Column::Done => count(row.tasks.done),
        Column::Waiting => count(row.consumers),
        Column::Put => rate(row.rates.map(|rates| rates.put)),
        Column::Take => rate(row.rates.map(|rates| rates.take)),
        Column::Ack => rate(row.rates.map(|rates| rates.ack)),
        Column::Fail => rate(row.rates.and_then(|rates| rates.fail)),
        Column::WaitP50
        | Column::WaitP90
        | Column::WaitP99
        | Column::RunP50
        | Column::RunP90
        | Column::RunP99 => column.number(row).map_or_else(|| "-".into(), span),
        Column::Wake => row.next_wakeup.map_or_else(|| "-".into(), |wake| until(wake - now)),
    }
}

/// The suffix of the name of a paused tube.
pub const PAUSED: &str = " (paused)";

/// The name of a tube, and whether it is paused.
pub fn label(row: &Row) -> String {
    shown(&row.name) + if row.paused { PAUSED } else { "" }
}

/// A name without characters that control the terminal or the direction of text.
pub fn shown(name: &str) -> String {
    let mut safe = String::with_capacity(name.len());
    for char in printable(name).chars() {
        if matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
        {
            safe.extend(char.escape_unicode());
        } else {
            safe.push(char);
        }
    }
    safe
}

/// A count in at most seven characters.
pub fn count(count: u64) -> String {
    const UNITS: [(u64, &str); 5] = [
        (1_000_000_000_000_000_000, "E"),
        (1_000_000_000_000_000, "P"),
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
    ];
    let unit = UNITS.into_iter().find(|(unit, _)| count >= *unit && count >= 10_000_000);
    match unit {
        Some((unit, name)) => format!("{:.1}{name}", count as f64 / unit as f64),
        None => count.to_string(),
    }
}

/// A rate per second; a dash while it is unknown.
pub fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".into(),
        Some(0.0) => "0".into(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        // Beyond this the cast saturates.
        Some(rate) => count(rate.round() as u64),
    }
}

/// The time until a deadline.
pub fn until(seconds: f64) -> String {
    let seconds = seconds.ceil().max(0.0);
    if seconds == 0.0 { "now".into() } else { units::short(seconds) }
}

/// The latency of a reply.
pub fn latency(seconds: f64) -> String {
    let millis = seconds * 1e3;
    if millis < 10.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}

/// The sums in one line.
pub fn totals(report: &Report) -> String {
    let (total, tasks) = (&report.total, &report.total.tasks);
    let tubes = if total.tubes == 1 { "tube" } else { "tubes" };
    format!(
        "{} {tubes}: {} ready, {} taken, {} delayed, {} buried, {} done; {} waiting",
        total.tubes,
        count(tasks.ready),
        count(tasks.taken),
        count(tasks.delayed),
        count(tasks.buried),
        count(tasks.done),
        count(total.consumers),
    )
}

/// How long tasks of all tubes waited and ran, and how many failed, in one line that fits into 80
/// characters.
pub fn durations(report: &Report) -> String {
    let Durations { wait, run } = report.total.durations;
    let fail = report.total.rates.and_then(|rates| rates.fail);
    format!("{}; {}; fail/s {}", percentiles("wait", wait), percentiles("run", run), rate(fail))
}

/// Median and 99th percentile of a duration; dashes while they are unknown.
fn percentiles(name: &str, found: Option<DurationsAnswer>) -> String {
    let shown =
        |DurationsAnswer { p50, p99, .. }| format!("{name} p50 {}, p99 {}", span(p50), span(p99));
    found.map_or_else(|| format!("{name} p50 -, p99 -"), shown)
}

/// A duration with two or three digits.
fn span(seconds: f64) -> String {
    match seconds {
        0.0..0.0995 => latency(seconds),
        0.0995..0.9995 => format!("{:.0} ms", seconds * 1e3),
        0.9995..99.5 => format!("{seconds:.1} s"),
        _ => until(seconds),
    }
}

/// Finds one of the rates.
type OneRate = fn(&Rates) -> f64;

/// What the three rates are called, and where to find them.
pub const RATES: [(&str, OneRate); 3] =
    [("put/s", |rates| rates.put), ("take/s", |rates| rates.take), ("ack/s", |rates| rates.ack)];

/// The newest of these as bars, the highest of them eight eighths high.
pub fn spark(values: &[f64], width: usize) -> String {
    let newest = &values[values.len().saturating_sub(width)..];
    blocks(newest, newest.iter().copied().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_fit_into_seven_characters() {
        for (number, text) in [
            (0, "0"),
            (9_999_999, "9999999"),
            (10_000_000, "10.0M"),
            (1_234_567_890, "1.2G"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn durations_are_short_texts() {
        for (seconds, text) in [
            (0.0, "0.0 ms"),
            (0.0042, "4.2 ms"),
            (0.052, "52 ms"),
            (0.52, "520 ms"),
            (1.0, "1.0 s"),
            (99.0, "99.0 s"),
            (100.0, "1m"),
            (7_200.0, "2h"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn rates_are_exact_where_they_are_small() {
        for (number, text) in [
            (None, "-"),
            (Some(0.0), "0"),
            (Some(0.25), "0.2"),
            (Some(9.96), "10"),
            (Some(12_345.6), "12346"),
            (Some(f64::INFINITY), "18.4E"),
        ] {
            assert_eq!(rate(number), text);
        }
    }

    #[test]
    fn deadlines_are_shown_as_remaining_time() {
        for (seconds, text) in [
            (-5.0, "now"),
            (0.2, "1s"),
            (59.0, "59s"),
            (61.0, "1m"),
            (90_000.0, "25h"),
            (864_000.0, "10d"),
            (f64::NAN, "now"),
        ] {
            assert_eq!(until(seconds), text);
        }
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        assert_eq!(shown("a\u{1b}[2Jb"), r"a\u{1b}[2Jb");
        assert_eq!(shown("a\u{202e}b\u{9b}"), r"a\u{202e}b\u{9b}");
        assert_eq!(shown("почта 郵便"), "почта 郵便");
    }

    #[test]
    fn bars_show_the_newest_against_the_highest() {
        assert_eq!(spark(&[9.0, 0.0, 1.0, 4.0, 8.0], 4), " ▁▄█");
        assert_eq!(spark(&[0.0, 0.0], 4), "  ");
        assert_eq!(spark(&[], 4), "");
        assert_eq!(spark(&[1.0], 0), "");
    }
}
