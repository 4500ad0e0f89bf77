//! Finds what has no place in a finished source: hidden lints, leftovers, sleeps in tests, paths of one machine.

use super::Diagnostic;
use super::lexer::{find_word, is_word};
use super::source::{Line, Source};
use super::tree::Tree;

/// Macros and attributes that mark what is not finished, and what to do about each.
const UNFINISHED: &[(&str, &str)] = &[
    ("todo!", "write it, or return an error that says it is not there yet"),
    ("unimplemented!", "write it, or return an error that says it is not there yet"),
    ("dbg!", "remove it, or use `tracing::debug!` if others need to see it"),
    ("#[ignore", "make the test pass or delete it; a slow one gets a smaller case"),
];

/// Marks in comments that leave the work for later.
const MARKS: &[&str] = &["FIXME", "XXX"];

/// Folders whose name says that a path belongs to one machine.
const MACHINE_FOLDERS: &[&str] = &["root", "work", "home", "Users"];

/// A lint is silenced with a reason, and only as long as it would complain.
pub fn attributes(tree: &Tree) -> Vec<Diagnostic> {
    const INSTEAD: &str = "`#[expect(lint, reason = \"why it is right here\")]`";
    let mut diagnostics = Vec::new();
    for (path, source) in tree.rust() {
        for line in source.lines().filter(|line| line.code.trim_start().starts_with('#')) {
            let place = (path, line.number);
            if find_word(line.code, "allow(").is_some() {
                let problem = "`#[allow]` stays when its cause is gone, and gives no reason";
                diagnostics.push(Diagnostic::new(place, problem, INSTEAD));
            } else if find_word(line.code, "expect(").is_some() && !has_reason(source, &line) {
                diagnostics.push(Diagnostic::new(place, "`#[expect]` without a reason", INSTEAD));
            }
        }
    }
    diagnostics
}

fn has_reason(source: &Source, line: &Line<'_>) -> bool {
    let code = source.code_from(line.number);
    let attribute = code.split_once(']').map_or(code.as_str(), |(attribute, _)| attribute);
    find_word(attribute, "reason").is_some()
}

/// What is committed is finished.
pub fn unfinished(tree: &Tree) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (path, source) in tree.rust() {
        for line in source.lines() {
            for (word, instead) in UNFINISHED {
                if find_word(line.code, word).is_some() {
                    let problem = format!("`{word}` is not finished");
                    diagnostics.push(Diagnostic::new((path, line.number), problem, *instead));
                }
            }
            diagnostics.extend(marked((path, line.number), line.comment));
        }
    }
    for (path, text) in tree.texts().filter(|(path, _)| !path.ends_with(".rs")) {
        let lines = text.lines().zip(1..);
        diagnostics.extend(lines.flat_map(|(line, number)| marked((path, number), line)));
    }
    diagnostics
}

fn marked(place: (&str, usize), text: &str) -> Option<Diagnostic> {
    let mark = MARKS.iter().find(|mark| find_word(text, mark).is_some())?;
    let instead = "do it now, or say plainly in a sentence what is missing and why that is fine";
    Some(Diagnostic::new(place, format!("`{mark}` leaves the work for later"), instead))
}

/// A test that sleeps is slow when it passes and fails when the machine is busy.
pub fn sleeping(tree: &Tree) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (path, source) in tree.rust() {
        // The suite that every store passes is a library, and still a test.
        let suite = path.contains("/conformance/");
        let tests = source.lines().filter(|line| line.test || suite);
        for line in tests.filter(|line| sleeps(line.code) && !is_excused(source, line)) {
            diagnostics.push(Diagnostic::new(
                (path, line.number),
                "a test that sleeps",
                "move a hand clock or wait for a signal; if it must sleep, write \
                 `// tidy: sleep because ...` above the line",
            ));
        }
    }
    diagnostics
}

fn sleeps(code: &str) -> bool {
    ["sleep", "sleep_until", "sleep_ms"].iter().any(|word| {
        code.match_indices(word).any(|(at, _)| {
            let (before, after) = (&code[..at], &code[at + word.len()..]);
            let named = before.ends_with("thread::") || before.ends_with("time::");
            let bare = !before.ends_with(is_word) && !before.ends_with(['.', ':']);
            let called = after.starts_with('(') && !before.ends_with("fn ");
            let ended = !after.starts_with(is_word);
            ended && (named || (bare && called))
        })
    })
}

fn is_excused(source: &Source, line: &Line<'_>) -> bool {
    source
        .comments_above(line.number)
        .filter_map(|comment| comment.split_once("tidy: sleep because "))
        .any(|(_, reason)| !reason.trim().is_empty())
}

/// A path of one machine means nothing on another.
pub fn machine_paths(tree: &Tree) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (path, text) in tree.texts() {
        for (line, number) in text.lines().zip(1..) {
            if let Some(found) = machine_path(line) {
                diagnostics.push(Diagnostic::new(
                    (path, number),
                    format!("`{found}` is a path of one machine"),
                    "a path from the root of the repository, a temporary folder, or `~/`",
                ));
            }
        }
    }
    diagnostics
}

fn machine_path(line: &str) -> Option<String> {
    MACHINE_FOLDERS.iter().map(|folder| format!("/{folder}/")).find(|folder| {
        line.match_indices(folder.as_str()).any(|(at, _)| {
            // After a name or a dot it is the middle of another path.
            let before = line[..at].chars().next_back();
            !before.is_some_and(|char| is_word(char) || "./-~}>)".contains(char))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: fn(&Tree) -> Vec<Diagnostic>, path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|diagnostic| diagnostic.line).collect()
    }

    #[test]
    fn lints_are_expected_with_a_reason() {
        let text = "\
#![allow(dead_code)]
#[expect(dead_code)]
#[expect(dead_code, reason = \"read by the debugger\")]
#[expect(
    dead_code,
    reason = \"read by the debugger\"
)]
#[cfg_attr(test, allow(dead_code))]
// #[allow(dead_code)]
x.expect(\"#[allow(\");
";
        assert_eq!(found(attributes, "a.rs", text), [1, 2, 8]);
    }

    #[test]
    fn leftovers_are_found_in_code_and_marks_in_comments() {
        let text =
            "todo!();\n\"todo!()\";\n// todo!()\ndbg!(1);\n#[ignore = \"slow\"]\nmy_todo!();\n";
        assert_eq!(found(unfinished, "a.rs", text), [1, 4, 5]);
        let marks: Vec<_> = MARKS.iter().map(|mark| format!("// {mark}: later\n")).collect();
        assert_eq!(found(unfinished, "a.rs", &marks.concat()), [1, 2]);
        assert_eq!(found(unfinished, "a.sql", &marks.concat()), [1, 2]);
        assert_eq!(found(unfinished, "a.md", "XXXL"), []);
    }

    #[test]
    fn tests_do_not_sleep() {
        let text = "\
use std::thread::sleep;
thread::sleep(a);
tokio::time::sleep(a).await;
sleep(a);
clock.sleep(a);
Clock::sleep(a);
fn sleep(a: Span) {}
asleep(a);
// tidy: sleep because the kernel gives no other sign
thread::sleep(a);
// tidy: sleep because
thread::sleep(a);
time::sleep_until(a).await;
";
        assert_eq!(found(sleeping, "tests/a.rs", text), [1, 2, 3, 4, 12, 13]);
        assert_eq!(found(sleeping, "src/a.rs", text), []);
        assert_eq!(found(sleeping, "src/conformance/take.rs", "thread::sleep(a);"), [1]);
    }

    #[test]
    fn an_excuse_may_take_two_lines() {
        let text = "// tidy: sleep because the kernel\n// gives no other sign\nthread::sleep(a);\n";
        assert_eq!(found(sleeping, "tests/a.rs", text), []);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for folder in MACHINE_FOLDERS {
            let path = format!("/{folder}/x");
            assert_eq!(found(machine_paths, "a.md", &format!("see {path}")), [1]);
            assert_eq!(found(machine_paths, "a.rs", &format!("\"{path}\"")), [1]);
            for fine in ["https://a.b", "docs", "{dir}", ".", "$HOME"] {
                assert_eq!(found(machine_paths, "a.md", &format!("{fine}{path}")), []);
            }
        }
    }
}
