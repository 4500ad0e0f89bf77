//! The task that a function works on: what the queue knows about it, and how the function decides its outcome.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use taskyard_core::limits::RESULT_BYTES_MAX;
use taskyard_core::{Error, Finish, Result, Span, TaskId, Timestamp, TubeName};
use taskyard_wire::fail_by_policy;

use crate::batch_outcome::backoff;
use crate::context::{CancelReason, Context};
use crate::dispatcher::RawTask;
use crate::store::Store;
use crate::trace_context::TraceContext;
use crate::typed::Delivery;

/// The task that a function works on. Cheap to clone.
///
/// When the function returns `Ok`, the task is acked; when it returns an error or panics, the task has failed. `release`,
/// `bury` and `result` change that; they take effect when the function returns.
#[derive(Clone)]
pub struct RunningTask {
    batch: Arc<TaskBatch>,
    task: Arc<TaskState>,
}

/// What the tasks of one batch share.
pub(crate) struct TaskBatch {
    pub tube: TubeName,
    pub ctx: Context,
    pub store: Store,
    /// How long each function may run.
    pub run_max: Span,
    /// How long a function that is dropped may take to end.
    pub end_max: Span,
}

struct TaskState {
    raw: RawTask,
    decision: Mutex<Decision>,
    /// Whether the function ran longer than `run_max`.
    is_overrun: AtomicBool,
}

/// What the function decided about its task.
#[derive(Default)]
enum Decision {
    /// Nothing: what it returns decides.
    #[default]
    None,
    /// An ack has this result, in MessagePack.
    Result(Vec<u8>),
    Release(Duration),
    /// With the error to keep, if any.
    Bury(Option<String>),
}

impl RunningTask {
    pub(crate) fn new(batch: Arc<TaskBatch>, raw: RawTask) -> Self {
        let (decision, is_overrun) = (Mutex::default(), AtomicBool::new(false));
        RunningTask { batch, task: Arc::new(TaskState { raw, decision, is_overrun }) }
    }

    /// The id of the task in its tube.
    pub fn id(&self) -> TaskId {
        self.task.raw.delivery.id()
    }

    /// The tube of the task.
    pub fn tube(&self) -> &TubeName {
        &self.batch.tube
    }

    /// The number of earlier deliveries that ended without ack or bury.
    pub fn attempts(&self) -> u32 {
        self.task.raw.delivery.attempts
    }

    /// When the task became ready: the time since then is its waiting time.
    pub fn due(&self) -> Option<Timestamp> {
        self.task.raw.delivery.due
    }

    /// The payload as it is stored: one MessagePack value.
    pub fn payload(&self) -> &[u8] {
        self.task.raw.body.payload()
    }

    /// The metadata map of the task, decoded as a `T`; `None` when it has none.
    pub fn meta<T: DeserializeOwned>(&self) -> Result<Option<T>, rmp_serde::decode::Error> {
        self.task.raw.body.meta().map(rmp_serde::from_slice).transpose()
    }

    /// The trace context of the task, if it was put with one.
    pub fn trace(&self) -> Option<TraceContext> {
        self.batch.ctx.trace(self.number())
    }

    /// The queue of the worker, into which the function can put typed tasks.
    pub fn store(&self) -> &Store {
        &self.batch.store
    }

    /// Returns the task for another attempt, at once. This delivery counts as an attempt.
    pub fn release(&self) {
        self.release_later(Duration::ZERO);
    }

    /// Returns the task for another attempt, after `delay`.
    pub fn release_later(&self, delay: Duration) {
        *self.decision() = Decision::Release(delay);
    }

    /// Buries the task until it is kicked; with the error of the function, if it returns one.
    pub fn bury(&self) {
        *self.decision() = Decision::Bury(None);
    }

    /// Buries the task with an error that is kept with it.
    pub fn bury_with(&self, error: &str) {
        *self.decision() = Decision::Bury(Some(error.to_owned()));
    }

    /// Sets the result of the task, which is kept with it if its tube keeps done tasks (`keep_done`). Refused if it cannot be
    /// encoded or is larger than 64 KiB.
    pub fn result<T: Serialize + ?Sized>(&self, result: &T) -> Result<()> {
        let result = rmp_serde::to_vec_named(result);
        let result = result.map_err(|error| {
            Error::Invalid(format!("the result cannot be encoded as MessagePack: {error}"))
        })?;
        if result.len() > RESULT_BYTES_MAX {
            return Err(Error::TooLarge {
                what: "the result of a task",
                size: result.len(),
                limit: RESULT_BYTES_MAX,
                advice: "put it elsewhere and keep its address",
            });
        }
        *self.decision() = Decision::Result(result);
        Ok(())
    }

    /// Extends the lease by this time; returns whether the task still belongs to the function. The worker extends the lease
    /// by itself while the function runs.
    pub async fn touch(&self, more: Duration) -> Result<bool> {
        Ok(self.batch.store.extend(&[self.number()], more).await?.done == 1)
    }

    /// Whether the task no longer belongs to the function: its lease expired, and another consumer may work on it.
    pub fn is_lost(&self) -> bool {
        self.batch.ctx.is_lost(self.number())
    }

    /// Why the function must end now; `None` while it may run. A function that does not end is dropped at its next `await`.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        if self.is_lost() {
            Some(CancelReason::Lost)
        } else if self.task.is_overrun.load(Ordering::Relaxed) {
            Some(CancelReason::RunMax)
        } else {
            self.batch.ctx.cancel_reason()
        }
    }

    /// The function ran longer than `run_max`.
    pub(crate) fn mark_overrun(&self) {
        self.task.is_overrun.store(true, Ordering::Relaxed);
    }

    /// What the queue knows about the task.
    pub(crate) fn delivery(&self) -> Delivery {
        self.task.raw.delivery
    }

    /// The number of the task, unique in the store.
    pub(crate) fn number(&self) -> u64 {
        self.task.raw.delivery.task_id
    }

    /// The end of the delivery, as the function decided; the error is the text of what it returned.
    pub(crate) fn finish(&self, returned: Result<(), String>) -> Finish {
        match (std::mem::take(&mut *self.decision()), returned) {
            (Decision::Release(delay), _) => Finish::Release { delay: delay.into(), counted: true },
            (Decision::Bury(Some(error)), _) | (Decision::Bury(None), Err(error)) => {
                Finish::fail(&error, None)
            }
            (Decision::Bury(None), Ok(())) => Finish::Bury,
            (_, Err(error)) => self.failure(&error),
            (Decision::Result(result), Ok(())) => Finish::ack_with(&result),
            (Decision::None, Ok(())) => Finish::Ack,
        }
    }

    /// The end of the delivery of a task that has failed with this error.
    pub(crate) fn failure(&self, error: &str) -> Finish {
        fail_by_policy(error, Span::from(backoff(self.attempts())))
    }

    fn decision(&self) -> MutexGuard<'_, Decision> {
        self.task.decision.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RunningTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningTask")
            .field("tube", self.tube())
            .field("id", &self.id())
            .field("attempts", &self.attempts())
            .finish_non_exhaustive()
    }
}
