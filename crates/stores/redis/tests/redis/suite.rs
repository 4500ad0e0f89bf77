//! Runs the conformance suite and the random comparisons with the core.

use taskyard_conformance::{model, semaphores as rules};

use taskyard_testkit::redis::{queue, run};

taskyard_conformance::conformance_suite!(queue(), run);
taskyard_conformance::semaphore_suite!(queue(), run);

#[test]
fn model_of_semaphores() {
    for seed in model::seeds(2) {
        run(async move { rules::model::replay(queue(), seed, 800).await });
    }
}

// Seeds with which events of several semaphores were delivered in another order than they occurred.
#[test]
fn model_with_events_of_several_semaphores() {
    for seed in [26, 40] {
        run(async move { rules::model::replay(queue(), seed, 800).await });
    }
}

#[test]
fn model_of_gated_tubes() {
    for seed in model::seeds(2) {
        run(async move { model::replay_gated(queue(), seed, 800).await });
    }
}

// A session that was left twice ended when the time after the first leave had passed.
#[test]
fn model_with_a_session_that_is_left_twice() {
    run(async { model::replay(queue(), 108, 1000).await });
}

// An empty put was refused where a tube has more tasks than its lowered capacity.
#[test]
fn model_with_an_empty_put_into_a_full_tube() {
    run(async { model::replay(queue(), 235, 1000).await });
}

#[test]
fn model() {
    for seed in model::seeds(2) {
        run(async move { model::replay(queue(), seed, 1000).await });
    }
}
