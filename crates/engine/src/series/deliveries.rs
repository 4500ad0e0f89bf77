//! Remembers when deliveries began, in a table of fixed size, so that their run time is known when
//! they end.
//!
//! A task has one possible place in the table, by its id. While that place is in use, other tasks
//! of the same place are not remembered: which deliveries are measured does not depend on how long
//! they last, so the percentiles of those are the percentiles of all.

use taskyard_core::{Span, TaskId, Timestamp};

/// The number of deliveries that are remembered for one tube; a power of two.
const DELIVERIES_MAX: u64 = 1_024;
/// A delivery without a known end gives up its place after this time.
const KEPT_MAX: Span = Span::from_secs(3_600);
/// The id of an unused place; no task has it.
const UNUSED: u64 = u64::MAX;

/// The deliveries of one tube.
#[derive(Debug)]
pub(super) struct Deliveries(Box<[Delivery]>);

#[derive(Clone, Copy, Debug)]
struct Delivery {
    id: u64,
    start: Timestamp,
    /// When another delivery may have the place.
    until: Timestamp,
}

impl Default for Deliveries {
    fn default() -> Self {
        let (start, until) = (Timestamp::EPOCH, Timestamp::EPOCH);
        Deliveries(vec![Delivery { id: UNUSED, start, until }; DELIVERIES_MAX as usize].into())
    }
}

impl Deliveries {
    /// The bytes that it uses outside of its own size.
    pub const BYTES: usize = DELIVERIES_MAX as usize * size_of::<Delivery>();

    /// Remembers a delivery that may last for `lease`, if its place is free.
    pub fn begin(&mut self, id: TaskId, now: Timestamp, lease: Span) {
        let place = self.place(id);
        if place.id == UNUSED || place.id == id.0 || place.until <= now {
            *place = Delivery { id: id.0, start: now, until: now + lease.min(KEPT_MAX) };
        }
    }

    /// Forgets a delivery. Returns how long it lasted, if it was remembered.
    pub fn end(&mut self, id: TaskId, now: Timestamp) -> Option<Span> {
        let place = self.place(id);
        if place.id != id.0 {
            return None;
        }
        place.id = UNUSED;
        Some(now.since(place.start))
    }

    fn place(&mut self, id: TaskId) -> &mut Delivery {
        &mut self.0[(id.0 % DELIVERIES_MAX) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_delivery_ends_once() {
        let mut deliveries = Deliveries::default();
        deliveries.begin(TaskId(7), at(10), SECOND);
        assert_eq!(deliveries.end(TaskId(8), at(12)), None);
        assert_eq!(deliveries.end(TaskId(7), at(12)), Some(Span::from_secs(2)));
        assert_eq!(deliveries.end(TaskId(7), at(12)), None);
    }

    #[test]
    fn a_place_in_use_is_not_given_away_before_the_lease_ends() {
        let mut deliveries = Deliveries::default();
        let (first, second) = (TaskId(7), TaskId(7 + DELIVERIES_MAX));
        deliveries.begin(first, at(10), Span::from_secs(5));
        deliveries.begin(second, at(14), SECOND);
        assert_eq!(deliveries.end(second, at(14)), None);
        deliveries.begin(second, at(15), Span::FOREVER);
        assert_eq!(deliveries.end(first, at(16)), None);
        // A task that is delivered again begins again.
        deliveries.begin(second, at(20), SECOND);
        assert_eq!(deliveries.end(second, at(21)), Some(SECOND));
        // A delivery that may last forever has its place for an hour.
        deliveries.begin(first, at(30), Span::FOREVER);
        deliveries.begin(second, at(30 + 3_599), SECOND);
        assert_eq!(deliveries.end(second, at(9_999)), None);
        deliveries.begin(second, at(30 + 3_600), SECOND);
        assert_eq!(deliveries.end(second, at(30 + 3_602)), Some(Span::from_secs(2)));
    }

    #[test]
    fn unused_places_belong_to_no_task() {
        let mut deliveries = Deliveries::default();
        for id in [0, 1, u64::MAX - 1, taskyard_core::limits::TASK_ID_MAX] {
            assert_eq!(deliveries.end(TaskId(id), at(1)), None);
        }
    }
}
