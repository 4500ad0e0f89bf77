//! Tests copies between embedded stores.

use std::path::Path;
use std::sync::Arc;

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, Error, Key, KeyRequest, Kind, NewTask, OnConflict, Placed, Reply, Span, State, TaskId,
    TubeOptions,
};
use taskyard_store::copy::{CopyError, copy, plan};
use taskyard_store::{MemoryStore, OpenOptions, Store};
use taskyard_store_sqlite::SqliteStore;

use crate::content::{NOW, TASKS, ask, content, copy_all, fill_store, make, name, put, task};
use crate::failing_store::FailingStore;

fn open(folder: &Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(folder, &OpenOptions::default()).expect("the store opens"))
}

/// A folder with content of every kind, as after a stop.
fn source() -> (tempfile::TempDir, Arc<SqliteStore>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    fill_store(&*store);
    block_on(store.close()).expect("it closes");
    let store = open(folder.path());
    (folder, store)
}

#[test]
fn a_copy_to_another_folder_has_the_same_content() {
    let (_folder, from) = source();
    let folder = tempfile::tempdir().expect("a folder");
    let to = open(folder.path());
    let copied = copy_all(&*from, &*to).expect("it is copied");
    assert_eq!((copied.tasks, copied.resumed, copied.already), (TASKS, 0, false));
    let wanted = content(&*from);
    assert_eq!(wanted.peeked.len() as u64, TASKS);
    assert!(!wanted.places.is_empty() && !wanted.events.is_empty());
    assert_eq!(content(&*to), wanted);
    block_on(to.close()).expect("it closes");
    let to = open(folder.path());
    assert_eq!(content(&*to), wanted, "and after a restart");
    // The next id is the same as in the source.
    put(&*to, "empty", vec![task(1)]);
    let peek = Command::Peek { tube: name("empty"), ids: vec![TaskId(1)] };
    assert!(matches!(ask(&*to, peek), Reply::Tasks(tasks) if tasks.len() == 1));
}

#[test]
fn a_complete_copy_is_not_repeated() {
    let (_folder, from) = source();
    let to = MemoryStore::default();
    copy_all(&*from, &to).expect("it is copied");
    let wanted = content(&to);
    let again = copy_all(&*from, &to).expect("there is nothing to do");
    assert!(again.already);
    assert_eq!(content(&to), wanted);
    put(&to, "sub", vec![task(9)]);
    let CopyError::Refused(why) = copy_all(&*from, &to).expect_err("it was used since") else {
        panic!("it is refused");
    };
    assert!(why.iter().any(|why| why.contains("tube 'sub'")), "{why:?}");
}

// Two new tubes with equally many puts were taken for copies: the message said that everything is there
// already, and an operator who then removed the source lost its tasks.
#[test]
fn equally_many_other_tasks_are_not_a_copy() {
    let (from, to) = (MemoryStore::default(), MemoryStore::default());
    for (store, first) in [(&from, 0), (&to, 100)] {
        make(store, "mail", TubeOptions::new(Kind::Fifo));
        put(store, "mail", (first..first + 3).map(task).collect());
        // Tubes of worker managers are not part of the content.
        make(store, "taskyard.manager.seat", TubeOptions::new(Kind::Fifo));
        put(store, "taskyard.manager.seat", vec![task(first)]);
    }
    let before = content(&to);
    let CopyError::Refused(why) = copy_all(&from, &to).expect_err("it has other tasks") else {
        panic!("it is refused");
    };
    assert!(why.len() == 1 && why[0].contains("tube 'mail'"), "{why:?}");
    assert_eq!(content(&to), before);
}

#[test]
fn after_a_failure_at_any_step_the_next_copy_resumes() {
    let (_folder, from) = source();
    make(&*from, "many", TubeOptions::new(Kind::Fifo));
    for page in 0..6 {
        put(&*from, "many", (0..2_000).map(|number| task(page * 2_000 + number)).collect());
    }
    let wanted = content(&*from);
    for steps in 0.. {
        let folder = tempfile::tempdir().expect("a folder");
        let target = open(folder.path());
        let first = copy_all(&*from, &FailingStore::new(target.clone(), steps));
        if first.is_ok() {
            assert!(steps > 6, "there are several tubes, one with several pages");
            break;
        }
        for tube in ["fifo", "many", "gated"] {
            let asked = Command::Tubes { tube: Some(name(tube)) };
            let seen = block_on(target.execute(NOW, vec![asked])).replies.remove(0);
            assert_eq!(
                seen,
                Err(Error::TubeNotFound(name(tube))),
                "nothing is visible before the end"
            );
        }
        block_on(target.close()).expect("it closes");
        let target = open(folder.path());
        let copied = copy_all(&*from, &*target).expect("it resumes");
        assert_eq!(copied.tasks, TASKS + 12_000);
        assert_eq!(copied.resumed > 0, steps > 0, "after {steps} steps");
        assert_eq!(content(&*target), wanted, "after {steps} steps");
    }
}

#[test]
fn tasks_copied_before_the_source_changed_are_copied_again() {
    let (_folder, from) = source();
    let to: Arc<MemoryStore> = Arc::default();
    copy_all(&*from, &FailingStore::new(to.clone(), 4)).expect_err("it fails");
    // The same number of tasks as before, and none of them new.
    ask(&*from, Command::Kick { tube: name("states"), count: 1 });
    copy_all(&*from, &*to).expect("it is copied");
    assert_eq!(content(&*to), content(&*from));
}

#[test]
fn a_source_in_use_is_detected() {
    let (_folder, from) = source();
    let to = MemoryStore::default();
    let changed = block_on(async {
        let plan = plan(&*from, &to, &[]).await.expect("it can be copied");
        put(&*from, "sub", vec![task(7)]);
        copy(&*from, &to, NOW, &plan, |_| ()).await
    });
    assert!(
        matches!(&changed, Err(CopyError::Changed(what)) if what.contains("sub")),
        "{changed:?}"
    );
    copy_all(&*from, &to).expect("it is copied");
    assert_eq!(content(&to), content(&*from));
}

#[test]
fn unsupported_content_is_refused_before_anything_is_written() {
    let (_folder, from) = source();
    let refused = |to: &dyn Store| match copy_all(&*from, to) {
        Err(CopyError::Refused(why)) => why.join("; "),
        other => panic!("{other:?}"),
    };
    let target: Arc<MemoryStore> = Arc::default();
    let mut limited = FailingStore::new(target.clone(), usize::MAX);
    limited.capabilities.semaphores = false;
    let why = refused(&limited);
    assert!(why.contains("'own'") && why.contains("'gate'"), "{why}");
    limited.capabilities.imports = false;
    assert!(refused(&limited).contains("memory cannot store tasks"));
    make(&*target, "other", TubeOptions { queue_num: Some(12), ..TubeOptions::new(Kind::Fifo) });
    make(&*target, "full", TubeOptions::new(Kind::Fifo));
    let why = refused(&*target);
    assert!(why.contains("'states' has queue number 12, which tube 'other'"), "{why}");
    assert!(why.contains("the target already has a tube 'full'"), "{why}");
    assert_eq!(content(&*target).tubes.len(), 2, "nothing was written");
    let passing = TubeOptions { temporary: true, ..TubeOptions::new(Kind::Fifo) };
    make(&*from, "passing", passing);
    put(&*from, "passing", vec![task(0)]);
    let why = refused(&MemoryStore::default());
    assert!(why.contains("'passing' is temporary"), "{why}");
}

#[test]
fn selected_tubes_are_copied_with_their_semaphores() {
    let (_folder, from) = source();
    let of = |tubes: &[&str], to: &dyn Store| {
        let only: Vec<_> = tubes.iter().map(|tube| name(tube)).collect();
        block_on(async {
            let plan = plan(&*from, to, &only).await?;
            copy(&*from, to, NOW, &plan, |_| ()).await
        })
    };
    let to = MemoryStore::default();
    of(&["gated", "fifo"], &to).expect("they are copied");
    let (all, some) = (content(&*from), content(&to));
    assert_eq!((some.tubes.len(), some.semaphores.len()), (2, 1));
    assert!(some.peeked.iter().all(|(at, task)| all.peeked[at] == *task));
    assert!(matches!(of(&["nothing"], &to), Err(CopyError::NoTube(_))));
    let gate = some.semaphores[0].0.clone();
    let second = TubeOptions { semaphore: Some(gate), ..TubeOptions::new(Kind::Fifo) };
    make(&*from, "second", second);
    let incomplete = of(&["gated"], &MemoryStore::default());
    assert!(matches!(&incomplete, Err(CopyError::Refused(why)) if why[0].contains("'second'")));
}

/// A task whose key stays held for a minute after its end, and which replaces a waiting task with that key.
fn keyed(key: &str, number: u64) -> NewTask {
    let mut request = KeyRequest::new(Key::new(key).expect("a good key"));
    request.held.unique_for = Span::from_secs(60);
    request.on_conflict = OnConflict::Replace;
    NewTask { key: Some(Box::new(request)), ..task(number) }
}

/// A tube with keys of living, replaced, done and deleted tasks.
fn put_keyed(store: &dyn Store) {
    let keep_done = Some(Span::from_secs(3600));
    make(store, "keyed", TubeOptions { keep_done, ..TubeOptions::new(Kind::FifoTtl) });
    put(store, "keyed", vec![keyed("done", 0), keyed("deleted", 1), keyed("replaced", 2), task(3)]);
    let take = crate::content::take(store, "keyed", 1);
    assert_eq!(take[0].id, TaskId(0));
    crate::content::finish(store, "keyed", 0, taskyard_core::Finish::Ack);
    ask(store, Command::Delete { tube: name("keyed"), ids: vec![TaskId(1)], show: false });
    put(store, "keyed", vec![keyed("replaced", 4)]);
}

#[track_caller]
fn check_keyed(store: &dyn Store) {
    let held = |key| {
        let tasks = vec![keyed(key, 9)];
        match ask(store, Command::Put { tube: name("keyed"), tasks, wait: Span::ZERO }) {
            Reply::Put(placed) => placed[0],
            other => panic!("{other:?}"),
        }
    };
    let existing = |id, state| Placed { id: TaskId(id), state, existing: true };
    assert_eq!(held("done"), existing(0, State::Done));
    assert_eq!(held("deleted"), existing(1, State::Done));
    assert_eq!(held("replaced"), existing(2, State::Ready));
}

/// From memory to a folder, to another folder and back.
#[test]
fn keys_are_copied() {
    let from: Arc<MemoryStore> = Arc::default();
    put_keyed(&*from);
    let wanted = content(&*from);
    let shown: Vec<_> = wanted.peeked.values().map(|task| task.key.is_some()).collect();
    assert_eq!(shown, [true, true, false]);
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let first = open(folders[0].path());
    copy_all(&*from, &*first).expect("it is copied");
    block_on(first.close()).expect("it closes");
    let first = open(folders[0].path());
    assert_eq!(content(&*first), wanted);
    let second = open(folders[1].path());
    copy_all(&*first, &*second).expect("it is copied");
    assert!(copy_all(&*first, &*second).expect("there is nothing to do").already);
    let last = MemoryStore::default();
    copy_all(&*second, &last).expect("it is copied");
    assert_eq!(content(&last), wanted);
    for store in [&*from as &dyn Store, &*first, &*second, &last] {
        check_keyed(store);
    }
}

/// The source went on after an interrupted copy that had the keys of ended tasks: one of them is held by a new task.
#[test]
fn a_copy_with_outdated_keys_is_made_again() {
    let from: Arc<MemoryStore> = Arc::default();
    put_keyed(&*from);
    let to: Arc<MemoryStore> = Arc::default();
    copy_all(&*from, &FailingStore::new(to.clone(), 2)).expect_err("the last step fails");
    let later = NOW + Span::from_secs(61);
    let tasks = vec![keyed("deleted", 7)];
    let again = Command::Put { tube: name("keyed"), tasks, wait: Span::ZERO };
    let placed = block_on(from.execute(later, vec![again])).replies.remove(0);
    assert!(matches!(placed, Ok(Reply::Put(placed)) if !placed[0].existing));
    copy_all(&*from, &*to).expect("it is copied");
    assert_eq!(content(&*to), content(&*from));
}
