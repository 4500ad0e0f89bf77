//! Which deliveries the worker holds: what makes a task's number enough to ack it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use taskyard_core::limits::{TASK_ID_MAX, TUBE_NUMBERS_MAX};
use taskyard_core::{Lease, TaskId};
use tracing::Span;

/// One number for a task of any tube of a store: a tube's number and the task's in it fit side by side.
pub(super) fn task_id(tube: u32, id: TaskId) -> u64 {
    u64::from(tube % TUBE_NUMBERS_MAX) * (TASK_ID_MAX + 1) + (id.0 & TASK_ID_MAX)
}

/// A delivery that nobody has ended yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The place of its queue in the worker's list.
    pub queue: usize,
    pub id: TaskId,
    pub lease: Lease,
}

/// All of them, by the number that handlers see.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    held: Mutex<HashMap<u64, Held>>,
    /// The spans of those whose spans somebody listens to.
    spans: Mutex<HashMap<u64, (Lease, Span)>>,
}

impl Ledger {
    pub fn add(&self, deliveries: impl Iterator<Item = (u64, Held)>) {
        self.lock().extend(deliveries);
    }

    /// Those of these that are held.
    pub fn find(&self, task_ids: impl Iterator<Item = u64>) -> Vec<Option<Held>> {
        let held = self.lock();
        task_ids.map(|task_id| held.get(&task_id).copied()).collect()
    }

    /// Forgets deliveries that were ended, unless the task was delivered anew meanwhile.
    pub fn remove(&self, ended: impl Iterator<Item = (u64, Lease)>) -> usize {
        let mut held = self.lock();
        let mut removed = 0;
        for (task_id, lease) in ended {
            if held.get(&task_id).is_some_and(|held| held.lease == lease) {
                held.remove(&task_id);
                removed += 1;
            }
        }
        removed
    }

    /// A span that is open until its delivery ends.
    pub fn open(&self, task_id: u64, lease: Lease, span: Span) {
        let before = self.spans().insert(task_id, (lease, span));
        if let Some((_, before)) = before {
            // Its time ran out, and this worker itself was given the task again.
            before.record("outcome", "lost");
        }
    }

    /// The delivery has ended so; its span closes.
    pub fn close(&self, task_id: u64, lease: Lease, outcome: &str) {
        let mut spans = self.spans();
        // A newer delivery of the task has a span of its own.
        if spans.get(&task_id).is_some_and(|(known, _)| *known == lease)
            && let Some((_, span)) = spans.remove(&task_id)
        {
            span.record("outcome", outcome);
        }
    }

    /// All of these that are still open have ended so.
    pub fn close_all(&self, deliveries: &[(u64, Lease)], outcome: &str) {
        if self.spans().is_empty() {
            return;
        }
        for (task_id, lease) in deliveries {
            self.close(*task_id, *lease, outcome);
        }
    }

    fn spans(&self) -> MutexGuard<'_, HashMap<u64, (Lease, Span)>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_all_tubes_have_different_numbers() {
        let last = TaskId(TASK_ID_MAX);
        assert_eq!(task_id(0, TaskId(5)), 5);
        assert_eq!(task_id(0, last) + 1, task_id(1, TaskId(0)));
        assert!(i64::try_from(task_id(TUBE_NUMBERS_MAX - 1, last)).is_ok());
    }

    /// A worker that lost a task by its time and took it again must not forget the new delivery when the
    /// old one ends.
    #[test]
    fn a_newer_delivery_is_kept() {
        let ledger = Ledger::default();
        let held = |lease| Held { queue: 0, id: TaskId(1), lease: Lease(lease) };
        ledger.add([(1, held(1))].into_iter());
        ledger.add([(1, held(2))].into_iter());
        assert_eq!(ledger.remove([(1, Lease(1))].into_iter()), 0);
        assert_eq!(ledger.remove([(1, Lease(2)), (9, Lease(2))].into_iter()), 1);
    }
}
