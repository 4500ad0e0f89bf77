//! Locks the name of a folder that is being restored, from before the work until it has its name.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use taskyard_store::OpenError;

use super::super::folder::unavailable;
use super::super::platform::{Access, DataFolder, PlatformFile};

/// What the name of the lock file ends with.
const LOCK_SUFFIX: &str = ".lock";
/// How often a lock file that is removed meanwhile is opened again.
const TRIES: usize = 10;

/// A locked file beside the folder in which a restore works: the folder itself is renamed before the restore has ended.
#[derive(Debug)]
pub(super) struct RestoreLock {
    path: PathBuf,
    file: Box<dyn PlatformFile>,
}

impl RestoreLock {
    /// Locks the name, unless another restore has it.
    pub fn take(work: &DataFolder) -> Result<RestoreLock, OpenError> {
        let failed = unavailable(work);
        if let Some(parent) = work.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(&failed)?;
        }
        let path = lock_file(work);
        for _ in 0..TRIES {
            let file = work.platform().open(&path, Access::Create).map_err(&failed)?;
            if !file.try_lock().map_err(&failed)? {
                return Err(in_use(work));
            }
            let held = file.identity().map_err(&failed)?;
            // The restore that had the lock may have removed the file between opening and locking.
            if work.platform().identity(&path).map_err(&failed)? == Some(held) {
                return Ok(RestoreLock { path, file });
            }
        }
        Err(in_use(work))
    }
}

impl Drop for RestoreLock {
    fn drop(&mut self) {
        // Before it is unlocked: then it may be that of another restore. A file that stays does no harm.
        _ = fs::remove_file(&self.path);
        _ = self.file.unlock();
    }
}

fn lock_file(work: &Path) -> PathBuf {
    let mut path = work.as_os_str().to_owned();
    path.push(LOCK_SUFFIX);
    path.into()
}

fn in_use(work: &Path) -> OpenError {
    OpenError::InUse(work.to_owned())
}
