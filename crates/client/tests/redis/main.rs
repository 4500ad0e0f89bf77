//! Random commands over iproto, through a live server with its tasks in Redis, compared with the core's machine. The cases of the conformance
//! suite run over iproto on a store in memory, and on Redis without a server.

#[path = "../suite/live.rs"]
mod live;
#[path = "../suite/open_url.rs"]
mod open_url;

use std::future::Future;
use taskyard_testkit::server;

use taskyard_conformance::{model, semaphores as rules};

use crate::live::Live;
use taskyard_testkit::redis::program;
use taskyard_testkit::redis::{instance, open, own};

/// Random commands, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(4) {
        run(async { model::replay(live().await, seed, 300).await });
    }
}

/// Random commands for semaphores, compared with the core's machine.
#[test]
fn model_of_semaphores() {
    for seed in model::seeds(4) {
        run(async { rules::model::replay(live().await, seed, 300).await });
    }
}

/// Random commands for tubes with semaphores, compared with the core's machine.
#[test]
fn model_of_gated_tubes() {
    for seed in model::seeds(4) {
        run(async { model::replay_gated(live().await, seed, 300).await });
    }
}

#[test]
fn clients_open_the_store_by_its_url() {
    run(async {
        let url = own(&instance().url());
        open_url::a_function_runs_the_task_of_another_client(&url).await;
    });
}

/// Runs a case; skips it if Redis is missing and the tests may run without it.
fn run(case: impl Future) {
    if program().is_some() {
        server::block_on(case);
    }
}

/// A live server with its own key prefix in Redis.
async fn live() -> Live {
    let url = own(&instance().url());
    Live::over(move || Box::new(open(&url))).await
}
