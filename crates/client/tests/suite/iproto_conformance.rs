//! Every case of the suite over iproto: the client is one more store, and everything a store can be
//! asked travels.

use std::sync::Arc;

use taskyard::Iproto;
use taskyard_core::{Command, Error, Execute, Reply, Span, Timestamp};
use taskyard_engine::{Clock, HandClock};
use taskyard_server::Config;
use taskyard_store::conformance::{Harness, model, semaphores as rules};
use taskyard_store::{Capabilities, OpenOptions, open};
use tempfile::TempDir;

use crate::rig::{self, Rig};

taskyard_store::conformance_suite!(Live::new().await, crate::rig::block_on);
taskyard_store::semaphore_suite!(Live::new().await, crate::rig::block_on);

/// Random commands for semaphores, compared with the core's machine.
#[test]
fn model_of_semaphores() {
    for seed in model::seeds(3) {
        rig::block_on(async { rules::model::replay(Live::new().await, seed, 400).await });
    }
}

/// Random commands, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(8) {
        rig::block_on(async { model::replay(Live::new().await, seed, 1000).await });
    }
}

/// A live server over a store on disk.
struct Live {
    rig: Rig,
    queue: Iproto,
    folder: Arc<TempDir>,
}

impl Live {
    async fn new() -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a temporary folder can be made"));
        Live::start(folder, rig::clock()).await
    }

    async fn start(folder: Arc<TempDir>, clock: Arc<HandClock>) -> Self {
        let url = format!("sqlite:{}", folder.path().display());
        let store = open(&url, &OpenOptions::default()).expect("the store opens");
        let config = Config { strict_tubes: true, ..rig::config() };
        let rig = Rig::start(store, clock, config).await;
        let queue = rig.connect().strict_tubes();
        Live { rig, queue, folder }
    }
}

impl Execute for Live {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        self.queue.execute(commands).await
    }
}

impl Harness for Live {
    fn capabilities(&self) -> Capabilities {
        self.rig.engine.capabilities()
    }

    fn now(&self) -> Timestamp {
        self.rig.clock.now()
    }

    fn advance(&self, span: Span) {
        self.rig.clock.advance(span);
    }

    async fn restart(self) -> Self {
        let (clock, folder) = (self.rig.clock.clone(), self.folder);
        self.rig.stop().await;
        Live::start(folder, clock).await
    }
}
