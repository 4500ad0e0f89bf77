//! A worker: Init, Run, Shutdown, GracefulStop.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::limits::TUBE_NUMBERS_MAX;
use taskyard_core::{Error as Refusal, Execute, Span, TubeName};
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinSet};

use super::desk::Desk;
use super::dispatcher::Dispatcher;
use super::enrolment;
use super::inner::{Inner, Lane, Phase};
use super::metrics::{Gauged, Metrics};
use super::processor;
use super::report::{Load, QueueReport};
use super::reporter;
use super::roster::{Plan, Roster};
use super::settings::{Settings, SettingsError};
use super::store::Store;
use super::timer::{SystemTimer, Timer};

/// How long handlers get to end after they were told to.
const KILL_NOTICE: Span = Span::from_secs(1);
/// How long a worker that has left everything alone may take to end.
const FAREWELL: Span = Span::from_secs(3);

/// Takes tasks of its queues and gives them to handlers. Cheap to clone: clones are the same worker.
///
/// Everything is delivered at least once: a handler must bear to see a task again.
#[derive(Clone)]
pub struct Worker {
    inner: Arc<Inner>,
}

/// Why a worker cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// Queues without a handler.
    #[error("no handler for {}; give the worker one for each queue", .0.join(", "))]
    MissingHandlers(Vec<String>),
    /// There is nothing to work on.
    #[error("a worker needs at least one queue")]
    NoQueues,
    /// Two queues with one number or one name.
    #[error("queue {0} is there twice")]
    TwiceTheSame(String),
    /// The tube cannot be used for typed tasks.
    #[error("tube '{tube}' cannot be a queue of a worker: {why}")]
    UnfitTube {
        /// The tube.
        tube: TubeName,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another tube of the store has the queue's number.
    #[error(
        "queue number {num} belongs to tube '{tube}', not to '{wanted}'; if the queue was renamed, write \
         'was: [{tube}]' into its contract, else give it a number that no queue ever had"
    )]
    NumberTaken {
        /// The number.
        num: u32,
        /// Whose it is.
        tube: TubeName,
        /// The queue that wants it.
        wanted: TubeName,
    },
    /// A setting cannot be.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The queue refused to tell about its tubes or to make them.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It runs already, or has run.
    #[error("a worker runs one time only")]
    RanBefore,
}

/// Processors that did not end in time. Their tasks return by their time.
#[derive(Debug, thiserror::Error)]
#[error("still at work after the deadline: {}", names(.0))]
pub struct StillRunning(pub Vec<String>);

fn names(running: &[String]) -> String {
    if running.is_empty() { "the queue does not answer".into() } else { running.join(", ") }
}

/// Why a plan is not followed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// It gives away more processors than there are.
    #[error("the plan has {asked} processors, the worker {max}")]
    TooMany {
        /// So many.
        asked: usize,
        /// The most.
        max: usize,
    },
    /// A newer one is followed already.
    #[error("a newer plan is followed already")]
    Old,
}

/// A worker to be.
pub struct Builder<E> {
    name: String,
    queue: E,
    dispatcher: Dispatcher,
    settings: Settings,
    metrics: Metrics,
    timer: Arc<dyn Timer>,
    managed: bool,
}

impl<E: Execute + 'static> Builder<E> {
    /// With these settings.
    pub fn settings(self, settings: Settings) -> Self {
        Builder { settings, ..self }
    }

    /// Counts here; several workers may share one set.
    pub fn metrics(self, metrics: Metrics) -> Self {
        Builder { metrics, ..self }
    }

    /// Reports to the manager of the store every five seconds and follows its plan. Every `taskyard serve` has one;
    /// without any the worker goes round robin.
    pub fn managed(self) -> Self {
        Builder { managed: true, ..self }
    }

    /// By this time instead of the machine's, for tests.
    pub fn timer(self, timer: Arc<dyn Timer>) -> Self {
        Builder { timer, ..self }
    }

    /// The worker. Whether it can begin is found out by [`Worker::init`], except for what is wrong with the
    /// names and numbers of its queues.
    pub fn build(self) -> Result<Worker, InitError> {
        self.settings.check()?;
        let mut seen = (BTreeSet::new(), BTreeSet::new());
        let mut lanes = Vec::new();
        for route in self.dispatcher.routes {
            if !seen.0.insert(route.num) || !seen.1.insert(route.name.clone()) {
                return Err(InitError::TwiceTheSame(format!("{} '{}'", route.num, route.name)));
            }
            lanes.push(Lane {
                num: route.num,
                tube: TubeName::new(&route.name)?,
                was: route.was.iter().map(|name| TubeName::new(name)).collect::<Result<_, _>>()?,
                handler: route.handler,
                metrics: self.metrics.queue(route.num),
                number: AtomicU32::new(0),
                load: Mutex::new(Load::default()),
            });
        }
        let counted = lanes.iter().map(|lane| (lane.num, lane.metrics.clone())).collect();
        let roster = Roster::new(lanes.iter().map(|lane| lane.num));
        let inner = Inner {
            name: self.name.into(),
            id: reporter::new_id(),
            managed: self.managed,
            store: Store::new(self.queue, self.timer, counted),
            lanes,
            metrics: self.metrics,
            settings: watch::Sender::new(self.settings),
            desk: Mutex::new(Desk::new(roster)),
            wake: Notify::new(),
            scouts: Mutex::new(JoinSet::new()),
            stop: watch::Sender::new(false),
            kill: watch::Sender::new(false),
            abandon: watch::Sender::new(false),
            phase: watch::Sender::new(Phase::New),
        };
        Ok(Worker { inner: Arc::new(inner) })
    }
}

impl Worker {
    /// A worker of this name on a queue: anything that runs commands, here or over the network.
    pub fn builder<E: Execute + 'static>(
        name: &str,
        queue: E,
        handlers: impl Into<Dispatcher>,
    ) -> Builder<E> {
        Builder {
            name: name.into(),
            queue,
            dispatcher: handlers.into(),
            settings: Settings::default(),
            metrics: Metrics::default(),
            timer: Arc::new(SystemTimer),
            managed: false,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Who it is to a manager: another one for each worker, whatever its name.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// The queue as its handlers see it.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// What it counts.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Everything it counts, and what the store says about its queues, in the text format of Prometheus. When the
    /// store does not answer, what it said last is shown.
    pub async fn metrics_text(&self) -> String {
        if let Err(error) = self.inner.store.observe().await {
            tracing::warn!(worker = self.name(), %error, "cannot ask the queues for the metrics");
        }
        self.inner.metrics.text()
    }

    /// Sees that every queue has a handler and a fitting tube; makes the tubes that are missing.
    pub async fn init(&self) -> Result<(), InitError> {
        let lanes = &self.inner.lanes;
        if lanes.is_empty() {
            return Err(InitError::NoQueues);
        }
        let missing = lanes.iter().filter(|lane| lane.handler.is_none());
        let missing: Vec<_> = missing.map(|lane| format!("'{}'", lane.tube)).collect();
        if !missing.is_empty() {
            return Err(InitError::MissingHandlers(missing));
        }
        let mut places = BTreeSet::new();
        for lane in lanes {
            let number = enrolment::enrol(&self.inner.store, lane).await?;
            lane.number.store(number, Ordering::Relaxed);
            // A store that numbers its tubes ever higher comes round one day; tasks of both would have one number.
            if !places.insert(number % TUBE_NUMBERS_MAX) {
                let why = "its tasks would have the numbers of another queue's; drop it when it is \
                           empty, and it gets a new number";
                return Err(InitError::UnfitTube { tube: lane.tube.clone(), why });
            }
        }
        self.inner.store.know_tubes(lanes.iter().map(|lane| lane.tube.clone()).collect());
        for num in self.settings().unknown_queues(&self.queue_nums()) {
            tracing::warn!(
                worker = self.name(),
                "settings for queue {num}, which the worker does not have"
            );
        }
        self.inner.phase.send_if_modified(|phase| {
            let new = *phase == Phase::New;
            *phase = if new { Phase::Ready } else { *phase };
            new
        });
        Ok(())
    }

    /// Works until somebody stops it; answers when every processor has ended. A worker that was stopped
    /// before does nothing. Dropping the future is a crash: what was taken returns by its time.
    pub async fn run(&self) -> Result<(), InitError> {
        if *self.inner.phase.borrow() == Phase::New {
            self.init().await?;
        }
        let mut started = false;
        self.inner.phase.send_if_modified(|phase| {
            started = *phase == Phase::Ready;
            *phase = if started { Phase::Running } else { *phase };
            started
        });
        if !started {
            return Err(InitError::RanBefore);
        }
        let ended = Ended(&self.inner);
        let _running = Gauged::add(self.inner.metrics.workers(), 1);
        let reporting = async {
            if self.inner.managed {
                reporter::run(self.clone()).await;
            }
        };
        tokio::join!(self.supervise(), reporting);
        let scouts =
            std::mem::take(&mut *self.inner.scouts.lock().unwrap_or_else(PoisonError::into_inner));
        scouts.join_all().await;
        // What arrived when nobody was there any more.
        let left = std::mem::take(&mut self.inner.desk().arrived);
        for batch in left {
            self.inner.give_back(batch.queue, &batch.tasks).await;
        }
        drop(ended);
        Ok(())
    }

    /// Sees that there are as many processors as there may be, until the last has ended.
    async fn supervise(&self) {
        let mut settings = self.inner.settings.subscribe();
        let mut processors = JoinSet::new();
        let mut slots: BTreeMap<usize, Id> = BTreeMap::new();
        loop {
            let stopped = *self.inner.stop.borrow();
            let most = if stopped { 0 } else { settings.borrow_and_update().max_processors };
            for slot in 0..most {
                slots.entry(slot).or_insert_with(|| {
                    processors.spawn(processor::run(self.inner.clone(), slot)).id()
                });
            }
            if stopped && processors.is_empty() {
                return;
            }
            tokio::select! {
                Some(ended) = processors.join_next_with_id() => {
                    // Not even a broken processor ends the worker; its place is filled anew.
                    let ended = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    slots.retain(|_, id| *id != ended);
                }
                _ = settings.changed() => self.inner.wake.notify_waiters(),
                () = self.inner.stopped(), if !stopped => self.inner.wake.notify_waiters(),
            }
        }
    }

    /// Works until `stop` is ready, then lets running handlers finish for `grace` before it cancels them.
    pub async fn run_until(
        &self,
        stop: impl Future<Output = ()>,
        grace: Duration,
    ) -> Result<Result<(), StillRunning>, InitError> {
        let stopping = async {
            stop.await;
            self.shutdown(grace).await
        };
        let (ran, stopped) = tokio::join!(
            async {
                let ran = self.run().await;
                // A worker that could not begin is not waited for.
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
    /// times; the future it answers is ready when every processor has ended.
    pub fn graceful_stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.inner.stop.send_replace(true);
        self.inner.wake.notify_waiters();
        let mut phase = self.inner.phase.subscribe();
        let inner = self.inner.clone();
        async move {
            // The sender is in `inner`, so there is an end.
            let _ = phase.wait_for(|phase| *phase != Phase::Running).await;
            drop(inner);
        }
    }

    /// Ready when no more tasks are to be taken.
    pub(super) async fn stopped(&self) {
        self.inner.stopped().await;
    }

    /// Ready when it was stopped and every processor has ended.
    pub async fn ended(&self) {
        self.inner.stopped().await;
        let mut phase = self.inner.phase.subscribe();
        // The sender is in `inner`, so there is an end.
        let _ = phase.wait_for(|phase| *phase != Phase::Running).await;
    }

    /// Takes no more tasks, lets running handlers finish for this long, then cancels them. Those that do not
    /// end even then are left alone and named in the error.
    pub async fn shutdown(&self, within: Duration) -> Result<(), StillRunning> {
        let timer = self.inner.store.timer();
        let mut ended = std::pin::pin!(self.graceful_stop());
        let deadline = timer.now() + Span::from(within);
        tokio::select! {
            biased;
            () = &mut ended => return Ok(()),
            () = timer.sleep_until(deadline) => {}
        }
        self.inner.kill.send_replace(true);
        tokio::select! {
            biased;
            () = &mut ended => return Ok(()),
            () = timer.sleep_until(timer.now() + KILL_NOTICE) => {}
        }
        let working = self.inner.desk().working.clone();
        let lanes = &self.inner.lanes;
        let named = working
            .iter()
            .map(|(slot, queue)| format!("processor {slot} on queue '{}'", lanes[*queue].tube));
        let named: Vec<_> = named.collect();
        self.inner.abandon.send_replace(true);
        // Whatever asks the queue has a limit of its own; this one is for those that nobody thought of.
        let ended = tokio::select! {
            biased;
            () = &mut ended => true,
            () = timer.sleep_until(timer.now() + FAREWELL) => false,
        };
        if ended && named.is_empty() { Ok(()) } else { Err(StillRunning(named)) }
    }

    /// Changes the settings from the next batch on; wrong ones change nothing.
    pub fn reconfigure(&self, settings: Settings) -> Result<(), SettingsError> {
        settings.check()?;
        self.inner.settings.send_if_modified(|known| {
            let changed = *known != settings;
            *known = settings;
            changed
        });
        Ok(())
    }

    /// The numbers of its queues.
    pub fn queue_nums(&self) -> Vec<u32> {
        self.inner.lanes.iter().map(|lane| lane.num).collect()
    }

    /// The settings now.
    pub fn settings(&self) -> Settings {
        self.inner.settings.borrow().clone()
    }

    /// Follows a plan from the next batch on, until there is a newer one.
    pub fn apply(&self, plan: Plan) -> Result<(), PlanError> {
        let asked = plan.share.values().sum();
        let max = self.inner.settings.borrow().max_processors;
        if asked > max {
            return Err(PlanError::TooMany { asked, max });
        }
        if !self.inner.desk().roster.follow(plan) {
            return Err(PlanError::Old);
        }
        self.inner.wake.notify_waiters();
        Ok(())
    }

    /// The version of the plan that it follows; 0 is none, and then it goes round robin.
    pub fn plan_version(&self) -> u64 {
        self.inner.desk().roster.plan_version()
    }

    /// What its queues cost it, for whoever plans.
    pub fn report(&self) -> Vec<QueueReport> {
        let desk = self.inner.desk();
        let busy = desk.roster.busy().zip(&self.inner.lanes);
        let report = busy.map(|((num, busy), lane)| {
            lane.load.lock().unwrap_or_else(PoisonError::into_inner).report(num, busy)
        });
        report.collect()
    }
}

/// Notes the end of a worker, however it comes.
struct Ended<'a>(&'a Inner);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.scouts.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.0.phase.send_replace(Phase::Ended);
    }
}
