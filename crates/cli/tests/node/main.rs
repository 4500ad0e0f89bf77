//! The Node package, packed and installed as users install it, against the built binary.
//!
//! The tests themselves are in `clients/node/test`; each of their files runs in a process of its own, at the same time.

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

fn is_storm(name: &str) -> bool {
    name.starts_with("storm")
}
