//! Aligns texts in columns.

use std::fmt;

use unicode_width::UnicodeWidthStr;

/// A header and rows of texts.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// From which column on texts stand at the right.
    right_from: usize,
}

impl Table {
    /// A table with this header.
    pub fn new(header: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let header = header.into_iter().map(Into::into).collect();
        Table { rows: vec![header], right_from: usize::MAX }
    }

    /// Adds a row.
    pub fn add_row(&mut self, row: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    /// Texts stand at the right from this column on, counted from 0.
    pub fn align_right_from(&mut self, column: usize) {
        self.right_from = column;
    }

    /// The width of each column.
    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|text| text.width()).max()
        };
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (text, width))| {
            let space = " ".repeat(width.saturating_sub(text.width()));
            if column < self.right_from { format!("{text}{space}") } else { space + text }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let lines: Vec<String> = self.rows.iter().map(|row| self.line(row, &widths)).collect();
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_text() {
        let mut table = Table::new(["TUBE", "N"]);
        table.add_row(["郵便局", "7"]);
        table.add_row(["a", "12"]);
        assert_eq!(table.to_string(), "TUBE    N\n郵便局  7\na       12");
        table.align_right_from(1);
        assert_eq!(table.to_string(), "TUBE     N\n郵便局   7\na       12");
    }
}
