//! Generates the Rust source of a contract from a build script.

use std::fmt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::problem::Problems;
use crate::{compare, parse, rust};

/// Why the generation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A file cannot be read or written.
    File(PathBuf, io::Error),
    /// A contract is invalid, or incompatible with the previous one.
    Contract(PathBuf, Problems),
    /// Not called from a build script of cargo.
    NoOutput,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::File(path, error) => write!(f, "{}: {error}", path.display()),
            BuildError::Contract(path, problems) => {
                for problem in problems.iter() {
                    writeln!(f, "{}:{problem}", path.display())?;
                }
                Ok(())
            }
            BuildError::NoOutput => {
                f.write_str("OUT_DIR is not set: call this from a build script")
            }
        }
    }
}

impl std::error::Error for BuildError {}

/// Writes the Rust source of a contract to `OUT_DIR` under the contract's name with the extension `.rs`, and makes cargo
/// run the build script again when the contract changes. Use it with
/// `include!(concat!(env!("OUT_DIR"), "/queues.rs"));`.
pub fn generate(contract: impl AsRef<Path>) -> Result<PathBuf, BuildError> {
    let folder = env::var_os("OUT_DIR").ok_or(BuildError::NoOutput)?;
    println!("cargo::rerun-if-changed={}", contract.as_ref().display());
    generate_into(contract.as_ref(), None, Path::new(&folder))
}

/// Writes the Rust source of a contract into any folder; refuses a contract that is incompatible with the previous one.
/// An up-to-date file is not written.
pub fn generate_into(
    contract: &Path,
    previous: Option<&Path>,
    folder: &Path,
) -> Result<PathBuf, BuildError> {
    let current = read(contract)?;
    if let Some(previous) = previous {
        compare(&read(previous)?, &current)
            .map_err(|problems| BuildError::Contract(contract.into(), problems))?;
    }
    let stem = contract.file_stem().unwrap_or(contract.as_os_str());
    let target = folder.join(stem).with_extension("rs");
    let source = rust(&current);
    if fs::read(&target).is_ok_and(|written| written == source.as_bytes()) {
        return Ok(target);
    }
    match fs::write(&target, source) {
        Ok(()) => Ok(target),
        Err(error) => Err(BuildError::File(target, error)),
    }
}

fn read(path: &Path) -> Result<crate::Contract, BuildError> {
    let text = fs::read_to_string(path).map_err(|error| BuildError::File(path.into(), error))?;
    parse(&text).map_err(|problems| BuildError::Contract(path.into(), problems))
}
