//! Tests backups of a store that is used: what they contain, what ends them, and what a restored folder is like.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use taskyard_core::{
    Body, Error, Finish, Kind, NewTask, RateLimit, RetryPolicy, Span, TaskId, TubeOptions,
};
use taskyard_store::{Export, Exported, OpenError, Store, StoreBackup};
use taskyard_store_sqlite::SqliteStore;
use taskyard_store_sqlite::backup::{BackupError, BackupParser, RestoreError, check, restore};
use tempfile::TempDir;

use crate::fixture::{
    NOW, block_on, close, copy, create, delete, fast_folder, finish, finish_now, must, open,
    put_now, put_one, take_now,
};
use crate::{keys, pace, semaphores};

/// Adds tubes, tasks in all states, keys, semaphores and schedules.
pub fn fill(store: &SqliteStore) {
    let options = TubeOptions {
        retry: Some(Box::new(RetryPolicy::DEFAULT)),
        rate: Some(Box::new(RateLimit { count: 2, per: Span::from_secs(1), burst: 5 })),
        ..TubeOptions::new(Kind::FifoTtl)
    };
    must(store, create("mail", options));
    let keep_done = Some(Span::from_secs(3600));
    must(store, create("done", TubeOptions { keep_done, ..TubeOptions::new(Kind::Fifo) }));
    must(store, create("sub", TubeOptions::new(Kind::UtubeTtl)));
    must(store, create("gone", TubeOptions { temporary: true, ..TubeOptions::new(Kind::Fifo) }));
    let body = |bytes: usize| NewTask::new(Body::with_meta(&vec![0xc0; bytes], b"\x81\xa1k\xa1v"));
    let delayed = NewTask { delay: Some(Span::from_secs(600)), ..body(10) };
    put_now(store, "mail", vec![delayed, body(5), body(300_000), body(0), body(7), body(8)]);
    put_now(store, "mail", vec![keys::keyed("one", b"1"), keys::keyed("two", b"2")]);
    for end in [Finish::Bury, Finish::fail("no route to host", Some(Span::ZERO))] {
        let task = take_now(store, "mail", 1).remove(0);
        finish_now(store, "mail", &task, end);
    }
    must(store, delete("mail", [7]));
    put_now(store, "done", vec![body(3), body(3), body(3)]);
    for end in [Finish::Ack, Finish::ack_with(b"\xa6result")] {
        let task = take_now(store, "done", 1).remove(0);
        finish_now(store, "done", &task, end);
    }
    let of = |key: &str| NewTask { subqueue: Some(key.into()), ..body(4) };
    put_now(store, "sub", vec![of("a"), of("a"), of("b")]);
    semaphores::ask(store, semaphores::configure("gpu", 2));
    semaphores::ask(store, semaphores::enqueue("gpu", &[(1, 2.0), (2, 1.0), (3, 0.0)]));
    must(store, pace::set(pace::schedule("nightly")));
    block_on(store.set_wall_ahead(NOW, 5_000_000)).expect("it is written");
}

/// Everything that can be read, but for the numbers that go on later in a restored store.
fn exported(store: &SqliteStore) -> Vec<String> {
    let export = |request| block_on(store.export(request)).expect("it is read");
    let Exported::Tubes(tubes, _) = export(Export::Tubes) else { panic!("tubes are wanted") };
    let mut all = Vec::new();
    for tube in &tubes {
        let from = TaskId(0);
        let wanted = Export::Tasks { tube: tube.number, from, count: 10_000, bytes: 1 << 30 };
        all.push(format!("{:?}", export(wanted)));
        all.push(format!("{:?}", export(Export::EndedKeys { tube: tube.number, from, count: 99 })));
    }
    all.push(format!("{tubes:?}"));
    all.push(format!("{:?}", export(Export::Schedules)));
    let Exported::Semaphores(mut found) = export(Export::Semaphores) else {
        panic!("semaphores are wanted")
    };
    found.iter_mut().for_each(|semaphore| semaphore.record.grant_seq = 0);
    all.push(format!("{found:?}"));
    all
}

pub fn begin(store: &SqliteStore) -> Box<dyn StoreBackup> {
    store.backup(NOW).expect("the backup begins")
}

/// The ids of all tasks of the first tube.
fn ids(store: &SqliteStore) -> BTreeSet<u64> {
    let wanted = Export::Tasks { tube: 0, from: TaskId(0), count: 1_000_000, bytes: 1 << 30 };
    match block_on(store.export(wanted)) {
        Ok(Exported::Tasks(tasks)) => tasks.iter().map(|task| task.id.0).collect(),
        other => panic!("{other:?}"),
    }
}

/// All bytes of a backup that is not ended early.
pub fn read(mut backup: Box<dyn StoreBackup>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(part) = backup.next_part() {
        assert_eq!(part.failure, None);
        bytes.extend(part.bytes);
    }
    bytes
}

/// Restores a backup into a new folder and opens it.
fn restored(bytes: &[u8], now: i64) -> (TempDir, SqliteStore) {
    let folder = fast_folder();
    let target = folder.path().join("data");
    restore(bytes, &target, now, &mut |_, _| ()).expect("the backup is restored");
    let store = open(&target);
    (folder, store)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a name"));
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_restored_folder_has_everything_of_its_moment() {
    let folder = fast_folder();
    let store = open(folder.path());
    // The newest batches are in the journal only.
    store.set_journal_delay(Duration::MAX);
    fill(&store);
    let backup = begin(&store);
    let reference = open(&copy(folder.path(), folder.path().join("copy")));
    // What follows is not in it.
    must(&store, put_one("mail", b"late"));
    must(&store, delete("mail", 0..4));
    must(&store, create("late", TubeOptions::new(Kind::Fifo)));
    let bytes = read(backup);
    let header = check(&bytes[..], &mut |_, _| ()).expect("it is intact");
    assert_eq!((header.tasks, header.tubes), (7 + 3 + 3, 4));
    assert_eq!(header.taken_at, NOW.as_micros() + 5_000_000, "wall time");
    let (_guard, again) = restored(&bytes, 0);
    assert_eq!(exported(&again), exported(&reference));
    // It is a store like any other.
    must(&again, put_one("mail", b"new"));
    close(again);
    close(reference);
    close(store);
}

/// Consumers compare the numbers of leases, and the server went on after the backup, so a restored store must not give the same
/// numbers again. The same holds for grants.
#[test]
fn leases_and_grants_go_on_above_those_given_after_the_backup() {
    let folder = fast_folder();
    let store = open(folder.path());
    fill(&store);
    let bytes = read(begin(&store));
    put_now(&store, "done", vec![NewTask::new(Body::new(b"x")); 2]);
    let late = take_now(&store, "done", 3).remove(2).lease.expect("a lease");
    let now = 1_800_000_000_000_000;
    let (_guard, again) = restored(&bytes, now);
    let next = take_now(&again, "done", 1).remove(0).lease.expect("a lease");
    assert!(next > late && next.0 >= now as u64, "{next} after {late}");
    let sequence = |store: &SqliteStore| match block_on(store.export(Export::Semaphores)) {
        Ok(Exported::Semaphores(all)) => all[0].record.grant_seq,
        other => panic!("{other:?}"),
    };
    let since = (now - NOW.as_micros() - 5_000_000) as u64;
    // The rows of the backup reserve some grants ahead.
    let (first, next) = (sequence(&store) + since, sequence(&again));
    assert!((first..first + 2_000).contains(&next), "{next} instead of {first}");
}

/// The server went on after the backup, so event ids and the grants of semaphores that were created since then were given again, and
/// so were leases if the clock had been set back.
#[test]
fn numbers_of_later_semaphores_and_of_events_are_not_given_again() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    put_now(&store, "mail", vec![NewTask::new(Body::new(b"x"))]);
    let bytes = read(begin(&store));
    let events = |store: &SqliteStore| {
        semaphores::ask(store, semaphores::configure("late", 1));
        semaphores::ask(store, semaphores::enqueue("late", &[(1, 1.0)]));
        let found = semaphores::fetch(store, 9);
        found.iter().map(|event| (event.id.0, event.grant.0)).collect::<Vec<_>>()
    };
    let late = events(&store);
    let (_guard, again) = restored(&bytes, 0);
    let next = events(&again);
    assert_eq!((late.len(), next.len()), (1, 1), "{late:?} {next:?}");
    assert!(next[0].0 >= late[0].0 + 1_000_000 && next[0].1 >= late[0].1 + 1_000_000, "{next:?}");
    let lease = take_now(&again, "mail", 1).remove(0).lease.expect("a lease");
    assert!(lease.0 >= NOW.as_micros() as u64, "{lease}");
}

/// Two restores of one folder both worked in the folder beside it, and the result could have files of both.
#[test]
fn one_restore_of_a_folder_runs_at_a_time() {
    let source = fast_folder();
    let store = open(source.path());
    let bytes = read(begin(&store));
    let folder = fast_folder();
    let target = folder.path().join("data");
    let lock = std::fs::File::create(folder.path().join("data.restoring.lock")).expect("a file");
    lock.lock().expect("it is free");
    let refused = restore(&bytes[..], &target, 0, &mut |_, _| ()).expect_err("another one runs");
    assert!(matches!(refused, RestoreError::Folder(OpenError::InUse(_))), "{refused}");
    drop(lock);
    restore(&bytes[..], &target, 0, &mut |_, _| ()).expect("nothing else runs");
    assert_eq!(names(folder.path()), ["data"]);
}

/// Clients put and acknowledge tasks during the backup. What was acknowledged before it began is in it, or gone from it.
#[test]
fn a_backup_is_consistent_while_clients_work() {
    let folder = fast_folder();
    let store = &open(folder.path());
    must(store, create("mail", TubeOptions::new(Kind::Fifo)));
    let tasks = |count| vec![NewTask::new(Body::new(&[0xc0; 300])); count];
    for _ in 0..10 {
        put_now(store, "mail", tasks(1_000));
    }
    let stop = &AtomicBool::new(false);
    let bytes = thread::scope(|scope| {
        let client = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                put_now(store, "mail", tasks(3));
                for task in take_now(store, "mail", 3) {
                    must(store, finish("mail", &task, Finish::Ack));
                }
            }
        });
        let mut rounds = Vec::new();
        for _ in 0..5 {
            let put = put_now(store, "mail", tasks(5));
            let task = take_now(store, "mail", 1).remove(0);
            must(store, finish("mail", &task, Finish::Ack));
            rounds.push((put, task.id, read(begin(store))));
        }
        stop.store(true, Ordering::Relaxed);
        client.join().expect("the client works");
        rounds
    });
    for (put, acked, bytes) in bytes {
        let (_guard, again) = restored(&bytes, 0);
        let found = ids(&again);
        assert!(put.iter().all(|id| found.contains(id)), "{put:?} was put before");
        assert!(!found.contains(&acked.0), "{acked} was acknowledged before");
        // Tasks are taken in the order of their ids, one client at a time for each.
        let first = *found.first().expect("tasks");
        assert!(found.len() as u64 + 8 >= found.last().expect("tasks") + 1 - first, "a hole");
    }
}

/// A read transaction keeps the write-ahead log, and a client that stops to read its backup would let it grow until writes are
/// refused.
#[test]
fn a_long_log_ends_a_backup_that_nothing_reads() {
    let folder = fast_folder();
    let store = open(folder.path());
    store.set_journal_bytes(0);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    store.set_log_pages_max(400);
    store.set_checkpoint_pages(50);
    let mut backup = begin(&store);
    backup.next_part().expect("the header");
    for _ in 0..1_000 {
        must(&store, put_one("mail", &[0xc0; 2_000]));
    }
    let failure = std::iter::from_fn(|| backup.next_part()).find_map(|part| part.failure);
    let failure = failure.expect("it was ended").to_string();
    assert!(failure.contains("the write-ahead log became too long"), "{failure}");
    assert!(backup.next_part().is_none());
    drop(backup);
    let (_guard, again) = restored(&read(begin(&store)), 0);
    assert_eq!(ids(&again).len(), 1_000);
}

#[test]
fn the_store_ends_a_backup_when_it_closes() {
    let folder = fast_folder();
    let store = open(folder.path());
    fill(&store);
    let mut backup = begin(&store);
    let mut bytes = backup.next_part().expect("the header").bytes;
    block_on(store.close()).expect("the store closes");
    loop {
        let part = backup.next_part().expect("the reason");
        bytes.extend(part.bytes);
        if let Some(failure) = part.failure {
            assert_eq!(failure, Error::ShuttingDown);
            break;
        }
    }
    match check(&bytes[..], &mut |_, _| ()) {
        Err(RestoreError::Backup(BackupError::Failed(why))) => {
            assert!(why.contains("shutting down"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.backup(NOW), Err(Error::ShuttingDown)));
    drop((backup, store));
    close(open(folder.path()));
}

#[test]
fn one_backup_runs_at_a_time() {
    let folder = fast_folder();
    let store = open(folder.path());
    let first = begin(&store);
    assert!(matches!(store.backup(NOW), Err(Error::Overloaded(_))));
    drop(first);
    read(begin(&store));
}

/// A backup with a damaged payload would be found out when it is needed.
#[test]
fn a_damaged_payload_is_reported_when_the_backup_is_made() {
    let folder = fast_folder();
    let store = open(folder.path());
    fill(&store);
    store.catch_up().expect("it is written");
    let db = rusqlite::Connection::open(folder.path().join("taskyard.db")).expect("it opens");
    let sql = "UPDATE task SET data = x'c1' WHERE key & 0x1FFFFFFFFFFFF = 5 AND key >> 49 = 0";
    assert_eq!(db.execute(sql, []), Ok(1));
    drop(db);
    let mut backup = begin(&store);
    let failure = std::iter::from_fn(|| backup.next_part()).find_map(|part| part.failure);
    let failure = failure.expect("the damage is found").to_string();
    assert!(failure.contains("the payload of task 5 of tube number 0 is damaged"), "{failure}");
    drop(backup);
    must(&store, delete("mail", [5]));
    read(begin(&store));
}

/// Only payloads were verified, so a backup of a damaged store replaced the last good one, and no restore accepted it.
#[test]
fn every_damaged_row_and_every_missing_one_ends_the_backup() {
    let folder = fast_folder();
    let store = open(folder.path());
    fill(&store);
    store.catch_up().expect("it is written");
    let db = rusqlite::Connection::open(folder.path().join("taskyard.db")).expect("it opens");
    let columns = [
        ("task", "created"),
        ("tube", "next_id"),
        ("unique_key", "sum"),
        ("unique_key_head", "keys"),
        ("semaphore", "grant_seq"),
        ("semaphore_task", "enqueued"),
        ("semaphore_event", "attempts"),
        ("semaphore_head", "next_event"),
        ("tube_pace", "rate_per"),
        ("schedule", "sum"),
        ("pace_head", "schedules"),
        ("clock", "wall_ahead"),
        ("store", "lease_ceiling"),
    ];
    let failure = || match store.backup(NOW) {
        Err(refused) => refused.to_string(),
        Ok(mut backup) => {
            let failure = std::iter::from_fn(|| backup.next_part()).find_map(|part| part.failure);
            failure.map_or_else(String::new, |failure| failure.to_string())
        }
    };
    for (table, column) in columns {
        let change = |by: &str| {
            db.execute(&format!("UPDATE {table} SET {column} = {column} {by}"), []).expect(table)
        };
        assert!(change("+ 1") > 0, "{table} has rows");
        let found = failure();
        assert!(found.contains("the store is damaged"), "{table}: {found}");
        change("- 1");
    }
    for table in ["task", "unique_key", "semaphore_task", "schedule"] {
        let move_all = |from: &str, to: &str| {
            db.execute_batch(&format!("INSERT INTO {to} SELECT * FROM {from}; DELETE FROM {from}"))
        };
        db.execute_batch(&format!("CREATE TEMP TABLE other AS SELECT * FROM {table} LIMIT 0"))
            .expect(table);
        move_all(table, "other").expect(table);
        let found = failure();
        assert!(found.contains("are not as many as there should be"), "{table}: {found}");
        move_all("other", table).expect(table);
        db.execute_batch("DROP TABLE other").expect(table);
    }
    // The statistics of SQLite are not a part of the store.
    db.execute_batch("ANALYZE").expect("statistics");
    drop(db);
    let (_guard, again) = restored(&read(begin(&store)), 0);
    assert_eq!(ids(&again).len(), 7);
    close(store);
    close(open(folder.path()));
}

#[test]
fn only_new_and_empty_folders_are_restored() {
    let source = fast_folder();
    let store = open(source.path());
    fill(&store);
    let bytes = read(begin(&store));
    close(store);
    let folder = fast_folder();
    let (target, work) = (folder.path().join("data"), folder.path().join("data.restoring"));
    let restore = |folder: &Path| restore(&bytes[..], folder, 0, &mut |_, _| ());
    let refused = |folder: &Path, found: &str| {
        let refusal = restore(folder).expect_err("it is used").to_string();
        assert!(refusal.contains("is not empty") && refusal.contains(found), "{refusal}");
    };
    std::fs::create_dir(&target).expect("a folder");
    std::fs::write(target.join("notes"), "").expect("a file");
    refused(&target, "notes");
    std::fs::remove_file(target.join("notes")).expect("it is there");
    // What a killed restore left is removed, files of others are not.
    std::fs::create_dir(&work).expect("a folder");
    std::fs::write(work.join("taskyard.db.new"), "half").expect("a file");
    std::fs::write(work.join("notes"), "").expect("a file");
    refused(&target, "notes");
    std::fs::remove_file(work.join("notes")).expect("it is still there");
    restore(&target).expect("the folder is empty");
    assert_eq!(names(folder.path()), ["data"]);
    refused(&target, "taskyard.");
    let again = open(&target);
    assert_eq!(ids(&again).len(), 7);
    assert!(matches!(restore(Path::new("/")), Err(RestoreError::Used { .. })));
    let mut parser = BackupParser::default();
    parser.push(&bytes);
    while parser.next_block().expect("it is intact").is_some() {}
    assert_eq!(parser.tasks(), 13);
}
