//! Installs mdbook, which renders the documents as a site.

use std::fs;
use std::path::PathBuf;

use crate::shell;

/// The one version that is known to work.
const VERSION: &str = "0.5.4";

/// Installs the program, or finds it as it should be. It is built without optimisation: that takes 100 seconds of processor time, and it
/// renders all documents in 5.
pub fn prepare() -> Result<PathBuf, String> {
    let folder = shell::target().join("tools/mdbook");
    let program = folder.join("bin/mdbook");
    let version = || shell::output(shell::program(&program).arg("--version"));
    let is_wanted = |found: String| found.trim().ends_with(&format!("v{VERSION}"));
    if version().is_ok_and(is_wanted) {
        return Ok(program);
    }
    let built = folder.join("build");
    let mut install = shell::cargo();
    install.args(["install", "mdbook", "--version", VERSION, "--locked", "--debug", "--force"]);
    // Its other features serve the site and watch files.
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(&folder);
    shell::run(install.arg("--target-dir").arg(&built))?;
    fs::remove_dir_all(&built)
        .map_err(|error| format!("cannot remove {}: {error}", built.display()))?;
    Ok(program)
}
