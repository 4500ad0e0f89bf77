//! Steps that are timed, and the table of them that closes a run.

use std::fmt::Write;
use std::time::{Duration, Instant};

/// How many seconds each step may take when everything is already built, on two cores. Their sum is
/// what a person waits before a push: it stays within twenty minutes.
const BUDGETS: &[(&str, u64)] = &[
    ("tools", 15),
    ("format", 10),
    ("clippy", 90),
    ("tidy", 10),
    ("build", 175),
    ("doc tests", 100),
    ("databases", 300),
    ("tests", 500),
];

/// What has been run so far.
#[derive(Default)]
pub struct Steps {
    done: Vec<Step>,
}

struct Step {
    name: &'static str,
    took: Duration,
    failure: Option<String>,
}

impl Steps {
    /// Runs a step and says whether it went well; a failure is kept for the table.
    pub fn run(&mut self, name: &'static str, work: impl FnOnce() -> Result<(), String>) -> bool {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let failure = work().err();
        if let Some(why) = &failure {
            eprintln!("{why}");
        }
        self.done.push(Step { name, took: started.elapsed(), failure });
        self.done.last().is_some_and(|step| step.failure.is_none())
    }

    /// The table of all steps with their seconds and budgets.
    pub fn table(&self) -> String {
        let mut table = format!("{:<10} {:>8} {:>8}\n", "step", "seconds", "budget");
        for step in &self.done {
            let budget = budget(step.name);
            let _ = write!(table, "{:<10} {:>8.1} {budget:>8}", step.name, step.took.as_secs_f64());
            table.push_str(if step.failure.is_some() { "  FAILED" } else { "" });
            table.push_str(over(step.took, budget));
            table.push('\n');
        }
        let total = self.total();
        let budget = BUDGETS.iter().map(|(_, seconds)| seconds).sum();
        let _ = write!(table, "{:<10} {:>8.1} {budget:>8}", "total", total.as_secs_f64());
        table.push_str(over(total, budget));
        table.push('\n');
        if self.done.iter().any(|step| step.took.as_secs() > self::budget(step.name)) {
            table.push_str(
                "Budgets are for a warm build: run again before looking for the cause.\n",
            );
        }
        table
    }

    /// The last line of the run: what is green, or what failed.
    pub fn verdict(&self, green: &str) -> Result<String, String> {
        let seconds = self.total().as_secs();
        let failed: Vec<_> =
            self.done.iter().filter(|step| step.failure.is_some()).map(|step| step.name).collect();
        if failed.is_empty() {
            Ok(format!("{green} green in {seconds} s"))
        } else {
            Err(format!("FAILED after {seconds} s: {}", failed.join(", ")))
        }
    }

    fn total(&self) -> Duration {
        self.done.iter().map(|step| step.took).sum()
    }
}

fn budget(name: &str) -> u64 {
    BUDGETS.iter().find(|(step, _)| *step == name).map_or(0, |(_, seconds)| *seconds)
}

fn over(took: Duration, budget: u64) -> &'static str {
    if took.as_secs() > budget { "  OVER BUDGET" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, seconds: u64, failure: Option<&str>) -> Step {
        Step { name, took: Duration::from_secs(seconds), failure: failure.map(String::from) }
    }

    #[test]
    fn the_whole_fits_in_twenty_minutes() {
        assert!(BUDGETS.iter().map(|(_, seconds)| seconds).sum::<u64>() <= 20 * 60);
    }

    #[test]
    fn a_slow_step_is_marked() {
        let steps = Steps { done: vec![step("tidy", 1, None), step("format", 99, None)] };
        let table = steps.table();
        let marked: Vec<_> = table.lines().filter(|line| line.contains("OVER BUDGET")).collect();
        assert_eq!(marked.len(), 1, "{table}");
        assert!(marked[0].starts_with("format"), "{table}");
        assert_eq!(steps.verdict("all"), Ok("all green in 100 s".into()));
    }

    #[test]
    fn a_failed_step_is_named_last() {
        let mut steps = Steps::default();
        assert!(steps.run("format", || Ok(())));
        assert!(!steps.run("clippy", || Err("a warning".into())));
        assert!(steps.table().contains("FAILED"));
        assert_eq!(steps.verdict("all"), Err("FAILED after 0 s: clippy".into()));
    }
}
