//! Checks lengths of files and functions, names of files, and headers of crates.

use super::Diagnostic;
use super::tree::Tree;

/// The most lines of a file that are not tests.
const FILE_LINES_MAX: usize = 600;
/// The most lines of a function outside the tests.
pub const FUNCTION_LINES_MAX: usize = 70;
/// Names that say nothing about what is inside.
const VAGUE_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc", "imp"];

/// Files stay short enough to be read in one go.
pub fn file_length(tree: &Tree) -> Vec<Diagnostic> {
    let lengths = tree.rust().map(|(path, source)| {
        (path, source.lines().filter(|line| !line.test).map(|line| line.number).collect::<Vec<_>>())
    });
    lengths
        .filter(|(_, lines)| lines.len() > FILE_LINES_MAX)
        .map(|(path, lines)| {
            Diagnostic::new(
                (path, lines[FILE_LINES_MAX]),
                format!("{} lines of code, the ceiling is {FILE_LINES_MAX}", lines.len()),
                "split it by concern into files named after what they hold; most have 100 to 350",
            )
        })
        .collect()
}

/// Functions stay short enough to be seen at once.
pub fn function_length(tree: &Tree) -> Vec<Diagnostic> {
    let functions = tree.rust().flat_map(|(path, source)| {
        source.functions().into_iter().map(move |function| (path, function))
    });
    functions
        .filter(|(_, function)| !function.test && function.length > FUNCTION_LINES_MAX)
        .map(|(path, function)| {
            let (name, length) = (&function.name, function.length);
            Diagnostic::new(
                (path, function.line),
                format!("`{name}` has {length} lines, the ceiling is {FUNCTION_LINES_MAX}"),
                "move its steps into functions with names; most fit in 40 lines",
            )
        })
        .collect()
}

/// A file or crate is named after what it holds.
pub fn names(tree: &Tree) -> Vec<Diagnostic> {
    tree.texts()
        .filter(|(path, _)| path.ends_with(".rs") || path.ends_with("Cargo.toml"))
        .filter_map(|(path, text)| {
            let package = path.ends_with("Cargo.toml").then(|| package_name(text)).flatten();
            let mut names = path.split('/').chain(package);
            let vague = names.find(|name| is_vague_name(name))?;
            Some(Diagnostic::new(
                (path, 1),
                format!("`{vague}` does not say what is inside"),
                "a noun of the domain or a verb of the protocol, such as `tube` or `take`",
            ))
        })
        .collect()
}

/// Also the last word of a crate's name counts, as in `taskyard-utils`.
fn is_vague_name(name: &str) -> bool {
    let stem = name.strip_suffix(".rs").unwrap_or(name);
    stem.rsplit(['-', '_']).next().is_some_and(|last| VAGUE_NAMES.contains(&last))
}

fn package_name(manifest: &str) -> Option<&str> {
    let line =
        manifest.lines().find(|line| line.starts_with("name ") || line.starts_with("name="))?;
    line.split('"').nth(1)
}

/// Each crate's first file states what it is.
pub fn crate_header(tree: &Tree) -> Vec<Diagnostic> {
    tree.ending(".rs")
        .filter(|(path, _)| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"))
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| {
            Diagnostic::new(
                (path, 1),
                "has no header",
                "`//!` lines: what it is, what it never does, where to start reading",
            )
        })
        .collect()
}

/// A crate that turns documentation tests off, which saves their time, has no code in doc comments that would not be run.
pub fn doc_tests(tree: &Tree) -> Vec<Diagnostic> {
    let manifests = tree.ending("Cargo.toml").filter(|(_, text)| text.contains("doctest = false"));
    let folders: Vec<String> =
        manifests.map(|(path, _)| path.replace("Cargo.toml", "src/")).collect();
    let mut diagnostics = Vec::new();
    for (path, source) in tree.rust() {
        if !folders.iter().any(|folder| path.starts_with(folder.as_str())) {
            continue;
        }
        let mut fences = source.lines().filter(|line| fence(line.comment).is_some()).step_by(2);
        let code = fences.find(|line| {
            matches!(fence(line.comment), Some("" | "rust" | "no_run" | "should_panic"))
        });
        diagnostics.extend(code.map(|line| {
            let instead = "remove `doctest = false` from its Cargo.toml";
            Diagnostic::new((path, line.number), "this code in a doc comment is not run", instead)
        }));
    }
    diagnostics
}

/// The kind of a block of code that opens or closes in this doc comment.
fn fence(comment: &str) -> Option<&str> {
    let comment = comment.trim_start();
    let text = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!"))?;
    text.trim().strip_prefix("```")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(diagnostics: &[Diagnostic]) -> Vec<(&str, usize)> {
        diagnostics.iter().map(|diagnostic| (diagnostic.path.as_str(), diagnostic.line)).collect()
    }

    #[test]
    fn only_code_counts_for_the_length_of_a_file() {
        let code = "const A: u8 = 1;\n".repeat(600);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{code}}}\n");
        let long = format!("{code}{code}");
        let tree = Tree::of(&[
            ("src/fits.rs", &format!("{code}{tests}")),
            ("src/long.rs", &format!("{tests}{code}const B: u8 = 1;\n")),
            ("tests/long.rs", &long),
        ]);
        assert_eq!(lines(&file_length(&tree)), [("src/long.rs", 1204)]);
    }

    #[test]
    fn long_functions_are_found() {
        let body = |lines: usize| format!("\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        let tree = Tree::of(&[
            ("src/fits.rs", &body(70)),
            ("src/long.rs", &body(71)),
            ("tests/long.rs", &body(71)),
        ]);
        let diagnostics = function_length(&tree);
        assert_eq!(lines(&diagnostics), [("src/long.rs", 2)]);
        assert_eq!(diagnostics[0].problem, "`f` has 71 lines, the ceiling is 70");
    }

    #[test]
    fn vague_names_are_refused() {
        let tree = Tree::of(&[
            ("crates/core/src/tube.rs", ""),
            ("crates/core/src/commons.rs", ""),
            ("crates/core/src/utils.rs", ""),
            ("crates/core/tests/common/mod.rs", ""),
            ("crates/x/Cargo.toml", "[package]\nname = \"taskyard-helpers\"\n"),
        ]);
        let paths: Vec<_> = names(&tree).into_iter().map(|diagnostic| diagnostic.path).collect();
        let wanted =
            ["crates/core/src/utils.rs", "crates/core/tests/common/mod.rs", "crates/x/Cargo.toml"];
        assert_eq!(paths, wanted);
    }

    #[test]
    fn a_crate_has_a_header() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "//! The rules.\n"),
            ("crates/b/src/lib.rs", "mod c;\n"),
            ("crates/b/src/c.rs", "\n"),
        ]);
        assert_eq!(lines(&crate_header(&tree)), [("crates/b/src/lib.rs", 1)]);
    }

    #[test]
    fn code_in_doc_comments_is_run() {
        let code = "/// ```\n/// f();\n/// ```\nfn f() {}\n";
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", "[lib]\ndoctest = false\n"),
            ("crates/a/src/a.rs", code),
            ("crates/a/src/b.rs", "/// ```text\n/// f\n/// ```\n"),
            ("crates/b/Cargo.toml", ""),
            ("crates/b/src/a.rs", code),
        ]);
        assert_eq!(lines(&doc_tests(&tree)), [("crates/a/src/a.rs", 1)]);
    }
}
