//! Checks that `cargo xtask storm` selects every test that reads its variables, directly or through other functions.
//!
//! Calls are resolved by name, without types: a method counts only if there is one of that name in its package.

mod functions;

use std::collections::BTreeSet;

use super::Diagnostic;
use super::tree::Tree;
use crate::storm::{RANDOM_TESTS, VARIABLES};
use functions::{Functions, KnownFunction};

/// Where the names are listed.
const LIST: &str = "xtask/src/storm.rs";

/// Tests that read a variable and are not selected, and names that select no such test.
pub fn check(tree: &Tree) -> Vec<Diagnostic> {
    let functions = Functions::read(tree);
    let readers = readers(&functions);
    let tests = readers.iter().map(|at| &functions.all[*at]).filter(|function| function.is_test);
    let tests: Vec<&KnownFunction<'_>> = tests.collect();
    let is_selected =
        |test: &KnownFunction<'_>| RANDOM_TESTS.iter().any(|name| test.full_name.contains(name));
    let missed = tests.iter().filter(|test| !is_selected(test)).map(|test| {
        let problem = format!("`cargo xtask storm` does not select `{}`", test.full_name);
        let instead = format!("add a part of its name to RANDOM_TESTS in {LIST}");
        Diagnostic::new((test.path, test.line), problem, instead)
    });
    let useless = |name: &&&str| !tests.iter().any(|test| test.full_name.contains(**name));
    let listed = RANDOM_TESTS.iter().filter(|_| tree.has(LIST));
    let unused = listed.filter(useless).map(|name| {
        let problem = format!("`{name}` selects no test that reads {}", VARIABLES.join(" or "));
        Diagnostic::new((LIST, 1), problem, "remove it from RANDOM_TESTS")
    });
    missed.chain(unused).collect()
}

/// The functions that read a variable or call one that does, by their positions.
fn readers(functions: &Functions<'_>) -> BTreeSet<usize> {
    let all = || functions.all.iter().enumerate();
    let named = all().filter(|(_, function)| function.names_variable);
    let mut readers: BTreeSet<usize> = named.map(|(at, _)| at).collect();
    loop {
        let calls_reader = |caller: &KnownFunction<'_>| {
            let mut called = caller.calls.iter().flat_map(|call| functions.called(caller, call));
            called.any(|at| readers.contains(&at))
        };
        let new: Vec<usize> = all()
            .filter(|(at, function)| !readers.contains(at) && calls_reader(function))
            .map(|(at, _)| at)
            .collect();
        if new.is_empty() {
            return readers;
        }
        readers.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELPERS: &str = "\
pub fn seeds() -> u64 {
    number(\"TASKYARD_SEED\")
}

pub struct Load;

impl<S: Fn() -> u8> Load {
    pub fn new() -> Self {
        seeds()
    }

    fn wait(&self) {
        Self::new()
    }
}
";

    fn missed(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/conformance/src/seeds.rs", HELPERS), (path, text)]);
        check(&tree).into_iter().map(|found| found.problem).collect()
    }

    fn message(name: &str) -> String {
        format!("`cargo xtask storm` does not select `{name}`")
    }

    #[test]
    fn tests_that_read_a_variable_are_found_through_calls() {
        for call in [
            "seeds()",
            "0..seeds()",
            "crate::seeds()",
            "model::seeds()",
            "Load::new()",
            "load.wait()",
        ] {
            let text =
                format!("fn play() {{\n    {call};\n}}\n\n#[test]\nfn one() {{\n    play();\n}}\n");
            let found = missed("crates/cli/tests/suite/put/many.rs", &text);
            assert_eq!(found, [message("put::many::one")], "{call}");
            assert_eq!(missed("crates/cli/tests/suite/storm.rs", &text), [""; 0], "{call}");
        }
        for other in
            ["Other::new()", "let seeds = f; seeds()", "// seeds()", "\"seeds()\"", "x.seeds()"]
        {
            let text = format!("#[test]\nfn one() {{\n    {other};\n}}\n");
            assert_eq!(missed("crates/cli/tests/suite/put.rs", &text), [""; 0], "{other}");
        }
    }

    #[test]
    fn an_own_function_comes_before_a_shared_one_that_is_not_imported() {
        let text = "fn seeds() {}\n\n#[test]\nfn one() {\n    seeds();\n}\n";
        assert_eq!(missed("crates/cli/tests/suite/put.rs", text), [""; 0]);
        let imported = format!("use taskyard_conformance::model::{{seeds}};\n{text}");
        assert_eq!(missed("crates/cli/tests/suite/put.rs", &imported), [message("put::one")]);
    }

    #[test]
    fn modules_in_a_file_are_a_part_of_the_name() {
        let text = "#[cfg(test)]\nmod tests {\n    #[tokio::test]\n    async fn one() {\n        seeds();\n    }\n}\n";
        assert_eq!(missed("crates/core/src/order.rs", text), [message("order::tests::one")]);
    }

    #[test]
    fn cases_of_the_suite_are_tests() {
        let text = "pub fn one<D>() {\n    seeds();\n}\n\nsuite! {\n    one\n}\n";
        let found = missed("crates/testkit/src/suite/exact.rs", text);
        assert_eq!(found, [message("exact::one")]);
        assert_eq!(missed("crates/testkit/src/suite/kills.rs", text), [""; 0]);
    }

    #[test]
    fn a_name_that_selects_nothing_is_found() {
        let tree = Tree::of(&[(LIST, "")]);
        assert_eq!(check(&tree).len(), RANDOM_TESTS.len());
    }
}
