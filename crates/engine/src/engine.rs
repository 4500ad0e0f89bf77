//! The public handle of the event loop: starts it, submits commands and waits for their replies.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::thread;

use taskyard_core::limits::{
    BATCH_BYTES_MAX, PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX, SERIES_TUBES_MAX,
};
use taskyard_core::{
    Command, Error, Execute, NewTask, Reply, Result, ScheduleCommand, ScheduleName, Timestamp,
    TubeName,
};
use taskyard_store::{Capabilities, Store, StoreBackup, StoreHealth};
use taskyard_trace::Recorder;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::event_loop::EventLoop;
use crate::inbox::Inbox;
use crate::listeners::listens;
use crate::loop_waits::{EngineTask, LoopWaits, block_on};
use crate::reply::{PendingReply, unanswered};
use crate::request::{OneOrMany, Query};
use crate::schedules::ScheduleNotes;
use crate::series::{Series, SeriesRequest, TubeFigures, TubeLatency};
use crate::shutdown::{LoopOutcome, ShutdownNotifier, outcome_of};
use crate::waiters::{Waiting, WaitingCount};
use crate::workers::{WORKERS_MAX, WorkerInfo};

/// Settings of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest payload of a task, in bytes.
    pub payload_bytes_max: usize,
    /// Maximum number of tubes with time series; 0 collects none.
    pub series_tubes_max: usize,
    /// Maximum number of workers that are remembered; 0 remembers none.
    pub workers_max: usize,
    /// Whether the engine fires schedules, and checks their rules when they are set. Without it they
    /// are stored as they are given.
    pub fires_schedules: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            payload_bytes_max: PAYLOAD_BYTES_DEFAULT,
            series_tubes_max: SERIES_TUBES_MAX,
            workers_max: WORKERS_MAX,
            fires_schedules: true,
        }
    }
}

/// Handle to the event loop of one store. Cheap to clone; the loop ends when the last clone is
/// dropped, or by [`Engine::stop`].
///
/// It adds what a store does not do itself: the time, waiting, ticks, and limits on queued work.
/// Commands of all callers run in the order of their arrival, gathered in batches. Waiting commands
/// are served in the order of arrival; a command that waits does not block later ones.
///
/// When a caller drops its request before the reply arrives, the tasks taken for it are returned.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
    put_check: Option<PutCheck>,
}

/// Decides whether tasks may be put into a tube; the error is the refusal of the put.
pub type PutCheck = Arc<dyn Fn(&TubeName, &[NewTask]) -> Result<()> + Send + Sync>;

pub(crate) struct EngineInner {
    pub(crate) inbox: Arc<Inbox>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    ended: LoopOutcome,
    settings: Settings,
}

impl Engine {
    /// Starts the loop on its own thread. Embedded stores do their work on that thread, too.
    pub fn start(store: Box<dyn Store>, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        Engine::start_recorded(store, clock, settings, None)
    }

    /// The same, and records what passes through the loop. The recorder is dropped when the loop ends.
    pub fn start_recorded(
        store: Box<dyn Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        recorder: Option<Recorder>,
    ) -> Self {
        let (engine, ending) = Engine::prepare(Inbox::default(), store, clock, settings);
        let parts = engine.inner.parts();
        let spawned = thread::Builder::new().name("taskyard-engine".into()).spawn(move || {
            let running = run_loop(ending, parts, LoopWaits::blocking(), settings, recorder);
            // Its waits block, so the first poll is its whole life.
            block_on(running, Waker::noop());
        });
        if let Err(error) = spawned {
            // The returned engine answers every command with an error.
            tracing::error!(%error, "cannot start the engine's thread");
        }
        engine
    }

    /// Prepares a loop without a thread of its own: it runs while the caller polls the returned task, within a Tokio
    /// runtime whose time passes like that of `clock`. Nothing of it blocks, spins or reads the time of the machine,
    /// so that a simulation can run many of them on one thread.
    pub fn start_stepped(
        store: Box<dyn Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> (Self, EngineTask) {
        let (engine, ending) = Engine::prepare(Inbox::stepped(), store, clock, settings);
        let parts = engine.inner.parts();
        let running = run_loop(ending, parts, LoopWaits::Suspends, settings, None);
        (engine, EngineTask::new(running))
    }

    /// The handle of a loop that is not running yet, and what reports its end.
    fn prepare(
        inbox: Inbox,
        store: Box<dyn Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> (Self, ShutdownNotifier) {
        let store: Arc<dyn Store> = store.into();
        let inbox = Arc::new(inbox);
        clock.watch(Waker::from(inbox.clone()));
        let (ending, ended) = ShutdownNotifier::new(inbox.clone());
        let payload_bytes_max = settings.payload_bytes_max.min(PAYLOAD_BYTES_MAX);
        let settings = Settings { payload_bytes_max, ..settings };
        let inner = EngineInner { inbox, store, clock, ended, settings };
        (Engine { inner: Arc::new(inner), put_check: None }, ending)
    }

    /// A handle that refuses puts, and schedules of puts, that do not pass this check. Other handles of
    /// the same loop do not check.
    pub fn with_put_check(self, check: PutCheck) -> Self {
        Engine { put_check: Some(check), ..self }
    }

    /// Stops the loop: new commands are refused, waiting takes return no tasks, waiting puts return
    /// `ShuttingDown`, everything else is finished and the store is closed. May be called more than
    /// once; each call returns when all of that is done.
    pub async fn stop(&self) -> Result<()> {
        self.inner.inbox.stop();
        outcome_of(self.inner.ended.clone()).await
    }

    /// The current time of the engine's clock, which callers may use to measure durations.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.store.capabilities()
    }

    /// What happens to acknowledged tasks when the machine fails, for stores that do not decide
    /// this themselves.
    pub fn durability(&self) -> Option<String> {
        self.inner.store.durability()
    }

    /// The features that this store does not support.
    pub fn unsupported(&self) -> &'static [&'static str] {
        self.inner.store.unsupported()
    }

    /// The settings of the operator.
    pub fn settings(&self) -> Settings {
        self.inner.settings
    }

    /// Begins a backup of the store, which is read while the loop goes on. Blocks the calling thread for a moment.
    pub fn backup(&self) -> Result<Box<dyn StoreBackup>> {
        self.inner.store.backup(self.now())
    }

    /// All waiting commands: by tube, in the order of their arrival. Empty in a stopped engine.
    pub async fn waiting(&self) -> Vec<Waiting> {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Waiting(reply));
        receiver.await.unwrap_or_default()
    }

    /// The number of waiting commands for each tube; tubes without any are left out.
    pub async fn waiting_counts(&self) -> BTreeMap<TubeName, WaitingCount> {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Counts(reply));
        receiver.await.unwrap_or_default()
    }

    /// Checks that the store works, which includes writing; the error says why it does not.
    pub async fn health(&self) -> Result<StoreHealth> {
        let EngineInner { store, inbox, .. } = &*self.inner;
        if store.poll_every().is_some() && inbox.is_alive() {
            // A slow database must not delay the event loop. Its own clock decides.
            return store.health(Timestamp::from_micros(0)).await;
        }
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Health(reply));
        receiver.await.unwrap_or(Err(Error::ShuttingDown))
    }

    /// A part of the time series of a tube, or of the sum of all. `None` if the tube was not used
    /// since the start, or there are too many, or series are turned off.
    pub async fn series(&self, request: SeriesRequest) -> Option<Series> {
        self.query_series(request, true).await
    }

    /// The same for a caller that does not count as an observer: no tasks are counted for it.
    pub async fn unobserved_series(&self, request: SeriesRequest) -> Option<Series> {
        self.query_series(request, false).await
    }

    async fn query_series(&self, request: SeriesRequest, observes: bool) -> Option<Series> {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Series { request, observes, reply });
        receiver.await.unwrap_or_default()
    }

    /// How long tasks waited and ran, for each tube that has time series.
    pub async fn latencies(&self) -> Vec<TubeLatency> {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Latencies(reply));
        receiver.await.unwrap_or_default()
    }

    /// Failures and latest durations on this server, for each tube that has time series. Failures are
    /// deliveries reported as failed, expired leases, and what sessions held when they ended. `None`
    /// if series are turned off.
    pub async fn tube_figures(&self) -> Option<BTreeMap<TubeName, TubeFigures>> {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::TubeFigures(reply));
        receiver.await.unwrap_or_default()
    }

    /// The workers that took tasks on this server, by name. Those that were not seen for an hour
    /// are removed, unless they are among `holding`: the names that the store shows as holders of
    /// tasks. `None` removes none.
    pub async fn workers(&self, holding: Option<HashSet<Arc<str>>>) -> Vec<WorkerInfo> {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Workers(holding, reply));
        receiver.await.unwrap_or_default()
    }

    /// How many keys of ended tasks this engine freed before their time, because tubes had too many.
    pub async fn keys_freed_early(&self) -> u64 {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::KeysFreedEarly(reply));
        receiver.await.unwrap_or_default()
    }

    /// The error of each of these schedules whose tasks were refused the last time, and how often
    /// schedules fired on this server.
    pub async fn schedule_notes(&self, names: Vec<ScheduleName>) -> ScheduleNotes {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Schedules(names, reply));
        receiver.await.unwrap_or_default()
    }

    /// The payload bytes of a command, or why it is refused.
    fn check(&self, command: &Command) -> Result<usize> {
        let size = self.inner.settings.check(command)?;
        let Some(check) = &self.put_check else { return Ok(size) };
        if let Some((tube, tasks)) = tasks_of(command) {
            check(tube, tasks)?;
        } else if matches!(command, Command::Schedule(command) if command.adds_tasks()) {
            // It does not say into which tube. The engine itself fires the task that was checked when the schedule was set.
            let why = "this server checks puts against a contract, so only the server itself fires schedules; use run";
            return Err(Error::Invalid(why.into()));
        }
        Ok(size)
    }

    /// Runs the commands that were not refused; the bytes are those of these.
    async fn run_without(
        &self,
        refused: Vec<(usize, Error)>,
        commands: Vec<Command>,
        bytes: usize,
    ) -> Vec<Result<Reply>> {
        let accepted = without(commands, &refused);
        let mut replies = match accepted.is_empty() {
            true => Vec::new(),
            false => self.run_with_estimates(accepted, bytes).await,
        };
        for (index, error) in refused {
            replies.insert(index, Err(error));
        }
        replies
    }

    /// Runs commands that were checked against the limits.
    pub(crate) async fn run(&self, commands: Vec<Command>, bytes: usize) -> Vec<Result<Reply>> {
        let EngineInner { inbox, store, .. } = &*self.inner;
        let count = commands.len();
        let takes = takes_of(&commands);
        let waits = commands.iter().any(waits);
        let submitted = match inbox.submit(commands.into(), bytes, takes, waits) {
            Ok(submitted) => submitted,
            Err(refusal) => return vec![Err(refusal); count],
        };
        let replies = PendingReply::new(inbox, submitted, waits).replies(&**store).await;
        replies.unwrap_or_else(|| vec![Err(unanswered()); count])
    }
}

/// What a loop shares with the handles of its engine.
type LoopParts = (Arc<Inbox>, Arc<dyn Store>, Arc<dyn Clock>);

impl EngineInner {
    fn parts(&self) -> LoopParts {
        (self.inbox.clone(), self.store.clone(), self.clock.clone())
    }
}

/// Runs the loop to its end.
async fn run_loop(
    ending: ShutdownNotifier,
    parts: LoopParts,
    waits: LoopWaits,
    settings: Settings,
    recorder: Option<Recorder>,
) {
    // Bound first and therefore dropped last: when the end is reported, the store is released.
    let ending = ending;
    let (inbox, store, clock) = parts;
    let outcome = EventLoop::new(waits, inbox, store, clock, settings, recorder).run().await;
    ending.orderly(outcome);
}

impl Execute for Engine {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply>> {
        if commands.is_empty() {
            return Vec::new();
        }
        let mut bytes = 0;
        let (mut refused, mut asks_positions) = (Vec::new(), false);
        for (index, command) in commands.iter().enumerate() {
            match self.check(command) {
                Ok(size) => bytes += size,
                Err(error) => refused.push((index, error)),
            }
            asks_positions |= matches!(command, Command::Positions { .. });
        }
        if refused.is_empty() && !asks_positions {
            return self.run(commands, bytes).await;
        }
        // In a box, because it is rare: every request is as large as its largest part.
        Box::pin(async move {
            match refused.is_empty() {
                true => self.run_with_estimates(commands, bytes).await,
                false => self.run_without(refused, commands, bytes).await,
            }
        })
        .await
    }
}

/// The loop ends when the last handle is dropped.
impl Drop for EngineInner {
    fn drop(&mut self) {
        self.inbox.stop();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Engine");
        f.field("store", &self.capabilities().name).finish_non_exhaustive()
    }
}

impl Settings {
    /// The payload bytes of a command, or the limit that it exceeds.
    fn check(&self, command: &Command) -> Result<usize> {
        let tasks = match command {
            Command::Put { tasks, .. } => tasks,
            Command::Schedule(command) => command.tasks(),
            _ => return Ok(0),
        };
        let advice = "store the data somewhere else and put a reference to it, or raise the limit";
        for task in tasks {
            let size = task.body.payload().len();
            within("the payload of a task, in bytes,", size, self.payload_bytes_max, advice)?;
        }
        if tasks.len() > 1 {
            // A task within the limit can always be put alone.
            let size = tasks.iter().map(|task| task.body.bytes() as usize).sum();
            let advice = "put the tasks in several batches";
            within("one put, in bytes,", size, BATCH_BYTES_MAX, advice)?;
        }
        Ok(command.payload_bytes())
    }
}

/// The tasks that a command puts now or later, and their tube.
fn tasks_of(command: &Command) -> Option<(&TubeName, &[NewTask])> {
    match command {
        Command::Put { tube, tasks, .. } => Some((tube, tasks)),
        Command::Schedule(command) => match &**command {
            ScheduleCommand::Set { schedule, .. } => {
                Some((&schedule.tube, std::slice::from_ref(&schedule.template)))
            }
            _ => None,
        },
        _ => None,
    }
}

fn within(what: &'static str, size: usize, limit: usize, advice: &'static str) -> Result<()> {
    if size <= limit { Ok(()) } else { Err(Error::TooLarge { what, size, limit, advice }) }
}

fn without(commands: Vec<Command>, refused: &[(usize, Error)]) -> Vec<Command> {
    let mut refused = refused.iter().map(|refused| refused.0).peekable();
    let numbered = commands.into_iter().enumerate();
    let accepted = numbered.filter(|(index, _)| refused.next_if_eq(index).is_none());
    accepted.map(|(_, command)| command).collect()
}

fn takes_of(commands: &[Command]) -> OneOrMany<(usize, TubeName)> {
    let takes = commands.iter().enumerate().filter_map(|(index, command)| match command {
        Command::Take(take) => Some((index, take.tube.clone())),
        _ => None,
    });
    takes.collect()
}

fn waits(command: &Command) -> bool {
    match command {
        Command::Take(take) => !take.wait.is_zero(),
        Command::Put { wait, .. } => !wait.is_zero(),
        other => listens(other).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::limits::META_BYTES_MAX;
    use taskyard_core::{Body, Span};

    use super::*;

    fn put(bodies: &[&Body]) -> Command {
        let tasks = bodies.iter().map(|body| NewTask::new((*body).clone())).collect();
        Command::Put { tube: TubeName::new("mail").unwrap(), tasks, wait: Span::ZERO }
    }

    // The memory size of a body was compared with the limit of a put, so the largest payload that
    // an operator may allow was refused.
    #[test]
    fn the_largest_payload_can_be_put_and_only_alone() {
        let settings = Settings { payload_bytes_max: PAYLOAD_BYTES_MAX, ..Settings::default() };
        let payload = vec![0xc0; PAYLOAD_BYTES_MAX + 1];
        let largest = Body::with_meta(&payload[1..], &[0x80; META_BYTES_MAX]);
        assert!(settings.check(&put(&[&largest])).is_ok());
        let half = Body::new(&payload[..BATCH_BYTES_MAX / 2]);
        assert!(settings.check(&put(&[&half, &half])).is_ok());
        for refused in [&[&half, &half, &Body::new(&[0xc0])][..], &[&Body::new(&payload)]] {
            let refused = settings.check(&put(refused));
            assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
        }
    }
}
