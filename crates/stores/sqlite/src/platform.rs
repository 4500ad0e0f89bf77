//! Gives the store its files, its clock and its threads.
//!
//! [`SystemPlatform`] is the operating system. The simulator has another one, whose disk loses and damages what was not synced,
//! and whose threads are steps of one thread.

use std::fmt::Debug;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use taskyard_store::OpenError;

use super::background::{BackgroundThread, BackgroundWork, SystemThread};
use super::modes::{self, FILE_MODE};

/// What the store needs from the operating system.
pub trait Platform: Debug + Send + Sync + 'static {
    /// Opens a file. A file that is created can be read and changed by its owner only.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn PlatformFile>>;

    /// Reads the first bytes of a file; `None` if it does not exist.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>>;

    /// The identity of the file at a path, if it exists.
    fn identity(&self, path: &Path) -> io::Result<Option<FileIdentity>>;

    /// Renames a file, and replaces the one that has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names of the files of a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Creates a folder if it does not exist, and makes sure that other users cannot change it.
    fn make_private(&self, folder: &Path) -> Result<(), OpenError>;

    /// The name under which SQLite knows this platform's files; `None` for the operating system's.
    fn sqlite_vfs(&self) -> Option<&str>;

    /// The time since some moment, by a clock that is never set.
    fn elapsed(&self) -> Duration;

    /// A number that no client can guess.
    fn random(&self) -> u64;

    /// Starts a thread that does this work.
    fn spawn(
        &self,
        name: &str,
        work: Box<dyn BackgroundWork>,
    ) -> io::Result<Box<dyn BackgroundThread>>;
}

/// An open file.
pub trait PlatformFile: Debug + Send + Sync {
    /// Writes all bytes at this offset.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Fills the buffer from this offset on.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// The length of the file in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Truncates the file, or extends it with zeros.
    fn set_length(&self, bytes: u64) -> io::Result<()>;

    /// Makes the content durable, and the length if it changed.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the content and everything about the file durable.
    fn sync_all(&self) -> io::Result<()>;

    /// Identifies the file independently of its name.
    fn identity(&self) -> io::Result<FileIdentity>;

    /// Locks the file against other processes; false if one of them has locked it.
    fn try_lock(&self) -> io::Result<bool>;

    /// Releases the lock.
    fn unlock(&self) -> io::Result<()>;
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    ReadWrite,
    /// Writing; the file is created if it does not exist.
    Create,
    /// Writing; the file must not exist.
    CreateNew,
}

/// Identifies a file independently of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The device that has it.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// A data folder, and the platform that has it.
#[derive(Clone, Debug)]
pub(super) struct DataFolder {
    path: PathBuf,
    platform: Arc<dyn Platform>,
}

impl DataFolder {
    pub fn new(path: &Path, platform: Arc<dyn Platform>) -> DataFolder {
        DataFolder { path: path.to_owned(), platform }
    }

    /// A folder of the operating system.
    #[cfg(test)]
    pub fn of_system(path: &Path) -> DataFolder {
        DataFolder::new(path, Arc::new(SystemPlatform::default()))
    }

    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// Whether there is a file with this path.
    pub fn has(&self, path: &Path) -> bool {
        self.platform.identity(path).is_ok_and(|found| found.is_some())
    }

    /// Renames a finished file after a sync of its content.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.platform.open(from, Access::Read)?.sync_all()?;
        self.platform.rename(from, to)?;
        self.sync()
    }

    /// Makes the names of the files durable.
    pub fn sync(&self) -> io::Result<()> {
        self.platform.sync_folder(&self.path)
    }
}

impl Deref for DataFolder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

/// The operating system.
#[derive(Debug)]
pub struct SystemPlatform {
    started: Instant,
}

impl Default for SystemPlatform {
    fn default() -> Self {
        SystemPlatform { started: Instant::now() }
    }
}

impl Platform for SystemPlatform {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn PlatformFile>> {
        let mut options = File::options();
        match access {
            Access::Read => options.read(true),
            Access::Write => options.write(true),
            Access::ReadWrite => options.read(true).write(true),
            Access::Create => options.write(true).create(true).truncate(false),
            Access::CreateNew => options.write(true).create_new(true),
        };
        Ok(Box::new(options.mode(FILE_MODE).open(path)?))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => _ = file?.take(bytes_max).read_to_end(&mut bytes)?,
        }
        Ok(Some(bytes))
    }

    fn identity(&self, path: &Path) -> io::Result<Option<FileIdentity>> {
        match fs::metadata(path) {
            Ok(metadata) => {
                Ok(Some(FileIdentity { device: metadata.dev(), inode: metadata.ino() }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn make_private(&self, folder: &Path) -> Result<(), OpenError> {
        modes::make_private(folder)
    }

    fn sqlite_vfs(&self) -> Option<&str> {
        None
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn random(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }

    fn spawn(
        &self,
        name: &str,
        work: Box<dyn BackgroundWork>,
    ) -> io::Result<Box<dyn BackgroundThread>> {
        Ok(Box::new(SystemThread::start(name, work)?))
    }
}

impl PlatformFile for File {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        let metadata = self.metadata()?;
        Ok(FileIdentity { device: metadata.dev(), inode: metadata.ino() })
    }

    fn try_lock(&self) -> io::Result<bool> {
        match File::try_lock(self) {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn unlock(&self) -> io::Result<()> {
        File::unlock(self)
    }
}
