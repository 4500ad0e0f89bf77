//! The folder of a task: its files go in, the result comes out, then it is gone.

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

/// How the folders of pools begin, and how they do before they are locked.
const POOL: &str = "taskyard-pool-";
const POOL_NEW: &str = "taskyard-pool.new-";

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
    /// Folders of tasks, and all folders.
    count: AtomicUsize,
    all: AtomicUsize,
    /// Folders that could not be removed yet.
    left: Mutex<Vec<PathBuf>>,
    /// The folder itself, locked: one that nobody has locked is left from a pool that was killed.
    _lock: File,
}

/// The folder of one task, or of one to come; removed when this is dropped. That may take its time, so it is not for a
/// thread that others wait for.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    uid: Option<u32>,
    /// Whether it has its task.
    taken: AtomicBool,
    base: Arc<Base>,
}

impl Folders {
    pub fn new() -> io::Result<Self> {
        let inside = std::env::temp_dir();
        let folders = Folders::new_in(&inside)?;
        // It may take its time, and nobody waits for it.
        thread::spawn(move || remove_orphans(&inside));
        Ok(folders)
    }

    fn new_in(inside: &Path) -> io::Result<Self> {
        let base = tempfile::Builder::new().prefix(POOL_NEW).tempdir_in(inside)?;
        // Programs of other users pass through it, and cannot see what else is there.
        fs::set_permissions(base.path(), Permissions::from_mode(0o711))?;
        let lock = File::open(base.path())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let name = base.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let path = inside.join(name.replace(POOL_NEW, POOL));
        fs::rename(base.path(), &path)?;
        // Its own removal would go down into each folder on the stack.
        let _: PathBuf = base.keep();
        let (count, all, left) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::default());
        let base = Arc::new(Base { path, count, all, left, _lock: lock });
        Ok(Folders { base, next: AtomicU64::new(0) })
    }

    pub fn path(&self) -> &Path {
        &self.base.path
    }

    /// How many tasks have one now, those that could not be removed among them.
    pub fn count(&self) -> usize {
        self.base.count.load(Ordering::Acquire)
    }

    /// How many there are, those among them that wait for their task.
    pub fn all(&self) -> usize {
        self.base.all.load(Ordering::Acquire)
    }

    /// A new folder of this user, with nothing in it.
    pub fn make(&self, uid: Option<u32>) -> io::Result<Folder> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.base.path.join(number.to_string());
        DirBuilder::new().mode(0o700).create(&path)?;
        self.base.all.fetch_add(1, Ordering::AcqRel);
        let folder = Folder { path, uid, taken: AtomicBool::new(false), base: self.base.clone() };
        if let Some(uid) = uid {
            chown(&folder.path, Some(uid), Some(uid))?;
        }
        Ok(folder)
    }
}

impl Folder {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it the folder of a task with these files. Nobody of its user may have been here before.
    pub fn fill(&self, files: &[(String, Vec<u8>)]) -> io::Result<()> {
        if !self.taken.swap(true, Ordering::AcqRel) {
            self.base.count.fetch_add(1, Ordering::AcqRel);
        }
        // It may have waited for so long that somebody who cleans up has found it.
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
            return Err(io::Error::other(format!("the result has more than {}", size(bytes_max))));
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
            self.all.fetch_sub(removed.into(), Ordering::AcqRel);
            !removed
        });
        match tried {
            Ok(()) => {
                self.count.fetch_sub(1, Ordering::AcqRel);
                self.all.fetch_sub(1, Ordering::AcqRel);
            }
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "cannot remove the folder of a task yet");
                left.push(path.to_owned());
            }
        }
        self.left.lock().unwrap_or_else(PoisonError::into_inner).append(&mut left);
    }
}

/// Removes what pools of this user left that were killed.
fn remove_orphans(inside: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(inside).into_iter().flatten().flatten() {
        let path = entry.path();
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(POOL));
        // Not what a link leads to.
        let ours = entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == own);
        let Some(lock) = (named && ours).then(|| File::open(&path).ok()).flatten() else {
            continue;
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match remove_all_in(&path) {
            Ok(()) => tracing::info!(folder = %path.display(), "removed what a killed pool left"),
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "cannot remove what a killed pool left")
            }
        }
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
        // One that never had a task counts from now on as if it had: it may be as hard to remove.
        if !*self.taken.get_mut() {
            self.base.count.fetch_add(1, Ordering::AcqRel);
        }
        self.base.clear(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each pool that was killed left its folder behind, with all that its tasks had written.
    #[test]
    fn what_a_killed_pool_left_is_removed_and_what_others_have_is_not() {
        let inside = tempfile::tempdir().unwrap();
        let living = Folders::new_in(inside.path()).unwrap();
        let task = living.make(None).unwrap();
        assert_eq!((living.count(), living.all()), (0, 1), "it waits for its task");
        task.fill(&[("a".into(), b"x".to_vec())]).unwrap();
        assert_eq!((living.count(), living.all()), (1, 1));
        let dead = inside.path().join("taskyard-pool-dead");
        fs::create_dir_all(dead.join("7/inner")).unwrap();
        fs::write(dead.join("7/inner/file"), "x").unwrap();
        fs::create_dir(inside.path().join("taskyard-pool.new-x")).unwrap();
        std::os::unix::fs::symlink(task.path(), inside.path().join("taskyard-pool-link")).unwrap();
        remove_orphans(inside.path());
        assert!(!dead.exists());
        assert!(task.path().join("a").exists());
        assert!(inside.path().join("taskyard-pool.new-x").exists(), "it is about to be locked");
        let path = living.path().to_owned();
        drop((task, living));
        assert!(!path.exists());
    }
}
