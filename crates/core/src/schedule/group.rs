//! Limits of groups: which tasks may begin, and in which session.

use super::civil::Zone;
use super::interval::Interval;
use super::repeat::next_on_grid;
use crate::time::Timestamp;

/// How many more tasks of a group may begin beside one with this `max`; negative is none, not even itself.
pub fn allowance(max: i32, running: usize) -> i64 {
    i64::from(max.max(0)) - i64::try_from(running).unwrap_or(i64::MAX)
}

/// A session that runs one task after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The `max` of the task that it was opened for.
    pub max: i32,
    /// How many tasks it has run.
    pub done: u32,
    /// When it began.
    pub since: Timestamp,
}

/// The limits of a task on the session that it may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Its `max`.
    pub max: i32,
    /// How many tasks a session may run; zero says nothing.
    pub count: i32,
    /// How old a session may be; zero says nothing.
    pub live: Interval,
}

impl Reuse {
    /// Whether the session of a task that has ended may run another.
    pub fn goes_on(self) -> bool {
        self.max >= 0 && (self.count > 0 || self.live.is_positive())
    }

    /// Whether this task may run in a session that has run others.
    pub fn fits(self, worker: Worker, now: Timestamp, zone: &dyn Zone) -> bool {
        let counted = i64::from(worker.done) < i64::from(self.count);
        let young = self.live.is_positive() && now < self.live.after(worker.since, zone);
        let both = self.count > 0 && self.live.is_positive();
        self.max >= worker.max && if both { counted && young } else { counted || young }
    }
}

/// When the next task of a group with pauses may begin: so many milliseconds after the end of the last one with
/// `drift`, on the grid that its plan began without it.
pub fn pause_until(
    plan: Timestamp,
    end: Timestamp,
    pause_ms: u32,
    drift: bool,
    zone: &dyn Zone,
) -> Timestamp {
    let pause = Interval::from_micros(i64::from(pause_ms) * 1000);
    if pause_ms == 0 {
        return end;
    }
    if drift { pause.after(end, zone) } else { next_on_grid(plan, end, pause, zone) }
}

#[cfg(test)]
mod tests {
    use super::super::civil::Utc;
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * SECOND)
    }

    fn reuse(max: i32, count: i32, live: i64) -> Reuse {
        Reuse { max, count, live: Interval::from_micros(live * SECOND) }
    }

    #[test]
    fn max_counts_those_beside_the_first() {
        assert_eq!([allowance(0, 0), allowance(0, 1)], [0, -1]);
        assert_eq!([allowance(1, 1), allowance(1, 2), allowance(2, 2)], [0, -1, 0]);
        assert_eq!(allowance(-5000, 0), 0);
        assert!(allowance(i32::MAX, usize::MAX) < 0);
    }

    #[test]
    fn a_session_goes_on_when_the_task_says_so() {
        assert!(reuse(0, 1, 0).goes_on());
        assert!(reuse(0, 0, 1).goes_on());
        assert!(!reuse(0, 0, 0).goes_on());
        assert!(!reuse(-1, 5, 5).goes_on());
    }

    #[test]
    fn count_and_live_bound_a_session() {
        let worker = Worker { max: 1, done: 2, since: at(10) };
        for (task, seconds, fits) in [
            (reuse(1, 3, 0), 1000, true),
            (reuse(1, 2, 0), 11, false),
            (reuse(1, 0, 5), 14, true),
            (reuse(1, 0, 5), 15, false),
            // With both, both must hold.
            (reuse(1, 3, 5), 14, true),
            (reuse(1, 2, 5), 14, false),
            (reuse(1, 3, 5), 15, false),
            (reuse(1, 0, 0), 11, false),
            // A session that was opened for a higher max does not take lower ones.
            (reuse(0, 3, 0), 11, false),
            (reuse(2, 3, 0), 11, true),
        ] {
            assert_eq!(task.fits(worker, at(seconds), &Utc), fits, "{task:?} at {seconds}");
        }
    }

    #[test]
    fn pauses_are_on_the_grid_or_after_the_end() {
        // Tasks of ten seconds with a pause of five, as in the first description.
        assert_eq!(pause_until(at(0), at(10), 5000, false, &Utc), at(15));
        assert_eq!(pause_until(at(0), at(11), 5000, false, &Utc), at(15));
        assert_eq!(pause_until(at(0), at(11), 5000, true, &Utc), at(16));
        assert_eq!(pause_until(at(0), at(11), 0, true, &Utc), at(11));
    }
}
