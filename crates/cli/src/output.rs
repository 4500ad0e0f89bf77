//! Prints to standard output and standard error. A closed pipe is an error, never a panic.

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

/// Prints values, one line of JSON each, with one write.
pub fn json_lines(values: impl IntoIterator<Item = impl Serialize>) -> anyhow::Result<()> {
    let mut lines = String::new();
    for value in values {
        writeln!(lines, "{}", serde_json::to_string(&value)?)?;
    }
    Ok(bytes(lines.as_bytes())?)
}

/// Writes bytes to standard output.
pub fn bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Prints a message to standard error.
pub fn note(text: impl Display) {
    // A closed standard error is ignored.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A table with this header and without borders.
pub fn table(header: &[&str]) -> Table {
    Table::new(header.iter().map(|name| name.to_uppercase()))
}

/// Prints a table.
pub fn show(table: &Table) -> io::Result<()> {
    line(table)
}

/// Escapes control characters, which could change the state of a terminal.
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

/// A number with a noun: `1 task`, `2 tasks`.
pub fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Quotes a word for a shell.
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
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("mail"), "mail");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|count| plural(count, "task")), ["0 tasks", "1 task", "2 tasks"]);
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb"), r"a\u{1b}[2Jb");
    }
}
