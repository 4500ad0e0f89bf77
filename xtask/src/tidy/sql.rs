//! Lengths of functions in SQL files.

use super::Diagnostic;
use super::shape::FUNCTION_LINES_MAX;
use super::tree::Tree;

/// A function with its first line, counted from 1, and its number of lines.
#[derive(Debug, PartialEq, Eq)]
struct SqlFunction {
    name: String,
    line: usize,
    length: usize,
}

/// SQL functions obey the same ceiling as Rust functions.
pub fn function_length(tree: &Tree) -> Vec<Diagnostic> {
    let files =
        tree.ending(".sql").filter(|(path, _)| !path.split('/').any(|part| part == "tests"));
    let functions =
        files.flat_map(|(path, text)| functions(text).into_iter().map(move |found| (path, found)));
    functions
        .filter(|(_, function)| function.length > FUNCTION_LINES_MAX)
        .map(|(path, SqlFunction { name, line, length })| {
            Diagnostic::new(
                (path, line),
                format!("`{name}` has {length} lines, the ceiling is {FUNCTION_LINES_MAX}"),
                "move its steps into functions with names; most fit in 40 lines",
            )
        })
        .collect()
}

/// All functions of a file: from their first line to the one that closes the quoted body.
fn functions(text: &str) -> Vec<SqlFunction> {
    let mut found = Vec::new();
    let mut open: Option<(String, usize)> = None;
    let mut quotes = 0;
    for (index, line) in text.lines().enumerate() {
        if open.is_none() {
            open = name(line).map(|name| (name.to_owned(), index));
            quotes = 0;
        }
        let code = line.split("--").next().unwrap_or_default();
        quotes += code.matches("$$").count();
        if quotes >= 2
            && let Some((name, first)) = open.take()
        {
            found.push(SqlFunction { name, line: first + 1, length: index - first + 1 });
        }
    }
    found
}

/// The name of the function that a line begins to define.
fn name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("CREATE ")?;
    let rest = rest.strip_prefix("OR REPLACE ").unwrap_or(rest);
    let rest = rest.strip_prefix("FUNCTION ").or_else(|| rest.strip_prefix("PROCEDURE "))?;
    rest.split('(').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(lines: usize) -> String {
        let steps = "    PERFORM g();\n".repeat(lines - 4);
        format!(
            "\n-- A comment.\nCREATE OR REPLACE FUNCTION queue.f(a text)\nRETURNS void LANGUAGE plpgsql AS $$\n\
             BEGIN\n{steps}END $$;\n"
        )
    }

    #[test]
    fn functions_have_names_lines_and_lengths() {
        let text = "CREATE TABLE t (a text);\nCREATE FUNCTION a.one() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$;\n\
             CREATE OR REPLACE FUNCTION two(\n    a int) -- not the end: $$\nRETURNS int LANGUAGE sql AS $$\n\
             \x20   SELECT a\n$$;\n";
        let found = functions(text);
        let found: Vec<_> =
            found.iter().map(|found| (found.name.as_str(), found.line, found.length)).collect();
        assert_eq!(found, [("a.one", 2, 1), ("two", 3, 5)]);
    }

    #[test]
    fn long_functions_are_found() {
        let tree = Tree::of(&[
            ("src/fits.sql", &body(70)),
            ("src/long.sql", &body(71)),
            ("tests/long.sql", &body(71)),
        ]);
        let complaints = function_length(&tree);
        assert_eq!(complaints.len(), 1);
        assert_eq!((complaints[0].path.as_str(), complaints[0].line), ("src/long.sql", 3));
        assert_eq!(complaints[0].problem, "`queue.f` has 71 lines, the ceiling is 70");
    }
}
