//! Tests a payload whose damage is detected while the store runs.

use std::path::Path;

use taskyard_core::{Body, Error, Kind, NewTask, Reply, TubeOptions};
use taskyard_store::{OpenOptions, Store};
use taskyard_store_sqlite::SqliteStore;

use crate::fixture::{
    NOW, block_on, close, create, delete, fast_folder, finish_now, must, open, peek, put, put_now,
    take_now,
};

use super::change_rows;

/// The payload of a task.
fn payload(id: u64) -> Vec<u8> {
    vec![id as u8; 100]
}

/// A store that keeps no payload in memory, with ten tasks that are on disk only.
fn with_ten_tasks(folder: &Path, damage: &str) -> SqliteStore {
    let store = open(folder);
    must(&store, create("q", TubeOptions::new(Kind::Fifo)));
    must(&store, put("q", (0..10).map(|id| NewTask::new(Body::new(&payload(id)))).collect()));
    close(store);
    change_rows(folder, damage);
    let options = OpenOptions { memory_bytes: 0, ..OpenOptions::default() };
    SqliteStore::open(folder, &options).expect("payloads are not checked")
}

/// Loads all ten at once, as the engine does.
fn load_all(store: &SqliteStore) -> Vec<Result<Option<Body>, Error>> {
    let executed = block_on(store.execute(NOW, vec![peek("q", 0..10)]));
    assert!(matches!(&executed.replies[..], [Ok(Reply::Tasks(tasks))] if tasks.len() == 10));
    let keys: Vec<_> = executed.unloaded.iter().map(|unloaded| unloaded.key).collect();
    assert_eq!(keys.len(), 10, "all are on disk only");
    block_on(store.load(keys))
}

#[test]
fn an_unreadable_payload_is_an_error_and_the_others_are_read() {
    for damage in [
        "UPDATE task SET data = x'00' WHERE key = 4",
        "UPDATE task SET data = 'text' WHERE key = 4",
        "UPDATE task SET meta = 5 WHERE key = 4",
        "UPDATE task SET data_sum = data_sum + 1 WHERE key = 4",
    ] {
        let folder = fast_folder();
        let store = with_ten_tasks(folder.path(), damage);
        for (id, body) in load_all(&store).into_iter().enumerate() {
            if id != 4 {
                assert_eq!(body, Ok(Some(Body::new(&payload(id as u64)))), "{damage}: task {id}");
                continue;
            }
            let Err(Error::Store(what)) = body else { panic!("{damage}: {body:?}") };
            assert!(what.contains("task 4 ") && what.contains("--accept-loss"), "{what}");
        }
    }
}

#[test]
fn the_store_works_on_with_an_unreadable_payload() {
    let folder = fast_folder();
    let store = with_ten_tasks(folder.path(), "UPDATE task SET data = x'00' WHERE key = 4");
    assert!(load_all(&store)[4].is_err());
    // The same again: the first load did not break anything.
    assert!(load_all(&store)[4].is_err());
    let before = take_now(&store, "q", 4);
    before.iter().for_each(|task| finish_now(&store, "q", task, taskyard_core::Finish::Ack));
    must(&store, delete("q", [4]));
    let after = take_now(&store, "q", 10);
    let found: Vec<_> = after.iter().map(|task| (task.id.0, task.body.clone())).collect();
    let expected: Vec<_> = (5..10).map(|id| (id, Some(Body::new(&payload(id))))).collect();
    assert_eq!(found, expected);
    assert_eq!(put_now(&store, "q", vec![NewTask::new(Body::new(b"new"))]), [10]);
    close(store);
    close(open(folder.path()));
}

/// A missing row is not the same as a task that was finished meanwhile.
#[test]
fn a_missing_row_is_an_error_too() {
    let folder = fast_folder();
    let store = with_ten_tasks(folder.path(), "SELECT 1");
    change_rows(folder.path(), "DELETE FROM task WHERE key = 4");
    let bodies = load_all(&store);
    assert!(matches!(&bodies[4], Err(Error::Store(what)) if what.contains("row is missing")));
    assert_eq!(bodies.iter().filter(|body| matches!(body, Ok(Some(_)))).count(), 9);
}
