//! The histories of some seeds have the hashes of `tests/golden.txt`, in every build and on every machine.

use std::fmt::Write;

use taskyard_simulator::{Mask, Plan, Scenario, run};

use crate::short_plans;

const GOLDEN: &str = include_str!("../golden.txt");
const HEADER: &str = "# The hashes of histories: scenario, seed, hash. Renew: TASKYARD_WRITE_GOLDEN=1 cargo test -p taskyard-simulator golden";

/// How many seeds of each scenario have their hash recorded. The plans of `quiet` are all long.
const COUNTS: [(Scenario, usize); 9] = [
    (Scenario::Quiet, 1),
    (Scenario::Memory, 6),
    (Scenario::Embedded, 6),
    (Scenario::Crashes, 3),
    (Scenario::Shared, 6),
    (Scenario::Network, 8),
    (Scenario::Workers, 5),
    (Scenario::Estimates, 2),
    (Scenario::Pool, 4),
];

/// Scenarios with much state in a process.
const FEW: [Scenario; 4] =
    [Scenario::Embedded, Scenario::Network, Scenario::Workers, Scenario::Pool];

fn first_plan(scenario: Scenario) -> Plan {
    short_plans(scenario).next().expect("there is always another seed")
}

fn line(plan: &Plan) -> String {
    let hash = run(plan, &Mask::default(), None).history.hash();
    format!("{} {} {hash:016x}", plan.scenario.name(), plan.seed)
}

fn plans() -> Vec<Plan> {
    let of = |(scenario, count)| match scenario {
        Scenario::Quiet => vec![Plan::draw(0, scenario)],
        _ => short_plans(scenario).take(count).collect(),
    };
    COUNTS.into_iter().flat_map(of).collect()
}

/// The hashes were recorded by another process, often on another machine: it had other addresses, random hash keys and numbers of
/// processes.
#[test]
fn golden_seeds_repeat_their_histories() {
    let plans = plans();
    if std::env::var_os("TASKYARD_WRITE_GOLDEN").is_some() {
        let mut text = format!("{HEADER}\n");
        for plan in &plans {
            writeln!(text, "{}", line(plan)).expect("a string accepts everything");
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt");
        return std::fs::write(path, text).expect("the file can be written");
    }
    let found: Vec<String> = plans.iter().map(line).collect();
    let recorded: Vec<&str> = GOLDEN.lines().skip(1).collect();
    let changed: Vec<&String> =
        found.iter().filter(|line| !recorded.contains(&line.as_str())).collect();
    assert!(
        changed.is_empty() && recorded.len() == found.len(),
        "{} histories of {} have changed: {changed:#?}\nIf the simulator or the product was changed on purpose, record them again:\n  \
         TASKYARD_WRITE_GOLDEN=1 cargo test -p taskyard-simulator golden",
        changed.len(),
        found.len()
    );
}

/// What an earlier run leaves in the process must not reach the next one.
#[test]
fn a_seed_repeats_its_history_in_a_used_process() {
    let first: Vec<String> = FEW.map(|scenario| line(&first_plan(scenario))).to_vec();
    let again: Vec<String> = FEW.map(|scenario| line(&first_plan(scenario))).to_vec();
    assert_eq!(first, again);
}
