//! Reads files with secrets, and refuses those that every user of the machine can open.

use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::failure::UsageError;
use crate::output::quoted;

/// The text of a file that contains `what`, if other users of the machine can neither read nor change it.
pub fn read(path: &Path, what: &str) -> Result<String, UsageError> {
    let failed = |error: io::Error| cannot_read(path, what, &error);
    let mut file = fs::File::open(path).map_err(failed)?;
    check_mode(path, what, &file.metadata().map_err(failed)?)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn check_mode(path: &Path, what: &str, about: &Metadata) -> Result<(), UsageError> {
    // A pipe has no name by which other users could read it.
    if !about.is_file() || about.permissions().mode() & 0o007 == 0 {
        return Ok(());
    }
    let shown = path.display().to_string();
    Err(UsageError(format!(
        "every user of this machine can open {shown}, which contains {what}; restrict it to its owner: chmod 600 {}",
        quoted(&shown)
    )))
}

fn cannot_read(path: &Path, what: &str, error: &io::Error) -> UsageError {
    UsageError(format!("cannot read {what} from {}: {error}", path.display()))
}
