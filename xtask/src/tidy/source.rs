//! Splits a Rust file into lines of code, comments and tests, and finds its functions.

use super::lexer::{self, is_word};

/// One Rust file.
pub struct Source {
    code: Vec<String>,
    comments: Vec<String>,
    test: Vec<bool>,
    /// The code in one piece.
    chars: Vec<char>,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line of its `fn`, counted from 1.
    pub line: usize,
    /// How many lines it has, from `fn` to the last brace.
    pub length: usize,
    /// Whether it belongs to the tests.
    pub test: bool,
}

/// One line, in both views.
pub struct Line<'a> {
    /// Counted from 1.
    pub number: usize,
    /// The code, without comments and the insides of literals.
    pub code: &'a str,
    /// The comment.
    pub comment: &'a str,
    /// Whether it belongs to the tests.
    pub test: bool,
}

impl Source {
    /// Reads a file; the path tells whether all of it is a test.
    pub fn new(path: &str, text: &str) -> Self {
        let views = lexer::split(text);
        let lines = |view: &str| view.lines().map(String::from).collect::<Vec<_>>();
        let code = lines(&views.code);
        let all = is_test_file(path) || views.code.trim_start().starts_with("#![cfg(test)]");
        let mut source = Self {
            test: vec![all; code.len()],
            comments: lines(&views.comments),
            chars: views.code.chars().collect(),
            code,
        };
        source.mark_tests();
        source
    }

    /// All lines.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        (0..self.code.len()).map(|index| Line {
            number: index + 1,
            code: &self.code[index],
            comment: self.comments.get(index).map_or("", String::as_str),
            test: self.test[index],
        })
    }

    /// The comments directly above a line (counted from 1), nearest first.
    pub fn comments_above(&self, number: usize) -> impl Iterator<Item = &str> {
        let above = (0..number.saturating_sub(1)).rev();
        above
            .take_while(|index| self.code[*index].trim().is_empty())
            .map(|index| self.comments[index].trim())
            .take_while(|comment| !comment.is_empty())
    }

    /// The code from the start of a line (counted from 1).
    pub fn code_from(&self, number: usize) -> String {
        self.code[number - 1..].join("\n")
    }

    /// Every function that has a body.
    pub fn functions(&self) -> Vec<Function> {
        let mut found = Vec::new();
        let mut line = 1;
        for at in 0..self.chars.len() {
            if self.chars[at] == '\n' {
                line += 1;
            }
            let Some(name) = self.function_name(at) else { continue };
            let Some(end) = item_end(&self.chars, at) else { continue };
            if self.chars[end] == '}' {
                let length = 1 + self.newlines(at, end);
                let test = self.test[line - 1];
                found.push(Function { name, line, length, test });
            }
        }
        found
    }

    fn function_name(&self, at: usize) -> Option<String> {
        let begins = self.chars[at..].starts_with(&['f', 'n', ' ']);
        if !begins || at.checked_sub(1).is_some_and(|before| is_word(self.chars[before])) {
            return None;
        }
        let name: String = self.chars[at + 3..].iter().take_while(|char| is_word(**char)).collect();
        (!name.is_empty()).then_some(name)
    }

    fn newlines(&self, from: usize, to: usize) -> usize {
        self.chars[from..to].iter().filter(|char| **char == '\n').count()
    }

    fn mark_tests(&mut self) {
        let starts: Vec<usize> =
            (0..self.code.len()).filter(|i| marks_test(&self.code[*i])).collect();
        for first in starts {
            let begin = self.code[..first].iter().map(|line| line.chars().count() + 1).sum();
            let end = item_end(&self.chars, begin).unwrap_or(self.chars.len());
            let last = first + self.newlines(begin, end);
            for test in self.test.iter_mut().take(last + 1).skip(first) {
                *test = true;
            }
        }
    }
}

/// Whether a file is nothing but tests, by its path.
fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
}

fn marks_test(line: &str) -> bool {
    let line = line.trim_start();
    ["#[cfg(test)]", "#[cfg(all(test", "#[test]", "#[tokio::test"]
        .iter()
        .any(|attribute| line.starts_with(attribute))
}

/// Where the item that begins at `from` ends: its last brace, or its semicolon.
fn item_end(code: &[char], from: usize) -> Option<usize> {
    let mut brackets = 0_usize;
    let mut braces = 0_usize;
    for (at, char) in code.iter().enumerate().skip(from) {
        match char {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            '{' => braces += 1,
            '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
        let ends = matches!(char, '}' | ';') && brackets == 0 && braces == 0;
        if ends {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
fn one(x: [u8; 4]) -> u8 {
    if x[0] == 1 { 2 } else { 3 }
}

trait T {
    fn bodiless(&self);
}

type Pointer = fn (u8) -> u8;

#[cfg(test)]
mod tests {
    #[test]
    fn two() {}
}

const LAST: u8 = 1;
";

    fn tests(source: &Source) -> Vec<usize> {
        source.lines().filter(|line| line.test).map(|line| line.number).collect()
    }

    #[test]
    fn functions_have_names_lines_and_lengths() {
        let found = Source::new("src/a.rs", TEXT).functions();
        let one = Function { name: "one".into(), line: 1, length: 3, test: false };
        let two = Function { name: "two".into(), line: 14, length: 1, test: true };
        assert_eq!(found, [one, two]);
    }

    #[test]
    fn test_modules_are_known() {
        assert_eq!(tests(&Source::new("src/a.rs", TEXT)), [11, 12, 13, 14, 15]);
    }

    #[test]
    fn a_test_module_in_its_own_file_is_one_line_here() {
        let text = "#[cfg(test)]\nmod tests;\n\nfn f() {}\n";
        assert_eq!(tests(&Source::new("src/a.rs", text)), [1, 2]);
    }

    #[test]
    fn a_test_file_is_all_test() {
        let paths = ["crates/x/tests/all/main.rs", "crates/x/src/tube/tests.rs"];
        for path in paths {
            assert_eq!(tests(&Source::new(path, "fn f() {}\n")), [1], "{path}");
        }
    }

    #[test]
    fn comments_above_stop_at_code_and_blanks() {
        let source = Source::new("a.rs", "// far\n\n// b\n// a\nf();\ng();\n");
        assert_eq!(source.comments_above(5).collect::<Vec<_>>(), ["// a", "// b"]);
        assert_eq!(source.comments_above(6).count(), 0);
        assert_eq!(source.comments_above(1).count(), 0);
    }
}
