//! Checks names in code and of files, and finds type names that one crate defines twice.

use std::collections::BTreeMap;

use super::list::{Entry, WordList};
use super::{Diagnostic, Tree, diagnostic, files};
use crate::tidy::lexer::is_word;

/// What defines a type, at the start of a line without its visibility.
const TYPES: &[&str] = &["struct ", "enum ", "union ", "trait ", "type "];

/// Whether a word may begin or end at this byte: beside it is no letter or digit, or the case changes.
pub fn is_boundary(text: &str, at: usize) -> bool {
    let (before, after) = (text[..at].chars().next_back(), text[at..].chars().next());
    match (before, after) {
        (Some(before), Some(after)) if before.is_alphanumeric() && after.is_alphanumeric() => {
            before.is_lowercase() && after.is_uppercase()
        }
        _ => true,
    }
}

/// The words of a name in snake case or camel case.
pub fn words_of(name: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut begin = 0;
    for (at, char) in name.char_indices() {
        if char == '_' || is_boundary(name, at) {
            words.push(&name[begin..at]);
            begin = if char == '_' { at + 1 } else { at };
        }
    }
    words.push(&name[begin..]);
    words.retain(|word| !word.is_empty() && *word != "_");
    words
}

/// The banned words in the names of a line of code.
pub fn banned(code: &str, list: &WordList) -> Vec<Entry> {
    let defined = defined(code);
    let whole = list.whole_types.iter().filter(|(word, _)| defined.as_ref() == Some(word));
    let mut found: Vec<Entry> = whole.cloned().collect();
    for name in code.split(|char| !is_word(char)).filter(|name| !name.is_empty()) {
        found.extend(banned_in(name, list));
    }
    found
}

fn banned_in(name: &str, list: &WordList) -> Vec<Entry> {
    // Most names are decided without taking them apart.
    let lower_name = name.to_ascii_lowercase();
    if !list.beginnings.iter().any(|word| lower_name.contains(word)) {
        return Vec::new();
    }
    let words = words_of(name);
    let is_type = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    let lower: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let allowed = |entry: &&Entry| has(&lower, &entry.0.split(' ').collect::<Vec<_>>());
    if list.allowed.iter().any(|entry| allowed(&entry)) {
        return Vec::new();
    }
    if is_type {
        let banned = list.types.iter().filter(|(word, _)| words.contains(&word.as_str()));
        return banned.cloned().collect();
    }
    let banned = list.names.iter();
    banned.filter(|(word, _)| has(&lower, &word.split('_').collect::<Vec<_>>())).cloned().collect()
}

/// Whether some of the words in a row are these.
fn has(words: &[String], part: &[&str]) -> bool {
    words.windows(part.len()).any(|window| window.iter().eq(part.iter()))
}

/// Files and folders whose names have banned words.
pub fn file_names(tree: &Tree, list: &WordList) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (path, _) in files(tree) {
        for part in path.split('/') {
            let name = part.split('.').next().unwrap_or_default().replace('-', "_");
            let banned = banned_in(&name, list).into_iter();
            found.extend(banned.map(|(word, instead)| diagnostic((path, 1), &word, &instead)));
        }
    }
    found
}

/// Types whose name exists twice in a crate, including its tests but not its examples.
pub fn twice(tree: &Tree) -> Vec<Diagnostic> {
    let mut places: BTreeMap<(&str, String), Vec<(&str, usize)>> = BTreeMap::new();
    for (path, source) in tree.rust() {
        let folders = ["/src/", "/tests/"].iter().filter_map(|folder| path.split_once(folder));
        let Some((krate, _)) = folders.min_by_key(|(krate, _)| krate.len()) else { continue };
        for line in source.lines() {
            if let Some(name) = defined(line.code) {
                places.entry((krate, name)).or_default().push((path, line.number));
            }
        }
    }
    let mut found = Vec::new();
    for ((krate, name), places) in places.iter().filter(|(_, places)| places.len() > 1) {
        for (nth, place) in places.iter().enumerate() {
            let other = places[if nth == 0 { 1 } else { 0 }].0;
            found.push(Diagnostic::new(
                *place,
                format!("`{name}` exists twice in {krate}, also in {other}"),
                "a name that can be understood without its file",
            ));
        }
    }
    found
}

/// The type that a line defines; items inside others, such as associated types, are indented and do not count.
fn defined(code: &str) -> Option<String> {
    let mut rest = code.strip_prefix("pub").map_or(code, |rest| {
        rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest)
    });
    if rest.len() < code.len() {
        rest = rest.trim_start();
    }
    let item = TYPES.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let name: String = item.chars().take_while(|char| is_word(*char)).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_words() {
        assert_eq!(words_of("walls_ready"), ["walls", "ready"]);
        assert_eq!(words_of("YardHandle"), ["Yard", "Handle"]);
        assert_eq!(words_of("Taskyard"), ["Taskyard"]);
        assert_eq!(words_of("_x"), ["x"]);
        assert_eq!(words_of("BAY"), ["BAY"]);
    }

    #[test]
    fn constants_are_names_and_not_types() {
        let list = WordList::parse("[types]\nBay = \"Host\"\n[names]\nbell = \"waker\"\n");
        let words =
            |code| banned(code, &list).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(words("const BELL_MAX: Bay = Bays;"), ["bell", "Bay"]);
        assert!(words("const BAY: u8 = bellow;").is_empty());
    }

    #[test]
    fn whole_types_are_names_of_definitions() {
        let list = WordList::parse("[whole_types]\nPlace = \"Slot\"\n");
        for code in ["struct Place;", "pub enum Place {", "pub(crate) type Place<T> = T;"] {
            assert_eq!(banned(code, &list).len(), 1, "{code}");
        }
        for code in ["struct PlacedTask;", "enum Places {", "fn f(place: Place) {", "    Place,"] {
            assert!(banned(code, &list).is_empty(), "{code}");
        }
    }

    #[test]
    fn file_names_are_names() {
        let list = WordList::parse("[names]\nyard = \"fixture\"\n");
        let tree = Tree::of(&[("tests/yard.rs", ""), ("tests/taskyard.rs", ""), ("yard/a.rs", "")]);
        let paths: Vec<_> = file_names(&tree, &list).into_iter().map(|one| one.path).collect();
        assert_eq!(paths, ["tests/yard.rs", "yard/a.rs"]);
    }

    #[test]
    fn a_type_name_exists_once_in_a_crate() {
        let tree = Tree::of(&[
            (
                "crates/a/src/one.rs",
                "pub struct Place;\nimpl T for Place {\n    type Out = u8;\n}\n",
            ),
            ("crates/a/src/two.rs", "pub(crate) enum Place {}\nimpl U {\n    type Out = u8;\n}\n"),
            ("crates/a/src/three.rs", "#[cfg(test)]\nmod tests {\n    struct Place;\n}\n"),
            ("crates/a/tests/all.rs", "struct Place;\n"),
            ("crates/a/tests/src/all.rs", "struct Once;\n"),
            ("crates/a/examples/one.rs", "struct Once;\n"),
            ("crates/b/src/one.rs", "type Place = u8;\ntrait Places {}\n"),
        ]);
        let found: Vec<_> = twice(&tree).into_iter().map(|one| (one.path, one.line)).collect();
        let paths = ["crates/a/src/one.rs", "crates/a/src/two.rs", "crates/a/tests/all.rs"];
        assert_eq!(found, paths.map(|path| (path.to_owned(), 1)));
    }
}
