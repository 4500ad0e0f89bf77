//! Repeats a failing run with fewer operations and faults, until none of them can be left out.

use std::fmt;
use std::time::{Duration, Instant};

use crate::history::OperationNumber;
use crate::judges::Violation;
use crate::plan::{Mask, Plan};
use crate::planted::PlantedFault;
use crate::run::{RunReport, run};

/// How many lines of a history are shown.
const LINES_MAX: usize = 200;

/// A failing run, as small as it could be made.
pub struct Failure {
    plan: Plan,
    violation: Violation,
    lines: Vec<String>,
    left_out: (usize, usize),
}

impl Failure {
    /// The violation of the smallest run.
    pub fn violation(&self) -> &Violation {
        &self.violation
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, scenario) = (self.plan.seed, self.plan.scenario.name());
        writeln!(f, "seed {seed} of scenario {scenario} breaks a promise")?;
        writeln!(f, "  {}", self.violation)?;
        writeln!(f, "  repeat with: cargo xtask simulate --scenario {scenario} --seed {seed}")?;
        let (operations, faults) = self.left_out;
        writeln!(
            f,
            "  history without {operations} operations and {faults} faults that are not needed for it:"
        )?;
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Makes a failing run smaller for at most so long.
pub fn shrink(
    plan: &Plan,
    planted: Option<PlantedFault>,
    report: RunReport,
    most: Duration,
) -> Option<Failure> {
    let violation = report.violation?;
    let begun = Instant::now();
    let mut smallest = (Mask::default(), violation.clone(), report.history);
    let fails = |mask: &Mask| {
        let report = run(plan, mask, planted);
        let violation = report.violation.filter(|found| found.judge == violation.judge)?;
        Some((mask.clone(), violation, report.history))
    };
    let mut faults: Vec<usize> = (0..plan.fault_count()).collect();
    let mut operations: Vec<OperationNumber> = (0..plan.clients)
        .flat_map(|client| (0..plan.operations).map(move |index| (client, index)))
        .collect();
    let mut size = operations.len().max(1);
    while begun.elapsed() < most {
        let before = smallest.0.clone();
        drop_parts(&mut faults, size.min(4), |part| {
            let mut mask = smallest.0.clone();
            mask.faults.extend(part);
            let found = (begun.elapsed() < most).then(|| fails(&mask)).flatten();
            found.map(|found| smallest = found).is_some()
        });
        drop_parts(&mut operations, size, |part| {
            let mut mask = smallest.0.clone();
            mask.operations.extend(part);
            let found = (begun.elapsed() < most).then(|| fails(&mask)).flatten();
            found.map(|found| smallest = found).is_some()
        });
        if size == 1 && before == smallest.0 {
            break;
        }
        size = (size / 2).max(1);
    }
    let (mask, violation, history) = smallest;
    let left_out = (mask.operations.len(), mask.faults.len());
    Some(Failure { plan: plan.clone(), violation, lines: history.lines(LINES_MAX), left_out })
}

/// Removes the parts of this size that can be left out.
fn drop_parts<T: Copy>(all: &mut Vec<T>, size: usize, mut can_drop: impl FnMut(&[T]) -> bool) {
    let mut at = 0;
    while at < all.len() {
        let end = (at + size).min(all.len());
        if can_drop(&all[at..end]) {
            all.drain(at..end);
        } else {
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::drop_parts;

    #[test]
    fn only_what_is_needed_is_left() {
        let mut all: Vec<u32> = (0..100).collect();
        for size in [50, 25, 12, 6, 3, 1] {
            drop_parts(&mut all, size, |part| !part.contains(&17) && !part.contains(&80));
        }
        assert_eq!(all, [17, 80]);
    }
}
