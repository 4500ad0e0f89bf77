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
    rows: Vec<Row>,
}

impl Report {
    pub fn add(&mut self, row: Row) {
        eprintln!("  {}: {} {}", row.what, number(row.figure), row.unit);
        self.rows.push(row);
    }

    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(UTF8_HORIZONTAL_ONLY);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if !table.is_tty() {
            table.set_width(WIDTH);
        }
        table.set_header(["what", "figure", "unit", "asked", "", "how"]);
        for row in &self.rows {
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

    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "what": row.what,
                "figure": row.figure,
                "unit": row.unit,
                "asked": row.target.map(Target::words),
                "met": row.target.map(|target| target.met(row.figure)),
                "how": row.note,
            })
        });
        rows.collect()
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
    fn numbers_are_grouped() {
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(0.756), "0.76");
    }
}
