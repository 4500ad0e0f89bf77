//! Draws waits in a terminal: their distribution as bars, and their mean over time as a line of blocks.

use std::fmt::Write;

use taskyard_trace::WaitCurve;

use crate::sparkline::blocks;
use crate::{table::Table, units};

/// The upper bounds of the bars, in microseconds.
const BOUNDS: [u64; 10] = [
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    60_000_000,
    600_000_000,
    3_600_000_000,
    86_400_000_000,
    u64::MAX,
];
/// The cells of a bar that stands for all tasks.
const BAR: usize = 30;
/// The cells of a line.
const LINE: usize = 60;

/// A duration with three digits.
pub fn duration(micros: u64) -> String {
    let seconds = micros as f64 / 1e6;
    match micros {
        0 => "0".into(),
        1..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.2} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} ms", micros as f64 / 1e3),
        1_000_000..10_000_000 => format!("{seconds:.2} s"),
        10_000_000..60_000_000 => format!("{seconds:.1} s"),
        _ => units::in_words(seconds),
    }
}

/// The parts of the recorded and of the simulated waits up to each bound.
pub fn distribution(recorded: &[u64], simulated: &[u64]) -> String {
    let (old, new) = (shares(recorded), shares(simulated));
    let is_used = |place: &usize| old[*place] > 0.0 || new[*place] > 0.0;
    let used: Vec<usize> = (0..BOUNDS.len()).filter(is_used).collect();
    let (Some(first), Some(last)) = (used.first(), used.last()) else { return String::new() };
    let mut table = Table::new(["  wait", "recorded", "simulated"]);
    for place in *first..=*last {
        let label = match BOUNDS[place] {
            u64::MAX => "  more than 1 d".into(),
            bound => format!("  up to {}", bound_text(bound)),
        };
        table.add_row([label, bar(old[place]), bar(new[place])]);
    }
    table.to_string()
}

fn bound_text(micros: u64) -> String {
    match micros {
        0..1_000_000 => format!("{} ms", micros / 1_000),
        _ => units::in_words(micros as f64 / 1e6),
    }
}

/// The part of the waits between each two bounds.
fn shares(waits: &[u64]) -> [f64; BOUNDS.len()] {
    let mut shares = [0.0; BOUNDS.len()];
    for wait in waits {
        shares[BOUNDS.partition_point(|bound| bound < wait)] += 1.0 / waits.len() as f64;
    }
    shares
}

fn bar(share: f64) -> String {
    let filled = (share * BAR as f64).round() as usize;
    let percent = share * 100.0;
    let digits = usize::from(percent > 0.0 && percent < 9.95);
    format!("{}{} {percent:.digits$} %", "█".repeat(filled), "░".repeat(BAR - filled.min(BAR)))
}

/// The mean waits of the recording and of the replay over time, on the same scale.
pub fn over_time(curves: [&WaitCurve; 2], end: u64) -> String {
    let means = curves.map(|curve| curve.means(end, LINE));
    let most = means.iter().flatten().flatten().copied().max().unwrap_or(0);
    let mut text = format!(
        "  mean wait over {}; the highest is {}",
        units::in_words(end as f64 / 1e6),
        duration(most)
    );
    for (name, means) in ["recorded ", "simulated"].into_iter().zip(means) {
        let values: Vec<f64> = means.iter().map(|mean| mean.unwrap_or(0) as f64).collect();
        let _ = write!(text, "\n  {name} |{}|", blocks(&values, most as f64));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_about_three_digits() {
        let texts = [0, 999, 1_234, 123_456, 1_234_567, 12_345_678, 62_000_000].map(duration);
        assert_eq!(texts, ["0", "999 µs", "1.23 ms", "123 ms", "1.23 s", "12.3 s", "1 min 2 s"]);
    }

    #[test]
    fn bars_show_the_parts_side_by_side() {
        let text = distribution(&[0, 500, 5_000_000, 5_000_000], &[0, 1_000, 1_000, 70_000_000]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 8, "{text}");
        assert!(lines[1].starts_with("  up to 1 ms"), "{text}");
        assert!(lines[1].contains(" 50 %") && lines[1].ends_with(" 75 %"), "{text}");
        assert!(lines[5].starts_with("  up to 10 s") && lines[5].contains(" 50 %"), "{text}");
        assert!(lines[7].starts_with("  up to 10 min") && lines[7].ends_with(" 25 %"), "{text}");
        assert_eq!(distribution(&[], &[]), "");
    }

    #[test]
    fn lines_have_the_same_scale() {
        let (mut low, mut high) = (WaitCurve::default(), WaitCurve::default());
        for second in 0..100 {
            low.add(second * 1_000_000, 1_000_000);
            high.add(second * 1_000_000, 8_000_000);
        }
        let text = over_time([&low, &high], 100_000_000);
        assert!(text.contains("the highest is 8.00 s"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("▁") && !lines[1].contains("█"), "{text}");
        assert!(lines[2].contains("█"), "{text}");
    }
}
