//! The house rules that a program can check, so that nobody has to remember them.
//!
//! A check reads the [`Tree`] and returns complaints, each with what to write instead. Every check
//! but the crate directions is a pure function over texts; to add one, write it and name it in
//! [`CHECKS`].

mod copies;
mod directions;
mod lexer;
mod links;
mod shape;
mod source;
mod tree;
mod words;

use std::fmt;
use std::fs;

use tree::Tree;

use crate::shell;

/// The checks of texts.
const CHECKS: &[fn(&Tree) -> Vec<Complaint>] = &[
    directions::pure_core,
    shape::file_length,
    shape::function_length,
    shape::names,
    shape::opening,
    words::attributes,
    words::unfinished,
    words::sleeping,
    words::machine_paths,
    links::check,
    copies::check,
];

/// What is wrong, where, and what to do instead.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Complaint {
    path: String,
    line: usize,
    wrong: String,
    instead: String,
}

impl Complaint {
    fn new(
        (path, line): (&str, usize),
        wrong: impl Into<String>,
        instead: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), line, wrong: wrong.into(), instead: instead.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}\n    instead: {}", self.path, self.line, self.wrong, self.instead)
    }
}

/// Runs every check on the repository; with `fix` it first copies the examples into the documents.
pub fn run(fix: bool) -> Result<(), String> {
    let root = shell::root();
    let mut tree = Tree::read(&root)?;
    if fix {
        for (path, text) in copies::fixed(&tree) {
            fs::write(root.join(&path), text).map_err(|error| format!("{path}: {error}"))?;
            println!("{path}: copied the examples again");
        }
        tree = Tree::read(&root)?;
    }
    let mut complaints: Vec<_> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    complaints.extend(directions::check()?);
    complaints.sort();
    for complaint in &complaints {
        println!("{complaint}");
    }
    match complaints.len() {
        0 => {
            println!("tidy: {} files, nothing to complain about", tree.len());
            Ok(())
        }
        1 => Err("tidy: one complaint".into()),
        many => Err(format!("tidy: {many} complaints")),
    }
}
