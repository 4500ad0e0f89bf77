//! Runs the worker runtime of the product: processes that are killed, stopped and started again, and the managers of servers.
//!
//! `handlers` says what handlers do, `run_log` records their runs, and `recording` is the queue of a worker, which records its
//! commands as operations of a client.

mod consumers;
mod handlers;
mod recording;
mod run_log;
mod timer;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use taskyard_worker::{Dispatcher, FunctionWorker, ManagerService, RunningTask, Settings, Worker};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use consumers::Consumers;
use handlers::Runner;
use recording::RecordingQueue;
pub use recording::{FIRST_CONSUMER, FIRST_MANAGER, FIRST_WORKER, worker_of};
pub use run_log::{HandlerRun, RunEnd, WorkerStop};
use run_log::{ProcessId, RunLog};
pub use timer::Freezer;
use timer::SimulatedTimer;

use crate::effects::{FaultName, count_effect};
use crate::history::{Moment, SharedHistory};
use crate::plan::Plan;
use crate::planted::PlantedFault;
use crate::tubes::TubeRole;
use crate::world::World;

/// How soon one manager leads and all workers follow its plan when nothing is broken.
const PLAN_MAX: Duration = Duration::from_secs(60);
/// How soon a worker ends after its grace.
pub const STOP_MAX: Duration = Duration::from_secs(5);
/// The pause before a process that could not start is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// What a worker is.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// The server that it connects to.
    pub server: usize,
    /// What it calls.
    pub kind: WorkerKind,
    /// How long a lease lasts.
    pub lease: Duration,
    /// How long a handler may run.
    pub run_max: Duration,
    /// How long handlers may run on after a stop.
    pub grace: Duration,
    /// How many tasks it takes at once.
    pub batch_size: usize,
    /// How many batches or functions run at a time.
    pub processors: usize,
    /// Whether it follows the plans of a manager, as only workers of batches do.
    pub is_managed: bool,
    /// Whether its handlers ack each task by itself.
    pub settles_singly: bool,
}

/// What a worker calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerKind {
    /// Handlers for batches of all tubes.
    Batches,
    /// A function for each task of one tube.
    Functions(TubeRole),
}

/// Draws the workers of a run. The first serves all tubes.
pub fn draw_workers(plan: &Plan, rng: &mut Rng) -> Vec<WorkerSpec> {
    let count = rng.usize(1..=3);
    let leases = [1, 2, 5, 10];
    let graces = [0, 1, 5, 30];
    let worker = |index: usize| {
        let lease = Duration::from_secs(leases[rng.usize(0..leases.len())]);
        let kind = match index > 0 && rng.bool() {
            true => WorkerKind::Functions(plan.tubes[rng.usize(0..plan.tubes.len())]),
            false => WorkerKind::Batches,
        };
        WorkerSpec {
            server: rng.usize(0..plan.servers),
            kind,
            lease,
            run_max: lease * rng.u32(2..=4),
            grace: Duration::from_secs(graces[rng.usize(0..graces.len())]),
            batch_size: rng.usize(1..=5),
            processors: rng.usize(1..=4),
            is_managed: rng.bool() && kind == WorkerKind::Batches,
            settles_singly: rng.bool(),
        }
    };
    (0..count).map(worker).collect()
}

/// The workers and managers of a run.
pub struct Workers {
    hosts: Vec<WorkerHost>,
    managers: RefCell<Vec<ManagerService>>,
    log: Arc<RunLog>,
    history: SharedHistory,
    /// The clock of managers and consumers, which never freezes.
    timer: Arc<SimulatedTimer>,
    stops: RefCell<Vec<WorkerStop>>,
    consumers: RefCell<Option<Rc<Consumers>>>,
}

/// A worker and its processes: one that stops may go on while the next has begun.
struct WorkerHost {
    timer: Arc<SimulatedTimer>,
    processes: RefCell<Vec<Rc<WorkerProcess>>>,
    starts: Cell<u32>,
    calls: Arc<AtomicU32>,
}

/// One process of a worker.
struct WorkerProcess {
    id: ProcessId,
    task: RefCell<Option<JoinHandle<()>>>,
    /// When it was asked to stop, and for how long it had been frozen then.
    asked: Cell<Option<(Moment, Duration)>>,
    stop: Notify,
    timer: Arc<SimulatedTimer>,
    /// The worker of batches that runs in it.
    worker: RefCell<Option<Worker>>,
}

impl WorkerProcess {
    /// Completes when it is asked to stop.
    async fn stopped(&self) {
        while self.asked.get().is_none() {
            self.stop.notified().await;
        }
        self.timer.freezer.pass().await;
    }

    fn has_ended(&self) -> bool {
        self.task.borrow().as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Workers {
    /// The workers of a run, which are not started yet.
    pub fn new(plan: &Plan, history: &SharedHistory) -> Self {
        let timer = Arc::new(SimulatedTimer::new(plan.start));
        let host = |_| WorkerHost {
            timer: Arc::new(timer.of_worker()),
            processes: RefCell::default(),
            starts: Cell::default(),
            calls: Arc::default(),
        };
        Workers {
            hosts: plan.workers.iter().map(host).collect(),
            managers: RefCell::default(),
            log: RunLog::new(history.clone()),
            history: history.clone(),
            timer,
            stops: RefCell::default(),
            consumers: RefCell::default(),
        }
    }

    /// Kills the processes of a worker.
    pub fn crash(&self, worker: usize) {
        for process in self.hosts[worker].processes.take() {
            count_effect(FaultName::CrashWorker);
            process.id.is_killed.store(true, Ordering::Relaxed);
            if let Some(task) = &*process.task.borrow() {
                task.abort();
            }
        }
    }

    /// Freezes the processes of a worker, or lets them go on.
    pub fn freeze(&self, worker: usize, begins: bool) {
        self.hosts[worker].timer.freezer.freeze(begins);
    }

    /// Asks the processes of a worker to stop.
    pub fn stop(&self, worker: usize) {
        for process in self.hosts[worker].processes.borrow().iter() {
            if process.asked.get().is_none() {
                count_effect(FaultName::StopWorker);
                let moment = self.history.borrow_mut().moment();
                process.asked.set(Some((moment, process.timer.freezer.total())));
                process.stop.notify_one();
            }
        }
    }

    /// Waits until one manager leads and all workers follow its plan.
    pub async fn wait_for_plans(&self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let leaders = self.managers.borrow().iter().filter(|manager| manager.leads()).count();
            let processes: Vec<_> =
                self.hosts.iter().flat_map(|host| host.processes.borrow().clone()).collect();
            let has_plan = |process: &Rc<WorkerProcess>| {
                process.worker.borrow().as_ref().is_none_or(|worker| worker.plan_version() > 0)
            };
            if self.managers.borrow().is_empty() || leaders == 1 && processes.iter().all(has_plan) {
                return Ok(());
            }
            if begun.elapsed() > PLAN_MAX {
                let without = processes.iter().filter(|process| !has_plan(process)).count();
                return Err(format!(
                    "{leaders} managers lead and {without} workers have no plan after {} s without faults",
                    begun.elapsed().as_secs()
                ));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Stops all workers and waits for them.
    pub async fn stop_all(&self) -> Result<(), String> {
        let graces = Duration::from_secs(120);
        for (index, host) in self.hosts.iter().enumerate() {
            self.stop(index);
            for process in host.processes.take() {
                let Some(task) = process.task.take() else { continue };
                match tokio::time::timeout(graces, task).await {
                    Err(_) => return Err(format!("worker {index} did not end after a stop")),
                    Ok(Err(error)) => return Err(format!("worker {index} failed: {error}")),
                    Ok(Ok(())) => {}
                }
            }
        }
        Ok(())
    }

    /// Lets the best consumers of the semaphore run, and says whether too many ran.
    pub async fn end_consumers(&self) -> Result<Option<String>, String> {
        let Some(consumers) = self.consumers.take() else { return Ok(None) };
        consumers.end().await?;
        Ok(consumers.excess())
    }

    /// What handlers did, and the stops.
    pub fn end(&self) -> (Vec<HandlerRun>, Vec<WorkerStop>) {
        self.managers.borrow_mut().clear();
        (self.log.take(), self.stops.take())
    }
}

impl World {
    /// Starts all workers, and a manager on each server if one of them follows plans.
    pub fn start_workers(self: &Rc<Self>) {
        for worker in 0..self.plan.workers.len() {
            self.start_worker(worker);
        }
        if let Some(limit) = self.plan.consumers {
            let queue = self.worker_queue(FIRST_CONSUMER, 0, Arc::default(), None);
            let consumers = Consumers::start(taskyard::Client::new(queue), self.plan.seed, limit);
            *self.workers.consumers.borrow_mut() = Some(consumers);
        }
        if self.plan.workers.iter().any(|spec| spec.is_managed) {
            for server in 0..self.plan.servers {
                let number = FIRST_MANAGER + server as u32;
                let queue = self.worker_queue(number, server, Arc::default(), None);
                let (name, timer) = (format!("server {server}"), self.workers.timer.clone());
                let manager = ManagerService::start_by(queue, &name, timer);
                self.workers.managers.borrow_mut().push(manager);
            }
        }
    }

    /// Starts a process of a worker, unless one runs.
    pub fn start_worker(self: &Rc<Self>, worker: usize) {
        let host = &self.workers.hosts[worker];
        host.processes.borrow_mut().retain(|process| !process.has_ended());
        if host.processes.borrow().iter().any(|process| process.asked.get().is_none()) {
            return;
        }
        host.starts.set(host.starts.get() + 1);
        let is_killed = Arc::new(AtomicBool::new(false));
        let process = Rc::new(WorkerProcess {
            id: ProcessId { worker, process: host.starts.get(), is_killed },
            task: RefCell::default(),
            asked: Cell::new(None),
            stop: Notify::new(),
            timer: host.timer.clone(),
            worker: RefCell::default(),
        });
        let task = tokio::task::spawn_local(run_process(self.clone(), process.clone()));
        *process.task.borrow_mut() = Some(task);
        host.processes.borrow_mut().push(process);
    }

    fn queue_of(&self, process: &WorkerProcess, spec: &WorkerSpec) -> RecordingQueue {
        let index = process.id.worker;
        let calls = self.workers.hosts[index].calls.clone();
        let freezer = Some(process.timer.freezer.clone());
        self.worker_queue(FIRST_WORKER + index as u32, spec.server, calls, freezer)
    }

    fn worker_queue(
        &self,
        number: u32,
        server: usize,
        calls: Arc<AtomicU32>,
        freezer: Option<Arc<Freezer>>,
    ) -> RecordingQueue {
        let (client, history) = (self.connect(server, freezer), self.workers.history.clone());
        RecordingQueue::new(client, history, (number, server), calls, self.planted)
    }
}

/// Runs a worker until it is stopped, again and again if it cannot start.
async fn run_process(world: Rc<World>, process: Rc<WorkerProcess>) {
    let index = process.id.worker;
    let spec = world.plan.workers[index].clone();
    loop {
        let ended = match spec.kind {
            WorkerKind::Batches => run_batches(&world, &process, &spec).await,
            WorkerKind::Functions(role) => run_functions(&world, &process, &spec, role).await,
        };
        if let Err(error) = ended {
            world.history.borrow_mut().note(format!("worker {index} ends: {error}"));
        }
        if let Some((asked, frozen)) = process.asked.get() {
            let frozen = process.timer.freezer.total() - frozen;
            let (process, grace, ended) =
                (process.id.process, spec.grace, world.history.borrow_mut().moment());
            let stop = WorkerStop { worker: index, process, asked, grace, ended, frozen };
            return world.workers.stops.borrow_mut().push(stop);
        }
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

/// How long handlers may run on after a stop.
fn grace(world: &World, spec: &WorkerSpec) -> Duration {
    let is_hasty = world.planted == Some(PlantedFault::HastyStop);
    if is_hasty { Duration::ZERO } else { spec.grace }
}

fn runner(world: &World, process: &WorkerProcess, spec: &WorkerSpec) -> Runner {
    Runner {
        seed: world.plan.seed,
        spec: spec.clone(),
        process: process.id.clone(),
        log: world.workers.log.clone(),
        timer: process.timer.clone(),
    }
}

async fn run_batches(
    world: &World,
    process: &WorkerProcess,
    spec: &WorkerSpec,
) -> Result<(), String> {
    let runner = runner(world, process, spec);
    let mut dispatcher = Dispatcher::new([]);
    for (num, role) in (1..).zip(&world.plan.tubes) {
        dispatcher = dispatcher.with_queue(num, role.name(), runner.handler(role.tube()));
    }
    let index = process.id.worker;
    let queue = world.queue_of(process, spec);
    let settings = Settings {
        max_processors: spec.processors,
        visibility_timeout: spec.lease,
        run_max: Some(spec.run_max),
        batch_size: spec.batch_size,
        ..Settings::default()
    };
    let builder = Worker::builder(&format!("worker {index}"), queue, dispatcher)
        .settings(settings)
        .timer(process.timer.clone())
        .id(&format!("{index}-{}", process.id.process));
    let builder = if spec.is_managed { builder.managed() } else { builder };
    let worker = builder.build().map_err(|error| error.to_string())?;
    tokio::select! {
        biased;
        () = process.stopped() => return Ok(()),
        started = worker.init() => started.map_err(|error| error.to_string())?,
    }
    if spec.is_managed {
        *process.worker.borrow_mut() = Some(worker.clone());
    }
    let ended = worker.run_until(process.stopped(), grace(world, spec)).await;
    process.worker.borrow_mut().take();
    ended.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

async fn run_functions(
    world: &World,
    process: &WorkerProcess,
    spec: &WorkerSpec,
    role: TubeRole,
) -> Result<(), String> {
    let runner = runner(world, process, spec);
    let queue = world.queue_of(process, spec);
    let worker = FunctionWorker::new(queue, role.name())
        .concurrency(spec.processors)
        .lease(spec.lease)
        .run_max(spec.run_max)
        .grace(grace(world, spec))
        .timer(process.timer.clone());
    let function = move |payload: u64, task: RunningTask| runner.clone().call(payload, task);
    worker.run_until(process.stopped(), function).await.map_err(|error| error.to_string())
}
