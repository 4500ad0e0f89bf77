//! Every case of the suite through a live server whose tasks are in PostgreSQL: the client is one more store.

#[path = "../suite/live.rs"]
mod live;
mod managed;
#[path = "../suite/rig.rs"]
#[expect(dead_code, reason = "the other tests of this crate use all of it")]
mod rig;

use std::future::Future;

use taskyard_conformance::model;

use crate::live::Live;
use taskyard_testkit::postgres::Database;
use taskyard_testkit::postgres::programs;

taskyard_conformance::conformance_suite!(live().await, crate::run);

/// Random commands, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(2) {
        run(async { model::replay(live().await, seed, 300).await });
    }
}

/// Runs a case, unless there is no PostgreSQL and the tests are to go on without.
fn run(case: impl Future) {
    if programs().is_some() {
        rig::block_on(case);
    }
}

/// A live server over a database of its own.
async fn live() -> Live {
    let database = Database::new();
    Live::over(move || Box::new(database.open())).await
}
