//! Tests retry policies, rate limits and schedules on disk: restarts, crashes, upgrades, damage and copies.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use taskyard_core::transfer::ImportEnd;
use taskyard_core::{
    AfterFailure, Body, CatchUp, Command, Fail, Finish, Kind, NewTask, Overlap, RateLimit, Reply,
    RetryPolicy, ScheduleCommand, ScheduleName, ScheduleReply, Span, StoredSchedule, Task, TaskId,
    Timestamp, TubeChange, TubeOptions,
};
use taskyard_store::{Export, Exported, Import, OpenError, Store};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::{
    NOW, ask, block_on, close, content, copy, create, fast_folder, finish, finish_now, must, name,
    open, put_now, run_at, take, take_now, try_open, tubes,
};

const SECOND: Span = Span::from_secs(1);
const RETRY: RetryPolicy = RetryPolicy { retry_lost: true, ..RetryPolicy::DEFAULT };
const RATE: RateLimit = RateLimit { count: 2, per: SECOND, burst: 5 };

fn task() -> NewTask {
    NewTask::new(Body::new(b"task"))
}

pub fn schedule(text: &str) -> StoredSchedule {
    StoredSchedule {
        name: schedule_name(text),
        tube: name("mail"),
        template: NewTask { pri: Some(3), ttl: Some(SECOND), ..task() },
        timing: "every 5m".into(),
        catch_up: CatchUp::Last,
        overlap: Overlap::Allow,
        until: None,
        paused: false,
        next: Some(NOW),
        last: None,
        fired: 0,
        skipped: 0,
    }
}

fn schedule_name(text: &str) -> ScheduleName {
    ScheduleName::new(text).expect("a good name")
}

fn command(command: ScheduleCommand) -> Command {
    Command::Schedule(Box::new(command))
}

pub fn set(schedule: StoredSchedule) -> Command {
    command(ScheduleCommand::Set { schedule, only_new: false, keep_paused: false })
}

fn fire(text: &str, puts: usize) -> Command {
    let (expected, next) = (NOW, Some(NOW + SECOND));
    let (name, puts) = (schedule_name(text), vec![task(); puts]);
    command(ScheduleCommand::Fire { name, expected, next, puts, skipped: 2 })
}

fn schedules(store: &SqliteStore) -> Vec<StoredSchedule> {
    match must(store, command(ScheduleCommand::List { after: None, limit: 100 })) {
        Reply::Schedule(ScheduleReply::Schedules(all)) => all,
        other => panic!("{other:?}"),
    }
}

/// Tasks that a take delivers at this moment.
fn taken_at(store: &SqliteStore, now: Timestamp) -> Vec<Task> {
    let replies = run_at(store, now, vec![take("mail", 100)]).expect("payloads can be read");
    match replies.into_iter().next() {
        Some(Ok(Reply::Taken(tasks))) => tasks,
        other => panic!("{other:?}"),
    }
}

/// Everything that must survive: options of tubes, schedules, and the attempts of tasks.
fn described(store: &SqliteStore) -> String {
    let options: Vec<_> = tubes(store).into_iter().map(|tube| (tube.name, tube.options)).collect();
    let tasks = content(store, 100).expect("payloads can be read");
    let attempts: Vec<_> =
        tasks.iter().map(|(key, task)| (key, task.attempts_max, task.attempts)).collect();
    format!("{options:#?}\n{attempts:#?}\n{:#?}", schedules(store))
}

/// A tube with everything, one without, and schedules; three of five tokens are used.
fn prepare(store: &SqliteStore) {
    let options = TubeOptions {
        retry: Some(Box::new(RETRY)),
        rate: Some(Box::new(RATE)),
        ..TubeOptions::new(Kind::FifoTtl)
    };
    must(store, create("mail", options));
    must(store, create("plain", TubeOptions::new(Kind::FifoTtl)));
    let own = NewTask { attempts_max: Some(3), ..task() };
    put_now(store, "mail", vec![own.clone(), task(), task(), task(), task(), own, task(), task()]);
    let tasks = take_now(store, "mail", 3);
    let fail = |then| Finish::Fail(Box::new(Fail { error: "no route".into(), then }));
    finish_now(
        store,
        "mail",
        &tasks[0],
        fail(AfterFailure::Policy { seed: 7, default_delay: Span::ZERO }),
    );
    finish_now(store, "mail", &tasks[1], Finish::Ack);
    for text in ["a", "b", "gone"] {
        must(store, set(schedule(text)));
    }
    must(store, fire("a", 2));
    must(store, command(ScheduleCommand::Pause { name: schedule_name("b"), paused: true }));
    must(store, command(ScheduleCommand::Remove { name: schedule_name("gone") }));
}

/// Two tokens are left, and two more are added in a second.
fn check_tokens(store: &SqliteStore) {
    assert_eq!(taken_at(store, NOW).len(), 2);
    assert_eq!(taken_at(store, NOW).len(), 0);
    assert_eq!(taken_at(store, NOW + SECOND).len(), 2);
}

/// With the journal and without, after a stop and after a crash.
#[test]
fn all_is_there_after_a_restart() {
    for by_crash in [true, false] {
        for journal in [true, false] {
            let folder = fast_folder();
            let store = open(folder.path());
            if journal {
                store.set_journal_delay(Duration::MAX);
            } else {
                store.set_journal_bytes(0);
            }
            prepare(&store);
            let before = described(&store);
            assert!(before.contains("retry_lost: true") && before.contains("fired: 2"), "{before}");
            if by_crash {
                drop(store);
            } else {
                close(store);
            }
            let store = open(folder.path());
            // The third delivery was released, by the crash without counting it.
            let own = must(&store, crate::fixture::peek("mail", [0, 5]));
            let Reply::Tasks(own) = own else { panic!("{own:?}") };
            assert!(own.iter().all(|task| task.attempts_max == Some(3)), "{own:?}");
            if by_crash {
                assert_eq!(described(&store), before);
            }
            check_tokens(&store);
            close(store);
        }
    }
}

/// The journal must not be needed for tubes that change in other ways, and a new tube must not get the pace of
/// a dropped one.
#[test]
fn a_dropped_tube_leaves_nothing() {
    let folder = fast_folder();
    let store = open(folder.path());
    prepare(&store);
    let change = TubeChange { retry: Some(None), ..TubeChange::default() };
    must(&store, Command::AlterTube { tube: name("mail"), change });
    drop(store);
    let store = open(folder.path());
    assert_eq!(tubes(&store)[0].options.retry, None);
    assert_eq!(tubes(&store)[0].options.rate.as_deref(), Some(&RATE));
    must(&store, Command::DropTube { tube: name("mail") });
    must(&store, create("new", TubeOptions::new(Kind::FifoTtl)));
    drop(store);
    let store = open(folder.path());
    assert!(tubes(&store).iter().all(|tube| tube.options.rate.is_none()), "{:?}", tubes(&store));
    assert_eq!(schedules(&store).len(), 2, "schedules survive their tube");
    close(store);
    let db = Connection::open(folder.path().join("taskyard.db")).expect("it opens");
    let rows: i64 =
        db.query_row("SELECT count(*) FROM tube_pace", [], |row| row.get(0)).expect("a count");
    assert_eq!(rows, 0);
}

/// A fire is on disk with its tasks or not at all.
#[test]
fn a_fire_that_fails_changes_nothing() {
    for journal in [true, false] {
        let folder = fast_folder();
        let store = open(folder.path());
        if !journal {
            store.set_journal_bytes(0);
        }
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        must(&store, set(schedule("a")));
        let before = described(&store);
        let mut failures = 0;
        loop {
            store.set_fault(Some(Fault::Step { after: failures }));
            if ask(&store, fire("a", 2)).is_ok() {
                break;
            }
            store.set_fault(None);
            assert_eq!(described(&store), before, "step {failures}");
            failures += 1;
        }
        assert!(failures >= 2, "{failures}");
        let after = described(&store);
        assert!(after.contains("fired: 2"), "{after}");
        drop(store);
        assert_eq!(described(&open(folder.path())), after);
    }
}

/// Nothing of it is written for tubes and tasks that do not use it.
#[test]
fn plain_tubes_and_tasks_have_no_rows() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", vec![task(); 20]);
    let taken = take_now(&store, "mail", 2);
    must(&store, finish("mail", &taken[0], Finish::Ack));
    close(store);
    let db = Connection::open(folder.path().join("taskyard.db")).expect("it opens");
    for sql in [
        "SELECT count(*) FROM tube_pace",
        "SELECT count(*) FROM schedule",
        "SELECT count(*) FROM pace_head",
        "SELECT count(*) FROM task WHERE state > 5",
    ] {
        assert_eq!(db.query_row(sql, [], |row| row.get(0)), Ok(0), "{sql}");
    }
}

/// Rows that vanish or change are noticed.
#[test]
fn damage_is_detected() {
    let folder = fast_folder();
    let store = open(folder.path());
    prepare(&store);
    close(store);
    for sql in [
        "DELETE FROM tube_pace",
        "DELETE FROM schedule WHERE name = 'a'",
        "DELETE FROM pace_head",
        "UPDATE tube_pace SET level = level + 1",
        "UPDATE schedule SET name = 'c' WHERE name = 'a'",
        "UPDATE schedule SET data = x'00' WHERE name = 'a'",
        "UPDATE task SET state = state + 256",
        "UPDATE tube_pace SET number = 9",
    ] {
        let scratch = fast_folder();
        let damaged = copy(folder.path(), scratch.path().join("copy"));
        change_rows(&damaged, sql);
        let refused = try_open(&damaged, false).expect_err(sql);
        assert!(matches!(refused, OpenError::Damaged { .. }), "{sql}: {refused}");
        let store = try_open(&damaged, true).expect("the intact data opens");
        assert_eq!(tubes(&store).len(), 2, "{sql}");
        close(store);
        close(open(&damaged));
    }
}

fn change_rows(folder: &Path, sql: &str) {
    let db = Connection::open(folder.join("taskyard.db")).expect("the database opens");
    db.execute_batch(sql).expect("the rows can be changed");
}

/// A lost seal costs nothing, with everything in the database or a part in the journal.
#[test]
fn a_salvage_keeps_all() {
    for in_journal in [true, false] {
        let folder = fast_folder();
        let store = open(folder.path());
        if in_journal {
            store.set_journal_delay(Duration::MAX);
        }
        prepare(&store);
        if !in_journal {
            store.catch_up().expect("the database can be written");
        }
        let before = described(&store);
        drop(store);
        fs::write(folder.path().join("taskyard.seal"), b"damaged").expect("it can be written");
        let store = try_open(folder.path(), true).expect("the intact data opens");
        assert_eq!(described(&store), before, "{in_journal}");
        check_tokens(&store);
    }
}

/// The texts of the formats before retry policies, rate limits and schedules.
const EARLIER: [&str; 11] = [
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

/// Turns the database of a folder into one of the format before.
fn downgrade(folder: &Path) {
    let (new, old) = (folder.join("taskyard.db"), folder.join("older"));
    let db = Connection::open(&old).expect("a new file");
    EARLIER.iter().for_each(|sql| db.execute_batch(sql).expect("a format"));
    db.pragma_update(None, "application_id", 0x7961_7264).expect("a pragma");
    db.pragma_update(None, "user_version", 11).expect("a pragma");
    db.execute("ATTACH ? AS new", [new.to_str()]).expect("it opens");
    for table in ["store", "tube", "task"] {
        db.execute_batch(&format!("INSERT INTO {table} SELECT * FROM new.{table}"))
            .expect("the rows fit");
    }
    db.execute_batch("DETACH new").expect("it closes");
    drop(db);
    _ = fs::remove_file(folder.join("taskyard.db-wal"));
    _ = fs::remove_file(folder.join("taskyard.db-shm"));
    fs::rename(old, new).expect("it can be replaced");
}

/// After a stop, and after a crash with batches in the journal only.
#[test]
fn a_folder_of_an_earlier_format_is_upgraded() {
    for by_crash in [true, false] {
        let folder = fast_folder();
        let store = open(folder.path());
        store.set_journal_delay(Duration::MAX);
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        put_now(&store, "mail", vec![task(); 9]);
        let before = described(&store);
        if by_crash {
            drop(store);
        } else {
            close(store);
        }
        downgrade(folder.path());
        let store = open(folder.path());
        assert_eq!(described(&store), before, "{by_crash}");
        let change = TubeChange { rate: Some(Some(Box::new(RATE))), ..TubeChange::default() };
        must(&store, Command::AlterTube { tube: name("mail"), change });
        must(&store, set(schedule("a")));
        assert_eq!(taken_at(&store, NOW).len(), 5);
        drop(store);
        let store = open(folder.path());
        assert_eq!((schedules(&store).len(), taken_at(&store, NOW).len()), (1, 0));
    }
}

/// A copy has the same options, tokens, attempts and schedules, also after a crash.
#[test]
fn a_copy_has_all() {
    let (folder, other) = (fast_folder(), fast_folder());
    let (store, to) = (open(folder.path()), open(other.path()));
    prepare(&store);
    // Both have clocks that were set, in different ways.
    block_on(store.set_wall_ahead(NOW, 5_000_000)).expect("it is written");
    block_on(to.set_wall_ahead(NOW, 5_000_000)).expect("it is written");
    let Ok(Exported::Tubes(copies, next_lease)) = block_on(store.export(Export::Tubes)) else {
        panic!("tubes are wanted");
    };
    let Ok(Exported::Schedules(schedules)) = block_on(store.export(Export::Schedules)) else {
        panic!("schedules are wanted");
    };
    let mut pairs = Vec::new();
    for copy in copies {
        let came = name(&format!("import-{}", copy.number));
        must(&to, create(came.as_str(), TubeOptions::new(copy.record.options.kind)));
        let wanted =
            Export::Tasks { tube: copy.number, from: TaskId(0), count: 99, bytes: 1 << 20 };
        let Ok(Exported::Tasks(records)) = block_on(store.export(wanted)) else {
            panic!("tasks are wanted");
        };
        block_on(to.import(NOW, Import::Tasks(came.clone(), records))).expect("imported");
        pairs.push((came, copy));
    }
    let end = ImportEnd { tubes: pairs, schedules, next_lease, ..ImportEnd::default() };
    block_on(to.import(NOW, Import::End(end))).expect("imported");
    assert_eq!(described(&to), described(&store));
    drop(to);
    let to = open(other.path());
    assert_eq!(described(&to), described(&store));
    check_tokens(&to);
}
