//! What every store must do.

use taskyard_store::conformance::{model, semaphores as rules};

use crate::database::{queue, queue_behind_a_pooler, run};

taskyard_store::conformance_suite!(queue(), run);
taskyard_store::semaphore_suite!(queue(), run);

#[test]
fn model_of_semaphores() {
    for seed in model::seeds(4) {
        run(async move { rules::model::replay(queue(), seed, 800).await });
    }
}

#[test]
fn model() {
    for seed in model::seeds(4) {
        run(async move { model::replay(queue(), seed, 1000).await });
    }
}

/// Behind a pooler in transaction mode nothing may be kept between two transactions.
#[test]
fn model_behind_a_pooler() {
    for seed in model::seeds(1) {
        run(async move { model::replay(queue_behind_a_pooler(), seed, 300).await });
    }
}
