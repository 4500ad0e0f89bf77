//! Opens stores in folders, and builds and runs commands.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use taskyard_conformance::random::new_seed;
use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, NewTask, Outcome, Reply, Span, Take, Task,
    TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::{BodyKey, OpenError, OpenOptions, Store, fill};
use taskyard_store_sqlite::SqliteStore;
use tempfile::TempDir;

/// The time of all commands unless a test says otherwise.
pub const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// Every task by tube and id, as a peek returns it, with its payload.
pub type TaskContent = BTreeMap<(String, u64), Task>;

/// Runs a future to its end on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Random numbers that `TASKYARD_SEED` repeats; the seed is printed when the test fails.
pub fn random() -> fastrand::Rng {
    fastrand::Rng::with_seed(new_seed())
}

/// Opens the store of a folder that must be intact.
#[track_caller]
pub fn open(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder, &OpenOptions::default()).expect("the store opens")
}

/// The same without the journal, for tests of the database and its log.
#[track_caller]
pub fn open_without_journal(folder: &Path) -> SqliteStore {
    let store = open(folder);
    store.set_journal_bytes(0);
    store
}

/// Opens the store of a folder that may be damaged.
pub fn try_open(folder: &Path, accept_loss: bool) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(folder, &OpenOptions { accept_loss, ..OpenOptions::default() })
}

/// Stops the store properly.
pub fn close(store: SqliteStore) {
    block_on(store.close()).expect("the store closes");
}

/// Runs a batch and loads the bodies that are on disk only. The outer error is an unreadable payload.
pub fn run(
    store: &SqliteStore,
    commands: Vec<Command>,
) -> Result<Vec<Result<Reply, Error>>, Error> {
    run_at(store, NOW, commands)
}

/// The same at another time.
pub fn run_at(
    store: &SqliteStore,
    now: Timestamp,
    commands: Vec<Command>,
) -> Result<Vec<Result<Reply, Error>>, Error> {
    let mut executed = block_on(store.execute(now, commands));
    let keys = executed.unloaded.iter().map(|unloaded| unloaded.key).collect();
    let bodies = load(store, keys)?;
    fill(&mut executed.replies, &executed.unloaded, bodies);
    Ok(executed.replies)
}

/// Reads bodies; an error if one of them is unreadable.
pub fn load(store: &SqliteStore, keys: Vec<BodyKey>) -> Result<Vec<Option<Body>>, Error> {
    block_on(store.load(keys)).into_iter().collect()
}

/// Runs one command.
pub fn ask(store: &SqliteStore, command: Command) -> Result<Reply, Error> {
    run(store, vec![command])?.remove(0)
}

/// Runs one command that must succeed.
#[track_caller]
pub fn must(store: &SqliteStore, command: Command) -> Reply {
    let verb = command.verb();
    ask(store, command).unwrap_or_else(|error| panic!("{verb} failed: {error}"))
}

pub fn name(text: &str) -> TubeName {
    TubeName::new(text).expect("a good name")
}

pub fn create(tube: &str, options: TubeOptions) -> Command {
    Command::CreateTube { tube: name(tube), options, if_not_exists: false }
}

pub fn put(tube: &str, tasks: Vec<NewTask>) -> Command {
    Command::Put { tube: name(tube), tasks, wait: Span::ZERO }
}

/// A put of one task with this payload.
pub fn put_one(tube: &str, payload: &[u8]) -> Command {
    put(tube, vec![NewTask::new(Body::new(payload))])
}

pub fn take(tube: &str, count: usize) -> Command {
    Command::Take(Take {
        tube: name(tube),
        count,
        session: None,
        lease: Some(Span::FOREVER),
        worker: None,
        wait: Span::ZERO,
    })
}

/// Finishes a task that a take returned.
pub fn finish(tube: &str, task: &Task, finish: Finish) -> Command {
    let holder = Holder::Lease(task.lease.expect("a taken task has a lease"));
    let items = vec![FinishItem { id: task.id, holder, finish }];
    Command::Finish { tube: name(tube), items, show: true }
}

pub fn delete(tube: &str, ids: impl IntoIterator<Item = u64>) -> Command {
    Command::Delete { tube: name(tube), ids: ids.into_iter().map(TaskId).collect(), show: true }
}

pub fn peek(tube: &str, ids: impl IntoIterator<Item = u64>) -> Command {
    Command::Peek { tube: name(tube), ids: ids.into_iter().map(TaskId).collect() }
}

/// Takes tasks.
#[track_caller]
pub fn take_now(store: &SqliteStore, tube: &str, count: usize) -> Vec<Task> {
    match must(store, take(tube, count)) {
        Reply::Taken(tasks) => tasks,
        other => panic!("a take answered {other:?}"),
    }
}

/// Puts tasks and returns their ids.
#[track_caller]
pub fn put_now(store: &SqliteStore, tube: &str, tasks: Vec<NewTask>) -> Vec<u64> {
    match must(store, put(tube, tasks)) {
        Reply::Put(placed) => placed.iter().map(|placed| placed.id.0).collect(),
        other => panic!("a put answered {other:?}"),
    }
}

/// Finishes a task whose lease must be current.
#[track_caller]
pub fn finish_now(store: &SqliteStore, tube: &str, task: &Task, how: Finish) {
    match must(store, finish(tube, task, how)) {
        Reply::Finished(outcomes) => assert!(matches!(outcomes[..], [Outcome::Done(_)])),
        other => panic!("a finish answered {other:?}"),
    }
}

/// All tubes.
pub fn tubes(store: &SqliteStore) -> Vec<TubeInfo> {
    match must(store, Command::Tubes { tube: None }) {
        Reply::Tubes(tubes) => tubes,
        other => panic!("tubes answered {other:?}"),
    }
}

/// Every task of every tube with an id below `ids`; an error if a payload is unreadable. Panics if a tube has
/// more or fewer tasks than its counts say.
pub fn content(store: &SqliteStore, ids: u64) -> Result<TaskContent, Error> {
    let mut content = TaskContent::new();
    for tube in tubes(store) {
        let tube_name = tube.name.as_str();
        let Reply::Tasks(tasks) = ask(store, peek(tube_name, 0..ids))? else {
            panic!("a peek answers tasks");
        };
        assert_eq!(tasks.len() as u64, tube.stats.tasks.total(), "tasks of tube {tube_name}");
        content.extend(tasks.into_iter().map(|task| ((tube_name.to_owned(), task.id.0), task)));
    }
    Ok(content)
}

/// A folder in memory where the system has one, for tests that need many folders and no disk.
pub fn fast_folder() -> TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.expect("a folder")
}

/// The names of the files that a store consists of.
pub const FILES: [&str; 5] =
    ["taskyard.db", "taskyard.db-wal", "taskyard.seal", "taskyard.journal-1", "taskyard.journal-2"];

/// Copies the files of a store, which may be open, into a new folder.
pub fn copy(from: &Path, to: PathBuf) -> PathBuf {
    std::fs::create_dir_all(&to).expect("a new folder");
    for file in FILES {
        if from.join(file).exists() {
            std::fs::copy(from.join(file), to.join(file)).expect("a copy of a file");
        }
    }
    to
}
