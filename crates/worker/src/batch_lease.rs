//! The lease of one batch: its deadlines, the tasks that were lost, and whether its handler is cancelled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use taskyard_core::Timestamp;
use tokio::sync::watch;

use crate::context::CancelReason;
use crate::signal::Signal;

/// The state that handler, store and processor of one batch share.
#[derive(Debug)]
pub(crate) struct BatchLease {
    deadline_micros: AtomicI64,
    /// When the handler is cancelled, even if the lease could be extended further.
    run_deadline: Timestamp,
    lost: watch::Sender<LostTasks>,
    signals: WorkerSignals,
}

/// What a worker tells all of its handlers.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSignals {
    /// It takes no more tasks.
    pub stop: Arc<Signal>,
    /// All handlers are cancelled.
    pub cancel_all: Arc<Signal>,
}

#[derive(Debug, Default)]
struct LostTasks {
    tasks: BTreeSet<u64>,
    /// No unsettled task of the batch is left.
    all: bool,
    /// The handler ran longer than `run_max`.
    overrun: bool,
}

impl BatchLease {
    pub fn new(until: Timestamp, run_deadline: Timestamp, signals: WorkerSignals) -> Self {
        let deadline_micros = AtomicI64::new(until.as_micros());
        BatchLease { deadline_micros, run_deadline, lost: watch::Sender::default(), signals }
    }

    pub fn run_deadline(&self) -> Timestamp {
        self.run_deadline
    }

    pub fn deadline(&self) -> Timestamp {
        Timestamp::from_micros(self.deadline_micros.load(Ordering::Relaxed))
    }

    pub fn set_deadline(&self, until: Timestamp) {
        self.deadline_micros.store(until.as_micros(), Ordering::Relaxed);
    }

    /// Records that these tasks no longer belong to the handler.
    pub fn mark_lost(&self, tasks: &[u64]) {
        self.lost.send_if_modified(|lost| {
            let before = lost.tasks.len();
            lost.tasks.extend(tasks);
            lost.tasks.len() > before
        });
    }

    /// Records that no unsettled task of the batch is left.
    pub fn mark_all_lost(&self) {
        self.lost.send_modify(|lost| lost.all = true);
    }

    /// Records that the handler ran longer than `run_max`.
    pub fn mark_overrun(&self) {
        self.lost.send_modify(|lost| lost.overrun = true);
    }

    pub fn is_lost(&self, task: u64) -> bool {
        self.lost.borrow().tasks.contains(&task)
    }

    /// Completes when the task no longer belongs to the handler.
    pub async fn lost(&self, task: u64) {
        self.wait_for(|lost| lost.tasks.contains(&task)).await;
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Why the handler is cancelled; `None` while it is not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        let lost = self.lost.borrow();
        match *lost {
            LostTasks { all: true, .. } => Some(CancelReason::Lost),
            LostTasks { overrun: true, .. } => Some(CancelReason::RunMax),
            _ => self.signals.cancel_all.is_raised().then_some(CancelReason::Stopping),
        }
    }

    /// Completes when the handler is cancelled.
    pub async fn cancelled(&self) {
        tokio::select! {
            biased;
            () = self.signals.cancel_all.raised() => {}
            () = self.wait_for(|lost| lost.all || lost.overrun) => {}
        }
    }

    /// Completes when the worker takes no more tasks.
    pub async fn stopping(&self) {
        self.signals.stop.raised().await;
    }

    /// How many tasks no longer belong to the handler.
    pub fn lost_count(&self) -> usize {
        self.lost.borrow().tasks.len()
    }

    /// Completes when more tasks than these no longer belong to the handler.
    pub async fn lost_more_than(&self, known: usize) {
        self.wait_for(|lost| lost.tasks.len() > known).await;
    }

    async fn wait_for(&self, condition: impl Fn(&LostTasks) -> bool) {
        // `self` owns the sender, so the channel stays open.
        let _ = self.lost.subscribe().wait_for(|lost| condition(lost)).await;
    }
}
