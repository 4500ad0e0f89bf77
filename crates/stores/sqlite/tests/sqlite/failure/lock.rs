//! Tests files of an open folder that are removed or replaced.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use taskyard_core::{Error, Kind, TubeOptions};
use taskyard_store::{OpenError, Store};
use taskyard_store_sqlite::SqliteStore;

use crate::fixture::{
    NOW, ask, block_on, content, create, fast_folder, must, open, put_one, try_open,
};

/// Every file that an open store compares with its path.
const FILES: [&str; 7] = [
    "taskyard.lock",
    "taskyard.db",
    "taskyard.db-wal",
    "taskyard.db-shm",
    "taskyard.seal",
    "taskyard.journal-1",
    "taskyard.journal-2",
];

/// A second server opened the folder after `taskyard.lock` was removed: it created a new file and locked
/// that. Both issued the same ids, both delivered the same task, and an acknowledged put was lost in the end.
#[test]
fn a_removed_lock_does_not_admit_a_second_store() {
    let folder = fast_folder();
    let store = filled(folder.path());
    fs::remove_file(folder.path().join("taskyard.lock")).expect("the lock can be removed");
    for accept_loss in [false, true] {
        let refused = try_open(folder.path(), accept_loss).expect_err("it is open");
        assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
    }
    // Also when the refused server created a lock file.
    refuses_writes(&store, "taskyard.lock");
    drop(store);
    let found = content(&open(folder.path()), 10).expect("payloads can be read");
    assert_eq!(found.len(), 1, "what was acknowledged is there");
}

/// A running store continued to write to files that were no longer in its folder.
#[test]
fn a_store_whose_files_are_removed_or_replaced_stops_writing() {
    for file in FILES {
        for replaced in [false, true] {
            let folder = fast_folder();
            let store = filled(folder.path());
            let path = folder.path().join(file);
            let copy = folder.path().join("taskyard.copy");
            fs::copy(&path, &copy).expect("a copy");
            if replaced {
                fs::rename(&copy, &path).expect("it is replaced");
            } else {
                fs::remove_file(&path).expect("it is removed");
            }
            refuses_writes(&store, file);
        }
    }
}

/// One failed check of a file, as it may happen on a network disk, was taken for a missing file. Writes were
/// refused until a restart.
#[test]
fn a_failed_check_does_not_stop_writes() {
    let folder = fast_folder();
    let store = filled(folder.path());
    let [path, moved] = ["taskyard.lock", "taskyard.moved"].map(|name| folder.path().join(name));
    fs::rename(&path, &moved).expect("it is moved");
    symlink(&path, &path).expect("a link to itself, which cannot be followed");
    block_on(store.health(NOW)).expect("the file was not found to be another");
    must(&store, put_one("mail", b"task"));
    fs::rename(&moved, &path).expect("it is restored");
    block_on(store.health(NOW)).expect("it is healthy");
    must(&store, put_one("mail", b"task"));
    fs::remove_file(&path).expect("it is removed");
    refuses_writes(&store, "taskyard.lock");
}

/// A store with one task that has checked its files once.
fn filled(folder: &Path) -> SqliteStore {
    let store = open(folder);
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    must(&store, put_one("mail", b"task"));
    block_on(store.health(NOW)).expect("it is healthy");
    store
}

#[track_caller]
fn refuses_writes(store: &SqliteStore, file: &str) {
    let unhealthy = block_on(store.health(NOW)).expect_err("a file was changed").to_string();
    assert!(unhealthy.contains(file) && unhealthy.contains("start it again"), "{unhealthy}");
    let refused = ask(store, put_one("mail", b"late"));
    assert!(matches!(&refused, Err(Error::Store(why)) if why.contains(file)), "{refused:?}");
}
