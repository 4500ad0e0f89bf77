//! Runs a worker until a signal or a future stops it; a queue that is unreachable at the start is waited for.

use std::io;
use std::time::Duration;

use taskyard_core::Span;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::worker::{InitError, StillRunning, Worker};

/// The first pause before an unreachable queue is contacted again; each further one is twice as long.
const PAUSE_FIRST: Span = Span::from_micros(100_000);
/// The longest pause.
const PAUSE_MAX: Span = Span::from_secs(5);

/// Why a worker that runs until it is stopped ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It could not start.
    #[error(transparent)]
    Init(#[from] InitError),
    /// Handlers did not end when they were cancelled; their tasks return when their leases end.
    #[error(transparent)]
    StillRunning(#[from] StillRunning),
    /// The system does not report signals.
    #[error("cannot listen to signals: {0}")]
    Signals(#[from] io::Error),
}

impl Worker {
    /// Runs until the process gets SIGTERM or SIGINT. Then it takes no more tasks, lets running handlers finish for `grace`,
    /// cancels those that still run, and returns. A second signal ends the wait. A queue that is unreachable at the start is
    /// waited for.
    pub async fn run_until_signal(&self, grace: Duration) -> Result<(), RunError> {
        let mut signals = StopSignals::listen()?;
        if !init_unless_stopped(self, signals.next()).await? {
            return Ok(());
        }
        let stopping = async {
            signals.next().await;
            let stop_now = async {
                signals.next().await;
                self.shutdown(Duration::ZERO).await
            };
            tokio::select! {
                biased;
                // First: it tells whether handlers still run.
                stopped = stop_now => stopped,
                stopped = self.shutdown(grace) => stopped,
            }
        };
        Ok(self.run_while(stopping).await??)
    }
}

/// Runs a worker until `stop` completes. An unreachable queue is waited for.
pub(crate) async fn run_until(
    worker: &Worker,
    stop: impl Future<Output = ()>,
    grace: Duration,
) -> Result<(), RunError> {
    let mut stop = std::pin::pin!(stop);
    if !init_unless_stopped(worker, stop.as_mut()).await? {
        return Ok(());
    }
    Ok(worker.run_until(stop, grace).await??)
}

/// Initializes a worker when its queue answers; returns `false` if `stop` completes before.
async fn init_unless_stopped(
    worker: &Worker,
    stop: impl Future<Output = ()>,
) -> Result<bool, InitError> {
    tokio::select! {
        biased;
        () = stop => Ok(false),
        initialized = init_with_retries(worker) => initialized.map(|()| true),
    }
}

async fn init_with_retries(worker: &Worker) -> Result<(), InitError> {
    let timer = worker.store().timer();
    let mut pause = PAUSE_FIRST;
    loop {
        match worker.init().await {
            Err(InitError::Refused(error)) if error.is_temporary() => {
                let seconds = pause.as_secs_f64();
                tracing::warn!(%error, seconds, "the queue is unavailable; retrying after the pause");
            }
            initialized => return initialized,
        }
        timer.sleep_until(timer.now() + pause).await;
        pause = Span::from_micros(pause.as_micros() * 2).min(PAUSE_MAX);
    }
}

/// The signals that stop a worker.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> io::Result<Self> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
