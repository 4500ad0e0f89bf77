//! The folder of a task: its files go in, the result comes out, then it is gone.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::OFlags;
use tempfile::TempDir;

/// Where the folders of all tasks are. Gone with everything in it when this is dropped.
#[derive(Debug)]
pub(crate) struct Folders {
    base: TempDir,
    next: AtomicU64,
    count: Arc<AtomicUsize>,
}

/// The folder of one task; removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    uid: Option<u32>,
    count: Arc<AtomicUsize>,
}

impl Folders {
    pub fn new() -> io::Result<Self> {
        let base = tempfile::Builder::new().prefix("taskyard-pool-").tempdir()?;
        // Programs of other users pass through it, and cannot see what else is there.
        fs::set_permissions(base.path(), Permissions::from_mode(0o711))?;
        Ok(Folders { base, next: AtomicU64::new(0), count: Arc::default() })
    }

    /// How many there are now.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// A new folder of this user with these files in it.
    pub fn make(&self, uid: Option<u32>, files: &[(String, Vec<u8>)]) -> io::Result<Folder> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.base.path().join(number.to_string());
        DirBuilder::new().mode(0o700).create(&path)?;
        self.count.fetch_add(1, Ordering::AcqRel);
        let folder = Folder { path, uid, count: self.count.clone() };
        for (name, bytes) in files {
            let path = folder.path.join(name);
            let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.write_all(bytes)?;
            folder.give(&path)?;
        }
        folder.give(&folder.path)?;
        Ok(folder)
    }
}

impl Folder {
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        match self.uid {
            Some(uid) => chown(path, Some(uid), Some(uid)),
            None => Ok(()),
        }
    }

    /// The result, if there is one. The program has written the folder, so nothing but a plain file of
    /// its own is read: no link, no pipe, and not more than allowed.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(self.path.join(name));
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let about = file.metadata()?;
        let owned = self.uid.is_none_or(|uid| about.uid() == uid);
        if !about.is_file() || !owned || about.nlink() != 1 {
            return Err(io::Error::other("the result is not a plain file of the program"));
        }
        if about.len() > bytes_max {
            return Err(io::Error::other(format!("the result has more than {bytes_max} bytes")));
        }
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a program that is just dying still writes makes the first try fail.
        let removed = (0..3).any(|_| fs::remove_dir_all(&self.path).is_ok());
        if !removed {
            tracing::warn!(folder = %self.path.display(), "cannot remove the folder of a task");
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}
