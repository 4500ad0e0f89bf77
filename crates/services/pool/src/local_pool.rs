//! Connects the gateway to the scheduler and the backends of the same process.

use std::sync::Arc;

use serde_json::Value;
use taskyard_core::Span;
use tokio::sync::mpsc;

use crate::backend::{Backends, RunningProgram, TaskSpec};
use crate::gateway::{BoxFuture, PoolHandle, TaskHandle, Unavailable};
use crate::protocol::OutgoingFrame;
use crate::scheduler::{PoolStopping, QueuedTask, Scheduler, TaskEvent};

/// The error that a client receives when its program or its backend was killed.
pub(crate) const LOST_ERROR: &str = "the program or its backend was killed";
/// The error that every remaining client receives when the pool stops.
const STOPPING_ERROR: &str = "the pool is stopping";

/// The scheduler and the backends of this process.
#[derive(Debug)]
pub(crate) struct LocalPool {
    pub scheduler: Scheduler,
    pub backends: Arc<Backends>,
}

impl PoolHandle for LocalPool {
    fn submit(&self, spec: TaskSpec) -> BoxFuture<'_, Result<Box<dyn TaskHandle>, Unavailable>> {
        Box::pin(async move {
            let queued = self.scheduler.submit(spec.ask, Arc::default()).await?;
            let (spec, backends) = (Arc::new(spec), self.backends.clone());
            Ok(Box::new(LocalTask { backends, spec, queued, running: None }) as Box<dyn TaskHandle>)
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<Value, Unavailable>> {
        Box::pin(async move {
            let status = self.scheduler.status().await?;
            let mut body = serde_json::to_value(status).unwrap_or_default();
            body["not_isolated"] = self.backends.isolation().gaps().into();
            body["memory_accounting"] = self.backends.isolation().memory_accounting().into();
            body["sandboxes"] = serde_json::to_value(self.backends.sandboxes()).unwrap_or_default();
            body["folders"] = self.backends.folders().into();
            Ok(body)
        })
    }
}

impl From<PoolStopping> for Unavailable {
    fn from(stopping: PoolStopping) -> Self {
        Unavailable(stopping.to_string())
    }
}

/// A task of this process.
#[derive(Debug)]
struct LocalTask {
    backends: Arc<Backends>,
    spec: Arc<TaskSpec>,
    queued: QueuedTask,
    running: Option<RunningProgram>,
}

impl LocalTask {
    async fn receive_frame(&mut self) -> OutgoingFrame {
        loop {
            let runs = self.running.is_some();
            tokio::select! {
                biased;
                frame = next_frame_of(&mut self.running) => match frame {
                    Some(frame) => return frame,
                    // The backend is gone; the scheduler decides whether the task runs again.
                    None => self.running = None,
                },
                step = next_event(&mut self.queued.events, runs) => match step {
                    Some(TaskEvent::Start(allocation)) => {
                        self.running = Some(self.backends.run(allocation, self.spec.clone()));
                    }
                    Some(TaskEvent::Deny(why)) => return OutgoingFrame::Deny(why),
                    Some(TaskEvent::Lost) => return OutgoingFrame::Complete(Some(LOST_ERROR.into())),
                    None => return OutgoingFrame::Complete(Some(STOPPING_ERROR.into())),
                },
                Ok(()) = self.queued.position.changed(), if !runs => {
                    let position = self.queued.position.borrow_and_update().clone();
                    if let Some(position) = position {
                        return OutgoingFrame::Queue(position);
                    }
                }
            }
        }
    }
}

impl TaskHandle for LocalTask {
    fn next_frame(&mut self) -> BoxFuture<'_, OutgoingFrame> {
        Box::pin(self.receive_frame())
    }

    fn lower(&mut self, requested: Span) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            match self.queued.lower(requested).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn input(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.running.as_ref().map(|running| running.input.clone())
    }
}

async fn next_frame_of(running: &mut Option<RunningProgram>) -> Option<OutgoingFrame> {
    match running {
        Some(running) => running.frames.recv().await,
        None => std::future::pending().await,
    }
}

/// The next event of the task. When the scheduler closes the channel while the program runs, the program has ended
/// and its last frames still follow.
async fn next_event(
    events: &mut mpsc::UnboundedReceiver<TaskEvent>,
    runs: bool,
) -> Option<TaskEvent> {
    match events.recv().await {
        None if runs => std::future::pending().await,
        step => step,
    }
}
