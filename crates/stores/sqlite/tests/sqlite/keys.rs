//! Tests unique keys on disk: in the journal and in the database, after a crash, and when rows are lost.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use taskyard_core::{
    Body, Command, Finish, Key, KeyRequest, Kind, NewTask, OnConflict, Placed, Reply, Span, State,
    TaskId, TubeOptions,
};
use taskyard_store::{OpenError, OpenOptions};
use taskyard_store_sqlite::SqliteStore;

use crate::fixture::{
    NOW, close, create, delete, fast_folder, finish_now, must, name, open, peek, put, put_now, run,
    run_at, take_now, try_open,
};

pub fn keyed(key: &str, payload: &[u8]) -> NewTask {
    let mut request = KeyRequest::new(Key::new(key).expect("a good key"));
    request.held.unique_for = Span::from_secs(60);
    NewTask { key: Some(Box::new(request)), ..NewTask::new(Body::new(payload)) }
}

fn replacing(key: &str, payload: &[u8]) -> NewTask {
    let mut task = keyed(key, payload);
    task.key.as_mut().expect("a key").on_conflict = OnConflict::Replace;
    task
}

/// Puts a task with a key, which should be held.
#[track_caller]
fn holder(store: &SqliteStore, key: &str) -> Placed {
    match must(store, put("mail", vec![keyed(key, b"again")])) {
        Reply::Put(placed) => placed[0],
        other => panic!("a put answered {other:?}"),
    }
}

fn existing(id: u64, state: State) -> Placed {
    Placed { id: TaskId(id), state, existing: true }
}

#[track_caller]
fn payload(store: &SqliteStore, id: u64) -> Vec<u8> {
    match must(store, peek("mail", [id])) {
        Reply::Tasks(tasks) => {
            tasks[0].body.as_ref().expect("a peek shows the payload").payload().to_vec()
        }
        other => panic!("a peek answered {other:?}"),
    }
}

/// Tasks 0 to 5 with keys, one of each kind of row.
fn work(store: &SqliteStore) {
    let keep_done = Some(Span::from_secs(1000));
    must(store, create("mail", TubeOptions { keep_done, ..TubeOptions::new(Kind::FifoTtl) }));
    put_now(store, "mail", vec![keyed("kept", b"0"), keyed("deleted", b"1")]);
    let taken = take_now(store, "mail", 1).remove(0);
    finish_now(store, "mail", &taken, Finish::Ack);
    must(store, delete("mail", [1]));
    put_now(store, "mail", vec![keyed("ready", b"2"), keyed("replaced", &[3; 9000])]);
    put_now(store, "mail", vec![keyed("buried", b"4"), NewTask::new(Body::new(b"5"))]);
    must(store, delete("mail", [4]));
    put_now(store, "mail", vec![replacing("replaced", b"new")]);
}

#[track_caller]
fn check_work(store: &SqliteStore) {
    assert_eq!(holder(store, "kept"), existing(0, State::Done));
    assert_eq!(holder(store, "deleted"), existing(1, State::Done));
    assert_eq!(holder(store, "ready"), existing(2, State::Ready));
    assert_eq!(holder(store, "replaced"), existing(3, State::Ready));
    assert_eq!(holder(store, "buried"), existing(4, State::Done));
    assert_eq!(payload(store, 3), b"new");
    assert_eq!(payload(store, 2), b"2");
    let Reply::Tasks(shown) = must(store, peek("mail", 0..6)) else { panic!("tasks") };
    let keys: Vec<_> = shown.iter().map(|task| task.key.as_deref().map(Key::as_str)).collect();
    assert_eq!(keys, [Some("kept"), Some("ready"), Some("replaced"), None]);
}

/// The number of rows of keys in the database.
fn rows(folder: &Path) -> i64 {
    let db = Connection::open(folder.join("taskyard.db")).expect("it opens");
    db.query_row("SELECT count(*) FROM unique_key", [], |row| row.get(0)).expect("a number")
}

fn change_database(folder: &Path, sql: &str) {
    let db = Connection::open(folder.join("taskyard.db")).expect("it opens");
    db.execute_batch(sql).expect("it can be changed");
}

/// From the journal, from the database, and after a clean stop.
#[test]
fn keys_survive_every_stop() {
    for delay in [Duration::MAX, Duration::ZERO] {
        for journal_bytes in [1 << 20, 0] {
            let folder = fast_folder();
            let store = open(folder.path());
            store.set_journal_delay(delay);
            store.set_journal_bytes(journal_bytes);
            work(&store);
            check_work(&store);
            drop(store);
            let store = open(folder.path());
            check_work(&store);
            close(store);
            assert_eq!(rows(folder.path()), 5);
            check_work(&open(folder.path()));
        }
    }
}

/// Keys of ended tasks leave the disk when they are free, all others with their tube.
#[test]
fn rows_are_removed() {
    let folder = fast_folder();
    let store = open(folder.path());
    work(&store);
    let later = NOW + Span::from_secs(100);
    let tick = Command::Tick { limit: 100, seed: 0 };
    let replies = run_at(&store, later, vec![tick]).expect("readable");
    assert_eq!(replies, [Ok(Reply::Ticked(3))]);
    store.catch_up().expect("the journal is applied");
    assert_eq!(rows(folder.path()), 3, "of the task that is kept and of two that live");
    must(&store, delete("mail", [0]));
    store.catch_up().expect("the journal is applied");
    assert_eq!(rows(folder.path()), 2);
    must(&store, Command::Truncate { tube: name("mail") });
    assert_eq!(rows(folder.path()), 0);
    must(&store, put("mail", vec![keyed("ready", b"x")]));
    must(&store, Command::DropTube { tube: name("mail") });
    assert_eq!(rows(folder.path()), 0);
    close(store);
    close(open(folder.path()));
}

/// One statement writes or removes the keys of many tasks: none more and none less.
#[test]
fn keys_of_many_tasks_are_written_together() {
    let freed_at_once = |number: u64| {
        let key = Key::new(&format!("key {number}")).expect("a good key");
        let key = Some(Box::new(KeyRequest::new(key)));
        NewTask { key, ..NewTask::new(Body::new(b"x")) }
    };
    for journal_bytes in [1 << 20, 0] {
        let folder = fast_folder();
        let store = open(folder.path());
        store.set_journal_delay(Duration::MAX);
        store.set_journal_bytes(journal_bytes);
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        let put_all = |numbers: std::ops::Range<u64>| {
            put_now(&store, "mail", numbers.map(freed_at_once).collect());
        };
        // In one transaction with the journal: added, removed with and without neighbours, and added again.
        put_all(0..50);
        must(&store, delete("mail", (3..20).chain([22]).chain(40..50)));
        put_all(45..80);
        must(&store, put("mail", vec![replacing("key 1", b"new")]));
        store.catch_up().expect("the journal is applied");
        let left = (0..3).chain(20..22).chain(23..40).chain(45..80);
        assert_eq!(rows(folder.path()), left.clone().count() as i64);
        drop(store);
        let store = open(folder.path());
        for number in left {
            let id = if number < 45 { number } else { number + 5 };
            assert_eq!(holder(&store, &format!("key {number}")), existing(id, State::Ready));
        }
        assert!(!holder(&store, "key 22").existing);
        close(store);
    }
}

/// A temporary tube has no rows, and its keys are forgotten.
#[test]
fn keys_of_a_temporary_tube_are_not_stored() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions { temporary: true, ..TubeOptions::new(Kind::Fifo) }));
    put_now(&store, "mail", vec![keyed("a", b"x"), keyed("b", b"x")]);
    must(&store, delete("mail", [1]));
    must(&store, put("mail", vec![replacing("a", b"y")]));
    assert_eq!((holder(&store, "a"), holder(&store, "b")), {
        (existing(0, State::Ready), existing(1, State::Done))
    });
    drop(store);
    assert_eq!(rows(folder.path()), 0);
    assert!(!holder(&open(folder.path()), "a").existing);
}

/// The new payload is in the journal only while the database has the earlier one, which was recorded there for
/// the same task: it must not leave memory then.
#[test]
fn a_new_payload_stays_in_memory_until_the_database_has_it() {
    let folder = fast_folder();
    let options = OpenOptions { memory_bytes: 10_000, ..OpenOptions::default() };
    let store = SqliteStore::open(folder.path(), &options).expect("the store opens");
    store.set_journal_delay(Duration::MAX);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    // More than the three quarters that are for new payloads, and less than all.
    let mut tasks: Vec<_> = (0..8).map(|_| NewTask::new(Body::new(&[7; 1000]))).collect();
    tasks.push(keyed("k", &[1; 1000]));
    put_now(&store, "mail", tasks);
    store.catch_up().expect("the journal is applied");
    must(&store, put("mail", vec![replacing("k", &[2; 1000])]));
    assert_eq!(payload(&store, 8), [2; 1000]);
    let spilled = store.payload_bytes();
    assert!(spilled <= 7500 + 1100, "{spilled} bytes: others left memory");
    store.catch_up().expect("the journal is applied");
    must(&store, put("mail", vec![NewTask::new(Body::new(b"x"))]));
    assert_eq!(payload(&store, 8), [2; 1000]);
    drop(store);
    assert_eq!(payload(&open(folder.path()), 8), [2; 1000]);
}

/// A command that ran before the replacement shows the earlier payload, also when that was on disk only.
#[test]
fn an_earlier_command_of_the_batch_shows_the_earlier_payload() {
    let folder = fast_folder();
    let options = OpenOptions { memory_bytes: 0, ..OpenOptions::default() };
    let store = SqliteStore::open(folder.path(), &options).expect("the store opens");
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", vec![keyed("k", b"old")]);
    assert_eq!(store.payload_bytes(), 0, "it is on disk only");
    let batch = vec![
        peek("mail", [0]),
        put("mail", vec![replacing("k", b"new")]),
        peek("mail", [0]),
        put("mail", vec![replacing("k", b"newest")]),
    ];
    let replies = run(&store, batch).expect("readable");
    let shown = |index: usize| match &replies[index] {
        Ok(Reply::Tasks(tasks)) => tasks[0].body.clone().expect("a payload"),
        other => panic!("a peek answered {other:?}"),
    };
    assert_eq!((shown(0), shown(2)), (Body::new(b"old"), Body::new(b"new")));
    assert_eq!(payload(&store, 0), b"newest");
}

/// A lost row of a key would let a task be put twice.
#[test]
fn a_missing_or_changed_key_is_damage() {
    for sql in [
        "DELETE FROM unique_key WHERE key = 2",
        "UPDATE unique_key SET name = 'other' WHERE key = 2",
        "UPDATE unique_key SET until = until + 1 WHERE key = 1",
        "UPDATE unique_key SET unique_for = NULL WHERE key = 2",
        "DELETE FROM unique_key_head",
        "UPDATE unique_key_head SET keys = keys + 1",
    ] {
        let folder = fast_folder();
        let store = open(folder.path());
        work(&store);
        close(store);
        change_database(folder.path(), sql);
        let refused = try_open(folder.path(), false).expect_err("it is damaged");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{sql}: {refused}");
        let store = try_open(folder.path(), true).expect("the intact data can be opened");
        assert_eq!(content_without_kept(&store), ["ready", "replaced", ""], "{sql}");
        assert_eq!(holder(&store, "replaced"), existing(3, State::Ready), "{sql}");
        close(store);
        close(open(folder.path()));
    }
}

/// The keys of the tasks that have not ended; a lost one is that of task 2.
fn content_without_kept(store: &SqliteStore) -> Vec<String> {
    let Reply::Tasks(tasks) = must(store, peek("mail", [2, 3, 5])) else { panic!("tasks") };
    let shown = |(task, lost): (&taskyard_core::Task, &str)| match &task.key {
        Some(key) => key.as_str().to_owned(),
        None => lost.to_owned(),
    };
    tasks.iter().zip(["ready", "", ""]).map(shown).collect()
}

/// Nothing is lost if only the seal is damaged, whether keys are in the database or in the journal.
#[test]
fn keys_are_salvaged() {
    for delay in [Duration::MAX, Duration::ZERO] {
        let folder = fast_folder();
        let store = open(folder.path());
        store.set_journal_delay(delay);
        work(&store);
        for number in 0..2000 {
            put_now(&store, "mail", vec![keyed(&format!("key {number}"), b"x")]);
        }
        must(&store, delete("mail", 100..900));
        drop(store);
        let seal = folder.path().join("taskyard.seal");
        let mut bytes = fs::read(&seal).expect("a seal");
        bytes[0] ^= 1;
        fs::write(&seal, bytes).expect("it can be written");
        let store = try_open(folder.path(), true).expect("the intact data can be opened");
        check_work(&store);
        for number in [0, 93, 500, 1000, 1999] {
            let state = if (94..894).contains(&number) { State::Done } else { State::Ready };
            assert_eq!(holder(&store, &format!("key {number}")), existing(6 + number, state));
        }
        close(store);
        check_work(&open(folder.path()));
    }
}

/// The key of a lost task is free, and the store works.
#[test]
fn the_key_of_a_lost_task_is_free() {
    let folder = fast_folder();
    let store = open(folder.path());
    work(&store);
    close(store);
    change_database(folder.path(), "DELETE FROM task WHERE key = 2");
    let store = try_open(folder.path(), true).expect("the intact data can be opened");
    assert!(!holder(&store, "ready").existing);
    assert_eq!(holder(&store, "deleted"), existing(1, State::Done));
    let Reply::Tasks(left) = must(&store, peek("mail", 0..6)) else { panic!("tasks") };
    assert_eq!(left.iter().map(|task| task.id.0).collect::<Vec<_>>(), [0, 3, 5]);
    close(store);
    assert!(holder(&open(folder.path()), "ready").existing);
}
