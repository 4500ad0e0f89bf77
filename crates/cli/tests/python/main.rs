//! The Python package, built and installed as users install it, against the built binary.
//!
//! The tests themselves are in `clients/python/tests`; each of their modules, `test_….py`, runs in a process of its own, at the same
//! time.

mod package;

use package::Package;

#[test]
fn the_installed_package_passes_its_tests() {
    let Some(package) = Package::install() else { return };
    package.run_modules(|name| !is_storm(name));
}

#[test]
fn storms_of_the_installed_package() {
    let Some(package) = Package::install() else { return };
    package.run_modules(is_storm);
}

#[test]
fn the_package_has_strict_types() {
    let Some(package) = Package::install() else { return };
    package.check_types();
}

/// A test of the tests: one that does not run cannot fail.
#[test]
fn only_a_run_without_skipped_tests_passes() {
    let passed =
        |end: &str| package::all_passed(&format!("..\n-----\nRan 2 tests in 0.1s\n\n{end}\n"));
    assert!(passed("OK"));
    for end in
        ["OK (skipped=1)", "OK (expected failures=1)", "FAILED (failures=1)", "NO TESTS RAN", ""]
    {
        assert!(!passed(end), "{end}");
    }
    assert!(!package::all_passed("Ran 0 tests in 0.0s\n\nOK\n"));
    assert!(!package::all_passed("x.py:1: ResourceWarning: unclosed\nRan 2 tests in 0.1s\n\nOK\n"));
}

/// A test of the tests: logs are cut, so that the output of tests that passed would hide why another one failed.
#[test]
fn a_failure_is_shown_without_the_tests_that_passed() {
    let end = "======\nFAIL: test_a\n------\nAssertionError: 1 != 2\n\nFAILED (failures=1)";
    let open = "x.py:1: ResourceWarning: unclosed";
    let shown =
        package::failed_part(&format!("TASKYARD_SEED=7\nusage: python\n{open}\n..F\n{end}\n"));
    assert_eq!(shown, format!("{open}\nTASKYARD_SEED=7\n{end}"));
    let passed = "usage: python\n".repeat(1000) + "OK\n" + open;
    assert_eq!(package::failed_part(&passed).lines().count(), 30);
    assert!(package::failed_part(&passed).ends_with(open));
}

/// The modules with random tests.
fn is_storm(name: &str) -> bool {
    name.starts_with("test_storm")
}
