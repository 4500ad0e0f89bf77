//! Checks that each document is listed where readers look for it, and that each block of code names its language.

use std::collections::BTreeSet;

use super::Diagnostic;
use super::links::{is_fence, linked_paths};
use super::tree::Tree;

/// The table of contents of the site that `cargo xtask docs` builds.
pub const CONTENTS: &str = "docs/SUMMARY.md";

/// The pages that list all documents.
const LISTS: [&str; 2] = [CONTENTS, "docs/README.md"];

/// The page that a visitor reads first, and how many lines it may have.
const README: (&str, usize) = ("README.md", 120);

/// The README stays a page that is read to its end.
pub fn readme_length(tree: &Tree) -> Vec<Diagnostic> {
    let (path, lines_max) = README;
    let lines = tree.text(path).unwrap_or_default().lines().count();
    if lines <= lines_max {
        return Vec::new();
    }
    let problem = format!("{lines} lines; at most {lines_max} are allowed");
    vec![Diagnostic::new((path, lines), problem, "move details into a document, and link it")]
}

/// Every document is in all lists: a page that is in none is never found.
pub fn listed(tree: &Tree) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for list in LISTS {
        let Some(text) = tree.text(list) else { continue };
        let linked: BTreeSet<String> =
            linked_paths(list, text).into_iter().map(|(_, path)| path).collect();
        let is_document = |path: &str| path.starts_with("docs/") && !LISTS.contains(&path);
        let documents = tree.ending(".md").map(|(path, _)| path).filter(|path| is_document(path));
        diagnostics.extend(documents.filter(|path| !linked.contains(*path)).map(|path| {
            let problem = format!("`{list}` does not list this document");
            Diagnostic::new((path, 1), problem, "add a link to it in reading order")
        }));
    }
    diagnostics
}

/// Every block of code names its language, for the colours of the site and for the tests that read commands, JSON, YAML and TOML.
pub fn languages(tree: &Tree) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (path, text) in tree.ending(".md") {
        let mut fenced = false;
        for (line, number) in text.lines().zip(1..).filter(|(line, _)| is_fence(line)) {
            fenced = !fenced;
            if fenced && line.trim() == "```" {
                let instead = "```sh, ```console with its output, ```text, or the language";
                diagnostics.push(Diagnostic::new((path, number), "no language", instead));
            }
        }
    }
    diagnostics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_is_not_listed_is_found() {
        let tree = Tree::of(&[
            ("README.md", ""),
            ("docs/README.md", "[a](a.md#top) [b](guides/b.md)"),
            ("docs/SUMMARY.md", "- [a](a.md)"),
            ("docs/a.md", ""),
            ("docs/guides/b.md", "[a](../a.md)"),
        ]);
        let found: Vec<_> = listed(&tree).into_iter().map(|d| (d.path, d.problem)).collect();
        let problem = "`docs/SUMMARY.md` does not list this document".to_string();
        assert_eq!(found, [("docs/guides/b.md".to_string(), problem)]);
    }

    #[test]
    fn a_readme_that_is_too_long_is_found() {
        let readme = |lines| Tree::of(&[("README.md", &*"a\n".repeat(lines))]);
        assert!(readme_length(&readme(120)).is_empty());
        assert_eq!(readme_length(&readme(121))[0].problem, "121 lines; at most 120 are allowed");
    }

    #[test]
    fn a_block_without_a_language_is_found() {
        let text = "```sh\nls\n```\n\n- a\n  ```\n  b\n  ```\n";
        let found = languages(&Tree::of(&[("a.md", text)]));
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [6]);
    }
}
