//! Runs one simulated server: an engine that can freeze, crash and start again.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use taskyard_engine::{Clock, Engine, EngineTask, Settings};
use taskyard_store::Store;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::clock::SimulatedClock;

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
#[derive(Default)]
struct ServerProcess {
    task: RefCell<Option<EngineTask>>,
    is_frozen: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Its other tasks, which are stopped while it is frozen and end with it.
    tasks: RefCell<Vec<AbortHandle>>,
    stopped: RefCell<Vec<Waker>>,
}

impl SimulatedServer {
    /// A server that is not started yet.
    pub fn new(clock: SimulatedClock) -> Self {
        SimulatedServer {
            clock: Arc::new(clock),
            engine: RefCell::default(),
            process: RefCell::default(),
            frozen: Cell::new(0),
            starts: Cell::new(0),
        }
    }

    /// Starts it on a store.
    pub fn start(&self, store: Box<dyn Store>, settings: Settings) {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let (engine, task) = Engine::start_stepped(store, clock, settings);
        let process = Rc::new(ServerProcess {
            task: RefCell::new(Some(task)),
            is_frozen: Cell::new(self.frozen.get() > 0),
            ..ServerProcess::default()
        });
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
    fn spawn(self: &Rc<Self>, work: impl Future<Output = ()> + 'static) {
        let task = ProcessTask { process: self.clone(), work: Box::pin(work) };
        let handle = tokio::task::spawn_local(task).abort_handle();
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(handle);
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
            return Poll::Pending;
        }
        let mut slot = self.0.task.borrow_mut();
        let Some(task) = slot.as_mut() else { return Poll::Ready(()) };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(task).poll(cx)));
        polled.unwrap_or_else(|_| {
            *slot = None;
            Poll::Ready(())
        })
    }
}
