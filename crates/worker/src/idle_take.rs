//! Waits for tasks of an empty queue with one long take per queue and worker, however many processors are idle.

use std::sync::{Arc, PoisonError};

use taskyard_core::{Error, Reply, Span, Task, Timestamp};

use crate::batch_queue::Batch;
use crate::state::{TakenTasks, WorkerState};

/// How long one take waits, at most a quarter of the lease. A worker that stops waits for its last takes, because tasks that the queue gives
/// them meanwhile would stay taken until their lease ends: so this is also how long a stop may take.
pub(crate) const WAIT: Span = Span::from_secs(1);
/// How much longer a stop waits for a queue that does not answer.
const STOP_TIMEOUT: Span = Span::from_secs(1);

/// Starts a task that waits for the next tasks of a queue.
pub(crate) fn start(state: &Arc<WorkerState>, queue: usize) {
    let mut idle_takes = state.idle_takes.lock().unwrap_or_else(PoisonError::into_inner);
    while idle_takes.try_join_next().is_some() {}
    idle_takes.spawn(run(state.clone(), queue));
}

async fn run(state: Arc<WorkerState>, queue: usize) {
    loop {
        let now = state.store.now();
        match take(&state, queue).await {
            Some(Ok(taken)) if taken.tasks.is_empty() => {
                state.batch_queue().selector.mark_empty(queue, now);
            }
            Some(Ok(taken)) => hand_over(&state, queue, now, taken).await,
            Some(Err(error)) => state.take_failed(queue, &error),
            None => {}
        }
        let mut batch_queue = state.batch_queue();
        let empty = batch_queue.selector.is_empty(queue);
        let wants_more = batch_queue.wants_more(queue) && state.may_take();
        if state.stop.is_raised() || !empty || !wants_more {
            batch_queue.selector.idle_take_ended(queue);
            drop(batch_queue);
            // Idle processors check again: one of them may have to start the next waiting take.
            state.wake.notify_waiters();
            return;
        }
    }
}

/// Takes with a wait; `None` when no more tasks may be taken, or when the worker stops and the queue does not answer in
/// time.
async fn take(state: &WorkerState, queue: usize) -> Option<Result<TakenTasks, Error>> {
    // The worker counts the lease from when the take was sent: most of it must be left when the wait ends.
    let lease = Span::from(state.settings.borrow().visibility_timeout);
    let wait = WAIT.min(Span::from_micros(lease.as_micros() / 4));
    let mut taking = std::pin::pin!(state.take(queue, wait));
    tokio::select! {
        biased;
        taken = &mut taking => return taken,
        () = state.stopped() => {}
    }
    let deadline = state.store.now() + WAIT + STOP_TIMEOUT;
    tokio::select! {
        biased;
        taken = taking => taken,
        () = state.store.timer().sleep_until(deadline) => None,
    }
}

/// Gives the batch to an idle processor, or releases it when no processor is idle any more.
async fn hand_over(state: &WorkerState, queue: usize, sent: Timestamp, taken: TakenTasks) {
    let TakenTasks { tasks, is_full: full, lease, reservation } = taken;
    let began = state.store.now();
    let released = {
        let mut batch_queue = state.batch_queue();
        if full {
            batch_queue.selector.mark_available(queue);
        }
        if state.stop.is_raised() || !batch_queue.wants_more(queue) {
            batch_queue.selector.mark_available(queue);
            Some(tasks)
        } else {
            let batch = Batch { queue, tasks, began, sent, lease, reservation };
            batch_queue.arrived.push_back(batch);
            None
        }
    };
    match released {
        Some(tasks) => state.give_back(queue, &tasks).await,
        None if full => state.wake.notify_waiters(),
        None => state.wake.notify_one(),
    }
}

/// The tasks in the reply to a take.
pub(crate) fn tasks_of(reply: Option<Result<Reply, Error>>) -> Result<Vec<Task>, Error> {
    match reply {
        Some(Ok(Reply::Taken(tasks))) => Ok(tasks),
        Some(Err(error)) => Err(error),
        _ => Err(crate::store::unexpected("take")),
    }
}
