//! Judges that each time of a schedule fires once, and that none is missed where all are caught up.

use taskyard_core::CatchUp;
use taskyard_engine::read_timing;

use crate::evidence::Evidence;
use crate::final_phase::ScheduleFacts;
use crate::tubes::TubeRole;

/// Finds a schedule that fired too often or too rarely.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let facts = evidence.facts;
    if facts.late.is_some() {
        // Its tasks were not drained.
        return None;
    }
    if let Some(sentence) = facts.schedules.iter().find_map(check_times) {
        return Some(sentence);
    }
    let fired: u64 = facts.schedules.iter().map(|schedule| schedule.last.fired).sum();
    let added = facts.drained.iter().filter(|task| TubeRole::Scheduled.is(&task.tube)).count();
    (added as u64 != fired)
        .then(|| format!("schedules fired {fired} times, and there are {added} tasks of them"))
}

fn check_times(schedule: &ScheduleFacts) -> Option<String> {
    let ScheduleFacts { first, last } = schedule;
    let timing = read_timing(&first.timing).ok()?;
    let until = last.next?;
    let times = first.times(&timing).take_while(|time| *time < until).count() as u64;
    let name = &first.name;
    // It may have fired before it was shown for the first time.
    let (fired, skipped) = (last.fired - first.fired, last.skipped - first.skipped);
    if fired + skipped != times {
        return Some(format!(
            "schedule '{name}' had {times} times; {fired} fired and {skipped} were skipped"
        ));
    }
    (first.catch_up == CatchUp::All && skipped > 0)
        .then(|| format!("schedule '{name}' catches up all times and skipped {skipped}"))
}

#[cfg(test)]
mod tests {
    use taskyard_core::schedule::TimingRule;
    use taskyard_core::{Body, CatchUp, NewTask, Span, StoredSchedule, Timestamp};

    use crate::final_phase::ScheduleFacts;
    use crate::judges::script::Script;

    fn script(fired: u64, skipped: u64, tasks: u64) -> Script {
        let mut script = Script::new();
        let rule = TimingRule::Every { every: Span::from_secs(7), start: None };
        let at = |seconds| Some(Timestamp::EPOCH + Span::from_secs(seconds));
        let task = NewTask::new(Body::new(b"x"));
        let first = StoredSchedule {
            catch_up: CatchUp::All,
            next: at(7),
            ..StoredSchedule::new("every", "scheduled", task, &rule).unwrap()
        };
        let last = StoredSchedule { next: at(28), fired, skipped, ..first.clone() };
        script.facts.schedules.push(ScheduleFacts { first, last });
        (0..tasks).for_each(|id| script.drain("scheduled", id));
        script
    }

    #[test]
    fn each_time_once() {
        assert_eq!(script(3, 0, 3).judge(super::judge), None);
        assert!(script(3, 0, 4).judge(super::judge).unwrap().contains("there are 4 tasks"));
        assert!(script(4, 0, 4).judge(super::judge).unwrap().contains("had 3 times"));
        assert!(script(2, 1, 2).judge(super::judge).unwrap().contains("skipped 1"));
    }
}
