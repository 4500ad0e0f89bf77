//! Creates, fills, reads and removes the folders of tasks.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};

use super::removal::{remove, remove_all_in};
use crate::units::size;

/// Prefix of the folders of pools, and their prefix before they are locked.
const PREFIX: &str = "taskyard-pool-";
const PREFIX_UNLOCKED: &str = "taskyard-pool.new-";

/// Delays before each further attempt to remove a folder, in milliseconds.
const RETRY_DELAYS_MS: [u64; 4] = [10, 50, 250, 1_000];

/// The folder that contains all folders of tasks. It is removed when this and the last task folder are dropped.
#[derive(Debug)]
pub(crate) struct TaskFolders {
    base: Arc<PoolFolder>,
    next: AtomicU64,
}

#[derive(Debug)]
struct PoolFolder {
    path: PathBuf,
    /// Number of folders of tasks, and of all folders.
    count: AtomicUsize,
    all: AtomicUsize,
    /// Folders that could not be removed yet.
    leftover: Mutex<Vec<PathBuf>>,
    /// The folder itself, locked: an unlocked one was left by a pool that was killed.
    _lock: File,
}

/// The folder of a task, or of a sandbox that is ready for one; removed when this is dropped. Removal may take long,
/// so it must not happen on a thread that serves clients.
#[derive(Debug)]
pub(crate) struct TaskFolder {
    path: PathBuf,
    uid: Option<u32>,
    /// Whether it is used by a task.
    has_task: AtomicBool,
    base: Arc<PoolFolder>,
}

impl TaskFolders {
    pub fn new() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        let folders = TaskFolders::new_in(&parent)?;
        // Removal may take long and is not waited for.
        thread::spawn(move || remove_leftovers(&parent));
        Ok(folders)
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        let base = tempfile::Builder::new().prefix(PREFIX_UNLOCKED).tempdir_in(parent)?;
        // Programs of other users have to pass through it, and cannot list it.
        fs::set_permissions(base.path(), Permissions::from_mode(0o711))?;
        let lock = File::open(base.path())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let name = base.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let path = parent.join(name.replace(PREFIX_UNLOCKED, PREFIX));
        fs::rename(base.path(), &path)?;
        // The removal of `TempDir` recurses on the stack.
        let _: PathBuf = base.keep();
        let (count, all, leftover) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::default());
        let base = Arc::new(PoolFolder { path, count, all, leftover, _lock: lock });
        Ok(TaskFolders { base, next: AtomicU64::new(0) })
    }

    pub fn path(&self) -> &Path {
        &self.base.path
    }

    /// Number of folders used by tasks, including those that could not be removed yet.
    pub fn count(&self) -> usize {
        self.base.count.load(Ordering::Acquire)
    }

    /// Number of all folders, including those of ready sandboxes.
    pub fn all(&self) -> usize {
        self.base.all.load(Ordering::Acquire)
    }

    /// Creates an empty folder owned by this user.
    pub fn create(&self, uid: Option<u32>) -> io::Result<TaskFolder> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.base.path.join(number.to_string());
        DirBuilder::new().mode(0o700).create(&path)?;
        self.base.all.fetch_add(1, Ordering::AcqRel);
        let folder =
            TaskFolder { path, uid, has_task: AtomicBool::new(false), base: self.base.clone() };
        if let Some(uid) = uid {
            chown(&folder.path, Some(uid), Some(uid))?;
        }
        Ok(folder)
    }
}

impl TaskFolder {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the files of a task. No process of its user may have run before.
    pub fn fill(&self, files: &[(String, Vec<u8>)]) -> io::Result<()> {
        if !self.has_task.swap(true, Ordering::AcqRel) {
            self.base.count.fetch_add(1, Ordering::AcqRel);
        }
        // A cleanup service may have removed it while it waited.
        fs::symlink_metadata(&self.path)?;
        for (name, bytes) in files {
            let path = self.path.join(name);
            let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.write_all(bytes)?;
            if let Some(uid) = self.uid {
                fchown(&file, Some(uid), Some(uid))?;
            }
        }
        Ok(())
    }

    /// Reads the result, if there is one. The program controls the folder, so only a regular file of its own is read:
    /// no link, no pipe, and not more than allowed.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(self.path.join(name));
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let owned = self.uid.is_none_or(|uid| metadata.uid() == uid);
        if !metadata.is_file() || !owned || metadata.nlink() != 1 {
            return Err(io::Error::other("the result is not a regular file of the program"));
        }
        if metadata.len() > bytes_max {
            return Err(io::Error::other(format!("the result is larger than {}", size(bytes_max))));
        }
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

impl PoolFolder {
    /// Removes a folder, and those that could not be removed before.
    fn remove_folder(&self, path: &Path) {
        let mut tried = remove(path);
        for pause in RETRY_DELAYS_MS {
            if tried.is_ok() {
                break;
            }
            // A dying program that still writes makes an attempt fail.
            sleep(Duration::from_millis(pause));
            tried = remove(path);
        }
        let mut leftover =
            std::mem::take(&mut *self.leftover.lock().unwrap_or_else(PoisonError::into_inner));
        leftover.retain(|path| {
            let removed = remove(path).is_ok();
            self.count.fetch_sub(removed.into(), Ordering::AcqRel);
            self.all.fetch_sub(removed.into(), Ordering::AcqRel);
            !removed
        });
        match tried {
            Ok(()) => {
                self.count.fetch_sub(1, Ordering::AcqRel);
                self.all.fetch_sub(1, Ordering::AcqRel);
            }
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "cannot remove the folder of a task; will retry");
                leftover.push(path.to_owned());
            }
        }
        self.leftover.lock().unwrap_or_else(PoisonError::into_inner).append(&mut leftover);
    }
}

/// Removes the folders of killed pools of this user.
fn remove_leftovers(parent: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Symbolic links are not followed.
        let ours =
            entry.metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == own);
        let Some(lock) = (named && ours).then(|| File::open(&path).ok()).flatten() else {
            continue;
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match remove_all_in(&path) {
            Ok(()) => {
                tracing::info!(folder = %path.display(), "removed the folder of a killed pool")
            }
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "cannot remove the folder of a killed pool")
            }
        }
    }
}

impl Drop for PoolFolder {
    fn drop(&mut self) {
        if let Err(error) = remove_all_in(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "cannot remove the folder of the pool");
        }
    }
}

impl Drop for TaskFolder {
    fn drop(&mut self) {
        // A folder that never had a task counts as one from now on: it may be as hard to remove.
        if !*self.has_task.get_mut() {
            self.base.count.fetch_add(1, Ordering::AcqRel);
        }
        self.base.remove_folder(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each killed pool left its folder behind, with all files of its tasks.
    #[test]
    fn folders_of_killed_pools_are_removed_and_those_of_live_ones_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let living = TaskFolders::new_in(parent.path()).unwrap();
        let task = living.create(None).unwrap();
        assert_eq!((living.count(), living.all()), (0, 1), "it has no task yet");
        task.fill(&[("a".into(), b"x".to_vec())]).unwrap();
        assert_eq!((living.count(), living.all()), (1, 1));
        let dead = parent.path().join("taskyard-pool-dead");
        fs::create_dir_all(dead.join("7/inner")).unwrap();
        fs::write(dead.join("7/inner/file"), "x").unwrap();
        fs::create_dir(parent.path().join("taskyard-pool.new-x")).unwrap();
        std::os::unix::fs::symlink(task.path(), parent.path().join("taskyard-pool-link")).unwrap();
        remove_leftovers(parent.path());
        assert!(!dead.exists());
        assert!(task.path().join("a").exists());
        assert!(
            parent.path().join("taskyard-pool.new-x").exists(),
            "an unlocked new folder is not removed"
        );
        let path = living.path().to_owned();
        drop((task, living));
        assert!(!path.exists());
    }
}
