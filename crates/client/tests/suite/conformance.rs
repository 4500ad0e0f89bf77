//! The conformance suite over HTTP, through a live server.
//!
//! HTTP has no sessions and ticks. The client must refuse a command that needs them; the harness then sends it to the
//! engine directly, as a client with sessions would, so that every case runs to its end. The same holds for a put with
//! sub-queues into a tube without them, which stores ignore. A failure by the policy of its tube goes to the engine too:
//! over HTTP the server draws its random number. So do schedules, because the rules of the cases are any text.

use std::sync::Arc;

use taskyard::{Http, HttpError};
use taskyard_conformance::worker_addresses::remove_addresses;
use taskyard_conformance::{Harness, model, semaphores as rules};
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    AfterFailure, Command, Error, Execute, Finish, FinishItem, Holder, Outcome, Reply,
    ScheduleCommand, Span, Task, Timestamp, TubeName,
};
use taskyard_engine::Clock;
use taskyard_server::Config;
use taskyard_store::{Capabilities, OpenOptions};
use taskyard_stores::open;
use tempfile::TempDir;

use taskyard_testkit::server::{self, TestServer};

taskyard_conformance::conformance_suite!(
    HttpHarness::new().await,
    taskyard_testkit::server::block_on
);
taskyard_conformance::semaphore_suite!(
    HttpHarness::new().await,
    taskyard_testkit::server::block_on
);

/// Random commands for semaphores, compared with the core's machine.
#[test]
fn model_of_semaphores() {
    for seed in model::seeds(3) {
        server::block_on(async { rules::model::replay(HttpHarness::new().await, seed, 400).await });
    }
}

/// Random commands, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(4) {
        server::block_on(async { model::replay(HttpHarness::new().await, seed, 500).await });
    }
}

/// A live server over a store on disk.
struct HttpHarness {
    test_server: TestServer,
    folder: Arc<TempDir>,
}

impl HttpHarness {
    async fn new() -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a temporary folder is created"));
        HttpHarness::start(folder, server::clock()).await
    }

    async fn start(folder: Arc<TempDir>, clock: Arc<taskyard_engine::ManualClock>) -> Self {
        let url = format!("sqlite:{}", folder.path().display());
        let store = open(&url, &OpenOptions::default()).expect("the store opens");
        let config = Config { strict_tubes: true, ..server::config() };
        HttpHarness { test_server: TestServer::without_firing(store, clock, config).await, folder }
    }

    async fn execute_one(&self, command: Command) -> Result<Reply, Error> {
        let differs = draws_random(&command) || has_text_rules(&command);
        let by_engine = differs || needs_more_than_http(&command);
        if !by_engine && !self.would_ignore(&command).await {
            // Read before: a task that is done shows its last holder.
            let held = self.held(&command).await;
            let mut reply = self.test_server.http.execute_one(command).await?;
            name_holders(&held, &mut reply);
            remove_addresses(&mut reply);
            remove_estimates(&mut reply);
            return Ok(reply);
        }
        if !differs {
            assert_refused(&self.test_server.http, command.clone()).await;
        }
        self.test_server.engine.execute(vec![command]).await.remove(0)
    }
}

impl HttpHarness {
    /// Whether the command names sub-queues that its tube would ignore.
    async fn would_ignore(&self, command: &Command) -> bool {
        let Command::Put { tube, tasks, .. } = command else { return false };
        if tasks.iter().all(|task| task.subqueue.is_none()) {
            return false;
        }
        let asked = vec![Command::Tubes { tube: Some(tube.clone()) }];
        match self.test_server.engine.execute(asked).await.remove(0) {
            Ok(Reply::Tubes(tubes)) => tubes.iter().any(|tube| !tube.options.kind.has_subqueues()),
            _ => false,
        }
    }

    /// The deliveries in the tube of a command whose reply may show tasks with their holders.
    async fn held(&self, command: &Command) -> Vec<Task> {
        let Some(tube) = shows_holders(command) else { return Vec::new() };
        let deliveries = Command::Deliveries { tube, count: BATCH_TASKS_MAX };
        match self.test_server.http.execute_one(deliveries).await {
            Ok(Reply::Tasks(held)) => held,
            // The command itself returns the error.
            _ => Vec::new(),
        }
    }
}

/// Over HTTP only the deliveries contain the session of a task; other replies are completed from
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

/// The engine adds them, and stores do not.
fn remove_estimates(reply: &mut Reply) {
    if let Reply::Positions(positions) = reply {
        for position in positions {
            assert!(position.estimate.take().is_some(), "{position:?}");
        }
    }
}

/// The tube of a command whose reply shows tasks that may be taken.
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
    let refusal = http.execute_one(command).await;
    let refused = matches!(
        &refusal,
        Err(HttpError::Refused { error: Error::Invalid(_) | Error::Unsupported { .. }, .. })
    );
    assert!(refused, "{verb} over HTTP answered {refusal:?}");
}

/// Whether the server would replace the random number of the command.
fn draws_random(command: &Command) -> bool {
    let by_policy = |item: &FinishItem| match &item.finish {
        Finish::Fail(fail) => matches!(fail.then, AfterFailure::Policy { .. }),
        _ => false,
    };
    matches!(command, Command::Finish { items, .. } if items.iter().any(by_policy))
}

/// Whether the command may name a schedule whose rule HTTP cannot show.
fn has_text_rules(command: &Command) -> bool {
    let Command::Schedule(command) = command else { return false };
    !matches!(**command, ScheduleCommand::Due { .. } | ScheduleCommand::Fire { .. })
}

fn needs_more_than_http(command: &Command) -> bool {
    match command {
        Command::JoinSession { .. }
        | Command::LeaveSession { .. }
        | Command::ConfigureSessions { .. }
        | Command::Schedule(_)
        | Command::Tick { .. } => true,
        Command::Take(take) => take.session.is_some(),
        Command::Finish { items, .. } => {
            items.iter().any(|item| matches!(item.holder, Holder::Session(_)))
        }
        _ => false,
    }
}

/// From this number on, tubes that one call creates are created behind the server.
const CREATED_BEHIND_MIN: usize = 100;

impl Execute for HttpHarness {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        // Thousands of tubes that a case only needs to exist are created behind the server: over HTTP each is a request.
        if commands.len() >= CREATED_BEHIND_MIN
            && commands.iter().all(|command| matches!(command, Command::CreateTube { .. }))
        {
            return self.test_server.engine.execute(commands).await;
        }
        let mut replies = Vec::new();
        for command in commands {
            replies.push(self.execute_one(command).await);
        }
        replies
    }
}

impl Harness for HttpHarness {
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
        let (clock, folder) = (self.test_server.clock.clone(), self.folder);
        self.test_server.stop().await;
        HttpHarness::start(folder, clock).await
    }
}
