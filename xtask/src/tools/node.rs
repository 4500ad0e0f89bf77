//! Node packages, in a folder of their own.

use std::path::{Path, PathBuf};

use crate::shell;

/// What the tests use, at the one version they are known to work with.
const DRIVER: (&str, &str) = ("tarantool-driver", "3.1.0");

/// Loads a package from a folder and prints its version.
const LOAD: &str = "\
const [folder, name] = process.argv.slice(1);
require(`${folder}/${name}`);
console.log(require(`${folder}/${name}/package.json`).version);
";

/// Makes the folder of packages, or finds it as it should be.
pub fn prepare(node: &Path) -> Result<PathBuf, String> {
    let folder = shell::target().join("tools/node");
    let modules = folder.join("node_modules");
    let (name, version) = DRIVER;
    if loaded(node, &modules).is_ok_and(|found| found == version) {
        return Ok(modules);
    }
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let mut npm = shell::program("npm");
    npm.args(["install", "--prefix"]).arg(&folder).arg(format!("{name}@{version}"));
    // Packages run nothing while they are installed, and no file notes where they came from.
    npm.args(["--ignore-scripts", "--no-package-lock", "--no-save"]);
    npm.args(["--no-audit", "--no-fund", "--loglevel=error"]);
    shell::run(npm.stdout(std::io::stderr()))?;
    match loaded(node, &modules)? {
        found if found == version => Ok(modules),
        found => Err(format!("wanted {name} {version}, but there is {found}")),
    }
}

fn loaded(node: &Path, modules: &Path) -> Result<String, String> {
    let (name, _) = DRIVER;
    let printed = shell::output(shell::program(node).args(["-e", LOAD]).arg(modules).arg(name))?;
    Ok(printed.trim().into())
}
