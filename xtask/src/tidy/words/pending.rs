//! Reads and writes the list of files whose vocabulary is not converted yet.

use std::collections::BTreeSet;

use super::{Diagnostic, Tree};

/// Where the list is: a path a line.
pub const PENDING: &str = "xtask/words-pending.txt";

/// The findings without those of pending files, and one for each pending file that has none.
pub fn apply(tree: &Tree, found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let text = tree.text(PENDING).unwrap_or_default();
    let listed: BTreeSet<&str> = text.lines().collect();
    let dirty: BTreeSet<String> = found.iter().map(|found| found.path.clone()).collect();
    let clean = text.lines().zip(1..).filter(|(path, _)| !dirty.contains(*path));
    let clean: Vec<_> = clean
        .map(|(path, number)| {
            let problem = format!("`{path}` is listed and has become clean");
            Diagnostic::new(
                (PENDING, number),
                problem,
                "`cargo xtask tidy --fix`, which removes it",
            )
        })
        .collect();
    let rest = found.into_iter().filter(|found| !listed.contains(found.path.as_str()));
    rest.chain(clean).collect()
}

/// The list without the files that have become clean.
pub fn remaining(tree: &Tree) -> String {
    let dirty = dirty(tree);
    let listed = tree.text(PENDING).unwrap_or_default().lines();
    lines(listed.filter(|path| dirty.contains(*path)))
}

/// The list of all files with findings.
pub fn rewritten(tree: &Tree) -> String {
    lines(dirty(tree).iter().map(String::as_str))
}

fn dirty(tree: &Tree) -> BTreeSet<String> {
    super::all(tree).into_iter().map(|found| found.path).collect()
}

fn lines<'a>(paths: impl Iterator<Item = &'a str>) -> String {
    paths.map(|path| format!("{path}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{LIST, check};
    use super::*;

    fn tree(pending: &str) -> Tree {
        let words = "[text]\nnobody = \"no worker\"\n";
        let files = [("a.md", "nobody"), ("b.md", "no worker"), ("c.md", "nobody")];
        Tree::of(&[&[(LIST, words), (PENDING, pending)], &files[..]].concat())
    }

    fn paths(pending: &str) -> Vec<(String, usize)> {
        check(&tree(pending)).into_iter().map(|found| (found.path, found.line)).collect()
    }

    #[test]
    fn listed_files_may_wait() {
        assert_eq!(paths("a.md\n"), [("c.md".into(), 1)]);
        assert_eq!(paths("a.md\nc.md\n"), []);
    }

    #[test]
    fn the_list_only_shrinks() {
        assert_eq!(
            paths("a.md\nb.md\nc.md\nnone.md\n"),
            [(PENDING.into(), 2), (PENDING.into(), 4)]
        );
        assert_eq!(remaining(&tree("b.md\nc.md\nnone.md\n")), "c.md\n");
        assert_eq!(rewritten(&tree("")), "a.md\nc.md\n");
    }
}
