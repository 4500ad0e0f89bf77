//! Checks the sources for the rules of the project that a program can check.
//!
//! A check reads the [`Tree`] and returns diagnostics, each with what to write instead. Every check
//! but the crate directions is a pure function over texts; to add one, write it and name it in
//! [`CHECKS`].

mod copies;
mod directions;
pub mod documents;
mod leftovers;
mod lexer;
pub mod links;
mod lua;
mod random_tests;
mod shape;
mod source;
mod sql;
pub mod tree;
mod words;

use std::fmt;
use std::fs;
use std::path::Path;

use tree::Tree;

use crate::shell;

/// The checks of texts.
const CHECKS: &[fn(&Tree) -> Vec<Diagnostic>] = &[
    directions::pure_core,
    shape::file_length,
    shape::function_length,
    lua::function_length,
    sql::function_length,
    shape::names,
    shape::crate_header,
    shape::doc_tests,
    leftovers::attributes,
    leftovers::unfinished,
    leftovers::sleeping,
    leftovers::machine_paths,
    links::check,
    copies::check,
    documents::listed,
    documents::languages,
    documents::readme_length,
    words::check,
    random_tests::check,
];

/// What `tidy` changes before it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// Copies the examples into the documents again and removes clean files from the list of pending files.
    Fix,
    /// Writes the list of pending files anew.
    Pending,
}

/// A violation of a rule: where, what, and what to write instead.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    path: String,
    line: usize,
    problem: String,
    instead: String,
}

impl Diagnostic {
    fn new(
        (path, line): (&str, usize),
        problem: impl Into<String>,
        instead: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), line, problem: problem.into(), instead: instead.into() }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}\n    instead: {}", self.path, self.line, self.problem, self.instead)
    }
}

/// Makes the change and runs every check on the repository.
pub fn run(change: Change) -> Result<(), String> {
    let root = shell::root();
    let mut tree = Tree::read(&root)?;
    let written = match change {
        Change::Nothing => Vec::new(),
        Change::Fix => {
            let mut texts = copies::fixed(&tree);
            texts.push((words::PENDING.into(), words::remaining(&tree)));
            texts
        }
        Change::Pending => vec![(words::PENDING.into(), words::rewritten(&tree))],
    };
    for (path, text) in
        written.iter().filter(|(path, text)| tree.text(path).unwrap_or_default() != text)
    {
        write(&root, path, text)?;
    }
    if !written.is_empty() {
        tree = Tree::read(&root)?;
    }
    let mut diagnostics: Vec<_> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    diagnostics.extend(directions::check()?);
    diagnostics.sort();
    for diagnostic in &diagnostics {
        println!("{diagnostic}");
    }
    match diagnostics.len() {
        0 => {
            println!("tidy: {} files, no violations", tree.len());
            Ok(())
        }
        1 => Err("tidy: one violation".into()),
        many => Err(format!("tidy: {many} violations")),
    }
}

fn write(root: &Path, path: &str, text: &str) -> Result<(), String> {
    fs::write(root.join(path), text).map_err(|error| format!("{path}: {error}"))?;
    println!("{path}: written");
    Ok(())
}
