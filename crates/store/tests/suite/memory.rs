//! Tasks in memory.

use taskyard_store::MemoryStore;
use taskyard_store::conformance::{StoreHarness, block_on, model, semaphores as rules};

fn queue() -> StoreHarness {
    StoreHarness::new(|| Box::new(MemoryStore::default()))
}

taskyard_store::conformance_suite!(queue());
taskyard_store::semaphore_suite!(queue());

#[test]
fn model() {
    for seed in model::seeds(20) {
        block_on(model::replay(queue(), seed, 2000));
    }
}

#[test]
fn model_of_semaphores() {
    for seed in model::seeds(20) {
        block_on(rules::model::replay(queue(), seed, 1000));
    }
}

#[test]
fn model_of_gated_tubes() {
    for seed in model::seeds(10) {
        block_on(model::replay_gated(queue(), seed, 1000));
    }
}
