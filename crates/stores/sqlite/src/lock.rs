//! Locks a folder and checks that the files at its paths are still those that were opened.
//!
//! A lock on `taskyard.lock` alone is lost when that file is removed: the next process creates a new one and
//! locks that. So the database is locked too, and the files are compared with their paths while the store is
//! open.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::folder::{database, log, seal_file, unavailable};
use super::journal;
use super::platform::{Access, DataFolder, FileIdentity, PlatformFile};
use taskyard_store::OpenError;

/// The files are compared with their paths at most this often.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often a lock file that is replaced meanwhile is opened again.
const TRIES: usize = 10;

/// The locks of an open folder.
#[derive(Debug)]
pub(super) struct FolderLock {
    folder: DataFolder,
    file: Box<dyn PlatformFile>,
    /// Never closed while SQLite has the database open: that would release SQLite's own locks on it.
    database: Option<Box<dyn PlatformFile>>,
    files: Vec<WatchedFile>,
    /// By the clock of the platform.
    checked: Option<Duration>,
}

/// A file that must not be replaced at its path.
#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    /// `None` until the file exists.
    identity: Option<FileIdentity>,
}

impl FolderLock {
    /// Locks the folder and the database in it, if there is one.
    pub fn take(folder: &DataFolder) -> Result<FolderLock, OpenError> {
        let (path, platform) = (lock_file(folder), folder.platform());
        for _ in 0..TRIES {
            let file = platform.open(&path, Access::Create).map_err(unavailable(folder))?;
            let file = lock(folder, file)?;
            let (held, found) = (file.identity(), platform.identity(&path));
            // The file may have been replaced between opening and locking.
            if found.map_err(unavailable(folder))? == Some(held.map_err(unavailable(folder))?) {
                let (folder, files) = (folder.clone(), Vec::new());
                let mut lock = FolderLock { folder, file, database: None, files, checked: None };
                lock.take_database()?;
                return Ok(lock);
            }
        }
        Err(OpenError::InUse(folder.to_path_buf()))
    }

    /// Locks the database, unless the one at its path is locked already.
    pub fn take_database(&mut self) -> Result<(), OpenError> {
        let (folder, path) = (&self.folder, database(&self.folder));
        let found = folder.platform().identity(&path).map_err(unavailable(folder))?;
        let held = self.database.as_ref().map(|file| file.identity()).transpose();
        if found.is_none() || found == held.map_err(unavailable(folder))? {
            return Ok(());
        }
        let file = folder.platform().open(&path, Access::Read).map_err(unavailable(folder))?;
        self.database = Some(lock(folder, file)?);
        Ok(())
    }

    /// The locked database, if it is the one at its path.
    pub fn database(&self) -> io::Result<Option<&dyn PlatformFile>> {
        let found = self.folder.platform().identity(&database(&self.folder))?;
        let Some(file) = self.database.as_deref() else { return Ok(None) };
        Ok((found == Some(file.identity()?)).then_some(file))
    }

    /// Records the identities of the files, when all of them are open.
    pub fn watch(&mut self) -> Result<(), OpenError> {
        let folder = &self.folder;
        let paths = [lock_file(folder), database(folder), log(folder), seal_file(folder)];
        let paths = paths.into_iter().chain([folder.join("taskyard.db-shm")]);
        for path in paths.chain(journal::paths(folder)) {
            let identity = folder.platform().identity(&path).map_err(unavailable(folder))?;
            self.files.push(WatchedFile { path, identity });
        }
        Ok(())
    }

    /// Compares the files with their paths, at most once a second; the error names the file that was changed.
    pub fn check(&mut self) -> Result<(), String> {
        let now = self.folder.platform().elapsed();
        if self.checked.is_some_and(|checked| now.saturating_sub(checked) < CHECK_EVERY) {
            return Ok(());
        }
        self.checked = Some(now);
        self.check_now()
    }

    /// Compares the files with their paths now.
    pub fn check_now(&mut self) -> Result<(), String> {
        for WatchedFile { path, identity } in &mut self.files {
            let found = match self.folder.platform().identity(path) {
                Ok(found) => found,
                // The error says nothing about the open file and may be transient.
                Err(error) => {
                    tracing::warn!(%error, "cannot read the metadata of {}", path.display());
                    continue;
                }
            };
            if identity.is_none() {
                *identity = found;
            }
            if found != *identity {
                let what = if found.is_none() { "removed" } else { "replaced" };
                return Err(format!(
                    "{} was {what} while the server was running; stop the server, make sure that no other one uses the \
                     folder, and start it again",
                    path.display()
                ));
            }
        }
        Ok(())
    }

    /// Releases the folder. Unlocks explicitly, because a process that is being started may have inherited
    /// the files.
    pub fn release(self) {
        _ = self.file.unlock();
        if let Some(database) = self.database {
            _ = database.unlock();
        }
    }
}

fn lock_file(folder: &Path) -> PathBuf {
    folder.join("taskyard.lock")
}

fn lock(folder: &Path, file: Box<dyn PlatformFile>) -> Result<Box<dyn PlatformFile>, OpenError> {
    match file.try_lock() {
        Ok(true) => Ok(file),
        Ok(false) => Err(OpenError::InUse(folder.to_owned())),
        Err(error) => Err(unavailable(folder)(error)),
    }
}
