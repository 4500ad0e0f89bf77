//! Workers that call a function, on a queue with a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use taskyard::{Client, FunctionWorker, RunError, RunningTask, State, TaskId, TubeInfo};
use taskyard_engine::{Engine, Settings};
use taskyard_store::{MemoryStore, OpenOptions, Store};
use taskyard_testkit::server::{TestServer, block_on, clock};
use taskyard_worker::testing::ManualTimer;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, yield_now};

use crate::http_proxy::HttpProxy;

/// A queue with a clock that the test moves, behind some transport.
pub struct Fixture {
    pub client: Client,
    pub timer: Arc<ManualTimer>,
    pub _server: Option<TestServer>,
}

/// A worker that runs in the background.
pub struct Running {
    pub stop: oneshot::Sender<()>,
    pub task: JoinHandle<Result<(), RunError>>,
}

/// Runs a case in this process, on a store in memory and on one on disk, over HTTP and over iproto.
pub fn each(case: impl AsyncFn(&Fixture)) {
    let folder = tempfile::tempdir().expect("a temporary folder is created");
    let url = format!("sqlite:{}", folder.path().display());
    let on_disk = || taskyard_stores::open(&url, &OpenOptions::default());
    block_on(async {
        case(&Fixture::in_process(Box::new(MemoryStore::default()))).await;
        case(&Fixture::in_process(on_disk().expect("the store opens"))).await;
        case(&Fixture::over(TestServer::in_memory().await, TestServer::client)).await;
        let iproto = |server: &TestServer| Client::new(server.connect());
        case(&Fixture::over(TestServer::in_memory().await, iproto)).await;
    });
}

impl Fixture {
    fn in_process(store: Box<dyn Store>) -> Self {
        let clock = clock();
        let engine = Engine::start(store, clock.clone(), Settings::default());
        let timer = Arc::new(ManualTimer::new(clock));
        Fixture { client: Client::embedded(engine), timer, _server: None }
    }

    fn over(server: TestServer, connect: impl Fn(&TestServer) -> Client) -> Self {
        let timer = Arc::new(ManualTimer::new(server.clock.clone()));
        Fixture { client: connect(&server), timer, _server: Some(server) }
    }

    /// Starts a worker with this function.
    pub fn start<F, R>(&self, worker: FunctionWorker, function: F) -> Running
    where
        F: Fn(String, RunningTask) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), String>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let worker = worker.timer(self.timer.clone());
        let stopped = async { drop(stopped.await) };
        Running { stop, task: tokio::spawn(worker.run_until(stopped, function)) }
    }

    pub async fn wait_until(&self, condition: impl Fn(&TubeInfo) -> bool) {
        loop {
            match self.client.tube("mail").await {
                Ok(tube) if condition(&tube) => return,
                _ => yield_now().await,
            }
        }
    }

    pub async fn state(&self, id: u64) -> State {
        self.client.peek("mail", TaskId(id)).await.unwrap().unwrap().task.state
    }

    /// The state of a task and its last error.
    pub async fn failed(&self, id: u64) -> (State, String) {
        let task = self.client.peek("mail", TaskId(id)).await.unwrap().unwrap().task;
        let failures = task.failures.expect("it has failed");
        let error = failures.iter().last().expect("there is one").error.to_string();
        (task.state, error)
    }

    /// Moves the clock until the worker has ended.
    pub async fn ended(&self, mut task: JoinHandle<Result<(), RunError>>) -> Result<(), RunError> {
        loop {
            tokio::select! {
                biased;
                ended = &mut task => return ended.expect("the worker does not panic"),
                () = yield_now() => {
                    self.timer.advance(Duration::from_millis(10));
                    // The queue has its own thread: time must not pass faster than it replies.
                    self.client.tubes().await.expect("the queue replies");
                }
            }
        }
    }

    /// Moves the clock until the proxy has refused this many more connections.
    pub async fn refused_by(&self, proxy: &HttpProxy, count: u32) {
        let refused = proxy.refused.acquire_many(count);
        let mut refused = std::pin::pin!(refused);
        loop {
            tokio::select! {
                biased;
                refused = &mut refused => return refused.unwrap().forget(),
                () = yield_now() => self.timer.advance(Duration::from_millis(10)),
            }
        }
    }

    pub async fn stop(&self, running: Running) {
        running.stop.send(()).expect("the worker runs");
        self.ended(running.task).await.expect("the worker ends without an error");
    }
}

/// Waits for a permit that a function or the test has added.
pub async fn passed(gate: &Semaphore) {
    gate.acquire().await.expect("the gate stays open").forget();
}
