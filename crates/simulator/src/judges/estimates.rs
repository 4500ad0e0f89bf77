//! Judges positions of waiting tasks, and estimates of their starts: nine of ten must start within p90.

use std::collections::HashMap;

use taskyard_core::{Command, Position, Reply, Timestamp, TubeName};

use crate::evidence::{Delivery, Evidence, TaskKey};
use crate::history::{Moment, RecordedCall};
use crate::plan::Scenario;

/// From how many estimates on their share is judged.
const COUNT_MIN: usize = 100;
/// The smallest share of tasks that start within p50 and p90. Tasks that wait together are early or late together, so the
/// shares of one run are far from those of many.
const P50_MIN: f64 = 0.15;
const P90_MIN: f64 = 0.6;

/// Finds a wrong position, or estimates that do not hold.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    count(evidence).map_or_else(Some, |held| held.check())
}

/// How many estimates held; the error is a wrong position.
pub fn count(evidence: &Evidence<'_>) -> Result<HeldEstimates, String> {
    let mut held = HeldEstimates::default();
    if evidence.plan.scenario != Scenario::Estimates {
        return Ok(held);
    }
    let starts: HashMap<TaskKey<'_>, &Delivery<'_>> = evidence
        .deliveries
        .iter()
        .rev()
        .map(|delivery| ((delivery.tube, delivery.id), delivery))
        .collect();
    for call in &evidence.history.calls {
        let Command::Positions { tube, .. } = &call.command else { continue };
        let Some((Reply::Positions(positions), end)) = call.replied() else { continue };
        for position in positions {
            check_position(evidence, &starts, (tube, call, end), position)?;
            if let Some(start) = starts.get(&(tube, position.id)).and_then(|first| first.start) {
                held.add(position, call.begin.at, start);
            }
        }
    }
    Ok(held)
}

/// How many estimates held.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldEstimates {
    /// Estimates that were compared with the start of their task.
    pub count: usize,
    /// Those of tasks that started within p50.
    pub within_p50: usize,
    /// Those of tasks that started within p90.
    pub within_p90: usize,
}

impl HeldEstimates {
    fn add(&mut self, position: &Position, asked: Timestamp, start: Timestamp) {
        let Some(Ok(estimate)) = &position.estimate else { return };
        self.count += 1;
        self.within_p50 += usize::from(start <= asked + estimate.p50);
        self.within_p90 += usize::from(start <= asked + estimate.p90);
    }

    fn check(&self) -> Option<String> {
        let share = |within: usize| within as f64 / self.count as f64;
        let (p50, p90) = (share(self.within_p50), share(self.within_p90));
        (self.count >= COUNT_MIN && (p50 < P50_MIN || p90 < P90_MIN)).then(|| {
            format!(
                "of {} tasks {:.0} % started within p50 and {:.0} % within p90",
                self.count,
                100.0 * p50,
                100.0 * p90
            )
        })
    }
}

/// Compares a position with the tasks that waited at that time.
fn check_position(
    evidence: &Evidence<'_>,
    starts: &HashMap<TaskKey<'_>, &Delivery<'_>>,
    (tube, call, end): (&TubeName, &RecordedCall, Moment),
    position: &Position,
) -> Result<(), String> {
    let own = (position.pri, position.id);
    let (mut least, mut most) = (0, 0);
    for put in evidence.puts.values().filter(|put| put.tube == tube) {
        let Some(placed) = put.placed else { continue };
        if (put.task.pri.unwrap_or(0), placed.id) >= own || put.call.begin > end {
            continue;
        }
        let started = starts.get(&(tube, placed.id));
        // At the same virtual time the order of calls is not known.
        let is_before = |moment: Option<Moment>| moment.is_some_and(|at| at.at < call.begin.at);
        if is_before(started.map(|delivery| delivery.from)) {
            continue;
        }
        most += 1;
        let is_after = started.is_none_or(|delivery| delivery.from.at > end.at);
        least += u64::from(is_before(put.call.end) && is_after);
    }
    if least <= position.ahead && position.ahead <= most {
        return Ok(());
    }
    Err(format!(
        "task {} of '{tube}' is shown behind {} tasks, and {least} to {most} go first",
        position.id, position.ahead
    ))
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Basis, Estimate, Span, TaskId};

    use super::*;
    use crate::judges::script::Script;
    use crate::plan::Plan;

    fn asked(ahead: u64) -> Script {
        let mut script = Script::new();
        script.plan = Plan::draw(0, Scenario::Estimates);
        (0..3).for_each(|id| script.put("plain", id, |_| {}));
        script.pass(1);
        script.take("plain", 0, 1, 10);
        script.pass(1);
        let position = Position { id: TaskId(2), ..Position::behind(ahead) };
        let (tube, ids) = (TubeName::new("plain").unwrap(), vec![TaskId(2)]);
        script.call(Command::Positions { tube, ids }, Reply::Positions(vec![position]));
        script
    }

    #[test]
    fn a_position_counts_what_waits() {
        assert_eq!(asked(1).judge(judge), None);
        assert!(asked(2).judge(judge).unwrap().contains("shown behind 2 tasks, and 1 to 1"));
        assert!(asked(0).judge(judge).is_some());
    }

    #[test]
    fn most_tasks_start_within_their_estimates() {
        let estimate = |p50, p90| {
            let (p50, p90) = (Span::from_secs(p50), Span::from_secs(p90));
            let estimate = Estimate { ahead: 0, p50, p90, basis: Basis::RunTimes };
            Position { estimate: Some(Ok(estimate)), ..Position::behind(0) }
        };
        let start = Timestamp::EPOCH + Span::from_secs(5);
        for (p50, p90, holds) in [(5, 9, true), (4, 9, false), (4, 4, false)] {
            let mut held = HeldEstimates::default();
            (0..COUNT_MIN).for_each(|_| held.add(&estimate(p50, p90), Timestamp::EPOCH, start));
            assert_eq!(held.check().is_none(), holds, "{p50} {p90}");
        }
    }
}
