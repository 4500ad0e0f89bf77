//! Prints a comparison, for people and for scripts.

use super::figures::Comparison;
use super::json::quoted;
use super::options::CompareOptions;
use super::statistics::Limit;

/// A table with aligned columns.
pub fn table(options: &CompareOptions, comparisons: &[Comparison], limit: Limit) -> String {
    let asked = format!("at most {} % worse", limit.percent);
    let header = ["figure", "unit", "old", "new", "new/old", "95 % interval", &asked];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(comparisons.iter().map(|comparison| row(comparison, limit)));
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = format!(
        "{} against {}, part {}, {} turns in alternating order; medians\n\n",
        options.new, options.old, options.part, options.turns
    );
    for row in &rows {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            match (2..=5).contains(&column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    if comparisons.iter().any(|comparison| comparison.summary.interval.is_none()) {
        text += "\nFewer than 6 turns have no 95 % interval.\n";
    }
    text
}

fn row(comparison: &Comparison, limit: Limit) -> [String; 7] {
    let Comparison { figure, medians: [old, new], summary, .. } = comparison;
    let interval = match summary.interval {
        Some((low, high)) => format!("{low:.3} to {high:.3}"),
        None => "-".into(),
    };
    [
        figure.name.clone(),
        figure.unit.clone(),
        number(*old),
        number(*new),
        format!("{:.3}", summary.median),
        interval,
        limit.result(summary, figure.is_higher_better).name().to_owned(),
    ]
}

fn number(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// One JSON object a line.
pub fn json_lines(options: &CompareOptions, comparisons: &[Comparison], limit: Limit) -> String {
    comparisons.iter().map(|comparison| json_line(options, comparison, limit) + "\n").collect()
}

fn json_line(options: &CompareOptions, comparison: &Comparison, limit: Limit) -> String {
    let Comparison { figure, medians: [old, new], ratios, summary } = comparison;
    let (low, high) = match summary.interval {
        Some((low, high)) => (low.to_string(), high.to_string()),
        None => ("null".into(), "null".into()),
    };
    let better = if figure.is_higher_better { "higher" } else { "lower" };
    let result = limit.result(summary, figure.is_higher_better);
    let fields = [
        ("part", quoted(&options.part)),
        ("name", quoted(&figure.name)),
        ("unit", quoted(&figure.unit)),
        ("better", quoted(better)),
        ("old", old.to_string()),
        ("new", new.to_string()),
        ("ratio", summary.median.to_string()),
        ("low", low),
        ("high", high),
        ("limit_percent", limit.percent.to_string()),
        ("result", quoted(result.name())),
        ("ratios", format!("{ratios:?}")),
    ];
    let fields = fields.map(|(name, value)| format!("{}:{value}", quoted(name)));
    format!("{{{}}}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::super::figures::{self, Figure};
    use super::super::json;
    use super::*;

    fn compared() -> (CompareOptions, Vec<Comparison>) {
        let words = "--compare main . --only memory --turns 6";
        let words: Vec<String> = words.split_whitespace().map(String::from).collect();
        let figure = |value| {
            vec![Figure {
                part: "memory".into(),
                name: "put \"one\"".into(),
                value,
                unit: "µs/task".into(),
                is_higher_better: false,
            }]
        };
        let pairs = [2.0, 2.02, 1.98, 2.0, 2.04, 1.96].map(|new| [figure(2.0), figure(new)]);
        (CompareOptions::parse(&words).unwrap().unwrap(), figures::compare(&pairs))
    }

    #[test]
    fn the_table_is_aligned() {
        let (options, comparisons) = compared();
        let text = table(&options, &comparisons, Limit { percent: 3.0 });
        let expected = "\
. against main, part memory, 6 turns in alternating order; medians

figure     unit      old   new  new/old   95 % interval  at most 3 % worse
put \"one\"  µs/task  2.00  2.00    1.000  0.980 to 1.020  shown
";
        assert_eq!(text, expected);
    }

    #[test]
    fn scripts_can_read_it() {
        let (options, comparisons) = compared();
        let text = json_lines(&options, &comparisons, Limit { percent: 1.0 });
        let lines = json::read_all(&text).unwrap();
        let number = |name| lines[0].get(name).unwrap().as_number();
        assert_eq!(
            (number("ratio"), number("low"), number("high")),
            (Some(1.0), Some(0.98), Some(1.02))
        );
        assert_eq!(lines[0].get("result").unwrap().as_text(), Some("open"));
        assert_eq!(lines[0].get("name").unwrap().as_text(), Some("put \"one\""));
    }
}
