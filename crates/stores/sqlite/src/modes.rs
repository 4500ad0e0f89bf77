//! Checks and restricts permissions: only the owner may read and change the folder and its files.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::folder::unavailable;
use taskyard_store::OpenError;

/// The mode of every file.
pub(super) const FILE_MODE: u32 = 0o600;
/// The mode of the folder.
const FOLDER_MODE: u32 = 0o700;
/// The permissions of the group and of other users.
const OTHERS: u32 = 0o077;
/// The permissions of the group and of other users to write.
const OTHERS_WRITE: u32 = 0o022;
/// The prefix of the names of the store's files.
pub(super) const OURS: &str = "taskyard.";

/// Creates the folder if it does not exist. Refuses it if other users can write to it or to a file of the
/// store: they may have changed the data already; an empty one has no data. Otherwise removes the permissions of other users to read;
/// a folder that also has other files keeps its own.
pub(super) fn make_private(folder: &Path) -> Result<(), OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(folder)
        .map_err(unavailable(folder))?;
    let (mut ours, mut has_other_files) = (Vec::new(), false);
    for entry in fs::read_dir(folder).map_err(unavailable(folder))? {
        let entry = entry.map_err(unavailable(folder))?;
        let is_ours = entry.file_name().to_string_lossy().starts_with(OURS);
        has_other_files |= !is_ours;
        if is_ours && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            ours.push(entry.path());
        }
    }
    if ours.is_empty() && !has_other_files {
        repair(folder, folder)?;
    }
    // All of them before anything is changed.
    let shown = folder.display();
    let (of_folder, of_files) = match has_other_files {
        true => (
            format!("chmod go-w {shown}, or choose another folder"),
            format!("chmod go-w {shown}/{OURS}*"),
        ),
        false => (format!("chmod -R go-w {shown}"), format!("chmod -R go-w {shown}")),
    };
    refuse_writable(folder, folder, &of_folder)?;
    ours.iter().try_for_each(|path| refuse_writable(folder, path, &of_files))?;
    ours.iter().try_for_each(|path| repair(folder, path))?;
    if has_other_files { Ok(()) } else { repair(folder, folder) }
}

/// Refuses a folder because other users can write to it, or to a file of it.
fn refuse_writable(folder: &Path, path: &Path, command: &str) -> Result<(), OpenError> {
    match existing_mode(folder, path)? {
        Some(mode) if mode & OTHERS_WRITE != 0 => {
            let what = format!(
                "other users can change {} (mode {mode:04o}); check the data and run {command}",
                path.display()
            );
            Err(OpenError::Unavailable { folder: folder.to_owned(), what })
        }
        _ => Ok(()),
    }
}

/// Removes the permissions of other users for a file or folder.
fn repair(folder: &Path, path: &Path) -> Result<(), OpenError> {
    let Some(mode) = existing_mode(folder, path)?.filter(|mode| mode & OTHERS != 0) else {
        return Ok(());
    };
    let (shown, private) = (path.display(), mode & !OTHERS);
    match fs::set_permissions(path, Permissions::from_mode(private)) {
        Ok(()) => tracing::warn!(
            "other users could read {shown} (mode {mode:04o}); it has mode {private:04o} now"
        ),
        Err(error) => tracing::warn!(%error, "other users can read {shown} (mode {mode:04o})"),
    }
    Ok(())
}

/// The mode of a file, unless another process that closes the database has just removed it.
fn existing_mode(folder: &Path, path: &Path) -> Result<Option<u32>, OpenError> {
    match fs::metadata(path) {
        Ok(about) => Ok(Some(about.permissions().mode() & 0o7777)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unavailable(folder)(error)),
    }
}
