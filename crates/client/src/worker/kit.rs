//! For tests of handlers: a queue in memory, time that is moved by hand, and things that go wrong on purpose.
//!
//! ```
//! # use taskyard::worker::{Handler, HandlerStats, Dispatcher, RawTask};
//! use taskyard::worker::kit::Kit;
//! # let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
//! #     let ids: Vec<_> = tasks.iter().map(|task| task.delivery.task_id).collect();
//! #     store.done(&ids).await?;
//! #     Ok(HandlerStats::default())
//! # });
//! # let handlers = Dispatcher::new([]).and(1, "mail", handler);
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let kit = Kit::new();
//! let worker = kit.worker(handlers).build().unwrap();
//! let running = kit.start(&worker).await;
//! kit.client().put("mail", "hello").await.unwrap();
//! kit.drained("mail").await;
//! running.stop().await;
//! # });
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::command::TubeInfo;
use taskyard_core::{Command, Error as Refusal, Execute, Reply, Span, Timestamp};
use taskyard_engine::{Clock, Engine, HandClock, Settings as EngineSettings};
use taskyard_store::MemoryStore;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};

use crate::client::Client;

use super::dispatcher::Dispatcher;
use super::timer::{Boxed, Timer};
use super::worker::{Builder, InitError, Worker};

/// When the clock of a new kit stands: any moment that is not the epoch will do.
const BEGINNING: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A queue in memory whose time is moved by hand.
#[derive(Clone)]
pub struct Kit {
    queue: KitQueue,
    timer: Arc<HandTimer>,
}

/// The queue of a kit.
#[derive(Clone)]
pub struct KitQueue {
    engine: Engine,
    faults: Arc<Mutex<VecDeque<&'static str>>>,
}

/// A worker that runs in the background.
pub struct Running {
    worker: Worker,
    timer: Arc<HandTimer>,
    task: JoinHandle<Result<(), InitError>>,
}

/// Time that only moves by hand, for workers.
#[derive(Debug)]
pub struct HandTimer {
    clock: Arc<HandClock>,
    moved: Notify,
}

impl Kit {
    /// An empty queue.
    pub fn new() -> Self {
        let clock = Arc::new(HandClock::new(BEGINNING));
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, clock.clone(), EngineSettings::default());
        let queue = KitQueue { engine, faults: Arc::default() };
        Kit { queue, timer: Arc::new(HandTimer::new(clock)) }
    }

    /// The queue itself.
    pub fn queue(&self) -> &KitQueue {
        &self.queue
    }

    /// A client of it, to put tasks and to look at them.
    pub fn client(&self) -> Client<KitQueue> {
        Client::new(self.queue.clone())
    }

    /// A worker on it.
    pub fn worker(&self, handlers: impl Into<Dispatcher>) -> Builder<KitQueue> {
        Worker::builder("test", self.queue.clone(), handlers).timer(self.timer.clone())
    }

    /// Its time, for workers on a queue that stands before the kit's.
    pub fn timer(&self) -> Arc<HandTimer> {
        self.timer.clone()
    }

    /// Begins and runs a worker in the background.
    ///
    /// # Panics
    ///
    /// When the worker cannot begin.
    pub async fn start(&self, worker: &Worker) -> Running {
        Running::start(worker, self.timer.clone()).await
    }

    /// Moves time on, for the queue and for the workers.
    pub fn advance(&self, by: Duration) {
        self.timer.advance(by);
    }

    /// Lets the next command of this verb fail, such as `take` or `finish`. May be called several times.
    pub fn fail_next(&self, verb: &'static str) {
        self.queue.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back(verb);
    }

    /// Gives back what is taken from a queue while its handlers still work on it: each task will be
    /// delivered a second time.
    ///
    /// # Panics
    ///
    /// When there is no such queue.
    pub async fn deliver_again(&self, queue: &str) {
        self.client().release_all(queue).await.expect("the queue is there");
    }

    /// What a queue has and what was done to it.
    ///
    /// # Panics
    ///
    /// When there is no such queue.
    pub async fn tube(&self, queue: &str) -> TubeInfo {
        self.client().tube(queue).await.expect("the queue is there")
    }

    /// Waits until a queue fulfils a condition, without letting time pass.
    pub async fn until(&self, queue: &str, fulfilled: impl Fn(&TubeInfo) -> bool) {
        while !fulfilled(&self.tube(queue).await) {
            yield_now().await;
        }
    }

    /// Waits until nothing of a queue is ready or taken. Delayed and buried tasks may be there.
    pub async fn drained(&self, queue: &str) {
        self.until(queue, |tube| tube.stats.tasks.ready + tube.stats.tasks.taken == 0).await;
    }
}

impl Default for Kit {
    fn default() -> Self {
        Kit::new()
    }
}

impl Running {
    /// Begins and runs a worker by a hand clock, whatever queue it works on.
    ///
    /// # Panics
    ///
    /// When the worker cannot begin.
    pub async fn start(worker: &Worker, timer: Arc<HandTimer>) -> Self {
        worker.init().await.expect("the worker can begin");
        let runner = worker.clone();
        let task = tokio::spawn(async move { runner.run().await });
        Running { worker: worker.clone(), timer, task }
    }

    /// Stops it properly: running handlers finish, and time moves on for those that wait.
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

    /// Ends it at once, as the death of its process would.
    pub async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

impl HandTimer {
    /// A timer by this clock, which may be that of an engine too.
    pub fn new(clock: Arc<HandClock>) -> Self {
        HandTimer { clock, moved: Notify::new() }
    }

    /// Moves time on and wakes whoever waits for it.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(Span::from(by));
        self.moved.notify_waiters();
    }
}

impl Timer for HandTimer {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn sleep_until(&self, moment: Timestamp) -> Boxed<'_, ()> {
        Box::pin(async move {
            loop {
                let mut moved = std::pin::pin!(self.moved.notified());
                // Registered before looking, so that no movement is missed.
                moved.as_mut().enable();
                if self.now() >= moment {
                    return;
                }
                moved.await;
            }
        })
    }
}

impl KitQueue {
    fn faulty(&self, commands: &[Command]) -> bool {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let hit =
            faults.iter().position(|verb| commands.iter().any(|command| command.verb() == *verb));
        hit.and_then(|hit| faults.remove(hit)).is_some()
    }
}

impl Execute for KitQueue {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Refusal>> {
        if self.faulty(&commands) {
            return vec![Err(Refusal::Store("failed on purpose".into())); commands.len()];
        }
        self.engine.execute(commands).await
    }
}
