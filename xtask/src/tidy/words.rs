//! Checks the vocabulary: words of `xtask/words.toml`, type names that exist twice in a crate, and file headers.
//!
//! Files that are not converted yet are listed in `xtask/words-pending.txt`. A listed file that has become clean fails, so the
//! list only shrinks.

mod headers;
mod list;
mod names;
mod pending;

use super::Diagnostic;
use super::tree::Tree;
use list::WordList;
use names::is_boundary;

pub use pending::{PENDING, remaining, rewritten};

/// Where the words are listed.
pub const LIST: &str = "xtask/words.toml";

/// Files that must name the words.
const EXEMPT: &[&str] = &["CHANGELOG.md", LIST, PENDING, "xtask/src/tidy/words"];
/// The kinds of files with prose or names of ours. Files without an extension belong to them, too.
const KINDS: &[&str] = &[
    "rs", "sql", "lua", "md", "js", "mjs", "ts", "mts", "cts", "html", "css", "py", "sh", "toml",
    "yaml", "conf", "service",
];
/// The beginnings of the names of files with words of others.
const FOREIGN: &[&str] = &["LICENSE"];

/// All findings about vocabulary but those of pending files, and an error for each pending file that is clean.
pub fn check(tree: &Tree) -> Vec<Diagnostic> {
    pending::apply(tree, all(tree))
}

/// All findings about vocabulary, pending or not.
fn all(tree: &Tree) -> Vec<Diagnostic> {
    let list = WordList::parse(tree.text(LIST).unwrap_or_default());
    let mut found = banned_words(tree, &list);
    found.extend(names::file_names(tree, &list));
    found.extend(names::twice(tree));
    found.extend(headers::check(tree));
    found
}

/// The files in which vocabulary is checked.
fn files(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.texts()
        .filter(|(path, _)| is_ours(path) && !EXEMPT.iter().any(|exempt| path.starts_with(exempt)))
}

fn is_ours(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let kind = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty());
    kind.is_none_or(|(_, kind)| KINDS.contains(&kind))
        && !FOREIGN.iter().any(|foreign| name.starts_with(foreign))
}

/// Words that the list refuses, in texts and in names.
fn banned_words(tree: &Tree, list: &WordList) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (path, text) in files(tree) {
        for (line, number) in text.lines().zip(1..) {
            let line = PhraseLine::new(line);
            let in_text = list.text.iter().filter(|(word, _)| line.has(word));
            found.extend(in_text.map(|(word, instead)| diagnostic((path, number), word, instead)));
        }
        let code: Vec<(usize, &str)> = match tree.source(path) {
            Some(source) => source.lines().map(|line| (line.number, line.code)).collect(),
            None if path.ends_with(".sql") || path.ends_with(".lua") => {
                (1..).zip(text.lines()).collect()
            }
            None => Vec::new(),
        };
        for (number, line) in code {
            let banned = names::banned(line, list).into_iter();
            found.extend(banned.map(|(word, instead)| diagnostic((path, number), &word, &instead)));
        }
    }
    found
}

fn diagnostic(place: (&str, usize), word: &str, instead: &str) -> Diagnostic {
    Diagnostic::new(place, format!("`{word}` is not a word of this project"), instead)
}

/// A line in which phrases are looked for, in any case; an underscore and a change to upper case begin a word too.
struct PhraseLine {
    spaced: String,
    lower: String,
}

impl PhraseLine {
    fn new(line: &str) -> Self {
        let spaced = line.replace('_', " ");
        PhraseLine { lower: spaced.to_ascii_lowercase(), spaced }
    }

    fn has(&self, phrase: &str) -> bool {
        self.lower.match_indices(phrase).any(|(at, _)| {
            is_boundary(&self.spaced, at) && is_boundary(&self.spaced, at + phrase.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "\
[text]
nobody = \"no worker\"
\"who waits\" = \"a waiting client\"
[types]
Yard = \"PoolHandle\"
[names]
wall = \"sandbox\"
take_off = \"dispatch\"
[allowed]
\"wall clock\" = \"\"
";

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let tree = Tree::of(&[(LIST, WORDS), (path, text)]);
        let mut lines: Vec<_> = all(&tree).into_iter().map(|found| found.line).collect();
        lines.sort();
        lines
    }

    #[test]
    fn texts_are_checked_in_code_comments_and_documents() {
        let text = "//! Checks.\n// Nobody waits\nfn nobody_waits() {}\nstruct NobodyWaits;\n\"nobody\";\nbusynobody();\n";
        assert_eq!(lines("src/a.rs", text), [2, 3, 4, 5]);
        for path in ["a.md", "a.sql", "a.lua", "a.ts", "a.test.mjs", ".ci/run", ".gitignore"] {
            assert_eq!(lines(path, "-- Checks.\nIt is for nobody.\n"), [2], "{path}");
        }
        assert_eq!(lines("a.png", "nobody"), []);
        assert_eq!(lines("crates/a/LICENSE-MIT", "nobody"), []);
        assert_eq!(lines("CHANGELOG.md", "nobody"), []);
    }

    #[test]
    fn phrases_may_be_names() {
        let text = "//! Checks.\nfn who_waits_is_served() {}\n// Who waits, waits.\nfn who() {}\n";
        assert_eq!(lines("src/a.rs", text), [2, 3]);
    }

    #[test]
    fn names_are_checked_in_code_only() {
        let text = "//! Checks.\nstruct YardHandle;\n// a wall\nlet wall_count = 1;\nlet wallet = wall_clock();\nfn take_off() {}\nfn take() {}\nuse taskyard::Taskyard;\n";
        assert_eq!(lines("src/a.rs", text), [2, 4, 6]);
        assert_eq!(lines("a.md", "a wall"), []);
        assert_eq!(lines("a.sql", "-- Checks.\nCREATE FUNCTION take_off()"), [2]);
    }

    #[test]
    fn a_diagnostic_shows_the_replacement() {
        let tree = Tree::of(&[(LIST, WORDS), ("a.md", "nobody")]);
        assert_eq!(all(&tree)[0].instead, "no worker");
    }
}
