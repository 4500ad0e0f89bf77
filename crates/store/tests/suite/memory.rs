//! Runs the conformance suite on the memory store.

use taskyard_conformance::{StoreHarness, block_on, model, semaphores as rules};
use taskyard_store::MemoryStore;

fn queue() -> StoreHarness {
    StoreHarness::new(|| Box::new(MemoryStore::default()))
}

taskyard_conformance::conformance_suite!(queue());
taskyard_conformance::semaphore_suite!(queue());

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
