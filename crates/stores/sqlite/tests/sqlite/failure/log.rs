//! Tests a write-ahead log whose reset another program prevents.

use std::fs;
use std::path::Path;
use std::thread::yield_now;

use rusqlite::Connection;
use taskyard_core::{Error, Kind, Span, TubeOptions};
use taskyard_store::Store;
use taskyard_store_sqlite::SqliteStore;

use crate::fixture::{
    NOW, ask, block_on, close, content, create, fast_folder, must, open, open_without_journal,
    put_one,
};

const PAGES_MAX: i32 = 200;
/// Maximum number of puts; fewer fill such a log.
const PUTS_MAX: u64 = 100_000;

/// `sqlite3`, opened to inspect the tasks, kept a read transaction open: the log grew until the disk was
/// full, without a warning.
#[test]
fn another_reader_does_not_make_the_log_grow_without_limit() {
    for is_direct in [true, false] {
        let folder = fast_folder();
        let store =
            if is_direct { open_without_journal(folder.path()) } else { open(folder.path()) };
        store.set_checkpoint_pages(10);
        store.set_log_pages_max(PAGES_MAX);
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        store.catch_up().expect("the tube is in the database");
        let reader = read_transaction(folder.path());
        let (put, refused) = put_until_refused(&store);
        assert!(refused.contains("another program"), "{refused}");
        assert!(log_bytes(folder.path()) < 3 << 20, "{} bytes", log_bytes(folder.path()));
        let unhealthy = block_on(store.health(NOW)).expect_err("it cannot write");
        assert!(unhealthy.to_string().contains("another program"), "{unhealthy}");
        drop(reader);
        // The checkpoint thread may be copying the log.
        while ask(&store, put_one("mail", &[7; 3000])).is_err() {
            yield_now();
        }
        let health = block_on(store.health(NOW + Span::from_secs(2))).expect("it can write");
        assert!(health.warnings.is_empty() && health.log_bytes < Some(1 << 20), "{health:?}");
        close(store);
        let found = content(&open(folder.path()), put + 10).expect("payloads can be read");
        assert_eq!(found.len() as u64, put + 1);
    }
}

/// A warning is given before writes are refused.
#[test]
fn a_long_log_causes_a_warning() {
    let folder = fast_folder();
    let store = open_without_journal(folder.path());
    store.set_checkpoint_pages(10);
    store.set_log_pages_max(1000);
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    let _reader = read_transaction(folder.path());
    let mut warnings = Vec::new();
    for put in 0..PUTS_MAX {
        must(&store, put_one("mail", &[7; 3000]));
        warnings = block_on(store.health(NOW)).expect("it can write").warnings;
        if !warnings.is_empty() {
            assert!(put > 10, "after {put} puts: {warnings:?}");
            break;
        }
    }
    assert!(warnings[0].contains("taskyard.db-wal"), "{warnings:?}");
}

/// Opens a read transaction, as `sqlite3` does between `BEGIN` and `COMMIT`.
fn read_transaction(folder: &Path) -> Connection {
    let reader = Connection::open(folder.join("taskyard.db")).expect("it opens");
    reader.execute_batch("BEGIN; SELECT count(*) FROM tasks").expect("a read");
    reader
}

fn put_until_refused(store: &SqliteStore) -> (u64, String) {
    for put in 0..PUTS_MAX {
        match ask(store, put_one("mail", &[7; 3000])) {
            Ok(_) => _ = store.catch_up(),
            Err(Error::Store(why)) => return (put, why),
            Err(other) => panic!("an unexpected refusal: {other}"),
        }
    }
    panic!("the log grows without limit");
}

fn log_bytes(folder: &Path) -> u64 {
    fs::metadata(folder.join("taskyard.db-wal")).expect("there is a log").len()
}
