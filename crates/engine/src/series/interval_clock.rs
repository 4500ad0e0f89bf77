//! Numbers the intervals of a series, and follows the wall clock without ever going backwards.

use taskyard_core::Timestamp;

use super::{SeriesStart, Step};

/// The number of the current interval and the wall time that it stands for. When the wall clock is
/// set, the intervals keep their numbers and all of them stand for other times, as all tasks do.
#[derive(Debug)]
pub(super) struct IntervalClock {
    step: Step,
    current: u32,
    /// The wall time of interval 0, in steps since the epoch.
    origin: i64,
}

impl IntervalClock {
    /// Begins with interval 0.
    pub fn new(step: Step, wall: Timestamp) -> Self {
        IntervalClock { step, current: 0, origin: steps(step, wall) }
    }

    /// The current interval.
    pub fn current(&self) -> u32 {
        self.current
    }

    /// Goes on to the interval of this moment. Returns the interval that ended, if one did. A clock
    /// that was set back changes the time of all intervals instead.
    pub fn advance(&mut self, wall: Timestamp) -> Option<u32> {
        let number = steps(self.step, wall) - self.origin;
        if number < i64::from(self.current) {
            self.follow(wall);
            return None;
        }
        let number = u32::try_from(number).unwrap_or(u32::MAX - 1);
        let ended = std::mem::replace(&mut self.current, number);
        (ended != number).then_some(ended)
    }

    /// The wall clock was set: the current interval is the one of this moment.
    pub fn follow(&mut self, wall: Timestamp) {
        self.origin = steps(self.step, wall) - i64::from(self.current);
    }

    /// The first interval that a ring has and that ends after this moment.
    pub fn first_from(&self, from: SeriesStart) -> u32 {
        let current = i64::from(self.current);
        let wanted = match from {
            SeriesStart::Oldest => 0,
            SeriesStart::At(moment) => steps(self.step, moment) - self.origin,
            SeriesStart::Last(span) => {
                let step_micros = self.step.seconds() * 1_000_000;
                current - (span.as_micros() + step_micros - 1) / step_micros
            }
        };
        let wanted = u32::try_from(wanted.clamp(0, current)).unwrap_or(0);
        wanted.max(self.current.saturating_sub(self.step.points_max()))
    }

    /// When an interval begins, in wall time.
    pub fn begin_of(&self, interval: u32) -> Timestamp {
        let steps = self.origin.saturating_add(i64::from(interval));
        Timestamp::from_micros(steps.saturating_mul(self.step.seconds() * 1_000_000))
    }
}

fn steps(step: Step, wall: Timestamp) -> i64 {
    wall.as_micros().div_euclid(step.seconds() * 1_000_000)
}

#[cfg(test)]
mod tests {
    use taskyard_core::Span;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn intervals_are_those_of_the_wall_clock() {
        let mut minutes = IntervalClock::new(Step::Minute, at(130));
        assert_eq!((minutes.current(), minutes.begin_of(0)), (0, at(120)));
        assert_eq!((minutes.advance(at(179)), minutes.advance(at(180))), (None, Some(0)));
        assert_eq!((minutes.advance(at(900)), minutes.current()), (Some(1), 13));
        let from = [at(0), at(239), at(240), at(99_999), Timestamp::NEVER].map(SeriesStart::At);
        assert_eq!(from.map(|from| minutes.first_from(from)), [0, 1, 2, 13, 13]);
        let last = [1, 60, 61, 99_999].map(|last| SeriesStart::Last(Span::from_secs(last)));
        assert_eq!(last.map(|from| minutes.first_from(from)), [12, 12, 11, 0]);
        assert_eq!(minutes.first_from(SeriesStart::Oldest), 0);
    }

    #[test]
    fn a_clock_that_is_set_changes_the_time_of_all_intervals() {
        let mut seconds = IntervalClock::new(Step::Second, at(1_000));
        seconds.advance(at(1_010));
        assert_eq!((seconds.advance(at(500)), seconds.current()), (None, 10));
        assert_eq!((seconds.begin_of(10), seconds.begin_of(0)), (at(500), at(490)));
        assert_eq!((seconds.advance(at(501)), seconds.current()), (Some(10), 11));
        seconds.follow(at(99_999));
        assert_eq!((seconds.advance(at(99_999)), seconds.begin_of(11)), (None, at(99_999)));
        assert_eq!(seconds.advance(Timestamp::from_micros(i64::MIN)), None);
        assert_eq!(seconds.advance(Timestamp::NEVER), Some(11));
    }
}
