//! The Python package, built and installed as users install it, against the built binary.
//!
//! The tests themselves are in `clients/python/tests`; each of their modules runs in a process of its own, at the same time.

mod package;

use package::Package;

/// The modules without random tests.
const TESTS: &[&str] = &[
    "test_finishes",
    "test_lost_answers",
    "test_package",
    "test_pools",
    "test_processes",
    "test_testing",
    "test_tls",
    "test_verbs",
    "test_worker",
];

#[test]
fn the_installed_package_passes_its_tests() {
    let Some(package) = Package::install() else { return };
    package.run_modules(TESTS);
}

#[test]
fn storms_of_the_installed_package() {
    let Some(package) = Package::install() else { return };
    package.run_modules(&["test_storms"]);
}

#[test]
fn the_package_has_strict_types() {
    let Some(package) = Package::install() else { return };
    package.check_types();
}
