//! Runs one simulated server: an engine that can freeze, crash and start again.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use taskyard_engine::{Clock, Engine, EngineTask, Settings};
use taskyard_store::Store;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::SimulatedClock;
use crate::effects::{FaultName, count_effect};
use crate::storage::BusyUntil;

/// A server; its engine is replaced when it is started again.
pub struct SimulatedServer {
    /// Its clock, which a crash does not change.
    pub clock: Arc<SimulatedClock>,
    engine: RefCell<Option<Engine>>,
    process: RefCell<Rc<ServerProcess>>,
    frozen: Cell<u32>,
    starts: Cell<u64>,
}

/// One process of a server, from its start to its crash.
struct ServerProcess {
    task: RefCell<Option<EngineTask>>,
    /// Until when the engine waits for its disk.
    busy: BusyUntil,
    pause: RefCell<Option<Pin<Box<Sleep>>>>,
    is_frozen: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Its other tasks, which are stopped while it is frozen and end with it.
    tasks: RefCell<Vec<AbortHandle>>,
    task_ended: Rc<Notify>,
    stopped: RefCell<Vec<Waker>>,
}

impl SimulatedServer {
    /// A server that is not started yet.
    pub fn new(clock: SimulatedClock) -> Self {
        SimulatedServer {
            clock: Arc::new(clock),
            engine: RefCell::default(),
            process: RefCell::new(Rc::new(ServerProcess::new(None, Box::new(|| None)))),
            frozen: Cell::new(0),
            starts: Cell::new(0),
        }
    }

    /// Starts it on a store.
    pub fn start(&self, store: Box<dyn Store>, busy: BusyUntil, settings: Settings) {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let (engine, task) = Engine::start_stepped(store, clock, settings);
        let process = Rc::new(ServerProcess::new(Some(task), busy));
        process.is_frozen.set(self.frozen.get() > 0);
        self.starts.set(self.starts.get() + 1);
        *self.engine.borrow_mut() = Some(engine);
        *self.process.borrow_mut() = process.clone();
        tokio::task::spawn_local(SteppedProcess(process));
    }

    /// The engine of its process; of a crashed one, that of the last.
    pub fn engine(&self) -> Engine {
        self.engine.borrow().clone().expect("servers are started before their clients")
    }

    /// The number of its latest process. The connections of clients end with a process.
    pub fn incarnation(&self) -> u64 {
        self.starts.get()
    }

    /// Whether it neither crashed nor is frozen.
    pub fn is_running(&self) -> bool {
        self.is_up() && self.frozen.get() == 0
    }

    /// Whether it did not crash.
    pub fn is_up(&self) -> bool {
        self.process.borrow().task.borrow().is_some()
    }

    /// Ends its process at once. Returns whether there was one.
    pub fn crash(&self) -> bool {
        let process = self.process.borrow().clone();
        let task = process.task.borrow_mut().take();
        process.tasks.take().iter().for_each(AbortHandle::abort);
        task.is_some()
    }

    /// Waits until the connections of its process have ended.
    pub async fn connections_ended(&self) {
        let process = self.process.borrow().clone();
        loop {
            let ended = process.task_ended.notified();
            if process.tasks.borrow().iter().all(AbortHandle::is_finished) {
                return;
            }
            ended.await;
        }
    }

    /// Freezes it, or ends one freeze.
    pub fn freeze(&self, begins: bool) {
        let count = if begins { self.frozen.get() + 1 } else { self.frozen.get() - 1 };
        self.frozen.set(count);
        let process = self.process.borrow().clone();
        process.is_frozen.set(count > 0);
        if let Some(waker) = process.waker.borrow_mut().take() {
            waker.wake();
        }
        process.stopped.take().into_iter().for_each(Waker::wake);
    }

    /// Runs a task in its process.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        self.process.borrow().spawn(work);
    }

    /// Runs a task for each connection that arrives.
    pub fn serve<C: 'static, F: Future<Output = ()> + 'static>(
        &self,
        mut connections: mpsc::UnboundedReceiver<C>,
        serve: impl Fn(C) -> F + 'static,
    ) {
        let process = self.process.borrow().clone();
        self.spawn(async move {
            while let Some(connection) = connections.recv().await {
                process.spawn(serve(connection));
            }
        });
    }
}

impl ServerProcess {
    fn new(task: Option<EngineTask>, busy: BusyUntil) -> Self {
        ServerProcess {
            task: RefCell::new(task),
            busy,
            pause: RefCell::default(),
            is_frozen: Cell::default(),
            waker: RefCell::default(),
            tasks: RefCell::default(),
            task_ended: Rc::default(),
            stopped: RefCell::default(),
        }
    }

    fn spawn(self: &Rc<Self>, work: impl Future<Output = ()> + 'static) {
        let task = ProcessTask { process: self.clone(), work: Box::pin(work) };
        let ended = self.task_ended.clone();
        let run = async move {
            task.await;
            // Only when this task counts as finished.
            tokio::task::spawn_local(async move { ended.notify_waiters() });
        };
        let handle = tokio::task::spawn_local(run).abort_handle();
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(handle);
    }
}

impl ServerProcess {
    /// Ready unless the engine waits for its disk.
    fn poll_disk(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until) = (self.busy)().filter(|until| *until > Instant::now()) else {
            return Poll::Ready(());
        };
        let pause = &mut *self.pause.borrow_mut();
        let pause = pause.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if pause.deadline() != until {
            pause.as_mut().reset(until);
        }
        pause.as_mut().poll(cx)
    }
}

/// Polls a task of a process while that is not frozen.
struct ProcessTask {
    process: Rc<ServerProcess>,
    work: Pin<Box<dyn Future<Output = ()>>>,
}

impl Future for ProcessTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.process.is_frozen.get() {
            count_effect(FaultName::FreezeServer);
            self.process.stopped.borrow_mut().push(cx.waker().clone());
            return Poll::Pending;
        }
        let polled = catch_unwind(AssertUnwindSafe(|| self.work.as_mut().poll(cx)));
        // A panic is a violation of the run: see `panics`.
        polled.unwrap_or(Poll::Ready(()))
    }
}

/// Polls the engine of a process while it is not frozen.
struct SteppedProcess(Rc<ServerProcess>);

impl Future for SteppedProcess {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        *self.0.waker.borrow_mut() = Some(cx.waker().clone());
        if self.0.is_frozen.get() {
            count_effect(FaultName::FreezeServer);
            return Poll::Pending;
        }
        std::task::ready!(self.0.poll_disk(cx));
        let mut slot = self.0.task.borrow_mut();
        let Some(task) = slot.as_mut() else { return Poll::Ready(()) };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(task).poll(cx)));
        polled.unwrap_or_else(|_| {
            *slot = None;
            Poll::Ready(())
        })
    }
}
