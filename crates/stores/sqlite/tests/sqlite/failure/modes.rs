//! Tests the permissions of the folder and its files.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use taskyard_core::{Kind, TubeOptions};

use crate::fixture::{close, content, create, fast_folder, must, open, put_one, try_open};

/// The folder had mode 0755 and its files 0644: every user of the machine could read all payloads.
#[test]
fn only_the_owner_reads_and_writes() {
    let parent = fast_folder();
    let folder = parent.path().join("data");
    let store = open(&folder);
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    must(&store, put_one("mail", b"task"));
    let open_files = check_private(&folder);
    let expected = ["db", "db-shm", "db-wal", "journal-1", "journal-2", "lock", "seal"];
    assert_eq!(open_files, expected.map(|end| format!("taskyard.{end}")));
    close(store);
    check_private(&folder);
    // Files that a salvage creates and keeps.
    fs::write(folder.join("taskyard.seal"), b"damaged").expect("the seal can be written");
    let store = try_open(&folder, true).expect("the intact data opens");
    assert_eq!(content(&store, 10).expect("payloads can be read").len(), 1);
    assert!(check_private(&folder).contains(&"taskyard.db.damaged-1".to_owned()));
}

/// A folder with an empty store.
fn stored(parent: &Path) -> PathBuf {
    let folder = parent.join("data");
    let store = open(&folder);
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    drop(store);
    folder
}

fn set_modes(folder: &Path, folder_mode: u32, file_mode: u32) {
    for path in files(folder).values() {
        fs::set_permissions(path, Permissions::from_mode(file_mode)).expect("a mode");
    }
    fs::set_permissions(folder, Permissions::from_mode(folder_mode)).expect("a mode");
}

#[test]
fn permissions_of_other_users_to_read_are_removed() {
    let parent = fast_folder();
    let folder = stored(parent.path());
    for (folder_mode, file_mode) in [(0o755, 0o644), (0o750, 0o640), (0o700, 0o604)] {
        set_modes(&folder, folder_mode, file_mode);
        drop(open(&folder));
        check_private(&folder);
    }
}

/// A folder that every user could write to was repaired and opened, although its data may have been changed.
#[test]
fn a_folder_that_other_users_can_change_is_refused() {
    let parent = fast_folder();
    let folder = stored(parent.path());
    for (folder_mode, file_mode) in
        [(0o777, 0o600), (0o770, 0o600), (0o702, 0o600), (0o700, 0o666), (0o755, 0o620)]
    {
        set_modes(&folder, folder_mode, file_mode);
        let refused = try_open(&folder, false).expect_err("other users can write").to_string();
        let command = format!("chmod -R go-w {}", folder.display());
        assert!(refused.contains(&command), "{refused}");
        assert_eq!(mode(&folder), folder_mode, "nothing is changed");
        assert!(files(&folder).values().all(|path| mode(path) == file_mode));
        let ran = Command::new("sh").args(["-c", &command]).status().expect("a shell");
        assert!(ran.success());
        drop(open(&folder));
        check_private(&folder);
    }
}

/// The repair of a mode read only its last nine bits, and wrote them back as the whole mode. A folder lost
/// its setgid and sticky bits together with the permissions of other users.
#[test]
fn a_repair_keeps_the_special_bits() {
    let parent = fast_folder();
    let folder = parent.path().join("data");
    drop(open(&folder));
    fs::set_permissions(&folder, Permissions::from_mode(0o3750)).expect("a mode");
    let all = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o7777;
    // A system may refuse the setgid bit.
    let special = all(&folder) & 0o7000;
    assert_ne!(special, 0);
    drop(open(&folder));
    assert_eq!(all(&folder), special | 0o700);
}

/// The permissions of a folder that has other files too are not changed.
#[test]
fn a_shared_folder_is_refused_if_other_users_can_write_to_it() {
    let parent = fast_folder();
    let folder = parent.path().join("shared");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("notes"), b"another file").expect("a file");
    fs::set_permissions(&folder, Permissions::from_mode(0o1777)).expect("a mode");
    let refused = try_open(&folder, false).expect_err("other users can write there").to_string();
    assert!(refused.contains("run chmod go-w"), "{refused}");
    assert!(refused.contains("or choose another folder"), "{refused}");
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("a mode");
    drop(open(&folder));
    assert_eq!(mode(&folder), 0o755);
    for (name, path) in files(&folder).into_iter().filter(|(name, _)| name != "notes") {
        assert_eq!(mode(&path), 0o600, "{name}");
    }
}

/// A folder made with the umask 002 is writable for its group. It has no data that others can have changed.
#[test]
fn an_empty_folder_becomes_private() {
    let parent = fast_folder();
    let folder = parent.path().join("new");
    fs::create_dir(&folder).expect("a folder");
    fs::set_permissions(&folder, Permissions::from_mode(0o775)).expect("a mode");
    drop(open(&folder));
    check_private(&folder);
}

/// The names of all files of a folder; checks that other users have no permissions.
#[track_caller]
fn check_private(folder: &Path) -> Vec<String> {
    assert_eq!(mode(folder), 0o700);
    let files = files(folder);
    for (name, path) in &files {
        assert_eq!(mode(path), 0o600, "{name}");
    }
    files.into_keys().collect()
}

fn files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name().to_string_lossy().into(), entry.path())).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}
