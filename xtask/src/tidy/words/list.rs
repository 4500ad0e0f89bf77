//! Reads `xtask/words.toml`: sections of words with their replacements.

/// A word or phrase, and what to write instead.
pub type Entry = (String, String);

/// The banned words by where they are looked for.
#[derive(Debug, Default)]
pub struct WordList {
    /// In any text.
    pub text: Vec<Entry>,
    /// Names of types that are not defined.
    pub whole_types: Vec<Entry>,
    /// In names of types.
    pub types: Vec<Entry>,
    /// In all other names.
    pub names: Vec<Entry>,
    /// Phrases in which banned names are allowed.
    pub allowed: Vec<Entry>,
    /// The first words of all types and names, in lower case.
    pub beginnings: Vec<String>,
}

impl WordList {
    /// Reads the sections; a line is `word = "replacement"`, and the word may be quoted.
    pub fn parse(toml: &str) -> Self {
        let mut list = Self::default();
        let mut section = "";
        for line in toml.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name;
                continue;
            }
            let Some((word, instead)) = line.split_once(" = ") else { continue };
            let entry = (unquoted(word), unquoted(instead));
            match section {
                "text" => list.text.push(entry),
                "whole_types" => list.whole_types.push(entry),
                "types" => list.types.push(entry),
                "names" => list.names.push(entry),
                "allowed" => list.allowed.push(entry),
                _ => {}
            }
        }
        let names = list.types.iter().chain(&list.names);
        let first = |(word, _): &Entry| word.split('_').next().unwrap_or_default().to_lowercase();
        list.beginnings = names.map(first).collect();
        list.beginnings.sort();
        list.beginnings.dedup();
        list
    }
}

fn unquoted(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_and_quotes() {
        let list = WordList::parse(
            "# a = \"b\"\n[text]\n\"who waits\" = \"a client\"\n\n[names]\nwall = \"box\"\n",
        );
        assert_eq!(list.text, [("who waits".to_string(), "a client".to_string())]);
        assert_eq!(list.names, [("wall".to_string(), "box".to_string())]);
        assert!(list.types.is_empty());
    }

    #[test]
    fn the_list_itself_is_read_completely() {
        let text = include_str!("../../../words.toml");
        let list = WordList::parse(text);
        let lists = [&list.text, &list.whole_types, &list.types, &list.names, &list.allowed];
        let read = lists.map(Vec::len);
        let written = text.lines().filter(|line| line.contains(" = \"") && !line.starts_with('#'));
        assert_eq!(read.iter().sum::<usize>(), written.count());
        assert!(list.text.iter().all(|(word, _)| *word == word.to_lowercase()));
        let mut types = list.types.iter().chain(&list.whole_types);
        assert!(types.all(|(word, _)| word.starts_with(char::is_uppercase)));
        assert!(list.names.iter().all(|(word, _)| *word == word.to_lowercase()));
    }
}
