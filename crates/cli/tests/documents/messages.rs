//! The messages that the page about failures quotes are those of the program.

use std::fs;
use std::path::Path;

/// The folder of all crates.
const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The texts in the sources of all crates, without those of their tests.
struct SourceTexts(String);

impl SourceTexts {
    fn read() -> Self {
        let (mut texts, mut folders) = (String::new(), vec![Path::new(CRATES).to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder of sources").flatten() {
                let path = entry.path();
                let extension = path.extension().unwrap_or_default();
                if path.is_dir() {
                    folders.push(path);
                } else if ["rs", "sql", "lua"].iter().any(|known| extension == *known)
                    && path.iter().any(|part| part == "src")
                {
                    let text = fs::read_to_string(path).expect("sources are text");
                    texts += text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
                }
            }
        }
        // A text may go on in the next line, after its indentation.
        let mut lines = texts.split("\\\n");
        let first = lines.next().unwrap_or_default().to_owned();
        SourceTexts(lines.fold(first, |joined, line| joined + line.trim_start()))
    }

    /// Whether the program can print this: each part is a text of the sources, perhaps behind a value. Parts end at an omission, or
    /// where a message gives another one as its cause.
    fn has(&self, message: &str) -> bool {
        let causes = message.split('…').flat_map(|part| part.split(": "));
        let mut parts = causes.map(|part| part.trim().trim_end_matches(';'));
        parts.all(|part| {
            let without_value = part.split_once(' ').map_or("", |(_, rest)| rest);
            let has_words = without_value.split(' ').count() >= 2;
            self.0.contains(part) || has_words && self.0.contains(without_value)
        })
    }
}

/// What a text has between two of these marks.
fn between(text: &str, mark: char) -> impl Iterator<Item = &str> {
    text.split(mark).skip(1).step_by(2)
}

// An operator searches the page for what the program has printed: a message that was changed only in the program is not found there.
#[test]
fn the_messages_of_the_page_about_failures_are_those_of_the_program() {
    let page = fs::read_to_string(Path::new(CRATES).join("../docs/operate/failures.md"));
    let page = page.expect("the page is text");
    let quoted = page.lines().flat_map(|line| between(line, '`').chain(between(line, '"')));
    let is_code =
        |text: &str| text.contains('_') && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let messages: Vec<_> = quoted.filter(|text| text.contains(' ') || is_code(text)).collect();
    assert!(messages.len() > 10, "{messages:?}");
    let sources = SourceTexts::read();
    let unknown: Vec<_> = messages.iter().filter(|message| !sources.has(message)).collect();
    assert!(unknown.is_empty(), "no source has {unknown:#?}");
    for wrong in ["the store failed: the disk has no space", "tasks-data is used by another one"] {
        assert!(!sources.has(wrong), "{wrong}");
    }
}
