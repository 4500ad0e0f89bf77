//! Reads the functions of all packages, and finds those that a call may mean.

use std::collections::BTreeMap;

use super::super::lexer::is_word;
use super::super::source::Source;
use super::super::tree::Tree;
use crate::storm::VARIABLES;

/// The packages whose functions the tests of all others use, and the words that import them.
const SHARED: &[&str] = &["crates/conformance", "crates/testkit"];
const IMPORTS: &[&str] = &["use taskyard_conformance::", "use taskyard_testkit::"];

/// The folder of cases that each store makes into tests by a macro.
const CASES: &str = "crates/testkit/src/suite/";

/// A function, and what it calls.
pub struct KnownFunction<'a> {
    pub path: &'a str,
    pub line: usize,
    /// The name in the output of a test binary: the modules of its target, and its own name.
    pub full_name: String,
    pub is_test: bool,
    /// Whether it names a variable of `storm` itself.
    pub names_variable: bool,
    pub calls: Vec<Call>,
    package: &'a str,
    /// The type whose function it is.
    owner: Option<String>,
    name: String,
}

/// A call, as it is written.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    name: String,
    before: Before,
}

/// What is written before the name of a called function.
#[derive(Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// `value.`
    Value,
    /// `module::` or `Type::`
    Path(String),
}

/// All functions.
pub struct Functions<'a> {
    pub all: Vec<KnownFunction<'a>>,
    by_name: BTreeMap<String, Vec<usize>>,
    /// What each file imports from shared packages.
    imports: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Functions<'a> {
    /// Reads all packages.
    pub fn read(tree: &'a Tree) -> Self {
        let all: Vec<_> =
            tree.rust().flat_map(|(path, source)| read_file(tree, path, source)).collect();
        let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, function) in all.iter().enumerate() {
            by_name.entry(function.name.clone()).or_default().push(at);
        }
        let imports = tree.ending(".rs").map(|(path, text)| (path, imports(text))).collect();
        Self { all, by_name, imports }
    }

    /// The functions that a call may mean: those of the same file, otherwise of the target, otherwise of the package, otherwise of
    /// a shared package.
    pub fn called(&self, caller: &KnownFunction<'_>, call: &Call) -> Vec<usize> {
        let named = self.by_name.get(&call.name).map_or(&[][..], Vec::as_slice);
        let fitting: Vec<usize> =
            named.iter().copied().filter(|at| call.fits(caller, &self.all[*at])).collect();
        let within = |scope: &dyn Fn(&KnownFunction<'_>) -> bool| -> Vec<usize> {
            fitting.iter().copied().filter(|at| scope(&self.all[*at])).collect()
        };
        let scopes: [&dyn Fn(&KnownFunction<'_>) -> bool; 4] = [
            &|function| function.path == caller.path,
            &|function| target(function.path) == target(caller.path),
            &|function| function.package == caller.package,
            &|function| SHARED.contains(&function.package),
        ];
        let imports = self.imports.get(caller.path).map_or(&[][..], Vec::as_slice);
        let imported = call.before == Before::Nothing && imports.contains(&call.name.as_str());
        let scopes = scopes.into_iter().skip(if imported { 3 } else { 0 });
        let found = scopes.map(within).find(|found| !found.is_empty());
        found.filter(|found| call.before != Before::Value || found.len() == 1).unwrap_or_default()
    }
}

impl Call {
    fn fits(&self, caller: &KnownFunction<'_>, function: &KnownFunction<'_>) -> bool {
        match &self.before {
            Before::Nothing => function.owner.is_none(),
            Before::Value => function.owner.is_some(),
            Before::Path(path) if path == "Self" => function.owner == caller.owner,
            Before::Path(path) if path.starts_with(char::is_uppercase) => {
                function.owner.as_ref() == Some(path)
            }
            Before::Path(path) => {
                let relative = matches!(path.as_str(), "crate" | "super" | "self");
                let module = modules(function.path).pop();
                // Shared functions are exported by other modules as well.
                let any = relative || SHARED.contains(&function.package);
                function.owner.is_none() && (any || module == Some(path))
            }
        }
    }
}

/// The functions of a file.
fn read_file<'a>(tree: &'a Tree, path: &'a str, source: &Source) -> Vec<KnownFunction<'a>> {
    let Some(package) = package(path) else { return Vec::new() };
    let text: Vec<&str> = tree.text(path).unwrap_or_default().lines().collect();
    let code: Vec<&str> = source.lines().map(|line| line.code).collect();
    let surroundings = surroundings(&code);
    let read = source.functions().into_iter().map(|function| {
        let first = function.line - 1;
        let lines = first..(first + function.length).min(code.len()).min(text.len());
        let names =
            |line: &&str| VARIABLES.iter().any(|name| line.contains(&format!("\"{name}\"")));
        let Surroundings { owner, modules: inner } = &surroundings[first];
        let inner = inner.iter().map(String::as_str);
        let full_name = modules(path).into_iter().chain(inner).chain([function.name.as_str()]);
        let is_case =
            path.starts_with(CASES) && text.iter().any(|line| line.trim() == function.name);
        KnownFunction {
            path,
            line: function.line,
            full_name: full_name.collect::<Vec<_>>().join("::"),
            is_test: is_case || has_test_attribute(&code[..first]),
            names_variable: text[lines.clone()].iter().any(names),
            calls: calls(&code[lines].join("\n")),
            package,
            owner: owner.clone(),
            name: function.name,
        }
    });
    read.collect()
}

/// The names that a file imports from shared packages.
fn imports(text: &str) -> Vec<&str> {
    let statements = IMPORTS.iter().flat_map(|import| text.split(import).skip(1));
    let names = statements.filter_map(|rest| rest.split(';').next());
    names.flat_map(|names| names.split(|char| !is_word(char))).collect()
}

/// The folder of the package of a file, such as `crates/stores/redis`.
fn package(path: &str) -> Option<&str> {
    let end = path.find("/src/").into_iter().chain(path.find("/tests/")).min()?;
    path.starts_with("crates/").then(|| &path[..end])
}

/// The folder of the target of a file, such as `crates/cli/src/` or `crates/cli/tests/suite/`.
fn target(path: &str) -> &str {
    let inside = package(path).map_or(0, |package| package.len() + 1);
    let parts = if path[inside..].starts_with("tests/") { 2 } else { 1 };
    let ends = path[inside..].match_indices('/').map(|(at, _)| inside + at + 1);
    &path[..ends.take(parts).last().unwrap_or(inside)]
}

/// The modules of a file in its target: `["crash", "child"]` for `crates/stores/sqlite/tests/sqlite/crash/child.rs`.
fn modules(path: &str) -> Vec<&str> {
    let folder = if path.starts_with(CASES) { CASES } else { target(path) };
    let file = &path[folder.len()..];
    let parts = file.strip_suffix(".rs").unwrap_or(file).split('/');
    parts.filter(|part| !matches!(*part, "" | "mod" | "main" | "lib")).collect()
}

/// The type and the modules around a line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Surroundings {
    owner: Option<String>,
    modules: Vec<String>,
}

/// The surroundings of each line of code that `cargo fmt` has written: a block ends with a brace where it began.
fn surroundings(code: &[&str]) -> Vec<Surroundings> {
    let mut open: Vec<(usize, Surroundings)> = Vec::new();
    let mut all = Vec::new();
    for line in code {
        let (indent, text) = (line.len() - line.trim_start().len(), line.trim());
        let mut here = open.last().map(|(_, around)| around.clone()).unwrap_or_default();
        all.push(here.clone());
        let module = text.strip_suffix(" {").and_then(|text| text.rsplit_once("mod "));
        if text.starts_with("impl") && !text.ends_with('}') {
            here.owner = type_name(&text["impl".len()..]);
            open.push((indent, here));
        } else if let Some((_, module)) = module {
            here.modules.push(module.to_owned());
            open.push((indent, here));
        } else if text.starts_with('}') && open.last().is_some_and(|(began, _)| *began == indent) {
            open.pop();
        }
    }
    all
}

/// The type in the rest of a line that begins with `impl`.
fn type_name(line: &str) -> Option<String> {
    let mut depth = 0;
    let mut outside = String::new();
    let line = line.replace("->", "");
    for char in line.chars() {
        match char {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ if depth == 0 => outside.push(char),
            _ => {}
        }
    }
    let name = outside.rsplit_once(" for ").map_or(outside.as_str(), |(_, name)| name);
    let name = name.split_whitespace().next()?.rsplit("::").next()?;
    Some(name.to_owned())
}

/// Whether the attributes directly above make the next item a test.
fn has_test_attribute(above: &[&str]) -> bool {
    let attributes = above.iter().rev().map(|line| line.trim());
    attributes
        .take_while(|line| line.is_empty() || line.starts_with("#["))
        .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
}

/// The calls in some code without comments and literals.
fn calls(code: &str) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find(is_word) {
        let before = code[..code.len() - rest.len() + start].trim_end();
        let name: &str = &rest[start..];
        let end = name.find(|char| !is_word(char)).unwrap_or(name.len());
        let (name, after) = name.split_at(end);
        rest = after;
        // A variable or a parameter, but not a function.
        let is_local =
            || code.contains(&format!("let {name} = ")) || code.contains(&format!("{name}: "));
        if !after.starts_with('(') && !after.starts_with("::<") || is_local() {
            continue;
        }
        let before = match before.strip_suffix("::") {
            Some(path) => Before::Path(last_word(path).to_owned()),
            None if before.ends_with('.') && !before.ends_with("..") => Before::Value,
            None if last_word(before) == "fn" => continue,
            None => Before::Nothing,
        };
        calls.push(Call { name: name.to_owned(), before });
    }
    calls
}

fn last_word(text: &str) -> &str {
    let start = text.rfind(|char| !is_word(char)).map_or(0, |at| at + 1);
    &text[start..]
}
