//! Runs the conformance suite on the SQLite store.

use taskyard_conformance::{StoreHarness, block_on, model, semaphores as rules};
use taskyard_store::OpenOptions;
use taskyard_store_sqlite::SqliteStore;

taskyard_conformance::conformance_suite!(queue(OpenOptions::default().memory_bytes));
taskyard_conformance::semaphore_suite!(queue(OpenOptions::default().memory_bytes));

#[test]
fn model_of_semaphores() {
    for seed in model::seeds(4) {
        block_on(rules::model::replay(queue(OpenOptions::default().memory_bytes), seed, 1000));
    }
}

#[test]
fn model() {
    for seed in model::seeds(4) {
        block_on(model::replay(queue(OpenOptions::default().memory_bytes), seed, 1000));
    }
}

/// With memory for only a few bodies, most of them are read from disk.
#[test]
fn model_with_little_memory() {
    for seed in model::seeds(4) {
        block_on(model::replay(queue(500), seed, 1000));
    }
}

/// A store in a folder of its own, which is removed with the harness.
fn queue(memory_bytes: usize) -> StoreHarness {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let options = OpenOptions { memory_bytes, ..OpenOptions::default() };
    StoreHarness::new(move || {
        Box::new(SqliteStore::open(folder.path(), &options).expect("the store opens"))
    })
}

#[test]
fn model_of_gated_tubes() {
    for seed in model::seeds(4) {
        block_on(model::replay_gated(queue(OpenOptions::default().memory_bytes), seed, 1000));
    }
}
