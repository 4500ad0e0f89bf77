//! Runs the function of a worker for each task of a batch, as many at a time as there are slots, and settles the tasks whose
//! functions have ended together.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use taskyard_core::{AfterFailure, Finish, Result, Span};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tracing::Instrument;

use crate::context::CancelReason;
use crate::dispatcher::RawTask;
use crate::poison::finishes_of;
use crate::running_task::{RunningTask, TaskBatch};
use crate::slots::Reservation;
use crate::stats::{HandlerResult, HandlerStats};
use crate::store::SettledCount;
use crate::timer::BoxFuture;
use crate::typed::Delivery;

/// How long a task that was taken ahead waits for a slot before it is given back to other workers.
const BEGIN_MAX: Span = Span::from_secs(1);

/// A function of a task.
pub(crate) type Function =
    Arc<dyn Fn(RunningTask) -> BoxFuture<'static, Result<(), FunctionError>> + Send + Sync>;

/// Why a function has not done its task, as a text.
pub(crate) enum FunctionError {
    /// It returned an error or panicked.
    Failed(String),
    /// It was not called, because the payload cannot be decoded.
    Undecodable(String),
}

/// How a function ended, and how long it ran.
type Ended = (Result<(), FunctionError>, Duration);

/// One batch of tasks and their functions.
pub(crate) struct FunctionBatch {
    function: Function,
    batch: Arc<TaskBatch>,
    reservation: Arc<Reservation>,
    /// Tasks without a slot.
    waiting: VecDeque<RawTask>,
    running: JoinSet<Ended>,
    tasks: HashMap<Id, (RunningTask, AbortHandle)>,
    /// The ends of deliveries that are not sent yet.
    finishes: Vec<(u64, Finish)>,
    /// Deliveries that cannot be decoded, and the error of each; they are not settled yet.
    poison: Vec<(Delivery, String)>,
    settling: Option<BoxFuture<'static, Result<SettledCount>>>,
    stats: HandlerStats,
    /// The first error of settling.
    error: Option<taskyard_core::Error>,
}

impl FunctionBatch {
    pub fn new(
        function: Function,
        batch: TaskBatch,
        reservation: Arc<Reservation>,
        tasks: Vec<RawTask>,
    ) -> Self {
        FunctionBatch {
            function,
            batch: Arc::new(batch),
            reservation,
            waiting: tasks.into(),
            running: JoinSet::new(),
            tasks: HashMap::new(),
            finishes: Vec::new(),
            poison: Vec::new(),
            settling: None,
            stats: HandlerStats::default(),
            error: None,
        }
    }

    /// Runs until every task of the batch is settled or lost.
    pub async fn run(mut self) -> HandlerResult {
        let batch = self.batch.clone();
        let (ctx, timer) = (&batch.ctx, batch.store.timer());
        let slots = self.reservation.slots().clone();
        let began = timer.now();
        let mut lost = 0;
        while !self.is_settled() {
            self.begin_waiting().await;
            self.end_ready();
            self.settle();
            if self.is_settled() {
                break;
            }
            let is_waiting = !self.waiting.is_empty();
            tokio::select! {
                biased;
                () = ctx.cancelled() => {
                    self.cancel().await;
                    break;
                }
                Some(ended) = self.running.join_next_with_id() => self.end(ended),
                settled = settled(&mut self.settling), if self.settling.is_some() => {
                    self.settling = None;
                    self.note(settled);
                }
                slot = slots.begin(), if is_waiting => self.begin_next(slot).await,
                () = ctx.batch_lease().stopping(), if is_waiting => self.give_back_waiting(),
                () = timer.sleep_until(began + BEGIN_MAX), if is_waiting => {
                    slots.stop_prefetch();
                    self.give_back_waiting();
                }
                () = ctx.batch_lease().lost_more_than(lost) => {
                    lost = ctx.batch_lease().lost_count();
                    self.abort_lost();
                }
            }
        }
        self.stats.duration = timer.now().since(began).into();
        match self.error.take() {
            Some(error) => Err(error.into()),
            None => Ok(std::mem::take(&mut self.stats)),
        }
    }

    fn is_settled(&self) -> bool {
        self.waiting.is_empty()
            && self.running.is_empty()
            && self.finishes.is_empty()
            && self.poison.is_empty()
            && self.settling.is_none()
    }

    /// Begins as many functions as there are free slots.
    async fn begin_waiting(&mut self) {
        while !self.waiting.is_empty() {
            let Some(slot) = self.reservation.slots().try_begin() else { return };
            self.begin_next(Some(slot)).await;
        }
    }

    async fn begin_next(&mut self, slot: Option<OwnedSemaphorePermit>) {
        let (Some(slot), Some(raw)) = (slot, self.waiting.pop_front()) else { return };
        if self.batch.ctx.is_lost(raw.delivery.task_id) {
            self.reservation.free(1);
            return;
        }
        let task = RunningTask::new(self.batch.clone(), raw);
        let began = Instant::now();
        let function = &self.function;
        let mut future = match catch_unwind(AssertUnwindSafe(|| function(task.clone()))) {
            Ok(future) => future,
            Err(panic) => return self.end_task(&task, (Err(panicked(&*panic)), began.elapsed())),
        };
        if self.reservation.slots().are_short() {
            let poll = |context: &mut std::task::Context<'_>| {
                let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
                Poll::Ready(polled.unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic)))))
            };
            if let Poll::Ready(returned) = poll_fn(poll).await {
                drop(slot);
                return self.end_task(&task, (returned, began.elapsed()));
            }
        }
        let work = async move {
            let returned = future.await;
            drop(slot);
            (returned, began.elapsed())
        };
        let handle = self.running.spawn(work.in_current_span());
        self.tasks.insert(handle.id(), (task, handle));
    }

    /// Ends all functions that have returned already.
    fn end_ready(&mut self) {
        while let Some(ended) = self.running.try_join_next_with_id() {
            self.end(ended);
        }
    }

    fn end(&mut self, ended: Result<(Id, Ended), JoinError>) {
        let (id, ended) = match ended {
            Ok((id, ended)) => (id, Some(ended)),
            Err(error) => {
                let id = error.id();
                let panic = error.try_into_panic().ok();
                (id, panic.map(|panic| (Err(panicked(&*panic)), Duration::ZERO)))
            }
        };
        let Some((task, _)) = self.tasks.remove(&id) else { return };
        match ended {
            Some(ended) => self.end_task(&task, ended),
            // It was aborted.
            None => self.give_up(&task),
        }
    }

    fn end_task(&mut self, task: &RunningTask, (returned, took): Ended) {
        self.reservation.slots().record(took);
        self.reservation.free(1);
        let finish = match returned {
            Ok(()) => task.finish(Ok(())),
            Err(FunctionError::Failed(error)) => task.finish(Err(error)),
            Err(FunctionError::Undecodable(error)) => {
                self.stats.errors += 1;
                self.stats.last_error = Some(error.clone());
                self.poison.push((task.delivery(), error));
                return;
            }
        };
        match &finish {
            Finish::Ack | Finish::AckWithResult(_) => self.stats.processed += 1,
            Finish::Fail(fail) => {
                self.stats.errors += 1;
                self.stats.retried += usize::from(fail.then != AfterFailure::Bury);
                self.stats.last_error = Some(fail.error.to_string());
            }
            Finish::Release { .. } => self.stats.retried += 1,
            Finish::Bury | Finish::Touch(_) => {}
        }
        self.finishes.push((task.number(), finish));
    }

    /// The function was aborted: a task that the worker still holds returns as if it had never been taken, unless its time
    /// was over, which is a failure that the processor reports.
    fn give_up(&mut self, task: &RunningTask) {
        self.reservation.free(1);
        if task.cancel_reason() == Some(CancelReason::Stopping) {
            self.give_back(task.number());
        }
    }

    fn give_back(&mut self, number: u64) {
        self.finishes.push((number, Finish::Release { delay: Span::ZERO, counted: false }));
    }

    fn give_back_waiting(&mut self) {
        for raw in std::mem::take(&mut self.waiting) {
            self.reservation.free(1);
            self.give_back(raw.delivery.task_id);
        }
    }

    /// Aborts the functions of tasks that other consumers may have.
    fn abort_lost(&self) {
        for (task, handle) in self.tasks.values().filter(|(task, _)| task.is_lost()) {
            tracing::warn!(tube = %task.tube(), id = task.id().0, "the lease of a task is lost; its function is cancelled");
            handle.abort();
        }
    }

    /// Sends the ends of deliveries, unless the ones before are on their way: then these wait and travel together.
    fn settle(&mut self) {
        if self.settling.is_some() || (self.finishes.is_empty() && self.poison.is_empty()) {
            return;
        }
        let (batch, poison) = (self.batch.clone(), std::mem::take(&mut self.poison));
        let mut finishes = std::mem::take(&mut self.finishes);
        self.settling = Some(Box::pin(async move {
            finishes.extend(finishes_of(&batch.store, &batch.tube, poison).await);
            batch.store.finish_with_retries(finishes).await
        }));
    }

    /// Aborts all functions and settles what can be settled.
    async fn cancel(&mut self) {
        self.running.abort_all();
        while let Some(ended) = self.running.join_next_with_id().await {
            self.end(ended);
        }
        self.give_back_waiting();
        while !self.is_settled() {
            self.settle();
            let settled = settled(&mut self.settling).await;
            self.settling = None;
            self.note(settled);
        }
    }

    fn note(&mut self, settled: Result<SettledCount>) {
        if let Err(error) = settled {
            tracing::warn!(tube = %self.batch.tube, %error, "cannot settle tasks; they return when their lease ends");
            self.error.get_or_insert(error);
        }
    }
}

impl Drop for FunctionBatch {
    /// A function may keep its task for longer than the batch lasts.
    fn drop(&mut self) {
        self.reservation.free(usize::MAX);
    }
}

/// Waits for the request that settles tasks.
async fn settled(
    settling: &mut Option<BoxFuture<'static, Result<SettledCount>>>,
) -> Result<SettledCount> {
    match settling {
        Some(settling) => settling.await,
        None => Ok(SettledCount::default()),
    }
}

/// The error of a function that panicked, with the message.
fn panicked(panic: &(dyn Any + Send)) -> FunctionError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    FunctionError::Failed(format!("panicked: {}", text.unwrap_or("no message")))
}
