//! What must be so wherever a copy goes to or comes from.

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
use crate::places::{Place, on};
use crate::weak::Weak;

macro_rules! on_each {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(#[test] fn $case() { super::on(crate::places::in_postgres(), super::$case) })*
        }
        mod redis {
            $(#[test] fn $case() { super::on(crate::places::in_redis(), super::$case) })*
        }
        mod tarantool {
            $(#[test] fn $case() { super::on(crate::places::in_tarantool(), super::$case) })*
        }
    };
}

on_each!(
    there_and_back,
    a_copy_is_used_like_any_other_tube,
    what_is_taken_comes_over_as_after_a_crash,
    whoever_only_looks_makes_nothing,
    one_in_use_is_refused,
    broken_off_after_any_step_it_goes_on,
    bodies_of_every_size_come_whole,
    tasks_of_a_temporary_tube_would_be_lost,
    a_temporary_tube_that_everybody_left_is_empty,
    what_does_not_fit_is_refused_as_a_whole,
);

fn open(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder, &OpenOptions::default()).expect("the store opens")
}

/// Something of everything.
fn source() -> MemoryStore {
    let store = MemoryStore::default();
    fill_store(&store);
    store
}

fn take(store: &dyn Store, tube: &str, count: usize) -> Vec<Task> {
    let (session, lease) = (None, Some(Span::from_secs(60)));
    let take = Take { tube: name(tube), count, session, lease, wait: Span::ZERO };
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

/// Panics if something is left of the way.
fn check_nothing_staged(store: &dyn Store) {
    for tube in content(store).tubes {
        assert!(!tube.name.as_str().starts_with("taskyard.copy."), "{}", tube.name);
    }
}

fn there_and_back(place: &dyn Place) {
    let (first, last) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = open(first.path());
    fill_store(&from);
    block_on(from.close()).expect("it closes");
    let from = open(first.path());
    let wanted = content(&from);
    let store = place.open();
    assert_eq!(copy_all(&from, &*store).expect("it is copied").tasks, TASKS);
    assert_eq!(content(&*store), wanted);
    place.audit();
    assert!(copy_all(&from, &*store).expect("nothing is to be done").already);
    block_on(store.close()).expect("it closes");
    let store = place.open();
    assert_eq!(content(&*store), wanted, "after everybody was gone");
    let back = open(last.path());
    assert_eq!(copy_all(&*store, &back).expect("it is copied").tasks, TASKS);
    assert_eq!(content(&back), wanted);
    block_on(store.close()).expect("it closes");
}

/// Both go on alike: what is taken, what is put, what the gate lets in, what time does.
fn a_copy_is_used_like_any_other_tube(place: &dyn Place) {
    let from = source();
    let store = place.open();
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
    place.audit();
    let later = NOW + Span::from_secs(4000);
    for target in [&from as &dyn Store, &*store] {
        block_on(target.execute(later, vec![Command::Tick { limit: 1000 }]));
    }
    for tube in ["fifo", "states", "sub", "full", "empty", "gated"] {
        assert_eq!(taken(&*store, tube), taken(&from, tube), "{tube} later");
    }
    place.audit();
}

fn what_is_taken_comes_over_as_after_a_crash(place: &dyn Place) {
    let store = place.open();
    fill_store(&*store);
    let taken = take(&*store, "full", 2);
    let before = content(&*store).peeked;
    // Without becoming a server, which as the first one would give everything back.
    let look = place.look();
    let to = MemoryStore::default();
    copy_all(&*look, &to).expect("it is copied");
    block_on(look.close()).expect("it closes");
    assert_eq!(content(&*store).peeked, before, "the source is as it was");
    let peek = Command::Peek { tube: name("full"), ids: vec![taken[0].id] };
    let Reply::Tasks(tasks) = ask(&to, peek) else { panic!("tasks") };
    assert_eq!((tasks[0].attempts, tasks[0].previous_start), (1, Some(NOW)));
    // Who still has the old lease has no say in the copy.
    let old: Vec<_> = taken.iter().filter_map(|task| task.lease).collect();
    let anew = take(&to, "full", 9);
    assert_eq!(anew.len(), 5);
    assert!(anew.iter().all(|task| task.lease.is_some_and(|lease| !old.contains(&lease))));
}

/// One that nobody has used yet is empty to a look, and after it.
fn whoever_only_looks_makes_nothing(place: &dyn Place) {
    let look = place.look();
    let to = MemoryStore::default();
    assert_eq!(copy_all(&*look, &to).expect("there is nothing").tasks, 0);
    assert!(content(&*look).tubes.is_empty());
    block_on(look.close()).expect("it closes");
    let store = place.open();
    assert!(content(&*store).tubes.is_empty());
}

fn one_in_use_is_refused(place: &dyn Place) {
    let from = source();
    let store = place.open();
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

fn broken_off_after_any_step_it_goes_on(place: &dyn Place) {
    let from = source();
    make(&from, "many", TubeOptions::new(Kind::FifoTtl));
    (0..12).for_each(|page| put(&from, "many", (0..1000).map(|n| task(page * 1000 + n)).collect()));
    let wanted = content(&from);
    let store = place.open();
    // Each goes on from where the one before was broken off: five small tubes, and one that comes in three steps.
    for step in 0..9 {
        let broken = copy_all(&from, &Weak::new(Arc::clone(&store), step.min(1)));
        assert!(broken.is_err(), "{broken:?}");
        let asked = Command::Tubes { tube: Some(name("many")) };
        let seen = block_on(store.execute(NOW, vec![asked])).replies.remove(0);
        assert_eq!(seen, Err(Error::TubeNotFound(name("many"))), "nothing is seen before the end");
    }
    let copied = copy_all(&from, &*store).expect("it goes on");
    assert_eq!((copied.tasks, copied.resumed), (TASKS + 12_000, TASKS + 12_000));
    assert_eq!(content(&*store), wanted);
    check_nothing_staged(&*store);
    place.audit();
}

/// Larger ones lie apart in some stores, and pages end by bytes as well.
fn bodies_of_every_size_come_whole(place: &dyn Place) {
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
    let store = place.open();
    copy_all(&from, &*store).expect("it is copied");
    assert!(content(&*store) == content(&from), "the bodies are the same");
    let back = MemoryStore::default();
    copy_all(&*store, &back).expect("it is copied");
    assert!(content(&back) == content(&from), "and back");
    ask(&*store, Command::Delete { tube: name("bodies"), ids: vec![TaskId(15)], show: false });
    place.audit();
}

/// The copy itself was a server of the target, and when the last one leaves, temporary tubes are emptied: tasks that had
/// come there were gone as soon as the copy said that it had copied them.
fn tasks_of_a_temporary_tube_would_be_lost(place: &dyn Place) {
    let from = MemoryStore::default();
    let passing = TubeOptions { temporary: true, ..TubeOptions::new(Kind::Fifo) };
    make(&from, "passing", passing);
    let store = place.open();
    copy_all(&from, &*store).expect("an empty one comes");
    ask(&*store, Command::DropTube { tube: name("passing") });
    put(&from, "passing", vec![task(0)]);
    let why = refusal(&from, &*store);
    assert!(why.contains("'passing' is temporary"), "{why}");
}

/// Also where it is emptied only when somebody next asks it, which a look does not do.
fn a_temporary_tube_that_everybody_left_is_empty(place: &dyn Place) {
    let store = place.open();
    let passing = TubeOptions { temporary: true, ..TubeOptions::new(Kind::Fifo) };
    make(&*store, "passing", passing);
    make(&*store, "staying", TubeOptions::new(Kind::Fifo));
    for tube in ["passing", "staying"] {
        put(&*store, tube, vec![task(0), task(1)]);
    }
    take(&*store, "staying", 1);
    block_on(store.close()).expect("it closes");
    let look = place.look();
    let to = MemoryStore::default();
    assert_eq!(copy_all(&*look, &to).expect("it is copied").tasks, 2);
    let copied = content(&to);
    assert_eq!(copied.tubes.len(), 2);
    let attempts = copied.peeked.values().map(|task| task.attempts).collect::<Vec<_>>();
    assert_eq!(attempts, [1, 0], "what was taken came back once");
}

/// The plan sees to it that none of this is asked; a store must not rely on it.
fn what_does_not_fit_is_refused_as_a_whole(place: &dyn Place) {
    let from = source();
    let store = place.open();
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
    import(Import::Tasks(staging.clone(), records.clone())).expect("they come");
    assert!(import(Import::Tasks(staging.clone(), records.clone())).is_err(), "they are there");
    // One that is new and one that is not.
    let mixed = vec![Record { id: TaskId(9), ..records[0].clone() }, records[1].clone()];
    assert!(import(Import::Tasks(staging.clone(), mixed)).is_err(), "ids grow");
    assert_eq!(content(&*store).records.len(), records.len());
    let before = content(&*store);
    let end = |came: &TubeName, copy: &TubeCopy, semaphores: Vec<SemaphoreCopy>| {
        let tubes = vec![(came.clone(), copy.clone())];
        import(Import::End(ImportEnd { tubes, semaphores, next_lease: 0 }))
    };
    assert!(end(&name("other"), &copy, Vec::new()).is_err(), "nothing came under that name");
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
    assert!(end(&staging, &copy, own).is_err(), "the semaphore is there");
    let after = content(&*store);
    assert_eq!((after.tubes, after.records), (before.tubes, before.records), "nothing was done");
    end(&staging, &copy, Vec::new()).expect("it fits");
    assert_eq!(content(&*store).peeked.len(), records.len());
    place.audit();
}
