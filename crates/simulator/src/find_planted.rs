//! Measures how long it takes to find each planted fault.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use taskyard_simulator::{Mask, Plan, PlantedFault, Scenario, Violation, run};

/// Each must be found within this time.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Looks for all planted faults, or for those of one scenario, and prints the table of docs/testing.md.
pub fn find_planted(only: Option<Scenario>) -> ExitCode {
    println!("| planted fault | scenario | judge | seed | seconds |\n|---|---|---|---|---|");
    let mut is_missed = false;
    let faults = PlantedFault::ALL.into_iter();
    for (fault, scenario) in faults.filter(|(_, of)| only.is_none_or(|only| *of == only)) {
        let begun = Instant::now();
        let found = find(fault, scenario, begun);
        let (name, seconds) = (scenario.name(), begun.elapsed().as_secs_f64());
        is_missed |= found.is_none();
        match found {
            Some((seed, violation)) => {
                println!("| `{fault:?}` | {name} | {} | {seed} | {seconds:.2} |", violation.judge);
                eprintln!("  {}", violation.sentence);
            }
            None => println!("| `{fault:?}` | {name} | not found | | {seconds:.2} |"),
        }
    }
    if is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn find(fault: PlantedFault, scenario: Scenario, begun: Instant) -> Option<(u64, Violation)> {
    (0..).take_while(|_| begun.elapsed() < TIME_MAX).find_map(|seed| {
        // The same plans as in the tests.
        let is_used = |plan: &Plan| scenario == Scenario::Pool || plan.is_short();
        let plan = Some(Plan::draw(seed, scenario)).filter(is_used)?;
        let report = run(&plan, &Mask::default(), Some(fault));
        report.violation.map(|violation| (seed, violation))
    })
}
