//! A test kit for handlers: a queue in memory, a manual clock, and injected faults.
//!
//! ```
//! # use taskyard_worker::{Handler, HandlerStats, Dispatcher, RawTask};
//! use taskyard_worker::testing::TestKit;
//! # let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
//! #     let ids: Vec<_> = tasks.iter().map(|task| task.delivery.task_id).collect();
//! #     store.done(&ids).await?;
//! #     Ok(HandlerStats::default())
//! # });
//! # let handlers = Dispatcher::new([]).with_queue(1, "mail", handler);
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let kit = TestKit::new();
//! let worker = kit.worker(handlers).build().unwrap();
//! let running = kit.start(&worker).await;
//! taskyard::Client::new(kit.queue().clone()).put("mail", "hello").await.unwrap();
//! kit.wait_drained("mail").await;
//! running.stop().await;
//! # });
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Body, Command, Error as Refusal, Execute, Reply, Span, TaskId, Timestamp, TubeName,
};
use taskyard_engine::{Clock, Engine, ManualClock, Settings as EngineSettings};
use taskyard_store::MemoryStore;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};

use crate::dispatcher::Dispatcher;
use crate::timer::{BoxFuture, Timer};
use crate::typed::{Delivery, TypedTask};
use crate::worker::{InitError, Worker, WorkerBuilder};

/// The initial time of a test kit: any moment but the epoch.
const START_TIME: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A queue in memory with a manual clock.
#[derive(Clone)]
pub struct TestKit {
    queue: TestQueue,
    timer: Arc<ManualTimer>,
}

/// The queue of a test kit.
#[derive(Clone)]
pub struct TestQueue {
    engine: Engine,
    faults: Arc<Mutex<VecDeque<&'static str>>>,
}

/// A worker that runs in a background task.
pub struct RunningWorker {
    worker: Worker,
    timer: Arc<ManualTimer>,
    task: JoinHandle<Result<(), InitError>>,
}

/// A timer that moves only when it is advanced.
#[derive(Debug)]
pub struct ManualTimer {
    clock: Arc<ManualClock>,
    moved: Notify,
}

impl TestKit {
    /// A test kit with an empty queue.
    pub fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START_TIME));
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, clock.clone(), EngineSettings::default());
        let queue = TestQueue { engine, faults: Arc::default() };
        TestKit { queue, timer: Arc::new(ManualTimer::new(clock)) }
    }

    /// The queue; `taskyard::Client::new(kit.queue().clone())` is a client of it.
    pub fn queue(&self) -> &TestQueue {
        &self.queue
    }

    /// A builder of a worker on the queue.
    pub fn worker(&self, handlers: impl Into<Dispatcher>) -> WorkerBuilder {
        Worker::builder("test", self.queue.clone(), handlers).timer(self.timer.clone())
    }

    /// The timer, for workers on a queue that wraps the kit's.
    pub fn timer(&self) -> Arc<ManualTimer> {
        self.timer.clone()
    }

    /// Starts a worker in a background task.
    ///
    /// # Panics
    ///
    /// When the worker cannot start.
    pub async fn start(&self, worker: &Worker) -> RunningWorker {
        RunningWorker::start(worker, self.timer.clone()).await
    }

    /// Advances the time of the queue and of its workers.
    pub fn advance(&self, by: Duration) {
        self.timer.advance(by);
    }

    /// Makes the next command with this verb fail, such as `take` or `finish`. May be called several times.
    pub fn fail_next(&self, verb: &'static str) {
        self.queue.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back(verb);
    }

    /// Releases all taken tasks of a queue while their handlers still run: each task is delivered a second
    /// time.
    ///
    /// # Panics
    ///
    /// When the queue does not exist.
    pub async fn redeliver(&self, queue: &str) {
        self.execute(Command::ReleaseAll { tube: named(queue) }).await;
    }

    /// The state and the counters of a queue.
    ///
    /// # Panics
    ///
    /// When the queue does not exist.
    pub async fn tube(&self, queue: &str) -> TubeInfo {
        match self.execute(Command::Tubes { tube: Some(named(queue)) }).await {
            Reply::Tubes(mut tubes) => tubes.remove(0),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    /// All tasks of a queue in the order of their puts, such as those that a handler put.
    ///
    /// # Panics
    ///
    /// When the queue does not exist or contains another kind of task.
    pub async fn tasks<T: TypedTask>(&self) -> Vec<T> {
        let puts = self.tube(T::QUEUE.name).await.stats.calls.put;
        let ids = (0..puts).map(TaskId).collect();
        let peek = Command::Peek { tube: named(T::QUEUE.name), ids };
        let Reply::Tasks(found) = self.execute(peek).await else { return Vec::new() };
        let decode = |found: &taskyard_core::Task| {
            let delivery = Delivery { attempts: found.attempts, ..Delivery::default() };
            let payload = found.body.as_ref().map_or(&[][..], Body::payload);
            T::decode(delivery, payload).expect("a task of this queue")
        };
        found.iter().map(decode).collect()
    }

    /// Waits until a queue fulfils a condition; the clock does not move.
    pub async fn wait_until(&self, queue: &str, condition: impl Fn(&TubeInfo) -> bool) {
        while !condition(&self.tube(queue).await) {
            yield_now().await;
        }
    }

    /// Waits until a queue has no ready and no taken tasks. It may have delayed and buried ones.
    pub async fn wait_drained(&self, queue: &str) {
        self.wait_until(queue, |tube| tube.stats.tasks.ready + tube.stats.tasks.taken == 0).await;
    }

    async fn execute(&self, command: Command) -> Reply {
        let reply = self.queue.execute(vec![command]).await.pop();
        reply.expect("each command has a reply").expect("the queue exists")
    }
}

fn named(queue: &str) -> TubeName {
    TubeName::new(queue).expect("the name of a queue")
}

impl Default for TestKit {
    fn default() -> Self {
        TestKit::new()
    }
}

impl RunningWorker {
    /// Starts a worker with a manual timer, on any queue.
    ///
    /// # Panics
    ///
    /// When the worker cannot start.
    pub async fn start(worker: &Worker, timer: Arc<ManualTimer>) -> Self {
        worker.init().await.expect("the worker starts");
        let runner = worker.clone();
        let task = tokio::spawn(async move { runner.run().await });
        RunningWorker { worker: worker.clone(), timer, task }
    }

    /// Stops the worker gracefully: running handlers finish, and the clock advances meanwhile.
    ///
    /// # Panics
    ///
    /// When the worker ends with an error.
    pub async fn stop(mut self) {
        let stopping = self.worker.graceful_stop();
        let mut stopping = std::pin::pin!(stopping);
        loop {
            tokio::select! {
                biased;
                () = &mut stopping => break,
                () = yield_now() => self.timer.advance(Duration::from_millis(10)),
            }
        }
        (&mut self.task).await.expect("the worker does not panic").expect("the worker ran");
    }

    /// Ends the worker at once, as a crash of its process would.
    pub async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

impl ManualTimer {
    /// A timer over this clock, which may also be the clock of an engine.
    pub fn new(clock: Arc<ManualClock>) -> Self {
        ManualTimer { clock, moved: Notify::new() }
    }

    /// Advances the time and wakes all sleeps.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(Span::from(by));
        self.moved.notify_waiters();
    }
}

impl Timer for ManualTimer {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn sleep_until(&self, moment: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let mut moved = std::pin::pin!(self.moved.notified());
                // Registered before the check, so that no change is missed.
                moved.as_mut().enable();
                if self.now() >= moment {
                    return;
                }
                moved.await;
            }
        })
    }
}

impl TestQueue {
    fn take_fault(&self, commands: &[Command]) -> bool {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let hit =
            faults.iter().position(|verb| commands.iter().any(|command| command.verb() == *verb));
        hit.and_then(|hit| faults.remove(hit)).is_some()
    }
}

impl Execute for TestQueue {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Refusal>> {
        if self.take_fault(&commands) {
            return vec![Err(Refusal::Store("failed on purpose".into())); commands.len()];
        }
        self.engine.execute(commands).await
    }
}
