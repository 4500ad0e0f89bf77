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
    test_server: TestServer,
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
        let test_server = TestServer::without_firing(open(), clock, config).await;
        let queue = test_server.connect().strict_tubes();
        Live { test_server, queue, open }
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
        self.test_server.engine.capabilities()
    }

    fn now(&self) -> Timestamp {
        self.test_server.clock.now()
    }

    fn advance(&self, span: Span) {
        self.test_server.clock.advance(span);
    }

    async fn restart(self) -> Self {
        let (clock, open) = (self.test_server.clock.clone(), self.open);
        self.test_server.stop().await;
        Live::start(open, clock).await
    }
}
