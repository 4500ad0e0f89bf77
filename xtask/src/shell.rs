//! Runs other programs, always from the root of the repository.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the repository.
pub fn root() -> PathBuf {
    // Asked at run time: a program built before the folder was moved must still find it.
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.and_then(|path| path.parent().map(Path::to_path_buf)).unwrap_or_else(|| ".".into())
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    // Joining an absolute path replaces the root, as cargo does.
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Variables besides `CARGO_PKG_*` in which cargo describes the package of the program that it runs.
const PACKAGE_VARIABLES: [&str; 3] =
    ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_MANIFEST_LINKS"];

/// The cargo that started us.
pub fn cargo() -> Command {
    let mut command = program(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The variables describe xtask, not the packages that are built now. A build script that reads them, as that of `ring`
    // does, would run again, and everything above it, whenever cargo is called with and then without xtask.
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || PACKAGE_VARIABLES.contains(&name))
        {
            command.env_remove(name);
        }
    }
    command
}

/// A program, to be run from the root.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    command
}

/// Shows the command, runs it, and fails if it fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    eprintln!("$ {shown}");
    let status = command.status().map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed: {status}")) }
}

/// Runs the command silently and returns what it printed.
pub fn output(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let message = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{shown}` failed: {}\n{}", output.status, message.trim_end()))
    }
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command() {
        let failure = output(program("false").arg("--now")).unwrap_err();
        assert!(failure.starts_with("`false --now` failed"), "{failure}");
    }

    #[test]
    fn an_absent_program_is_an_error() {
        assert!(run(&mut program("no-such-program-anywhere")).is_err());
    }
}
