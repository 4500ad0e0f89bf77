//! Every case of the suite through a live server: the client is one more store.
//!
//! Sessions and ticks are not part of HTTP. A command that needs them must be refused by the client;
//! then it goes to the same engine by the other door, as a client with sessions would send it, so
//! that every case runs to its end. So does a put of sub-queues into a tube that has none, which stores ignore.

use std::sync::Arc;

use taskyard::{Http, HttpError};
use taskyard_conformance::{Harness, model, semaphores as rules};
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Command, Error, Execute, Holder, Outcome, Reply, Span, Task, Timestamp, TubeName,
};
use taskyard_engine::Clock;
use taskyard_server::Config;
use taskyard_store::{Capabilities, OpenOptions};
use taskyard_stores::open;
use tempfile::TempDir;

use crate::rig::{self, Rig};

taskyard_conformance::conformance_suite!(Live::new().await, crate::rig::block_on);
taskyard_conformance::semaphore_suite!(Live::new().await, crate::rig::block_on);

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
    for seed in model::seeds(4) {
        rig::block_on(async { model::replay(Live::new().await, seed, 500).await });
    }
}

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
        if !needs_more_than_http(&command) && !self.would_ignore(&command).await {
            // Asked before: a task that is done shows who held it last.
            let held = self.held(&command).await;
            let mut reply = self.rig.http.ask(command).await?;
            name_holders(&held, &mut reply);
            return Ok(reply);
        }
        assert_refused(&self.rig.http, command.clone()).await;
        self.rig.engine.execute(vec![command]).await.remove(0)
    }
}

impl Live {
    /// Whether the command names sub-queues that its tube would ignore.
    async fn would_ignore(&self, command: &Command) -> bool {
        let Command::Put { tube, tasks, .. } = command else { return false };
        if tasks.iter().all(|task| task.subqueue.is_none()) {
            return false;
        }
        let asked = vec![Command::Tubes { tube: Some(tube.clone()) }];
        match self.rig.engine.execute(asked).await.remove(0) {
            Ok(Reply::Tubes(tubes)) => tubes.iter().any(|tube| !tube.options.kind.has_subqueues()),
            _ => false,
        }
    }

    /// What is held in the tube of a command whose answer may show tasks with their holders.
    async fn held(&self, command: &Command) -> Vec<Task> {
        let Some(tube) = shows_holders(command) else { return Vec::new() };
        let deliveries = Command::Deliveries { tube, count: BATCH_TASKS_MAX };
        match self.rig.http.ask(deliveries).await {
            Ok(Reply::Tasks(held)) => held,
            // The command itself will say what is wrong.
            _ => Vec::new(),
        }
    }
}

/// Over HTTP only the deliveries say which session holds a task; what shows tasks is completed from
/// there.
fn name_holders(held: &[Task], reply: &mut Reply) {
    let name = |task: &mut Task| {
        let held = held.iter().find(|held| held.id == task.id && held.lease == task.lease);
        task.session = task.session.or(held.and_then(|held| held.session));
    };
    match reply {
        Reply::Tasks(tasks) => tasks.iter_mut().for_each(name),
        Reply::Finished(outcomes) => {
            let tasks = outcomes.iter_mut().filter_map(|outcome| match outcome {
                Outcome::Done(task) => task.as_deref_mut(),
                Outcome::Stale | Outcome::Missing => None,
            });
            tasks.for_each(name);
        }
        _ => {}
    }
}

/// The tube of a command whose answer shows tasks that somebody may hold.
fn shows_holders(command: &Command) -> Option<TubeName> {
    match command {
        Command::Peek { tube, .. }
        | Command::Finish { tube, .. }
        | Command::Delete { tube, .. } => Some(tube.clone()),
        _ => None,
    }
}

async fn assert_refused(http: &Http, command: Command) {
    let verb = command.verb();
    let refusal = http.ask(command).await;
    let refused = matches!(
        &refusal,
        Err(HttpError::Refused { error: Error::Invalid(_) | Error::Unsupported { .. }, .. })
    );
    assert!(refused, "{verb} over HTTP answered {refusal:?}");
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
