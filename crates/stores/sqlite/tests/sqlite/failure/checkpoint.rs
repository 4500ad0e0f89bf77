//! Tests checkpoints: after a sync that the disk does not confirm nothing is written, and the log stays until
//! the store is reopened.

use std::fs;
use std::path::Path;

use taskyard_core::{Error, Kind, TubeOptions};
use taskyard_store::Store;
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::{
    ask, block_on, close, content, create, fast_folder, must, open, open_without_journal, put_one,
    take_now,
};

/// Maximum number of puts before a copy must have failed.
const PUTS_MAX: u64 = 100_000;

/// A failed sync of a copy was only a warning. The system reports it once, so the next copy succeeded, the
/// log was reset, and acknowledged tasks that had not reached the disk were lost.
#[test]
fn a_copy_that_the_disk_does_not_confirm() {
    for fault in [Fault::ThreadCheckpoint, Fault::WriterCheckpoint] {
        let folder = fast_folder();
        let store = open_without_journal(folder.path());
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        store.set_checkpoint_pages(5);
        store.set_fault(Some(fault));
        let put = put_until_refused(&store);
        refuses_until_reopened(&store, folder.path(), put, put);
    }
}

/// The same for the sync of a commit. The reply said that nothing had been done, and after a restart the task
/// was there: the outcome is unknown.
#[test]
fn a_commit_that_the_disk_does_not_confirm() {
    for journal_bytes in [0, 1 << 20] {
        let folder = fast_folder();
        let store = open(folder.path());
        store.set_journal_bytes(journal_bytes);
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        for _ in 0..20 {
            must(&store, put_one("mail", b"task"));
        }
        store.set_fault(Some(Fault::Sync));
        let unconfirmed = ask(&store, put_one("mail", b"task"));
        assert!(matches!(unconfirmed, Err(Error::OutcomeUnknown(_))), "{unconfirmed:?}");
        refuses_until_reopened(&store, folder.path(), 20, 21);
    }
}

/// A copy that failed just before the end was not reported to the store.
#[test]
fn a_copy_that_fails_while_the_store_closes() {
    for _ in 0..20 {
        let folder = fast_folder();
        let store = open_without_journal(folder.path());
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        store.set_checkpoint_pages(1);
        store.set_fault(Some(Fault::ThreadCheckpoint));
        // This starts the copy.
        let acknowledged = ask(&store, put_one("mail", b"task")).is_ok();
        let length = log_bytes(folder.path());
        block_on(store.close()).expect_err("the copy has failed");
        assert_eq!(log_bytes(folder.path()), length, "the log stays");
        let found = content(&open(folder.path()), 10).expect("payloads can be read");
        assert_eq!(found.len(), usize::from(acknowledged));
    }
}

/// Each start after a crash extended the log by a megabyte, however much was unused.
#[test]
fn the_log_does_not_grow_with_every_start() {
    let folder = fast_folder();
    drop(open(folder.path()));
    let mut lengths = Vec::new();
    for start in 0..6 {
        let store = open_without_journal(folder.path());
        if start == 0 {
            must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        }
        must(&store, put_one("mail", b"task"));
        drop(store);
        lengths.push(log_bytes(folder.path()));
    }
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
}

/// Many copies and resets of the log lose nothing.
#[test]
fn a_log_that_is_copied_often() {
    let folder = fast_folder();
    let store = open_without_journal(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    store.set_checkpoint_pages(3);
    for _ in 0..500 {
        must(&store, put_one("mail", &[7; 3000]));
        take_now(&store, "mail", 1);
    }
    drop(store);
    let store = open(folder.path());
    assert_eq!(content(&store, 1000).expect("payloads can be read").len(), 500);
    close(store);
}

/// Puts tasks until the store refuses; returns how many were acknowledged.
fn put_until_refused(store: &SqliteStore) -> u64 {
    for put in 0..PUTS_MAX {
        match ask(store, put_one("mail", b"task")) {
            Ok(_) => {}
            Err(Error::Store(_)) => return put,
            Err(other) => panic!("an unexpected refusal: {other}"),
        }
    }
    panic!("{PUTS_MAX} puts were acknowledged by a store that cannot copy its log");
}

/// The disk works again, but its content is unknown: only a reopened store continues, and has `found` tasks.
fn refuses_until_reopened(store: &SqliteStore, folder: &Path, put: u64, found: u64) {
    store.set_fault(None);
    for _ in 0..3 {
        let refused = ask(store, put_one("mail", b"task")).expect_err("nothing may be written");
        assert!(refused.to_string().contains("until the store is reopened"), "{refused}");
    }
    assert_eq!(content(store, put + 10).expect("it can be read").len() as u64, put);
    let length = log_bytes(folder);
    assert!(length > 0, "the log is there");
    block_on(store.close()).expect_err("the log may not be copied");
    assert_eq!(log_bytes(folder), length, "the log stays");
    let store = open(folder);
    assert_eq!(content(&store, put + 10).expect("payloads can be read").len() as u64, found);
    must(&store, put_one("mail", b"task"));
    close(store);
}

fn log_bytes(folder: &Path) -> u64 {
    fs::metadata(folder.join("taskyard.db-wal")).expect("there is a log").len()
}
