//! Tests batches that are in the journal and not in the database yet.

use std::fs;
use std::path::Path;
use std::time::Duration;

use taskyard_core::{Body, Finish, Kind, NewTask, Reason, Span, State, TubeOptions};
use taskyard_store::{OpenError, Store};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::{
    FILES, TaskContent, ask, block_on, close, content, copy, create, delete, fast_folder, finish,
    finish_now, must, open, peek, put, put_now, run, take_now, try_open,
};

const IDS: u64 = 10_000;

#[test]
fn batches_in_the_journal_survive_a_crash() {
    let folder = fast_folder();
    let store = keep_in_journal(open(folder.path()));
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    must(&store, create("keys", TubeOptions::new(Kind::UtubeTtl)));
    work(&store);
    let before = after_crash(content(&store, IDS).expect("payloads can be read"));
    let database = fs::read(folder.path().join("taskyard.db-wal")).expect("a log");
    drop(store);
    let after = fs::read(folder.path().join("taskyard.db-wal")).expect("a log");
    assert!(database == after, "nothing was applied meanwhile");
    let store = open(folder.path());
    assert_eq!(after_crash(content(&store, IDS).expect("payloads can be read")), before);
    // Ids and leases are not issued again.
    let task = take_now(&store, "mail", 1).remove(0);
    finish_now(&store, "mail", &task, Finish::Ack);
    assert!(put_now(&store, "mail", vec![new_task(1)])[0] >= 40);
    close(store);
    for file in &FILES[3..] {
        assert_eq!(fs::metadata(folder.path().join(file)).expect("it is there").len(), 0, "{file}");
    }
}

/// A done task that its tube kept for a short time was updated and then removed in one transaction, which cost more than all else. Now
/// it is only removed, and what other batches write stays as it was.
#[test]
fn a_done_task_that_leaves_before_it_is_applied_is_only_removed() {
    for is_crash in [true, false] {
        let folder = fast_folder();
        let mut store = keep_in_journal(open(folder.path()));
        let keep_done = Some(Span::FOREVER);
        must(&store, create("mail", TubeOptions { keep_done, ..TubeOptions::new(Kind::FifoTtl) }));
        put_now(&store, "mail", (0..10).map(new_task).collect());
        let held = take_now(&store, "mail", 7);
        for task in &held[..6] {
            finish_now(&store, "mail", task, Finish::Ack);
        }
        finish_now(&store, "mail", &held[6], Finish::Bury);
        must(&store, delete("mail", [0, 1, 3]));
        must(&store, delete("mail", [6, 9]));
        let before = must(&store, peek("mail", 0..10));
        if is_crash {
            drop(store);
            store = open(folder.path());
        } else {
            store.catch_up().expect("it can be applied");
        }
        assert_eq!(must(&store, peek("mail", 0..10)), before);
        close(store);
        let db = rusqlite::Connection::open(folder.path().join("taskyard.db")).expect("it opens");
        let sql = "SELECT group_concat((key & 1023) || ':' || state) FROM task";
        let rows = db.query_row(sql, [], |row| row.get::<_, String>(0));
        assert_eq!(rows.as_deref(), Ok("2:5,4:5,5:5,7:0,8:0"));
        drop(db);
        assert_eq!(must(&open(folder.path()), peek("mail", 0..10)), before);
    }
}

/// The zeros ahead of the writer are not searched for records; the newest record may end with zeros itself.
#[test]
fn a_payload_of_zeros_at_the_end_of_the_journal_survives_a_crash() {
    let folder = fast_folder();
    let store = keep_in_journal(open(folder.path()));
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", vec![new_task(1)]);
    put_now(&store, "mail", vec![NewTask::new(Body::new(&vec![0; 30_000]))]);
    let before = after_crash(content(&store, IDS).expect("payloads can be read"));
    drop(store);
    let store = open(folder.path());
    assert_eq!(after_crash(content(&store, IDS).expect("payloads can be read")), before);
}

/// Much more than both files hold: each is overwritten when the database has its batches.
#[test]
fn both_files_are_used_alternately() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    let mut last = 0;
    for round in 0..200_u8 {
        let tasks = (0..4).map(|_| NewTask::new(Body::new(&vec![round; 50_000]))).collect();
        last = put_now(&store, "mail", tasks)[3];
        for task in take_now(&store, "mail", 3) {
            finish_now(&store, "mail", &task, Finish::Ack);
        }
    }
    for file in &FILES[3..] {
        let length = fs::metadata(folder.path().join(file)).expect("it is there").len();
        assert!(length > 7 << 20 && length <= 8 << 20, "{file} has {length} bytes");
    }
    drop(store);
    let found = content(&open(folder.path()), last + 10).expect("payloads can be read");
    assert_eq!(found.len(), 200);
    assert!(found.keys().map(|key| key.1).eq(last - 199..=last));
}

/// A batch that cannot be written changes nothing, and the next one overwrites it.
#[test]
fn a_batch_that_cannot_be_written_to_the_journal() {
    let folder = fast_folder();
    let store = keep_in_journal(open(folder.path()));
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", (0..20).map(new_task).collect());
    let held = take_now(&store, "mail", 5);
    let batch = || {
        vec![
            put("mail", vec![new_task(77)]),
            finish("mail", &held[0], Finish::Ack),
            finish("mail", &held[1], Finish::Bury),
            delete("mail", [10, 11]),
        ]
    };
    let before = content(&store, IDS).expect("payloads can be read");
    let mut failures = 0;
    loop {
        store.set_fault(Some(Fault::Step { after: failures }));
        let replies = run(&store, batch()).expect("payloads can be read");
        if replies.iter().all(Result::is_ok) {
            break;
        }
        assert!(replies.iter().all(Result::is_err), "{replies:?}");
        assert_eq!(content(&store, IDS).expect("readable"), before, "step {failures}");
        failures += 1;
    }
    assert_eq!(failures, 2, "before it is written and before it is synced");
    let after = after_crash(content(&store, IDS).expect("payloads can be read"));
    drop(store);
    assert_eq!(after_crash(content(&open(folder.path()), IDS).expect("readable")), after);
}

/// The files of a journal do not belong to every database beside them.
#[test]
fn an_older_or_foreign_database_is_detected() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", (0..10).map(new_task).collect());
    close(store);
    let old = copy(folder.path(), folder.path().join("old"));
    let store = keep_in_journal(open(folder.path()));
    put_now(&store, "mail", (10..20).map(new_task).collect());
    store.catch_up().expect("the database can be written");
    put_now(&store, "mail", (20..30).map(new_task).collect());
    let mixed = copy(folder.path(), folder.path().join("mixed"));
    drop(store);
    fs::copy(old.join("taskyard.db"), mixed.join("taskyard.db")).expect("a copy");
    fs::remove_file(mixed.join("taskyard.db-wal")).expect("a log");
    // The journal has every batch since that copy, but other commits may be missing.
    let refused = try_open(&mixed, false).expect_err("it is too old");
    assert!(refused.to_string().contains("its log has lost"), "{refused}");
    let store = try_open(&mixed, true).expect("the intact data can be opened");
    assert_eq!(content(&store, IDS).expect("readable").len(), 30);
    let other = fast_folder();
    let store = open(other.path());
    must(&store, create("else", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "else", (0..3).map(new_task).collect());
    close(store);
    let mixed = copy(folder.path(), folder.path().join("foreign"));
    fs::copy(other.path().join("taskyard.db"), mixed.join("taskyard.db")).expect("a copy");
    fs::remove_file(mixed.join("taskyard.db-wal")).expect("a log");
    let refused = try_open(&mixed, false).expect_err("it is another store");
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
}

/// A missing row was detected by the batch that changed it; with the journal it is detected too, and nothing
/// is written from then on.
#[test]
fn a_missing_row_is_detected_when_the_journal_is_applied() {
    let folder = fast_folder();
    let store = keep_in_journal(open(folder.path()));
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", (0..5).map(new_task).collect());
    store.catch_up().expect("the database can be written");
    let db = rusqlite::Connection::open(folder.path().join("taskyard.db")).expect("it opens");
    db.execute_batch("DELETE FROM task").expect("rows can be removed");
    drop(db);
    let task = take_now(&store, "mail", 1).remove(0);
    finish_now(&store, "mail", &task, Finish::Ack);
    let detected = store.catch_up().expect_err("the row is gone");
    assert!(detected.to_string().contains("damaged"), "{detected}");
    let refused = ask(&store, put("mail", vec![new_task(9)])).expect_err("nothing may be written");
    assert!(refused.to_string().contains("until the store is reopened"), "{refused}");
}

/// The disk did not confirm the last copy of the log while the store closed: log and journal were emptied
/// nevertheless.
#[test]
fn a_copy_that_fails_while_the_journal_is_applied() {
    for _ in 0..20 {
        let folder = fast_folder();
        let store = keep_in_journal(open(folder.path()));
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        store.set_checkpoint_pages(1);
        store.set_journal_bytes(0);
        // This starts the copy; the writer completes it with the next commit, when the store closes.
        put_now(&store, "mail", vec![new_task(1)]);
        store.set_journal_bytes(1 << 20);
        put_now(&store, "mail", vec![new_task(2)]);
        store.set_fault(Some(Fault::WriterCheckpoint));
        let closed = block_on(store.close());
        let left = |file: &str| fs::metadata(folder.path().join(file)).expect("it is there").len();
        if closed.is_err() {
            assert!(left("taskyard.db-wal") > 0 && left("taskyard.journal-1") > 0);
        }
        assert_eq!(content(&open(folder.path()), IDS).expect("readable").len(), 2);
    }
}

/// The seal may be behind, because it is not synced: then a damaged record must not hide those behind it.
#[test]
fn a_gap_in_the_journal_is_detected_without_the_seal() {
    let folder = fast_folder();
    let store = keep_in_journal(open(folder.path()));
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    let old_seal = fs::read(folder.path().join("taskyard.seal")).expect("a seal");
    for number in 0..5 {
        put_now(&store, "mail", vec![new_task(number)]);
    }
    let copied = copy(folder.path(), folder.path().join("copy"));
    drop(store);
    fs::write(copied.join("taskyard.seal"), old_seal).expect("the seal can be written");
    assert_eq!(
        content(&open(&copy(&copied, copied.join("sound"))), IDS).expect("readable").len(),
        5
    );
    let journal = copied.join("taskyard.journal-1");
    let mut bytes = fs::read(&journal).expect("a journal");
    let third = bytes.windows(50).position(|part| part == [2; 50]).expect("the payload");
    bytes[third] ^= 1;
    fs::write(&journal, bytes).expect("it can be written");
    let refused = try_open(&copied, false).expect_err("one is missing");
    assert!(refused.to_string().contains("missing from its journal"), "{refused}");
    let store = try_open(&copied, true).expect("the intact data can be opened");
    assert_eq!(content(&store, IDS).expect("readable").len(), 4);
}

/// A folder of an older format whose server was killed was reported as damaged: the journal was applied, in rows of the
/// newest format, before the database had their columns.
#[test]
fn the_journal_of_an_earlier_format_is_applied() {
    for format in 6..=11 {
        let folder = fast_folder();
        let store = keep_in_journal(open(folder.path()));
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        must(&store, create("keys", TubeOptions::new(Kind::UtubeTtl)));
        put_now(&store, "mail", (50..60).map(new_task).collect());
        store.catch_up().expect("the database can be written");
        work(&store);
        let before = after_crash(content(&store, IDS).expect("payloads can be read"));
        drop(store);
        rebuild_in_format(folder.path(), format);
        let damaged = copy(folder.path(), folder.path().join("damaged"));
        let store = open(folder.path());
        let after = after_crash(content(&store, IDS).expect("payloads can be read"));
        assert_eq!(after, before, "format {format}");
        close(store);
        let found = content(&open(folder.path()), IDS).expect("readable");
        assert_eq!(found.len(), before.len(), "format {format}");
        // A refused opening changes nothing, also not the format.
        change_database(&damaged, "UPDATE task SET sum = sum + 1 WHERE key = 3");
        let refused = try_open(&damaged, false).expect_err("a row is damaged");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
        let db = rusqlite::Connection::open(damaged.join("taskyard.db")).expect("it opens");
        let left = db.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
        assert_eq!(left, Ok(format));
    }
}

/// The files that bring a database from one format to the next.
const MIGRATIONS: [&str; 11] = [
    include_str!("../../src/migrations/0001.sql"),
    include_str!("../../src/migrations/0002.sql"),
    include_str!("../../src/migrations/0003.sql"),
    include_str!("../../src/migrations/0004.sql"),
    include_str!("../../src/migrations/0005.sql"),
    include_str!("../../src/migrations/0006.sql"),
    include_str!("../../src/migrations/0007.sql"),
    include_str!("../../src/migrations/0008.sql"),
    include_str!("../../src/migrations/0009.sql"),
    include_str!("../../src/migrations/0010.sql"),
    include_str!("../../src/migrations/0011.sql"),
];

/// Replaces the database of a stopped store by one of an earlier format with the same rows.
fn rebuild_in_format(folder: &Path, format: i64) {
    let (path, newer) = (folder.join("taskyard.db"), folder.join("newer.db"));
    change_database(folder, "PRAGMA journal_mode = DELETE");
    fs::rename(&path, &newer).expect("it can be renamed");
    let db = rusqlite::Connection::open(&path).expect("it opens");
    for migration in &MIGRATIONS[..format as usize] {
        db.execute_batch(migration).expect("a migration");
    }
    db.pragma_update(None, "application_id", 0x7961_7264).expect("a pragma");
    db.pragma_update(None, "user_version", format).expect("a pragma");
    db.execute("ATTACH ? AS newer", [newer.to_str()]).expect("both are open");
    for table in ["store", "tube", "task", "semaphore_head"] {
        let sql = "SELECT group_concat(name) FROM pragma_table_info(?)";
        let columns: String = db.query_row(sql, [table], |row| row.get(0)).expect("columns");
        let sql =
            format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}");
        db.execute_batch(&sql).expect("the rows fit");
    }
    drop(db);
    fs::remove_file(newer).expect("it can be removed");
}

fn change_database(folder: &Path, sql: &str) {
    let db = rusqlite::Connection::open(folder.join("taskyard.db")).expect("it opens");
    db.execute_batch(sql).expect("it can be changed");
}

/// Keeps all batches of the store in the journal until the test applies them.
fn keep_in_journal(store: SqliteStore) -> SqliteStore {
    store.set_journal_delay(Duration::MAX);
    store
}

fn new_task(number: u8) -> NewTask {
    NewTask {
        subqueue: Some("red".into()),
        ..NewTask::new(Body::with_meta(&[number; 50], &[0x80]))
    }
}

/// All commands that only change tasks.
fn work(store: &SqliteStore) {
    put_now(store, "mail", (0..40).map(new_task).collect());
    let second = Some(Span::from_secs(1));
    put_now(store, "keys", vec![NewTask { delay: second, ttl: second, ..new_task(40) }]);
    let held = take_now(store, "mail", 5);
    finish_now(store, "mail", &held[0], Finish::Ack);
    finish_now(store, "mail", &held[1], Finish::Bury);
    let release = Finish::Release { delay: Span::from_secs(9), counted: true };
    finish_now(store, "mail", &held[2], release);
    must(store, delete("mail", [30, 31, 39]));
}

/// The content after a crash: taken tasks are ready.
fn after_crash(mut content: TaskContent) -> TaskContent {
    for task in content.values_mut() {
        if task.start.take().is_some() {
            (task.state, task.reason) = (State::Ready, Reason::WaitsForConsumer);
            (task.lease, task.lease_until, task.due) = (None, None, None);
        }
    }
    content
}
