//! Waiting at an empty queue: one take for each queue and worker, however many processors are idle.

use std::sync::{Arc, PoisonError};

use taskyard_core::{Error, Reply, Span, Task};

use super::desk::Batch;
use super::inner::Inner;

/// How long one take waits. A worker that stops waits for its last takes, because what the queue gives
/// them meanwhile would stay taken until its time is over: so this is also how long a stop may take.
pub(super) const WAIT: Span = Span::from_secs(1);
/// How much longer a stop waits for a queue that does not answer.
const FAREWELL: Span = Span::from_secs(1);

/// Sends somebody to wait for the next tasks of a queue.
pub(super) fn send(inner: &Arc<Inner>, queue: usize) {
    let mut scouts = inner.scouts.lock().unwrap_or_else(PoisonError::into_inner);
    while scouts.try_join_next().is_some() {}
    scouts.spawn(wait(inner.clone(), queue));
}

async fn wait(inner: Arc<Inner>, queue: usize) {
    loop {
        let now = inner.store.now();
        match take(&inner, queue).await {
            Some(Ok((tasks, _))) if tasks.is_empty() => inner.desk().roster.empty(queue, now),
            Some(Ok((tasks, lease))) => arrived(&inner, queue, tasks, lease).await,
            Some(Err(error)) => inner.take_failed(queue, &error),
            None => {}
        }
        let mut desk = inner.desk();
        let empty = desk.roster.is_empty(queue);
        if *inner.stop.borrow() || !empty || !desk.wants_more(queue) {
            desk.roster.scout_left(queue);
            drop(desk);
            // Whoever is idle looks again: it may have to send somebody else.
            inner.wake.notify_waiters();
            return;
        }
    }
}

/// Takes what comes; nothing when the worker stops and the queue does not answer in time.
async fn take(inner: &Inner, queue: usize) -> Option<Result<(Vec<Task>, Span), Error>> {
    let mut taking = std::pin::pin!(inner.take(queue, WAIT));
    tokio::select! {
        taken = &mut taking => return Some(taken),
        () = inner.stopped() => {}
    }
    let patience = inner.store.now() + WAIT + FAREWELL;
    tokio::select! {
        taken = taking => Some(taken),
        () = inner.store.timer().sleep_until(patience) => None,
    }
}

/// Hands the batch to an idle processor, or gives it back when all have found work meanwhile.
async fn arrived(inner: &Inner, queue: usize, tasks: Vec<Task>, lease: Span) {
    let full = tasks.len() >= inner.batch_of(queue);
    let began = inner.store.now();
    let given_back = {
        let mut desk = inner.desk();
        if full {
            desk.roster.open(queue);
        }
        if *inner.stop.borrow() || !desk.wants_more(queue) {
            desk.roster.open(queue);
            Some(tasks)
        } else {
            desk.arrived.push_back(Batch { queue, tasks, began, lease });
            None
        }
    };
    match given_back {
        Some(tasks) => inner.give_back(queue, &tasks).await,
        None if full => inner.wake.notify_waiters(),
        None => inner.wake.notify_one(),
    }
}

/// The tasks of an answer to a take.
pub(super) fn tasks_of(reply: Option<Result<Reply, Error>>) -> Result<Vec<Task>, Error> {
    match reply {
        Some(Ok(Reply::Taken(tasks))) => Ok(tasks),
        Some(Err(error)) => Err(error),
        _ => Err(crate::client::unexpected("take")),
    }
}
