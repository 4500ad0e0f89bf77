//! The conformance suite over iproto, through a live server; iproto carries every command.

use taskyard_conformance::{model, semaphores as rules};
use taskyard_store::OpenOptions;
use taskyard_stores::open;

use crate::live::Live;
use taskyard_testkit::server;

taskyard_conformance::conformance_suite!(live().await, taskyard_testkit::server::block_on);
taskyard_conformance::semaphore_suite!(live().await, taskyard_testkit::server::block_on);

/// Random commands for semaphores, compared with the core's machine.
#[test]
fn model_of_semaphores() {
    for seed in model::seeds(3) {
        server::block_on(async { rules::model::replay(live().await, seed, 400).await });
    }
}

/// Random commands, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(8) {
        server::block_on(async { model::replay(live().await, seed, 1000).await });
    }
}

/// A live server over a store on disk.
async fn live() -> Live {
    let folder = tempfile::tempdir().expect("a temporary folder is created");
    Live::over(move || {
        let url = format!("sqlite:{}", folder.path().display());
        open(&url, &OpenOptions::default()).expect("the store opens")
    })
    .await
}
