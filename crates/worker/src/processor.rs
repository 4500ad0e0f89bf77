//! Runs one job processor: takes a batch, calls its handler, extends the lease meanwhile, and counts the outcome.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use taskyard_core::{Finish, Lease, Span, Task, Timestamp};
use taskyard_iproto::fields::FieldError;
use taskyard_wire::fail_by_policy;
use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument;
use tracing::field::{Empty, display};

use crate::batch_lease::BatchLease;
use crate::batch_outcome::backoff;
use crate::batch_queue::{Batch, Work};
use crate::context::{CancelReason, Context};
use crate::delivery_registry::{HeldDelivery, task_id};
use crate::dispatcher::{PreparedBatch, RawTask};
use crate::metrics::{GaugeGuard, count};
use crate::poison::finishes_of;
use crate::settings::{PoisonPolicy, Settings};
use crate::state::{TakenTasks, WorkerQueue, WorkerState};
use crate::stats::{HandlerResult, HandlerStats};
use crate::trace_context::TraceContext;
use crate::typed::Delivery;

/// How soon to retry an extension of the lease that failed.
const EXTEND_RETRY: Span = Span::from_secs(1);
/// The shortest pause between two extensions of a lease.
const EXTEND_PAUSE_MIN: Span = Span::from_micros(10_000);
/// How long a handler that is cancelled at `run_max` may take to end, at most a third of its lease: the worker still
/// holds the tasks when it releases them.
const RUN_MAX_GRACE: Span = Span::from_secs(1);

/// Runs until the worker stops or has too many processors.
pub(crate) async fn run(state: Arc<WorkerState>, slot: usize) {
    let _running = GaugeGuard::add(state.metrics.processors(), 1);
    while let Some(work) = state.next_work(slot).await {
        let queue = match &work {
            Work::Take(queue) => *queue,
            Work::Batch(batch) => batch.queue,
        };
        let _busy = BusyProcessor::new(&state, slot, queue);
        let batch = match work {
            Work::Batch(batch) => Some(batch),
            Work::Take(queue) => state.unless_abandoned(take(&state, queue)).await.flatten(),
        };
        let Some(batch) = batch else { continue };
        if state.stop.is_raised() {
            // No handler has begun the batch, so the delivery does not count as an attempt.
            state.give_back(queue, &batch.tasks).await;
            continue;
        }
        BatchCycle::begin(&state, batch).run().await;
    }
}

/// Takes a batch from a queue without waiting; `None` if there is none.
async fn take(state: &WorkerState, queue: usize) -> Option<Batch> {
    let began = state.store.now();
    let Some(taken) = state.take(queue, Span::ZERO).await else {
        state.batch_queue().selector.take_not_sent(queue);
        return None;
    };
    match taken {
        Ok(taken) if taken.tasks.is_empty() => {
            state.batch_queue().selector.mark_empty(queue, began);
        }
        Ok(TakenTasks { tasks, lease, reservation, .. }) => {
            if state.batch_queue().selector.mark_available(queue) {
                // The other processors skipped the queue while its takes failed.
                state.wake.notify_waiters();
            }
            return Some(Batch { queue, tasks, began, sent: began, lease, reservation });
        }
        Err(error) => state.take_failed(queue, &error),
    }
    None
}

/// Counts a processor as working on a queue until dropped.
struct BusyProcessor<'a> {
    state: &'a WorkerState,
    slot: usize,
    queue: usize,
}

impl<'a> BusyProcessor<'a> {
    fn new(state: &'a WorkerState, slot: usize, queue: usize) -> Self {
        state.batch_queue().working.insert(slot, queue);
        BusyProcessor { state, slot, queue }
    }
}

impl Drop for BusyProcessor<'_> {
    fn drop(&mut self) {
        let mut batch_queue = self.state.batch_queue();
        batch_queue.working.remove(&self.slot);
        batch_queue.selector.batch_ended(self.queue);
    }
}

/// The processing of one batch.
struct BatchCycle<'a> {
    state: &'a WorkerState,
    worker_queue: &'a WorkerQueue,
    settings: Settings,
    began: Timestamp,
    /// When the take was sent.
    sent: Timestamp,
    /// How long the lease lasts without an extension, as it was when the tasks were taken.
    lease: Span,
    ctx: Context,
    /// The deliveries of the batch.
    held: Vec<(u64, Lease)>,
    /// The attempts before this one, for each delivery.
    attempts: Vec<u32>,
    raw: Vec<RawTask>,
}

/// How a handler ended.
enum HandlerEnd {
    Returned(HandlerResult),
    Panicked,
    /// It ran longer than `run_max` and did not end when it was cancelled.
    TimedOut,
    /// The worker stopped waiting for it.
    Abandoned,
}

impl<'a> BatchCycle<'a> {
    fn begin(state: &'a WorkerState, batch: Batch) -> Self {
        let worker_queue = &state.queues[batch.queue];
        let settings = state.settings.borrow().clone();
        let tube = state.tube_number(batch.queue);
        let mut held = Vec::with_capacity(batch.tasks.len());
        let mut counts = Vec::with_capacity(batch.tasks.len());
        let mut raw = Vec::with_capacity(batch.tasks.len());
        let mut registered = Vec::with_capacity(batch.tasks.len());
        let mut dues = Vec::with_capacity(batch.tasks.len());
        let mut traces = HashMap::new();
        for task in batch.tasks {
            let Task { id, attempts, previous_start, due, lease, body, .. } = task;
            let (Some(lease), Some(body)) = (lease, body) else { continue };
            let task_id = task_id(tube, id);
            let delivery = Delivery { task_id, attempts, prev_start_time: previous_start, due };
            if let Some(trace) = body.meta().and_then(TraceContext::from_meta) {
                traces.insert(task_id, trace);
            }
            held.push((task_id, lease));
            counts.push(attempts);
            dues.extend(due.map(|due| (task_id, due)));
            registered.push((task_id, HeldDelivery { queue: batch.queue, id, lease }));
            raw.push(RawTask { delivery, body });
        }
        state.store.deliveries().add(registered.into_iter());
        let Batch { began, sent, lease, reservation, .. } = batch;
        // The lease is counted from when the take was sent, which is the safe side. The handler begins only now.
        let run_deadline = state.store.now() + Span::from(settings.run_max_of(lease.into()));
        let batch_lease = BatchLease::new(sent + lease, run_deadline, state.signals());
        let ctx = Context::new(worker_queue.num, Arc::new(batch_lease), traces, dues, reservation);
        let attempts = counts;
        BatchCycle { state, worker_queue, settings, began, sent, lease, ctx, held, attempts, raw }
    }

    async fn run(self) {
        let (worker, queue) = (&*self.state.name, self.queue());
        let span = tracing::info_span!("batch", worker, queue, tasks = self.raw.len());
        self.work(span.clone()).instrument(span).await;
    }

    async fn work(mut self, span: tracing::Span) {
        let size = self.raw.len();
        self.open_spans();
        let in_progress = GaugeGuard::add(&self.worker_queue.metrics.in_progress, size);
        let (handled, ended) = self.handle(span).await;
        let timed_out = if self.ctx.cancel_reason() == Some(CancelReason::RunMax) {
            self.state.unless_abandoned(self.release_overrun()).await.unwrap_or(0)
        } else {
            0
        };
        drop(in_progress);
        // The spans of settled tasks are closed already.
        self.state.store.deliveries().close_spans(&self.held, "unsettled");
        let unsettled = self.state.store.deliveries().remove(self.held.iter().copied());
        let took = Duration::from(self.state.store.now().since(self.began));
        self.worker_queue.metrics.cycle(took);
        let (errors, queue) =
            (self.count_outcome(ended, handled, unsettled) + timed_out, self.queue());
        let mut load = self.worker_queue.load.lock().unwrap_or_else(PoisonError::into_inner);
        load.add(took, size, errors);
        if took > self.settings.slow_cycle {
            count(&self.worker_queue.metrics.slow_cycles, 1);
            tracing::warn!(
                queue,
                seconds = took.as_secs_f64(),
                "slow cycle; consider a smaller batch_size"
            );
        }
    }

    /// The name of the queue, for log lines without spans.
    fn queue(&self) -> &str {
        self.worker_queue.tube.as_str()
    }

    /// Opens a span for each task if a subscriber records spans; it closes when the task is settled.
    fn open_spans(&self) {
        // Both lists have the same order.
        for (task, (_, lease)) in self.raw.iter().zip(&self.held) {
            let Delivery { task_id, attempts, .. } = task.delivery;
            let span =
                tracing::info_span!("task", task_id, attempts, trace = Empty, outcome = Empty);
            if span.is_disabled() {
                return;
            }
            if let Some(trace) = self.ctx.trace(task_id) {
                span.record("trace", display(trace));
            }
            self.state.store.deliveries().open_span(task_id, *lease, span);
        }
    }

    /// Calls the handler; returns how many tasks it was given and how it ended.
    async fn handle(&mut self, span: tracing::Span) -> (usize, HandlerEnd) {
        let Some(handler) = &self.worker_queue.handler else { return (0, HandlerEnd::Panicked) };
        let raw = std::mem::take(&mut self.raw);
        let size = raw.len();
        let store = self.state.store.for_batch(&self.held, self.ctx.batch_lease());
        let prepare = || handler.prepare(self.ctx.clone(), store, raw);
        let Ok(PreparedBatch { poison, work }) = catch_unwind(AssertUnwindSafe(prepare)) else {
            return (size, HandlerEnd::Panicked);
        };
        if !poison.is_empty() {
            self.state.unless_abandoned(self.finish_poison(poison)).await;
        }
        match work {
            Some((count, work)) => {
                // A spawned task does not inherit the current span.
                let work = HandlerTask(tokio::spawn(work.instrument(span)));
                (count, self.watch(work).await)
            }
            None => (0, HandlerEnd::Returned(Ok(HandlerStats::default()))),
        }
    }

    /// Waits for the handler and extends the lease of its tasks meanwhile, until `run_max` is over.
    async fn watch(&self, mut task: HandlerTask) -> HandlerEnd {
        let timer = self.state.store.timer();
        tokio::select! {
            biased;
            ended = &mut task.0 => return end_of(ended),
            () = self.state.abandon.raised() => return HandlerEnd::Abandoned,
            () = timer.sleep_until(self.ctx.run_deadline()) => {}
            never = self.extend_periodically() => match never {},
        }
        count(&self.worker_queue.metrics.timeouts, 1);
        tracing::warn!(
            queue = self.queue(),
            seconds = self.ctx.run_deadline().since(self.began).as_secs_f64(),
            "handler ran longer than run_max; it is cancelled and its unsettled tasks return as failed"
        );
        self.ctx.batch_lease().mark_overrun();
        let grace = RUN_MAX_GRACE.min(Span::from_micros(self.lease.as_micros() / 3));
        tokio::select! {
            biased;
            ended = &mut task.0 => end_of(ended),
            () = self.state.abandon.raised() => HandlerEnd::Abandoned,
            () = timer.sleep_until(timer.now() + grace) => HandlerEnd::TimedOut,
        }
    }

    /// Releases the tasks that a handler which ran longer than `run_max` has not settled: each counts as a failed attempt
    /// and is delayed by the retry policy of its tube, or by its backoff. Returns how many were released.
    async fn release_overrun(&self) -> usize {
        let store = &self.state.store;
        let found = store.deliveries().find(self.held.iter().map(|held| held.0));
        let mut unsettled = Vec::new();
        for (((task_id, lease), attempts), held) in self.held.iter().zip(&self.attempts).zip(found)
        {
            if held.is_some_and(|held| held.lease == *lease) {
                let delay = backoff(*attempts).into();
                let error = "handler ran longer than run_max";
                unsettled.push((*task_id, fail_by_policy(error, delay)));
            }
        }
        store.deliveries().close_spans(&self.held, "run_max");
        match store.finish(unsettled).await {
            Ok(released) => {
                count(&self.worker_queue.metrics.errors, released.done);
                count(&self.worker_queue.metrics.retried, released.done);
                released.done
            }
            Err(error) => {
                tracing::warn!(queue = self.queue(), %error, "release failed; tasks return when their lease ends");
                0
            }
        }
    }

    /// Extends the lease after each third of it, retries soon after a failure, and ends when no task is left to hold.
    async fn extend_periodically(&self) -> Infallible {
        let (store, lease) = (&self.state.store, self.lease);
        let pause = Span::from_micros(lease.as_micros() / 3).max(EXTEND_PAUSE_MIN);
        let (mut extended_at, mut next) = (self.sent, self.sent + pause);
        let mut is_failing = false;
        loop {
            store.timer().sleep_until(next).await;
            let now = store.now();
            let lease_deadline = self.ctx.lease_deadline();
            if is_failing && next >= lease_deadline {
                match self.end_lease().await {}
            }
            // A clock that was set forward does not end the lease.
            let deadline = match now < lease_deadline {
                true => lease_deadline.min(now + pause),
                false => now + pause,
            };
            let extension = tokio::select! {
                biased;
                extension = self.extend(extension_of(extended_at, now, pause, lease)) => extension,
                () = store.timer().sleep_until(deadline) => {
                    self.extension_failed(&"no answer");
                    None
                }
            };
            is_failing = extension.is_none();
            next = match extension {
                Some(Extension::Extended) => {
                    extended_at = now;
                    self.ctx.batch_lease().set_deadline(now + lease);
                    now + pause
                }
                Some(Extension::AllSettled) => now + pause,
                Some(Extension::AllLost) => {
                    tracing::warn!(
                        queue = self.queue(),
                        "all tasks of the batch are lost; cancelling its handler"
                    );
                    self.ctx.batch_lease().mark_all_lost();
                    std::future::pending().await
                }
                None if store.now() >= lease_deadline => match self.end_lease().await {},
                None => (store.now() + pause.min(EXTEND_RETRY)).min(lease_deadline),
            };
        }
    }

    /// Cancels the handler of a batch whose lease has ended because it could not be extended.
    async fn end_lease(&self) -> Infallible {
        tracing::warn!(
            queue = self.queue(),
            "the lease of the batch could not be extended and has ended; cancelling its handler"
        );
        let lost: Vec<_> = self.held.iter().map(|held| held.0).collect();
        self.ctx.batch_lease().mark_lost(&lost);
        self.ctx.batch_lease().mark_all_lost();
        std::future::pending().await
    }

    /// Extends the lease of every unsettled task by this time; `None` when the request failed.
    async fn extend(&self, by: Span) -> Option<Extension> {
        let found = self.state.store.deliveries().find(self.held.iter().map(|held| held.0));
        let (mut unsettled, mut lost) = (Vec::new(), Vec::new());
        for ((task_id, lease), held) in self.held.iter().zip(found) {
            match held {
                Some(held) if held.lease == *lease => {
                    unsettled.push((*task_id, Finish::Touch(by)));
                }
                // Delivered again to another processor of this worker.
                Some(_) => lost.push(*task_id),
                None => {}
            }
        }
        let mut finished = self.state.store.finish_all(unsettled, false).await;
        lost.append(&mut finished.lost);
        self.ctx.batch_lease().mark_lost(&lost);
        match finished.into_result() {
            Ok(extended) if extended.done > 0 => Some(Extension::Extended),
            Ok(_) if lost.is_empty() => Some(Extension::AllSettled),
            Ok(_) => Some(Extension::AllLost),
            Err(error) => {
                self.extension_failed(&error);
                None
            }
        }
    }

    fn extension_failed(&self, error: &dyn Display) {
        count(&self.worker_queue.metrics.store_errors, 1);
        tracing::warn!(queue = self.queue(), %error, "cannot extend the lease of the batch; retrying");
    }

    /// Settles tasks that cannot be decoded: they must not delay the rest of the batch, nor return at once.
    async fn finish_poison(&self, poison: Vec<(Delivery, FieldError)>) {
        count(&self.worker_queue.metrics.poison, poison.len());
        let (store, tube) = (&self.state.store, &self.worker_queue.tube);
        let finishes = match self.settings.poison {
            PoisonPolicy::Drop => {
                for (delivery, error) in &poison {
                    let id = delivery.id().0;
                    tracing::warn!(queue = %tube, id, %error, "cannot decode the payload of a task; it is removed");
                }
                poison.iter().map(|(delivery, _)| (delivery.task_id, Finish::Ack)).collect()
            }
            PoisonPolicy::Retry => {
                let poison =
                    poison.into_iter().map(|(delivery, error)| (delivery, error.to_string()));
                finishes_of(store, tube, poison.collect()).await
            }
        };
        if let Err(error) = store.finish(finishes).await {
            tracing::warn!(queue = %tube, %error, "cannot settle poison tasks; they return when their lease ends");
        }
    }

    /// Counts and logs the outcome of a batch; returns the number of errors.
    fn count_outcome(&self, ended: HandlerEnd, handled: usize, unsettled: usize) -> usize {
        let (metrics, queue) = (&self.worker_queue.metrics, self.queue());
        match ended {
            HandlerEnd::Returned(Ok(stats)) => {
                count(&metrics.unsettled, unsettled);
                if unsettled > 0 {
                    tracing::warn!(
                        queue,
                        unsettled,
                        "handler left tasks unsettled; they return when their lease ends"
                    );
                }
                let (stats, cut) = stats.clamped(handled);
                if cut {
                    tracing::warn!(queue, "handler reported more tasks than it was given");
                }
                count(&metrics.processed, stats.processed);
                count(&metrics.errors, stats.errors);
                count(&metrics.retried, stats.retried);
                if let Some(error) = &stats.last_error {
                    tracing::info!(queue, errors = stats.errors, error, "tasks failed");
                }
                stats.errors
            }
            HandlerEnd::Returned(Err(error)) => {
                count(&metrics.handler_errors, 1);
                tracing::error!(queue, %error, unsettled, "handler failed; its unsettled tasks return when their lease ends");
                1
            }
            HandlerEnd::Panicked => {
                count(&metrics.panics, 1);
                tracing::error!(
                    queue,
                    unsettled,
                    "handler panicked; its unsettled tasks return when their lease ends"
                );
                1
            }
            // Logged when it was cancelled.
            HandlerEnd::TimedOut => 0,
            HandlerEnd::Abandoned => {
                tracing::warn!(queue, unsettled, "handler did not end in time and was abandoned");
                1
            }
        }
    }
}

/// The result of an extension of the lease of a batch.
enum Extension {
    Extended,
    AllSettled,
    AllLost,
}

/// How much time to add to the lease: the time since the last extension. A clock that was set back would add too little,
/// one that was set forward so much that the tasks would stay taken after a crash.
fn extension_of(extended_at: Timestamp, now: Timestamp, pause: Span, lease: Span) -> Span {
    if now <= extended_at { pause } else { now.since(extended_at).min(lease) }
}

fn end_of(ended: Result<HandlerResult, JoinError>) -> HandlerEnd {
    match ended {
        Ok(result) => HandlerEnd::Returned(result),
        Err(error) if error.is_panic() => HandlerEnd::Panicked,
        Err(_) => HandlerEnd::Abandoned,
    }
}

/// The task of a handler; aborted when dropped.
struct HandlerTask(JoinHandle<HandlerResult>);

impl Drop for HandlerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock was set forward by an hour: the lease was extended by an hour, and after a crash the task stayed taken for
    /// that long. It was set back: the lease was not extended.
    #[test]
    fn a_clock_that_jumps_does_not_change_the_extension() {
        let (pause, lease) = (Span::from_secs(20), Span::from_secs(60));
        let at = |seconds| Timestamp::EPOCH + Span::from_secs(seconds);
        for (now, wanted) in [(7220, 20), (7247, 47), (9999, 60), (7200, 20), (3600, 20)] {
            let extension = extension_of(at(7200), at(now), pause, lease);
            assert_eq!(extension, Span::from_secs(wanted), "{now}");
        }
    }

    /// The slots were taken between the choice of a failed queue and its take: the queue was never retried.
    #[cfg(feature = "testing")]
    #[tokio::test]
    async fn a_failed_queue_is_retried_when_there_are_slots_again() {
        use crate::testing::TestKit;
        use crate::{Dispatcher, Handler};
        let kit = TestKit::new();
        let handler = Handler::raw(|_, _, _| async { Ok(HandlerStats::default()) });
        let worker = kit.worker(Dispatcher::of_tube("mail", handler)).concurrency(1);
        let worker = worker.build().unwrap();
        let state = worker.state();
        let retry = state.batch_queue().selector.mark_failed(0, state.store.now(), 0.0);
        let next = || state.batch_queue().selector.next(retry);
        assert_eq!((next(), next()), (Some(0), None), "one processor retries");
        let held = state.slots.as_ref().and_then(|slots| slots.reserve(1));
        assert!(held.is_some() && take(state, 0).await.is_none());
        assert_eq!(next(), Some(0));
    }
}
