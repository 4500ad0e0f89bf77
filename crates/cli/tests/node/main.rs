//! The Node package, packed and installed as users install it, against the built binary.
//!
//! The tests themselves are in `clients/node/test`; each of their files runs in a process of its own, at the same time.

#[expect(dead_code, reason = "the tests of documents use all of it")]
mod package;

use package::NodePackage;

#[test]
fn the_installed_package_passes_its_tests() {
    let Some(package) = NodePackage::install() else { return };
    package.check_api_types();
    package.run_tests(|name| !is_storm(name));
}

#[test]
fn storms_of_the_installed_package() {
    let Some(package) = NodePackage::install() else { return };
    package.run_tests(is_storm);
}

/// A test of the tests: logs are cut, so that the output of tests that passed would hide why another one failed.
#[test]
fn a_failure_is_shown_without_the_tests_that_passed() {
    let end = "✖ failing tests:\n\n✖ two\n  AssertionError: 1 !== 2\n      at two (test.mjs:7:1)";
    let internal = "\n      at Test.run (node:internal/test:1:1)\n";
    let shown = package::failed_part(&format!("✔ one\n✖ two\nℹ fail 1\n\n{end}{internal}"));
    assert_eq!(shown, end);
    let passed: Vec<_> = (0..1000).map(|line| line.to_string()).collect();
    assert!(package::failed_part(&passed.join("\n")).starts_with("970\n"));
    assert_eq!(package::failed_part("Error: out of memory\n"), "Error: out of memory");
}

fn is_storm(name: &str) -> bool {
    name.starts_with("storm")
}
