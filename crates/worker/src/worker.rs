//! The worker and its life cycle: `init`, `run`, `shutdown`, `graceful_stop`.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::limits::TUBE_NUMBERS_MAX;
use taskyard_core::{DynExecute, Error as Refusal, Execute, Span, TubeName};
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinSet};

use crate::batch_queue::BatchQueue;
use crate::dispatcher::Dispatcher;
use crate::metrics::{GaugeGuard, Metrics};
use crate::processor;
use crate::queue_report::{LoadAverage, QueueReport};
use crate::queue_selector::{Plan, QueueSelector};
use crate::registration;
use crate::reporter;
use crate::settings::{Settings, SettingsError};
use crate::signal::Signal;
use crate::slots::Slots;
use crate::state::{Phase, WorkerQueue, WorkerState};
use crate::store::Store;
use crate::timer::{SystemTimer, Timer};

/// How long handlers may run on after they were cancelled.
const CANCEL_GRACE: Span = Span::from_secs(1);
/// How long a worker may take to end after it abandoned its handlers.
const END_TIMEOUT: Span = Span::from_secs(3);

/// Takes tasks of its queues and gives them to handlers. Cheap to clone: clones are the same worker.
///
/// Delivery is at least once: handlers must be idempotent.
#[derive(Clone)]
pub struct Worker {
    state: Arc<WorkerState>,
}

/// Why a worker cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// Queues without a handler.
    #[error("no handler for {}; give the worker one for each queue", .0.join(", "))]
    MissingHandlers(Vec<String>),
    /// The worker has no queues.
    #[error("a worker needs at least one queue")]
    NoQueues,
    /// Two queues have the same number or the same name.
    #[error("duplicate queue {0}; give each queue its own number and name")]
    DuplicateQueue(String),
    /// The worker cannot use the tube.
    #[error("tube '{tube}' cannot be used as a queue: {why}")]
    UnsuitableTube {
        /// The tube.
        tube: TubeName,
        /// Why it cannot be used.
        why: &'static str,
    },
    /// Another tube of the store has the queue's number.
    #[error(
        "queue number {num} belongs to tube '{tube}', not to '{wanted}'; if the queue was renamed, write \
         'was: [{tube}]' into its contract, otherwise give it a number that was never used"
    )]
    QueueNumTaken {
        /// The number.
        num: u32,
        /// The tube that has it.
        tube: TubeName,
        /// The queue that wants it.
        wanted: TubeName,
    },
    /// A setting is out of range.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The queue refused to describe or to create a tube.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The worker runs already, or has run.
    #[error("the worker has run already; build a new one to run again")]
    AlreadyRan,
}

/// Processors that did not end in time. Their tasks return when their leases end.
#[derive(Debug, thiserror::Error)]
#[error("still running after the deadline: {}", names(.0))]
pub struct StillRunning(pub Vec<String>);

fn names(running: &[String]) -> String {
    if running.is_empty() { "the queue does not answer".into() } else { running.join(", ") }
}

/// Why a plan is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// It assigns more processors than the worker has.
    #[error("the plan assigns {asked} processors, the worker has {max}")]
    TooManyProcessors {
        /// How many it assigns.
        asked: usize,
        /// How many the worker has.
        max: usize,
    },
    /// The worker follows a newer plan already.
    #[error("the worker follows a newer plan already")]
    Outdated,
}

/// Builds a [`Worker`].
pub struct WorkerBuilder {
    name: String,
    queue: Box<dyn DynExecute>,
    dispatcher: Dispatcher,
    settings: Settings,
    metrics: Metrics,
    timer: Arc<dyn Timer>,
    /// Identifies it to a manager; random unless a test sets it.
    id: Option<String>,
    managed: bool,
    /// How many functions run at a time, in a worker of functions.
    concurrency: Option<usize>,
}

impl WorkerBuilder {
    pub(crate) fn new(name: &str, queue: Box<dyn DynExecute>, dispatcher: Dispatcher) -> Self {
        WorkerBuilder {
            name: name.into(),
            queue,
            dispatcher,
            settings: Settings::default(),
            metrics: Metrics::default(),
            timer: Arc::new(SystemTimer),
            id: None,
            managed: false,
            concurrency: None,
        }
    }

    /// Sets the settings.
    pub fn settings(self, settings: Settings) -> Self {
        WorkerBuilder { settings, ..self }
    }

    /// Sets the metrics to count in; several workers may share one set.
    pub fn metrics(self, metrics: Metrics) -> Self {
        WorkerBuilder { metrics, ..self }
    }

    /// Makes the worker report to the manager of the store every five seconds and follow its plan. Every `taskyard serve`
    /// runs a manager; without one the worker serves its queues round robin.
    pub fn managed(self) -> Self {
        WorkerBuilder { managed: true, ..self }
    }

    /// Sets another timer than the system's, for tests.
    pub fn timer(self, timer: Arc<dyn Timer>) -> Self {
        WorkerBuilder { timer, ..self }
    }

    /// Sets the identifier that a manager knows the worker by, instead of a random one, for tests. No two workers may have the
    /// same.
    pub fn id(self, id: &str) -> Self {
        WorkerBuilder { id: Some(id.into()), ..self }
    }

    /// Limits how many functions run at a time.
    pub(crate) fn concurrency(self, concurrency: usize) -> Self {
        WorkerBuilder { concurrency: Some(concurrency), ..self }
    }

    /// Builds the worker. Checks the settings and the names and numbers of its queues; everything else is checked by
    /// [`Worker::init`].
    pub fn build(self) -> Result<Worker, InitError> {
        self.settings.check()?;
        let mut seen = (BTreeSet::new(), BTreeSet::new());
        let mut queues = Vec::new();
        for route in self.dispatcher.routes {
            if !seen.0.insert(route.num) || !seen.1.insert(route.name.clone()) {
                return Err(InitError::DuplicateQueue(format!("{} '{}'", route.num, route.name)));
            }
            queues.push(WorkerQueue {
                num: route.num,
                is_numbered: route.is_numbered,
                tube: TubeName::new(&route.name)?,
                was: route.was.iter().map(|name| TubeName::new(name)).collect::<Result<_, _>>()?,
                handler: route.handler,
                metrics: self.metrics.queue(route.num),
                number: AtomicU32::new(0),
                load: Mutex::new(LoadAverage::default()),
            });
        }
        let counted = queues
            .iter()
            .map(|worker_queue| (worker_queue.num, worker_queue.metrics.clone()))
            .collect();
        let selector = QueueSelector::new(queues.iter().map(|worker_queue| worker_queue.num));
        let wake = Arc::new(Notify::new());
        let slots = self.concurrency.map(|count| Arc::new(Slots::new(count, wake.clone())));
        let state = WorkerState {
            name: self.name.into(),
            id: self.id.unwrap_or_else(reporter::new_id),
            managed: self.managed,
            store: Store::new(self.queue, self.timer, counted),
            queues,
            metrics: self.metrics,
            settings: watch::Sender::new(self.settings),
            batch_queue: Mutex::new(BatchQueue::new(selector)),
            wake,
            slots,
            idle_takes: Mutex::new(JoinSet::new()),
            stop: Arc::default(),
            cancel_all: Arc::default(),
            abandon: Signal::default(),
            phase: watch::Sender::new(Phase::New),
        };
        Ok(Worker { state: Arc::new(state) })
    }
}

impl Worker {
    /// A builder of a worker with this name on a queue: anything that executes commands, in this process or over the
    /// network.
    pub fn builder<E: Execute + 'static>(
        name: &str,
        queue: E,
        handlers: impl Into<Dispatcher>,
    ) -> WorkerBuilder {
        WorkerBuilder::new(name, Box::new(queue), handlers.into())
    }

    /// The name of the worker.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Identifies the worker to a manager; different for each worker, whatever its name.
    pub fn id(&self) -> &str {
        &self.state.id
    }

    #[cfg(all(test, feature = "testing"))]
    pub(crate) fn state(&self) -> &WorkerState {
        &self.state
    }

    /// The queue as its handlers see it.
    pub fn store(&self) -> &Store {
        &self.state.store
    }

    /// The metrics of the worker.
    pub fn metrics(&self) -> &Metrics {
        &self.state.metrics
    }

    /// The metrics of the worker and the state of its queues in the text format of Prometheus. When the store does not
    /// answer, the last known state is shown.
    pub async fn metrics_text(&self) -> String {
        if let Err(error) = self.state.store.observe().await {
            tracing::warn!(worker = self.name(), %error, "cannot read the state of the queues; the metrics show the last known values");
        }
        self.state.metrics.text()
    }

    /// Checks that every queue has a handler and a suitable tube; creates the tubes that are missing.
    pub async fn init(&self) -> Result<(), InitError> {
        let queues = &self.state.queues;
        if queues.is_empty() {
            return Err(InitError::NoQueues);
        }
        let missing = queues.iter().filter(|worker_queue| worker_queue.handler.is_none());
        let missing: Vec<_> =
            missing.map(|worker_queue| format!("'{}'", worker_queue.tube)).collect();
        if !missing.is_empty() {
            return Err(InitError::MissingHandlers(missing));
        }
        let mut numbers = BTreeSet::new();
        for worker_queue in queues {
            let number = registration::register_queue(&self.state.store, worker_queue).await?;
            worker_queue.number.store(number, Ordering::Relaxed);
            // Tube numbers grow and wrap around; tasks of two tubes with the same remainder would share their ids.
            if !numbers.insert(number % TUBE_NUMBERS_MAX) {
                let why = "its tasks would have the same ids as those of another queue; drop it when it is \
                           empty, and it gets a new number";
                return Err(InitError::UnsuitableTube { tube: worker_queue.tube.clone(), why });
            }
        }
        self.state
            .store
            .set_tubes(queues.iter().map(|worker_queue| worker_queue.tube.clone()).collect());
        for num in self.settings().unknown_queues(&self.queue_nums()) {
            tracing::warn!(
                worker = self.name(),
                "ignoring settings of queue {num}: the worker has no such queue"
            );
        }
        self.state.phase.send_if_modified(|phase| {
            let new = *phase == Phase::New;
            *phase = if new { Phase::Ready } else { *phase };
            new
        });
        Ok(())
    }

    /// Runs until the worker is stopped; returns when every processor has ended. A worker that was stopped before does
    /// nothing. Dropping the future is a crash: taken tasks return when their leases end.
    pub async fn run(&self) -> Result<(), InitError> {
        if *self.state.phase.borrow() == Phase::New {
            self.init().await?;
        }
        let mut started = false;
        self.state.phase.send_if_modified(|phase| {
            started = *phase == Phase::Ready;
            *phase = if started { Phase::Running } else { *phase };
            started
        });
        if !started {
            return Err(InitError::AlreadyRan);
        }
        let ended = EndGuard(&self.state);
        let _running = GaugeGuard::add(self.state.metrics.workers(), 1);
        let reporting = async {
            if self.state.managed {
                reporter::run(self.clone()).await;
            }
        };
        tokio::join!(self.supervise(), reporting);
        let idle_takes = std::mem::take(
            &mut *self.state.idle_takes.lock().unwrap_or_else(PoisonError::into_inner),
        );
        idle_takes.join_all().await;
        // Batches that arrived after the last processor had ended.
        let left = std::mem::take(&mut self.state.batch_queue().arrived);
        for batch in left {
            self.state.give_back(batch.queue, &batch.tasks).await;
        }
        drop(ended);
        Ok(())
    }

    /// Keeps `max_processors` processors running until the worker stops and the last has ended.
    async fn supervise(&self) {
        let mut settings = self.state.settings.subscribe();
        let mut processors = JoinSet::new();
        let mut slots: BTreeMap<usize, Id> = BTreeMap::new();
        loop {
            let stopped = self.state.stop.is_raised();
            let most = if stopped { 0 } else { settings.borrow_and_update().max_processors };
            for slot in 0..most {
                slots.entry(slot).or_insert_with(|| {
                    processors.spawn(processor::run(self.state.clone(), slot)).id()
                });
            }
            if stopped && processors.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                () = self.state.stopped(), if !stopped => self.state.wake.notify_waiters(),
                Some(ended) = processors.join_next_with_id() => {
                    // A processor that panicked does not end the worker; it is replaced.
                    let ended = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    slots.retain(|_, id| *id != ended);
                }
                _ = settings.changed() => self.state.wake.notify_waiters(),
            }
        }
    }

    /// Runs until `stop` completes, then lets running handlers finish for `grace` before it cancels them.
    pub async fn run_until(
        &self,
        stop: impl Future<Output = ()>,
        grace: Duration,
    ) -> Result<Result<(), StillRunning>, InitError> {
        let stopping = async {
            stop.await;
            self.shutdown(grace).await
        };
        self.run_while(stopping).await
    }

    /// Runs until the worker is stopped, and shuts it down as `stopping` does.
    pub(crate) async fn run_while(
        &self,
        stopping: impl Future<Output = Result<(), StillRunning>>,
    ) -> Result<Result<(), StillRunning>, InitError> {
        let (ran, stopped) = tokio::join!(
            async {
                let ran = self.run().await;
                // A worker that could not start is not waited for.
                drop(self.graceful_stop());
                ran
            },
            async {
                tokio::select! {
                    biased;
                    stopped = stopping => stopped,
                    () = self.ended() => Ok(()),
                }
            }
        );
        ran.map(|()| stopped)
    }

    /// Takes no more tasks and lets running handlers finish. May be called at any time and any number of
    /// times; the returned future completes when every processor has ended.
    pub fn graceful_stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.state.stop.raise();
        self.state.wake.notify_waiters();
        let mut phase = self.state.phase.subscribe();
        let state = self.state.clone();
        async move {
            // `state` owns the sender, so the channel stays open.
            let _ = phase.wait_for(|phase| *phase != Phase::Running).await;
            drop(state);
        }
    }

    /// Completes when the worker stops taking tasks.
    pub(crate) async fn stopped(&self) {
        self.state.stopped().await;
    }

    /// Completes when the worker was stopped and every processor has ended.
    pub async fn ended(&self) {
        self.state.stopped().await;
        let mut phase = self.state.phase.subscribe();
        // `state` owns the sender, so the channel stays open.
        let _ = phase.wait_for(|phase| *phase != Phase::Running).await;
    }

    /// Takes no more tasks, lets running handlers finish for this long, then cancels them. Handlers that do not
    /// end even then are abandoned and named in the error.
    pub async fn shutdown(&self, within: Duration) -> Result<(), StillRunning> {
        let timer = self.state.store.timer();
        let mut ended = std::pin::pin!(self.graceful_stop());
        let deadline = timer.now() + Span::from(within);
        tokio::select! {
            biased;
            () = &mut ended => return Ok(()),
            () = timer.sleep_until(deadline) => {}
        }
        self.state.cancel_all.raise();
        tokio::select! {
            biased;
            () = &mut ended => return Ok(()),
            () = timer.sleep_until(timer.now() + CANCEL_GRACE) => {}
        }
        let working = self.state.batch_queue().working.clone();
        let queues = &self.state.queues;
        let named = working
            .iter()
            .map(|(slot, queue)| format!("processor {slot} on queue '{}'", queues[*queue].tube));
        let named: Vec<_> = named.collect();
        self.state.abandon.raise();
        // Every request to the queue has its own timeout; this one covers anything else.
        let ended = tokio::select! {
            biased;
            () = &mut ended => true,
            () = timer.sleep_until(timer.now() + END_TIMEOUT) => false,
        };
        if ended && named.is_empty() { Ok(()) } else { Err(StillRunning(named)) }
    }

    /// Changes the settings from the next batch on; invalid settings change nothing.
    pub fn reconfigure(&self, settings: Settings) -> Result<(), SettingsError> {
        settings.check()?;
        self.state.settings.send_if_modified(|known| {
            let changed = *known != settings;
            *known = settings;
            changed
        });
        Ok(())
    }

    /// The numbers of its queues.
    pub fn queue_nums(&self) -> Vec<u32> {
        self.state.queues.iter().map(|worker_queue| worker_queue.num).collect()
    }

    /// The current settings.
    pub fn settings(&self) -> Settings {
        self.state.settings.borrow().clone()
    }

    /// Follows a plan from the next batch on, until there is a newer one.
    pub fn apply(&self, plan: Plan) -> Result<(), PlanError> {
        let asked = plan.share.values().sum();
        let max = self.state.settings.borrow().max_processors;
        if asked > max {
            return Err(PlanError::TooManyProcessors { asked, max });
        }
        if !self.state.batch_queue().selector.apply_plan(plan) {
            return Err(PlanError::Outdated);
        }
        self.state.wake.notify_waiters();
        Ok(())
    }

    /// The version of the plan that the worker follows; 0 without one, then it serves its queues round robin.
    pub fn plan_version(&self) -> u64 {
        self.state.batch_queue().selector.plan_version()
    }

    /// The cost of each queue, for a manager.
    pub fn report(&self) -> Vec<QueueReport> {
        let batch_queue = self.state.batch_queue();
        let busy = batch_queue.selector.busy().zip(&self.state.queues);
        let report = busy.map(|((num, busy), worker_queue)| {
            worker_queue.load.lock().unwrap_or_else(PoisonError::into_inner).report(num, busy)
        });
        report.collect()
    }
}

/// Marks the worker as ended when dropped, also when its future is dropped.
struct EndGuard<'a>(&'a WorkerState);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.idle_takes.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.0.phase.send_replace(Phase::Ended);
    }
}
