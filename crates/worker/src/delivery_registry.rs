//! Records the deliveries that a worker holds, so that a handler can settle a task by its number alone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use taskyard_core::limits::{TASK_ID_MAX, TUBE_NUMBERS_MAX};
use taskyard_core::{Lease, TaskId};
use tracing::Span;

/// A number that is unique in the store: the number of the tube in the high bits, the task's id in the low bits.
pub(crate) fn task_id(tube: u32, id: TaskId) -> u64 {
    u64::from(tube % TUBE_NUMBERS_MAX) * (TASK_ID_MAX + 1) + (id.0 & TASK_ID_MAX)
}

/// A delivery that is not settled yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldDelivery {
    /// The index of its queue in the worker's list.
    pub queue: usize,
    pub id: TaskId,
    pub lease: Lease,
}

/// All deliveries that the worker holds, by the number that handlers see.
#[derive(Debug, Default)]
pub(crate) struct DeliveryRegistry {
    held: Mutex<HashMap<u64, HeldDelivery>>,
    /// The open spans of tasks; empty unless a subscriber records spans.
    spans: Mutex<HashMap<u64, (Lease, Span)>>,
}

impl DeliveryRegistry {
    pub fn add(&self, deliveries: impl Iterator<Item = (u64, HeldDelivery)>) {
        self.lock().extend(deliveries);
    }

    /// The delivery of each task, `None` for those that are not held.
    pub fn find(&self, task_ids: impl Iterator<Item = u64>) -> Vec<Option<HeldDelivery>> {
        let held = self.lock();
        task_ids.map(|task_id| held.get(&task_id).copied()).collect()
    }

    /// Removes deliveries that ended, except where the task was delivered again meanwhile. Returns how many were removed.
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

    /// Keeps a span open until its delivery ends.
    pub fn open_span(&self, task_id: u64, lease: Lease, span: Span) {
        let before = self.spans().insert(task_id, (lease, span));
        if let Some((_, before)) = before {
            // The earlier lease expired, and the task was delivered to this worker again.
            before.record("outcome", "lost");
        }
    }

    /// Records the outcome of a delivery and closes its span.
    pub fn close_span(&self, task_id: u64, lease: Lease, outcome: &str) {
        let mut spans = self.spans();
        // A newer delivery of the task has its own span.
        if spans.get(&task_id).is_some_and(|(known, _)| *known == lease)
            && let Some((_, span)) = spans.remove(&task_id)
        {
            span.record("outcome", outcome);
        }
    }

    /// Closes all spans of these deliveries that are still open.
    pub fn close_spans(&self, deliveries: &[(u64, Lease)], outcome: &str) {
        if self.spans().is_empty() {
            return;
        }
        for (task_id, lease) in deliveries {
            self.close_span(*task_id, *lease, outcome);
        }
    }

    fn spans(&self) -> MutexGuard<'_, HashMap<u64, (Lease, Span)>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, HeldDelivery>> {
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

    /// A worker whose lease of a task expired and that took the task again must keep the new delivery when the
    /// old one ends.
    #[test]
    fn a_newer_delivery_is_kept() {
        let registry = DeliveryRegistry::default();
        let held = |lease| HeldDelivery { queue: 0, id: TaskId(1), lease: Lease(lease) };
        registry.add([(1, held(1))].into_iter());
        registry.add([(1, held(2))].into_iter());
        assert_eq!(registry.remove([(1, Lease(1))].into_iter()), 0);
        assert_eq!(registry.remove([(1, Lease(2)), (9, Lease(2))].into_iter()), 1);
    }
}
