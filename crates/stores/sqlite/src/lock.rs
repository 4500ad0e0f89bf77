//! The lock of a folder, and the check that the files at its paths are still those that were opened.
//!
//! A lock on `taskyard.lock` alone is lost when that file is removed: the next process makes a new one and locks that.
//! So the database is locked as well, and the files are compared with their paths while the store is open.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::folder::{database, log, seal_file, unavailable};
use super::journal;
use super::modes::FILE_MODE;
use taskyard_store::OpenError;

/// The files are compared with their paths at most this often.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often a lock file that is replaced meanwhile is opened anew.
const TRIES: usize = 10;

/// The locks of an open folder.
#[derive(Debug)]
pub(super) struct Lock {
    folder: PathBuf,
    file: File,
    /// Never closed while SQLite has the database open: that would end SQLite's own locks on it.
    database: Option<File>,
    files: Vec<Watched>,
    checked: Option<Instant>,
}

/// A file that must stay the one at its path.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    /// `None` until there is one.
    identity: Option<Identity>,
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(file: &File) -> io::Result<Identity> {
        let metadata = file.metadata()?;
        Ok(Identity { device: metadata.dev(), inode: metadata.ino() })
    }

    /// The file at a path, if there is one.
    fn at(path: &Path) -> io::Result<Option<Identity>> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Some(Identity { device: metadata.dev(), inode: metadata.ino() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Lock {
    /// Locks the folder and the database in it, if there is one.
    pub fn take(folder: &Path) -> Result<Lock, OpenError> {
        let path = lock_file(folder);
        for _ in 0..TRIES {
            let mut options = File::options();
            options.write(true).create(true).truncate(false).mode(FILE_MODE);
            let file = lock(folder, options.open(&path).map_err(unavailable(folder))?)?;
            let (held, found) = (Identity::of(&file), Identity::at(&path));
            // Between opening and locking it may have been removed and made anew.
            if found.map_err(unavailable(folder))? == Some(held.map_err(unavailable(folder))?) {
                let (folder, files) = (folder.to_owned(), Vec::new());
                let mut lock = Lock { folder, file, database: None, files, checked: None };
                lock.take_database()?;
                return Ok(lock);
            }
        }
        Err(OpenError::InUse(folder.to_owned()))
    }

    /// Locks the database, unless the one at its path is locked already.
    pub fn take_database(&mut self) -> Result<(), OpenError> {
        let (folder, path) = (&self.folder, database(&self.folder));
        let found = Identity::at(&path).map_err(unavailable(folder))?;
        let held = self.database.as_ref().map(Identity::of).transpose();
        if found.is_none() || !path.is_file() || found == held.map_err(unavailable(folder))? {
            return Ok(());
        }
        let file = File::open(&path).map_err(unavailable(folder))?;
        self.database = Some(lock(folder, file)?);
        Ok(())
    }

    /// Remembers which files the folder has, now that all of them are open.
    pub fn watch(&mut self) -> Result<(), OpenError> {
        let folder = &self.folder;
        let paths = [lock_file(folder), database(folder), log(folder), seal_file(folder)];
        let paths = paths.into_iter().chain([folder.join("taskyard.db-shm")]);
        for path in paths.chain(journal::paths(folder)) {
            let identity = Identity::at(&path).map_err(unavailable(folder))?;
            self.files.push(Watched { path, identity });
        }
        Ok(())
    }

    /// Compares the files with their paths, at most once a second; tells what is wrong.
    pub fn check(&mut self) -> Result<(), String> {
        if self.checked.is_some_and(|checked| checked.elapsed() < CHECK_EVERY) {
            return Ok(());
        }
        self.checked = Some(Instant::now());
        self.check_now()
    }

    /// The same at once.
    pub fn check_now(&mut self) -> Result<(), String> {
        for Watched { path, identity } in &mut self.files {
            let found = match Identity::at(path) {
                Ok(found) => found,
                // It says nothing about the file, which is open, and may pass.
                Err(error) => {
                    tracing::warn!(%error, "cannot look at {}", path.display());
                    continue;
                }
            };
            if identity.is_none() {
                *identity = found;
            }
            if found != *identity {
                let what = if found.is_none() { "removed" } else { "replaced" };
                return Err(format!(
                    "{} was {what} while the server runs; stop the server, make sure that no other one uses the \
                     folder, and start it again",
                    path.display()
                ));
            }
        }
        Ok(())
    }

    /// Gives the folder up. Not only dropped: a program that is just being started may have the files for a moment.
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

fn lock(folder: &Path, file: File) -> Result<File, OpenError> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(folder.to_owned())),
        Err(TryLockError::Error(error)) => Err(unavailable(folder)(error)),
    }
}
