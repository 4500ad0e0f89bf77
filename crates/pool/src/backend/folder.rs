//! The folder of a task: its files go in, the result comes out, then it is gone.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::OFlags;

use super::removal::{remove, remove_all_in};

/// How long to wait before each further try to remove a folder, in milliseconds.
const PAUSES_MS: [u64; 4] = [10, 50, 250, 1_000];

/// Where the folders of all tasks are. Gone with everything in it when this and the last folder are dropped.
#[derive(Debug)]
pub(crate) struct Folders {
    base: Arc<Base>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Base {
    path: PathBuf,
    count: AtomicUsize,
    /// Folders that could not be removed yet.
    left: Mutex<Vec<PathBuf>>,
}

/// The folder of one task; removed when this is dropped. That may take its time, so it is not for a thread that
/// others wait for.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    uid: Option<u32>,
    base: Arc<Base>,
}

impl Folders {
    pub fn new() -> io::Result<Self> {
        let base = tempfile::Builder::new().prefix("taskyard-pool-").tempdir()?;
        // Programs of other users pass through it, and cannot see what else is there.
        fs::set_permissions(base.path(), Permissions::from_mode(0o711))?;
        let (count, left) = (AtomicUsize::new(0), Mutex::default());
        // Its own removal would go down into each folder on the stack.
        let base = Arc::new(Base { path: base.keep(), count, left });
        Ok(Folders { base, next: AtomicU64::new(0) })
    }

    pub fn path(&self) -> &Path {
        &self.base.path
    }

    /// How many there are now, those that could not be removed among them.
    pub fn count(&self) -> usize {
        self.base.count.load(Ordering::Acquire)
    }

    /// A new folder of this user with these files in it.
    pub fn make(&self, uid: Option<u32>, files: &[(String, Vec<u8>)]) -> io::Result<Folder> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.base.path.join(number.to_string());
        DirBuilder::new().mode(0o700).create(&path)?;
        self.base.count.fetch_add(1, Ordering::AcqRel);
        let folder = Folder { path, uid, base: self.base.clone() };
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

impl Base {
    /// Removes a folder, and what could not be removed before.
    fn clear(&self, path: &Path) {
        let mut tried = remove(path);
        for pause in PAUSES_MS {
            if tried.is_ok() {
                break;
            }
            // What a program that is just dying still writes makes a try fail.
            sleep(Duration::from_millis(pause));
            tried = remove(path);
        }
        let mut left =
            std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        left.retain(|path| {
            let removed = remove(path).is_ok();
            self.count.fetch_sub(removed.into(), Ordering::AcqRel);
            !removed
        });
        match tried {
            Ok(()) => drop(self.count.fetch_sub(1, Ordering::AcqRel)),
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "cannot remove the folder of a task yet");
                left.push(path.to_owned());
            }
        }
        self.left.lock().unwrap_or_else(PoisonError::into_inner).append(&mut left);
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        if let Err(error) = remove_all_in(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "cannot remove the folder of the pool");
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.base.clear(&self.path);
    }
}
