//! Tests folders that must not be opened, each with its own clear error.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use taskyard_core::{Error, Kind, TubeOptions};
use taskyard_store::{OpenError, Store};

use crate::fixture::{ask, block_on, close, create, fast_folder, must, open, try_open, tubes};

#[test]
fn a_folder_is_opened_once_at_a_time() {
    let folder = fast_folder();
    let store = open(folder.path());
    for accept_loss in [false, true] {
        let refused = try_open(folder.path(), accept_loss).expect_err("it is open");
        assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
        assert!(refused.to_string().contains("another taskyard process"), "{refused}");
    }
    drop(store);
    close(open(folder.path()));
}

/// A closed store kept the lock of its folder until it was dropped.
#[test]
fn a_closed_store_releases_its_folder() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    block_on(store.close()).expect("the store closes");
    let next = open(folder.path());
    assert_eq!(tubes(&next).len(), 1);
    let refused = ask(&store, create("late", TubeOptions::new(Kind::Fifo)));
    assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
    block_on(store.close()).expect("it is closed already");
    drop(store);
    must(&next, create("more", TubeOptions::new(Kind::Fifo)));
    drop(next);
    assert_eq!(tubes(&open(folder.path())).len(), 2);
}

#[test]
fn a_newer_format_is_refused() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    close(store);
    let set_format = |format: i64| {
        let db = rusqlite::Connection::open(folder.path().join("taskyard.db")).expect("it opens");
        db.pragma_update(None, "user_version", format).expect("a pragma");
    };
    set_format(99);
    // Accepting a loss does not help: nothing is damaged.
    for accept_loss in [false, true] {
        let refused = try_open(folder.path(), accept_loss).expect_err("too new");
        assert!(matches!(refused, OpenError::TooNew { found: 99, known: 13, .. }), "{refused}");
        assert!(refused.to_string().contains("newer taskyard"), "{refused}");
    }
    set_format(13);
    assert_eq!(tubes(&open(folder.path())).len(), 1);
}

#[test]
fn a_folder_that_is_a_file() {
    let folder = fast_folder();
    let file = folder.path().join("file");
    fs::write(&file, b"in the way").expect("a file");
    for path in [file.clone(), file.join("below")] {
        unavailable(&path, &path.display().to_string());
    }
}

#[test]
fn a_database_that_is_a_folder() {
    let folder = fast_folder();
    fs::create_dir(folder.path().join("taskyard.db")).expect("a folder");
    unavailable(folder.path(), "directory");
}

/// Permissions do not restrict root, who can use the folder.
#[test]
fn a_folder_without_write_permission() {
    let folder = fast_folder();
    let locked = folder.path().join("locked");
    fs::create_dir(&locked).expect("a folder");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).expect("permissions");
    if fs::write(locked.join("probe"), b"").is_ok() {
        close(open(&locked));
    } else {
        unavailable(&locked, "denied");
    }
}

/// The database was created before its seal: after a crash in between an empty folder was reported as
/// damaged. Now the seal is written first.
#[test]
fn a_folder_whose_creation_was_interrupted() {
    let folder = fast_folder();
    drop(open(folder.path()));
    fs::remove_file(folder.path().join("taskyard.db")).expect("the database can be removed");
    fs::remove_file(folder.path().join("taskyard.db-wal")).expect("the log can be removed");
    for incomplete in ["taskyard.db.new", "taskyard.db.new-journal"] {
        fs::write(folder.path().join(incomplete), b"incomplete").expect("a file");
    }
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    drop(store);
    assert_eq!(tubes(&open(folder.path())).len(), 1);
}

fn unavailable(folder: &std::path::Path, message: &str) {
    let refused = try_open(folder, false).expect_err("it cannot be opened");
    assert!(matches!(refused, OpenError::Unavailable { .. }), "{refused}");
    assert!(refused.to_string().contains(message), "{refused}");
}
