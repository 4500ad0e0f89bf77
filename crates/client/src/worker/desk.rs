//! Where processors ask what to do next, and where those who wait at empty queues bring what arrives.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};

use taskyard_core::{Span, Task, Timestamp};

use super::inner::Inner;
use super::roster::Roster;
use super::scout;

/// What is decided under one lock.
#[derive(Debug)]
pub(super) struct Desk {
    pub roster: Roster,
    /// Batches that nobody has begun to work on.
    pub arrived: VecDeque<Batch>,
    /// Processors with nothing to do.
    pub idle: usize,
    /// Which processor works on which queue.
    pub working: BTreeMap<usize, usize>,
}

/// Tasks that were taken, and when.
#[derive(Debug)]
pub(super) struct Batch {
    pub queue: usize,
    pub tasks: Vec<Task>,
    pub began: Timestamp,
    /// For how long they are the worker's without being prolonged.
    pub lease: Span,
}

/// What a processor does next.
pub(super) enum Work {
    /// See what this queue has.
    Visit(usize),
    /// Work on this.
    Batch(Batch),
}

impl Desk {
    pub fn new(roster: Roster) -> Self {
        Desk { roster, arrived: VecDeque::new(), idle: 0, working: BTreeMap::new() }
    }

    fn next(&mut self, now: Timestamp) -> Option<Work> {
        if let Some(batch) = self.arrived.pop_front() {
            self.roster.granted(batch.queue, now);
            return Some(Work::Batch(batch));
        }
        self.roster.next(now).map(Work::Visit)
    }

    /// Whether somebody is there for one more batch.
    pub fn wants_more(&self, queue: usize) -> bool {
        self.idle > self.arrived.len() && self.roster.may_help(queue)
    }
}

impl Inner {
    pub fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What processor `slot` does next; nothing when it is to end.
    pub async fn next_work(self: &Arc<Self>, slot: usize) -> Option<Work> {
        loop {
            // Registered before looking, so that what changes meanwhile wakes.
            let mut woken = std::pin::pin!(self.wake.notified());
            woken.as_mut().enable();
            if *self.stop.borrow() || slot >= self.settings.borrow().max_processors {
                return None;
            }
            let retry = {
                let mut desk = self.desk();
                if let Some(work) = desk.next(self.store.now()) {
                    return Some(work);
                }
                desk.idle += 1;
                for queue in desk.roster.scouts_wanted() {
                    scout::send(self, queue);
                }
                desk.roster.next_retry()
            };
            let idle = Idle(self);
            let retry = async {
                match retry {
                    Some(retry) => self.store.timer().sleep_until(retry).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = woken => {}
                () = retry => {}
            }
            drop(idle);
        }
    }
}

/// A processor with nothing to do; also one that is dropped while it waits stops being one.
struct Idle<'a>(&'a Inner);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.desk().idle -= 1;
    }
}
