//! Printing. A reader that leaves early is an error like any other, never a panic.

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::table::Table;

/// Prints a line.
pub fn line(text: impl Display) -> io::Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints a value as one line of JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(serde_json::to_string(value)?)?)
}

/// Prints many values, a line of JSON each, in one go.
pub fn json_lines(values: impl IntoIterator<Item = impl Serialize>) -> anyhow::Result<()> {
    let mut lines = String::new();
    for value in values {
        writeln!(lines, "{}", serde_json::to_string(&value)?)?;
    }
    Ok(bytes(lines.as_bytes())?)
}

/// Prints these bytes.
pub fn bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Says something beside the output.
pub fn note(text: impl Display) {
    // Where not even this can be said there is nothing left to do.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether a person reads the output.
pub fn is_for_people() -> bool {
    io::stdout().is_terminal()
}

/// A table with this header, without lines around the cells.
pub fn table(header: &[&str]) -> Table {
    Table::new(header.iter().map(|name| name.to_uppercase()))
}

/// Prints a table.
pub fn show(table: &Table) -> io::Result<()> {
    line(table)
}

/// The text with what could steer a terminal made visible.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            safe.extend(char.escape_unicode());
        } else {
            safe.push(char);
        }
    }
    safe
}

/// The word as a shell reads it back.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_from_a_shell() {
        assert_eq!(quoted("mail"), "mail");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn terminals_are_not_steered() {
        assert_eq!(printable("a\u{1b}[2Jb"), r"a\u{1b}[2Jb");
    }
}
