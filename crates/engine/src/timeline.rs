//! The engine's time.
//!
//! It goes on evenly, whatever becomes of the wall clock: a lease, a wait or a delay lasts as long as it was to last. Beside it
//! the engine knows how far wall time is ahead. The store keeps moments of the engine's time together with that distance, so
//! that both go on from one start to the next; what passes while no server runs is measured by the wall clock.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{Span, Timestamp};
use taskyard_store::StoreTime;

use crate::clock::Clock;

/// How long to leave a store alone that could not be told.
const BACK_OFF: Span = Span::from_secs(1);

/// How far ahead of the wall clock a stored moment may be without doubt.
const OUTLIER: Span = Span::from_secs(24 * 3600);

/// The engine's time, and wall time beside it.
pub(crate) struct Timeline {
    clock: Arc<dyn Clock>,
    /// How far the clock is ahead of the engine's time, in microseconds.
    shift: i64,
    /// How far wall time is ahead of it, as the store was told.
    wall_ahead: i64,
    /// Whether the store goes by the engine's time. If not, its times are wall time.
    told: bool,
    /// The store could not be told; not before this moment again.
    not_before: Option<Timestamp>,
}

impl Timeline {
    /// Goes on from what the store knows. Time never goes backwards, also if the wall clock was set back while no server
    /// ran, and never to before 1970.
    pub fn new(clock: Arc<dyn Clock>, store: Option<StoreTime>) -> Self {
        let (now, wall_ahead) = (clock.now(), clock.wall_ahead());
        let Some(known) = store else {
            return Timeline { clock, shift: 0, wall_ahead, told: false, not_before: None };
        };
        let by_wall = now.moved(wall_ahead).moved(known.wall_ahead.saturating_neg());
        let start = by_wall.max(reached(&known, by_wall)).max(Timestamp::EPOCH);
        let shift = now.as_micros().saturating_sub(start.as_micros());
        Timeline { clock, shift, wall_ahead: known.wall_ahead, told: true, not_before: None }
    }

    /// The engine's time now.
    pub fn now(&self) -> Timestamp {
        self.clock.now().moved(self.shift.saturating_neg())
    }

    /// How long a thread may sleep without missing `until`.
    pub fn sleep_max(&self, until: Timestamp) -> Option<Duration> {
        self.clock.sleep_max(until.moved(self.shift))
    }

    /// How far wall time is ahead, if that is not what the store was told and it may be told now.
    pub fn step(&self, now: Timestamp) -> Option<i64> {
        let wall_ahead = self.clock.wall_ahead().saturating_add(self.shift);
        let may_tell = self.not_before.is_none_or(|moment| moment <= now);
        (wall_ahead != self.wall_ahead && may_tell).then_some(wall_ahead)
    }

    /// Whether the store must be told of steps.
    pub fn tells(&self) -> bool {
        self.told
    }

    /// Takes a step in, of which the store knows by now; returns by how many microseconds wall time was set forward.
    pub fn adopt(&mut self, wall_ahead: i64) -> i64 {
        self.not_before = None;
        wall_ahead.saturating_sub(std::mem::replace(&mut self.wall_ahead, wall_ahead))
    }

    /// Leaves a store alone for a while that could not be told.
    pub fn put_off(&mut self, now: Timestamp) {
        self.not_before = Some(now + BACK_OFF);
    }

    /// A moment of the engine's time as the wall clock would show it.
    pub fn to_wall(&self, moment: Timestamp) -> Timestamp {
        moment.moved(self.wall_ahead)
    }

    /// A moment of the engine's time as the store counts.
    pub fn to_store(&self, moment: Timestamp) -> Timestamp {
        if self.told { moment } else { self.to_wall(moment) }
    }

    /// A moment of the store's time as the engine counts.
    pub fn of_store(&self, moment: Timestamp) -> Timestamp {
        if self.told { moment } else { moment.moved(self.wall_ahead.saturating_neg()) }
    }
}

/// The moment that the store had reached when it was closed. A task that was put by a clock far ahead of all others, and of the
/// wall clock now, does not count: with it every delay and every time to live would end at once.
fn reached(known: &StoreTime, by_wall: Timestamp) -> Timestamp {
    let Some(latest) = known.latest else { return Timestamp::EPOCH };
    let is_outlier = latest > by_wall + OUTLIER && known.earliest.is_some_and(|at| at <= by_wall);
    if is_outlier {
        tracing::warn!(
            "tasks were put by a clock that was ahead by more than a day; going by the wall clock"
        );
        return Timestamp::EPOCH;
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HandClock;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn known(seconds_ahead: i64, latest: Option<i64>) -> Option<StoreTime> {
        let wall_ahead = seconds_ahead * 1_000_000;
        Some(StoreTime { wall_ahead, latest: latest.map(at), earliest: latest.map(at) })
    }

    fn start(wall: i64, store: Option<StoreTime>) -> Timeline {
        Timeline::new(Arc::new(HandClock::new(at(wall))), store)
    }

    #[test]
    fn time_goes_on_from_what_the_store_knows() {
        let new = start(1_000, known(0, None));
        assert_eq!((new.now(), new.step(new.now())), (at(1_000), None));
        // The wall clock was an hour ahead, and still is.
        let again = start(5_000, known(3_600, Some(1_300)));
        assert_eq!((again.now(), again.step(again.now())), (at(1_400), None));
        assert_eq!(again.to_wall(again.now()), at(5_000));
    }

    #[test]
    fn time_does_not_go_backwards_with_a_wall_clock_that_was_set_back_meanwhile() {
        let mut again = start(1_000, known(0, Some(9_000)));
        assert_eq!(again.now(), at(9_000));
        let step = again.step(again.now()).expect("the store must be told");
        assert_eq!(again.adopt(step), -8_000_000_000);
        assert_eq!(again.to_wall(again.now()), at(1_000));
        assert_eq!(again.step(again.now()), None);
    }

    // One task that was put while the clock stood a year ahead moved the time of the whole store to that year at the next start:
    // every other task expired.
    #[test]
    fn one_task_of_the_future_does_not_move_the_time() {
        let year = 365 * 24 * 3_600;
        let mixed = StoreTime { wall_ahead: 0, latest: Some(at(year)), earliest: Some(at(500)) };
        assert_eq!(start(1_000, Some(mixed)).now(), at(1_000));
        // A machine without a clock battery starts in 1970: then all tasks are of the future.
        let all = StoreTime { earliest: Some(at(year - 500)), ..mixed };
        assert_eq!(start(1_000, Some(all)).now(), at(year));
    }

    #[test]
    fn a_wall_clock_before_1970_lets_time_begin_there() {
        let begun = start(-500, known(0, None));
        assert_eq!(begun.now(), Timestamp::EPOCH);
        assert_eq!(begun.step(begun.now()), Some(-500_000_000));
        // Right again after a restart.
        let again = start(2_000, known(-500, Some(7)));
        assert_eq!(again.now(), at(2_500));
    }

    #[test]
    fn a_store_with_a_clock_of_its_own_is_told_wall_time() {
        let clock = Arc::new(HandClock::new(at(1_000)));
        let mut shared = Timeline::new(clock.clone(), None);
        clock.set_wall(Span::from_secs(60), true);
        let step = shared.step(shared.now()).expect("a step");
        assert_eq!(shared.adopt(step), 60_000_000);
        assert_eq!(shared.now(), at(1_000));
        assert_eq!(shared.to_store(shared.now()), at(1_060));
        assert_eq!(shared.of_store(at(1_060)), at(1_000));
    }

    #[test]
    fn a_store_that_could_not_be_told_is_left_alone_for_a_while() {
        let mut again = start(1_000, known(0, Some(9_000)));
        again.put_off(again.now());
        assert_eq!(again.step(at(9_000)), None);
        assert!(again.step(at(9_001)).is_some());
    }
}
