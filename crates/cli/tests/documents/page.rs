//! Reads the blocks of code of a document, and compares what was printed with what the document shows.

use std::fs;
use std::path::Path;

/// A document, read block by block.
pub struct DocumentPage {
    pub name: String,
    pub blocks: Vec<CodeBlock>,
}

/// A block of code in a document.
#[derive(Clone, Debug)]
pub struct CodeBlock {
    pub line: usize,
    pub language: String,
    pub text: String,
    /// Whether it is copied from a file that other tests run, which `cargo xtask tidy` checks.
    pub is_copied: bool,
}

impl DocumentPage {
    /// Reads a document, named from the root of the repository.
    pub fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
        let text = fs::read_to_string(path).expect(name);
        let mut blocks: Vec<CodeBlock> = Vec::new();
        let (mut is_open, mut is_copied) = (false, false);
        for (line, number) in text.lines().zip(1..) {
            match line.trim_start().strip_prefix("```") {
                Some(_) if is_open => is_open = false,
                Some(language) => {
                    is_open = true;
                    let language = language.trim().to_owned();
                    let (line, text) = (number + 1, String::new());
                    blocks.push(CodeBlock { line, language, text, is_copied });
                }
                None if is_open => {
                    let text = &mut blocks.last_mut().expect("a block is open").text;
                    text.push_str(line);
                    text.push('\n');
                }
                None => is_copied = line.starts_with("<!-- from: "),
            }
        }
        DocumentPage { name: name.into(), blocks }
    }
}

/// The commands of a session with the output that it shows of each, or those of a script.
pub fn commands(block: &CodeBlock) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let is_session = block.language == "console";
    for line in block.text.lines() {
        let line = if is_session { line } else { without_comment(line) };
        let is_continued = found.last().is_some_and(|(command, _)| command.ends_with('\\'));
        match (found.last_mut(), line.strip_prefix("$ ")) {
            (Some((command, _)), _) if is_continued => {
                command.push('\n');
                command.push_str(line);
            }
            (_, Some(command)) if is_session => found.push((command.into(), String::new())),
            (_, None) if !is_session => found.push((line.into(), String::new())),
            (Some((_, shown)), _) => {
                shown.push_str(line);
                shown.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}

/// A line of a script without the comment at its end.
fn without_comment(line: &str) -> &str {
    let comment = line
        .match_indices(" #")
        .find(|(at, _)| line[..*at].matches('\'').count().is_multiple_of(2));
    comment.map_or(line, |(at, _)| line[..at].trim_end())
}

/// How an output differs from what a document shows, if it does: times, lease numbers and worker names may differ, `…` stands for any
/// text, and where the document shows nothing, anything may be printed.
pub fn difference(shown: &str, printed: &str) -> Option<String> {
    let (shown, printed) = (normalized(shown), normalized(printed));
    let is_same = shown.is_empty() || is_match(&shown, &printed);
    (!is_same).then(|| format!("--- shown\n{shown}\n--- printed\n{printed}"))
}

/// Whether a text has all parts of a pattern between its `…`, in their order.
fn is_match(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('…') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first.trim_end()) else { return false };
    let mut parts: Vec<&str> = rest.split('…').map(str::trim).collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = text.split_once(part) else { return false };
        text = after;
    }
    text.ends_with(last)
}

/// A text in which times, durations, lease numbers, names of workers and widths of columns are the same in every run.
pub fn normalized(text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| {
        let line = line.replace("less than a second", "0 s");
        // The line below the titles of a table of psql is as wide as its columns.
        if !line.is_empty() && line.chars().all(|c| "-+".contains(c)) {
            return "-".to_owned();
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let words = words.iter().enumerate().map(|(at, word)| {
            let unit = words.get(at + 1).map_or("", |next| next.trim_end_matches([')', ',', ';']));
            let number = word.trim_start_matches('(');
            match ["ms", "s", "min", "h", "d"].contains(&unit) && number.parse::<f64>().is_ok() {
                true => "N".to_owned(),
                false => fields(word),
            }
        });
        words.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n").replace("N min", "N s").replace("N ms", "N s")
}

/// A word with the same times and numbers in every run; the fields of JSON are separated by commas.
fn fields(word: &str) -> String {
    // Python writes milliseconds behind a comma.
    if is_time(word) {
        return "TIME".to_owned();
    }
    let field = |field: &str| {
        let (name, value) = match field.rsplit_once(':') {
            Some((name, value)) if field.starts_with(['"', '{', '[']) => (name, value),
            _ => ("", field),
        };
        let end = value.trim_end_matches(['}', ']', ')']);
        let same = match end {
            _ if name.ends_with("\"lease\"") => "LEASE",
            _ if ["\"age\"", "\"run\"", "\"process\""].iter().any(|end| name.ends_with(end)) => "N",
            _ if is_time(end.trim_start_matches('(')) => "TIME",
            _ if is_delivery(end) => {
                return format!("{}:LEASE", end.split(':').next().unwrap_or(""));
            }
            _ if end.split(':').nth(1).is_some_and(is_number) => "WORKER",
            _ => return field.to_owned(),
        };
        let separator = if name.is_empty() { "" } else { ":" };
        format!("{name}{separator}{same}{}", &value[end.len()..])
    };
    word.split(',').map(field).collect::<Vec<_>>().join(",")
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

/// An id with the number of a lease.
fn is_delivery(text: &str) -> bool {
    text.split_once(':').is_some_and(|(id, lease)| is_number(id) && is_number(lease))
}

/// A date, a time of day, or seconds since 1970 with a fraction.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
    shape.starts_with("9999-99-99")
        || shape.starts_with("99:99:99")
        || text
            .split_once('.')
            .is_some_and(|(whole, part)| whole.len() >= 10 && is_number(whole) && is_number(part))
}

#[test]
fn times_and_numbers_of_a_run_are_not_compared() {
    for (one, other) in [
        ("ID:LEASE  ATTEMPTS\n0:6       0", "ID:LEASE  ATTEMPTS\n0:17  0\n"),
        ("due in 10 min (2026-11-16T10:25:24Z)", "due in 59 s (2027-01-01T00:00:00Z)"),
        ("1 taken less than a second vm:148:taskyard x", "1 taken 2 s box7:9:taskyard x"),
        (
            "{\"id\":0,\"lease\":8,\"due\":1794809813.741706}",
            "{\"id\":0,\"lease\":9,\"due\":1894809813.5}",
        ),
        (
            "yours for 60 s; when done: taskyard ack mail 0:0",
            "yours for 60 s; when done: taskyard ack mail 0:3",
        ),
    ] {
        assert_eq!(normalized(one), normalized(other));
    }
    assert_ne!(normalized("0:6 0"), normalized("1:6 0"));
    assert_ne!(normalized("acked 0"), normalized("acked 1"));
    assert_ne!(normalized("{\"id\":0}"), normalized("{\"id\":1}"));
}

/// A test of the tests: `…` was the end of what was compared.
#[test]
fn what_follows_an_omission_is_compared() {
    for (shown, printed) in [
        ("a…", "a b c"),
        ("a\n…", "a\nb"),
        ("{\"a\":1,…,\"b\":2}", "{\"a\":1,\"c\":3,\"b\":2}"),
        ("", "a"),
    ] {
        assert_eq!(difference(shown, printed), None, "{shown}");
    }
    for (shown, printed) in [("a…c", "a b c d"), ("a…d", "a b c"), ("a", "a b"), ("b…", "a b")]
    {
        assert!(difference(shown, printed).is_some(), "{shown}");
    }
}
