//! Every case of the suite through a live server whose tasks are in PostgreSQL: the client is one more store.

#[path = "../../../store/tests/postgres/cluster.rs"]
#[expect(dead_code, reason = "the tests of the store use all of it")]
mod cluster;
#[path = "../../../store/tests/postgres/database.rs"]
#[expect(dead_code, reason = "the tests of the store use all of it")]
mod database;
mod managed;
#[path = "../suite/rig.rs"]
#[expect(dead_code, reason = "the other tests of this crate use all of it")]
mod rig;

use std::future::Future;
use std::sync::Arc;

use taskyard::Iproto;
use taskyard_core::{Command, Error, Execute, Reply, Span, Timestamp};
use taskyard_engine::{Clock, HandClock};
use taskyard_server::Config;
use taskyard_store::Capabilities;
use taskyard_store::conformance::{Harness, model};

use crate::cluster::programs;
use crate::database::Database;
use crate::rig::Rig;

taskyard_store::conformance_suite!(Live::new().await, crate::run);

/// Random commands, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(2) {
        run(async { model::replay(Live::new().await, seed, 300).await });
    }
}

/// Runs a case, unless there is no PostgreSQL and the tests are to go on without.
fn run(case: impl Future) {
    if programs().is_some() {
        rig::block_on(case);
    }
}

/// A live server over a database of its own.
struct Live {
    rig: Rig,
    queue: Iproto,
    database: Arc<Database>,
}

impl Live {
    async fn new() -> Self {
        Live::start(Arc::new(Database::new()), rig::clock()).await
    }

    async fn start(database: Arc<Database>, clock: Arc<HandClock>) -> Self {
        let config = Config { strict_tubes: true, ..rig::config() };
        let rig = Rig::start(Box::new(database.open()), clock, config).await;
        let queue = rig.connect().strict_tubes();
        Live { rig, queue, database }
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
        let (clock, database) = (self.rig.clock.clone(), self.database);
        self.rig.stop().await;
        Live::start(database, clock).await
    }
}
