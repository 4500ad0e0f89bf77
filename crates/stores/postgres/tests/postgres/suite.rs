//! Runs the conformance suite and the model test.

use taskyard_conformance::{model, semaphores as rules};

use taskyard_testkit::postgres::{queue, run};

taskyard_conformance::conformance_suite!(queue(), run);
taskyard_conformance::semaphore_suite!(queue(), run);

#[test]
fn model_of_semaphores() {
    for seed in model::seeds(2) {
        run(async move { rules::model::replay(queue(), seed, 800).await });
    }
}

#[test]
fn model() {
    for seed in model::seeds(2) {
        run(async move { model::replay(queue(), seed, 1000).await });
    }
}

#[test]
fn model_of_gated_tubes() {
    for seed in model::seeds(2) {
        run(async move { model::replay_gated(queue(), seed, 800).await });
    }
}
