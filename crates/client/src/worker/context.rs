//! What a handler is told besides its tasks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use taskyard_core::Timestamp;
use tokio::sync::watch;

use super::trace::Trace;

/// The circumstances of one batch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    queue_num: u32,
    deadline_micros: Arc<AtomicI64>,
    cancelled: watch::Receiver<bool>,
    /// The traces of the tasks that have one.
    traces: Arc<HashMap<u64, Trace>>,
}

impl Context {
    pub(super) fn new(
        queue_num: u32,
        until: Timestamp,
        cancelled: watch::Receiver<bool>,
        traces: HashMap<u64, Trace>,
    ) -> Self {
        let deadline_micros = Arc::new(AtomicI64::new(until.as_micros()));
        Context { queue_num, deadline_micros, cancelled, traces: Arc::new(traces) }
    }

    /// The trace that a task of the batch belongs to, if it was put with one.
    pub fn trace(&self, task_id: u64) -> Option<Trace> {
        self.traces.get(&task_id).copied()
    }

    /// The queue that the tasks are from.
    pub fn queue_num(&self) -> u32 {
        self.queue_num
    }

    /// Whether the worker wants the handler to end now, with what it has.
    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Ready when the worker wants the handler to end now.
    pub async fn cancelled(&self) {
        let mut cancelled = self.cancelled.clone();
        // A worker that is gone cancels nothing any more.
        if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
            std::future::pending().await
        }
    }

    /// When the tasks will be given to somebody else. It moves on as long as the worker can prolong it.
    pub fn lease_deadline(&self) -> Timestamp {
        Timestamp::from_micros(self.deadline_micros.load(Ordering::Relaxed))
    }

    pub(super) fn prolonged(&self, until: Timestamp) {
        self.deadline_micros.store(until.as_micros(), Ordering::Relaxed);
    }
}
