//! Moving from a folder to a database and back.

use std::path::Path;

use taskyard_core::{Command, Reply, Span, Take};
use taskyard_store::conformance::block_on;
use taskyard_store::copy::CopyError;
use taskyard_store::postgres::{Clock, PostgresStore};
use taskyard_store::sqlite::SqliteStore;
use taskyard_store::{MemoryStore, OpenOptions, Store};

use crate::content::{NOW, TASKS, ask, content, copy_all, fill_store, name, put, task};
use crate::database::{Database, check_counts, run, sql};

fn open(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder, &OpenOptions::default()).expect("the store opens")
}

#[test]
fn from_a_folder_to_a_database_and_back() {
    run(async {
        let (first, last) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let from = open(first.path());
        fill_store(&from);
        block_on(from.close()).expect("it closes");
        let from = open(first.path());
        let wanted = content(&from);
        let database = Database::new();
        let store = database.open();
        assert_eq!(copy_all(&from, &store).expect("it is copied").tasks, TASKS);
        assert_eq!(content(&store), wanted);
        check_counts(&database.url());
        let audit =
            sql(&database.url(), "SELECT string_agg(a::text, ' ') FROM taskyard.gate_audit a");
        assert_eq!(audit, None, "tasks and their semaphore agree");
        assert!(copy_all(&from, &store).expect("nothing is to be done").already);
        let back = open(last.path());
        assert_eq!(copy_all(&store, &back).expect("it is copied").tasks, TASKS);
        assert_eq!(content(&back), wanted);
        block_on(store.close()).expect("it closes");
    });
}

#[test]
fn a_copy_is_used_like_any_other_tube() {
    run(async {
        let from = MemoryStore::default();
        fill_store(&from);
        let database = Database::new();
        let store = database.open();
        copy_all(&from, &store).expect("it is copied");
        // Both go on alike: what is taken, what is put, what the gate lets in.
        for target in [&from as &dyn Store, &store] {
            ask(target, Command::Kick { tube: name("states"), count: 9 });
            put(target, "empty", vec![task(1)]);
            put(target, "sub", vec![task(4)]);
            put(target, "gated", vec![task(2)]);
        }
        let taken = |store: &dyn Store, tube: &str| {
            let (session, lease) = (None, Some(Span::from_secs(5)));
            let take = Take { tube: name(tube), count: 9, session, lease, wait: Span::ZERO };
            let Reply::Taken(tasks) = ask(store, Command::Take(take)) else { panic!("tasks") };
            tasks.into_iter().map(|task| (task.id, task.attempts, task.body)).collect::<Vec<_>>()
        };
        for tube in ["fifo", "states", "sub", "full", "empty", "gated"] {
            assert_eq!(taken(&store, tube), taken(&from, tube), "{tube}");
        }
        check_counts(&database.url());
    });
}

#[test]
fn what_is_taken_comes_over_as_after_a_crash() {
    run(async {
        let database = Database::new();
        let store = database.open();
        fill_store(&store);
        let take = Take {
            tube: name("full"),
            count: 2,
            session: None,
            lease: Some(Span::from_secs(60)),
            wait: Span::ZERO,
        };
        let Reply::Taken(taken) = ask(&store, Command::Take(take)) else { panic!("tasks") };
        let before = content(&store).peeked;
        // Without becoming a server, which as the first one would give everything back.
        let look = PostgresStore::open_to_look(&database.url(), Clock::Caller, Default::default());
        let look = look.expect("it opens");
        let to = MemoryStore::default();
        copy_all(&look, &to).expect("it is copied");
        block_on(look.close()).expect("it closes");
        assert_eq!(content(&store).peeked, before, "the source is as it was");
        let peek = Command::Peek { tube: name("full"), ids: vec![taken[0].id] };
        let Reply::Tasks(tasks) = ask(&to, peek) else { panic!("tasks") };
        assert_eq!((tasks[0].attempts, tasks[0].previous_start), (1, Some(NOW)));
        // Who still has the old lease has no say in the copy.
        let Reply::Taken(anew) = ask(
            &to,
            Command::Take(Take {
                tube: name("full"),
                count: 9,
                session: None,
                lease: Some(Span::from_secs(60)),
                wait: Span::ZERO,
            }),
        ) else {
            panic!("tasks")
        };
        let old: Vec<_> = taken.iter().filter_map(|task| task.lease).collect();
        assert!(anew.iter().all(|task| task.lease.is_some_and(|lease| !old.contains(&lease))));
    });
}

#[test]
fn a_database_in_use_is_refused() {
    run(async {
        let from = MemoryStore::default();
        fill_store(&from);
        let database = Database::new();
        let store = database.open();
        fill_store(&store);
        put(&store, "sub", vec![task(8)]);
        let refused = copy_all(&from, &store);
        let Err(CopyError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.iter().any(|why| why.contains("tube 'sub'")), "{why:?}");
        assert!(why.iter().any(|why| why.contains("semaphore 'own'")), "{why:?}");
        let staged = "SELECT count(*) FROM taskyard.tube WHERE name LIKE 'taskyard.copy.%'";
        assert_eq!(sql(&database.url(), staged).as_deref(), Some("0"));
    });
}
