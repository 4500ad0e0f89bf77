//! Runs the steps of a test run, measures them against their budgets, and prints the table that closes the run.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::machine_speed::{self, ProcessorUse};

/// The time that a step may take on two quiet cores of the reference machine.
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

/// The target of a whole run on two quiet cores, in minutes: when everything is built, and in a fresh clone.
const TARGETS: (u64, u64) = (10, 20);

/// A run is that of a fresh clone if a step that builds or installs took so many times its budget for when everything is built.
const COLD: f64 = 2.0;

/// All steps together fit into the targets. A step that builds or installs is held to its budget for a fresh clone.
const BUDGETS: &[Budget] = &[
    builds("tools", 12, 57),
    runs("format", 10),
    builds("clippy", 20, 220),
    runs("tidy", 12),
    builds("build", 20, 375),
    runs("doc tests", 20),
    runs("packages", 10),
    runs("fixtures", 270),
    runs("tests", 220),
    // It runs beside the two steps before it, so that it has mostly ended.
    runs("simulator", 3),
    runs("secrets", 3),
];

/// Budgets are multiplied by this in addition to what [`machine_speed`] measures. It covers what that cannot see: a slow disk, a
/// slow network while tools are installed, slow memory, and a host that other virtual machines use: the same tests took 1.7 times as
/// long an hour later.
const MARGIN: f64 = 4.0;

/// The steps that were run.
pub struct Steps {
    done: Vec<Step>,
    /// Whether a step over its budget is only marked and does not fail.
    unlimited: bool,
    /// How much slower one core is than one of the reference machine.
    slowness: f64,
}

struct Step {
    name: &'static str,
    took: Duration,
    /// How much slower it was because of other programs.
    busyness: f64,
    failure: Option<String>,
}

impl Steps {
    /// No steps yet; with `unlimited`, a step may take as long as it takes.
    pub fn new(unlimited: bool) -> Self {
        Steps { done: Vec::new(), unlimited, slowness: machine_speed::slowness() }
    }

    /// Runs a step and returns whether it succeeded; a failure is kept for the table.
    pub fn run(&mut self, name: &'static str, work: impl FnOnce() -> Result<(), String>) -> bool {
        eprintln!("\n== {name}");
        let (started, before) = (Instant::now(), ProcessorUse::read());
        let failure = work().err();
        let (took, after) = (started.elapsed(), ProcessorUse::read());
        if let Some(error) = &failure {
            eprintln!("{error}");
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let busyness = machine_speed::busyness(before, after, cores);
        self.done.push(Step { name, took, busyness, failure });
        self.done.last().is_some_and(|step| step.failure.is_none())
    }

    /// The table of all steps with their seconds: those they took, those of a warm build, the budget, and those that are allowed
    /// on this machine.
    pub fn table(&self) -> String {
        let titles = ["seconds", "warm", "budget", "allowed"].map(|title| format!(" {title:>8}"));
        let mut table = format!("{:<10}{}\n", "step", titles.concat());
        for step in &self.done {
            let seconds = step.took.as_secs_f64();
            let (warm, cold) = budget(step.name);
            let allowed = self.allowed(step);
            let _ = write!(
                table,
                "{:<10} {seconds:>8.1} {warm:>8} {cold:>8} {allowed:>8.0}",
                step.name
            );
            table.push_str(if step.failure.is_some() { "  FAILED" } else { "" });
            table.push_str(if self.is_over_budget(step) { "  OVER BUDGET" } else { "" });
            table.push('\n');
        }
        let total = self.total().as_secs_f64();
        let warm: u64 = BUDGETS.iter().map(|budget| budget.warm).sum();
        let cold: u64 = BUDGETS.iter().map(|budget| budget.cold).sum();
        let _ = writeln!(table, "{:<10} {total:>8.1} {warm:>8} {cold:>8}", "total");
        table
    }

    /// The total against the target of a whole run. It is a statement only: each step has a budget that can fail.
    pub fn target(&self) -> String {
        let is_cold = self.done.iter().any(|step| {
            let (warm, cold) = budget(step.name);
            cold > warm && self.quiet_seconds(step) > COLD * warm as f64
        });
        let (kind, target) = match is_cold {
            false => ("everything was built", TARGETS.0),
            true => ("some was built or installed", TARGETS.1),
        };
        let quiet: f64 = self.done.iter().map(|step| self.quiet_seconds(step)).sum();
        let (total, quiet) = (self.total().as_secs_f64() / 60.0, quiet / 60.0);
        let relation = if quiet <= target as f64 { "within" } else { "ABOVE" };
        format!(
            "total {total:.1} min, about {quiet:.1} min on quiet cores of the reference machine: {relation} the target of \
             {target} min ({kind})"
        )
    }

    /// The seconds that a step would have taken on the reference machine without other programs.
    fn quiet_seconds(&self, step: &Step) -> f64 {
        step.took.as_secs_f64() / (self.slowness * step.busyness)
    }

    /// The last line of the run: that `tested` passed, or the steps that failed or took too long.
    pub fn summary(&self, tested: &str) -> Result<String, String> {
        let seconds = self.total().as_secs();
        let failed: Vec<_> = self.done.iter().filter(|step| step.failure.is_some()).collect();
        let slow: Vec<_> = self.done.iter().filter(|step| self.is_over_budget(step)).collect();
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
            let names: Vec<_> = slow.iter().map(|step| step.name).collect();
            let mut text = format!("OVER BUDGET after {seconds} s: {}", names.join(", "));
            for step in slow {
                let _ = write!(text, "\n{}", self.excess(step));
            }
            text.push_str("\nmake the step faster, or add --no-budget if the machine is the cause");
            return Err(text);
        }
        Ok(format!("{tested} passed in {seconds} s"))
    }

    fn total(&self) -> Duration {
        self.done.iter().map(|step| step.took).sum()
    }

    /// The seconds that a step may take on this machine, as busy as it was.
    fn allowed(&self, step: &Step) -> f64 {
        budget(step.name).1 as f64 * self.slowness * step.busyness * MARGIN
    }

    fn is_over_budget(&self, step: &Step) -> bool {
        step.took.as_secs_f64() > self.allowed(step)
    }

    /// How a step exceeds its budget.
    fn excess(&self, step: &Step) -> String {
        let Step { name, took, busyness, .. } = step;
        let (seconds, budget, allowed) = (took.as_secs(), budget(name).1, self.allowed(step));
        format!(
            "{name} took {seconds} s, more than {allowed:.0} s: its budget of {budget} s, times {:.1} for the speed of a core, \
             {busyness:.1} for other programs and {MARGIN} as a margin",
            self.slowness
        )
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

    fn step(name: &'static str, seconds: u64, busyness: f64) -> Step {
        Step { name, took: Duration::from_secs(seconds), busyness, failure: None }
    }

    fn steps(done: Vec<Step>, slowness: f64) -> Steps {
        Steps { done, unlimited: false, slowness }
    }

    #[test]
    fn all_steps_fit_in_the_targets() {
        assert!(BUDGETS.iter().map(|budget| budget.warm).sum::<u64>() <= 60 * TARGETS.0);
        assert!(BUDGETS.iter().map(|budget| budget.cold).sum::<u64>() <= 60 * TARGETS.1);
    }

    /// Each step may take four times its budget, so a run of forty minutes passed without a word.
    #[test]
    fn the_total_is_compared_with_a_target() {
        let run = |build, tests, slowness| {
            let done = vec![step("build", build, 1.0), step("tests", tests, 2.0)];
            steps(done, slowness).target()
        };
        let warm = "total 9.5 min, about 5.0 min on quiet cores of the reference machine: within the target of 10 min (everything was built)";
        assert_eq!(run(30, 540, 1.0), warm);
        assert!(run(30, 1_260, 1.0).contains("11.0 min on quiet cores"));
        assert!(run(30, 1_260, 1.0).contains("ABOVE the target of 10 min"));
        assert!(run(300, 1_260, 1.0).contains("within the target of 20 min (some was built"));
        assert!(
            run(60, 1_260, 2.0).contains("about 5.8 min")
                && run(60, 1_260, 2.0).contains("of 10 min")
        );
    }

    #[test]
    fn a_step_over_its_budget_fails_unless_that_is_allowed() {
        let mut steps = steps(vec![step("tidy", 1, 1.0), step("format", 41, 1.0)], 1.0);
        let table = steps.table();
        let marked: Vec<_> = table.lines().filter(|line| line.contains("OVER BUDGET")).collect();
        assert_eq!(marked.len(), 1, "{table}");
        assert!(marked[0].starts_with("format"), "{table}");
        let excess = "OVER BUDGET after 42 s: format\n\
            format took 41 s, more than 40 s: its budget of 10 s, times 1.0 for the speed of a core, 1.0 for other programs and 4 \
            as a margin\n";
        let summary = steps.summary("all").unwrap_err();
        assert!(summary.starts_with(excess) && summary.contains("--no-budget"), "{summary}");
        steps.unlimited = true;
        assert_eq!(steps.summary("all"), Ok("all passed in 42 s".into()));
    }

    #[test]
    fn a_slow_or_busy_machine_has_more_time() {
        for (slowness, busyness) in [(3.0, 1.0), (1.0, 3.0), (1.5, 2.0)] {
            let within = steps(vec![step("format", 120, busyness)], slowness);
            assert_eq!(within.summary("all"), Ok("all passed in 120 s".into()));
            let over = steps(vec![step("format", 121, busyness)], slowness);
            assert!(over.summary("all").unwrap_err().contains("took 121 s, more than 120 s"));
        }
    }

    #[test]
    fn a_failed_step_is_named_last() {
        let mut steps = steps(Vec::new(), 1.0);
        assert!(steps.run("format", || Ok(())));
        assert!(!steps.run("clippy", || Err("a warning".into())));
        assert!(steps.table().contains("FAILED"));
        assert_eq!(steps.summary("all"), Err("FAILED after 0 s: clippy\na warning".into()));
    }
}
