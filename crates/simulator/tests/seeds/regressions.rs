//! Runs that once broke a promise: `tests/regressions.txt` has their seeds and stories.

use taskyard_simulator::{Mask, Plan, Scenario, run};

const REGRESSIONS: &str = include_str!("../regressions.txt");

/// The scenario, seed and story of each line.
fn regressions() -> impl Iterator<Item = (Scenario, u64, &'static str)> {
    let lines = REGRESSIONS.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let parts: Vec<&str> = line.splitn(3, ' ').collect();
        let [scenario, seed, story] = parts[..] else { panic!("no story: {line}") };
        let scenario =
            Scenario::from_name(scenario).unwrap_or_else(|| panic!("no scenario: {line}"));
        (scenario, seed.parse().unwrap_or_else(|_| panic!("no seed: {line}")), story)
    })
}

fn check(is_chosen: impl Fn(Scenario) -> bool) {
    let chosen: Vec<_> = regressions().filter(|(scenario, ..)| is_chosen(*scenario)).collect();
    assert!(!chosen.is_empty());
    for (scenario, seed, story) in chosen {
        let report = run(&Plan::draw(seed, scenario), &Mask::default(), None);
        assert_eq!(report.violation, None, "{} {seed}: {story}", scenario.name());
    }
}

#[test]
fn seeds_that_once_failed_pass() {
    check(|scenario| scenario != Scenario::Pool);
}

#[test]
fn seeds_of_pools_that_once_failed_pass() {
    check(|scenario| scenario == Scenario::Pool);
}
