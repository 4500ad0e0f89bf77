//! Every case of the suite through a live server: the client is one more store.
//!
//! Sessions and ticks are not part of HTTP. A command that needs them must be refused by the client;
//! then it goes to the same engine by the other door, as a client with sessions would send it, so
//! that every case runs to its end.

use std::sync::Arc;

use taskyard::{Http, HttpError};
use taskyard_core::{Command, Error, Execute, Holder, Reply, Span, Timestamp};
use taskyard_engine::Clock;
use taskyard_server::Config;
use taskyard_store::conformance::Harness;
use taskyard_store::{Capabilities, OpenOptions, open};
use tempfile::TempDir;

use crate::rig::{self, Rig};

taskyard_store::conformance_suite!(Live::new().await, crate::rig::block_on);

/// A live server over a store on disk.
struct Live {
    rig: Rig,
    folder: Arc<TempDir>,
}

impl Live {
    async fn new() -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a temporary folder can be made"));
        Live::start(folder, rig::clock()).await
    }

    async fn start(folder: Arc<TempDir>, clock: Arc<taskyard_engine::HandClock>) -> Self {
        let url = format!("sqlite:{}", folder.path().display());
        let store = open(&url, &OpenOptions::default()).expect("the store opens");
        let config = Config { strict_tubes: true, ..rig::config() };
        Live { rig: Rig::start(store, clock, config).await, folder }
    }

    async fn ask(&self, command: Command) -> Result<Reply, Error> {
        if !needs_more_than_http(&command) {
            return Ok(self.rig.http.ask(command).await?);
        }
        assert_refused(&self.rig.http, command.clone()).await;
        self.rig.engine.execute(vec![command]).await.remove(0)
    }
}

async fn assert_refused(http: &Http, command: Command) {
    let verb = command.verb();
    let refusal = http.ask(command).await;
    let invalid = matches!(&refusal, Err(HttpError::Refused { error: Error::Invalid(_), .. }));
    assert!(invalid, "{verb} over HTTP answered {refusal:?}");
}

fn needs_more_than_http(command: &Command) -> bool {
    match command {
        Command::JoinSession { .. }
        | Command::LeaveSession { .. }
        | Command::ConfigureSessions { .. }
        | Command::Tick { .. } => true,
        Command::Take(take) => take.session.is_some(),
        Command::Finish { items, .. } => {
            items.iter().any(|item| matches!(item.holder, Holder::Session(_)))
        }
        _ => false,
    }
}

impl Execute for Live {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut replies = Vec::new();
        for command in commands {
            replies.push(self.ask(command).await);
        }
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
        let (clock, folder) = (self.rig.clock.clone(), self.folder);
        self.rig.stop().await;
        Live::start(folder, clock).await
    }
}
