//! Assigns work to idle processors: batches that a waiting take has brought, or the next queue to take from.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};

use taskyard_core::{Span, Task, Timestamp};

use crate::idle_take;
use crate::queue_selector::QueueSelector;
use crate::slots::Reservation;
use crate::state::WorkerState;

/// Everything that the assignment of work reads and changes, behind one lock.
#[derive(Debug)]
pub(crate) struct BatchQueue {
    pub selector: QueueSelector,
    /// Batches that no processor has begun to handle.
    pub arrived: VecDeque<Batch>,
    /// The number of processors without work.
    pub idle: usize,
    /// The queue that each busy processor works on, by processor.
    pub working: BTreeMap<usize, usize>,
}

/// Tasks of one queue that were taken together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub queue: usize,
    pub tasks: Vec<Task>,
    /// When the take was sent, or when its wait ended.
    pub began: Timestamp,
    /// When the take was sent: the lease ends no earlier than its length after that.
    pub sent: Timestamp,
    /// How long the lease of the tasks lasts unless it is extended.
    pub lease: Span,
    /// The slots of the functions of its tasks.
    pub reservation: Option<Reservation>,
}

/// The next work of a processor.
pub(crate) enum Work {
    /// Take from this queue without waiting.
    Take(usize),
    /// Handle a batch that was taken already.
    Batch(Batch),
}

impl BatchQueue {
    pub fn new(selector: QueueSelector) -> Self {
        BatchQueue { selector, arrived: VecDeque::new(), idle: 0, working: BTreeMap::new() }
    }

    fn next(&mut self, now: Timestamp, may_take: bool) -> Option<Work> {
        if let Some(batch) = self.arrived.pop_front() {
            self.selector.batch_granted(batch.queue, now);
            return Some(Work::Batch(batch));
        }
        if may_take { self.selector.next(now).map(Work::Take) } else { None }
    }

    /// Whether a processor is idle that could handle one more batch of this queue.
    pub fn wants_more(&self, queue: usize) -> bool {
        self.idle > self.arrived.len() && self.selector.may_help(queue)
    }
}

impl WorkerState {
    pub fn batch_queue(&self) -> MutexGuard<'_, BatchQueue> {
        self.batch_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next work of processor `slot`; `None` when the processor must end.
    pub async fn next_work(self: &Arc<Self>, slot: usize) -> Option<Work> {
        loop {
            // Registered before the check, so that a change in between wakes this processor.
            let mut woken = std::pin::pin!(self.wake.notified());
            woken.as_mut().enable();
            if self.stop.is_raised() || slot >= self.settings.borrow().max_processors {
                return None;
            }
            let retry = {
                let (mut batch_queue, may_take) = (self.batch_queue(), self.may_take());
                if let Some(work) = batch_queue.next(self.store.now(), may_take) {
                    return Some(work);
                }
                batch_queue.idle += 1;
                if may_take {
                    for queue in batch_queue.selector.claim_idle_takes() {
                        idle_take::start(self, queue);
                    }
                    batch_queue.selector.next_retry()
                } else {
                    // A slot that becomes free wakes this processor.
                    None
                }
            };
            let idle = IdleProcessor(self);
            let retry = async {
                match retry {
                    Some(retry) => self.store.timer().sleep_until(retry).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = woken => {}
                () = retry => {}
            }
            drop(idle);
        }
    }
}

/// Counts a processor as idle until dropped, also when its future is dropped while it waits.
struct IdleProcessor<'a>(&'a WorkerState);

impl Drop for IdleProcessor<'_> {
    fn drop(&mut self) {
        self.0.batch_queue().idle -= 1;
    }
}
