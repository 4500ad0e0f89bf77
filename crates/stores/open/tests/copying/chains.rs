//! Tests copies from each database to each other one.

use taskyard_conformance::block_on;
use taskyard_store::MemoryStore;

use crate::content::{TASKS, content, copy_all, fill_store};
use crate::databases::{TestDatabase, in_postgres, in_redis, in_tarantool};

/// Copies everything through all databases, one after the other, and compares the content at each.
fn copy_through(databases: &[Box<dyn TestDatabase>]) {
    let first = MemoryStore::default();
    fill_store(&first);
    let wanted = content(&first);
    let mut from = databases[0].open();
    copy_all(&first, &*from).expect("it is copied");
    for database in &databases[1..] {
        let to = database.open();
        assert_eq!(copy_all(&*from, &*to).expect("it is copied").tasks, TASKS);
        assert_eq!(content(&*to), wanted);
        database.audit();
        block_on(from.close()).expect("it closes");
        from = to;
    }
    let last = MemoryStore::default();
    copy_all(&*from, &last).expect("it is copied");
    assert_eq!(content(&last), wanted);
}

#[test]
fn in_one_order() {
    let chain = [in_redis(), in_postgres(), in_tarantool(), in_redis()];
    if let Some(databases) = chain.into_iter().collect::<Option<Vec<_>>>() {
        copy_through(&databases);
    }
}

#[test]
fn in_the_other_order() {
    let chain = [in_redis(), in_tarantool(), in_postgres(), in_redis()];
    if let Some(databases) = chain.into_iter().collect::<Option<Vec<_>>>() {
        copy_through(&databases);
    }
}
