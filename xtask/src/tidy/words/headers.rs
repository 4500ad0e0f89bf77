//! Checks that every Rust file opens with its responsibility.

use super::{Diagnostic, Tree, files};

/// First words of headers that ask or hint instead of stating what the file does.
const RIDDLES: &[&str] =
    &["What", "Who", "Whose", "Where", "How", "When", "Whether", "Why", "Things", "Whatever"];

/// Headers that are missing or state no responsibility.
pub fn check(tree: &Tree) -> Vec<Diagnostic> {
    let rust = files(tree).filter(|(path, _)| path.ends_with(".rs"));
    rust.filter_map(|(path, text)| {
        let problem = problem(text)?;
        let instead =
            "`//! Encodes one batch as a journal record and reads it back.`: a verb and its object";
        Some(Diagnostic::new((path, 1), problem, instead))
    })
    .collect()
}

fn problem(text: &str) -> Option<String> {
    let Some(header) = text.lines().next().and_then(|line| line.strip_prefix("//!")) else {
        return Some("has no header".into());
    };
    // A name in front, such as of a command, is not the statement.
    let statement = header.split_once("`: ").map_or(header, |(_, statement)| statement);
    let first = statement.trim().split(|char: char| !char.is_alphanumeric()).next()?;
    let capital = first[..1.min(first.len())].to_uppercase() + &first[1.min(first.len())..];
    RIDDLES.contains(&capital.as_str()).then(|| format!("the header begins with `{first}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_states_a_responsibility() {
        let tree = Tree::of(&[
            ("src/fine.rs", "//! Encodes one batch.\n"),
            ("src/named.rs", "//! `top`: shows a server.\n"),
            ("src/missing.rs", "use std::fs;\n"),
            ("src/riddle.rs", "//! What came of a batch so far.\n"),
            ("src/named_riddle.rs", "//! `put`: how tasks are added.\n"),
            ("docs/a.md", "What it is.\n"),
        ]);
        let paths: Vec<_> = check(&tree).into_iter().map(|found| found.path).collect();
        assert_eq!(paths, ["src/missing.rs", "src/named_riddle.rs", "src/riddle.rs"]);
    }
}
