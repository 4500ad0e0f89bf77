//! What a handler is told besides its tasks.

use std::collections::HashMap;
use std::sync::Arc;

use taskyard_core::Timestamp;

use super::hold::Hold;
use super::trace::Trace;

/// The circumstances of one batch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    queue_num: u32,
    hold: Arc<Hold>,
    /// The traces of the tasks that have one.
    traces: Arc<HashMap<u64, Trace>>,
    /// Since when each task was ready.
    dues: Arc<[(u64, Timestamp)]>,
}

/// Why a handler is to end now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The worker stops.
    Stopping,
    /// All tasks that were not settled yet are lost.
    Lost,
    /// The handler ran longer than `run_max`. What it does not settle now returns as failed.
    RunMax,
}

impl Context {
    pub(super) fn new(
        queue_num: u32,
        hold: Arc<Hold>,
        traces: HashMap<u64, Trace>,
        mut dues: Vec<(u64, Timestamp)>,
    ) -> Self {
        dues.sort_unstable();
        Context { queue_num, hold, traces: Arc::new(traces), dues: dues.into() }
    }

    /// When a task of the batch became ready for this attempt: how long it has waited is what has passed since.
    pub fn due(&self, task_id: u64) -> Option<Timestamp> {
        let place = self.dues.binary_search_by_key(&task_id, |(id, _)| *id).ok()?;
        Some(self.dues[place].1)
    }

    /// The trace that a task of the batch belongs to, if it was put with one.
    pub fn trace(&self, task_id: u64) -> Option<Trace> {
        self.traces.get(&task_id).copied()
    }

    /// The queue that the tasks are from.
    pub fn queue_num(&self) -> u32 {
        self.queue_num
    }

    /// Whether the handler is to end now, with what it has: the worker stops, all that it has not settled yet
    /// is lost, or it ran longer than `run_max`.
    pub fn is_cancelled(&self) -> bool {
        self.hold.is_cancelled()
    }

    /// Why the handler is to end now, if it is.
    pub fn cancel(&self) -> Option<Cancel> {
        self.hold.cancel()
    }

    /// Ready when the handler is to end now.
    pub async fn cancelled(&self) {
        self.hold.cancelled().await;
    }

    /// Whether this task is no longer the handler's: its time ran out, or the queue began anew, and somebody else may
    /// work on it. The worker notices when it prolongs the batch.
    pub fn is_lost(&self, task_id: u64) -> bool {
        self.hold.is_lost(task_id)
    }

    /// Ready when this task is no longer the handler's.
    pub async fn lost(&self, task_id: u64) {
        self.hold.lost(task_id).await;
    }

    /// When the tasks will be given to another consumer. It moves on as long as the worker can prolong it.
    pub fn lease_deadline(&self) -> Timestamp {
        self.hold.deadline()
    }

    /// When the handler is cancelled because it ran for `run_max`. It does not move.
    pub fn run_deadline(&self) -> Timestamp {
        self.hold.run_until()
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }
}
