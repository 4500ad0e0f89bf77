//! Tests semaphores when commits fail, processes die and rows are damaged.

use std::path::Path;

use rusqlite::Connection;
use taskyard_conformance::block_on;
use taskyard_conformance::semaphores::pair::PAIRS;
use taskyard_core::{
    Body, Command, EnqueueItem, Error, Execute, GrantFinish, GrantItem, Kind, NewTask, Reply,
    SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreKey, SemaphoreReply, Span, TaskId,
    TubeName, TubeOptions,
};
use taskyard_store::OpenError;
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::{NOW, close, create, fast_folder, must, open, random, run, try_open};

const TASKS: u64 = 12;

pub fn key(text: &str) -> SemaphoreKey {
    SemaphoreKey::new(text).expect("a good key")
}

pub fn ask(store: &SqliteStore, command: SemaphoreCommand) -> SemaphoreReply {
    match must(store, Command::Semaphore(command)) {
        Reply::Semaphore(reply) => reply,
        other => panic!("{other:?}"),
    }
}

pub fn configure(text: &str, active: i64) -> SemaphoreCommand {
    let change = Box::new(SemaphoreChange {
        lease: Some(Some(Span::from_secs(60))),
        ..SemaphoreChange::limits(active, active)
    });
    SemaphoreCommand::Configure { key: key(text), change, only_new: false }
}

pub fn enqueue(text: &str, entries: &[(u64, f64)]) -> SemaphoreCommand {
    let item =
        |(task, priority): &(u64, f64)| EnqueueItem { task: TaskId(*task), priority: *priority };
    SemaphoreCommand::Enqueue { key: key(text), entries: entries.iter().map(item).collect() }
}

fn finish(text: &str, task: u64, finish: GrantFinish) -> SemaphoreCommand {
    let items = vec![GrantItem { task: TaskId(task), grant: None, finish }];
    SemaphoreCommand::Finish { key: key(text), items }
}

pub fn fetch(store: &SqliteStore, count: usize) -> Vec<SemaphoreEvent> {
    match ask(store, SemaphoreCommand::Events { key: None, count, wait: Span::ZERO }) {
        SemaphoreReply::Events(events) => events,
        other => panic!("{other:?}"),
    }
}

/// Everything that can be read.
fn everything(store: &SqliteStore) -> Vec<SemaphoreReply> {
    let all = ask(store, SemaphoreCommand::List { key: None });
    let SemaphoreReply::Semaphores(infos) = &all else { panic!("{all:?}") };
    let look = |key: &SemaphoreKey| {
        let tasks = (0..TASKS).map(TaskId).collect();
        ask(store, SemaphoreCommand::Peek { key: key.clone(), tasks })
    };
    let looks: Vec<_> = infos.iter().map(|info| look(&info.key)).collect();
    std::iter::once(all).chain(looks).collect()
}

/// Two semaphores with entries in every state.
fn prepare(folder: &Path) -> SqliteStore {
    let store = open(folder);
    ask(&store, configure("a", 2));
    ask(&store, configure("b", 1));
    ask(&store, enqueue("a", &[(0, 1.0), (1, 2.0), (2, 0.5)]));
    fetch(&store, 1);
    ask(&store, enqueue("a", &[(3, 5.0)]));
    ask(&store, finish("a", 1, GrantFinish::Decline));
    ask(&store, enqueue("b", &[(0, 1.0), (4, 0.0)]));
    store
}

/// A batch that changes every kind of row in every way, and creates a tube.
fn every_change() -> Vec<Command> {
    let semaphores = vec![
        configure("c", 1),
        configure("a", 1),
        enqueue("a", &[(5, 9.0), (2, 7.0)]),
        finish("a", 0, GrantFinish::Release),
        enqueue("a", &[(0, 3.0)]),
        SemaphoreCommand::Events { key: None, count: 10, wait: Span::ZERO },
        finish("b", 0, GrantFinish::Yield),
        enqueue("c", &[(1, 1.0)]),
    ];
    let tube = create("mail", TubeOptions::new(Kind::Fifo));
    std::iter::once(tube).chain(semaphores.into_iter().map(Command::Semaphore)).collect()
}

#[test]
fn a_batch_that_fails_at_any_step_changes_nothing() {
    let mut failures = 0;
    loop {
        let folder = fast_folder();
        let store = prepare(folder.path());
        let before = everything(&store);
        store.set_fault(Some(Fault::Step { after: failures }));
        let replies = run(&store, every_change()).expect("no payloads are loaded");
        if replies.iter().all(Result::is_ok) {
            break;
        }
        for reply in &replies {
            assert!(matches!(reply, Err(Error::Store(_))), "step {failures}: {reply:?}");
        }
        assert_eq!(everything(&store), before, "step {failures} left something behind");
        store.set_fault(None);
        let replies = run(&store, every_change()).expect("no payloads are loaded");
        assert!(replies.iter().all(Result::is_ok), "{replies:?}");
        let after = everything(&store);
        drop(store);
        assert_eq!(everything(&open(folder.path())), after, "after step {failures}");
        failures += 1;
    }
    assert!(failures >= 5, "only {failures} steps could fail");
}

/// Executes commands on a store like a client.
struct StoreClient<'a>(&'a SqliteStore);

impl Execute for StoreClient<'_> {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        run(self.0, commands).expect("no payloads are loaded")
    }
}

/// One of two calls fails at each of its steps, then the other runs, and then the first is repeated. The
/// result is as if the other had run first.
#[test]
fn two_calls_of_which_one_fails_at_every_step() {
    let folder = fast_folder();
    let store = open(folder.path());
    let queue = StoreClient(&store);
    let mut steps = 0;
    for (number, pair) in PAIRS.iter().enumerate() {
        for side in [0, 1] {
            for after in 0.. {
                let name = format!("pair {number} {side} {after}");
                let calls = block_on(pair.prepare(&queue, &name));
                store.set_fault(Some(Fault::Step { after }));
                let mut answers = [Vec::new(), Vec::new()];
                answers[side] = block_on(queue.execute(calls[side].clone()));
                store.set_fault(None);
                let failed =
                    answers[side].iter().all(|reply| matches!(reply, Err(Error::Store(_))));
                answers[1 - side] = block_on(queue.execute(calls[1 - side].clone()));
                if failed {
                    answers[side] = block_on(queue.execute(calls[side].clone()));
                }
                let seen = block_on(pair.observe(&queue, &name, answers));
                let first = if failed { 1 - side } else { side };
                let expected = block_on(pair.serial(NOW, &name, first));
                assert_eq!(seen, expected, "{}: call {side} failed at step {after}", pair.name);
                if !failed {
                    break;
                }
                steps += 1;
            }
        }
    }
    assert!(steps > 3 * PAIRS.len(), "only {steps} steps could fail");
    let before = everything(&store);
    drop(store);
    assert_eq!(everything(&open(folder.path())), before);
}

/// A crash keeps all replies, and no number of an event is issued again.
#[test]
fn replies_survive_a_crash() {
    let folder = fast_folder();
    let mut rng = random();
    let mut store = prepare(folder.path());
    let mut numbers = Vec::new();
    for _ in 0..150 {
        let task = rng.u64(0..TASKS);
        let text = ["a", "b"][rng.usize(0..2)];
        ask(
            &store,
            match rng.u8(0..4) {
                0 | 1 => enqueue(text, &[(task, f64::from(rng.u8(0..9)))]),
                2 => finish(text, task, GrantFinish::Release),
                _ => finish(text, task, GrantFinish::Yield),
            },
        );
        for event in fetch(&store, rng.usize(0..3)) {
            if event.attempt == 1 {
                assert!(!numbers.contains(&event.id), "event {} came twice", event.id);
                numbers.push(event.id);
            }
            if rng.bool() {
                ask(&store, SemaphoreCommand::Acknowledge { events: vec![event.id] });
            }
        }
        if rng.u8(0..5) == 0 {
            let before = everything(&store);
            drop(store);
            store = open(folder.path());
            assert_eq!(everything(&store), before);
        }
    }
}

/// The grants of a dropped semaphore were recorded only with a deleted row. There is none when a new
/// semaphore takes the number in the same batch: after a restart old grants were issued again, and a late
/// release ended a new one.
#[test]
fn no_grant_of_a_dropped_semaphore_is_reused() {
    let drop_semaphore = || SemaphoreCommand::Drop { key: key("a"), force: true };
    let granted = |reply: SemaphoreReply| match reply {
        SemaphoreReply::MemberInfos(standings) => standings[0].grant.expect("it is admitted").0,
        other => panic!("{other:?}"),
    };
    for created_in_the_batch in [false, true] {
        let folder = fast_folder();
        let store = open(folder.path());
        let start = vec![configure("a", 1), enqueue("a", &[(0, 1.0)])];
        let end = if created_in_the_batch {
            vec![drop_semaphore()]
        } else {
            vec![drop_semaphore(), configure("b", 1)]
        };
        let batches =
            if created_in_the_batch { vec![[start, end].concat()] } else { vec![start, end] };
        let mut old = None;
        for batch in batches {
            let commands = batch.into_iter().map(Command::Semaphore).collect();
            for reply in run(&store, commands).expect("no payloads are loaded") {
                match reply.expect("it is done") {
                    Reply::Semaphore(reply @ SemaphoreReply::MemberInfos(_)) => {
                        old = Some(granted(reply));
                    }
                    Reply::Semaphore(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        drop(store);
        let store = open(folder.path());
        ask(&store, configure("a", 1));
        let new = granted(ask(&store, enqueue("a", &[(0, 1.0)])));
        assert!(Some(new) > old && old.is_some(), "{old:?}, then {new}");
    }
}

/// The row of a semaphore reserves numbers of grants, so that a grant need not write it: the rows of many semaphores are in
/// many pages. After a crash the reserved numbers are skipped; a store that was closed goes on with the next one.
#[test]
fn grants_are_reserved_ahead() {
    let folder = fast_folder();
    let mut latest = 0;
    for (round, is_closed) in [true, false, true, false].into_iter().enumerate() {
        let store = open(folder.path());
        if round == 0 {
            ask(&store, configure("a", 1));
        }
        for task in 0..1_500 {
            let grant = match ask(&store, enqueue("a", &[(task, 1.0)])) {
                SemaphoreReply::MemberInfos(standings) => standings[0].grant.expect("it is free").0,
                other => panic!("{other:?}"),
            };
            let may_skip = task == 0 && round == 2;
            assert!(grant > latest && (may_skip || grant == latest + 1), "{latest}, then {grant}");
            latest = grant;
            let on_disk = grant_on_disk(folder.path());
            assert!((grant..grant + 2_000).contains(&on_disk), "{grant}, {on_disk} on disk");
            ask(&store, finish("a", task, GrantFinish::Release));
        }
        if is_closed {
            close(store);
            assert_eq!(grant_on_disk(folder.path()), latest);
        } else {
            drop(store);
        }
    }
}

/// The number up to which the row of the only semaphore allows grants.
fn grant_on_disk(folder: &Path) -> u64 {
    let db = Connection::open(folder.join("taskyard.db")).expect("the database");
    let read = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    db.query_row("SELECT grant_seq FROM semaphore", [], read).expect("a semaphore") as u64
}

/// A failed batch was not written, and with it what it had reserved.
#[test]
fn a_failed_batch_reserves_no_grants() {
    let folder = fast_folder();
    let store = open(folder.path());
    ask(&store, configure("a", 5_000));
    // Until a grant must write the row again.
    let more = |first: u64, count: u64| {
        let entries: Vec<(u64, f64)> = (first..first + count).map(|task| (task, 1.0)).collect();
        Command::Semaphore(enqueue("a", &entries))
    };
    must(&store, more(0, 1_024));
    store.set_fault(Some(Fault::Sync));
    let failed = run(&store, vec![more(2_000, 10)]).expect("no payloads are loaded");
    assert!(failed[0].is_err(), "{failed:?}");
    drop(store);
    let store = open(folder.path());
    let on_disk = grant_on_disk(folder.path());
    must(&store, more(3_000, 1));
    let SemaphoreReply::MemberInfos(standings) = ask(&store, enqueue("a", &[(3_000, 1.0)])) else {
        panic!("no entry");
    };
    let grant = standings[0].grant.expect("it is free").0;
    assert!(grant > 1_024 && grant <= on_disk + 1, "{grant}, {on_disk} on disk before");
}

#[test]
fn damaged_and_missing_rows_are_detected() {
    let damage = [
        "UPDATE semaphore SET active = active + 1 WHERE number = 0",
        "UPDATE semaphore_task SET priority = priority + 1 WHERE seq = 0",
        "UPDATE semaphore_event SET grant_no = grant_no + 1",
        "UPDATE semaphore_head SET next_event = next_event - 1",
        "DELETE FROM semaphore WHERE number = 1",
        "DELETE FROM semaphore_task WHERE seq = 2",
        "DELETE FROM semaphore_event",
        "DELETE FROM semaphore_head",
    ];
    for sql in damage {
        let folder = fast_folder();
        close(prepare(folder.path()));
        let db = Connection::open(folder.path().join("taskyard.db")).expect("opens");
        assert!(db.execute(sql, []).expect("can be damaged") > 0, "{sql}");
        drop(db);
        let refused = try_open(folder.path(), false).map(|_| ()).expect_err(sql);
        assert!(matches!(refused, OpenError::Damaged { .. }), "{sql}: {refused}");
        try_open(folder.path(), true).expect("the intact data opens");
    }
}

/// Opening with --accept-loss lost all semaphores: only tubes and tasks were saved.
#[test]
fn intact_rows_of_semaphores_are_saved() {
    let folder = fast_folder();
    let store = prepare(folder.path());
    let before = everything(&store);
    close(store);
    let db = Connection::open(folder.path().join("taskyard.db")).expect("opens");
    let damage = "UPDATE semaphore_task SET priority = priority + 1 WHERE task_id = 4";
    assert_eq!(db.execute(damage, []).expect("can be damaged"), 1);
    drop(db);
    let store = try_open(folder.path(), true).expect("the intact data opens");
    let after = everything(&store);
    let [SemaphoreReply::Semaphores(was), a_was, _] = &before[..] else { panic!("{before:?}") };
    let [SemaphoreReply::Semaphores(is), a_is, b_is] = &after[..] else { panic!("{after:?}") };
    assert_eq!(is[0], was[0], "none of it was damaged");
    assert_eq!(a_is, a_was);
    let SemaphoreReply::MemberInfos(left) = b_is else { panic!("{b_is:?}") };
    assert_eq!(left.iter().map(|standing| standing.task).collect::<Vec<_>>(), [TaskId(0)]);
    assert_eq!(is[1].events, was[1].events);
    // No grant from before the loss is issued again.
    ask(&store, finish("b", 0, GrantFinish::Release));
    let SemaphoreReply::MemberInfos(new) = ask(&store, enqueue("b", &[(7, 1.0)])) else {
        panic!("standings are wanted");
    };
    assert!(new[0].grant.is_some_and(|grant| grant.0 > 1 << 32), "{new:?}");
}

/// A semaphore whose own row is lost admits no task, but its entries are saved.
#[test]
fn the_entries_of_a_lost_semaphore_are_saved() {
    let folder = fast_folder();
    close(prepare(folder.path()));
    let db = Connection::open(folder.path().join("taskyard.db")).expect("opens");
    let damage = "UPDATE semaphore SET active = active + 1 WHERE number = 0";
    assert_eq!(db.execute(damage, []).expect("can be damaged"), 1);
    drop(db);
    let store = try_open(folder.path(), true).expect("the intact data opens");
    let SemaphoreReply::Semaphores(infos) = ask(&store, SemaphoreCommand::List { key: None })
    else {
        panic!("semaphores are wanted");
    };
    let keys: Vec<&str> = infos.iter().map(|info| info.key.as_str()).collect();
    assert_eq!(keys, ["b", "recovered-0"]);
    assert_eq!(infos[1].options.active, 0);
    assert!(infos[1].waiting + infos[1].acquired + infos[1].revoking >= 3, "{:?}", infos[1]);
}

/// Folders of the first version have no tables for semaphores, and tubes without numbers.
#[test]
fn an_older_folder_gets_its_tables() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    must(&store, put("mail"));
    close(store);
    let db = Connection::open(folder.path().join("taskyard.db")).expect("opens");
    db.execute_batch("DROP VIEW tasks").expect("is there");
    for table in [
        "semaphore_head",
        "semaphore",
        "semaphore_task",
        "semaphore_event",
        "semaphore_floor",
        "clock",
        "unique_key",
        "unique_key_head",
        "tube_pace",
        "schedule",
        "pace_head",
    ] {
        db.execute_batch(&format!("DROP TABLE {table}")).expect("is there");
    }
    let first = include_str!("../../src/migrations/0001.sql");
    let (_, view) = first.split_once("-- For people who open the file.").expect("a view");
    db.execute_batch(view).expect("it is as it was");
    db.execute_batch("ALTER TABLE tube DROP COLUMN semaphore").expect("is there");
    db.execute_batch("ALTER TABLE tube DROP COLUMN queue_num").expect("is there");
    db.execute_batch("ALTER TABLE task DROP COLUMN semaphore_priority").expect("is there");
    for column in ["task DROP COLUMN failures", "task DROP COLUMN finished"] {
        db.execute_batch(&format!("ALTER TABLE {column}")).expect("is there");
    }
    db.execute_batch("ALTER TABLE tube DROP COLUMN keep_done").expect("is there");
    db.execute_batch("ALTER TABLE tube DROP COLUMN keep_done_max").expect("is there");
    db.pragma_update(None, "user_version", 1).expect("can be set");
    drop(db);
    drop(prepare(folder.path()));
    let store = open(folder.path());
    assert_eq!(everything(&store).len(), 3);
    let tubes = must(&store, Command::Tubes { tube: None });
    assert!(matches!(tubes, Reply::Tubes(tubes) if tubes.len() == 1 && tubes[0].takeable == 1));
    let mail = TubeName::new("mail").expect("a name");
    let name = Command::NameTube { tube: mail.clone(), name: mail, queue_num: Some(7) };
    must(&store, name);
    close(store);
    let tubes = must(&open(folder.path()), Command::Tubes { tube: None });
    assert!(
        matches!(tubes, Reply::Tubes(tubes) if tubes[0].options.queue_num == Some(7)),
        "what was made before can have a number"
    );
}

fn put(tube: &str) -> Command {
    let tube = TubeName::new(tube).expect("a name");
    let tasks = vec![NewTask::new(Body::new(&[0xc0]))];
    Command::Put { tube, tasks, wait: Span::ZERO }
}
