//! The table that a benchmark prints.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use serde_json::{Value, json};

/// The width of the table if the width of the terminal is unknown.
const WIDTH: u16 = 120;

/// One measurement.
pub struct Row {
    /// What was measured.
    pub what: String,
    /// The figure.
    pub figure: f64,
    /// The unit.
    pub unit: &'static str,
    /// The target, if there is one.
    pub target: Option<Target>,
    /// How it was measured, or compared.
    pub note: String,
}

/// The target of a figure.
#[derive(Clone, Copy)]
pub enum Target {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// From the first to the second.
    Within(f64, f64),
}

/// All rows so far. Each is also printed as soon as it is known, because a run takes minutes.
#[derive(Default)]
pub struct Report {
    /// The part that is being measured.
    part: String,
    rows: Vec<(String, Row)>,
}

impl Report {
    /// Begins a part: the next rows are its.
    pub fn begin(&mut self, part: &str) {
        part.clone_into(&mut self.part);
    }

    pub fn add(&mut self, row: Row) {
        eprintln!("  {}: {} {}", row.what, number(row.figure), row.unit);
        self.rows.push((self.part.clone(), row));
    }

    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(UTF8_HORIZONTAL_ONLY);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if !table.is_tty() {
            table.set_width(WIDTH);
        }
        table.set_header(["what", "figure", "unit", "asked", "", "how"]);
        for (_, row) in &self.rows {
            let (asked, mark) = match row.target {
                None => (String::new(), String::new()),
                Some(target) => (target.words(), target.result(row.figure)),
            };
            table.add_row([
                Cell::new(&row.what),
                Cell::new(number(row.figure)).set_alignment(CellAlignment::Right),
                Cell::new(row.unit),
                Cell::new(asked).set_alignment(CellAlignment::Right),
                Cell::new(mark),
                Cell::new(&row.note),
            ]);
        }
        table
    }

    /// All rows, each as a JSON object on a line of its own.
    pub fn json_lines(&self) -> String {
        self.rows.iter().map(|(part, row)| row.json(part).to_string() + "\n").collect()
    }

    /// What was measured, in order.
    #[cfg(test)]
    pub fn names(&self) -> Vec<&str> {
        self.rows.iter().map(|(_, row)| row.what.as_str()).collect()
    }
}

impl Row {
    fn json(&self, part: &str) -> Value {
        json!({
            "part": part,
            "name": self.what,
            "value": self.figure,
            "unit": self.unit,
            "better": if self.is_better_higher() { "higher" } else { "lower" },
            "target": self.target.map(Target::words),
            "met": self.target.map(|target| target.met(self.figure)),
            "how": self.note,
        })
    }

    /// Whether a higher figure is the better one: what its target says, or else rates and no other unit.
    fn is_better_higher(&self) -> bool {
        match self.target {
            Some(Target::AtLeast(_)) => true,
            Some(Target::AtMost(_)) => false,
            Some(Target::Within(..)) | None => self.unit.ends_with("/s"),
        }
    }
}

impl Target {
    fn met(self, figure: f64) -> bool {
        match self {
            Target::AtLeast(least) => figure >= least,
            Target::AtMost(most) => figure <= most,
            Target::Within(least, most) => (least..=most).contains(&figure),
        }
    }

    /// Whether it is reached or, if not, by how much it is missed.
    fn result(self, figure: f64) -> String {
        match self {
            _ if self.met(figure) => "reached".into(),
            Target::AtLeast(asked) => format!("{:.0} %", figure / asked * 100.0),
            Target::AtMost(asked) => format!("{:.1} times", figure / asked),
            Target::Within(..) => "missed".into(),
        }
    }

    fn words(self) -> String {
        match self {
            Target::AtLeast(least) => format!("≥ {}", number(least)),
            Target::AtMost(most) => format!("≤ {}", number(most)),
            Target::Within(least, most) => format!("{least:.0} to {most:.0}"),
        }
    }
}

/// A readable figure: with thousands separators, decimals only where they matter.
fn number(figure: f64) -> String {
    if figure.abs() < 100.0 {
        return format!("{figure:.2}");
    }
    let digits = format!("{:.0}", figure.abs());
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_a_line_of_json() {
        let mut report = Report::default();
        report.begin("memory");
        let row = |what: &str, unit, target| Row {
            what: what.into(),
            figure: 1.5,
            unit,
            target,
            note: "alone".into(),
        };
        report.add(row("put", "tasks/s", None));
        report.add(row("page", "ms", Some(Target::AtMost(1.0))));
        let lines: Vec<Value> =
            report.json_lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let put = json!({
            "part": "memory", "name": "put", "value": 1.5, "unit": "tasks/s", "better": "higher",
            "target": null, "met": null, "how": "alone",
        });
        assert_eq!(lines[0], put);
        assert_eq!((&lines[1]["better"], &lines[1]["met"]), (&json!("lower"), &json!(false)));
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(0.756), "0.76");
    }
}
