//! Limits how many functions of a worker run at a time, and how many tasks it takes ahead of them.
//!
//! A take asks for as many tasks as functions may begin, and for more while functions end quickly: then the tasks of one take
//! are begun within [`PREFETCH_TIME`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The time in which tasks that were taken ahead are begun, by the average time of a function.
const PREFETCH_TIME: Duration = Duration::from_millis(10);
/// The most tasks that are taken ahead.
const PREFETCH_MAX: usize = 400;
/// A function that ends this soon is polled where it is started, without a task of its own.
const SHORT_TIME: Duration = Duration::from_micros(20);
/// The average before the first function has ended.
const UNKNOWN: u64 = u64::MAX;

/// The slots in which the functions of a worker run.
#[derive(Debug)]
pub(crate) struct Slots {
    concurrency: usize,
    free: Arc<Semaphore>,
    /// Tasks that are being taken, and taken ones whose function has not ended.
    held: AtomicUsize,
    /// The moving average of the time that a function runs.
    average_nanos: AtomicU64,
    /// Wakes the processors that take.
    wake: Arc<Notify>,
}

/// Tasks that count as held until their functions have ended.
#[derive(Debug)]
pub(crate) struct Reservation {
    slots: Arc<Slots>,
    left: AtomicUsize,
}

/// A slot in which a function runs, and its task in the reservation: both are free when it is dropped.
#[derive(Debug)]
pub(crate) struct FunctionSlot {
    permit: Option<OwnedSemaphorePermit>,
    reservation: Arc<Reservation>,
}

impl Drop for FunctionSlot {
    fn drop(&mut self) {
        // The next task must find the slot free when it is taken.
        drop(self.permit.take());
        self.reservation.free(1);
    }
}

impl Slots {
    pub fn new(concurrency: usize, wake: Arc<Notify>) -> Self {
        Slots {
            concurrency,
            free: Arc::new(Semaphore::new(concurrency)),
            held: AtomicUsize::new(0),
            average_nanos: AtomicU64::new(UNKNOWN),
            wake,
        }
    }

    /// Reserves as many tasks as may be taken now, `most` at most; `None` if there are too few for a take.
    pub fn reserve(self: &Arc<Self>, most: usize) -> Option<Reservation> {
        let (limit, least) = self.limits();
        let mut count = 0;
        let update = |held: usize| {
            let free = limit.saturating_sub(held);
            count = free.min(most);
            (free >= least).then_some(held + count)
        };
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok()?;
        Some(Reservation { slots: self.clone(), left: AtomicUsize::new(count) })
    }

    /// Whether no take may be sent.
    pub fn is_full(&self) -> bool {
        let (limit, least) = self.limits();
        limit.saturating_sub(self.held.load(Ordering::Relaxed)) < least
    }

    /// How many tasks may be held, and how many must be free for a take. Many small takes would cost more than a few large
    /// ones, but a free slot must not wait while functions take long.
    fn limits(&self) -> (usize, usize) {
        let prefetch = self.prefetch();
        let limit = self.concurrency + prefetch;
        (limit, if prefetch < self.concurrency { 1 } else { (limit / 4).max(1) })
    }

    fn prefetch(&self) -> usize {
        let average = u128::from(self.average_nanos.load(Ordering::Relaxed).max(1));
        let ahead = PREFETCH_TIME.as_nanos() * self.concurrency as u128 / average;
        usize::try_from(ahead).unwrap_or(PREFETCH_MAX).min(PREFETCH_MAX)
    }

    /// Whether functions end so soon that a task of the runtime for each would cost more than they do.
    pub fn are_short(&self) -> bool {
        u128::from(self.average_nanos.load(Ordering::Relaxed)) < SHORT_TIME.as_nanos()
    }

    /// Records how long a function ran.
    pub fn record(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(UNKNOWN - 1);
        let before = self.average_nanos.load(Ordering::Relaxed);
        let average = if before == UNKNOWN { took } else { before / 8 * 7 + took / 8 };
        self.average_nanos.store(average, Ordering::Relaxed);
    }

    /// Takes no tasks ahead until functions end quickly again: those that were taken ahead did not begin soon.
    pub fn stop_prefetch(&self) {
        self.average_nanos.store(UNKNOWN, Ordering::Relaxed);
    }
}

impl Reservation {
    /// A free slot for a task of the reservation, if there is one.
    pub fn try_begin(self: &Arc<Self>) -> Option<FunctionSlot> {
        let permit = Some(self.slots.free.clone().try_acquire_owned().ok()?);
        Some(FunctionSlot { permit, reservation: self.clone() })
    }

    /// Waits for a free slot.
    pub async fn begin(self: &Arc<Self>) -> Option<FunctionSlot> {
        let permit = Some(self.slots.free.clone().acquire_owned().await.ok()?);
        Some(FunctionSlot { permit, reservation: self.clone() })
    }

    /// Frees what the take did not return.
    pub fn keep(&self, count: usize) {
        let surplus = self.left.load(Ordering::Relaxed).saturating_sub(count);
        self.free(surplus);
    }

    /// Frees tasks that are given back.
    pub fn free(&self, count: usize) {
        let update = |left: usize| Some(left.saturating_sub(count));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        let freed = before.unwrap_or_else(|left| left).min(count);
        if freed == 0 {
            return;
        }
        self.slots.held.fetch_sub(freed, Ordering::Relaxed);
        if !self.slots.is_full() {
            self.slots.wake.notify_one();
        }
    }

    pub fn count(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    pub fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.free(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(concurrency: usize) -> Arc<Slots> {
        Arc::new(Slots::new(concurrency, Arc::default()))
    }

    #[test]
    fn no_more_is_taken_than_can_begin() {
        let slots = slots(10);
        let first = slots.reserve(100).unwrap();
        assert_eq!(first.count(), 10);
        assert!(slots.is_full() && slots.reserve(100).is_none());
        first.keep(4);
        let second = slots.reserve(5).unwrap();
        assert_eq!((first.count(), second.count()), (4, 5));
        drop(first);
        assert_eq!(slots.reserve(100).unwrap().count(), 5);
    }

    #[test]
    fn one_free_slot_is_enough_while_functions_take_long() {
        let slots = slots(10);
        slots.record(Duration::from_secs(1));
        let first = slots.reserve(100).unwrap();
        first.free(1);
        assert_eq!(slots.reserve(100).unwrap().count(), 1);
        assert!(!slots.are_short());
    }

    #[test]
    fn short_functions_are_taken_ahead_in_large_batches() {
        let slots = slots(10);
        slots.record(Duration::from_micros(1));
        assert!(slots.are_short());
        let batches: Vec<_> = std::iter::from_fn(|| slots.reserve(100)).collect();
        let counts: Vec<_> = batches.iter().map(Reservation::count).collect();
        assert_eq!(counts, [100; 4], "the rest is too small for a take");
        batches[0].free(50);
        assert!(slots.is_full());
        batches[0].free(50);
        assert_eq!(slots.reserve(100).unwrap().count(), 100);
    }

    /// A function that blocked its thread overran `run_max`: its task was free again, its slot was not, and the worker took
    /// tasks for which it had no slot, gave them back after a second and took them again.
    #[test]
    fn a_task_is_free_when_its_slot_is() {
        let slots = slots(1);
        let reservation = Arc::new(slots.reserve(1).unwrap());
        let slot = reservation.try_begin().unwrap();
        assert!(reservation.try_begin().is_none());
        drop(reservation);
        assert!(slots.is_full(), "its function still runs");
        drop(slot);
        assert!(!slots.is_full());
        assert!(Arc::new(slots.reserve(1).unwrap()).try_begin().is_some());
    }

    /// A slow function blocked tasks that were taken ahead of it; they were given back and taken again at once.
    #[test]
    fn nothing_is_taken_ahead_of_a_slow_function() {
        let slots = slots(1);
        slots.record(Duration::from_micros(1));
        slots.stop_prefetch();
        assert_eq!(slots.reserve(100).unwrap().count(), 1);
    }
}
