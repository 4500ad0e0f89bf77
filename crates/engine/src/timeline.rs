//! Converts between the engine's time, the wall clock and the store's time.
//!
//! The engine's time is monotonic and even, whatever happens to the wall clock: a lease, a wait or
//! a delay keeps its length. The engine also knows how far the wall clock is ahead. The store keeps
//! moments of the engine's time together with that distance, so both continue across restarts; the
//! time while no server runs is measured by the wall clock.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{Span, Timestamp};
use taskyard_store::StoreTime;

use crate::clock::Clock;
use crate::series::Moment;

/// How long to wait after a failed attempt to store a step.
const BACK_OFF: Span = Span::from_secs(1);

/// A stored moment that is further ahead of the wall clock is suspicious.
const AHEAD_MAX: Span = Span::from_secs(24 * 3600);

/// The engine's time, and its distance to the wall clock.
pub(crate) struct Timeline {
    clock: Arc<dyn Clock>,
    /// How far the clock is ahead of the engine's time, in microseconds.
    shift: i64,
    /// How far the wall clock is ahead of the engine's time, as the store knows it.
    wall_ahead: i64,
    /// Whether the store uses the engine's time. If not, its times are wall time.
    store_uses_engine_time: bool,
    /// Storing a step failed; not to be retried before this moment.
    not_before: Option<Timestamp>,
}

impl Timeline {
    /// Continues from what the store knows. Time never goes backwards, even if the wall clock was
    /// set back while no server ran, and never to before 1970.
    pub fn new(clock: Arc<dyn Clock>, store: Option<StoreTime>) -> Self {
        let (now, wall_ahead) = (clock.now(), clock.wall_ahead());
        let Some(known) = store else {
            return Timeline {
                clock,
                shift: 0,
                wall_ahead,
                store_uses_engine_time: false,
                not_before: None,
            };
        };
        let by_wall = now.moved(wall_ahead).moved(known.wall_ahead.saturating_neg());
        let start = by_wall.max(reached(&known, by_wall)).max(Timestamp::EPOCH);
        let shift = now.as_micros().saturating_sub(start.as_micros());
        Timeline {
            clock,
            shift,
            wall_ahead: known.wall_ahead,
            store_uses_engine_time: true,
            not_before: None,
        }
    }

    /// The engine's time now.
    pub fn now(&self) -> Timestamp {
        self.clock.now().moved(self.shift.saturating_neg())
    }

    /// How long a thread may sleep without missing `until`.
    pub fn sleep_max(&self, until: Timestamp) -> Option<Duration> {
        self.clock.sleep_max(until.moved(self.shift))
    }

    /// How far the wall clock is ahead, if that differs from what the store knows and may be
    /// reported now.
    pub fn step(&self, now: Timestamp) -> Option<i64> {
        let wall_ahead = self.clock.wall_ahead().saturating_add(self.shift);
        let may_tell = self.not_before.is_none_or(|moment| moment <= now);
        (wall_ahead != self.wall_ahead && may_tell).then_some(wall_ahead)
    }

    /// Whether steps must be reported to the store.
    pub fn store_uses_engine_time(&self) -> bool {
        self.store_uses_engine_time
    }

    /// Adopts a step that the store knows by now; returns by how many microseconds the wall clock
    /// was set forward.
    pub fn adopt(&mut self, wall_ahead: i64) -> i64 {
        self.not_before = None;
        wall_ahead.saturating_sub(std::mem::replace(&mut self.wall_ahead, wall_ahead))
    }

    /// Postpones the next attempt to store a step.
    pub fn postpone(&mut self, now: Timestamp) {
        self.not_before = Some(now + BACK_OFF);
    }

    /// Converts a moment of the engine's time to wall time.
    pub fn to_wall(&self, moment: Timestamp) -> Timestamp {
        moment.moved(self.wall_ahead)
    }

    /// A moment of the engine's time, with its wall time.
    pub fn moment(&self, now: Timestamp) -> Moment {
        Moment { now, wall: self.to_wall(now) }
    }

    /// Converts a moment of the engine's time to the store's time.
    pub fn to_store(&self, moment: Timestamp) -> Timestamp {
        if self.store_uses_engine_time { moment } else { self.to_wall(moment) }
    }

    /// Converts a moment of the store's time to the engine's time.
    pub fn of_store(&self, moment: Timestamp) -> Timestamp {
        if self.store_uses_engine_time {
            moment
        } else {
            moment.moved(self.wall_ahead.saturating_neg())
        }
    }
}

/// The moment that the store had reached when it was closed. A task whose put time is far ahead of
/// all others and of the wall clock is ignored: otherwise every delay and every time to live would
/// end at once.
fn reached(known: &StoreTime, by_wall: Timestamp) -> Timestamp {
    let Some(latest) = known.latest else { return Timestamp::EPOCH };
    let is_outlier = latest > by_wall + AHEAD_MAX && known.earliest.is_some_and(|at| at <= by_wall);
    if is_outlier {
        tracing::warn!(
            "some tasks were put by a clock that was more than a day ahead; using the wall clock"
        );
        return Timestamp::EPOCH;
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn known(seconds_ahead: i64, latest: Option<i64>) -> Option<StoreTime> {
        let wall_ahead = seconds_ahead * 1_000_000;
        Some(StoreTime { wall_ahead, latest: latest.map(at), earliest: latest.map(at) })
    }

    fn start(wall: i64, store: Option<StoreTime>) -> Timeline {
        Timeline::new(Arc::new(ManualClock::new(at(wall))), store)
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
        let step = again.step(again.now()).expect("a step to report");
        assert_eq!(again.adopt(step), -8_000_000_000);
        assert_eq!(again.to_wall(again.now()), at(1_000));
        assert_eq!(again.step(again.now()), None);
    }

    // One task that was put while the clock was a year ahead moved the time of the whole store to
    // that year at the next start: every other task expired.
    #[test]
    fn one_task_from_the_future_does_not_move_the_time() {
        let year = 365 * 24 * 3_600;
        let mixed = StoreTime { wall_ahead: 0, latest: Some(at(year)), earliest: Some(at(500)) };
        assert_eq!(start(1_000, Some(mixed)).now(), at(1_000));
        // A machine without a clock battery starts in 1970: then all tasks are from the future.
        let all = StoreTime { earliest: Some(at(year - 500)), ..mixed };
        assert_eq!(start(1_000, Some(all)).now(), at(year));
    }

    #[test]
    fn time_starts_at_1970_when_the_wall_clock_is_before() {
        let begun = start(-500, known(0, None));
        assert_eq!(begun.now(), Timestamp::EPOCH);
        assert_eq!(begun.step(begun.now()), Some(-500_000_000));
        // Correct again after a restart.
        let again = start(2_000, known(-500, Some(7)));
        assert_eq!(again.now(), at(2_500));
    }

    #[test]
    fn a_store_with_its_own_clock_gets_wall_time() {
        let clock = Arc::new(ManualClock::new(at(1_000)));
        let mut shared = Timeline::new(clock.clone(), None);
        clock.set_wall(Span::from_secs(60), true);
        let step = shared.step(shared.now()).expect("a step");
        assert_eq!(shared.adopt(step), 60_000_000);
        assert_eq!(shared.now(), at(1_000));
        assert_eq!(shared.to_store(shared.now()), at(1_060));
        assert_eq!(shared.of_store(at(1_060)), at(1_000));
    }

    #[test]
    fn a_failed_step_is_postponed() {
        let mut again = start(1_000, known(0, Some(9_000)));
        again.postpone(again.now());
        assert_eq!(again.step(at(9_000)), None);
        assert!(again.step(at(9_001)).is_some());
    }
}
