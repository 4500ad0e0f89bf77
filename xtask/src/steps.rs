//! Runs the steps of a test run, measures them against their budgets, and prints the table that closes the run.

use std::fmt::Write;
use std::time::{Duration, Instant};

/// The time that a step may take on two cores.
struct Budget {
    step: &'static str,
    /// Seconds when everything is built.
    warm: u64,
    /// Seconds when this step has to build.
    cold: u64,
}

const fn runs(step: &'static str, seconds: u64) -> Budget {
    Budget { step, warm: seconds, cold: seconds }
}

const fn builds(step: &'static str, warm: u64, cold: u64) -> Budget {
    Budget { step, warm, cold }
}

/// Ten minutes when everything is built, twenty in a fresh clone, on two quiet cores. A step that builds or installs is held to
/// its budget for a fresh clone.
const BUDGETS: &[Budget] = &[
    builds("tools", 15, 60),
    runs("format", 10),
    builds("clippy", 20, 220),
    runs("tidy", 15),
    builds("build", 20, 375),
    runs("doc tests", 30),
    runs("databases", 260),
    runs("tests", 230),
];

/// A step over its budget is marked; one over this many times its budget fails. Shared machines are often half as fast.
const TOLERANCE: u64 = 3;

/// The steps that were run.
#[derive(Default)]
pub struct Steps {
    done: Vec<Step>,
    /// Whether a step over its budget is only marked and does not fail.
    unlimited: bool,
}

struct Step {
    name: &'static str,
    took: Duration,
    failure: Option<String>,
}

impl Steps {
    /// No steps yet; with `unlimited`, a step may take as long as it takes.
    pub fn new(unlimited: bool) -> Self {
        Steps { done: Vec::new(), unlimited }
    }

    /// Runs a step and returns whether it succeeded; a failure is kept for the table.
    pub fn run(&mut self, name: &'static str, work: impl FnOnce() -> Result<(), String>) -> bool {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let failure = work().err();
        if let Some(error) = &failure {
            eprintln!("{error}");
        }
        self.done.push(Step { name, took: started.elapsed(), failure });
        self.done.last().is_some_and(|step| step.failure.is_none())
    }

    /// The table of all steps with their seconds: those they took, those of a warm build, and the budget.
    pub fn table(&self) -> String {
        let mut table = format!("{:<10} {:>8} {:>8} {:>8}\n", "step", "seconds", "warm", "budget");
        for step in &self.done {
            let seconds = step.took.as_secs_f64();
            let (warm, cold) = budget(step.name);
            let _ = write!(table, "{:<10} {seconds:>8.1} {warm:>8} {cold:>8}", step.name);
            table.push_str(if step.failure.is_some() { "  FAILED" } else { "" });
            table.push_str(if step.is_over_budget() { "  OVER BUDGET" } else { "" });
            table.push('\n');
        }
        let total = self.total().as_secs_f64();
        let warm: u64 = BUDGETS.iter().map(|budget| budget.warm).sum();
        let cold: u64 = BUDGETS.iter().map(|budget| budget.cold).sum();
        let _ = writeln!(table, "{:<10} {total:>8.1} {warm:>8} {cold:>8}", "total");
        table
    }

    /// The last line of the run: that `tested` passed, or the steps that failed or took too long.
    pub fn summary(&self, tested: &str) -> Result<String, String> {
        let seconds = self.total().as_secs();
        let failed: Vec<_> = self.done.iter().filter(|step| step.failure.is_some()).collect();
        let slow: Vec<_> =
            self.done.iter().filter(|step| step.is_too_slow()).map(|step| step.name).collect();
        if !failed.is_empty() {
            let names: Vec<_> = failed.iter().map(|step| step.name).collect();
            let mut text = format!("FAILED after {seconds} s: {}", names.join(", "));
            // Repeated here, because the output of a later step may be long.
            for failure in failed.iter().filter_map(|step| step.failure.as_ref()) {
                let _ = write!(text, "\n{failure}");
            }
            return Err(text);
        }
        if !slow.is_empty() && !self.unlimited {
            let slow = slow.join(", ");
            let advice = "on a slow or busy machine, add --no-budget";
            return Err(format!("OVER BUDGET after {seconds} s: {slow}; {advice}"));
        }
        Ok(format!("{tested} passed in {seconds} s"))
    }

    fn total(&self) -> Duration {
        self.done.iter().map(|step| step.took).sum()
    }
}

impl Step {
    fn is_over_budget(&self) -> bool {
        self.took.as_secs() > budget(self.name).1
    }

    fn is_too_slow(&self) -> bool {
        self.took.as_secs() > TOLERANCE * budget(self.name).1
    }
}

/// The seconds of a step, warm and cold.
fn budget(name: &str) -> (u64, u64) {
    let budget = BUDGETS.iter().find(|budget| budget.step == name);
    budget.map_or((0, 0), |budget| (budget.warm, budget.cold))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, seconds: u64, failure: Option<&str>) -> Step {
        Step { name, took: Duration::from_secs(seconds), failure: failure.map(String::from) }
    }

    #[test]
    fn all_steps_fit_in_ten_minutes_warm_and_twenty_cold() {
        assert!(BUDGETS.iter().map(|budget| budget.warm).sum::<u64>() <= 10 * 60);
        assert!(BUDGETS.iter().map(|budget| budget.cold).sum::<u64>() <= 20 * 60);
    }

    #[test]
    fn a_step_far_over_its_budget_fails_unless_that_is_allowed() {
        let done = || vec![step("tidy", 1, None), step("format", 99, None)];
        let slow = Steps { done: vec![step("format", 30, None)], unlimited: false };
        assert!(slow.table().contains("OVER BUDGET") && slow.summary("all").is_ok());
        let mut steps = Steps { done: done(), unlimited: false };
        let table = steps.table();
        let marked: Vec<_> = table.lines().filter(|line| line.contains("OVER BUDGET")).collect();
        assert_eq!(marked.len(), 1, "{table}");
        assert!(marked[0].starts_with("format"), "{table}");
        assert!(steps.summary("all").unwrap_err().starts_with("OVER BUDGET after 100 s: format"));
        steps.unlimited = true;
        assert_eq!(steps.summary("all"), Ok("all passed in 100 s".into()));
    }

    #[test]
    fn a_failed_step_is_named_last() {
        let mut steps = Steps::default();
        assert!(steps.run("format", || Ok(())));
        assert!(!steps.run("clippy", || Err("a warning".into())));
        assert!(steps.table().contains("FAILED"));
        assert_eq!(steps.summary("all"), Err("FAILED after 0 s: clippy\na warning".into()));
    }
}
