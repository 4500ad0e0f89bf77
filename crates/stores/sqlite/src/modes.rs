//! Restricts permissions: only the owner may read and change the folder and its files.

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
const OURS: &str = "taskyard.";

/// Creates the folder if it does not exist, and removes the permissions of other users for it and for the
/// files of the store. A folder that also has other files is not changed, but refused if other users can
/// write to it.
pub(super) fn make_private(folder: &Path) -> Result<(), OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(folder)
        .map_err(unavailable(folder))?;
    let mut has_other_files = false;
    for entry in fs::read_dir(folder).map_err(unavailable(folder))? {
        let entry = entry.map_err(unavailable(folder))?;
        let ours = entry.file_name().to_string_lossy().starts_with(OURS);
        has_other_files |= !ours;
        if ours && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            repair(folder, &entry.path())?;
        }
    }
    if !has_other_files {
        return repair(folder, folder);
    }
    let mode = mode_of(folder).map_err(unavailable(folder))?;
    if mode & OTHERS_WRITE != 0 {
        let advice = format!("run chmod go-w {} or choose another folder", folder.display());
        return Err(refused(folder, folder, mode, &advice));
    }
    Ok(())
}

/// Removes the permissions of other users for a file or folder. If that fails, the folder is refused if they
/// can write.
fn repair(folder: &Path, path: &Path) -> Result<(), OpenError> {
    let mode = match mode_of(path) {
        Ok(mode) => mode,
        // Another process that closes the database has just removed the file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unavailable(folder)(error)),
    };
    if mode & OTHERS == 0 {
        return Ok(());
    }
    let (shown, private) = (path.display(), mode & !OTHERS);
    match fs::set_permissions(path, Permissions::from_mode(private)) {
        Ok(()) => {
            tracing::warn!(
                "other users could read or write {shown} (mode {mode:04o}); it has mode {private:04o} now"
            );
            Ok(())
        }
        Err(error) if mode & OTHERS_WRITE != 0 => {
            let advice =
                format!("run chmod -R go-rwx {} as their owner ({error})", folder.display());
            Err(refused(folder, path, mode, &advice))
        }
        Err(error) => {
            tracing::warn!(%error, "other users can read {shown} (mode {mode:04o})");
            Ok(())
        }
    }
}

fn mode_of(path: &Path) -> io::Result<u32> {
    fs::metadata(path).map(|metadata| metadata.permissions().mode() & 0o7777)
}

fn refused(folder: &Path, path: &Path, mode: u32, advice: &str) -> OpenError {
    let what = format!("other users can change {} (mode {mode:04o}); {advice}", path.display());
    OpenError::Unavailable { folder: folder.to_owned(), what }
}
