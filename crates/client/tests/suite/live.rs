//! A live server as one more store: what it is asked goes to it by the network client.

use std::sync::Arc;

use taskyard::Iproto;
use taskyard_conformance::Harness;
use taskyard_conformance::worker_addresses::remove_addresses;
use taskyard_core::{Command, Error, Execute, Reply, Span, Timestamp};
use taskyard_engine::{Clock, ManualClock};
use taskyard_server::Config;
use taskyard_store::{Capabilities, Store};

use taskyard_testkit::server::{self, TestServer};

/// Opens the store of a server, again after a restart.
type Open = Arc<dyn Fn() -> Box<dyn Store> + Send + Sync>;

/// A live server over a store of its own.
pub struct Live {
    rig: TestServer,
    queue: Iproto,
    open: Open,
}

impl Live {
    /// One whose store is opened so.
    pub async fn over(open: impl Fn() -> Box<dyn Store> + Send + Sync + 'static) -> Self {
        Live::start(Arc::new(open), server::clock()).await
    }

    async fn start(open: Open, clock: Arc<ManualClock>) -> Self {
        let config = Config { strict_tubes: true, ..server::config() };
        let rig = TestServer::without_firing(open(), clock, config).await;
        let queue = rig.connect().strict_tubes();
        Live { rig, queue, open }
    }
}

impl Execute for Live {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut replies = self.queue.execute(commands).await;
        replies.iter_mut().flatten().for_each(remove_addresses);
        replies
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
        let (clock, open) = (self.rig.clock.clone(), self.open);
        self.rig.stop().await;
        Live::start(open, clock).await
    }
}
