//! Runs the function of a worker for each task of a batch, as many at a time as there are slots, and sends the ends of the
//! deliveries whose functions have ended together.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use taskyard_core::{AfterFailure, Finish, Result, Span, Timestamp};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use crate::context::CancelReason;
use crate::dispatcher::RawTask;
use crate::poison::finishes_of;
use crate::running_task::{RunningTask, TaskBatch};
use crate::slots::{FunctionSlot, Reservation};
use crate::stats::{HandlerResult, HandlerStats};
use crate::store::SettledCount;
use crate::timer::BoxFuture;
use crate::typed::Delivery;

/// How long a task that was taken ahead waits for a slot before it is given back to other workers.
const BEGIN_MAX: Span = Span::from_secs(1);
/// The error of a task whose function ran too long.
const OVERRUN: &str = "the function ran longer than run_max";

/// A function of a task.
pub(crate) type Function = Arc<dyn Fn(RunningTask) -> BoxFuture<'static, Returned> + Send + Sync>;

/// What a function returned.
pub(crate) type Returned = Result<(), FunctionError>;

/// Why a function has not done its task, as a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FunctionError {
    /// It returned an error or panicked.
    Failed(String),
    /// It was not called, because the payload cannot be decoded.
    Undecodable(String),
}

/// How a function ended, and how long it ran.
type Ended = (Returned, Duration);

/// One batch of tasks and their functions.
pub(crate) struct FunctionBatch {
    function: Function,
    batch: Arc<TaskBatch>,
    reservation: Arc<Reservation>,
    /// Tasks without a slot.
    waiting: VecDeque<RawTask>,
    functions: JoinSet<Ended>,
    /// The tasks of running functions. A function that blocks its thread may run on without being here.
    running: HashMap<Id, (RunningTask, AbortHandle)>,
    /// When functions have run for `run_max`, in this order.
    run_deadlines: VecDeque<(Timestamp, Id)>,
    /// When functions that were dropped at `run_max` are not waited for any longer, in this order.
    end_deadlines: VecDeque<(Timestamp, Id)>,
    /// The ends of deliveries that are not sent yet.
    finishes: Vec<(u64, Finish)>,
    /// Deliveries that cannot be decoded, and the error of each; their ends are not sent yet.
    poison: Vec<(Delivery, String)>,
    sending: Option<BoxFuture<'static, Result<SettledCount>>>,
    stats: HandlerStats,
    /// The first error of sending.
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
            functions: JoinSet::new(),
            running: HashMap::new(),
            run_deadlines: VecDeque::new(),
            end_deadlines: VecDeque::new(),
            finishes: Vec::new(),
            poison: Vec::new(),
            sending: None,
            stats: HandlerStats::default(),
            error: None,
        }
    }

    /// Runs until the delivery of every task of the batch has ended or is lost.
    pub async fn run(mut self) -> HandlerResult {
        let (batch, reservation) = (self.batch.clone(), self.reservation.clone());
        let (ctx, timer) = (&batch.ctx, batch.store.timer());
        let began = timer.now();
        let mut lost = 0;
        loop {
            self.begin_waiting().await;
            self.end_ready();
            self.send_finishes();
            if self.is_done() {
                break;
            }
            let is_waiting = !self.waiting.is_empty();
            let deadline = self.next_deadline();
            tokio::select! {
                biased;
                () = ctx.cancelled() => {
                    self.cancel().await;
                    break;
                }
                Some(ended) = self.functions.join_next_with_id() => self.end(ended),
                sent = sent(&mut self.sending), if self.sending.is_some() => self.end_sending(sent),
                slot = reservation.begin(), if is_waiting => self.begin_next(slot).await,
                () = ctx.batch_lease().stopping(), if is_waiting => self.give_back_waiting(),
                () = timer.sleep_until(began + BEGIN_MAX), if is_waiting => {
                    reservation.slots().stop_prefetch();
                    self.give_back_waiting();
                }
                () = timer.sleep_until(deadline.unwrap_or(began)), if deadline.is_some() => {
                    self.end_overrun(timer.now());
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

    fn is_done(&self) -> bool {
        self.waiting.is_empty()
            && self.running.is_empty()
            && self.finishes.is_empty()
            && self.poison.is_empty()
            && self.sending.is_none()
    }

    /// Begins as many functions as there are free slots.
    async fn begin_waiting(&mut self) {
        while !self.waiting.is_empty() {
            let Some(slot) = self.reservation.try_begin() else { return };
            self.begin_next(Some(slot)).await;
        }
    }

    async fn begin_next(&mut self, slot: Option<FunctionSlot>) {
        let (Some(slot), Some(raw)) = (slot, self.waiting.pop_front()) else { return };
        if self.batch.ctx.is_lost(raw.delivery.task_id) {
            return;
        }
        let task = RunningTask::new(self.batch.clone(), raw);
        let called = Instant::now();
        let function = &self.function;
        let mut future = match catch_unwind(AssertUnwindSafe(|| function(task.clone()))) {
            Ok(future) => future,
            Err(panic) => {
                let ended = (Err(FunctionError::Failed(panic_text(&*panic))), called.elapsed());
                drop(slot);
                return self.end_task(&task, ended);
            }
        };
        // The time until the runtime begins with a task of its own does not count: when the machine is busy, functions would
        // appear long and get such tasks, which makes it busier.
        let mut began = None;
        if self.reservation.slots().are_short() {
            let polled = poll_fn(|context| Poll::Ready(poll_caught(&mut future, context))).await;
            if let Poll::Ready(returned) = polled {
                drop(slot);
                return self.end_task(&task, (returned, called.elapsed()));
            }
            began = Some(called);
        }
        let handle = self.functions.spawn(call(future, slot, began).in_current_span());
        let deadline = self.batch.store.now() + self.batch.run_max;
        self.run_deadlines.push_back((deadline, handle.id()));
        self.running.insert(handle.id(), (task, handle));
    }

    /// Ends all functions that have returned already.
    fn end_ready(&mut self) {
        while let Some(ended) = self.functions.try_join_next_with_id() {
            self.end(ended);
        }
    }

    fn end(&mut self, ended: Result<(Id, Ended), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some((task, _)) = self.running.remove(&id) else { return };
        match ended {
            Ok((_, ended)) => self.end_task(&task, ended),
            Err(error) => match error.try_into_panic() {
                // It panicked while it was dropped.
                Ok(panic) => {
                    let finish = task.finish(Err(panic_text(&*panic)));
                    self.add_finish(task.number(), finish);
                }
                // It was aborted.
                Err(_) => self.give_up(&task),
            },
        }
    }

    fn end_task(&mut self, task: &RunningTask, (returned, took): Ended) {
        if !matches!(returned, Err(FunctionError::Undecodable(_))) {
            self.reservation.slots().record(took);
        }
        let returned = match returned {
            Ok(()) => Ok(()),
            Err(FunctionError::Failed(error)) => Err(error),
            Err(FunctionError::Undecodable(error)) => {
                self.stats.errors += 1;
                self.stats.last_error = Some(error.clone());
                self.poison.push((task.delivery(), error));
                return;
            }
        };
        self.add_finish(task.number(), task.finish(returned));
    }

    /// The function was aborted: a task that the worker still holds returns as if it had never been taken, unless its time
    /// was over.
    fn give_up(&mut self, task: &RunningTask) {
        match task.cancel_reason() {
            Some(CancelReason::Stopping) => self.give_back(task.number()),
            Some(CancelReason::RunMax) => self.add_finish(task.number(), task.failure(OVERRUN)),
            Some(CancelReason::Lost) | None => {}
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

    /// Counts the end of a delivery and keeps it until it is sent.
    fn add_finish(&mut self, number: u64, finish: Finish) {
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
        self.finishes.push((number, finish));
    }

    /// Aborts the functions of tasks that other consumers may have.
    fn abort_lost(&self) {
        let mut lost: Vec<_> = self.running.values().filter(|(task, _)| task.is_lost()).collect();
        lost.sort_unstable_by_key(|(task, _)| task.number());
        for (task, handle) in lost {
            tracing::warn!(tube = %task.tube(), id = task.id().0, "the lease of a task is lost; its function is cancelled");
            handle.abort();
        }
    }

    /// When the next function has run for too long.
    fn next_deadline(&mut self) -> Option<Timestamp> {
        let running = &self.running;
        let first = |deadlines: &mut VecDeque<(Timestamp, Id)>| {
            while deadlines.pop_front_if(|(_, id)| !running.contains_key(id)).is_some() {}
            deadlines.front().map(|(deadline, _)| *deadline)
        };
        let (run, end) = (first(&mut self.run_deadlines), first(&mut self.end_deadlines));
        run.into_iter().chain(end).min()
    }

    /// Aborts the functions that have run for `run_max`. The task of one that does not end, because it blocks its thread,
    /// has failed all the same; the function keeps its slot.
    fn end_overrun(&mut self, now: Timestamp) {
        while let Some((_, id)) = self.run_deadlines.pop_front_if(|(deadline, _)| *deadline <= now)
        {
            let Some((task, handle)) = self.running.get(&id) else { continue };
            tracing::warn!(tube = %task.tube(), id = task.id().0, "{OVERRUN}; it is cancelled");
            task.mark_overrun();
            handle.abort();
            self.end_deadlines.push_back((now + self.batch.end_max, id));
        }
        while let Some((_, id)) = self.end_deadlines.pop_front_if(|(deadline, _)| *deadline <= now)
        {
            let Some((task, _)) = self.running.remove(&id) else { continue };
            tracing::warn!(tube = %task.tube(), id = task.id().0, "a cancelled function does not end; it blocks a slot of the worker");
            self.give_up(&task);
        }
    }

    /// Sends the ends of deliveries, unless the ones before are on their way: then these wait and travel together.
    fn send_finishes(&mut self) {
        if self.sending.is_some() || (self.finishes.is_empty() && self.poison.is_empty()) {
            return;
        }
        let (batch, finishes) = (self.batch.clone(), std::mem::take(&mut self.finishes));
        // The ends of tasks that cannot be decoded may need more requests; the others do not wait for them.
        let poison =
            if finishes.is_empty() { std::mem::take(&mut self.poison) } else { Vec::new() };
        self.sending = Some(Box::pin(async move {
            let finishes = match poison.is_empty() {
                true => finishes,
                false => finishes_of(&batch.store, &batch.tube, poison).await,
            };
            batch.store.finish_with_retries(finishes).await
        }));
    }

    fn end_sending(&mut self, sent: Result<SettledCount>) {
        self.sending = None;
        if let Err(error) = sent {
            tracing::warn!(tube = %self.batch.tube, %error, "cannot settle tasks; they return when their lease ends");
            self.error.get_or_insert(error);
        }
    }

    /// Aborts all functions and sends the ends of deliveries as they come: a function that blocks its thread does not end,
    /// and the others must not wait for it.
    async fn cancel(&mut self) {
        self.functions.abort_all();
        self.give_back_waiting();
        loop {
            self.end_ready();
            self.send_finishes();
            if self.is_done() {
                return;
            }
            tokio::select! {
                biased;
                Some(ended) = self.functions.join_next_with_id() => self.end(ended),
                sent = sent(&mut self.sending), if self.sending.is_some() => self.end_sending(sent),
            }
        }
    }
}

impl Drop for FunctionBatch {
    /// A function may keep its task, and so the reservation, for longer than the batch lasts.
    fn drop(&mut self) {
        self.reservation.free(self.waiting.len());
    }
}

/// Waits for the end of a function, which then frees its slot. It begins now unless it has begun already.
async fn call(
    mut future: BoxFuture<'static, Returned>,
    slot: FunctionSlot,
    began: Option<Instant>,
) -> Ended {
    let began = began.unwrap_or_else(Instant::now);
    let returned = poll_fn(|context| poll_caught(&mut future, context)).await;
    drop(slot);
    (returned, began.elapsed())
}

/// Polls a function; a panic is its error.
fn poll_caught(
    future: &mut BoxFuture<'static, Returned>,
    context: &mut TaskContext<'_>,
) -> Poll<Returned> {
    let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
    polled.unwrap_or_else(|panic| {
        let error = FunctionError::Failed(panic_text(&*panic));
        Poll::Ready(Err(error))
    })
}

/// Waits for the request with the ends of deliveries.
async fn sent(
    sending: &mut Option<BoxFuture<'static, Result<SettledCount>>>,
) -> Result<SettledCount> {
    match sending {
        Some(sending) => sending.await,
        None => Ok(SettledCount::default()),
    }
}

/// The message of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use crate::slots::Slots;

    use super::*;

    /// A slow function that panicked counted as one that took no time, and many tasks were taken ahead of the next slow one.
    #[tokio::test]
    async fn the_time_of_a_function_that_panics_is_counted() {
        let minute = Duration::from_secs(60);
        let began = Instant::now().checked_sub(minute).expect("the machine runs for a minute");
        let slots = Arc::new(Slots::new(1, Arc::default()));
        let reservation = Arc::new(slots.reserve(1).expect("it is free"));
        let slot = reservation.try_begin().expect("it is free");
        let (returned, took) =
            call(Box::pin(async { panic!("out of ink") }), slot, Some(began)).await;
        assert_eq!(returned, Err(FunctionError::Failed("panicked: out of ink".into())));
        assert!(took >= minute && !slots.is_full());
    }

    /// `run_max` was counted from the beginning of the batch: a function that began later had less time.
    #[cfg(feature = "testing")]
    #[tokio::test]
    async fn each_function_has_its_own_time() {
        use crate::batch_lease::{BatchLease, WorkerSignals};
        use crate::context::Context;
        use crate::store::Store;
        use crate::testing::TestKit;
        use taskyard_core::{Body, TubeName};
        use tokio::sync::{mpsc, oneshot};

        let kit = TestKit::new();
        let store = Store::new(Box::new(kit.queue().clone()), kit.timer(), Vec::new());
        let (never, tube) = (Timestamp::NEVER, TubeName::new("mail").unwrap());
        let signals = WorkerSignals { stop: Arc::default(), cancel_all: Arc::default() };
        let lease = Arc::new(BatchLease::new(never, never, signals));
        let slots = Arc::new(Slots::new(1, Arc::default()));
        // Short functions are taken ahead, so that two tasks have one slot.
        slots.record(Duration::from_micros(1));
        let reservation = Arc::new(slots.reserve(2).expect("it is free"));
        let ctx = Context::new(0, lease, HashMap::new(), Vec::new(), None);
        let (run_max, end_max) = (Span::from_secs(5), Span::from_secs(1));
        let batch = TaskBatch { tube, ctx, store, run_max, end_max };
        let raw = |task_id| RawTask {
            delivery: Delivery { task_id, ..Delivery::default() },
            body: Body::new(&[0xc0]),
        };
        // A function ends when the test sends, and closes the channel when it is dropped.
        let (begun, mut functions) = mpsc::unbounded_channel();
        let function: Function = Arc::new(move |_| {
            let (end, ended) = oneshot::channel::<()>();
            begun.send(end).expect("the test runs");
            Box::pin(async move {
                ended.await.map_err(|error| FunctionError::Failed(error.to_string()))
            })
        });
        let batch = FunctionBatch::new(function, batch, reservation, vec![raw(1), raw(2)]);
        let running = tokio::spawn(batch.run());
        let first = functions.recv().await.expect("it begins");
        kit.advance(Duration::from_millis(900));
        first.send(()).expect("it runs");
        let mut second = functions.recv().await.expect("it begins");
        kit.advance(Duration::from_millis(4900));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!second.is_closed(), "it has run for less than 5 s");
        kit.advance(Duration::from_millis(100));
        second.closed().await;
        let stats = running.await.expect("it does not panic").expect("it ends");
        assert_eq!((stats.processed, stats.errors), (1, 1));
        assert_eq!(stats.last_error.as_deref(), Some(OVERRUN));
    }
}
