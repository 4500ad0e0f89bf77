//! The context of a batch that a handler gets besides its tasks: cancellation, deadlines, traces.

use std::collections::HashMap;
use std::sync::Arc;

use taskyard_core::Timestamp;

use crate::batch_lease::BatchLease;
use crate::slots::Reservation;
use crate::trace_context::TraceContext;

/// The context of one batch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    queue_num: u32,
    batch_lease: Arc<BatchLease>,
    /// The trace contexts of the tasks that have one.
    traces: Arc<HashMap<u64, TraceContext>>,
    /// When each task became ready.
    dues: Arc<[(u64, Timestamp)]>,
    /// The slots of its tasks, in a worker of functions.
    reservation: Option<Arc<Reservation>>,
}

/// Why a handler is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// The worker shuts down.
    Stopping,
    /// All unsettled tasks of the batch are lost.
    Lost,
    /// The handler ran longer than `run_max`. Tasks that it does not settle now return as failed.
    RunMax,
}

impl Context {
    pub(crate) fn new(
        queue_num: u32,
        batch_lease: Arc<BatchLease>,
        traces: HashMap<u64, TraceContext>,
        mut dues: Vec<(u64, Timestamp)>,
        reservation: Option<Reservation>,
    ) -> Self {
        dues.sort_unstable();
        Context {
            queue_num,
            batch_lease,
            traces: Arc::new(traces),
            dues: dues.into(),
            reservation: reservation.map(Arc::new),
        }
    }

    pub(crate) fn reservation(&self) -> Option<&Arc<Reservation>> {
        self.reservation.as_ref()
    }

    /// When a task of the batch became ready for this attempt: the time since then is its waiting time.
    pub fn due(&self, task_id: u64) -> Option<Timestamp> {
        let index = self.dues.binary_search_by_key(&task_id, |(id, _)| *id).ok()?;
        Some(self.dues[index].1)
    }

    /// The trace context of a task of the batch, if it was put with one.
    pub fn trace(&self, task_id: u64) -> Option<TraceContext> {
        self.traces.get(&task_id).copied()
    }

    /// The number of the queue of the tasks.
    pub fn queue_num(&self) -> u32 {
        self.queue_num
    }

    /// Whether the handler must end now: the worker shuts down, all its unsettled tasks are lost, or it ran longer than
    /// `run_max`.
    pub fn is_cancelled(&self) -> bool {
        self.batch_lease.is_cancelled()
    }

    /// Why the handler is cancelled; `None` while it is not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.batch_lease.cancel_reason()
    }

    /// Completes when the handler is cancelled.
    pub async fn cancelled(&self) {
        self.batch_lease.cancelled().await;
    }

    /// Whether this task no longer belongs to the handler: its lease expired or the queue was restarted, and another
    /// consumer may work on it. The worker detects this when it extends the lease of the batch.
    pub fn is_lost(&self, task_id: u64) -> bool {
        self.batch_lease.is_lost(task_id)
    }

    /// Completes when this task no longer belongs to the handler.
    pub async fn lost(&self, task_id: u64) {
        self.batch_lease.lost(task_id).await;
    }

    /// When the lease of the tasks ends. The worker moves it forward as long as it can extend the lease.
    pub fn lease_deadline(&self) -> Timestamp {
        self.batch_lease.deadline()
    }

    /// When the handler is cancelled because it ran for `run_max`. It never changes.
    pub fn run_deadline(&self) -> Timestamp {
        self.batch_lease.run_deadline()
    }

    pub(crate) fn batch_lease(&self) -> &Arc<BatchLease> {
        &self.batch_lease
    }
}
