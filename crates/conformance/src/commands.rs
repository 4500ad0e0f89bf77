//! Short forms of commands for the cases: each runs one command and unwraps its reply.

use std::fmt::Debug;
use std::sync::Arc;

use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Body, Calls, Command, Error, Finish, FinishItem, Found, Holder, Kind, Lease, ListedTask,
    NewTask, Outcome, Placed, Position, Reply, Result, Search, SessionId, Span, State, Take, Task,
    TaskId, TubeChange, TubeName, TubeOptions, TubeStats,
};

use super::Harness;

/// A task that carries this text as a MessagePack string.
pub(super) fn task(text: &str) -> NewTask {
    NewTask::new(Body::new(&message_pack(text)))
}

/// A task of this sub-queue.
pub(super) fn task_of(subqueue: &str) -> NewTask {
    NewTask { subqueue: Some(Arc::from(subqueue)), ..task(subqueue) }
}

/// A short text as a MessagePack string.
pub(super) fn message_pack(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).ok().filter(|length| *length < 32);
    let mut bytes = vec![0xa0 | length.expect("texts of cases have less than 32 bytes")];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Whole seconds.
pub(super) const fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

/// A microsecond less than these seconds.
pub(super) const fn almost(seconds: u64) -> Span {
    Span::from_micros(seconds as i64 * 1_000_000 - 1)
}

/// A tube name of a case.
pub(super) fn name(text: &str) -> TubeName {
    TubeName::new(text).expect("tube names of cases are valid")
}

/// A session of a case.
pub(super) const fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

/// Released immediately, counted.
pub(super) const RELEASE: Finish = Finish::Release { delay: Span::ZERO, counted: true };

/// A lease that no store has issued.
pub(super) const NO_LEASE: Lease = Lease(u64::MAX >> 1);

/// The task after a finish that was done.
#[track_caller]
pub(super) fn done(outcome: Outcome) -> Task {
    match outcome {
        Outcome::Done(Some(task)) => *task,
        other => panic!("expected it to be done, got {other:?}"),
    }
}

/// The number of the delivery of a taken task.
#[track_caller]
pub(super) fn lease(task: &Task) -> Lease {
    task.lease.expect("a taken task has a lease")
}

/// The ids of these tasks, in their order.
pub(super) fn ids(tasks: &[Task]) -> Vec<u64> {
    tasks.iter().map(|task| task.id.0).collect()
}

/// The positions as a store knows them: a server adds estimates.
pub(super) fn without_estimates(positions: Vec<Position>) -> Vec<Position> {
    let positions = positions.into_iter();
    positions.map(|position| Position { estimate: None, ..position }).collect()
}

/// Panics with an unexpected reply.
#[track_caller]
fn unexpected(reply: impl Debug) -> ! {
    panic!("unexpected reply: {}", brief(&reply))
}

/// A value as a failure shows it: truncated, because a reply can have thousands of tasks.
pub(super) fn brief(value: &impl Debug) -> String {
    const CHARS_MAX: usize = 2000;
    let text = format!("{value:?}");
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text,
    }
}

/// Short forms of commands, each run alone.
pub(super) trait QueueCommands: Harness {
    /// Runs one command and returns its reply.
    async fn run(&self, command: Command) -> Result<Reply> {
        let mut replies = self.execute(vec![command]).await;
        assert_eq!(replies.len(), 1, "one command has one reply");
        replies.remove(0)
    }

    /// One command that must succeed.
    async fn must(&self, command: Command) -> Reply {
        let verb = command.verb();
        self.run(command).await.unwrap_or_else(|error| panic!("{verb} failed: {error:?}"))
    }

    /// One command that must be refused.
    async fn refused(&self, command: Command) -> Error {
        match self.run(command).await {
            Err(error) => error,
            Ok(reply) => panic!("expected a refusal, got {}", brief(&reply)),
        }
    }

    /// Whether the store has a feature. If not, it must refuse this command that needs it.
    async fn supports(&self, has: bool, feature: &'static str, command: Command) -> bool {
        if !has {
            let store = self.capabilities().name;
            assert_eq!(self.refused(command).await, Error::MissingFeature { store, feature });
        }
        has
    }

    /// Creates the tube `jobs` of this kind.
    async fn tube(&self, kind: Kind) -> TubeName {
        self.tube_with(TubeOptions::new(kind)).await
    }

    /// Creates the tube `jobs` with these options.
    async fn tube_with(&self, options: TubeOptions) -> TubeName {
        self.tube_named("jobs", options).await
    }

    /// Creates a tube.
    async fn tube_named(&self, text: &str, options: TubeOptions) -> TubeName {
        let tube = name(text);
        let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
        assert_eq!(self.must(create).await, Reply::Created(true));
        tube
    }

    /// Changes a tube.
    async fn alter(&self, tube: &TubeName, change: TubeChange) -> TubeInfo {
        match self.must(Command::AlterTube { tube: tube.clone(), change }).await {
            Reply::Tubes(mut tubes) if tubes.len() == 1 => tubes.remove(0),
            other => unexpected(other),
        }
    }

    /// Pauses or resumes a tube.
    async fn pause(&self, tube: &TubeName, paused: bool) -> TubeInfo {
        self.alter(tube, TubeChange { paused: Some(paused), ..TubeChange::default() }).await
    }

    /// Shows all tubes.
    async fn tubes(&self) -> Vec<TubeInfo> {
        match self.must(Command::Tubes { tube: None }).await {
            Reply::Tubes(tubes) => tubes,
            other => unexpected(other),
        }
    }

    /// Shows a tube.
    async fn info(&self, tube: &TubeName) -> TubeInfo {
        match self.must(Command::Tubes { tube: Some(tube.clone()) }).await {
            Reply::Tubes(mut tubes) if tubes.len() == 1 => tubes.remove(0),
            other => unexpected(other),
        }
    }

    /// The statistics of a tube.
    async fn stats(&self, tube: &TubeName) -> TubeStats {
        self.info(tube).await.stats
    }

    /// The call counters of a tube.
    async fn calls(&self, tube: &TubeName) -> Calls {
        self.stats(tube).await.calls
    }

    /// Puts one task.
    async fn put(&self, tube: &TubeName, task: NewTask) -> TaskId {
        self.put_many(tube, vec![task]).await[0].id
    }

    /// Puts one task for each text.
    async fn put_texts(&self, tube: &TubeName, texts: &[&str]) -> Vec<Placed> {
        self.put_many(tube, texts.iter().map(|text| task(text)).collect()).await
    }

    /// Puts tasks.
    async fn put_many(&self, tube: &TubeName, tasks: Vec<NewTask>) -> Vec<Placed> {
        let count = tasks.len();
        match self.must(put(tube, tasks)).await {
            Reply::Put(placed) if placed.len() == count => placed,
            other => unexpected(other),
        }
    }

    /// Takes one existing task.
    async fn take(&self, tube: &TubeName) -> Task {
        self.take_by(take(tube, 1)).await.pop().expect("a task can be taken")
    }

    /// Takes up to `count` tasks.
    async fn take_many(&self, tube: &TubeName, count: usize) -> Vec<Task> {
        self.take_by(take(tube, count)).await
    }

    /// Takes one existing task for a session.
    async fn take_as(&self, tube: &TubeName, session: SessionId) -> Task {
        let take = Take { session: Some(session), ..take(tube, 1) };
        self.take_by(take).await.pop().expect("a task can be taken")
    }

    /// Takes one existing task with this lease time.
    async fn take_for(&self, tube: &TubeName, lease: Span) -> Task {
        let take = Take { lease: Some(lease), ..take(tube, 1) };
        self.take_by(take).await.pop().expect("a task can be taken")
    }

    /// Takes.
    async fn take_by(&self, take: Take) -> Vec<Task> {
        let count = take.count;
        match self.must(Command::Take(take)).await {
            Reply::Taken(tasks) if tasks.len() <= count => tasks,
            other => unexpected(other),
        }
    }

    /// Finishes one delivery.
    async fn finish(&self, tube: &TubeName, id: TaskId, by: Holder, how: Finish) -> Outcome {
        let item = FinishItem { id, holder: by, finish: how };
        self.finish_many(tube, vec![item]).await.remove(0)
    }

    /// Finishes deliveries.
    async fn finish_many(&self, tube: &TubeName, items: Vec<FinishItem>) -> Vec<Outcome> {
        let count = items.len();
        match self.must(Command::Finish { tube: tube.clone(), items, show: true }).await {
            Reply::Finished(outcomes) if outcomes.len() == count => outcomes,
            other => unexpected(other),
        }
    }

    /// Finishes a delivery by its lease number.
    async fn finish_lease(&self, tube: &TubeName, task: &Task, how: Finish) -> Outcome {
        self.finish(tube, task.id, Holder::Lease(lease(task)), how).await
    }

    /// Acks by lease number.
    async fn ack(&self, tube: &TubeName, task: &Task) -> Outcome {
        self.finish_lease(tube, task, Finish::Ack).await
    }

    /// Releases by lease number, counted, without delay.
    async fn release(&self, tube: &TubeName, task: &Task) -> Outcome {
        self.finish_lease(tube, task, RELEASE).await
    }

    /// Touches by lease number.
    async fn touch(&self, tube: &TubeName, task: &Task, span: Span) -> Outcome {
        self.finish_lease(tube, task, Finish::Touch(span)).await
    }

    /// Buries without holding.
    async fn bury(&self, tube: &TubeName, id: TaskId) -> Outcome {
        self.finish(tube, id, Holder::Any, Finish::Bury).await
    }

    /// Kicks.
    async fn kick(&self, tube: &TubeName, count: u64) -> u64 {
        match self.must(Command::Kick { tube: tube.clone(), count }).await {
            Reply::Kicked(kicked) => kicked,
            other => unexpected(other),
        }
    }

    /// Kicks chosen tasks.
    async fn kick_tasks(&self, tube: &TubeName, ids: &[u64], reset_attempts: bool) -> Vec<Outcome> {
        let (tube, ids) = (tube.clone(), ids.iter().copied().map(TaskId).collect());
        match self.must(Command::KickTasks { tube, ids, reset_attempts }).await {
            Reply::Finished(outcomes) => outcomes,
            other => unexpected(other),
        }
    }

    /// Deletes one task.
    async fn delete(&self, tube: &TubeName, id: TaskId) -> Outcome {
        match self.must(Command::Delete { tube: tube.clone(), ids: vec![id], show: true }).await {
            Reply::Finished(mut outcomes) if outcomes.len() == 1 => outcomes.remove(0),
            other => unexpected(other),
        }
    }

    /// Shows one task, if it exists.
    async fn peek(&self, tube: &TubeName, id: TaskId) -> Option<Task> {
        match self.must(Command::Peek { tube: tube.clone(), ids: vec![id] }).await {
            Reply::Tasks(mut tasks) if tasks.len() <= 1 => tasks.pop(),
            other => unexpected(other),
        }
    }

    /// Shows one task that must exist.
    async fn peek_existing(&self, tube: &TubeName, id: TaskId) -> Task {
        self.peek(tube, id).await.expect("the task exists")
    }

    /// The state of a task, `Done` if it does not exist.
    async fn state(&self, tube: &TubeName, id: TaskId) -> State {
        self.peek(tube, id).await.map_or(State::Done, |task| task.state)
    }

    /// Shows the deliveries of a tube.
    async fn deliveries(&self, tube: &TubeName, count: usize) -> Vec<Task> {
        match self.must(Command::Deliveries { tube: tube.clone(), count }).await {
            Reply::Tasks(tasks) => tasks,
            other => unexpected(other),
        }
    }

    /// A page of a list.
    async fn list(&self, list: Command) -> Vec<ListedTask> {
        match self.must(list).await {
            Reply::Listed(tasks) => tasks,
            other => unexpected(other),
        }
    }

    /// The tasks that a search found.
    async fn search(&self, search: Search) -> Found {
        match self.must(Command::Search(search)).await {
            Reply::Found(found) => found,
            other => unexpected(other),
        }
    }

    /// The positions of tasks.
    async fn positions(&self, tube: &TubeName, ids: &[u64]) -> Vec<Position> {
        let ids = ids.iter().copied().map(TaskId).collect();
        match self.must(Command::Positions { tube: tube.clone(), ids }).await {
            Reply::Positions(positions) => without_estimates(positions),
            other => unexpected(other),
        }
    }

    /// Runs a command whose reply is empty.
    async fn must_reply_nothing(&self, command: Command) {
        assert_eq!(self.must(command).await, Reply::Nothing);
    }

    /// Removes all tasks.
    async fn truncate(&self, tube: &TubeName) {
        self.must_reply_nothing(Command::Truncate { tube: tube.clone() }).await;
    }

    /// Releases all taken tasks.
    async fn release_all(&self, tube: &TubeName) {
        self.must_reply_nothing(Command::ReleaseAll { tube: tube.clone() }).await;
    }

    /// Drops a tube.
    async fn drop_tube(&self, tube: &TubeName) {
        self.must_reply_nothing(Command::DropTube { tube: tube.clone() }).await;
    }

    /// Adds a connection to a session, which is created if necessary.
    async fn join(&self, session: SessionId) {
        let join = Command::JoinSession { session, create: true };
        assert_eq!(self.must(join).await, Reply::Session(session));
    }

    /// Removes a connection from a session.
    async fn leave(&self, session: SessionId) {
        self.must_reply_nothing(Command::LeaveSession { session }).await;
    }
}

impl<H: Harness> QueueCommands for H {}

/// Adds these tasks, without waiting for capacity.
pub(super) fn put(tube: &TubeName, tasks: Vec<NewTask>) -> Command {
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

/// Up to `count` tasks, without session, without waiting.
pub(super) fn take(tube: &TubeName, count: usize) -> Take {
    Take { tube: tube.clone(), count, session: None, lease: None, worker: None, wait: Span::ZERO }
}
