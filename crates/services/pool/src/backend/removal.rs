//! Removes folders that programs have filled, regardless of depth, size and permissions.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How often a folder is emptied again that is refilled meanwhile.
const PASSES_MAX: usize = 16;

/// Removes a folder. A second folder beside it, which only the pool can write, is used meanwhile and keeps the rest
/// if this fails: the next attempt continues from there.
///
/// Inner folders are moved up into that one before they are emptied, so neither the stack nor the number of open
/// files grows with the depth, and paths never become too long.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let rest = area_of(path);
    ignore(DirBuilder::new().mode(0o700).create(&rest), io::ErrorKind::AlreadyExists)?;
    let mut area = RemovalArea::open(rest)?;
    ignore(area.move_in(path), io::ErrorKind::NotFound)?;
    while let Some(folder) = area.folders.pop() {
        area.remove(&folder)?;
    }
    fs::remove_dir(&area.path)
}

/// Removes all such folders in this one, and then the folder itself.
pub(super) fn remove_all_in(base: &Path) -> io::Result<()> {
    for entry in fs::read_dir(base)? {
        // The second folder is removed with the first.
        remove(&entry?.path().with_extension(""))?;
    }
    fs::remove_dir(base)
}

fn area_of(path: &Path) -> PathBuf {
    path.with_extension("rest")
}

/// Folders side by side where no program can replace them.
struct RemovalArea {
    path: PathBuf,
    folders: Vec<PathBuf>,
    next: u64,
}

impl RemovalArea {
    fn open(path: PathBuf) -> io::Result<Self> {
        let mut folders = Vec::new();
        for entry in fs::read_dir(&path)? {
            folders.push(entry?.path());
        }
        Ok(RemovalArea { path, folders, next: 0 })
    }

    /// Moves a folder here.
    fn move_in(&mut self, folder: &Path) -> io::Result<()> {
        let mut target = self.path.join(self.next.to_string());
        while fs::symlink_metadata(&target).is_ok() {
            self.next += 1;
            target = self.path.join(self.next.to_string());
        }
        self.next += 1;
        let mut moved = fs::rename(folder, &target);
        if moved.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            // Root needs no permission, and must not change what a running program may have replaced meanwhile.
            && !rustix::process::geteuid().is_root()
        {
            let _ = make_accessible(folder);
            moved = fs::rename(folder, &target);
        }
        moved?;
        self.folders.push(target);
        Ok(())
    }

    fn remove(&mut self, folder: &Path) -> io::Result<()> {
        // It was a folder when it was listed, but may have been a link when it was moved.
        if !fs::symlink_metadata(folder)?.is_dir() {
            return fs::remove_file(folder);
        }
        make_accessible(folder)?;
        for _ in 1..PASSES_MAX {
            self.empty(folder)?;
            if fs::remove_dir(folder).is_ok() {
                return Ok(());
            }
        }
        fs::remove_dir(folder)
    }

    /// Empties a folder of the area; inner folders that are not empty are moved to the area.
    fn empty(&mut self, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            let gone = match entry.file_type()?.is_dir() {
                true if fs::remove_dir(&path).is_ok() => Ok(()),
                true => self.move_in(&path),
                false => fs::remove_file(&path),
            };
            ignore(gone, io::ErrorKind::NotFound)?;
        }
        Ok(())
    }
}

/// A program may have removed all permissions on its folder.
fn make_accessible(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o700))
}

fn ignore(done: io::Result<()>, kind: io::ErrorKind) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != kind => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::thread;

    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    use rustix::process::geteuid;
    use rustix::thread::{set_thread_gid, set_thread_uid};
    use rustix::{fs::Gid, fs::Uid};

    use super::*;

    /// A folder inside a temporary one.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("7");
        fs::create_dir(&path).unwrap();
        (base, path)
    }

    fn is_empty(base: &Path) -> bool {
        fs::read_dir(base).unwrap().next().is_none()
    }

    // A program that created nested folders for a few seconds crashed the whole server: the removal recursed on the
    // stack of a worker thread.
    #[test]
    fn the_depth_does_not_matter() {
        let (base, path) = folder();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(CWD, &path, flags, Mode::empty()).unwrap();
        for _ in 0..2_000 {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        // About thirty bytes for each level, which is not enough for a recursive call.
        let small = thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || remove(&path)).unwrap().join().unwrap().unwrap();
        assert!(is_empty(base.path()));
    }

    #[test]
    fn links_are_removed_and_their_targets_stay() {
        let (base, path) = folder();
        let (other, outside) = folder();
        fs::write(outside.join("file"), "x").unwrap();
        fs::create_dir_all(path.join("a/b/c")).unwrap();
        for inner in ["a/link", "a/b/link", "link"] {
            symlink(&outside, path.join(inner)).unwrap();
        }
        fs::write(path.join("a/b/c/file"), "x").unwrap();
        remove(&path).unwrap();
        assert!(is_empty(base.path()));
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"x");
        drop(other);
    }

    // If the pool was not root, `chmod 0` on a folder with files kept them on disk forever.
    #[test]
    fn folders_without_permissions_are_removed_by_their_owner() {
        let (base, path) = folder();
        fs::create_dir_all(path.join("closed/inner/empty")).unwrap();
        fs::write(path.join("closed/inner/file"), "x").unwrap();
        let owned = ["closed/inner/file", "closed/inner/empty", "closed/inner", "closed", "."];
        let shut = Permissions::from_mode(0o000);
        for inner in &owned[1..4] {
            fs::set_permissions(path.join(inner), shut.clone()).unwrap();
        }
        let root = geteuid().is_root();
        for target in owned.map(|inner| path.join(inner)).iter().chain([&base.path().to_owned()]) {
            if root {
                chown(target, Some(61_234), Some(61_234)).unwrap();
            }
        }
        let removal = thread::spawn(move || {
            if root {
                set_thread_gid(Gid::from_raw(61_234)).unwrap();
                set_thread_uid(Uid::from_raw(61_234)).unwrap();
            }
            remove(&path)
        });
        removal.join().unwrap().unwrap();
        assert!(is_empty(base.path()));
    }

    #[test]
    fn the_rest_of_a_failed_attempt_is_removed_by_the_next() {
        let (base, path) = folder();
        fs::create_dir_all(base.path().join("7.rest/0/inner")).unwrap();
        fs::write(base.path().join("7.rest/3"), "x").unwrap();
        fs::write(path.join("file"), "x").unwrap();
        remove(&path).unwrap();
        assert!(is_empty(base.path()));
        remove(&path).unwrap();
        assert!(is_empty(base.path()));
    }

    #[test]
    fn all_folders_of_a_pool_are_removed() {
        let (base, path) = folder();
        fs::create_dir_all(path.join("a/b")).unwrap();
        for inner in ["7.rest/0/inner", "8", "9.rest"] {
            fs::create_dir_all(base.path().join(inner)).unwrap();
        }
        remove_all_in(base.path()).unwrap();
        assert!(!base.path().exists());
    }
}
