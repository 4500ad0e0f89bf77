//! Tests a wall clock that is set: the times on disk and after a restart.

use taskyard_core::{
    Body, Command, Kind, NewTask, Reply, Span, State, Task, TaskId, Timestamp, TubeOptions,
};
use taskyard_store::{Export, Exported, Import, Store, StoreTime};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::{
    NOW, block_on, close, create, fast_folder, must, name, open, peek, put, run_at, try_open,
};

const HOUR: Span = Span::from_secs(3600);
const MINUTE: Span = Span::from_secs(60);

/// A delayed task, one with a start time, and one that expires in two hours.
fn prepare(store: &SqliteStore) {
    must(store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    let task = || NewTask::new(Body::new(b"task"));
    let delayed = NewTask { delay: Some(HOUR), ..task() };
    let scheduled = NewTask { at: Some(NOW + HOUR), ttl: Some(MINUTE), ..task() };
    let expiring = NewTask { ttl: Some(HOUR + HOUR), ..task() };
    must(store, put("mail", vec![delayed, scheduled, expiring]));
}

fn tasks(store: &SqliteStore, now: Timestamp) -> Vec<Task> {
    let replies =
        run_at(store, now, vec![Command::Tick { limit: 100, seed: 0 }, peek("mail", 0..3)]);
    match replies.expect("payloads can be read").pop() {
        Some(Ok(Reply::Tasks(tasks))) => tasks,
        other => panic!("{other:?}"),
    }
}

fn set_wall_ahead(store: &SqliteStore, micros: i64) {
    block_on(store.set_wall_ahead(NOW, micros)).expect("it is written");
}

/// Times on disk were wall times: after a clock change and a restart delays were over and tasks expired.
#[test]
fn after_a_restart_a_clock_change_is_not_elapsed_time() {
    for by_crash in [true, false] {
        for is_direct in [true, false] {
            let folder = fast_folder();
            let store = open(folder.path());
            if is_direct {
                store.set_journal_bytes(0);
            }
            prepare(&store);
            set_wall_ahead(&store, HOUR.as_micros());
            let before = tasks(&store, NOW + MINUTE);
            if by_crash {
                drop(store)
            } else {
                close(store)
            }
            let store = open(folder.path());
            let known =
                StoreTime { wall_ahead: HOUR.as_micros(), latest: Some(NOW), earliest: Some(NOW) };
            assert_eq!(store.time(), Some(known));
            assert_eq!(tasks(&store, NOW + MINUTE), before);
            // The clock change reached the start time; for the others only a minute passed.
            let states: Vec<State> = before.iter().map(|task| task.state).collect();
            assert_eq!(states[0], State::Delayed);
            assert!(states.len() == 2 || states[1] == State::Ready, "{states:?}");
            assert_eq!(before[0].due, Some(NOW + HOUR + HOUR), "wall time is shown");
            close(store);
        }
    }
}

#[test]
fn a_start_time_follows_the_wall_clock_after_a_restart() {
    let folder = fast_folder();
    let store = open(folder.path());
    prepare(&store);
    set_wall_ahead(&store, MINUTE.as_micros());
    drop(store);
    let store = open(folder.path());
    let shown = |store: &SqliteStore| {
        let tasks = tasks(store, NOW);
        (tasks[1].state, tasks[1].due, tasks[1].expires)
    };
    let expected = (State::Delayed, Some(NOW + HOUR), NOW + HOUR + MINUTE);
    assert_eq!(shown(&store), expected);
    set_wall_ahead(&store, -HOUR.as_micros());
    assert_eq!(shown(&store), expected, "it follows the wall clock");
    assert_eq!(
        tasks(&store, NOW)[0].due,
        Some(NOW),
        "an hour later, as the wall clock will show it"
    );
    drop(store);
    assert_eq!(shown(&open(folder.path())), expected);
}

/// Tasks that are saved from a damaged folder keep their times.
#[test]
fn a_salvage_keeps_the_clock_change() {
    let folder = fast_folder();
    let store = open(folder.path());
    prepare(&store);
    set_wall_ahead(&store, HOUR.as_micros());
    let before = tasks(&store, NOW);
    close(store);
    std::fs::write(folder.path().join("taskyard.seal"), b"damaged").expect("it can be written");
    let store = try_open(folder.path(), true).expect("the intact data opens");
    assert_eq!(store.time().map(|time| time.wall_ahead), Some(HOUR.as_micros()));
    assert_eq!(tasks(&store, NOW), before);
}

/// The times that are copied to another store are wall times.
#[test]
fn a_copy_has_the_same_times() {
    let (folder, other) = (fast_folder(), fast_folder());
    let (store, to) = (open(folder.path()), open(other.path()));
    prepare(&store);
    set_wall_ahead(&store, HOUR.as_micros());
    set_wall_ahead(&to, -MINUTE.as_micros());
    let wanted = Export::Tasks { tube: 0, from: TaskId(0), count: 10, bytes: 1 << 20 };
    let Ok(Exported::Tasks(records)) = block_on(store.export(wanted)) else {
        panic!("tasks are wanted");
    };
    must(&to, create("mail", TubeOptions::new(Kind::FifoTtl)));
    block_on(to.import(NOW, Import::Tasks(name("mail"), records))).expect("they are imported");
    let shown = |store: &SqliteStore| match must(store, peek("mail", 0..3)) {
        Reply::Tasks(tasks) => tasks,
        other => panic!("{other:?}"),
    };
    assert_eq!(shown(&to), shown(&store));
    assert_eq!(shown(&to)[1].due, Some(NOW + HOUR));
    drop(to);
    assert_eq!(shown(&open(other.path())), shown(&store));
}

/// A change of the clock that cannot be written has no effect.
#[test]
fn a_clock_change_that_fails() {
    let folder = fast_folder();
    let store = open(folder.path());
    prepare(&store);
    let before = tasks(&store, NOW);
    for after in 0..3 {
        store.set_fault(Some(Fault::Step { after }));
        block_on(store.set_wall_ahead(NOW, HOUR.as_micros())).expect_err("it fails");
        store.set_fault(None);
        assert_eq!(tasks(&store, NOW), before);
    }
    must(&store, Command::Truncate { tube: name("mail") });
    drop(store);
    assert_eq!(open(folder.path()).time().map(|time| time.wall_ahead), Some(0));
}
