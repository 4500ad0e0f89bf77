//! Judges the times of a daily schedule across a change of daylight saving time.
//!
//! The expected times are computed here, from the offsets of one time zone, and not by the code that fires schedules.

use taskyard_core::{Span, Timestamp};

use crate::evidence::Evidence;
use crate::faults::FaultKind;
use crate::plan::BERLIN_CHANGES;

/// The local time of the daily schedule, as a cron expression and in seconds after midnight. It is left out in spring and there
/// twice in autumn.
pub const DAILY: &str = "30 2 * * *";
const DAILY_SECONDS: i64 = 2 * 3_600 + 30 * 60;
/// How late a schedule may fire: a server may be frozen several times in a row.
const LATE_MAX: Span = Span::from_secs(900);
const DAY: i64 = 24 * 3_600;

/// Finds a time that did not fire once.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let (facts, plan) = (evidence.facts, evidence.plan);
    let is_set = |kind: &FaultKind| matches!(kind, FaultKind::StepClock(..));
    let ended = facts.schedules_ended.filter(|_| plan.lasts_days && facts.late.is_none())?;
    if plan.faults.iter().any(|fault| is_set(&fault.kind)) {
        // Schedules follow the wall clock.
        return None;
    }
    let mut fired = facts.daily.iter().copied();
    for time in times(plan.start, ended) {
        match fired.next() {
            Some(at) if time <= at && at <= time + LATE_MAX => {}
            Some(at) => {
                let seconds = at.as_secs_f64() - time.as_secs_f64();
                return Some(format!(
                    "a daily schedule fired {seconds:.0} s after its time {:.0}",
                    time.as_secs_f64()
                ));
            }
            None if time + LATE_MAX > ended => {}
            None => {
                return Some(format!(
                    "a daily schedule did not fire at its time {:.0}",
                    time.as_secs_f64()
                ));
            }
        }
    }
    fired.next().map(|at| format!("a daily schedule fired once more at {:.0}", at.as_secs_f64()))
}

/// The expected times after one moment and up to another.
fn times(start: Timestamp, end: Timestamp) -> impl Iterator<Item = Timestamp> {
    let first = start.as_micros() / 1_000_000 / DAY - 1;
    let times = (first..).map(|day| daily_at(day * DAY));
    times.skip_while(move |time| *time <= start).take_while(move |time| *time <= end)
}

/// The moment of a day; its midnight is given as if it were in UTC.
fn daily_at(midnight: i64) -> Timestamp {
    let local = midnight + DAILY_SECONDS;
    let moment = |offset| Timestamp::from_micros((local - offset) * 1_000_000);
    for (change, offset) in BERLIN_CHANGES {
        let before = 3 * 3_600 - offset;
        let is_left_out = offset > before && change + before <= local && local < change + offset;
        if is_left_out {
            return Timestamp::from_micros(change * 1_000_000);
        }
    }
    // Of a time that is there twice the first: that with the offset before the change.
    let offsets = [7_200, 3_600];
    let valid = offsets.into_iter().find(|offset| offset_at(local - offset) == *offset);
    moment(valid.unwrap_or(3_600))
}

/// How far the clocks are ahead of UTC.
fn offset_at(moment: i64) -> i64 {
    let mut passed = BERLIN_CHANGES.iter().filter(|(change, _)| *change <= moment);
    passed.next_back().map_or(7_200, |(_, offset)| *offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(start: i64, days: i64) -> Vec<i64> {
        let at = |seconds| Timestamp::from_micros(seconds * 1_000_000);
        times(at(start), at(start + days * DAY)).map(|at| at.as_micros() / 1_000_000).collect()
    }

    #[test]
    fn in_spring_it_fires_when_the_clocks_are_set() {
        // From 30 March 2024 on, 00:00 UTC.
        let midnight = 1_711_756_800;
        let expected = [midnight + 5_400, midnight + DAY + 3_600, midnight + 2 * DAY + 1_800];
        assert_eq!(seconds(midnight, 3), expected);
    }

    #[test]
    fn in_autumn_it_fires_once() {
        // From 26 October 2024 on, 00:00 UTC.
        let midnight = 1_729_900_800;
        let expected = [midnight + 1_800, midnight + DAY + 1_800, midnight + 2 * DAY + 5_400];
        assert_eq!(seconds(midnight, 3), expected);
    }
}
