//! Python programs and libraries, in a folder of their own.

use std::path::{Path, PathBuf};

use crate::shell;

/// What the tests use, each at the one version they are known to work with.
const PACKAGES: &[(&str, &str)] = &[
    ("asynctnt", "2.4.0"),
    ("asynctnt-queue", "0.0.5"),
    ("schemathesis", "4.32.5"),
    ("tarantool", "1.3.0"),
];

/// Prints the packages it is asked for, as far as they are there, one `name==version` a line.
const LIST: &str = "\
import importlib.metadata, sys
for name in sys.argv[1:]:
    print(f'{name}=={importlib.metadata.version(name)}')
";

/// Makes the folder, or finds it as it should be.
pub fn prepare() -> Result<PathBuf, String> {
    let folder = shell::target().join("tools/python");
    let wanted: Vec<_> =
        PACKAGES.iter().map(|(name, version)| format!("{name}=={version}")).collect();
    if installed(&folder).is_ok_and(|found| found == wanted) && runs(&folder) {
        return Ok(folder);
    }
    let mut venv = shell::program("python3");
    shell::run(venv.args(["-m", "venv", "--clear"]).arg(&folder).stdout(std::io::stderr()))?;
    let mut pip = interpreter(&folder);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(&wanted);
    shell::run(pip.stdout(std::io::stderr()))?;
    match installed(&folder)? {
        found if found == wanted && runs(&folder) => Ok(folder),
        found => Err(format!("wanted {}, but there is {}", wanted.join(" "), found.join(" "))),
    }
}

fn installed(folder: &Path) -> Result<Vec<String>, String> {
    let names = PACKAGES.iter().map(|(name, _)| name);
    let listed = shell::output(interpreter(folder).args(["-c", LIST]).args(names))?;
    Ok(listed.lines().map(String::from).collect())
}

/// Whether programs start: each has the path of its interpreter in it, so a folder that was moved is
/// of no use.
fn runs(folder: &Path) -> bool {
    shell::output(shell::program(folder.join("bin/schemathesis")).arg("--version")).is_ok()
}

fn interpreter(folder: &Path) -> std::process::Command {
    shell::program(folder.join("bin/python"))
}
