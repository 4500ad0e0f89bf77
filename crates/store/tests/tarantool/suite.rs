//! What every store must do.

use taskyard_store::conformance::model;

use crate::yard::{queue, run};

taskyard_store::conformance_suite!(queue(), run);

#[test]
fn model() {
    for seed in model::seeds(4) {
        run(async move { model::replay(queue(), seed, 1000).await });
    }
}
