//! Makes the Debian package and the tarball: builds the program and its manual pages, and calls `deploy/package/build.sh`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell;
use crate::tools;

/// A part of each page that the generator of manual pages writes, and so of every program that contains it.
const GENERATOR_MARK: &[u8] = br".ie \n(.g .ds Aq";

/// The arguments of `package`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PackageOptions {
    /// A program that is built already, instead of a build with the profile `release`.
    pub program: Option<PathBuf>,
    /// Another version than that of the workspace.
    pub version: Option<String>,
}

impl PackageOptions {
    /// Reads the arguments after `package`.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let value = args.next().filter(|value| !value.starts_with('-'));
            match (arg.as_str(), value) {
                ("--program", Some(file)) => options.program = Some(file.into()),
                ("--version", Some(version)) => options.version = Some(version.clone()),
                ("--program" | "--version", None) => return Err(format!("`{arg}` needs a value")),
                _ => {
                    let known = "--program FILE and --version VERSION";
                    return Err(format!("`package` accepts {known}, not `{arg}`"));
                }
            }
        }
        Ok(options)
    }
}

/// Makes the files in `target/dist`.
pub fn run(options: &PackageOptions) -> Result<(), String> {
    tools::prepare_packaging()?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            let mut build = shell::cargo();
            shell::run(build.args(["build", "--release", "--locked", "-p", "taskyard-cli"]))?;
            shell::target().join("release/taskyard")
        }
    };
    check_program(&program)?;
    let man = shell::target().join("man");
    // Pages of commands that do not exist any more.
    let _ = fs::remove_dir_all(&man);
    let mut pages = shell::cargo();
    pages.args(["run", "--quiet", "--locked", "-p", "taskyard-cli", "--features", "man", "--"]);
    shell::run(pages.arg("man").arg(&man))?;
    let version = match &options.version {
        Some(version) => version.clone(),
        None => shell::output(shell::program(&program).arg("--version"))?
            .split_whitespace()
            .nth(1)
            .ok_or("the program does not print its version")?
            .to_owned(),
    };
    let output = shell::target().join("dist");
    let mut build = shell::program("sh");
    build.arg("deploy/package/build.sh").arg(&program).arg(&version).arg(&man).arg(&output);
    shell::run(build.env("SOURCE_DATE_EPOCH", source_date()?))
}

/// The time of the last commit, so that the same sources give the same package; a builder may set another one.
fn source_date() -> Result<String, String> {
    if let Ok(date) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(date);
    }
    let date = shell::output(shell::program("git").args(["log", "-1", "--format=%ct"]));
    date.map(|date| date.trim().to_owned())
        .map_err(|error| format!("{error}\nset SOURCE_DATE_EPOCH to the time of the sources"))
}

/// Refuses a program with the generator of manual pages, which only makes it larger.
fn check_program(program: &Path) -> Result<(), String> {
    let bytes = fs::read(program);
    let bytes = bytes.map_err(|error| format!("cannot read {}: {error}", program.display()))?;
    if !program.with_file_name("taskyard-sandbox").exists() {
        let program = program.display();
        return Err(format!(
            "no taskyard-sandbox beside {program}; build both: cargo build --release -p taskyard-cli"
        ));
    }
    if contains_generator(&bytes) {
        let program = program.display();
        return Err(format!("{program} was built with the feature `man`; build it without"));
    }
    Ok(())
}

fn contains_generator(bytes: &[u8]) -> bool {
    bytes.windows(GENERATOR_MARK.len()).any(|part| part == GENERATOR_MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<PackageOptions, String> {
        PackageOptions::parse(&args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_in_any_order() {
        let expected = PackageOptions { program: Some("a".into()), version: Some("1".into()) };
        assert_eq!(parsed(&["--version", "1", "--program", "a"]), Ok(expected));
        assert_eq!(parsed(&[]), Ok(PackageOptions::default()));
        for args in [&["--program"][..], &["--version", "--program"], &["a"], &["--fast", "a"]] {
            assert!(parsed(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn a_program_with_the_generator_is_found() {
        assert!(contains_generator(&[b"abc", GENERATOR_MARK, b"x"].concat()));
        assert!(!contains_generator(b"abc"));
    }
}
