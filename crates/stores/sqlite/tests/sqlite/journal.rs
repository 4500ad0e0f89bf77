//! Batches that stand in the journal before they are in the database.

use std::fs;
use std::time::Duration;

use taskyard_core::{Body, Finish, Kind, NewTask, Reason, Span, State, TubeOptions};
use taskyard_store::{OpenError, Store};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::yard::{
    Content, FILES, ask, block_on, close, content, copy, create, delete, fast_folder, finish,
    finish_now, must, open, put, put_now, run, take_now, try_open,
};

const IDS: u64 = 10_000;

#[test]
fn what_is_in_the_journal_only_is_there_again() {
    let folder = fast_folder();
    let store = patient(open(folder.path()));
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    must(&store, create("keys", TubeOptions::new(Kind::UtubeTtl)));
    work(&store);
    let before = settled(content(&store, IDS).expect("payloads can be read"));
    let database = fs::read(folder.path().join("taskyard.db-wal")).expect("a log");
    drop(store);
    let after = fs::read(folder.path().join("taskyard.db-wal")).expect("a log");
    assert!(database == after, "nothing was brought over meanwhile");
    let store = open(folder.path());
    assert_eq!(settled(content(&store, IDS).expect("payloads can be read")), before);
    // Ids and leases are not given again.
    let task = take_now(&store, "mail", 1).remove(0);
    finish_now(&store, "mail", &task, Finish::Ack);
    assert!(put_now(&store, "mail", vec![new_task(1)])[0] >= 40);
    close(store);
    for file in &FILES[3..] {
        assert_eq!(fs::metadata(folder.path().join(file)).expect("it is there").len(), 0, "{file}");
    }
}

/// Much more than both files hold: each is begun anew when the database has what stood in it.
#[test]
fn files_are_written_in_turns() {
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

/// A batch that cannot be written has not happened, and the next one takes its place.
#[test]
fn a_batch_that_fails_on_its_way_into_the_journal() {
    let folder = fast_folder();
    let store = patient(open(folder.path()));
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
    let after = settled(content(&store, IDS).expect("payloads can be read"));
    drop(store);
    assert_eq!(settled(content(&open(folder.path()), IDS).expect("readable")), after);
}

/// The files of a journal do not belong to every database that lies beside them.
#[test]
fn a_database_of_another_day_is_noticed() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", (0..10).map(new_task).collect());
    close(store);
    let old = copy(folder.path(), folder.path().join("old"));
    let store = patient(open(folder.path()));
    put_now(&store, "mail", (10..20).map(new_task).collect());
    store.catch_up().expect("the database can be written");
    put_now(&store, "mail", (20..30).map(new_task).collect());
    let mixed = copy(folder.path(), folder.path().join("mixed"));
    drop(store);
    fs::copy(old.join("taskyard.db"), mixed.join("taskyard.db")).expect("a copy");
    fs::remove_file(mixed.join("taskyard.db-wal")).expect("a log");
    // The journal has every batch since that day, but who knows what else is missing.
    let refused = try_open(&mixed, false).expect_err("it is too old");
    assert!(refused.to_string().contains("lost from its log"), "{refused}");
    let store = try_open(&mixed, true).expect("what is left can be opened");
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

/// A row that vanished was noticed by the batch that wanted to change it; behind the journal it is noticed too, and
/// nothing is written from then on.
#[test]
fn a_row_that_vanished_is_noticed_behind_the_journal() {
    let folder = fast_folder();
    let store = patient(open(folder.path()));
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", (0..5).map(new_task).collect());
    store.catch_up().expect("the database can be written");
    let db = rusqlite::Connection::open(folder.path().join("taskyard.db")).expect("it opens");
    db.execute_batch("DELETE FROM task").expect("rows can be removed");
    drop(db);
    let task = take_now(&store, "mail", 1).remove(0);
    finish_now(&store, "mail", &task, Finish::Ack);
    let noticed = store.catch_up().expect_err("the row is gone");
    assert!(noticed.to_string().contains("damaged"), "{noticed}");
    let refused = ask(&store, put("mail", vec![new_task(9)])).expect_err("nothing may be written");
    assert!(refused.to_string().contains("opened anew"), "{refused}");
}

/// What was copied of the log last, while the store closed, was not confirmed by the disk: log and journal were emptied
/// all the same.
#[test]
fn a_copy_that_fails_while_the_journal_is_brought_over() {
    for _ in 0..20 {
        let folder = fast_folder();
        let store = patient(open(folder.path()));
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        store.set_checkpoint_pages(1);
        store.set_journal_bytes(0);
        // This begins the copy; the writer finishes it with the next commit, which comes when the store closes.
        put_now(&store, "mail", vec![new_task(1)]);
        store.set_journal_bytes(1 << 20);
        put_now(&store, "mail", vec![new_task(2)]);
        store.set_fault(Some(Fault::Rest));
        let closed = block_on(store.close());
        let left = |file: &str| fs::metadata(folder.path().join(file)).expect("it is there").len();
        if closed.is_err() {
            assert!(left("taskyard.db-wal") > 0 && left("taskyard.journal-1") > 0);
        }
        assert_eq!(content(&open(folder.path()), IDS).expect("readable").len(), 2);
    }
}

/// The seal may be behind, as it is not synced: a record that is damaged must not hide those behind it then.
#[test]
fn a_gap_in_the_journal_is_noticed_without_the_seal() {
    let folder = fast_folder();
    let store = patient(open(folder.path()));
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
    let store = try_open(&copied, true).expect("what is left can be opened");
    assert_eq!(content(&store, IDS).expect("readable").len(), 4);
}

/// Nothing of this store goes on to the database by itself.
fn patient(store: SqliteStore) -> SqliteStore {
    store.set_journal_patience(Duration::MAX);
    store
}

fn new_task(number: u8) -> NewTask {
    NewTask {
        subqueue: Some("red".into()),
        ..NewTask::new(Body::with_meta(&[number; 50], &[0x80]))
    }
}

/// Everything that only changes tasks.
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

/// As it is after a crash: what was taken is ready.
fn settled(mut content: Content) -> Content {
    for task in content.values_mut() {
        if task.start.take().is_some() {
            (task.state, task.reason) = (State::Ready, Reason::WaitsForConsumer);
            (task.lease, task.lease_until, task.due) = (None, None, None);
        }
    }
    content
}
