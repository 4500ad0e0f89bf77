//! Records the runs of handlers, and which of them believed at the same time that they hold the same task.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{TaskId, TubeName};
use taskyard_worker::{CancelReason, Context, RunningTask, Timer};

use super::timer::SimulatedTimer;
use crate::history::{Moment, SharedHistory};

/// One call of a handler for one task.
#[derive(Clone, Debug)]
pub struct HandlerRun {
    /// The worker.
    pub worker: usize,
    /// The number of its process.
    pub process: u32,
    /// The tube of the task.
    pub tube: TubeName,
    /// The task.
    pub id: TaskId,
    /// When it began.
    pub begin: Moment,
    /// When and how it ended: before its outcome was sent.
    pub end: Option<(Moment, RunEnd)>,
    /// An earlier run of the task that still went on then, and whose worker believed that it holds the task.
    pub overlaps: Option<usize>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The task is done.
    Succeeded,
    /// The task failed.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The worker cancelled it.
    Cancelled(CancelReason),
    /// Its process was killed.
    Killed,
    /// It was dropped without a reason.
    Dropped,
}

/// A graceful stop of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerStop {
    /// The worker.
    pub worker: usize,
    /// The number of its process.
    pub process: u32,
    /// When it was asked to stop.
    pub asked: Moment,
    /// How long its handlers may run on.
    pub grace: Duration,
    /// When it had ended.
    pub ended: Moment,
    /// For how long it was frozen between.
    pub frozen: Duration,
}

/// The runs of all handlers.
pub struct RunLog {
    history: SharedHistory,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    runs: Vec<HandlerRun>,
    active: BTreeMap<(TubeName, TaskId), Vec<(usize, Belief)>>,
}

/// What shows whether a worker believes that it holds a task.
#[derive(Clone)]
pub enum Belief {
    /// The context of a batch, and the number of the task.
    Batch(Context, u64, Arc<SimulatedTimer>),
    /// The task of a function.
    Function(RunningTask, Arc<SimulatedTimer>),
}

impl Belief {
    /// Whether the worker believes now that the task is its own. One that is frozen believes nothing.
    fn is_held(&self) -> bool {
        match self {
            Belief::Batch(ctx, task, timer) => {
                !timer.freezer.holds(None)
                    && !ctx.is_lost(*task)
                    && ctx.cancel_reason() != Some(CancelReason::Lost)
                    && timer.now() < ctx.lease_deadline()
            }
            // A function cannot see its lease: it is dropped when that ends.
            Belief::Function(task, timer) => !timer.freezer.holds(None) && !task.is_lost(),
        }
    }

    fn cancel_reason(&self) -> Option<CancelReason> {
        match self {
            Belief::Batch(ctx, task, _) if ctx.is_lost(*task) => Some(CancelReason::Lost),
            Belief::Batch(ctx, ..) => ctx.cancel_reason(),
            Belief::Function(task, _) => task.cancel_reason(),
        }
    }
}

/// The process that a run belongs to.
#[derive(Clone)]
pub struct ProcessId {
    /// The worker.
    pub worker: usize,
    /// The number of its process.
    pub process: u32,
    /// Whether it was killed.
    pub is_killed: Arc<AtomicBool>,
}

impl RunLog {
    /// A log without runs.
    pub fn new(history: SharedHistory) -> Arc<Self> {
        Arc::new(RunLog { history, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current moment.
    pub fn moment(&self) -> Moment {
        self.history.borrow_mut().moment()
    }

    /// All runs.
    pub fn take(&self) -> Vec<HandlerRun> {
        std::mem::take(&mut self.state().runs)
    }

    /// Records that a run begins.
    pub fn begin(
        self: &Arc<Self>,
        process: &ProcessId,
        tube: &TubeName,
        id: TaskId,
        belief: Belief,
    ) -> RunGuard {
        let begin = self.moment();
        let state = &mut *self.state();
        let key = (tube.clone(), id);
        let active = state.active.entry(key.clone()).or_default();
        let overlaps = active.iter().find(|(_, belief)| belief.is_held()).map(|(run, _)| *run);
        let index = state.runs.len();
        active.push((index, belief.clone()));
        let ProcessId { worker, process: number, .. } = *process;
        let (tube, end) = (tube.clone(), None);
        state.runs.push(HandlerRun { worker, process: number, tube, id, begin, end, overlaps });
        RunGuard { log: self.clone(), process: process.clone(), key, index, belief, ended: false }
    }
}

/// A run that goes on until it is ended or dropped.
pub struct RunGuard {
    log: Arc<RunLog>,
    process: ProcessId,
    key: (TubeName, TaskId),
    index: usize,
    belief: Belief,
    ended: bool,
}

impl RunGuard {
    /// Records how the run ended.
    pub fn end(&mut self, how: RunEnd) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let moment = self.log.moment();
        let state = &mut *self.log.state();
        if let Some(active) = state.active.get_mut(&self.key) {
            active.retain(|(run, _)| *run != self.index);
            if active.is_empty() {
                state.active.remove(&self.key);
            }
        }
        if let Some(run) = state.runs.get_mut(self.index) {
            run.end = Some((moment, how));
        }
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let how = match self.belief.cancel_reason() {
            _ if self.process.is_killed.load(Ordering::Relaxed) => RunEnd::Killed,
            Some(reason) => RunEnd::Cancelled(reason),
            None => RunEnd::Dropped,
        };
        self.end(how);
    }
}
