//! What a handler is told besides its tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use taskyard_core::Timestamp;
use tokio::sync::watch;

/// The circumstances of one batch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    queue_num: u32,
    deadline_micros: Arc<AtomicI64>,
    cancelled: watch::Receiver<bool>,
}

impl Context {
    pub(super) fn new(queue_num: u32, until: Timestamp, cancelled: watch::Receiver<bool>) -> Self {
        let deadline_micros = Arc::new(AtomicI64::new(until.as_micros()));
        Context { queue_num, deadline_micros, cancelled }
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
