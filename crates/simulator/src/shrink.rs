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
/// What the number of a fault begins with in what is kept.
const FAULT: &str = "fault:";
/// The text of a run of which nothing is kept.
const NOTHING: &str = "nothing";

/// A failing run, as small as it could be made.
pub struct Failure {
    plan: Plan,
    planted: Option<PlantedFault>,
    violation: Violation,
    mask: Mask,
    lines: Vec<String>,
}

impl Failure {
    /// The violation of the smallest run.
    pub fn violation(&self) -> &Violation {
        &self.violation
    }

    /// The history of the smallest run.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// What the smallest run does, as [`Mask::keeping`] reads it.
    pub fn kept(&self) -> String {
        self.mask.kept(&self.plan)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, scenario, violation) =
            (self.plan.seed, self.plan.scenario.name(), &self.violation);
        let planted =
            self.planted.map_or_else(String::new, |fault| format!(" --planted {fault:?}"));
        let command = format!("cargo xtask simulate --scenario {scenario} --seed {seed}{planted}");
        writeln!(f, "seed {seed} of scenario {scenario} breaks a promise")?;
        writeln!(f, "  {violation}")?;
        writeln!(f, "  repeat with: {command}")?;
        writeln!(f, "  only this history: {command} --keep {}", self.kept())?;
        writeln!(
            f,
            "  when it is understood, add its story to crates/simulator/tests/regressions.txt:"
        )?;
        writeln!(f, "{scenario} {seed} {violation}")?;
        let (operations, faults) = (self.mask.operations.len(), self.mask.faults.len());
        writeln!(
            f,
            "  history without {operations} operations and {faults} faults that are not needed for it:"
        )?;
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl Mask {
    /// Leaves out everything but this: numbers of operations, such as `0.17`, and of faults, such as `fault:3`, or `nothing`.
    pub fn keeping(plan: &Plan, kept: &str) -> Option<Self> {
        let operations = all_operations(plan).into_iter().collect();
        let mut mask = Mask { operations, faults: (0..plan.fault_count()).collect() };
        for part in kept.split(',').filter(|part| *part != NOTHING) {
            let is_known = match (part.strip_prefix(FAULT), part.split_once('.')) {
                (Some(fault), _) => mask.faults.remove(&fault.parse().ok()?),
                (None, Some((client, index))) => {
                    mask.operations.remove(&(client.parse().ok()?, index.parse().ok()?))
                }
                (None, None) => false,
            };
            is_known.then_some(())?;
        }
        Some(mask)
    }

    /// What it does not leave out.
    fn kept(&self, plan: &Plan) -> String {
        let operations = all_operations(plan).into_iter();
        let operations = operations.filter(|number| !self.operations.contains(number));
        let faults = (0..plan.fault_count()).filter(|index| !self.faults.contains(index));
        let mut parts: Vec<String> =
            operations.map(|(client, index)| format!("{client}.{index}")).collect();
        parts.extend(faults.map(|index| format!("{FAULT}{index}")));
        if parts.is_empty() { NOTHING.into() } else { parts.join(",") }
    }
}

fn all_operations(plan: &Plan) -> Vec<OperationNumber> {
    let of_client = |client| (0..plan.operations).map(move |index| (client, index));
    (0..plan.clients).flat_map(of_client).collect()
}

/// Makes a failing run, which leaves out what this mask says, smaller for at most so long.
pub fn shrink(
    plan: &Plan,
    mask: &Mask,
    planted: Option<PlantedFault>,
    report: RunReport,
    most: Duration,
) -> Option<Failure> {
    let violation = report.violation?;
    let begun = Instant::now();
    let mut smallest = (mask.clone(), violation.clone(), report.history);
    let fails = |mask: &Mask| {
        let report = run(plan, mask, planted);
        let violation = report.violation.filter(|found| found.judge == violation.judge)?;
        Some((mask.clone(), violation, report.history))
    };
    let mut faults: Vec<usize> = (0..plan.fault_count()).collect();
    faults.retain(|index| !mask.faults.contains(index));
    let mut operations = all_operations(plan);
    operations.retain(|number| !mask.operations.contains(number));
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
    let lines = history.lines(LINES_MAX);
    Some(Failure { plan: plan.clone(), planted, violation, mask, lines })
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
    use super::*;
    use crate::plan::Scenario;

    #[test]
    fn what_is_kept_is_read_back() {
        let plan = Plan::draw(3, Scenario::Shared);
        let all = Mask::default().kept(&plan);
        for text in [all.as_str(), "0.1,1.0", "nothing"] {
            let mask = Mask::keeping(&plan, text).expect("it names parts of the run");
            assert_eq!(mask.kept(&plan), text);
        }
        assert_eq!(Mask::keeping(&plan, &all), Some(Mask::default()));
        for wrong in ["", "0", "x.1", "99.0", "fault:99", "fault:x"] {
            assert_eq!(Mask::keeping(&plan, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_what_is_needed_is_left() {
        let mut all: Vec<u32> = (0..100).collect();
        for size in [50, 25, 12, 6, 3, 1] {
            drop_parts(&mut all, size, |part| !part.contains(&17) && !part.contains(&80));
        }
        assert_eq!(all, [17, 80]);
    }
}
