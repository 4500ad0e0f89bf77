//! A worker that calls a function for each task of a tube.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use taskyard_core::failure::stored_error;
use taskyard_core::{DynExecute, Execute, Span, TubeName};

use crate::dispatcher::{Dispatcher, Handler};
use crate::function_batch::{Function, FunctionBatch, FunctionError};
use crate::running_task::{RunningTask, TaskBatch};
use crate::settings::{PROCESSORS_MAX, RUN_SECONDS_MAX, Settings, check_count, check_duration};
use crate::stop_signals::{RunError, run_until};
use crate::timer::{BoxFuture, SystemTimer, Timer};
use crate::worker::{InitError, Worker, WorkerBuilder};
use crate::worker_name::worker_name;

/// How many tasks one take asks for at most.
const BATCH_SIZE: usize = 100;
/// How long functions may run on after a stop.
const GRACE: Duration = Duration::from_secs(30);
/// How long a function that is dropped at `run_max` may take to end, at most a third of its lease: the worker still holds the
/// task when it fails it.
const END_MAX: Span = Span::from_secs(1);

/// A worker that calls a function for each task of a tube. `Client::worker` of the crate `taskyard` makes one.
///
/// The function gets the data of the task and the task itself. If it returns `Ok`, the task is acked. If it returns an error
/// or panics, the task has failed: the error is kept with it, and it is tried again as the retry policy of its tube says, or
/// after one second, then two, four, up to an hour. [`RunningTask`] has the other outcomes.
///
/// Delivery is at least once: functions must be idempotent. While a function runs, the worker extends the lease of its task;
/// when the lease is lost all the same, the function is dropped at its next `await`.
#[must_use = "a worker works when it is run"]
pub struct FunctionWorker {
    queue: Box<dyn DynExecute>,
    tube: String,
    concurrency: usize,
    lease: Duration,
    run_max: Duration,
    grace: Duration,
    timer: Arc<dyn Timer>,
}

impl FunctionWorker {
    /// A worker of this tube, which is created when the worker starts if it does not exist.
    pub fn new<E: Execute + 'static>(queue: E, tube: &str) -> Self {
        let settings = Settings::default();
        FunctionWorker {
            queue: Box::new(queue),
            tube: tube.to_owned(),
            concurrency: 1,
            lease: settings.visibility_timeout,
            run_max: Duration::from_secs(RUN_SECONDS_MAX),
            grace: GRACE,
            timer: Arc::new(SystemTimer),
        }
    }

    /// Sets how many functions run at a time; 1 by default, 1024 at most.
    pub fn concurrency(self, concurrency: usize) -> Self {
        FunctionWorker { concurrency, ..self }
    }

    /// Sets the lease of tasks, one minute by default: how soon the tasks of a worker that crashed are delivered again. It is
    /// extended while a function runs.
    pub fn lease(self, lease: Duration) -> Self {
        FunctionWorker { lease, ..self }
    }

    /// Sets how long each function may run: then it is dropped at its next `await`, and its task has failed. There is no limit
    /// by default.
    pub fn run_max(self, run_max: Duration) -> Self {
        FunctionWorker { run_max, ..self }
    }

    /// Sets how long functions may run on after a stop, 30 seconds by default: then they are dropped, and their tasks return
    /// as if they had never been taken.
    pub fn grace(self, grace: Duration) -> Self {
        FunctionWorker { grace, ..self }
    }

    /// Sets another timer than the system's, for tests.
    pub fn timer(self, timer: Arc<dyn Timer>) -> Self {
        FunctionWorker { timer, ..self }
    }

    /// Calls the function for each task until the process gets SIGTERM or SIGINT. Then it takes no more tasks, waits for
    /// running functions as long as `grace`, and returns. A second signal ends the wait.
    pub async fn run<T, F, R, O, E>(self, function: F) -> Result<(), RunError>
    where
        T: DeserializeOwned + 'static,
        F: Fn(T, RunningTask) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let grace = self.grace;
        self.build(erased(function))?.run_until_signal(grace).await
    }

    /// The same until `stop` completes, whatever signals the process gets.
    pub async fn run_until<T, F, R, O, E>(
        self,
        stop: impl Future<Output = ()>,
        function: F,
    ) -> Result<(), RunError>
    where
        T: DeserializeOwned + 'static,
        F: Fn(T, RunningTask) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let grace = self.grace;
        run_until(&self.build(erased(function))?, stop, grace).await
    }

    fn build(self, function: Function) -> Result<Worker, InitError> {
        check_count("concurrency", self.concurrency, PROCESSORS_MAX)?;
        check_duration("run_max", self.run_max, RUN_SECONDS_MAX)?;
        let settings = Settings {
            // A batch with one long function keeps its processor busy.
            max_processors: self.concurrency,
            visibility_timeout: self.lease,
            // Each function has its own limit.
            run_max: Some(Duration::from_secs(RUN_SECONDS_MAX)),
            batch_size: BATCH_SIZE,
            slow_cycle: Duration::MAX,
            ..Settings::default()
        };
        let tube = TubeName::new(&self.tube)?;
        let run_max = Span::from(self.run_max);
        let end_max = END_MAX.min(Span::from(self.lease / 3));
        let handler = Handler::raw(move |ctx, store, tasks| {
            let (function, tube) = (function.clone(), tube.clone());
            async move {
                let Some(reservation) = ctx.reservation().cloned() else {
                    return Err("a worker of functions has slots".into());
                };
                let batch = TaskBatch { tube, ctx, store, run_max, end_max };
                FunctionBatch::new(function, batch, reservation, tasks).run().await
            }
        });
        let dispatcher = Dispatcher::of_tube(&self.tube, handler);
        WorkerBuilder::new(&worker_name(), self.queue, dispatcher)
            .settings(settings)
            .concurrency(self.concurrency)
            .timer(self.timer)
            .build()
    }
}

/// The function with the types of its data and its errors erased.
fn erased<T, F, R, O, E>(function: F) -> Function
where
    T: DeserializeOwned + 'static,
    F: Fn(T, RunningTask) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, E>> + Send + 'static,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    let call = move |task: RunningTask| -> BoxFuture<'static, Result<(), FunctionError>> {
        match rmp_serde::from_slice(task.payload()) {
            Ok(data) => {
                let running = function(data, task);
                Box::pin(async move {
                    match running.await {
                        Ok(_) => Ok(()),
                        Err(error) => Err(FunctionError::Failed(with_causes(&*error.into()))),
                    }
                })
            }
            Err(error) => {
                // It may show a value of any length.
                let error = stored_error(&error.to_string()).to_string();
                let error = FunctionError::Undecodable(error);
                Box::pin(std::future::ready(Err(error)))
            }
        }
    };
    Arc::new(call)
}

/// The text of an error and of its causes. A cause that the text before ends with is not repeated.
fn with_causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

impl fmt::Debug for FunctionWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionWorker")
            .field("tube", &self.tube)
            .field("concurrency", &self.concurrency)
            .field("lease", &self.lease)
            .field("run_max", &self.run_max)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}
