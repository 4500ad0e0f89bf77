//! Runs the commands of a document on a real server and compares what they print with what the document shows.

use std::fs;
use std::path::Path;
use std::process::Command;

use taskyard_testkit::recorded_output::record;
use taskyard_testkit::server_process::shown_iproto;

use crate::process::{Serving, binary};

/// A document, read block by block.
pub struct DocumentPage {
    name: String,
    blocks: Vec<CodeBlock>,
}

/// A block of code in a document.
#[derive(Clone, Debug)]
pub struct CodeBlock {
    pub line: usize,
    pub language: String,
    pub text: String,
}

impl DocumentPage {
    /// Reads a document, named from the root of the repository.
    pub fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
        let text = fs::read_to_string(path).expect(name);
        let mut blocks: Vec<CodeBlock> = Vec::new();
        let mut is_open = false;
        for (line, number) in text.lines().zip(1..) {
            match line.trim_start().strip_prefix("```") {
                Some(_) if is_open => is_open = false,
                Some(language) => {
                    is_open = true;
                    let language = language.trim().to_owned();
                    blocks.push(CodeBlock { line: number + 1, language, text: String::new() });
                }
                None if is_open => {
                    let text = &mut blocks.last_mut().expect("a block is open").text;
                    text.push_str(line);
                    text.push('\n');
                }
                None => {}
            }
        }
        DocumentPage { name: name.into(), blocks }
    }

    /// All blocks in these languages, in their order.
    pub fn blocks(&self, languages: &[&str]) -> Vec<CodeBlock> {
        let blocks = self.blocks.iter();
        blocks.filter(|block| languages.contains(&block.language.as_str())).cloned().collect()
    }

    /// Runs the commands of a session in this folder, and compares what they print.
    #[track_caller]
    pub fn run(&self, block: &CodeBlock, server: &Serving, folder: &Path) {
        for (command, shown) in commands(block) {
            let place = format!("{}:{}: {command}", self.name, block.line);
            let ran = shell(&command, server, folder);
            assert!(ran.status.success(), "{place}: {ran:?}");
            let printed = String::from_utf8(ran.stdout).expect("the output is text");
            record("command", &printed);
            assert_shown(&place, &shown, &printed);
        }
    }
}

/// The text with the addresses that a document shows replaced by those of the server. None of the usual ports is left: a reworded page
/// would reach another server of this machine.
#[track_caller]
pub fn with_addresses(text: &str, addresses: &[(&str, &str)]) -> String {
    let left = addresses.iter().fold(text.to_owned(), |left, (shown, _)| left.replace(shown, " "));
    let has_usual_port = left.contains(":7070") || left.contains("3301");
    assert!(!has_usual_port, "an address is not that of the tested server: {text}");
    addresses.iter().fold(text.to_owned(), |text, (shown, own)| text.replace(shown, own))
}

/// Runs a command of a document with a shell. The addresses of the document are those of the server.
fn shell(command: &str, server: &Serving, folder: &Path) -> std::process::Output {
    let http = server.url.trim_start_matches("http://");
    let command = with_addresses(command, &[("localhost:7070", http), ("127.0.0.1:7070", http)]);
    let program = binary();
    let programs = Path::new(program.get_program()).parent().expect("it is in a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec 2>&1; {command}")]).current_dir(folder);
    shell.env("PATH", format!("{}:{path}", programs.display())).env("TASKYARD_URL", &server.url);
    shell.output().expect("there is a shell")
}

/// The commands of a session with the output that it shows of each, or those of a script.
fn commands(block: &CodeBlock) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let is_session = block.language == "console";
    for line in block.text.lines() {
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

/// Compares an output with what a document shows: times, lease numbers and worker names differ, `…` stands for the rest, and where the
/// document shows nothing, anything may be printed.
#[track_caller]
pub fn assert_shown(place: &str, shown: &str, printed: &str) {
    let (shown, printed) = (normalized(shown), normalized(printed));
    let (head, has_rest) = match shown.split_once('…') {
        Some((head, _)) => (head.trim_end(), true),
        None => (shown.as_str(), false),
    };
    let is_same = if has_rest { printed.starts_with(head) } else { head == printed };
    assert!(head.is_empty() || is_same, "{place}\n--- shown\n{shown}\n--- printed\n{printed}");
}

/// A text in which times, durations, lease numbers, names of workers and widths of columns are the same in every run.
pub fn normalized(text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| {
        let line = line.replace("less than a second", "0 s");
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
    let field = |field: &str| {
        let (name, value) = match field.rsplit_once(':') {
            Some((name, value)) if field.starts_with(['"', '{', '[']) => (name, value),
            _ => ("", field),
        };
        let end = value.trim_end_matches(['}', ']', ')']);
        let same = match end {
            _ if name.ends_with("\"lease\"") => "LEASE",
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

/// The lines of a start screen that a document shows are in it, in their order.
#[track_caller]
pub fn assert_start_screen(shown: &str, server: &Serving) {
    let http = server.url.trim_start_matches("http://");
    let iproto = shown_iproto(&server.screen).to_owned();
    let screen = server.screen.replace(http, "127.0.0.1:7070").replace(&iproto, "127.0.0.1:3301");
    let screen = normalized(&screen);
    let mut printed = screen.lines();
    for line in normalized(shown).lines().filter(|line| !line.starts_with('$')) {
        assert!(printed.any(|printed| printed == line), "no line {line:?} in {screen}");
    }
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

#[test]
#[should_panic(expected = "not that of the tested server: curl 127.1:7070")]
fn an_address_in_other_words_does_not_run() {
    with_addresses("curl 127.1:7070", &[("127.0.0.1:7070", "127.0.0.1:40000")]);
}
