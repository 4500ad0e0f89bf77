//! One job processor: take a batch, have it handled, go on.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use taskyard_core::{Finish, Lease, Span, Task, Timestamp};
use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument;
use tracing::field::{Empty, display};

use super::context::{Cancel, Context};
use super::desk::{Batch, Work};
use super::dispatcher::{Prepared, RawTask};
use super::hold::Hold;
use super::inner::{Inner, Lane, raised};
use super::ledger::{Held, task_id};
use super::metrics::{Gauged, count};
use super::settings::{Poison, Settings};
use super::stats::{HandlerResult, HandlerStats};
use super::tally::backoff;
use super::trace::Trace;
use super::typed::Delivery;

/// How soon to ask again for more time when there was no answer.
const BEAT_AGAIN: Span = Span::from_secs(1);
/// The shortest pause between two requests for more time.
const BEAT_MIN: Span = Span::from_micros(10_000);
/// How long a handler that is cancelled at `run_max` gets to end by itself, at most a third of its lease: its tasks are
/// still its own when they are given back.
const RUN_MAX_NOTICE: Span = Span::from_secs(1);

/// Works until the worker stops or has too many processors.
pub(super) async fn run(inner: Arc<Inner>, slot: usize) {
    let _running = Gauged::add(inner.metrics.processors(), 1);
    while let Some(work) = inner.next_work(slot).await {
        let queue = match &work {
            Work::Visit(queue) => *queue,
            Work::Batch(batch) => batch.queue,
        };
        let _seated = Seated::new(&inner, slot, queue);
        let batch = match work {
            Work::Batch(batch) => Some(batch),
            Work::Visit(queue) => inner.unless_abandoned(visit(&inner, queue)).await.flatten(),
        };
        let Some(batch) = batch else { continue };
        if *inner.stop.borrow() {
            // Nobody has begun to work on it, so it is as if it had not been taken.
            inner.give_back(queue, &batch.tasks).await;
            continue;
        }
        Cycle::begin(&inner, batch).run().await;
    }
}

/// Sees what a queue has.
async fn visit(inner: &Inner, queue: usize) -> Option<Batch> {
    let began = inner.store.now();
    match inner.take(queue, Span::ZERO).await {
        Ok((tasks, _)) if tasks.is_empty() => {
            inner.desk().roster.empty(queue, began);
        }
        Ok((tasks, lease)) => {
            if inner.desk().roster.open(queue) {
                // The others stayed away while it could not be asked.
                inner.wake.notify_waiters();
            }
            return Some(Batch { queue, tasks, began, lease });
        }
        Err(error) => inner.take_failed(queue, &error),
    }
    None
}

/// A processor that works on a queue, until dropped.
struct Seated<'a> {
    inner: &'a Inner,
    slot: usize,
    queue: usize,
}

impl<'a> Seated<'a> {
    fn new(inner: &'a Inner, slot: usize, queue: usize) -> Self {
        inner.desk().working.insert(slot, queue);
        Seated { inner, slot, queue }
    }
}

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        let mut desk = self.inner.desk();
        desk.working.remove(&self.slot);
        desk.roster.left(self.queue);
    }
}

/// One batch and its handler.
struct Cycle<'a> {
    inner: &'a Inner,
    lane: &'a Lane,
    settings: Settings,
    began: Timestamp,
    /// For how long the tasks are the worker's without being prolonged, as it was when they were taken.
    lease: Span,
    ctx: Context,
    /// The deliveries that were not yet known to be over.
    held: Vec<(u64, Lease)>,
    /// How often each of them was given back before.
    attempts: Vec<u32>,
    raw: Vec<RawTask>,
}

/// How the work on a batch ended.
enum Ended {
    Answered(HandlerResult),
    Panicked,
    /// It ran longer than `run_max` and did not end by itself when it was cancelled.
    TimedOut,
    /// The worker did not wait for it any longer.
    Abandoned,
}

impl<'a> Cycle<'a> {
    fn begin(inner: &'a Inner, batch: Batch) -> Self {
        let lane = &inner.lanes[batch.queue];
        let settings = inner.settings.borrow().clone();
        let tube = inner.tube_number(batch.queue);
        let mut held = Vec::with_capacity(batch.tasks.len());
        let mut counts = Vec::with_capacity(batch.tasks.len());
        let mut raw = Vec::with_capacity(batch.tasks.len());
        let mut ledger = Vec::with_capacity(batch.tasks.len());
        let mut dues = Vec::with_capacity(batch.tasks.len());
        let mut traces = HashMap::new();
        for task in batch.tasks {
            let Task { id, attempts, previous_start, due, lease, body, .. } = task;
            let (Some(lease), Some(body)) = (lease, body) else { continue };
            let task_id = task_id(tube, id);
            let delivery = Delivery { task_id, attempts, prev_start_time: previous_start, due };
            if let Some(trace) = body.meta().and_then(Trace::from_meta) {
                traces.insert(task_id, trace);
            }
            held.push((task_id, lease));
            counts.push(attempts);
            dues.extend(due.map(|due| (task_id, due)));
            ledger.push((task_id, Held { queue: batch.queue, id, lease }));
            raw.push(RawTask { delivery, body });
        }
        inner.store.ledger().add(ledger.into_iter());
        let Batch { began, lease, .. } = batch;
        // A lease is counted from when the take was asked, which is the safe side. The handler begins only now.
        let run_until = inner.store.now() + Span::from(settings.run_max_of(lease.into()));
        let hold = Hold::new(began + lease, run_until, inner.kill.subscribe());
        let ctx = Context::new(lane.num, Arc::new(hold), traces, dues);
        Cycle { inner, lane, settings, began, lease, ctx, held, attempts: counts, raw }
    }

    async fn run(self) {
        let (worker, queue) = (&*self.inner.name, self.queue());
        let span = tracing::info_span!("batch", worker, queue, tasks = self.raw.len());
        self.work(span.clone()).instrument(span).await;
    }

    async fn work(mut self, span: tracing::Span) {
        let size = self.raw.len();
        self.open_spans();
        let in_progress = Gauged::add(&self.lane.metrics.in_progress, size);
        let (handled, ended) = self.handle(span).await;
        let timed_out = if self.ctx.cancel() == Some(Cancel::RunMax) {
            self.inner.unless_abandoned(self.return_overrun()).await.unwrap_or(0)
        } else {
            0
        };
        drop(in_progress);
        // Those that were settled are closed already.
        self.inner.store.ledger().close_all(&self.held, "unsettled");
        let forgotten = self.inner.store.ledger().remove(self.held.iter().copied());
        let took = Duration::from(self.inner.store.now().since(self.began));
        self.lane.metrics.cycle(took);
        let (errors, queue) = (self.note(ended, handled, forgotten) + timed_out, self.queue());
        let mut load = self.lane.load.lock().unwrap_or_else(PoisonError::into_inner);
        load.add(took, size, errors);
        if took > self.settings.slow_cycle {
            count(&self.lane.metrics.slow_cycles, 1);
            tracing::warn!(
                queue,
                seconds = took.as_secs_f64(),
                "a slow cycle; take smaller batches"
            );
        }
    }

    /// The queue's name: the log may have no spans.
    fn queue(&self) -> &str {
        self.lane.tube.as_str()
    }

    /// A span for each task, if somebody listens: it closes when the task is settled.
    fn open_spans(&self) {
        // Both lists have one order.
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
            self.inner.store.ledger().open(task_id, *lease, span);
        }
    }

    /// Has the batch handled; how many tasks reached the handler, and how it ended.
    async fn handle(&mut self, span: tracing::Span) -> (usize, Ended) {
        let Some(handler) = &self.lane.handler else { return (0, Ended::Panicked) };
        let raw = std::mem::take(&mut self.raw);
        let size = raw.len();
        let store = self.inner.store.for_batch(&self.held, self.ctx.hold());
        let prepare = || handler.prepare(self.ctx.clone(), store, raw);
        let Ok(Prepared { poison, work }) = catch_unwind(AssertUnwindSafe(prepare)) else {
            return (size, Ended::Panicked);
        };
        if !poison.is_empty() {
            self.inner.unless_abandoned(self.settle_poison(&poison)).await;
        }
        match work {
            Some((count, work)) => {
                // A task of its own knows nothing of where it was begun.
                let work = Working(tokio::spawn(work.instrument(span)));
                (count, self.watch(work).await)
            }
            None => (0, Ended::Answered(Ok(HandlerStats::default()))),
        }
    }

    /// Waits for the handler, and keeps its tasks meanwhile, until `run_max` is over.
    async fn watch(&self, mut working: Working) -> Ended {
        let timer = self.inner.store.timer();
        tokio::select! {
            biased;
            ended = &mut working.0 => return ended_of(ended),
            () = raised(&self.inner.abandon) => return Ended::Abandoned,
            () = timer.sleep_until(self.ctx.run_deadline()) => {}
            never = self.keep() => match never {},
        }
        count(&self.lane.metrics.timeouts, 1);
        tracing::warn!(
            queue = self.queue(),
            seconds = self.ctx.run_deadline().since(self.began).as_secs_f64(),
            "the handler ran longer than run_max; it is cancelled, and its tasks return as failed"
        );
        self.ctx.hold().overrun();
        let notice = RUN_MAX_NOTICE.min(Span::from_micros(self.lease.as_micros() / 3));
        tokio::select! {
            biased;
            ended = &mut working.0 => ended_of(ended),
            () = raised(&self.inner.abandon) => Ended::Abandoned,
            () = timer.sleep_until(timer.now() + notice) => Ended::TimedOut,
        }
    }

    /// Gives back what a handler that ran longer than `run_max` has not settled: each is a failed attempt and waits as
    /// long as after any other. Answers how many came back.
    async fn return_overrun(&self) -> usize {
        let store = &self.inner.store;
        let found = store.ledger().find(self.held.iter().map(|held| held.0));
        let mut unsettled = Vec::new();
        for (((task_id, lease), attempts), held) in self.held.iter().zip(&self.attempts).zip(found)
        {
            if held.is_some_and(|held| held.lease == *lease) {
                let delay = backoff(*attempts).into();
                unsettled.push((*task_id, Finish::Release { delay, counted: true }));
            }
        }
        store.ledger().close_all(&self.held, "run_max");
        match store.finish(unsettled).await {
            Ok(returned) => {
                count(&self.lane.metrics.errors, returned.done);
                count(&self.lane.metrics.retried, returned.done);
                returned.done
            }
            Err(error) => {
                tracing::warn!(queue = self.queue(), %error, "not given back; they return by their time");
                0
            }
        }
    }

    /// Asks for more time after each third of it, soon again when there was no answer, and no longer when nothing is
    /// left to keep.
    async fn keep(&self) -> Infallible {
        let (store, lease) = (&self.inner.store, self.lease);
        let pause = Span::from_micros(lease.as_micros() / 3).max(BEAT_MIN);
        let (mut paid, mut beat) = (self.began, self.began + pause);
        loop {
            store.timer().sleep_until(beat).await;
            let now = store.now();
            let patience = now + pause;
            let prolonged = tokio::select! {
                biased;
                prolonged = self.prolong(passed(paid, now, pause, lease)) => prolonged,
                () = store.timer().sleep_until(patience) => {
                    self.not_prolonged(&"no answer");
                    None
                }
            };
            beat = match prolonged {
                Some(Kept::Some) => {
                    paid = now;
                    self.ctx.hold().prolonged(now + lease);
                    now + pause
                }
                Some(Kept::AllSettled) => now + pause,
                Some(Kept::AllLost) => {
                    tracing::warn!(
                        queue = self.queue(),
                        "all of the batch is lost; its handler is to end"
                    );
                    self.ctx.hold().lose_all();
                    std::future::pending().await
                }
                None => store.now() + pause.min(BEAT_AGAIN),
            };
        }
    }

    /// Asks for the time that has passed, for every task that is not settled yet. Nothing when there was no answer.
    async fn prolong(&self, passed: Span) -> Option<Kept> {
        let ledger = self.inner.store.ledger();
        let found = ledger.find(self.held.iter().map(|held| held.0));
        let (mut unsettled, mut lost) = (Vec::new(), Vec::new());
        for ((task_id, lease), held) in self.held.iter().zip(found) {
            match held {
                Some(held) if held.lease == *lease => {
                    unsettled.push((*task_id, Finish::Touch(passed)));
                }
                // Another processor of this worker was given it.
                Some(_) => lost.push(*task_id),
                None => {}
            }
        }
        let mut finished = self.inner.store.finish_all(unsettled, false).await;
        lost.append(&mut finished.lost);
        self.ctx.hold().lose(&lost);
        match finished.answer() {
            Ok(kept) if kept.done > 0 => Some(Kept::Some),
            Ok(_) if lost.is_empty() => Some(Kept::AllSettled),
            Ok(_) => Some(Kept::AllLost),
            Err(error) => {
                self.not_prolonged(&error);
                None
            }
        }
    }

    fn not_prolonged(&self, error: &dyn Display) {
        count(&self.lane.metrics.store_errors, 1);
        tracing::warn!(queue = self.queue(), %error, "cannot prolong the batch; trying again");
    }

    /// Tasks that nobody can read must not hold up their neighbours, nor come back at once.
    async fn settle_poison(&self, poison: &[(Delivery, taskyard_wire::fields::FieldError)]) {
        count(&self.lane.metrics.poison, poison.len());
        for (delivery, error) in poison {
            let id = delivery.id().0;
            tracing::warn!(queue = self.queue(), id, %error, "a task that cannot be read");
        }
        let finish = |delivery: &Delivery| match self.settings.poison {
            Poison::Drop => Finish::Ack,
            Poison::Retry => {
                let delay = backoff(delivery.attempts).into();
                Finish::Release { delay, counted: true }
            }
        };
        let finishes = poison.iter().map(|(delivery, _)| (delivery.task_id, finish(delivery)));
        if let Err(error) = self.inner.store.finish(finishes.collect()).await {
            tracing::warn!(queue = self.queue(), %error, "not settled; they return by their time");
        }
    }

    /// Counts what happened; answers how much of it went wrong.
    fn note(&self, ended: Ended, handled: usize, forgotten: usize) -> usize {
        let (metrics, queue) = (&self.lane.metrics, self.queue());
        match ended {
            Ended::Answered(Ok(stats)) => {
                count(&metrics.unsettled, forgotten);
                if forgotten > 0 {
                    tracing::warn!(
                        queue,
                        forgotten,
                        "neither done nor retried; they return by their time"
                    );
                }
                let (stats, cut) = stats.clamped(handled);
                if cut {
                    tracing::warn!(queue, "the handler counted more tasks than it was given");
                }
                count(&metrics.processed, stats.processed);
                count(&metrics.errors, stats.errors);
                count(&metrics.retried, stats.retried);
                if let Some(error) = &stats.last_error {
                    tracing::info!(queue, errors = stats.errors, error, "tasks failed");
                }
                stats.errors
            }
            Ended::Answered(Err(error)) => {
                count(&metrics.handler_errors, 1);
                tracing::error!(queue, %error, forgotten, "the handler failed; its tasks return by their time");
                1
            }
            Ended::Panicked => {
                count(&metrics.panics, 1);
                tracing::error!(
                    queue,
                    forgotten,
                    "the handler panicked; its tasks return by their time"
                );
                1
            }
            // Told when it was cancelled.
            Ended::TimedOut => 0,
            Ended::Abandoned => {
                tracing::warn!(
                    queue,
                    forgotten,
                    "the handler did not end in time and was left alone"
                );
                1
            }
        }
    }
}

/// What is left of a batch that was to be prolonged.
enum Kept {
    Some,
    AllSettled,
    AllLost,
}

/// How much time to ask for. A clock that was moved meanwhile says nothing: back it would ask for too little, forward
/// for so much that a crash would keep the tasks from everybody.
fn passed(paid: Timestamp, now: Timestamp, pause: Span, lease: Span) -> Span {
    if now <= paid { pause } else { now.since(paid).min(lease) }
}

fn ended_of(ended: Result<HandlerResult, JoinError>) -> Ended {
    match ended {
        Ok(result) => Ended::Answered(result),
        Err(error) if error.is_panic() => Ended::Panicked,
        Err(_) => Ended::Abandoned,
    }
}

/// A handler at work; it ends when nobody waits for it any more.
struct Working(JoinHandle<HandlerResult>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock went forward by an hour: the heartbeat bought an hour, and after a crash nobody got the task for
    /// that long. It went back: the heartbeat bought nothing.
    #[test]
    fn a_clock_that_is_moved_buys_no_more_and_no_less() {
        let (pause, lease) = (Span::from_secs(20), Span::from_secs(60));
        let at = |seconds| Timestamp::EPOCH + Span::from_secs(seconds);
        for (now, wanted) in [(7220, 20), (7247, 47), (9999, 60), (7200, 20), (3600, 20)] {
            assert_eq!(passed(at(7200), at(now), pause, lease), Span::from_secs(wanted), "{now}");
        }
    }
}
