//! Tests copies to and from each shared database.

use std::path::Path;
use std::sync::Arc;

use taskyard_conformance::block_on;
use taskyard_core::transfer::{ImportEnd, SemaphoreCopy, TubeCopy};
use taskyard_core::{
    Body, Command, EnqueueItem, Error, Kind, NewTask, Record, Reply, SemaphoreCommand,
    SemaphoreKey, Span, Take, Task, TaskId, TubeName, TubeOptions,
};
use taskyard_store::copy::CopyError;
use taskyard_store::{Export, Exported, Import, MemoryStore, OpenOptions, Store};
use taskyard_store_sqlite::SqliteStore;

use crate::content::{NOW, TASKS, ask, content, copy_all, fill_store, make, name, put, task};
use crate::databases::{TestDatabase, on};
use crate::failing_store::FailingStore;

macro_rules! on_each {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(#[test] fn $case() { super::on(crate::databases::in_postgres(), super::$case) })*
        }
        mod redis {
            $(#[test] fn $case() { super::on(crate::databases::in_redis(), super::$case) })*
        }
        mod tarantool {
            $(#[test] fn $case() { super::on(crate::databases::in_tarantool(), super::$case) })*
        }
    };
}

on_each!(
    content_is_the_same_there_and_back,
    a_copied_tube_works_like_any_other,
    taken_tasks_are_copied_as_after_a_crash,
    a_read_only_opening_creates_nothing,
    a_target_with_other_content_is_refused,
    a_copy_interrupted_at_any_step_resumes,
    bodies_of_every_size_are_copied,
    tasks_of_a_temporary_tube_are_refused,
    a_temporary_tube_is_empty_after_the_last_server_left,
    an_invalid_import_is_refused_as_a_whole,
);

fn open(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder, &OpenOptions::default()).expect("the store opens")
}

/// Content of every kind.
fn source() -> MemoryStore {
    let store = MemoryStore::default();
    fill_store(&store);
    store
}

fn take(store: &dyn Store, tube: &str, count: usize) -> Vec<Task> {
    let (session, lease) = (None, Some(Span::from_secs(60)));
    let take = Take { tube: name(tube), count, session, lease, worker: None, wait: Span::ZERO };
    match ask(store, Command::Take(take)) {
        Reply::Taken(tasks) => tasks,
        other => panic!("{other:?}"),
    }
}

fn refusal(from: &dyn Store, to: &dyn Store) -> String {
    match copy_all(from, to) {
        Err(CopyError::Refused(why)) => why.join("; "),
        other => panic!("{other:?}"),
    }
}

/// Panics if a staging tube is left.
fn check_nothing_staged(store: &dyn Store) {
    for tube in content(store).tubes {
        assert!(!tube.name.as_str().starts_with("taskyard.copy."), "{}", tube.name);
    }
}

fn content_is_the_same_there_and_back(database: &dyn TestDatabase) {
    let (first, last) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = open(first.path());
    fill_store(&from);
    block_on(from.close()).expect("it closes");
    let from = open(first.path());
    let wanted = content(&from);
    let store = database.open();
    assert_eq!(copy_all(&from, &*store).expect("it is copied").tasks, TASKS);
    assert_eq!(content(&*store), wanted);
    database.audit();
    assert!(copy_all(&from, &*store).expect("nothing is to be done").already);
    block_on(store.close()).expect("it closes");
    let store = database.open();
    assert_eq!(content(&*store), wanted, "after all servers left");
    let back = open(last.path());
    assert_eq!(copy_all(&*store, &back).expect("it is copied").tasks, TASKS);
    assert_eq!(content(&back), wanted);
    block_on(store.close()).expect("it closes");
}

/// Both stores behave the same afterwards: takes, puts, the gate, and timers.
fn a_copied_tube_works_like_any_other(database: &dyn TestDatabase) {
    let from = source();
    let store = database.open();
    copy_all(&from, &*store).expect("it is copied");
    for target in [&from as &dyn Store, &*store] {
        ask(target, Command::Kick { tube: name("states"), count: 9 });
        put(target, "empty", vec![task(1)]);
        put(target, "sub", vec![task(4)]);
        put(target, "gated", vec![task(2)]);
    }
    let taken = |store: &dyn Store, tube: &str| {
        let tasks = take(store, tube, 9).into_iter();
        tasks.map(|task| (task.id, task.attempts, task.body)).collect::<Vec<_>>()
    };
    for tube in ["fifo", "states", "sub", "full", "empty", "gated"] {
        assert_eq!(taken(&*store, tube), taken(&from, tube), "{tube}");
    }
    database.audit();
    let later = NOW + Span::from_secs(4000);
    for target in [&from as &dyn Store, &*store] {
        block_on(target.execute(later, vec![Command::Tick { limit: 1000, seed: 0 }]));
    }
    for tube in ["fifo", "states", "sub", "full", "empty", "gated"] {
        assert_eq!(taken(&*store, tube), taken(&from, tube), "{tube} later");
    }
    database.audit();
}

fn taken_tasks_are_copied_as_after_a_crash(database: &dyn TestDatabase) {
    let store = database.open();
    fill_store(&*store);
    let taken = take(&*store, "full", 2);
    let before = content(&*store).peeked;
    // Without becoming a server, which would release all taken tasks as the first one.
    let reader = database.open_read_only();
    let to = MemoryStore::default();
    copy_all(&*reader, &to).expect("it is copied");
    block_on(reader.close()).expect("it closes");
    assert_eq!(content(&*store).peeked, before, "the source is unchanged");
    let peek = Command::Peek { tube: name("full"), ids: vec![taken[0].id] };
    let Reply::Tasks(tasks) = ask(&to, peek) else { panic!("tasks") };
    assert_eq!((tasks[0].attempts, tasks[0].previous_start), (1, Some(NOW)));
    // An old lease is not valid in the copy.
    let old: Vec<_> = taken.iter().filter_map(|task| task.lease).collect();
    let taken_again = take(&to, "full", 9);
    assert_eq!(taken_again.len(), 5);
    assert!(taken_again.iter().all(|task| task.lease.is_some_and(|lease| !old.contains(&lease))));
}

/// A read-only opening of an unused database finds nothing and creates nothing.
fn a_read_only_opening_creates_nothing(database: &dyn TestDatabase) {
    let reader = database.open_read_only();
    let to = MemoryStore::default();
    assert_eq!(copy_all(&*reader, &to).expect("there is nothing").tasks, 0);
    assert!(content(&*reader).tubes.is_empty());
    block_on(reader.close()).expect("it closes");
    let store = database.open();
    assert!(content(&*store).tubes.is_empty());
}

fn a_target_with_other_content_is_refused(database: &dyn TestDatabase) {
    let from = source();
    let store = database.open();
    fill_store(&*store);
    put(&*store, "sub", vec![task(8)]);
    let (key, entries) = (
        SemaphoreKey::new("own").unwrap(),
        Vec::from([EnqueueItem { task: TaskId(77), priority: 0.0 }]),
    );
    ask(&*store, Command::Semaphore(SemaphoreCommand::Enqueue { key, entries }));
    let why = refusal(&from, &*store);
    assert!(why.contains("tube 'sub'") && why.contains("semaphore 'own'"), "{why}");
    check_nothing_staged(&*store);
}

fn a_copy_interrupted_at_any_step_resumes(database: &dyn TestDatabase) {
    let from = source();
    make(&from, "many", TubeOptions::new(Kind::FifoTtl));
    (0..12).for_each(|page| put(&from, "many", (0..1000).map(|n| task(page * 1000 + n)).collect()));
    let wanted = content(&from);
    let store = database.open();
    // Each copy resumes where the one before was interrupted: six small tubes, and one that is copied in
    // three steps.
    for step in 0..10 {
        let interrupted = copy_all(&from, &FailingStore::new(Arc::clone(&store), step.min(1)));
        assert!(interrupted.is_err(), "{interrupted:?}");
        let asked = Command::Tubes { tube: Some(name("many")) };
        let seen = block_on(store.execute(NOW, vec![asked])).replies.remove(0);
        assert_eq!(
            seen,
            Err(Error::TubeNotFound(name("many"))),
            "nothing is visible before the end"
        );
    }
    let copied = copy_all(&from, &*store).expect("it resumes");
    assert_eq!((copied.tasks, copied.resumed), (TASKS + 12_000, TASKS + 12_000));
    assert_eq!(content(&*store), wanted);
    check_nothing_staged(&*store);
    database.audit();
}

/// Some stores keep large bodies separately, and pages of a copy also end by bytes.
fn bodies_of_every_size_are_copied(database: &dyn TestDatabase) {
    let from = MemoryStore::default();
    make(&from, "bodies", TubeOptions::new(Kind::Fifo));
    let bytes = |size: usize| -> Vec<u8> { (0..size).map(|at| (at % 251) as u8).collect() };
    let sizes = [0, 1, 8191, 8192, 8193, 524_288, 600_000, 1 << 20];
    let meta = b"\x81\xa1k\xa1v";
    for size in sizes {
        let plain = Body::new(&bytes(size));
        let with_meta = Body::with_meta(&bytes(size), meta);
        put(&from, "bodies", vec![NewTask::new(plain), NewTask::new(with_meta)]);
    }
    let store = database.open();
    copy_all(&from, &*store).expect("it is copied");
    assert!(content(&*store) == content(&from), "the bodies are the same");
    let back = MemoryStore::default();
    copy_all(&*store, &back).expect("it is copied");
    assert!(content(&back) == content(&from), "and back");
    ask(&*store, Command::Delete { tube: name("bodies"), ids: vec![TaskId(15)], show: false });
    database.audit();
}

/// The copy itself was a server of the target, and when the last one leaves, temporary tubes are emptied:
/// their tasks were lost as soon as the copy reported that it had copied them.
fn tasks_of_a_temporary_tube_are_refused(database: &dyn TestDatabase) {
    let from = MemoryStore::default();
    let passing = TubeOptions { temporary: true, ..TubeOptions::new(Kind::Fifo) };
    make(&from, "passing", passing);
    let store = database.open();
    copy_all(&from, &*store).expect("an empty one is copied");
    ask(&*store, Command::DropTube { tube: name("passing") });
    put(&from, "passing", vec![task(0)]);
    let why = refusal(&from, &*store);
    assert!(why.contains("'passing' is temporary"), "{why}");
}

/// Also in a database that empties such a tube at its next use, which a read-only opening does not do.
fn a_temporary_tube_is_empty_after_the_last_server_left(database: &dyn TestDatabase) {
    let store = database.open();
    let passing = TubeOptions { temporary: true, ..TubeOptions::new(Kind::Fifo) };
    make(&*store, "passing", passing);
    make(&*store, "staying", TubeOptions::new(Kind::Fifo));
    for tube in ["passing", "staying"] {
        put(&*store, tube, vec![task(0), task(1)]);
    }
    take(&*store, "staying", 1);
    block_on(store.close()).expect("it closes");
    let reader = database.open_read_only();
    let to = MemoryStore::default();
    assert_eq!(copy_all(&*reader, &to).expect("it is copied").tasks, 2);
    let copied = content(&to);
    assert_eq!(copied.tubes.len(), 2);
    let attempts = copied.peeked.values().map(|task| task.attempts).collect::<Vec<_>>();
    assert_eq!(attempts, [1, 0], "the taken task was released once");
}

/// The plan prevents all of these requests; a store must not rely on it.
fn an_invalid_import_is_refused_as_a_whole(database: &dyn TestDatabase) {
    let from = source();
    let store = database.open();
    let staging = name("taskyard.copy.0");
    let import = |part: Import| block_on(store.import(NOW, part));
    let page = |tube: &str| match block_on(from.export(Export::Tubes)) {
        Ok(Exported::Tubes(tubes, _)) => {
            let copy = tubes.into_iter().find(|copy| copy.record.name == name(tube));
            let copy = copy.expect("the tube is there");
            let (from_id, tube) = (TaskId(0), copy.number);
            let wanted = Export::Tasks { tube, from: from_id, count: 99, bytes: 1 << 20 };
            match block_on(from.export(wanted)) {
                Ok(Exported::Tasks(records)) => (copy, records),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    let (copy, records) = page("full");
    assert!(import(Import::Tasks(staging.clone(), records.clone())).is_err(), "no such tube");
    make(&*store, staging.as_str(), TubeOptions::new(Kind::LimFifoTtl));
    import(Import::Tasks(staging.clone(), records.clone())).expect("they are imported");
    assert!(import(Import::Tasks(staging.clone(), records.clone())).is_err(), "they exist already");
    // A new task and an existing one.
    let mixed = vec![Record { id: TaskId(9), ..records[0].clone() }, records[1].clone()];
    assert!(import(Import::Tasks(staging.clone(), mixed)).is_err(), "ids grow");
    assert_eq!(content(&*store).records.len(), records.len());
    let before = content(&*store);
    let end = |staged: &TubeName, copy: &TubeCopy, semaphores: Vec<SemaphoreCopy>| {
        let tubes = vec![(staged.clone(), copy.clone())];
        import(Import::End(ImportEnd { schedules: Vec::new(), tubes, semaphores, next_lease: 0 }))
    };
    assert!(
        end(&name("other"), &copy, Vec::new()).is_err(),
        "there is no staging tube of that name"
    );
    make(&*store, "full", TubeOptions::new(Kind::Fifo));
    assert!(end(&staging, &copy, Vec::new()).is_err(), "the name is taken");
    ask(&*store, Command::DropTube { tube: name("full") });
    let Ok(Exported::Semaphores(all)) = block_on(from.export(Export::Semaphores)) else {
        panic!("semaphores")
    };
    let own: Vec<_> = all.into_iter().filter(|one| one.record.key.as_str() == "own").collect();
    let configure = SemaphoreCommand::Configure {
        key: own[0].record.key.clone(),
        change: Box::default(),
        only_new: true,
    };
    ask(&*store, Command::Semaphore(configure));
    assert!(end(&staging, &copy, own).is_err(), "the semaphore exists");
    let after = content(&*store);
    assert_eq!((after.tubes, after.records), (before.tubes, before.records), "nothing was done");
    end(&staging, &copy, Vec::new()).expect("it fits");
    assert_eq!(content(&*store).peeked.len(), records.len());
    database.audit();
}
