//! The next run of a task that repeats or is retried.

use super::civil::{HOUR, Zone};
use super::interval::Interval;
use crate::time::Timestamp;

/// Steps of months that are walked at most: they are a day long or more, so this is centuries.
const STEPS_MAX: usize = 100_000;
/// The longest pause before a retry: a day.
const BACKOFF_MAX: i64 = 24 * HOUR;

/// When a task that has just ended runs again: with `drift` so long after its end, without it on the grid that its
/// plan began, at the first point that is not over. `None` where it does not repeat.
pub fn next_plan(
    plan: Timestamp,
    end: Timestamp,
    repeat: Interval,
    drift: bool,
    zone: &dyn Zone,
) -> Option<Timestamp> {
    if !repeat.is_positive() {
        return None;
    }
    Some(if drift { repeat.after(end, zone) } else { next_on_grid(plan, end, repeat, zone) })
}

/// The same for a task that ran at another moment than its grid says: `origin` is its plan before it was tried again, or
/// before it was run by hand. A run before its time does not take the place of the one that was planned.
pub fn next_plan_after(
    origin: Timestamp,
    end: Timestamp,
    repeat: Interval,
    drift: bool,
    zone: &dyn Zone,
) -> Option<Timestamp> {
    if origin > end && !drift && repeat.is_positive() {
        return Some(origin);
    }
    next_plan(origin, end, repeat, drift, zone)
}

/// The first of `plan`, `plan + step`, `plan + 2 step` … that is after `now` and after `plan`.
pub fn next_on_grid(plan: Timestamp, now: Timestamp, step: Interval, zone: &dyn Zone) -> Timestamp {
    if step.months == 0 && step.days == 0 {
        let passed = i128::from(now.as_micros()) - i128::from(plan.as_micros());
        let step = i128::from(step.micros.max(1));
        let next = i128::from(plan.as_micros()) + (passed.div_euclid(step).max(0) + 1) * step;
        return Timestamp::from_micros(next.clamp(0, i128::from(i64::MAX)) as i64);
    }
    if step.months == 0 {
        return next_by_days(plan, now, step, zone);
    }
    // Each step begins where the one before it ended, so that a month without a 31st moves what follows.
    let mut next = step.after(plan, zone);
    for _ in 0..STEPS_MAX {
        if next > now {
            return next;
        }
        next = step.after(next, zone);
    }
    step.after(now, zone)
}

/// The same for steps of whole days and more: found by halving.
fn next_by_days(plan: Timestamp, now: Timestamp, step: Interval, zone: &dyn Zone) -> Timestamp {
    let length = step.approximate_micros().max(1);
    let passed = i128::from(now.as_micros()) - i128::from(plan.as_micros());
    let guess = passed.div_euclid(length).clamp(0, i64::MAX.into()) as i64;
    if guess > STEPS_MAX as i64 {
        // Days that are taken back again by the hours: their calendar does not matter.
        let uniform = Interval::from_micros(length.clamp(1, i64::MAX.into()) as i64);
        return next_on_grid(plan, now, uniform, zone);
    }
    // Clocks are never set by more than a few hours.
    let slack = (i128::from(4 * HOUR) / length + 2) as i64;
    let (mut early, mut late) = (guess.saturating_sub(slack).max(0), guess.saturating_add(slack));
    while late - early > 1 {
        let middle = early + (late - early) / 2;
        if step.times(middle).after(plan, zone) > now {
            late = middle;
        } else {
            early = middle;
        }
    }
    step.times(late).after(plan, zone)
}

/// When a task that failed `attempts` times is tried again: each pause is twice the one before it.
pub fn backoff(end: Timestamp, pause: Interval, attempts: u32, zone: &dyn Zone) -> Timestamp {
    let longest = Interval::from_micros(BACKOFF_MAX).after(end, zone);
    let doubled = pause.times(1 << attempts.saturating_sub(1).min(32));
    doubled.after(end, zone).clamp(end, longest)
}

/// Whether a task may still begin.
pub fn is_active(plan: Timestamp, active: Interval, now: Timestamp, zone: &dyn Zone) -> bool {
    now < active.after(plan, zone)
}

#[cfg(test)]
mod tests {
    use super::super::civil::test_zone::{BACK, FORWARD, Summer};
    use super::super::civil::{DAY, Utc};
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    /// One step after another, as a naive reference.
    fn walked(plan: Timestamp, now: Timestamp, step: Interval) -> Timestamp {
        let mut next = step.after(plan, &Utc);
        while next <= now {
            next = step.after(next, &Utc);
        }
        next
    }

    // A job of every midnight that was tried by hand in the afternoon ran in the afternoon from then on.
    #[test]
    fn a_run_by_hand_does_not_move_the_grid() {
        let (day, none) = (Interval::from_micros(DAY), Interval::from_micros(0));
        let midnight = at(10 * DAY);
        let next = |end, repeat, drift| next_plan_after(midnight, end, repeat, drift, &Utc);
        assert_eq!(next(at(9 * DAY + HOUR), day, false), Some(midnight));
        assert_eq!(next(at(10 * DAY + HOUR), day, false), Some(at(11 * DAY)));
        assert_eq!(next(at(9 * DAY + HOUR), day, true), Some(at(10 * DAY + HOUR)));
        assert_eq!(next(at(9 * DAY + HOUR), none, false), None);
    }

    #[test]
    fn the_grid_is_what_walking_it_gives() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..20_000 {
            let plan = at(random.i64(0..2_000_000_000) * 1_000_000);
            let days = random.i32(0..3);
            let micros = random.i64(if days > 0 { -DAY / 2..DAY } else { 1..DAY });
            let months = if random.u8(..4) == 0 { random.i32(0..14) } else { 0 };
            let step = Interval { months, days, micros };
            let now = at(plan.as_micros() + random.i64(-DAY..60 * DAY).min(micros.abs() * 500));
            assert_eq!(
                next_on_grid(plan, now, step, &Utc),
                walked(plan, now, step),
                "round {round}: {plan:?} {now:?} {step:?}"
            );
        }
    }

    #[test]
    fn a_grid_of_milliseconds_is_found_at_once_after_years() {
        let step = Interval::from_micros(10_000);
        let now = at(50 * 365 * DAY + 5);
        assert_eq!(next_on_grid(at(0), now, step, &Utc), at(50 * 365 * DAY + 10_000));
        let tiny = Interval { days: 1, micros: 10_000 - DAY, ..Interval::ZERO };
        let next = next_on_grid(at(0), now, tiny, &Utc);
        assert!(next > now && next <= at(now.as_micros() + 10_000), "{next:?}");
    }

    #[test]
    fn a_daily_task_keeps_its_time_when_clocks_are_set() {
        let day = Interval { days: 1, ..Interval::ZERO };
        let plan = at(FORWARD - 30 * HOUR);
        let next = next_on_grid(plan, at(FORWARD + HOUR), day, &Summer);
        assert_eq!(next, at(FORWARD - 30 * HOUR + 47 * HOUR));
        let plan = at(BACK - 30 * HOUR);
        let next = next_on_grid(plan, at(BACK + HOUR), day, &Summer);
        assert_eq!(next, at(BACK - 30 * HOUR + 49 * HOUR));
    }

    #[test]
    fn with_drift_it_counts_from_the_end() {
        let minute = Interval::from_micros(60_000_000);
        let (plan, end) = (at(0), at(90_000_001));
        assert_eq!(next_plan(plan, end, minute, true, &Utc), Some(at(150_000_001)));
        assert_eq!(next_plan(plan, end, minute, false, &Utc), Some(at(120_000_000)));
        assert_eq!(next_plan(plan, at(120_000_000), minute, false, &Utc), Some(at(180_000_000)));
        assert_eq!(next_plan(plan, end, Interval::ZERO, true, &Utc), None);
    }

    #[test]
    fn a_task_that_ran_before_its_plan_goes_on_after_it() {
        let minute = Interval::from_micros(60_000_000);
        assert_eq!(next_on_grid(at(500_000_000), at(5), minute, &Utc), at(560_000_000));
    }

    #[test]
    fn pauses_double_up_to_a_day() {
        let second = Interval::from_micros(1_000_000);
        for (attempts, seconds) in [(1, 1), (2, 2), (3, 4), (11, 1024), (40, 86_400)] {
            assert_eq!(backoff(at(5), second, attempts, &Utc), at(5 + seconds * 1_000_000));
        }
        let backwards = Interval::from_micros(-5);
        assert_eq!(backoff(at(5), backwards, 1, &Utc), at(5));
    }

    #[test]
    fn a_task_is_active_until_its_time_is_over() {
        let hour = Interval::from_micros(HOUR);
        assert!(is_active(at(0), hour, at(HOUR - 1), &Utc));
        assert!(!is_active(at(0), hour, at(HOUR), &Utc));
    }
}
