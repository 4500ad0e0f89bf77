//! Random commands over iproto, through a live server with its tasks in PostgreSQL, compared with the core's machine. The cases of the conformance
//! suite run over iproto on a store in memory, and on PostgreSQL without a server.

#[path = "../suite/live.rs"]
mod live;
#[path = "../suite/open_url.rs"]
mod open_url;

use std::future::Future;
use taskyard_testkit::server;

use taskyard_conformance::model;

use crate::live::Live;
use taskyard_testkit::postgres::Database;
use taskyard_testkit::postgres::programs;

/// Random commands, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(4) {
        run(async { model::replay(live().await, seed, 300).await });
    }
}

#[test]
fn clients_open_the_store_by_its_url() {
    run(async {
        let database = Database::new();
        open_url::a_function_runs_the_task_of_another_client(&database.url()).await;
    });
}

/// Runs a case; skips it if PostgreSQL is missing and the tests may run without it.
fn run(case: impl Future) {
    if programs().is_some() {
        server::block_on(case);
    }
}

/// A live server with its own database.
async fn live() -> Live {
    let database = Database::new();
    Live::over(move || Box::new(database.open())).await
}
