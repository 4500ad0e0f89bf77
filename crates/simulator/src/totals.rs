//! Counts what the runs of each scenario did.

use std::time::{Duration, Instant};

use taskyard_simulator::{FaultCounts, RunReport, Scenario};

/// What the runs of one scenario did.
pub struct ScenarioTotals {
    /// The scenario.
    pub scenario: Scenario,
    /// The seed of its next run.
    pub next_seed: u64,
    /// How many runs it had.
    pub seeds: u64,
    spent: Duration,
    simulated: Duration,
    crashes: u64,
    recoveries: u64,
    faults: FaultCounts,
    commands: u64,
}

impl ScenarioTotals {
    /// No runs; the first has this seed.
    pub fn new(scenario: Scenario, first: u64) -> Self {
        ScenarioTotals {
            scenario,
            next_seed: first,
            seeds: 0,
            spent: Duration::ZERO,
            simulated: Duration::ZERO,
            crashes: 0,
            recoveries: 0,
            faults: FaultCounts::default(),
            commands: 0,
        }
    }

    /// Measures a run.
    pub fn time(&mut self, run: impl FnOnce() -> RunReport) -> RunReport {
        let begun = Instant::now();
        let report = run();
        self.spent += begun.elapsed();
        self.next_seed = self.next_seed.wrapping_add(1);
        self.seeds += 1;
        self.simulated += report.simulated;
        self.crashes += report.crashes;
        self.recoveries += report.recoveries;
        self.faults.add(&report.faults);
        self.commands += report.commands;
        report
    }

    /// How much of its share of the time it had. Runs without faults get a part of that of others.
    pub fn share(&self) -> Duration {
        if self.scenario == Scenario::Quiet { self.spent * 8 } else { self.spent }
    }

    fn line(&self, name: &str) -> String {
        let seconds = self.spent.as_secs_f64().max(f64::MIN_POSITIVE);
        format!(
            "{name}: {} seeds, {:.1} simulated hours, {} crashes, {} recoveries, {} faults, {} commands, {:.0} commands/s, {:.0} crashes/s, {:.0} recoveries/s, {:.1} s",
            self.seeds,
            self.simulated.as_secs_f64() / 3_600.0,
            self.crashes,
            self.recoveries,
            self.faults.faults(),
            self.commands,
            self.commands as f64 / seconds,
            self.crashes as f64 / seconds,
            self.recoveries as f64 / seconds,
            self.spent.as_secs_f64()
        )
    }
}

/// Prints what the runs did at their end: also the faults and their effects.
pub fn print_result(all: &[ScenarioTotals], elapsed: Duration) {
    let mut faults = FaultCounts::default();
    all.iter().for_each(|totals| faults.add(&totals.faults));
    print!("faults, how often, and what they did:\n{faults}");
    print(all, elapsed);
}

/// Prints one line for each scenario, and one for all.
pub fn print(all: &[ScenarioTotals], elapsed: Duration) {
    let mut sum = ScenarioTotals::new(Scenario::Quiet, 0);
    for totals in all {
        println!("  {}", totals.line(totals.scenario.name()));
        sum.seeds += totals.seeds;
        sum.simulated += totals.simulated;
        sum.crashes += totals.crashes;
        sum.recoveries += totals.recoveries;
        sum.faults.add(&totals.faults);
        sum.commands += totals.commands;
    }
    sum.spent = elapsed;
    println!("{}", sum.line("all"));
}
